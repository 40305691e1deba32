// What the engine puts on a timeline, and whom a stall report names.
#include "timeline/timeline.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "collective/calls.h"
#include "collective/cluster.h"
#include "collective/matcher.h"

namespace hvd::collective {
namespace {

using testing::allreduce;
using testing::Cluster;
using testing::expect_all;
using testing::named;

/// Two ranks; rank 0 has a timeline.
class EngineTimeline : public ::testing::Test {
 protected:
  EngineTimeline() {
    std::string pattern = (std::filesystem::temp_directory_path() / "hvd-timeline-XXXXXX").string();
    folder = mkdtemp(pattern.data());
  }
  ~EngineTimeline() override { std::filesystem::remove_all(folder); }
  std::unique_ptr<Cluster> make(size_t small_data) {
    testing::ClusterConfig config;
    config.size = 2;
    config.small_data = small_data;
    config.timeline = timeline;
    EXPECT_TRUE(timeline->start(folder + "/t").ok());
    return std::make_unique<Cluster>(config);
  }
  /// The lines of the file that have all these parts.
  size_t lines(const std::vector<std::string>& parts) {
    EXPECT_TRUE(timeline->stop().ok());
    std::ifstream file(folder + "/t.1.json");
    size_t count = 0;
    for (std::string line; std::getline(file, line);) {
      bool all = true;
      for (const std::string& part : parts) all = all && line.find(part) != std::string::npos;
      count += all;
    }
    return count;
  }

  std::string folder;
  TimelinePtr timeline = std::make_shared<Timeline>(1, "a", nullptr);
};

TEST_F(EngineTimeline, HasPhasesBytesAndDtype) {
  const auto cluster = make(0);
  std::vector<std::vector<double>> values(2, std::vector<double>(1000, 1.0));
  expect_all(cluster->submit([&](int32_t r) {
    auto& mine = values[static_cast<size_t>(r)];
    return allreduce("gradient", mine, mine, HVD_DTYPE_FLOAT64);
  }));
  EXPECT_EQ(lines({R"("name":"gradient","cat":"operation")", R"("kind":"allreduce")", R"("bytes":8000)",
                   R"("dtype":"float64")", R"("fused":1)"}),
            1u);
  EXPECT_EQ(lines({R"("name":"NEGOTIATE")"}), 1u);
  EXPECT_EQ(lines({R"("name":"QUEUE")"}), 1u);
  EXPECT_EQ(lines({R"("name":"allreduce","cat":"phase")"}), 1u);
  EXPECT_EQ(lines({"status"}), 0u);
}

TEST_F(EngineTimeline, SmallDataIsNeverQueued) {
  const auto cluster = make(64 << 10);
  std::vector<std::vector<double>> values(2, std::vector<double>(10, 1.0));
  expect_all(cluster->submit([&](int32_t r) {
    auto& mine = values[static_cast<size_t>(r)];
    return allreduce("gradient", mine, mine, HVD_DTYPE_FLOAT64);
  }));
  expect_all(cluster->submit([&](int32_t) { return named("all", Kind::kBarrier); }));
  EXPECT_EQ(lines({R"("name":"gradient","cat":"operation")", R"("bytes":80)"}), 1u);
  EXPECT_EQ(lines({R"("name":"all","cat":"operation","args":{"kind":"barrier"})"}), 1u);
  EXPECT_EQ(lines({R"("name":"NEGOTIATE")"}), 2u);
  EXPECT_EQ(lines({R"("name":"QUEUE")"}), 0u);
  EXPECT_EQ(lines({R"("name":"barrier","cat":"phase")"}), 1u);
}

TEST_F(EngineTimeline, SaysHowAnOperationFailed) {
  const auto cluster = make(0);
  const auto operation = cluster->engines[0]->submit(named("alone", Kind::kBarrier));
  cluster->engines[0]->fail(Status(HVD_PEER_LOST, "rank 1 is gone"));
  EXPECT_EQ(operation->status().code, HVD_PEER_LOST);
  EXPECT_EQ(lines({R"("name":"alone")", R"("status":"HVD_PEER_LOST")"}), 1u);
  EXPECT_EQ(lines({R"("name":"barrier","cat":"phase")"}), 0u) << "it never ran";
}

TEST_F(EngineTimeline, HoldsNothingOfOperationsBeforeItsStart) {
  testing::ClusterConfig config;
  config.size = 2;
  config.timeline = timeline;
  Cluster cluster(config);
  const auto early = cluster.engines[0]->submit(named("early", Kind::kBarrier));
  ASSERT_TRUE(timeline->start(folder + "/t").ok());
  const auto late = cluster.engines[0]->submit(named("late", Kind::kBarrier));
  cluster.engines[0]->fail(Status(HVD_CLOSED, "over"));
  EXPECT_EQ(lines({R"("name":"early")"}), 0u);
  EXPECT_EQ(lines({R"("name":"late")"}), 1u);
}

/// Who is named by the first report, and how long it was waited for.
std::pair<std::vector<int32_t>, Duration> reported(Kind kind) {
  MatcherConfig config;
  config.hosts = {"a", "a", "b"};
  config.stall_warning = seconds(60);
  Matcher matcher(config);
  const Time start{seconds(1000)};
  matcher.request(1, testing::call("x", kind), start);
  matcher.tick(start + seconds(61));
  std::vector<Matcher::Action> actions;
  matcher.take(&actions);
  for (const auto& action : actions) {
    if (action.type == Matcher::Action::Type::kStallReport) return {action.missing, action.waited};
  }
  ADD_FAILURE() << "no report";
  return {};
}

TEST(StallReport, NamesWhoHasNotCome) {
  EXPECT_EQ(reported(Kind::kBarrier), std::pair(std::vector<int32_t>{0, 2}, seconds(61)));
}

TEST(StallReport, BlamesNobodyForAJoin) {  // whoever has not joined has more data
  EXPECT_EQ(reported(Kind::kJoin), std::pair(std::vector<int32_t>{}, seconds(61)));
}

}  // namespace
}  // namespace hvd::collective
