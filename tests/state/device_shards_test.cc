// Shards in device memory, on a double of a device: they come through what shards of the host come through,
// and a copy that fails on one rank is told to all.
#include "state/message.h"
#include "state/shard_histories.h"

namespace hvd::state {
namespace {

struct DeviceShards : ShardHistories {
  DeviceShards() { on_devices = true; }
  void begin(int32_t size) {
    start(size, 1);
    ASSERT_TRUE(ok(sync()));
    ASSERT_TRUE(ok(commit()));
  }
  DeviceDouble& device(size_t rank) { return workers[rank]->gpu->device; }
};

TEST_F(DeviceShards, AnotherSizeGetsEveryElement) {
  for (const int32_t kept : kKept) change_sizes(kept);
}

TEST_F(DeviceShards, AnotherSizeGetsEveryElementOfLargeShards) {  // by maps of others' memory
  length = 700'000;
  machines = "a";
  change_sizes(1);
}

TEST_F(DeviceShards, AnotherSizeGetsEveryElementOfLargeShardsByMessages) {
  length = 700'000;
  settings.reads_others = false;
  change_sizes(1);
}

TEST_F(DeviceShards, ACommitThatIsCutOffAnywhereIsThereOnAllRanksOrOnNone) { cut_off_commits(1); }

TEST_F(DeviceShards, ASyncThatIsCutOffAnywhereLosesNothing) { cut_off_syncs(2); }

TEST_F(DeviceShards, WhoGivesUpHasTheLastCommit) { give_up(1); }

TEST_F(DeviceShards, RandomHistoriesKeepEveryElement) { random_histories(20); }

TEST_F(DeviceShards, NobodyWaitsForWhatAStreamHasYetToDoButACommitThatIsNotHidden) {
  begin(2);
  for (size_t rank : {0U, 1U}) device(rank).hold(true);
  for (auto& worker : workers) {
    worker->train();
    ASSERT_TRUE(worker->state.begin().ok());  // returns, and copies what the stream will have done
  }
  EXPECT_EQ(workers[0]->state.summary().revision, 1U);
  for (size_t rank : {0U, 1U}) {
    EXPECT_EQ(device(rank).asides(), 1U);
    device(rank).hold(false);
  }
  for (auto& worker : workers) ASSERT_TRUE(worker->state.end().ok());
  restore();
  expect_step(2);
}

TEST_F(DeviceShards, ACopyThatFailsOnOneRankFailsTheCommitOfAll) {
  begin(3);
  for (const bool hidden : {false, true}) {
    for (const bool later : {false, true}) {
      if (later) {
        device(1).fail_later(0);
      } else {
        device(1).fail_start(0);
      }
      const auto committed = commit(hidden);
      EXPECT_EQ(committed[1].code, HVD_INTERNAL);
      EXPECT_TRUE(says(committed[1].message,
                       {later ? "the double lost the copy" : "the double can't start the copy"}))
          << committed[1].message;
      for (const size_t other : {0U, 2U}) {
        EXPECT_FALSE(committed[other].ok());
        EXPECT_TRUE(says(committed[other].message, {"rank 1"})) << committed[other].message;
      }
      restore();
      form();
      ASSERT_TRUE(ok(sync()));
      expect_step(1);
    }
  }
  ASSERT_TRUE(ok(commit()));
  expect_step(2);
}

TEST_F(DeviceShards, ARestoreThatCantWriteTheDeviceSaysSoAndLeavesItToTheSync) {
  begin(2);
  workers[1]->spoil();
  device(1).fail_later(0);
  const Status status = workers[1]->state.restore();
  EXPECT_EQ(status.code, HVD_INTERNAL);
  EXPECT_TRUE(says(status.message, {"device memory can't be written", "the double lost the copy"}))
      << status.message;
  EXPECT_TRUE(workers[0]->state.restore().ok());
  form();
  const auto synced = sync();
  ASSERT_TRUE(ok(synced)) << text(synced);
  workers[1]->step = 1;  // no part of what was to be restored behind the device's
  std::fill(workers[1]->weights.begin(), workers[1]->weights.end(), 1.F);
  expect_step(1);
}

TEST_F(DeviceShards, ASyncThatCantWriteTheDeviceFailsThereAndTheNextWrites) {
  begin(3);
  lose({2});
  restore();
  form();
  device(0).fail_later(0);
  const auto synced = sync();
  EXPECT_EQ(synced[0].code, HVD_INTERNAL);
  EXPECT_TRUE(says(synced[0].message, {"device memory can't be written"})) << synced[0].message;
  EXPECT_TRUE(synced[1].ok()) << synced[1].message;
  form();
  const auto again = sync();
  ASSERT_TRUE(ok(again)) << text(again);
  expect_step(1);
}

TEST_F(DeviceShards, ALostGenerationTakesTheCommitUnderWayWithIt) {  // contract 5
  begin(2);
  device(1).hold(true);
  for (auto& worker : workers) {
    worker->train();
    ASSERT_TRUE(worker->state.begin().ok());
  }
  workers[1]->gpu->copies->lost();
  device(1).hold(false);
  Status status = workers[1]->state.end();
  EXPECT_EQ(status.code, HVD_PEER_LOST) << status.message;
  EXPECT_FALSE(workers[0]->state.end().ok());
  workers[1]->gpu->copies->renewed();
  restore();
  form();
  ASSERT_TRUE(ok(sync()));
  expect_step(1);
}

TEST_F(DeviceShards, WithoutHostMemoryForANewRangeNobodySyncsAndLaterAllDo) {
  begin(3);
  lose({0});
  restore();
  form();
  device(1).fail_alloc(0);
  const auto synced = sync();
  EXPECT_EQ(synced[1].code, HVD_INTERNAL);
  EXPECT_TRUE(says(synced[1].message, {"bytes of host memory for state key 'm'", "no pinned memory"}))
      << synced[1].message;
  EXPECT_EQ(synced[0].code, HVD_PEER_LOST) << synced[0].message;
  restore();  // which leaves the new range to the sync
  form();
  const auto again = sync();
  ASSERT_TRUE(ok(again)) << text(again);
  expect_step(1);
}

TEST_F(DeviceShards, AClosedContextIsTold) {
  begin(1);
  workers[0]->gpu->copies->close();
  EXPECT_EQ(workers[0]->state.restore().code, HVD_CLOSED);
  EXPECT_FALSE(workers[0]->state.save().ok());
  device(0).forget_pinned();
}

TEST(ShardsOnADevice, NeedABackendThatCopiesTheirMemory) {
  State state(nullptr, nullptr, nullptr);
  ShardInfo info;
  int here = 0;
  info.tensor = {&here, HVD_DTYPE_INT32, {1}, HVD_MEMORY_CUDA, 0, nullptr};
  info.global_elements = 1;
  try {
    state.add_shard("m", info, [](Generation*) { return Status(); });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code, HVD_UNSUPPORTED);
    EXPECT_TRUE(says(error.status().message, {"state key 'm'", "nothing copies"})) << error.status().message;
  }
}

}  // namespace
}  // namespace hvd::state
