// Workers with shards in one process, and a job of them, generation by generation.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "state/device_double.h"
#include "state/fabric.h"
#include "state/shards.h"

namespace hvd::state {

inline constexpr int64_t kLong = 1000, kShort = 7;

/// What an element is after so many steps.
inline double value_of(int64_t i, uint64_t step) {
  return static_cast<double>(i) * 0.5 + static_cast<double>(step) * 1e6;
}
inline uint32_t count_of(int64_t i, uint64_t step) {
  return static_cast<uint32_t>(i * 131 + static_cast<int64_t>(step));
}

/// As `copies`: parity of so many shards instead.
constexpr int32_t parity_of(int32_t shards) { return -shards; }

/// A device of one rank, with the memory of its longer key.
struct ShardDevice {
  ShardDevice() { copies->open(device); }
  ~ShardDevice() {
    device.hold(false);
    EXPECT_EQ(device.pinned(), 0U) << "host memory of the device was not given back";
    copies->close();
  }
  /// By a kernel on its stream.
  void write(const std::vector<double>& values) {
    device.launch([this, values, to = data] {
      if (!values.empty()) std::memcpy(device.memory.view(to), values.data(), values.size() * sizeof(double));
    });
  }
  DeviceDouble device;
  std::shared_ptr<DeviceCopies> copies = std::make_shared<DeviceCopies>(std::chrono::seconds(60));
  void* data = nullptr;
};

/// A rank with two sharded keys, a tensor that all have alike, and the number of its steps, which is its
/// revision.
struct Worker {
  Worker(std::string on, int32_t rank, int32_t size, int32_t copies, std::string name = "m",
         const Settings& settings = {}, int64_t length = kLong, LoggerPtr logger = nullptr,
         bool on_device = false)
      : host(std::move(on)),
        key(std::move(name)),
        gpu(on_device ? std::make_unique<ShardDevice>() : nullptr),
        state(std::move(logger), nullptr, gpu ? gpu->copies : nullptr, settings) {
    set_values(even_range(0, length, rank, size));
    set_counts(even_range(1, kShort, rank, size));
    at = {rank, size};
    shard(key, HVD_DTYPE_FLOAT64, gpu ? gpu->data : values.data(), static_cast<int64_t>(values.size()),
          length, values_range.begin, copies, &Worker::reshard_values);
    shard("n", HVD_DTYPE_UINT32, counts.data(), static_cast<int64_t>(counts.size()), kShort,
          counts_range.begin, copies < 0 ? parity_of(2) : 2, &Worker::reshard_counts);
    state.add_tensor("w", {weights.data(), HVD_DTYPE_FLOAT32, {static_cast<int64_t>(weights.size())}});
    state.add_value("step", &step, sizeof(step));
  }
  void shard(const std::string& key, hvd_dtype dtype, void* data, int64_t length, int64_t global,
             int64_t offset, int32_t copies, hvd_reshard_fn reshard) {
    ShardInfo info;
    info.tensor = {data, dtype, {length}};
    if (gpu && data == gpu->data)
      info.tensor = {data, dtype, {length}, HVD_MEMORY_CUDA, 3, gpu->device.stream()};
    info.global_elements = global;
    info.offset = offset;
    info.copies = std::max(copies, 0);
    info.parity = std::max(-copies, 0);
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
    EXPECT_TRUE(!worker.gpu || shard->data == worker.gpu->data);
    worker.set_values({0, shard->offset, shard->offset + shard->elements});
    shard->data = worker.gpu ? worker.gpu->data : worker.values.data();
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
    if (!gpu) return;
    gpu->data = gpu->device.memory.allocate(values.size() * sizeof(double) + 1);
    gpu->write(values);
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
    if (gpu) gpu->write(values);
    for (size_t i = 0; i < counts.size(); ++i)
      counts[i] = count_of(counts_range.begin + static_cast<int64_t>(i), step);
    for (float& w : weights) w = static_cast<float>(step);
  }
  /// Its memory becomes other memory with the same values, as in programs that make their tensors anew. What
  /// it had before is nobody's to write.
  void move() {
    if (gpu) {
      gpu->data = gpu->device.memory.allocate(values.size() * sizeof(double) + 1);
      gpu->write(values);
      state.set_data(key, gpu->data);
    } else {
      move(key, &values);
    }
    move("n", &counts);
    move("w", &weights);
  }
  template <class T>
  void move(const std::string& of, std::vector<T>* data) {
    auto old = std::make_shared<std::vector<T>>(*data);
    old->swap(*data);
    state.set_data(of, data->data());
    std::fill(old->begin(), old->end(), T(55));
    left.push_back([old] { EXPECT_EQ(*old, std::vector<T>(old->size(), T(55))); });
  }
  ~Worker() {
    for (const auto& is_untouched : left) is_untouched();
  }
  void spoil() {
    std::fill(values.begin(), values.end(), -1);
    if (gpu) gpu->write(values);
    std::fill(counts.begin(), counts.end(), 77);
    std::fill(weights.begin(), weights.end(), -1.F);
    step = 999;
  }
  void expect_step(uint64_t wanted) const {
    ASSERT_EQ(step, wanted);
    ASSERT_EQ(state.revision(), wanted);
    std::vector<double> now = values;
    if (gpu) {
      gpu->device.synchronize();
      now = gpu->device.memory.get<double>(gpu->data, values.size());
    }
    for (size_t i = 0; i < now.size(); ++i)
      ASSERT_EQ(now[i], value_of(values_range.begin + static_cast<int64_t>(i), wanted)) << i;
    for (size_t i = 0; i < counts.size(); ++i)
      ASSERT_EQ(counts[i], count_of(counts_range.begin + static_cast<int64_t>(i), wanted)) << i;
    for (const float w : weights) ASSERT_EQ(w, static_cast<float>(wanted));
  }

  std::string host, key;             // key: of the longer one
  std::unique_ptr<ShardDevice> gpu;  // if the longer key is on one: `values` are what was written there
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
  std::vector<std::function<void()>> left;  // look at memory that it had
  State state;
};

/// A job of such workers, generation by generation.
struct ShardJob : ::testing::Test {
  void start(int32_t size, int32_t copies) {
    copies_ = copies;
    workers.clear();
    while (std::ssize(workers) < size) add(size);
    form();
  }
  Worker& add(int32_t size, const std::string& name = "m") {
    const auto rank = static_cast<int32_t>(workers.size());
    return *workers.emplace_back(std::make_unique<Worker>(
        std::string(1, machines[static_cast<size_t>(rank) % machines.size()]), rank, size, copies_, name,
        settings, length, logged ? logger() : nullptr, on_devices));
  }
  /// Of all workers, into `lines`.
  LoggerPtr logger() {
    const auto write = [](void* self, hvd_log_level, const char* line) {
      auto& job = *static_cast<ShardJob*>(self);
      const std::lock_guard lock(job.mutex);
      job.lines.emplace_back(line);
    };
    return std::make_shared<Logger>(HVD_LOG_WARNING, Callback<hvd_log_fn>(write, this, nullptr));
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
  int64_t length = kLong;       // of the longer key
  std::string machines = "ab";  // a letter each: ranks are on them in turns
  Settings settings;
  bool logged = false;
  bool on_devices = false;         // the longer key
  std::vector<std::string> lines;  // guarded by mutex
  ~ShardJob() override { fabric.reset(); }
};

}  // namespace hvd::state
