// Shards of ranks on one machine, so large that copies are the pages of their owners.
#include <sys/stat.h>

#include <filesystem>
#include <set>

#include "state/shard_histories.h"

namespace hvd::state {
namespace {

struct MappedShards : ShardHistories {
  MappedShards() {
    machines = "a";
    length = (9 << 20) / sizeof(double) + 5;
  }
};

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

/// Files of shared memory that this process has, by number.
std::set<std::string> shared_files() {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string name = std::filesystem::read_symlink(entry.path(), gone).string();
    struct stat info {};
    if (name.find("hvd-shards") != std::string::npos && ::stat(entry.path().c_str(), &info) == 0)
      files.insert(std::to_string(info.st_ino));
  }
  return files;
}

/// A commit writes where the one before the last was. A sync that moves nothing leaves it that.
TEST_F(MappedShards, ASyncThatMovesNothingLeavesTheNextCommitItsMemory) {
  start(2, 1);
  ASSERT_TRUE(ok(sync()));
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(ok(commit()));
  const std::set<std::string> before = shared_files();
  EXPECT_EQ(before.size(), 4U);
  for (int i = 0; i < 2; ++i) {
    form();
    ASSERT_TRUE(ok(sync()));
    EXPECT_EQ(shared_files(), before);
    ASSERT_TRUE(ok(commit()));
    EXPECT_EQ(shared_files(), before);
    expect_step(static_cast<uint64_t>(5 + i));
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

TEST_F(MappedShards, ACommitThatIsCutOffAnywhereIsThereOnAllRanksOrOnNone) {
  length = (3 << 20) / sizeof(double) + 5;
  cut_off_commits(1);
}

TEST_F(MappedShards, ASyncThatIsCutOffAnywhereLosesNothing) {
  length = (5 << 20) / sizeof(double) + 3;
  cut_off_syncs(1);
}

TEST_F(MappedShards, WhoGivesUpHasTheLastCommit) {
  length = (5 << 20) / sizeof(double) + 3;
  for (const int32_t copies : {1, 2}) give_up(copies);
}

TEST_F(MappedShards, WhoLeavesAsPlannedLeavesAsManyHoldersAsThereWere) {
  length = (5 << 20) / sizeof(double) + 3;
  leave_and_lose(1, 4);
}

TEST_F(MappedShards, RandomHistoriesKeepEveryElement) {
  length = (5 << 20) / sizeof(double) + 3;
  random_histories(12);
}

}  // namespace
}  // namespace hvd::state
