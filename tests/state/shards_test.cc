// Shards among ranks in one process: commits and syncs that are cut off at every point, losses, other sizes.
#include <barrier>

#include "patience.h"
#include "state/shard_histories.h"

namespace hvd::state {
namespace {

struct Shards : ShardHistories {};

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

TEST_F(Shards, ACommitThatIsCutOffAnywhereIsThereOnAllRanksOrOnNone) {
  for (const int32_t kept : kKept) cut_off_commits(kept);
}

TEST_F(Shards, ASyncThatIsCutOffAnywhereLosesNothing) { cut_off_syncs(1); }

TEST_F(Shards, ASyncOfLargeShardsThatIsCutOffAnywhereLosesNothing) {
  length = (2 << 20) / sizeof(double) + 3;
  cut_off_syncs(3);
}

TEST_F(Shards, WhoGivesUpHasTheLastCommit) {
  for (const int32_t kept : kKept) give_up(kept);
}

TEST_F(Shards, AsManyAsThereAreCopiesMayBeLostAtEveryPoint) {
  for (const bool in_commit : {true, false}) lose_two(2, in_commit);
}

TEST_F(Shards, OneMoreAtAnyPointIsThereOrTheSentenceSaysWhatIsLost) {
  for (const bool in_commit : {true, false}) lose_two(1, in_commit);
}

TEST_F(Shards, WhoLeavesAsPlannedLeavesAsManyHoldersAsThereWere) {
  for (const int32_t kept : {1, 2, parity_of(2), parity_of(3)}) {
    for (const int32_t size : {3, 5}) leave_and_lose(kept, size);
  }
}

TEST_F(Shards, RandomHistoriesKeepEveryElement) { random_histories(60); }

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

/// Callbacks of the program that take longer than a sync may, on all ranks nearly alike.
struct Slow {
  Slow(Worker& on, std::barrier<>& with, Duration time) : worker(on), all(with), longer(time) {}
  void wait() {
    all.arrive_and_wait();
    const Time until = now() + longer + (worker.at.first == 0 ? Duration(0) : milliseconds(300));
    while (now() < until) std::this_thread::sleep_until(until);
  }
  void add_shard() {
    ShardInfo info;
    info.tensor = {data.data(), HVD_DTYPE_UINT8, {1}};
    info.global_elements = worker.at.second;
    info.offset = worker.at.first;
    info.reshard = Callback<hvd_reshard_fn>(
        [](void* self, hvd_shard* shard) -> int32_t {
          static_cast<Slow*>(self)->wait();
          shard->data = static_cast<Slow*>(self)->data.data();
          return 0;
        },
        this, nullptr);
    worker.state.add_shard("slow", std::move(info), [this](Generation* to) { return worker.place(to); });
  }
  Worker& worker;
  std::barrier<>& all;
  const Duration longer;
  std::vector<uint8_t> data = std::vector<uint8_t>(16);
};

TEST_F(Shards, TheProgramsOwnTimeIsNotTheSyncs) {
  const Duration timeout = test::patient(std::chrono::milliseconds(1500));
  const auto sync_in_time = [&] {
    return all([&](Worker& worker) {
      return worker.state.sync(fabric->engine(worker.at.first), worker.at.first, worker.at.second, {},
                               timeout, &worker_result(worker));
    });
  };
  for (const bool all_lost : {true, false}) {  // or ranges change
    SCOPED_TRACE(all_lost);
    copies_ = 1;
    workers.clear();
    std::barrier together(all_lost ? 2 : 3);
    std::vector<std::unique_ptr<Slow>> slow;
    for (int32_t rank = 0; rank < 4; ++rank) {
      slow.push_back(std::make_unique<Slow>(add(4), together, timeout + milliseconds(100)));
      if (!all_lost) slow.back()->add_shard();
    }
    form();
    ASSERT_TRUE(ok(sync()));
    ASSERT_TRUE(ok(commit()));
    lose(all_lost ? std::vector<size_t>{1, 2, 0} : std::vector<size_t>{1});
    restore();
    if (all_lost) {
      slow.push_back(std::make_unique<Slow>(add(2), together, timeout + milliseconds(100)));
      for (size_t i = 3; i < slow.size(); ++i) {  // who is there
        Slow* const one = slow[i].get();
        one->worker.state.on_lost(Callback<hvd_lost_fn>(
            [](void* self, const char*) -> int32_t {
              static_cast<Slow*>(self)->wait();
              static_cast<Slow*>(self)->worker.fill(2);
              return 0;
            },
            one, nullptr));
      }
    }
    form();
    const auto synced = sync_in_time();
    ASSERT_TRUE(ok(synced)) << text(synced);
    expect_step(all_lost ? 2 : 1);
    workers.clear();
  }
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
         "shards differ between ranks: key 'n' is shards of uint32[7] with 2 copies on rank 0 and absent on "
         "rank 1; expected the same keys, dtypes, lengths and copies on every rank");
  expect(
      all([&](Worker& worker) {
        worker.state.remove("m");
        worker.shard("m", HVD_DTYPE_FLOAT64, worker.values.data(), 0, kLong + worker.at.first / 2, 0, 1,
                     nullptr);
        if (worker.at.first == 1) {
          worker.shard("n", HVD_DTYPE_UINT32, worker.counts.data(), 0, kShort, 0, 2, nullptr);
        }
        return worker.state.save();
      }),
      "key 'm' is shards of float64[1000] with 1 copies on rank 0 and shards of float64[1001] with 1 copies on "
      "rank 2;");
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

// Contract 12: though whoever waits for the copies would wait no longer than the ranks wait for each other.
TEST(ShardsOfARankThatIsAbsent, ACommitNamesIt) {
  const Duration timeout = std::chrono::seconds(1);
  constexpr int32_t kSize = 3;
  Fabric fabric(kSize);
  std::vector<std::vector<float>> values(kSize, std::vector<float>(10, 1));
  std::vector<std::unique_ptr<State>> states;
  for (int32_t rank = 0; rank < kSize; ++rank) {
    std::vector<float>& mine = values[static_cast<size_t>(rank)];
    states.push_back(std::make_unique<State>(nullptr, nullptr, std::make_shared<DeviceCopies>(timeout)));
    ShardInfo info;
    info.tensor = {mine.data(), HVD_DTYPE_FLOAT32, {std::ssize(mine)}};
    info.global_elements = kSize * std::ssize(mine);
    info.offset = rank * std::ssize(mine);
    info.copies = 1;
    states.back()->add_shard("m", info, [&fabric, rank, timeout](Generation* generation) {
      generation->engine = &fabric.engine(rank);
      generation->rank = rank;
      generation->hosts = {"a", "b", "c"};
      generation->timeout = timeout;
      return Status();
    });
  }
  const auto on = [&](int32_t ranks, const std::function<Status(int32_t)>& call) {
    std::vector<Status> statuses(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] { statuses[static_cast<size_t>(rank)] = call(rank); });
    for (std::thread& thread : threads) thread.join();
    return statuses;
  };
  const auto synced = on(kSize, [&](int32_t rank) {
    SyncResult result;
    return states[static_cast<size_t>(rank)]->sync(fabric.engine(rank), rank, kSize, {}, seconds(60),
                                                   &result);
  });
  for (const Status& status : synced) ASSERT_TRUE(status.ok()) << status.message;
  const auto saved = on(kSize - 1, [&](int32_t rank) { return states[static_cast<size_t>(rank)]->save(); });
  for (const Status& status : saved) {
    EXPECT_EQ(status.code, HVD_TIMEOUT);
    EXPECT_EQ(status.rank, kSize - 1) << status.message;
  }
}

}  // namespace
}  // namespace hvd::state
