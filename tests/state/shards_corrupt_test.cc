// Bits that flip in the memory of a commit: they are named where that memory would be used, and another copy
// or parity is taken; where there is none, the sentence of loss says so.
#include <random>

#include "state/shard_memory.h"
#include "state/shard_workers.h"

namespace hvd::state {
namespace {

constexpr uint32_t kM = 0;  // number of key "m"

struct ShardsCorrupt : ShardJob {
  ShardsCorrupt() { logged = true; }
  void begin(int32_t size, int32_t copies) {
    lines.clear();
    start(size, copies);
    ASSERT_TRUE(ok(sync()));
    ASSERT_TRUE(ok(commit()));
  }
  void flip_own(size_t rank) { flip(*commit_of(workers[rank]->state).own, kM); }
  void flip_copy(size_t holder, int32_t owner) {
    for (const ParcelPtr& parcel : commit_of(workers[holder]->state).held) {
      if (parcel->owner == owner) flip(*parcel, kM);
    }
  }
  static size_t holder_of(int32_t owner, size_t copy = 0) {
    return static_cast<size_t>(place_copies({"a", "b", "a", "b"}, 2)[static_cast<size_t>(owner)][copy]);
  }
  std::vector<Status> leave(int32_t rank) {
    workers[static_cast<size_t>(rank)]->leaving = {rank};
    return all([](Worker& worker) { return worker.state.hand_over(); });
  }
  void expect_named(const std::string& what) {
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(std::any_of(lines.begin(), lines.end(),
                            [&](const std::string& line) {
                              return line.find(what) != std::string::npos &&
                                     line.find("is not what was committed") != std::string::npos;
                            }))
        << what << "\n"
        << (lines.empty() ? "nothing is named" : lines.back());
  }
  void sync_to(uint64_t step) {
    form();
    const auto synced = sync();
    ASSERT_TRUE(ok(synced)) << text(synced);
    expect_step(step);
  }
};

TEST_F(ShardsCorrupt, WhatALeaverHasIsTakenFromAnotherThatHoldsIt) {
  begin(4, 1);
  flip_own(2);
  const auto handed = leave(2);
  ASSERT_TRUE(ok(handed)) << text(handed);
  expect_named("what rank 2 now has of elements 500 to 749 of state key 'm'");
  lose({2});
  restore();
  sync_to(1);
}

TEST_F(ShardsCorrupt, ACopyThatALeaverHoldsIsTakenFromItsOwner) {
  begin(4, 1);
  int32_t owner = 0;
  while (holder_of(owner) != 2) ++owner;
  flip_copy(2, owner);
  const auto handed = leave(2);
  ASSERT_TRUE(ok(handed)) << text(handed);
  lose({2});
  restore();
  sync_to(1);
}

// All that a leaver holds goes through its only good copy: as many may be lost after as there are copies.
TEST_F(ShardsCorrupt, AfterAHandOverAsManyMayBeLost) {
  for (size_t victim : {0U, 1U, 3U}) {
    begin(4, 1);
    flip_own(2);
    ASSERT_TRUE(ok(leave(2)));
    lose({2, victim});
    restore();
    sync_to(1);
  }
}

TEST_F(ShardsCorrupt, ALostOnesCopyThatIsWrongIsTakenFromItsSecond) {
  for (const int64_t elements : {kLong, int64_t{400000}}) {
    length = elements;
    begin(4, 2);
    flip_copy(holder_of(1, 0), 1);
    lose({1});
    restore();
    sync_to(1);
    // Whether the good one or the wrong one is asked is a matter of their load.
    if (HasFailure()) return;
  }
}

TEST_F(ShardsCorrupt, TheOnlyCopyThatIsLeftIsNamedInTheSentence) {
  begin(4, 1);
  flip_copy(holder_of(1), 1);
  lose({1});
  restore();
  form();
  const auto synced = sync();
  for (const Status& status : synced) {
    EXPECT_EQ(status.code, HVD_JOB_FAILED) << status.message;
    EXPECT_EQ(status.message, synced[0].message);
    EXPECT_NE(status.message.find("elements 250 to 499 of state key 'm' are lost: rank 1 (host b) held them"),
              std::string::npos)
        << status.message;
    EXPECT_NE(status.message.find("is not what was committed), and none of it is left"), std::string::npos)
        << status.message;
  }
}

TEST_F(ShardsCorrupt, OfMappedPagesThereIsNoOther) {
  machines = "a";
  length = (9 << 20) / sizeof(double);
  begin(3, 1);
  flip_own(1);
  lose({1});
  restore();
  form();
  for (const Status& status : sync()) {
    EXPECT_EQ(status.code, HVD_JOB_FAILED) << status.message;
    EXPECT_NE(status.message.find("is not what was committed"), std::string::npos) << status.message;
  }
}

// What is left of a group makes what was lost: a member's bit that has flipped would be in the sum.
TEST_F(ShardsCorrupt, PartsOfARepairAreWhatWasCommitted) {
  for (const int64_t elements : {kLong, int64_t{400000}}) {
    length = elements;
    begin(4, parity_of(3));
    flip_own(2);
    lose({1});
    restore();
    form();
    const auto synced = sync();
    for (const Status& status : synced) {
      EXPECT_EQ(status.code, HVD_JOB_FAILED) << status.message;
      EXPECT_EQ(status.message, synced[0].message);
      EXPECT_NE(status.message.find("of state key 'm'"), std::string::npos) << status.message;
      EXPECT_NE(status.message.find("more than one of these is lost"), std::string::npos) << status.message;
    }
    expect_named("what rank 1 now has of elements");  // it was 2 before
  }
}

TEST_F(ShardsCorrupt, WhatALeaverHasIsMadeAgainOfParity) {
  begin(4, parity_of(3));
  flip_own(2);
  const auto handed = leave(2);
  ASSERT_TRUE(ok(handed)) << text(handed);
  expect_named("what rank 2 now has of elements 500 to 749 of state key 'm'");
  lose({2});
  restore();
  sync_to(1);
}

TEST_F(ShardsCorrupt, AnOwnersWrongRangeIsMadeAgainOfParityWhereOthersAreToGetIt) {
  begin(4, parity_of(3));
  flip_own(2);
  restore();  // from what has flipped
  add(5);
  sync_to(1);
  ASSERT_TRUE(ok(commit()));
  expect_step(2);
}

TEST_F(ShardsCorrupt, AWrongBlockOfParityIsNamed) {
  begin(4, parity_of(3));
  for (auto& worker : workers) {
    for (Parity& parity : commit_of(worker->state).parity)
      parity.sum->memory.data()[parity.block.chunk / 2] ^= 1;
  }
  lose({1});
  restore();
  form();
  for (const Status& status : sync()) EXPECT_EQ(status.code, HVD_JOB_FAILED) << status.message;
  expect_named("the parity on rank 0 of elements");
}

/// One bit of anybody's own or held range, then a planned leave or a loss: with two copies nothing is lost.
TEST_F(ShardsCorrupt, RandomHistoriesKeepEveryElement) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    begin(4, 2);
    const size_t where = random() % 4, goes = random() % 4;
    auto& set = commit_of(workers[where]->state);
    const size_t which = random() % (set.held.size() + 1);
    flip(which == 0 ? *set.own : *set.held[which - 1], kM);
    if (random() % 2 == 0) {
      const auto handed = leave(static_cast<int32_t>(goes));
      ASSERT_TRUE(ok(handed)) << text(handed);
    }
    const bool own = which == 0 && where != goes;  // nobody reads what stays where it is
    lose({goes});
    if (!own) restore();
    add(4);
    sync_to(1);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace hvd::state
