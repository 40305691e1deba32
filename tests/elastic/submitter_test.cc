// Operations whose data does not arrive: a caller's memory is its own again when its call returns.
#include "elastic/submitter.h"

#include <gtest/gtest.h>

#include <atomic>

#include "collective/calls.h"
#include "collective/cluster.h"

namespace hvd::elastic {
namespace {

namespace testing = collective::testing;
using collective::testing::allreduce;
using collective::testing::Cluster;
using collective::testing::ClusterConfig;

/// Rank 0 of two, whose backends hold what all have called until the generation is aborted.
struct Stuck {
  Stuck() : cluster(config()) {
    session::Assignment assignment;
    assignment.generation = cluster.hub.generation;
    assignment.members.resize(2);
    hvd_membership_info place{};
    place.size = 2;
    place.generation = cluster.hub.generation;
    current.begin(assignment, place, cluster.engines[0]);
    cluster.hub.hold(true);
  }
  static ClusterConfig config() {
    ClusterConfig config;
    config.size = 2;
    config.small_data = 0;  // through the backend
    return config;
  }
  void lose(const std::string& reason) {
    ++losses;
    why = reason;
    cluster.engine(0).fail(Status(HVD_PEER_LOST, reason));
  }

  std::vector<float> in = std::vector<float>(10), out = std::vector<float>(10);
  Cluster cluster;
  CurrentGeneration current;
  std::atomic<int> losses{0};
  std::string why;
  // The last resort comes after 20 ms, while the operation's own time-out is far away.
  Submitter submitter{current, testing::kDeadline, [this](const std::string& reason) { lose(reason); },
                      milliseconds(20) - testing::kDeadline};
};

TEST(Submitter, ACallWhoseDataDoesNotArriveLosesTheGeneration) {
  Stuck stuck;
  const auto other = stuck.cluster.engine(1).submit(allreduce("x", stuck.in, stuck.out, HVD_DTYPE_FLOAT32));
  std::vector<float> mine(10);
  const Status status = stuck.submitter.run(allreduce("x", stuck.in, mine, HVD_DTYPE_FLOAT32));
  EXPECT_EQ(status.code, HVD_PEER_LOST);
  EXPECT_EQ(stuck.losses, 1);
  EXPECT_NE(stuck.why.find("'x'"), std::string::npos) << stuck.why;
  stuck.cluster.hub.hold(false);
  EXPECT_EQ(mine, std::vector<float>(10)) << "written after the call's return";
}

TEST(Submitter, AnOperationThatIsFinishedBorrowsNothing) {
  Stuck stuck;
  const auto other = stuck.cluster.engine(1).submit(allreduce("x", stuck.in, stuck.out, HVD_DTYPE_FLOAT32));
  std::vector<float> mine(10);
  const auto operation = stuck.submitter.submit(allreduce("x", stuck.in, mine, HVD_DTYPE_FLOAT32));
  for (const Time deadline = now() + testing::kDeadline; stuck.cluster.hub.in_flight() == 0;) {
    ASSERT_LT(now(), deadline) << "the backend has it";
    operation->wait(milliseconds(1));
  }
  EXPECT_EQ(stuck.submitter.finish(*operation, milliseconds(20)).code, HVD_PEER_LOST);
  EXPECT_TRUE(operation->done());
}

}  // namespace
}  // namespace hvd::elastic
