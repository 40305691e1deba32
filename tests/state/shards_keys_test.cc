// Keys of a state with shards that come and go between two commits, with losses.
#include <cstring>

#include "state/shard_histories.h"

namespace hvd::state {
namespace {

struct ShardsKeys : ShardHistories {
  /// Kinds of everything, by worker.
  struct Added {
    explicit Added(Worker& on) : worker(on) {
      worker.state.add_value("z.value", &value, sizeof(value));
      worker.state.add_tensor("z.tensor",
                              {tensor.data(), HVD_DTYPE_FLOAT64, {static_cast<int64_t>(tensor.size())}});
      worker.state.add_object("z.object",
                              Callback<hvd_save_fn>(
                                  [](void* self, hvd_write_fn write, void* sink) -> int32_t {
                                    return write(sink, &static_cast<Added*>(self)->object, sizeof(object));
                                  },
                                  this, nullptr),
                              Callback<hvd_load_fn>(
                                  [](void* self, const void* data, size_t size) -> int32_t {
                                    std::memcpy(&static_cast<Added*>(self)->object, data, size);
                                    return 0;
                                  },
                                  this, nullptr));
    }
    Added(const Added&) = delete;
    Added& operator=(const Added&) = delete;
    void expect(uint64_t wanted) const {
      EXPECT_EQ(value, wanted);
      EXPECT_EQ(object, wanted);
      for (const double element : tensor) ASSERT_EQ(element, static_cast<double>(wanted));
    }
    Worker& worker;
    uint64_t value = 7, object = 7;
    std::vector<double> tensor = std::vector<double>(100, 7);
  };
  std::map<Worker*, std::unique_ptr<Added>> added;

  void add_keys() {
    for (auto& worker : workers) added[worker.get()] = std::make_unique<Added>(*worker);
  }
  /// As a recovery does it, which leaves shards to the sync.
  void restore_all_but_shards() {
    for (auto& worker : workers) {
      worker->fabric = nullptr;
      static_cast<void>(worker->state.settle());
      ASSERT_TRUE(worker->state.restore(false).ok());
    }
  }
  void expect_commit(uint64_t step) {
    expect_step(step);
    for (auto& worker : workers) added.at(worker.get())->expect(7);
    const auto committed = commit();
    ASSERT_TRUE(ok(committed)) << text(committed);
    for (auto& worker : workers) worker->spoil();
    restore();
    expect_step(step + 1);
  }
  void lose_after_keys_came() {
    for (const bool hidden : {false, true}) {
      for (const size_t victim : {0U, 1U, 2U}) {
        SCOPED_TRACE(victim);
        start(3, 1);
        ASSERT_TRUE(ok(sync()));
        ASSERT_TRUE(ok(commit(hidden)));
        add_keys();
        for (auto& worker : workers) worker->train();  // which no commit has
        lose({victim});
        restore_all_but_shards();
        form();
        const auto synced = sync();
        ASSERT_TRUE(ok(synced)) << text(synced);
        expect_commit(1);
      }
    }
  }
  /// A commit that is cut off, and then what comes before the sync. It is there on all ranks or on none.
  void cut_off(const std::function<void()>& then) {
    for (const bool hidden : {false, true}) {
      std::vector<int> outcomes(3, 0);
      for (int cut = 0, last = 1000; cut < last; ++cut) {
        for (size_t victim = 0; victim < 3; ++victim) {
          SCOPED_TRACE("cut off after " + std::to_string(cut) + ", rank " + std::to_string(victim));
          start(3, 1);
          ASSERT_TRUE(ok(sync()));
          ASSERT_TRUE(ok(commit(hidden)));
          form();
          ASSERT_TRUE(ok(sync()));
          const int before = fabric->deliveries();
          fabric->break_after_deliveries(cut);
          if (ok(commit(hidden))) last = std::min(last, fabric->deliveries() - before);
          lose({victim});
          then();
          form();
          const auto synced = sync();
          ASSERT_TRUE(ok(synced)) << text(synced);
          const uint64_t step = workers[0]->step;
          ASSERT_TRUE(step == 1 || step == 2);
          expect_step(step);
          ++outcomes[step];
          ASSERT_TRUE(ok(commit(hidden)));
          expect_step(step + 1);
        }
      }
      EXPECT_GT(outcomes[1], 0);
      EXPECT_GT(outcomes[2], 3);
    }
  }
  ~ShardsKeys() override { workers.clear(); }
};

TEST_F(ShardsKeys, ThatComeAfterTheLastCommitLeaveItAsItWas) { lose_after_keys_came(); }

TEST_F(ShardsKeys, ThatComeAfterTheLastCommitLeaveMappedCopiesAsTheyWere) {
  machines = "a";
  length = (6 << 20) / sizeof(double);
  lose_after_keys_came();
}

TEST_F(ShardsKeys, ThatComeAfterACommitThatIsCutOffAnywhereLeaveItOnAllRanksOrOnNone) {
  cut_off([&] {
    add_keys();
    for (auto& worker : workers) worker->spoil();
    restore_all_but_shards();
  });
}

/// Nobody is lost, so that each range of the new key is there: its live values are what all have.
TEST_F(ShardsKeys, AShardThatComesAfterTheLastCommitIsInTheNextSync) {
  start(3, 1);
  ASSERT_TRUE(ok(sync()));
  ASSERT_TRUE(ok(commit()));
  std::vector<std::vector<uint32_t>> data(3);
  for (auto& worker : workers) {
    const ShardRange range = even_range(0, 29, worker->at.first, 3);
    std::vector<uint32_t>& mine = data[static_cast<size_t>(worker->at.first)];
    for (int64_t i = range.begin; i < range.end; ++i) mine.push_back(count_of(i, 5));
    worker->train();
    worker->shard("a", HVD_DTYPE_UINT32, mine.data(), range.elements(), 29, range.begin, 1, nullptr);
  }
  lose({});
  restore_all_but_shards();
  form();
  auto synced = sync();
  ASSERT_TRUE(ok(synced)) << text(synced);
  expect_step(1);
  // The sync has placed copies of it.
  for (std::vector<uint32_t>& mine : data) std::fill(mine.begin(), mine.end(), 0);
  restore();
  for (auto& worker : workers) {
    const ShardRange range = even_range(0, 29, worker->at.first, 3);
    for (int64_t i = range.begin; i < range.end; ++i) {
      EXPECT_EQ(data[static_cast<size_t>(worker->at.first)][static_cast<size_t>(i - range.begin)],
                count_of(i, 5));
    }
  }
}

/// The sentence says who had what of a commit, whatever came or went since.
TEST_F(ShardsKeys, ThatComeOrGoLeaveWhoHeldTheOthersKnown) {
  for (const bool comes : {true, false}) {
    SCOPED_TRACE(comes);
    start(4, 1);
    ASSERT_TRUE(ok(sync()));
    ASSERT_TRUE(ok(commit()));
    const auto holders = place_copies({"a", "b", "a", "b"}, 2);
    std::vector<uint32_t> data(10);
    for (auto& worker : workers) {
      worker->state.remove(comes ? "n" : "m");
      if (!comes) continue;
      const ShardRange range = even_range(0, 29, worker->at.first, 4);
      worker->shard("a", HVD_DTYPE_UINT32, data.data(), range.elements(), 29, range.begin, 1, nullptr);
    }
    // "n" has two copies.
    std::vector<size_t> lost = {1, static_cast<size_t>(holders[1][0])};
    if (!comes) lost.push_back(static_cast<size_t>(holders[1][1]));
    lose(lost);
    restore();
    if (comes) {
      for (auto& worker : workers) worker->state.remove("a");
    }
    form();
    const auto synced = sync();
    const std::string what = comes ? "elements 250 to 499 of state key 'm'" : "of state key 'n'";
    for (const Status& status : synced) {
      EXPECT_EQ(status.code, HVD_JOB_FAILED);
      EXPECT_EQ(status.message, synced[0].message);
      EXPECT_NE(status.message.find(what), std::string::npos) << status.message;
      EXPECT_NE(status.message.find("rank 1 (host b) held them, "), std::string::npos) << status.message;
    }
  }
}

TEST_F(ShardsKeys, AShardThatNoCommitHasIsLostWithItsWorkerAndTheSentenceSaysSo) {
  start(3, 1);
  ASSERT_TRUE(ok(sync()));
  ASSERT_TRUE(ok(commit()));
  std::vector<uint32_t> data(30);
  for (auto& worker : workers) {
    const ShardRange range = even_range(0, 29, worker->at.first, 3);
    worker->shard("a", HVD_DTYPE_UINT32, data.data(), range.elements(), 29, range.begin, 1,
                  [](void* self, hvd_shard* shard) -> int32_t {
                    static_cast<void>(self);
                    static std::vector<uint32_t> room(30);
                    shard->data = room.data();
                    return 0;
                  });
  }
  lose({1});
  restore();
  form();
  for (const Status& status : sync()) {
    EXPECT_EQ(status.code, HVD_JOB_FAILED);
    EXPECT_EQ(
        status.message,
        "state revision 1: elements 10 to 19 of state key 'a' are lost: the key was registered after that "
        "commit");
  }
}

/// A program that tries again before it returns from its training function. Another takes the place of who is
/// lost, so that ranges may stay.
TEST_F(ShardsKeys, ACommitThatCantBeginLeavesTheOneThatWasCutOff) {
  cut_off([&] {
    for (auto& worker : workers) {
      worker->fabric = nullptr;
      worker->train();
      EXPECT_FALSE(worker->state.save().ok());
    }
    restore();
    add(3);
  });
}

}  // namespace
}  // namespace hvd::state
