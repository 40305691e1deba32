// Syncs of tensors that travel by pieces: newcomers, ranks that are a commit behind, deaths on the way; by
// messages and by reading memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "state/fabric.h"
#include "state/pieces.h"
#include "state/state.h"
#include "state/sync_plan.h"

namespace hvd::state {
namespace {

Settings reading(bool others) {
  Settings settings;
  settings.reads_others = others;
  return settings;
}

struct Worker {
  Worker(bool reads, uint8_t fill)
      : state(nullptr, nullptr, nullptr, reading(reads)),
        large(kRange + 2 * kPiece + 5, fill),
        middle(3 * kPiece + 17, fill),
        small(1000, fill) {
    for (auto* tensor : {&large, &middle, &small}) {
      state.add_tensor("t" + std::to_string(tensor->size()),
                       {tensor->data(), HVD_DTYPE_UINT8, {static_cast<int64_t>(tensor->size())}});
    }
    state.add_value("step", &step, sizeof(step));
  }
  auto live() const { return std::tuple(large, middle, small, step); }
  State state;
  std::vector<uint8_t> large, middle, small;
  uint64_t step = 0;
};

struct Job {
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<Status> statuses;
  std::vector<SyncResult> results;

  void sync(Fabric& fabric) {
    statuses.assign(workers.size(), {});
    results.assign(workers.size(), {});
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < workers.size(); ++rank) {
      threads.emplace_back([&, rank] {
        const auto r = static_cast<int32_t>(rank);
        statuses[rank] =
            workers[rank]->state.sync(fabric.engine(r), r, fabric.size(), {}, seconds(60), &results[rank]);
        if (statuses[rank].ok()) return;
        // As the driver would tell all of them.
        for (int32_t other = 0; other < fabric.size(); ++other) {
          fabric.engine(other).fail({HVD_PEER_LOST, "a rank has left"});
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void expect_all_are(const decltype(workers[0]->live())& wanted) {
    for (size_t rank = 0; rank < workers.size(); ++rank) {
      ASSERT_TRUE(statuses[rank].ok()) << rank << ": " << statuses[rank].message;
      EXPECT_TRUE(workers[rank]->live() == wanted) << rank;
      EXPECT_EQ(workers[rank]->state.summary().digest, workers[0]->state.summary().digest) << rank;
      std::memset(workers[rank]->large.data(), 7, workers[rank]->large.size());
      std::memset(workers[rank]->middle.data(), 7, workers[rank]->middle.size());
      ASSERT_TRUE(workers[rank]->state.restore().ok()) << rank;
      EXPECT_TRUE(workers[rank]->live() == wanted) << rank << ": its last commit";
      // The next commit finds what the commit holds.
      ASSERT_TRUE(workers[rank]->state.refresh().ok());
      EXPECT_EQ(workers[rank]->state.summary().digest, workers[0]->state.summary().digest) << rank;
    }
  }
};

class Large : public ::testing::TestWithParam<bool> {
 protected:
  /// Two ranks with state and content of no pattern.
  void begin(Job* job) {
    for (int i = 0; i < 2; ++i) job->workers.push_back(std::make_unique<Worker>(GetParam(), uint8_t{1}));
    std::mt19937_64 random(1);
    for (size_t i = 0; i + 8 <= job->workers[0]->large.size(); i += 8) {
      const uint64_t word = random();
      for (auto& worker : job->workers) std::memcpy(worker->large.data() + i, &word, 8);
    }
    Fabric fabric(2);
    job->sync(fabric);
    ASSERT_TRUE(job->statuses[0].ok() && job->statuses[1].ok());
  }
};

TEST_P(Large, NewcomersGetAllFromAllHolders) {
  Job job;
  ASSERT_NO_FATAL_FAILURE(begin(&job));
  const auto wanted = job.workers[0]->live();
  for (uint8_t fill : {5, 6}) job.workers.push_back(std::make_unique<Worker>(GetParam(), fill));
  Fabric fabric(4);
  job.sync(fabric);
  for (size_t rank : {0, 1}) EXPECT_GT(job.results[rank].sent_bytes, kPiece) << "holders share the sending";
  for (size_t rank : {2, 3}) EXPECT_GT(job.results[rank].received_bytes, kRange);
  if (GetParam()) { EXPECT_LE(fabric.broadcasts(), 2) << "what is large was read"; }
  job.expect_all_are(wanted);
}

TEST_P(Large, OnlyPiecesThatDifferMove) {
  Job job;
  ASSERT_NO_FATAL_FAILURE(begin(&job));
  job.workers[1]->large[kRange + kPiece + 3] ^= 1;
  job.workers[1]->middle.back() ^= 1;
  ASSERT_TRUE(job.workers[1]->state.save().ok());
  const auto wanted = job.workers[1]->live();
  job.workers.push_back(
      std::make_unique<Worker>(GetParam(), uint8_t{1}));  // has all of middle but its last piece
  Fabric fabric(3);
  job.sync(fabric);
  EXPECT_EQ(job.results[0].root, 1);
  EXPECT_EQ(job.results[0].received_bytes, kPiece + 17) << "one piece of each";
  EXPECT_EQ(job.results[2].received_bytes, job.workers[2]->large.size() - 5 + 17)
      << "the odd bytes at the end are the same";
  job.expect_all_are(wanted);
}

TEST_P(Large, BreakingAnywhereIsMadeUpForByTheNext) {  // contract 4, F4
  for (int at = 0; at < 40; ++at) {
    Job job;
    ASSERT_NO_FATAL_FAILURE(begin(&job));
    job.workers[1]->large[0] ^= 1;
    ASSERT_TRUE(job.workers[1]->state.save().ok());
    const auto behind = job.workers[0]->live(), wanted = job.workers[1]->live();
    job.workers.push_back(std::make_unique<Worker>(GetParam(), uint8_t{9}));
    Fabric fabric(3);
    fabric.break_at_broadcast(at);
    job.sync(fabric);
    const bool whole = job.statuses[0].ok() && job.statuses[1].ok() && job.statuses[2].ok();
    if (!whole) {
      EXPECT_TRUE(job.statuses[0].ok() || job.workers[0]->live() == behind) << at;
      EXPECT_TRUE(job.workers[1]->live() == wanted) << at;
      for (auto& worker : job.workers) {
        if (worker->state.has_commit()) { EXPECT_TRUE(worker->state.restore().ok()); }
      }
      EXPECT_TRUE(job.statuses[0].ok() || job.workers[0]->live() == behind) << at;
      Fabric next(3, 2);
      job.sync(next);
    }
    job.expect_all_are(wanted);
    if (whole) return;
  }
  FAIL() << "it never came through";
}

// It has left, and its memory with it, while another rank reads: that is a loss, and no damage.
TEST(LargeSync, WhoseSourceLeavesMeanwhileHasLostAPeer) {
  Job job;
  for (int i = 0; i < 2; ++i) job.workers.push_back(std::make_unique<Worker>(true, uint8_t{1}));
  {
    Fabric fabric(2);
    job.sync(fabric);
    ASSERT_TRUE(job.statuses[0].ok() && job.statuses[1].ok());
  }
  State& source = job.workers[1]->state;
  job.workers[1]->large[0] ^= 1;
  ASSERT_TRUE(source.save().ok());
  FeedCommit commit;
  ASSERT_TRUE(source.feed()->commit(&commit));
  const std::string key = "t" + std::to_string(job.workers[1]->large.size());
  const auto large = std::find_if(commit.items.begin(), commit.items.end(),
                                  [&](const FeedItem& item) { return item.key == key; });
  ASSERT_NE(large, commit.items.end());
  auto* const memory = reinterpret_cast<uint8_t*>(large->address);
  Fabric fabric(2, 2);
  fabric.forge([&](int32_t to, int index, uint8_t*) {
    constexpr int kPieces = 3, kRead = 4;  // after these allgathers it reads, and has read
    if (to == 0 && index == kPieces) memory[1] ^= 1;
    if (to != 0 || index != kRead) return;
    Status left(HVD_PEER_LOST, "rank 1 has left");
    fabric.engine(0).fail(left.at_rank(1));
  });
  job.sync(fabric);
  EXPECT_EQ(job.statuses[0].code, HVD_PEER_LOST) << job.statuses[0].message;
  EXPECT_EQ(job.statuses[0].rank, 1) << job.statuses[0].message;
}

INSTANTIATE_TEST_SUITE_P(Memory, Large, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "IsRead" : "IsSent"; });

}  // namespace
}  // namespace hvd::state
