// A search for divergence reads again what ranks keep of shards. Every rank names a rank whose memory differs
// from what was committed, and a sync puts it right.
#include <atomic>
#include <cstring>
#include <random>
#include <set>

#include "state/flight.h"
#include "state/shard_memory.h"
#include "state/shard_workers.h"

namespace hvd::state {
namespace {

constexpr uint32_t kM = 0;  // number of key "m"

struct ShardRot : ShardJob {
  void begin(int32_t size, int32_t copies) {
    start(size, copies);
    ASSERT_TRUE(ok(sync()));
    ASSERT_TRUE(ok(commit()));
  }
  static bool has(const Parcel& parcel) {  // some of key "m": holders have what has most copies alone
    return std::any_of(parcel.segments.begin(), parcel.segments.end(),
                       [](const Segment& s) { return s.range.key == kM && s.bytes > 0; });
  }
  Parcel& copy(size_t holder) {
    const auto& held = commit_of(workers[holder]->state).held;
    return **std::find_if(held.begin(), held.end(), [](const ParcelPtr& parcel) { return has(*parcel); });
  }
  Parcel& own(size_t rank) { return *commit_of(workers[rank]->state).own; }

  /// Expects that all ranks find the same, and returns that.
  std::vector<Diverged> compare() {
    std::vector<std::vector<Diverged>> found(workers.size());
    const auto statuses = all([&](Worker& worker) {
      return worker.state.find_diverged(fabric->engine(worker.at.first), worker.at.first, seconds(60),
                                        &found[static_cast<size_t>(worker.at.first)]);
    });
    EXPECT_TRUE(ok(statuses)) << text(statuses);
    for (const auto& other : found) {
      EXPECT_EQ(other.size(), found[0].size());
      for (size_t i = 0; i < std::min(other.size(), found[0].size()); ++i) {
        EXPECT_EQ(other[i].text, found[0][i].text);
        EXPECT_EQ(other[i].ranks, found[0][i].ranks);
      }
    }
    return found[0];
  }
  /// As option on_divergence=evict does.
  void mend() {
    for (auto& worker : workers) worker->state.mend();
    const uint64_t step = workers[0]->step;
    const auto synced = sync();
    ASSERT_TRUE(ok(synced)) << text(synced);
    expect_step(step);
    EXPECT_TRUE(compare().empty());
  }
  /// All that is kept is good for whoever is lost.
  void expect_survives(size_t lost) {
    const uint64_t step = workers[0]->step;
    lose({lost});
    restore();
    form();
    const auto synced = sync();
    ASSERT_TRUE(ok(synced)) << text(synced);
    expect_step(step);
  }
};

TEST_F(ShardRot, WhereAllIsAsItWasCommittedNobodyIsNamed) {
  for (const int32_t copies : {0, 1, 2, parity_of(3)}) {
    begin(4, copies);
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(compare().empty()) << copies;
      ASSERT_TRUE(ok(commit(i == 1)));
    }
  }
}

TEST_F(ShardRot, ARanksOwnRangeIsNamedAndCopiedAgain) {
  begin(4, 1);
  flip(own(2), kM);
  const auto found = compare();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].ranks, std::vector<int32_t>{2});
  EXPECT_TRUE(found[0].kept && found[0].majority);
  EXPECT_EQ(
      found[0].text,
      "state diverged at revision 1: what rank 2 now has of elements 500 to 749 of state key 'm' is not "
      "what was committed");
  mend();
  restore();  // the commit itself is right
  expect_step(1);
}

TEST_F(ShardRot, AnOwnRangeThatIsLiveNoMoreComesFromItsCopy) {
  begin(4, 1);
  flip(own(2), kM);
  workers[2]->spoil();
  ASSERT_EQ(compare().size(), 1U);
  for (auto& worker : workers) worker->state.mend();
  workers[2]->fill(1);  // what all have alike; and the shard is to be written
  workers[2]->values.assign(workers[2]->values.size(), -1);
  const auto synced = sync();
  ASSERT_TRUE(ok(synced)) << text(synced);
  expect_step(1);
}

TEST_F(ShardRot, ACopyIsNamedByWhoKeepsItAndMadeAgain) {
  for (const int64_t elements : {kLong, int64_t{400000}}) {
    length = elements;
    machines = "abcd";
    begin(4, 1);
    const int32_t owner = copy(3).owner;
    flip(copy(3), kM);
    const auto found = compare();
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].ranks, std::vector<int32_t>{3});
    EXPECT_NE(found[0].text.find("what rank 3 now has of elements"), std::string::npos) << found[0].text;
    mend();
    expect_survives(static_cast<size_t>(owner));
  }
}

TEST_F(ShardRot, ParityIsNamedAndMadeAgain) {
  begin(4, parity_of(3));
  for (Parity& parity : commit_of(workers[1]->state).parity)
    parity.sum->memory.data()[parity.block.chunk / 2] ^= 1;
  const auto found = compare();
  ASSERT_FALSE(found.empty());
  for (const Diverged& diverged : found) {
    EXPECT_EQ(diverged.ranks, std::vector<int32_t>{1});
    EXPECT_NE(diverged.text.find("the parity on rank 1 of elements"), std::string::npos) << diverged.text;
  }
  mend();
  expect_survives(2);
}

TEST_F(ShardRot, PagesThatAHolderMapsAreTheOwners) {
  machines = "a";
  length = (9 << 20) / sizeof(double);
  begin(3, 1);
  flip(own(1), kM);
  const auto found = compare();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].ranks, std::vector<int32_t>{1});
  mend();
  expect_survives(1);
}

TEST_F(ShardRot, HistoriesNameExactlyWhatHasChanged) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    begin(3 + static_cast<int32_t>(random() % 3), 1 + static_cast<int32_t>(random() % 2));
    std::multiset<int32_t> expected;
    for (size_t rank = 0; rank < workers.size(); ++rank) {
      auto& set = commit_of(workers[rank]->state);
      for (size_t i = 0; i <= set.held.size(); ++i) {
        Parcel& parcel = i == 0 ? *set.own : *set.held[i - 1];
        if (!has(parcel) || random() % 6 != 0) continue;
        flip(parcel, kM);
        expected.insert(static_cast<int32_t>(rank));
      }
    }
    std::multiset<int32_t> named;
    for (const Diverged& diverged : compare()) named.insert(diverged.ranks.front());
    ASSERT_EQ(named, expected);
    mend();
    if (HasFatalFailure()) return;
  }
}

// Two parts of rank 1 are wrong; rank 0 hears of the second one twice.
TEST_F(ShardRot, APartIsNamedOnceHoweverOftenItIsSaid) {
  machines = "abcd";
  begin(4, 1);
  flip(own(1), kM);
  flip(copy(1), kM);
  int first = -1;
  fabric->forge([&](int32_t to, int index, uint8_t* gathered) {
    if (first < 0) first = index;
    if (to == 0 && index == first + 1) std::memcpy(gathered, gathered + 24, 24);
  });
  std::atomic<size_t> of_rank_0{0};
  const auto statuses = all([&](Worker& worker) {
    const int32_t rank = worker.at.first;
    std::vector<Diverged> found;
    Status status = worker.state.find_diverged(fabric->engine(rank), rank, seconds(60), &found);
    if (rank == 0) of_rank_0 = found.size();
    return status;
  });
  EXPECT_TRUE(ok(statuses)) << text(statuses);
  EXPECT_EQ(of_rank_0, 1U);
}

// Rank 0 is told that rank 2 keeps what it does not keep.
TEST_F(ShardRot, WhatARankDoesNotKeepCantBeNamed) {
  struct Part {
    uint64_t owner, key, parity;
  };
  machines = "abcd";
  const auto stranger = [](int32_t holder) {  // an owner whose copy is elsewhere
    const auto holders = place_copies({"a", "b", "c", "d"}, 1);
    for (uint64_t owner = 0;; ++owner) {
      if (static_cast<int32_t>(owner) != holder && holders[owner][0] != holder) return owner;
    }
  };
  for (const Part& lie :
       {Part{99, 0, 0}, Part{2, 99, 0}, Part{2, 0, 7}, Part{2, 0, 1}, Part{stranger(2), 0, 0}}) {
    begin(4, 1);
    flip(own(2), kM);
    int first = -1;
    fabric->forge([&](int32_t to, int index, uint8_t* gathered) {
      if (first < 0) first = index;
      if (to == 0 && index == first + 1) std::memcpy(gathered, &lie, sizeof(lie));
    });
    Status of_rank_0;
    static_cast<void>(all([&](Worker& worker) {
      const int32_t rank = worker.at.first;
      std::vector<Diverged> found;
      Status status = worker.state.find_diverged(fabric->engine(rank), rank, seconds(60), &found);
      if (rank != 0) return status;
      EXPECT_TRUE(found.empty());
      const uint8_t known = 1;  // the others wait for that
      std::vector<uint8_t> everyones;
      static_cast<void>(
          gather(fabric->engine(rank), now() + seconds(60), "hvd.divergence.known", &known, 1, &everyones));
      return of_rank_0 = status;
    }));
    EXPECT_EQ(of_rank_0.code, HVD_INTERNAL) << lie.owner << " " << lie.key << " " << lie.parity;
    EXPECT_NE(of_rank_0.message.find("can't be read"), std::string::npos) << of_rank_0.message;
  }
}

}  // namespace
}  // namespace hvd::state
