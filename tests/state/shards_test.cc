// Shards among ranks in one process: commits and syncs that are cut off at every point, losses, other sizes.
#include "state/shards.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "state/fabric.h"

namespace hvd::state {
namespace {

constexpr int64_t kLong = 1000, kShort = 7;

/// What an element is after so many steps.
double value_of(int64_t i, uint64_t step) {
  return static_cast<double>(i) * 0.5 + static_cast<double>(step) * 1e6;
}
uint32_t count_of(int64_t i, uint64_t step) {
  return static_cast<uint32_t>(i * 131 + static_cast<int64_t>(step));
}

/// A rank with two sharded keys, a tensor that all have alike, and the number of its steps, which is its revision.
struct Worker {
  Worker(std::string on, int32_t rank, int32_t size, int32_t copies, std::string name = "m")
      : host(std::move(on)) {
    set_values(even_range(0, kLong, rank, size));
    set_counts(even_range(1, kShort, rank, size));
    at = {rank, size};
    shard(name, HVD_DTYPE_FLOAT64, values.data(), static_cast<int64_t>(values.size()), kLong,
          values_range.begin, copies, &Worker::reshard_values);
    shard("n", HVD_DTYPE_UINT32, counts.data(), static_cast<int64_t>(counts.size()), kShort,
          counts_range.begin, 2, &Worker::reshard_counts);
    state.add_tensor("w", {weights.data(), HVD_DTYPE_FLOAT32, {static_cast<int64_t>(weights.size())}});
    state.add_value("step", &step, sizeof(step));
  }
  void shard(const std::string& key, hvd_dtype dtype, void* data, int64_t length, int64_t global,
             int64_t offset, int32_t copies, hvd_reshard_fn reshard) {
    ShardInfo info;
    info.tensor = {data, dtype, {length}};
    info.global_elements = global;
    info.offset = offset;
    info.copies = copies;
    info.reshard = Callback<hvd_reshard_fn>(reshard, this, nullptr);
    state.add_shard(key, info, [this](Generation* generation) { return place(generation); });
  }
  Status place(Generation* generation) const {
    if (fabric == nullptr && at.second > 1 && !registered) {
      generation->rank = at.first;  // at registration there is no traffic
      generation->hosts.resize(static_cast<size_t>(at.second));
      return {};
    }
    if (fabric == nullptr && at.second > 1) return {HVD_PEER_LOST, "no generation"};
    generation->engine = fabric == nullptr ? nullptr : &fabric->engine(at.first);
    generation->rank = at.first;
    generation->hosts = hosts;
    generation->hosts.resize(static_cast<size_t>(at.second), "h");
    generation->timeout = seconds(60);
    generation->leaving = leaving;
    return {};
  }
  static int32_t reshard_values(void* self, hvd_shard* shard) {
    auto& worker = *static_cast<Worker*>(self);
    worker.set_values({0, shard->offset, shard->offset + shard->elements});
    shard->data = worker.values.data();
    ++worker.resharded;
    return worker.refuses ? 3 : 0;
  }
  static int32_t reshard_counts(void* self, hvd_shard* shard) {
    auto& worker = *static_cast<Worker*>(self);
    worker.set_counts({1, shard->offset, shard->offset + shard->elements});
    shard->data = worker.counts.data();
    return 0;
  }
  void set_values(const ShardRange& range) {
    values_range = range;
    values.assign(static_cast<size_t>(range.elements()), 0);
    for (int64_t i = range.begin; i < range.end; ++i)
      values[static_cast<size_t>(i - range.begin)] = value_of(i, 0);
  }
  void set_counts(const ShardRange& range) {
    counts_range = range;
    counts.assign(static_cast<size_t>(range.elements()), 0);
    for (int64_t i = range.begin; i < range.end; ++i)
      counts[static_cast<size_t>(i - range.begin)] = count_of(i, 0);
  }
  void train() { fill(step + 1); }
  void fill(uint64_t to) {
    step = to;
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = value_of(values_range.begin + static_cast<int64_t>(i), step);
    for (size_t i = 0; i < counts.size(); ++i)
      counts[i] = count_of(counts_range.begin + static_cast<int64_t>(i), step);
    for (float& w : weights) w = static_cast<float>(step);
  }
  void spoil() {
    std::fill(values.begin(), values.end(), -1);
    std::fill(counts.begin(), counts.end(), 77);
    std::fill(weights.begin(), weights.end(), -1.F);
    step = 999;
  }
  void expect_step(uint64_t wanted) const {
    ASSERT_EQ(step, wanted);
    ASSERT_EQ(state.revision(), wanted);
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], value_of(values_range.begin + static_cast<int64_t>(i), wanted)) << i;
    for (size_t i = 0; i < counts.size(); ++i)
      ASSERT_EQ(counts[i], count_of(counts_range.begin + static_cast<int64_t>(i), wanted)) << i;
    for (const float w : weights) ASSERT_EQ(w, static_cast<float>(wanted));
  }

  std::string host;
  std::vector<double> values;
  std::vector<uint32_t> counts;
  std::vector<float> weights = std::vector<float>(50, 0);
  uint64_t step = 0;
  ShardRange values_range, counts_range;
  int resharded = 0;
  bool refuses = false, registered = false;
  Fabric* fabric = nullptr;
  std::pair<int32_t, int32_t> at;
  std::vector<std::string> hosts;
  std::vector<int32_t> leaving;
  State state{nullptr};
};

/// A job of such workers, generation by generation.
struct Shards : ::testing::Test {
  void start(int32_t size, int32_t copies) {
    copies_ = copies;
    workers.clear();
    while (std::ssize(workers) < size) add(size);
    form();
  }
  Worker& add(int32_t size, const std::string& name = "m") {
    const auto rank = static_cast<int32_t>(workers.size());
    return *workers.emplace_back(
        std::make_unique<Worker>(std::string(1, "ab"[rank % 2]), rank, size, copies_, name));
  }
  void form(int break_after = -1) {
    for (auto& worker : workers) worker->fabric = nullptr;
    fabric = std::make_unique<Fabric>(static_cast<int32_t>(workers.size()), ++generation);
    fabric->break_after_deliveries(break_after);
    std::vector<std::string> hosts;
    for (auto& worker : workers) hosts.push_back(worker->host);
    for (size_t rank = 0; rank < workers.size(); ++rank) {
      Worker& worker = *workers[rank];
      worker.registered = true;
      worker.at = {static_cast<int32_t>(rank), static_cast<int32_t>(workers.size())};
      worker.hosts = hosts;
      worker.fabric = fabric.get();
      worker.leaving.clear();
    }
  }
  std::vector<Status> all(const std::function<Status(Worker&)>& call) {
    std::vector<Status> statuses(workers.size());
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < workers.size(); ++rank)
      threads.emplace_back([&, rank] { statuses[rank] = call(*workers[rank]); });
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }
  std::vector<Status> sync() {
    return all([&](Worker& worker) {
      return worker.state.sync(fabric->engine(worker.at.first), worker.at.first, worker.at.second, {},
                               seconds(60), &worker_result(worker));
    });
  }
  SyncResult& worker_result(const Worker& worker) {
    const std::lock_guard lock(mutex);
    return results[&worker];
  }
  std::vector<Status> commit(bool hidden = false) {
    return all([&](Worker& worker) {
      worker.train();
      if (!hidden) return worker.state.save();
      Status status = worker.state.begin();
      return status.ok() ? worker.state.end() : status;
    });
  }
  static bool ok(const std::vector<Status>& statuses) {
    return std::all_of(statuses.begin(), statuses.end(), [](const Status& s) { return s.ok(); });
  }
  static std::string text(const std::vector<Status>& statuses) {
    std::string all;
    for (const Status& status : statuses) all += std::to_string(status.code) + " " + status.message + "\n";
    return all;
  }
  void lose(std::vector<size_t> ranks) {
    std::sort(ranks.rbegin(), ranks.rend());
    fabric.reset();
    for (const size_t rank : ranks) workers.erase(workers.begin() + static_cast<ptrdiff_t>(rank));
  }
  void restore() {
    for (auto& worker : workers) {
      if (!worker->state.has_commit()) continue;
      worker->spoil();
      static_cast<void>(worker->state.settle());
      ASSERT_TRUE(worker->state.restore().ok());
    }
  }
  void expect_step(uint64_t step) {
    for (auto& worker : workers) worker->expect_step(step);
  }

  std::mutex mutex;
  std::map<const Worker*, SyncResult> results;
  std::vector<std::unique_ptr<Worker>> workers;
  std::unique_ptr<Fabric> fabric;
  uint64_t generation = 0;
  int32_t copies_ = 1;
  ~Shards() override { fabric.reset(); }
};

TEST_F(Shards, AnotherSizeGetsEveryElement) {
  start(4, 1);
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

TEST_F(Shards, WhoAgreesMovesNothing) {
  start(3, 1);
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

TEST_F(Shards, ACommitThatIsCutOffAnywhereIsThereOnAllRanksOrOnNone) {
  for (const bool hidden : {false, true}) {
    std::vector<int> outcomes(3, 0);
    int last = 1000;
    for (int cut = 0; cut < last; ++cut) {
      for (size_t victim = 0; victim < 3; ++victim) {
        SCOPED_TRACE("cut off after " + std::to_string(cut) + ", rank " + std::to_string(victim) +
                     " is lost");
        start(3, 1);
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

TEST_F(Shards, ASyncThatIsCutOffAnywhereLosesNothing) {
  for (int cut = 0;; ++cut) {
    bool through = false;
    for (size_t victim = 0; victim < 4; ++victim) {
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

TEST_F(Shards, RandomHistoriesKeepEveryElement) {
  for (uint32_t seed = 0; seed < 25; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto any = [&](size_t below) { return static_cast<size_t>(random() % below); };
    const auto copies = static_cast<int32_t>(1 + any(2));
    start(static_cast<int32_t>(2 + any(3)), copies);
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
