// Shards among ranks in one process: commits and syncs that are cut off at every point, losses, other sizes.
#include <random>

#include "state/shard_workers.h"

namespace hvd::state {
namespace {

/// One copy of each shard, and parity instead.
constexpr int32_t kKept[] = {1, parity_of(2), parity_of(3)};

struct ShardSizes : ShardJob {
  void change_sizes(int32_t kept);
  void cut_off_commits(int32_t kept);
  /// Every so many ranks are lost in turns.
  void cut_off_syncs(size_t every);
  void random_histories(uint32_t seeds);
};
struct Shards : ShardSizes {};

/// All on one machine, and so large that copies are the pages of their owners.
struct MappedShards : ShardSizes {
  MappedShards() {
    machines = "a";
    length = (9 << 20) / sizeof(double) + 5;
  }
};

/// A job of four that loses workers and gains others, several times.
void ShardSizes::change_sizes(int32_t kept) {
  SCOPED_TRACE(kept);
  start(4, kept);
  ASSERT_TRUE(ok(sync()));
  expect_step(0);
  uint64_t step = 0;
  for (const size_t size : {3U, 5U, 2U, 1U, 4U}) {
    for (const bool hidden : {false, true}) {
      const auto committed = commit(hidden);
      ASSERT_TRUE(ok(committed)) << text(committed);
      expect_step(++step);
    }
    // One is lost; of the others those beyond the new size leave and hand over what they alone have.
    if (workers.size() > 1) lose({step % workers.size()});
    restore();
    if (workers.size() > size) {
      form();
      ASSERT_TRUE(ok(sync()));
      for (auto& worker : workers) {
        if (worker->at.first != 0) continue;  // one of them knows
        for (size_t rank = size; rank < workers.size(); ++rank)
          worker->leaving.push_back(static_cast<int32_t>(rank));
      }
      const auto handed = all([](Worker& worker) { return worker.state.hand_over(); });
      ASSERT_TRUE(ok(handed)) << text(handed);
      while (workers.size() > size) lose({workers.size() - 1});
    }
    while (workers.size() < size) add(static_cast<int32_t>(size));
    form();
    const auto synced = sync();
    ASSERT_TRUE(ok(synced)) << text(synced);
    expect_step(step);
  }
}

TEST_F(Shards, AnotherSizeGetsEveryElement) {
  for (const int32_t kept : kKept) change_sizes(kept);
}

/// So large that ranks read each other's memory, and that what was let go of is made longer and shorter.
TEST_F(Shards, AnotherSizeGetsEveryElementOfLargeShards) {
  length = (18 << 20) / sizeof(double) + 5;
  change_sizes(1);
  uint64_t received = 0;
  for (const auto& [worker, result] : results) received += result.received_bytes;
  EXPECT_GT(received, uint64_t{4} << 20);
}

TEST_F(MappedShards, AnotherSizeGetsEveryElement) {
  for (const int32_t copies : {1, 2}) change_sizes(copies);
}

/// The pages of who is gone are read by those who have them; what two had is nobody's when both are.
TEST_F(MappedShards, AsManyMayBeLostAsThereAreCopies) {
  for (const int32_t copies : {1, 2}) {
    start(4, copies);
    ASSERT_TRUE(ok(sync()));
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(ok(commit()));
    const int broadcasts = fabric->broadcasts();
    EXPECT_EQ(broadcasts, 0) << "nothing was sent";
    std::vector<size_t> lost = {1, 2, 3};
    lost.resize(static_cast<size_t>(copies));
    lose(lost);
    restore();
    form();
    const auto synced = sync();
    ASSERT_TRUE(ok(synced)) << text(synced);
    expect_step(3);
  }
}

/// A sync on one machine makes no new copies: it maps what there is, of which as many may be lost again, and
/// again, without a commit between.
TEST_F(MappedShards, AsManyMayBeLostAfterEachSync) {
  for (const int32_t copies : {1, 2}) {
    for (size_t victim = 0; victim < 4; ++victim) {
      SCOPED_TRACE(victim);
      start(4, copies);
      ASSERT_TRUE(ok(sync()));
      for (int i = 0; i < 2; ++i) ASSERT_TRUE(ok(commit(i == 0)));
      while (workers.size() > 1) {
        const auto most = std::min(static_cast<size_t>(copies), workers.size() - 1);
        for (size_t i = 0; i < most; ++i) lose({victim % workers.size()});
        restore();
        form();
        const auto synced = sync();
        ASSERT_TRUE(ok(synced)) << text(synced);
        EXPECT_EQ(fabric->broadcasts(), 0) << "nothing was sent";
        expect_step(2);
      }
      ASSERT_TRUE(ok(commit()));
      expect_step(3);
    }
  }
}

/// A commit that was mapped, not made again, can be put back from the parcels of before.
TEST_F(MappedShards, TheLastCommitIsPutBackAfterASyncWithoutAnother) {
  start(4, 1);
  ASSERT_TRUE(ok(sync()));
  ASSERT_TRUE(ok(commit()));
  lose({2});
  add(4);  // one that was never there
  restore();
  form();
  ASSERT_TRUE(ok(sync()));
  lose({0});
  restore();
  form();
  ASSERT_TRUE(ok(sync()));
  for (auto& worker : workers) worker->spoil();
  restore();
  expect_step(1);
  for (auto& worker : workers) {
    const Statistics numbers = worker->state.statistics();
    EXPECT_EQ(numbers.shard_bytes, worker->values.size() * 8 + worker->counts.size() * 4);
  }
  uint64_t own = 0, held = 0;
  for (auto& worker : workers) {
    own += worker->values.size() * 8;
    held += worker->state.statistics().copy_bytes;
  }
  // One copy of each element of "m", two of "n".
  EXPECT_EQ(held, own + uint64_t{2} * kShort * 4);
}

/// A restore that leaves shards to the sync: it writes them, whether ranges change or not.
TEST_F(MappedShards, ASyncWritesWhatARestoreHasLeft) {
  for (const bool replaced : {false, true}) {
    start(4, 1);
    ASSERT_TRUE(ok(sync()));
    ASSERT_TRUE(ok(commit()));
    lose({1});
    for (auto& worker : workers) {
      worker->spoil();
      ASSERT_TRUE(worker->state.restore(false).ok());
    }
    if (replaced) {
      add(4);
      std::rotate(workers.begin() + 1, workers.end() - 1, workers.end());  // in the place of who is gone
    }
    form();
    ASSERT_TRUE(ok(sync()));
    expect_step(1);
  }
}

TEST_F(MappedShards, OneMoreIsOneTooMany) {
  start(4, 1);
  ASSERT_TRUE(ok(sync()));
  ASSERT_TRUE(ok(commit()));
  lose({1, 2});
  restore();
  form();
  for (const Status& status : sync()) {
    EXPECT_EQ(status.code, HVD_JOB_FAILED);
    EXPECT_NE(status.message.find("rank 1 (host a) held them, rank 2 (host a) the copy"), std::string::npos)
        << status.message;
  }
}

/// A program's memory is its own: copies of what it wrote before are not.
TEST_F(MappedShards, LaterCommitsLeaveEarlierOnesToWhoHasNotHeardOfTheSeal) {
  length = (3 << 20) / sizeof(double) + 5;
  for (int commits = 1; commits < 5; ++commits) {
    start(3, 2);
    ASSERT_TRUE(ok(sync()));
    for (int i = 0; i < commits; ++i) ASSERT_TRUE(ok(commit(i % 2 == 0)));
    fabric->break_after_deliveries(0);
    EXPECT_FALSE(ok(commit()));  // nothing of it is left
    lose({0});
    restore();
    form();
    ASSERT_TRUE(ok(sync()));
    expect_step(static_cast<uint64_t>(commits));
  }
}

TEST_F(Shards, AnotherSizeGetsEveryElementByMessages) {
  length = (3 << 20) / sizeof(double) + 5;
  settings.reads_others = false;
  change_sizes(1);
}

TEST_F(Shards, WhoAgreesMovesNothing) {
  for (const int32_t kept : kKept) {
    SCOPED_TRACE(kept);
    start(3, kept);
    results.clear();
    ASSERT_TRUE(ok(sync()));
    ASSERT_TRUE(ok(commit()));
    form();
    const int before = fabric->broadcasts();
    ASSERT_TRUE(ok(sync()));
    EXPECT_EQ(fabric->broadcasts(), before);
    for (const auto& [worker, result] : results) EXPECT_EQ(result.sent_bytes + result.received_bytes, 0U);
    for (auto& worker : workers) EXPECT_EQ(worker->resharded, 0);
    expect_step(1);
  }
}

void ShardSizes::cut_off_commits(int32_t kept) {
  SCOPED_TRACE(kept);
  for (const bool hidden : {false, true}) {
    std::vector<int> outcomes(3, 0);
    int last = 1000;
    for (int cut = 0; cut < last; ++cut) {
      for (size_t victim = 0; victim < 3; ++victim) {
        SCOPED_TRACE("cut off after " + std::to_string(cut) + ", rank " + std::to_string(victim) +
                     " is lost");
        start(3, kept);
        ASSERT_TRUE(ok(sync()));
        ASSERT_TRUE(ok(commit(hidden)));
        form();
        ASSERT_TRUE(ok(sync()));
        const int before = fabric->deliveries();
        fabric->break_after_deliveries(cut);
        const auto committed = commit(hidden);
        if (ok(committed)) last = std::min(last, fabric->deliveries() - before);
        for (const Status& status : committed) {
          EXPECT_TRUE(status.ok() || status.code == HVD_PEER_LOST) << status.message;
        }
        // Who was told so goes on at once, and writes where nobody else may look any more.
        if (committed[victim].ok() && !ok(committed)) {
          workers[victim]->train();
          EXPECT_FALSE(workers[victim]->state.save().ok());
        }
        lose({victim});
        restore();
        form();
        const auto synced = sync();
        ASSERT_TRUE(ok(synced)) << text(synced);
        const uint64_t step = workers[0]->step;
        expect_step(step);
        ASSERT_TRUE(step == 1 || step == 2);
        for (size_t rank = 0, survivor = 0; rank < committed.size(); ++rank) {
          if (rank == victim) continue;
          EXPECT_TRUE(!committed[rank].ok() || step == 2) << "who was told so has it, rank " << survivor++;
        }
        ++outcomes[step];
        ASSERT_TRUE(ok(commit(hidden)));
        expect_step(step + 1);
      }
    }
    EXPECT_GT(outcomes[1], 0);
    EXPECT_GT(outcomes[2], 3);
  }
}

TEST_F(Shards, ACommitThatIsCutOffAnywhereIsThereOnAllRanksOrOnNone) {
  for (const int32_t kept : kKept) cut_off_commits(kept);
}

TEST_F(MappedShards, ACommitThatIsCutOffAnywhereIsThereOnAllRanksOrOnNone) {
  length = (3 << 20) / sizeof(double) + 5;
  cut_off_commits(1);
}

TEST_F(Shards, ASyncThatIsCutOffAnywhereLosesNothing) { cut_off_syncs(1); }

TEST_F(Shards, ASyncOfLargeShardsThatIsCutOffAnywhereLosesNothing) {
  length = (2 << 20) / sizeof(double) + 3;
  cut_off_syncs(3);
}

TEST_F(MappedShards, ASyncThatIsCutOffAnywhereLosesNothing) {
  length = (5 << 20) / sizeof(double) + 3;
  cut_off_syncs(1);
}

void ShardSizes::cut_off_syncs(size_t every) {
  for (int cut = 0;; ++cut) {
    bool through = false;
    for (size_t victim = 0; victim < 4; victim += every) {
      SCOPED_TRACE("cut off after " + std::to_string(cut) + ", rank " + std::to_string(victim) + " is lost");
      start(4, 2);
      ASSERT_TRUE(ok(sync()));
      ASSERT_TRUE(ok(commit()));
      lose({1});
      restore();
      add(4);
      form(cut);
      through = ok(sync());
      lose({victim});  // one of the survivors, or the newcomer
      restore();
      form();
      const auto synced = sync();
      ASSERT_TRUE(ok(synced)) << text(synced);
      expect_step(1);
      ASSERT_TRUE(ok(commit()));
      expect_step(2);
    }
    if (through) return;
    ASSERT_LT(cut, 1000);
  }
}

TEST_F(Shards, RandomHistoriesKeepEveryElement) { random_histories(60); }

TEST_F(MappedShards, RandomHistoriesKeepEveryElement) {
  length = (5 << 20) / sizeof(double) + 3;
  random_histories(12);
}

void ShardSizes::random_histories(uint32_t seeds) {
  for (uint32_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto any = [&](size_t below) { return static_cast<size_t>(random() % below); };
    const auto kept = std::vector<int32_t>{1, 2, parity_of(2), parity_of(3)}[any(4)];
    const int32_t copies = std::max(kept, 1);  // as many may be lost
    start(static_cast<int32_t>(2 + any(3)), kept);
    ASSERT_TRUE(ok(sync()));
    for (int round = 0; round < 8; ++round) {
      fabric->break_after_deliveries(static_cast<int>(any(30)));
      for (int i = 0; i < 3 && ok(commit(any(2) == 0)); ++i) {}
      auto left = std::min(static_cast<size_t>(copies), workers.size() - 1);
      std::vector<Status> synced;
      do {  // as many are lost as there are copies, now or while the others recover
        const size_t lost = std::min(any(left + 1), workers.size() - 1);
        left -= lost;
        for (size_t i = 0; i < lost; ++i) lose({any(workers.size())});
        fabric.reset();
        restore();
        const size_t size = std::max(workers.size(), 1 + any(5));
        while (workers.size() < size) add(static_cast<int32_t>(size));
        form(left > 0 ? static_cast<int>(any(60)) : -1);
        synced = sync();
        for (const Status& status : synced)
          ASSERT_TRUE(status.ok() || status.code == HVD_PEER_LOST) << text(synced);
      } while (!ok(synced));
      const uint64_t step = workers[0]->step;
      expect_step(step);
    }
    if (HasFatalFailure()) return;
  }
}

TEST_F(Shards, WhenMoreAreLostThanThereAreCopiesTheSentenceSaysWhatAndWhoHeldIt) {
  start(4, 1);
  ASSERT_TRUE(ok(sync()));
  ASSERT_TRUE(ok(commit()));
  const auto holders = place_copies({"a", "b", "a", "b"}, 2);
  lose({1, static_cast<size_t>(holders[1][0])});
  restore();
  form();
  const auto synced = sync();
  for (const Status& status : synced) {
    EXPECT_EQ(status.code, HVD_JOB_FAILED);
    EXPECT_NE(status.message.find("elements 250 to 499 of state key 'm'"), std::string::npos)
        << status.message;
    EXPECT_NE(status.message.find("rank 1 (host b) held them"), std::string::npos) << status.message;
    EXPECT_NE(status.message.find("rank " + std::to_string(holders[1][0])), std::string::npos)
        << status.message;
    EXPECT_EQ(status.message, synced[0].message);
  }
}

TEST_F(Shards, TheProgramMayLoadItsOwnInstead) {
  start(4, 1);
  ASSERT_TRUE(ok(sync()));
  ASSERT_TRUE(ok(commit()));
  lose({1, 2, 0});
  restore();
  add(2);
  for (auto& worker : workers) {
    worker->state.on_lost(Callback<hvd_lost_fn>(
        [](void* self, const char* sentence) -> int32_t {
          EXPECT_NE(std::string(sentence).find("are lost"), std::string::npos);
          static_cast<Worker*>(self)->fill(2);  // its checkpoint
          return 0;
        },
        worker.get(), nullptr));
  }
  form();
  const auto synced = sync();
  ASSERT_TRUE(ok(synced)) << text(synced);
  expect_step(2);
  ASSERT_TRUE(ok(commit()));
  lose({0});
  restore();
  form();
  ASSERT_TRUE(ok(sync()));
  expect_step(3);
}

TEST_F(Shards, WhatDoesNotFitIsAMismatchOnAllRanks) {
  const auto expect = [&](const std::vector<Status>& statuses, const std::string& what) {
    for (const Status& status : statuses) {
      EXPECT_EQ(status.code, HVD_MISMATCH) << status.message;
      EXPECT_NE(status.message.find(what), std::string::npos) << status.message;
      EXPECT_EQ(status.message, statuses[0].message);
    }
  };
  copies_ = 1;
  for (int32_t rank = 0; rank < 3; ++rank) add(3, rank == 2 ? "other" : "m");
  form();
  expect(sync(), "key 'm' is shards of float64[1000]");
  workers.clear();
  add(3);
  add(2);
  add(3);
  form();
  for (auto& worker : workers) worker->state.remove("n");
  for (auto& worker : workers) {
    worker->state.remove("m");
    const ShardRange range = even_range(0, kLong, worker->at.first, worker->at.first == 1 ? 2 : 3);
    worker->set_values(range);
    worker->shard("m", HVD_DTYPE_FLOAT64, worker->values.data(), range.elements(), kLong, range.begin, 1,
                  nullptr);
  }
  expect(sync(), "elements 500 to 999 of rank 1");
  workers.clear();
  for (int32_t rank = 0; rank < 3; ++rank) add(3);
  form();
  ASSERT_TRUE(ok(sync()));
  workers[1]->step = 5;
  expect(all([&](Worker& worker) {
           if (worker.at.first == 1) worker.state.remove("n");
           return worker.state.save();
         }),
         "register different shards");
}

TEST_F(Shards, AFailureOfOneRankFailsTheCommitOfAll) {
  start(3, 1);
  for (auto& worker : workers) {
    worker->state.add_object(
        "o",
        Callback<hvd_save_fn>([](void* self, hvd_write_fn,
                                 void*) -> int32_t { return static_cast<Worker*>(self)->refuses ? 1 : 0; },
                              worker.get(), nullptr),
        Callback<hvd_load_fn>([](void*, const void*, size_t) -> int32_t { return 0; }, worker.get(),
                              nullptr));
  }
  ASSERT_TRUE(ok(sync()));
  ASSERT_TRUE(ok(commit()));
  workers[1]->refuses = true;
  for (const Status& status : commit()) EXPECT_EQ(status.code, HVD_CALLBACK_FAILED) << status.message;
  workers[1]->refuses = false;
  restore();
  expect_step(1);
  ASSERT_TRUE(ok(commit()));
  expect_step(2);
}

}  // namespace
}  // namespace hvd::state
