// States of a process that runs out of memory, at every allocation of a call: the last commit stays whole,
// and no other rank waits for one that has failed (contract 4, 10).
#include <gtest/gtest.h>

#include <algorithm>

#include "starved.h"
#include "state/objects.h"
#include "state/shard_workers.h"

namespace hvd::state {
namespace {

using test::Starved;

constexpr size_t kMost = 20000;  // allocations of one call

/// Calls it as a C function would: what it throws is its outcome.
template <class Call>
Status guarded(Call call) {
  try {
    return call();
  } catch (const std::exception& error) { return {HVD_INTERNAL, error.what()}; }
}

/// Tensors and objects; all of them are as the step says.
struct Trainer {
  Trainer() {
    for (std::vector<float>* tensor : {&large, &small}) state.add_tensor(key_of(*tensor), tensor_of(*tensor));
    written.add_to(state, "a written");
    lent.lends = 100000;
    lent.add_to(state, "b lent");
    other.add_to(state, "z written");
  }
  static std::string key_of(const std::vector<float>& tensor) { return "t" + std::to_string(tensor.size()); }
  static size_t size_of(uint8_t step) { return kPiece / 2 * step + 100; }  // each commit's objects are longer
  void fill(uint8_t step) {
    for (std::vector<float>* tensor : {&large, &small}) tensor->assign(tensor->size(), step);
    for (TestObject* object : {&written, &other}) object->bytes.assign(size_t{100} * step, step);
    lent.bytes.assign(size_of(step), step);
  }
  void expect(uint8_t step) const {
    const auto all_are = [step](const auto& values) {
      return std::all_of(values.begin(), values.end(), [step](auto value) { return value == step; });
    };
    for (const std::vector<float>* tensor : {&large, &small}) EXPECT_TRUE(all_are(*tensor));
    for (const TestObject* object : {&written, &lent, &other}) EXPECT_TRUE(all_are(object->bytes));
    for (const TestObject* object : {&written, &other}) EXPECT_EQ(object->bytes.size(), size_t{100} * step);
    EXPECT_EQ(lent.bytes.size(), size_of(step));
  }
  std::vector<float> large = std::vector<float>(kPiece / 4 + 10), small = std::vector<float>(7);
  TestObject written, lent, other;
  State state{nullptr};
};

class NoMemory : public ::testing::TestWithParam<bool> {};  // whether commits are hidden

TEST_P(NoMemory, ACommitThatFailsAnywhereLeavesTheOneBefore) {
  bool failed = true;
  for (size_t at = 0; failed && at < kMost; ++at) {
    Trainer trainer;
    trainer.fill(1);
    ASSERT_TRUE(trainer.state.save().ok());
    trainer.fill(2);
    Status status;
    {
      const Starved starved(at, Starved::Whose::kAnybodys);
      status = guarded([&] {
        if (!GetParam()) return trainer.state.save();
        Status begun = trainer.state.begin();
        return begun.ok() ? trainer.state.end() : begun;
      });
      failed = Starved::has_failed();
    }
    EXPECT_TRUE(status.ok() || failed) << status.message;
    static_cast<void>(trainer.state.settle());
    trainer.fill(9);
    ASSERT_TRUE(trainer.state.restore().ok()) << at;
    trainer.expect(status.ok() ? 2 : 1);
    EXPECT_EQ(trainer.state.revision(), status.ok() ? 2U : 1U);
    if (HasFailure()) FAIL() << "allocation " << at << ": " << status.message;
    trainer.fill(3);  // and the next one comes through
    ASSERT_TRUE(trainer.state.save().ok()) << at;
    trainer.fill(9);
    ASSERT_TRUE(trainer.state.restore().ok());
    trainer.expect(3);
  }
  EXPECT_FALSE(failed);
}

TEST_P(NoMemory, ARestoreThatFailsAnywhereCanBeRepeated) {
  Trainer trainer;
  trainer.fill(1);
  ASSERT_TRUE(trainer.state.save().ok());
  bool failed = true;
  for (size_t at = 0; failed && at < kMost; ++at) {
    trainer.fill(9);
    {
      const Starved starved(at);
      static_cast<void>(guarded([&] { return trainer.state.restore(); }));
      failed = Starved::has_failed();
    }
    ASSERT_TRUE(trainer.state.restore().ok()) << at;
    trainer.expect(1);
  }
  EXPECT_FALSE(failed);
}

INSTANTIATE_TEST_SUITE_P(Commits, NoMemory, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Hidden" : "Plain"; });

// A rank that is a commit behind fails as it takes the newer one; a driver tells the other.
TEST(NoMemoryForSync, ASyncThatFailsAnywhereLeavesTheLastCommit) {
  bool failed = true;
  for (size_t at = 0; failed && at < kMost; ++at) {
    Trainer trainers[2];
    const auto sync = [&](Fabric& fabric, bool starves) {
      std::vector<Status> statuses(2);
      const auto one = [&](int32_t rank) {
        const auto call = [&] {
          SyncResult result;
          return trainers[rank].state.sync(fabric.engine(rank), rank, 2, {}, seconds(60), &result);
        };
        Status& status = statuses[static_cast<size_t>(rank)];
        if (starves && rank == 0) {
          const Starved starved(at);
          status = guarded(call);
          failed = Starved::has_failed();
        } else {
          status = guarded(call);
        }
        if (!status.ok()) fabric.engine(1 - rank).fail({HVD_PEER_LOST, "the other rank has left"});
      };
      std::thread other(one, 1);
      one(0);
      other.join();
      return statuses;
    };
    for (Trainer& trainer : trainers) trainer.fill(1);
    {
      Fabric fabric(2);
      const auto statuses = sync(fabric, false);
      ASSERT_TRUE(statuses[0].ok() && statuses[1].ok());
    }
    trainers[1].fill(2);
    ASSERT_TRUE(trainers[1].state.save().ok());
    Fabric fabric(2, 2);
    const auto statuses = sync(fabric, true);
    EXPECT_TRUE(statuses[0].ok() || failed) << statuses[0].message;
    EXPECT_NE(statuses[1].code, HVD_TIMEOUT) << statuses[1].message;
    trainers[0].fill(9);
    ASSERT_TRUE(trainers[0].state.restore().ok()) << at;
    trainers[0].expect(trainers[0].state.revision() == 1 ? 2 : 1);
    if (HasFailure()) FAIL() << "allocation " << at << ": " << statuses[0].message;
  }
  EXPECT_FALSE(failed);
}

struct NoMemoryForShards : ShardJob {};

// The others are told, whatever has failed before the shards are placed.
TEST_F(NoMemoryForShards, ACommitThatCantBeginOnOneRankFailsOnAll) {
  bool failed = true;
  for (size_t at = 0; failed && at < kMost; ++at) {
    start(3, 1);
    ASSERT_TRUE(ok(sync()));
    const auto statuses = all([&](Worker& worker) {
      worker.train();
      if (worker.at.first != 1) return worker.state.save();
      const Starved starved(at);
      Status status = guarded([&] { return worker.state.save(); });
      failed = Starved::has_failed();
      return status;
    });
    for (const Status& status : statuses) {
      EXPECT_NE(status.code, HVD_TIMEOUT) << status.message;
      EXPECT_EQ(status.ok(), statuses[1].ok()) << text(statuses);
    }
    if (HasFailure()) FAIL() << "allocation " << at;
    form();
    restore();
    ASSERT_TRUE(ok(sync())) << at;
    expect_step(statuses[1].ok() ? 1 : 0);
    fabric.reset();
  }
  EXPECT_FALSE(failed);
}

TEST_F(NoMemoryForShards, ARestoreThatFailsAnywhereCanBeRepeated) {
  start(2, 1);
  ASSERT_TRUE(ok(sync()));
  ASSERT_TRUE(ok(commit()));
  bool failed = true;
  for (size_t at = 0; failed && at < kMost; ++at) {
    workers[0]->spoil();
    {
      const Starved starved(at);
      static_cast<void>(guarded([&] { return workers[0]->state.restore(); }));
      failed = Starved::has_failed();
    }
    ASSERT_TRUE(workers[0]->state.restore().ok()) << at;
    expect_step(1);
  }
  EXPECT_FALSE(failed);
}

// A search for divergence, which reads shards again: whoever can't go on gives the generation up.
TEST_F(NoMemoryForShards, AComparisonThatFailsOnOneRankNamesNobody) {
  bool failed = true;
  for (size_t at = 0; failed && at < kMost; ++at) {
    start(3, 1);
    ASSERT_TRUE(ok(sync()));
    ASSERT_TRUE(ok(commit()));
    std::vector<std::vector<Diverged>> found(workers.size());
    const auto statuses = all([&](Worker& worker) {
      const auto rank = static_cast<size_t>(worker.at.first);
      const auto call = [&] {
        return worker.state.find_diverged(fabric->engine(worker.at.first), worker.at.first, seconds(60),
                                          &found[rank]);
      };
      if (rank != 1) return call();
      const Starved starved(at);
      Status status = guarded(call);
      failed = Starved::has_failed();
      if (status.ok()) return status;
      for (const int32_t other : {0, 2}) fabric->engine(other).fail({HVD_PEER_LOST, "rank 1 is lost"});
      return status;
    });
    EXPECT_TRUE(statuses[1].ok() || failed) << text(statuses);
    for (const Status& status : statuses) EXPECT_NE(status.code, HVD_TIMEOUT) << status.message;
    for (const auto& diverged : found) EXPECT_TRUE(diverged.empty());
    if (HasFailure()) FAIL() << "allocation " << at;
    form();
    restore();
    ASSERT_TRUE(ok(sync())) << at;
    expect_step(1);
    fabric.reset();
  }
  EXPECT_FALSE(failed);
}

}  // namespace
}  // namespace hvd::state
