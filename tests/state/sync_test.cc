// Syncs among ranks in one process, with deaths at every message.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>
#include <thread>

#include "state/fabric.h"
#include "state/message.h"
#include "state/objects.h"
#include "state/state.h"
#include "state/sync_plan.h"

namespace hvd::state {
namespace {

/// What one rank trains: tensors large and small, a value, an object.
struct Worker {
  explicit Worker(int seed) : step(static_cast<uint64_t>(seed)) {
    for (size_t i = 0; i < 4; ++i) large.emplace_back(40000 + i, static_cast<float>(seed));
    for (size_t i = 0; i < 10; ++i) small.emplace_back(100 + i, static_cast<float>(seed));
    object.bytes.assign(static_cast<size_t>(seed) * 10 + 5, static_cast<uint8_t>(seed));
    for (size_t i = 0; i < large.size(); ++i) add("large" + std::to_string(i), large[i]);
    for (size_t i = 0; i < small.size(); ++i) add("small" + std::to_string(i), small[i]);
    state.add_value("step", &step, sizeof(step));
    object.lends = seed % 2 == 0 ? 7 : 0;  // how a rank gives its bytes is its own business
    object.add_to(state, "object");
  }
  void add(const std::string& key, std::vector<float>& values) {
    state.add_tensor(key, {values.data(), HVD_DTYPE_FLOAT32, {static_cast<int64_t>(values.size())}});
  }
  /// Everything that is alive, for comparison.
  auto live() const { return std::tuple(large, small, step, object.bytes); }
  uint64_t bytes() const {
    uint64_t sum = sizeof(step) + object.bytes.size();
    for (const auto* group : {&large, &small}) {
      for (const auto& values : *group) sum += values.size() * sizeof(float);
    }
    return sum;
  }

  std::deque<std::vector<float>> large, small;
  uint64_t step;
  TestObject object;
  State state{nullptr};
};

struct Outcome {
  Status status;
  SyncResult result;
};

/// Every rank's sync in a thread of its own. Ranks whose state is NULL do not come.
std::vector<Outcome> sync_states(Fabric& fabric, const std::vector<State*>& states,
                                 const std::vector<Summary>& known = {}, Duration timeout = seconds(60)) {
  std::vector<Outcome> outcomes(states.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < states.size(); ++rank) {
    if (states[rank] == nullptr) continue;
    threads.emplace_back([&, rank] {
      const auto r = static_cast<int32_t>(rank);
      outcomes[rank].status =
          states[rank]->sync(fabric.engine(r), r, fabric.size(), known, timeout, &outcomes[rank].result);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

struct Sync : ::testing::Test {
  Worker& add(int seed) { return *workers.emplace_back(std::make_unique<Worker>(seed)); }
  std::vector<State*> states() const {
    std::vector<State*> all;
    for (const auto& worker : workers) all.push_back(&worker->state);
    return all;
  }
  std::vector<Summary> summaries() const {
    std::vector<Summary> all;
    for (const auto& worker : workers) all.push_back(worker->state.summary());
    return all;
  }
  std::vector<Outcome> sync(Fabric& fabric, const std::vector<Summary>& known = {}) {
    return sync_states(fabric, states(), known);
  }
  void expect_all_equal(const std::vector<Outcome>& outcomes, size_t root) {
    for (size_t rank = 0; rank < workers.size(); ++rank) {
      ASSERT_TRUE(outcomes[rank].status.ok()) << rank << ": " << outcomes[rank].status.message;
      EXPECT_EQ(outcomes[rank].result.root, static_cast<int32_t>(root)) << rank;
      EXPECT_EQ(outcomes[rank].result.revision, workers[root]->state.revision()) << rank;
      EXPECT_TRUE(workers[rank]->live() == workers[root]->live()) << rank;
      const Summary summary = workers[rank]->state.summary();
      EXPECT_TRUE(summary.has_state) << rank;
      EXPECT_EQ(summary.revision, workers[root]->state.revision()) << rank;
      EXPECT_EQ(summary.digest, workers[root]->state.summary().digest) << rank;
      // The last commit is the root's as well.
      const auto live = workers[rank]->live();
      workers[rank]->large[0][0] = -1;
      workers[rank]->step = 12345;
      workers[rank]->object.bytes = {1};
      EXPECT_TRUE(workers[rank]->state.restore().ok()) << rank;
      EXPECT_TRUE(workers[rank]->live() == live) << rank;
    }
  }
  std::vector<std::unique_ptr<Worker>> workers;
};

TEST_F(Sync, FirstTakesRankZeros) {
  for (int seed : {1, 2, 3}) add(seed);
  const auto wanted = workers[0]->live();
  Fabric fabric(3);
  const auto outcomes = sync(fabric);
  expect_all_equal(outcomes, 0);
  EXPECT_TRUE(workers[2]->live() == wanted);
  EXPECT_EQ(workers[1]->state.revision(), 0U);
  EXPECT_EQ(workers[0]->object.loads, 1) << "only the restore of this test: it lacked nothing";
}

TEST_F(Sync, NewestWinsAndItsHoldersShareTheSending) {  // contract 5
  for (int seed : {1, 2, 2, 2, 3}) add(seed);
  Fabric first(5);
  for (auto& worker : workers) ASSERT_TRUE(worker->state.refresh().ok());
  ASSERT_TRUE(sync(first)[0].status.ok());
  for (size_t rank : {1, 2, 3}) {  // one more commit than rank 0; rank 4 is new
    workers[rank]->large[1][7] = 9;
    workers[rank]->step = 77;
    for (auto& values : workers[rank]->large) values[0] = 5;
    ASSERT_TRUE(workers[rank]->state.save().ok());
  }
  workers[4] = std::make_unique<Worker>(8);
  Fabric fabric(5);
  const auto outcomes = sync(fabric, summaries());
  expect_all_equal(outcomes, 1);
  EXPECT_EQ(workers[4]->step, 77U);
  EXPECT_EQ(workers[4]->state.revision(), 1U);
  uint64_t sent = 0;
  for (size_t rank : {1, 2, 3}) {
    EXPECT_GT(outcomes[rank].result.sent_bytes, 0U) << rank;
    EXPECT_EQ(outcomes[rank].result.received_bytes, 0U) << rank;
    sent += outcomes[rank].result.sent_bytes;
  }
  EXPECT_EQ(outcomes[4].result.received_bytes, workers[4]->bytes());
  EXPECT_EQ(outcomes[4].result.sent_bytes, 0U);
  EXPECT_LT(outcomes[0].result.received_bytes, workers[4]->bytes()) << "rank 0 has the small ones already";
  // What ranks 0 and 4 lack together travels once; what only rank 4 lacks may come from rank 0, too.
  EXPECT_EQ(sent + outcomes[0].result.sent_bytes, workers[4]->bytes());
  EXPECT_EQ(workers[4]->state.statistics().sync_received_bytes, workers[4]->bytes());
  EXPECT_EQ(workers[4]->state.statistics().syncs, 1U);
}

TEST_F(Sync, SurvivorsThatAreKnownToAgreeSendNothingAtAll) {  // contract 6
  for (int seed : {1, 1}) add(seed);
  Fabric first(2);
  ASSERT_TRUE(sync(first)[1].status.ok());
  Fabric fabric(2);
  const auto outcomes = sync(fabric, summaries());
  expect_all_equal(outcomes, 0);
  EXPECT_EQ(fabric.messages(), 0U);
  EXPECT_EQ(fabric.broadcasts(), 0);
  EXPECT_EQ(workers[0]->state.statistics().syncs, 2U);
}

TEST_F(Sync, EqualBytesMoveNoPayload) {  // contract 6
  for (int seed : {1, 1, 1}) add(seed);
  ASSERT_TRUE(workers[1]->state.save().ok());  // another revision of the same bytes, and no state
  Fabric fabric(3);
  const auto outcomes = sync(fabric);
  expect_all_equal(outcomes, 0);
  EXPECT_EQ(fabric.broadcasts(), 0);
  for (const Outcome& outcome : outcomes)
    EXPECT_EQ(outcome.result.sent_bytes + outcome.result.received_bytes, 0U);
  EXPECT_EQ(workers[1]->state.revision(), 0U) << "rank 0 is the root, and this is its revision";
}

TEST_F(Sync, OnlyWhatDiffersMoves) {  // contract 6
  for (int seed : {1, 1, 1, 1}) add(seed);
  workers[2]->large[3][39999] = 4;
  workers[3]->large[3][39999] = 4;
  workers[3]->step = 9;
  Fabric fabric(4);
  const auto outcomes = sync(fabric);
  expect_all_equal(outcomes, 0);
  const uint64_t large = workers[0]->large[3].size() * sizeof(float);
  EXPECT_EQ(fabric.broadcasts(), 2);
  EXPECT_EQ(outcomes[2].result.received_bytes, large);
  EXPECT_EQ(outcomes[3].result.received_bytes, large + sizeof(uint64_t));
  EXPECT_EQ(outcomes[0].result.sent_bytes + outcomes[1].result.sent_bytes + outcomes[2].result.sent_bytes,
            large + sizeof(uint64_t));
}

TEST_F(Sync, NobodySyncedBeforeButOneCommitted) {
  for (int seed : {1, 2}) add(seed);
  ASSERT_TRUE(workers[1]->state.save().ok());
  Fabric fabric(2);
  expect_all_equal(sync(fabric), 0);
}

// contract 5, 16: the driver has seen who was synced, and what each held when it came.
TEST_F(Sync, ANewcomerThatClaimsStateLeadsNobody) {
  for (int seed : {1, 1, 3}) add(seed);
  Fabric first(2);
  const auto members = sync_states(first, {&workers[0]->state, &workers[1]->state});
  for (const Outcome& outcome : members) ASSERT_TRUE(outcome.status.ok()) << outcome.status.message;
  Fabric alone(1);
  ASSERT_TRUE(sync_states(alone, {&workers[2]->state})[0].status.ok());
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(workers[2]->state.save().ok());
  std::vector<Summary> known = summaries();
  known[2] = {};
  const auto wanted = workers[0]->live();
  Fabric fabric(3);
  const auto outcomes = sync(fabric, known);
  expect_all_equal(outcomes, 0);
  EXPECT_TRUE(workers[2]->live() == wanted);
  EXPECT_EQ(workers[2]->state.revision(), 0U);
}

TEST_F(Sync, NorDoesOneThatBeginsWithTheOthers) {
  for (int seed : {1, 2}) add(seed);
  Fabric alone(1);
  ASSERT_TRUE(sync_states(alone, {&workers[1]->state})[0].status.ok());
  Fabric fabric(2);
  expect_all_equal(sync(fabric, std::vector<Summary>(2)), 0);
}

TEST_F(Sync, KeyAddedAfterTheCommitIsCoveredToo) {
  for (int seed : {1, 1}) add(seed);
  Fabric first(2);
  ASSERT_TRUE(sync(first)[0].status.ok());
  uint64_t late[2] = {5, 6};
  for (size_t rank : {0, 1}) workers[rank]->state.add_value("late", &late[rank], 8);
  Fabric fabric(2);
  const auto outcomes = sync(fabric, summaries());
  for (const Outcome& outcome : outcomes) ASSERT_TRUE(outcome.status.ok()) << outcome.status.message;
  EXPECT_EQ(late[1], 5U);
  EXPECT_EQ(outcomes[1].result.received_bytes, 8U);
}

TEST_F(Sync, AloneNeedsNobody) {
  add(3);
  Fabric fabric(1);
  expect_all_equal(sync(fabric), 0);
  EXPECT_EQ(fabric.messages(), 0U);
}

TEST_F(Sync, BreakingAnywhereLeavesCommitAndLiveValues) {  // contract 4, F4
  for (int at = 0;; ++at) {
    workers.clear();
    for (int seed : {1, 2, 3}) add(seed);
    for (auto& worker : workers) ASSERT_TRUE(worker->state.save().ok());
    Fabric fabric(3);
    fabric.break_at_broadcast(at);
    std::vector<decltype(workers[0]->live())> before;
    std::vector<Summary> summary = summaries();
    for (const auto& worker : workers) before.push_back(worker->live());
    const auto outcomes = sync(fabric);
    if (outcomes[0].status.ok()) {  // no broadcast was left to break
      EXPECT_GE(at, 5);
      expect_all_equal(outcomes, 0);
      break;
    }
    for (size_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(outcomes[rank].status.code, HVD_PEER_LOST)
          << at << " " << rank << ": " << outcomes[rank].status.message;
      EXPECT_TRUE(workers[rank]->live() == before[rank]) << at << " " << rank;
      EXPECT_EQ(workers[rank]->state.summary().digest, summary[rank].digest);
      EXPECT_EQ(workers[rank]->state.revision(), 1U);
      EXPECT_FALSE(workers[rank]->state.summary().has_state);
      workers[rank]->step = 99;
      workers[rank]->large[2][1] = 99;
      EXPECT_TRUE(workers[rank]->state.restore().ok());
      EXPECT_TRUE(workers[rank]->live() == before[rank]) << at << " " << rank;
    }
    Fabric next(3, 2);
    expect_all_equal(sync(next), 0);
  }
}

TEST_F(Sync, WrongBytesAreFoundAndNotTaken) {
  for (int seed : {1, 2}) add(seed);
  for (auto& worker : workers) ASSERT_TRUE(worker->state.save().ok());
  const auto before = workers[1]->live();
  Fabric fabric(2);
  fabric.corrupt_broadcast(0);
  const auto outcomes = sync(fabric);
  EXPECT_EQ(outcomes[1].status.code, HVD_INTERNAL);
  EXPECT_TRUE(says(outcomes[1].status.message, {"large0", "rank 0"}));
  EXPECT_TRUE(workers[1]->live() == before);
  EXPECT_TRUE(workers[1]->state.restore().ok());
  EXPECT_TRUE(workers[1]->live() == before);
}

TEST_F(Sync, FailingLoadLeavesTheReceiverAsItWas) {
  for (int seed : {1, 2}) add(seed);
  TestObject second[2];
  second[0].bytes = {1, 1};
  second[1].bytes = {2, 2};
  for (size_t rank : {0, 1}) second[rank].add_to(workers[rank]->state, "zz");
  second[1].load_code = 3;
  const auto before = workers[1]->live();
  Fabric fabric(2);
  const auto outcomes = sync(fabric);
  EXPECT_TRUE(outcomes[0].status.ok());
  EXPECT_EQ(outcomes[1].status.code, HVD_CALLBACK_FAILED);
  EXPECT_TRUE(says(outcomes[1].status.message, {"'zz'", "load", "3"}));
  EXPECT_TRUE(workers[1]->live() == before) << "the first object was given its own bytes again";
  EXPECT_EQ(workers[1]->object.loads, 2);
  EXPECT_FALSE(workers[1]->state.summary().has_state);
}

TEST_F(Sync, FailingSaveIsToldToTheOthers) {
  for (int seed : {1, 2, 3}) add(seed);
  workers[1]->object.save_code = 4;
  Fabric fabric(3);
  const auto outcomes = sync(fabric);
  EXPECT_EQ(outcomes[1].status.code, HVD_CALLBACK_FAILED);
  for (size_t rank : {0, 2}) {
    EXPECT_EQ(outcomes[rank].status.code, HVD_PEER_LOST);
    EXPECT_EQ(outcomes[rank].status.rank, 1);
  }
}

TEST_F(Sync, RankThatStaysAwayIsNamedAfterTheTimeout) {  // contract 12
  for (int seed : {1, 2, 3}) add(seed);
  Fabric fabric(3);
  auto some = states();
  some[2] = nullptr;
  const auto outcomes = sync_states(fabric, some, {}, milliseconds(100));
  for (size_t rank : {0, 1}) {
    EXPECT_EQ(outcomes[rank].status.code, HVD_TIMEOUT) << outcomes[rank].status.message;
    EXPECT_TRUE(says(outcomes[rank].status.message, {"rank 2", "hvd.sync.head"}));
  }
}

TEST_F(Sync, BadRanksAreRefused) {
  add(1);
  Fabric fabric(1);
  EXPECT_EQ(workers[0]->state.sync(fabric.engine(0), 1, 1, {}, seconds(1), nullptr).code, HVD_INVALID);
  EXPECT_EQ(workers[0]->state.sync(fabric.engine(0), -1, 1, {}, seconds(1), nullptr).code, HVD_INVALID);
  EXPECT_EQ(workers[0]->state.sync(fabric.engine(0), 0, 0, {}, seconds(1), nullptr).code, HVD_INVALID);
  EXPECT_TRUE(workers[0]->state.sync(fabric.engine(0), 0, 1, {}, seconds(1), nullptr).ok());
}

// Contract 9: the same message on every rank, with the first key that differs.
void expect_mismatch(const std::vector<std::function<void(State&)>>& fill,
                     std::initializer_list<const char*> parts) {
  std::vector<std::unique_ptr<State>> owned;
  std::vector<State*> states;
  for (const auto& f : fill) {
    owned.push_back(std::make_unique<State>(nullptr));
    f(*owned.back());
    states.push_back(owned.back().get());
  }
  Fabric fabric(static_cast<int32_t>(states.size()));
  const auto outcomes = sync_states(fabric, states);
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.status.code, HVD_MISMATCH) << outcome.status.message;
    EXPECT_EQ(outcome.status.message, outcomes[0].status.message);
    EXPECT_TRUE(says(outcome.status.message, parts));
  }
}

TEST(Mismatch, NamesTheFirstKeyThatDiffers) {
  static float data[16] = {};
  const auto tensor = [](const char* key, std::vector<int64_t> shape, hvd_dtype dtype = HVD_DTYPE_FLOAT32) {
    return [=](State& state) { state.add_tensor(key, {data, dtype, shape}); };
  };
  const auto both = [](auto a, auto b) {
    return [=](State& state) {
      a(state);
      b(state);
    };
  };
  const auto nothing = [](State&) {};
  const auto value = [](State& state) { state.add_value("w", data, 8); };
  expect_mismatch({tensor("w", {2, 3}), tensor("w", {2, 3}), tensor("w", {3, 2})},
                  {"'w'", "tensor float32[2,3] on rank 0", "tensor float32[3,2] on rank 2"});
  expect_mismatch({tensor("w", {2}), tensor("w", {2}, HVD_DTYPE_INT32)},
                  {"'w'", "float32[2] on rank 0", "int32[2] on rank 1"});
  expect_mismatch({tensor("w", {8}), value},
                  {"'w'", "tensor float32[8] on rank 0", "value of 8 bytes on rank 1"});
  expect_mismatch({both(tensor("a", {1}), tensor("b", {1})), both(tensor("a", {1}), tensor("c", {1}))},
                  {"'b'", "float32[1] on rank 0", "absent on rank 1"});
  expect_mismatch({tensor("b", {1}), both(tensor("a", {1}), tensor("b", {1})), tensor("b", {1})},
                  {"'a'", "absent on rank 0", "float32[1] on rank 1"});
  expect_mismatch({nothing, tensor("w", {1})}, {"'w'", "absent on rank 0"});
  expect_mismatch({tensor("w", {1}), nothing, nothing, nothing}, {"'w'", "absent on rank 1"});
}

TEST(Empty, StatesAgree) {
  State a(nullptr), b(nullptr);
  Fabric fabric(2);
  for (const Outcome& outcome : sync_states(fabric, {&a, &b}))
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.message;
}

// Random generations: members die, commit, change, come anew; after each sync everybody has the newest
// commit.
TEST_F(Sync, HoldsForRandomHistories) {
  for (uint32_t seed = 0; seed < 12; ++seed) {
    workers.clear();
    std::mt19937 random(seed);
    const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
    for (uint64_t generation = 1; generation <= 6; ++generation) {
      while (workers.size() > 1 && below(3) == 0)
        workers.erase(workers.begin() + static_cast<ptrdiff_t>(below(workers.size())));
      while (workers.size() < 2 || (workers.size() < 5 && below(2) == 0)) add(static_cast<int>(below(5)));
      const std::vector<Summary> known = summaries();
      size_t root = 0;
      bool found = false;
      for (size_t rank = 0; rank < workers.size(); ++rank) {
        if (known[rank].has_state && (!found || known[rank].revision > known[root].revision))
          root = rank, found = true;
      }
      const auto wanted = workers[root]->live();
      const uint64_t revision = known[root].revision;
      Fabric fabric(static_cast<int32_t>(workers.size()), generation);
      const auto outcomes = sync(fabric, below(2) == 0 ? known : std::vector<Summary>());
      expect_all_equal(outcomes, root);
      ASSERT_TRUE(workers.back()->live() == wanted) << "seed " << seed << " generation " << generation;
      ASSERT_EQ(workers.back()->state.revision(), revision);
      // A step that all make, and its commit, which some do not reach.
      const size_t changed = below(4), commits = below(3);
      for (size_t commit = 0; commit < commits; ++commit) {
        const size_t reached = below(workers.size()) + 1;
        for (size_t i = 0; i < workers.size(); ++i) {
          Worker& worker = *workers[(i + seed) % workers.size()];
          if (i >= reached && commit + 1 == commits) break;
          worker.large[changed][commit] += 1;
          worker.object.bytes.assign(generation * 3 + commit, static_cast<uint8_t>(changed));
          worker.step += 1;
          ASSERT_TRUE(worker.state.save().ok());
        }
      }
    }
  }
}

/// Rank 1 of two, which lacks everything, is lied to in what the ranks tell each other.
struct LiedTo : Sync {
  Status sync_of_rank_1(const Fabric::Forge& forge) {
    if (workers.empty()) {
      EXPECT_TRUE(add(3).state.save().ok());
      add(1);
    }
    Fabric fabric(2);
    fabric.forge(forge);
    Status status;
    std::thread other([&] { static_cast<void>(sync_states(fabric, {states()[0], nullptr})); });
    SyncResult result;
    status = workers[1]->state.sync(fabric.engine(1), 1, 2, {}, seconds(60), &result);
    if (!status.ok()) fabric.engine(0).fail({HVD_PEER_LOST, "rank 1 has left"});
    other.join();
    return status;
  }
  static constexpr int kDigests = 1;
  size_t rows() const { return 4 + 10 + 2; }
};

TEST_F(LiedTo, WhatIsSaidOfItselfIsNotBelieved) {
  const Status status = sync_of_rank_1([&](int32_t to, int index, uint8_t* gathered) {
    // It is said to have what rank 0 has.
    const size_t row = rows() * sizeof(Version);
    if (to == 1 && index == kDigests) std::memcpy(gathered + row, gathered, row);
  });
  EXPECT_EQ(status.code, HVD_INTERNAL);
  EXPECT_NE(status.message.find("are not its own"), std::string::npos) << status.message;
}

TEST_F(LiedTo, NoRoomIsMadeForAnObjectThatNoMemoryHolds) {
  const Status status = sync_of_rank_1([&](int32_t to, int index, uint8_t* gathered) {
    if (to != 1 || index != kDigests) return;
    Version version;  // of the object, behind the large ones by its key
    std::memcpy(&version, gathered + 4 * sizeof(Version), sizeof(version));
    version.size = uint64_t{1} << 62;
    std::memcpy(gathered + 4 * sizeof(Version), &version, sizeof(version));
  });
  EXPECT_EQ(status.code, HVD_INTERNAL);
  EXPECT_NE(status.message.find("of this machine's memory"), std::string::npos) << status.message;
}

}  // namespace
}  // namespace hvd::state
