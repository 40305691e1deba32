// Ranks of module nccl as threads of this process, over the doubles of its two libraries.
#pragma once

#include "backend/module.h"
#include "modules/cluster.h"
#include "modules/nccl/double/nccl_double.h"

namespace hvd::backend::test {

/// The generation's store, as the driver has it.
class Store {
 public:
  Status set(uint64_t generation, const std::string& key, std::span<const uint8_t> value) {
    std::lock_guard lock(mutex_);
    const auto [at, fresh] = values_.try_emplace({generation, key}, value.begin(), value.end());
    if (!fresh && !std::equal(value.begin(), value.end(), at->second.begin(), at->second.end())) {
      return {HVD_INVALID, "the key has another value"};
    }
    changed_.notify_all();
    return {};
  }
  Status get(uint64_t generation, const std::string& key, Duration timeout, std::vector<uint8_t>* value) {
    std::unique_lock lock(mutex_);
    const bool came = changed_.wait_for(lock, timeout, [&] {
      return values_.contains({generation, key}) || lost_ >= generation;
    });
    if (lost_ >= generation) return {HVD_PEER_LOST, "the generation is lost"};
    if (!came) return {HVD_TIMEOUT, "the key did not come"};
    *value = values_[{generation, key}];
    return {};
  }
  void lose(uint64_t generation) {
    std::lock_guard lock(mutex_);
    lost_ = generation;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<uint64_t, std::string>, std::vector<uint8_t>> values_;
  uint64_t lost_ = 0;
};

using ModuleOptions = std::vector<std::pair<std::string, std::string>>;

inline ModuleOptions doubles() {
  return {{"nccl_library", HVD_NCCL_DOUBLE}, {"cuda_library", HVD_CUDA_DOUBLE}};
}

inline Status open_nccl(Inbox& inbox, Store& store, const ModuleOptions& options,
                        std::unique_ptr<Instance>* instance) {
  std::shared_ptr<Module> module;
  if (Status status = load_module(HVD_NCCL_MODULE, &module); !status.ok()) return status;
  HostHandlers handlers = inbox.handlers();
  handlers.kv_set = [&store](uint64_t g, const std::string& key, std::span<const uint8_t> value) {
    return store.set(g, key, value);
  };
  handlers.kv_get = [&store](uint64_t g, const std::string& key, Duration timeout,
                             std::vector<uint8_t>* value) { return store.get(g, key, timeout, value); };
  return open_instance(module, options, std::move(handlers), std::make_shared<Logger>(), instance);
}

/// Memory of a device of the double, filled with a byte that no test expects.
struct DeviceMemory {
  DeviceMemory(size_t size, int device)
      : data(static_cast<uint8_t*>(hvddouble::device_memory(size, device))), size(size) {
    std::memset(data, 0xee, size);
  }
  ~DeviceMemory() { hvddouble::free_device_memory(data); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  uint8_t* data;
  size_t size;
};

struct NcclWorker {
  NcclWorker(Store& store, int device) : device(device), stream(hvddouble::make_stream(device)) {
    const Status status = open_nccl(inbox, store, doubles(), &instance);
    EXPECT_TRUE(status.ok()) << status.message;
  }
  ~NcclWorker() {
    instance.reset();
    hvddouble::drop_stream(stream);
  }
  hvd_backend_op op(Pending& pending, hvd_collective collective, uint64_t sequence) const {
    hvd_backend_op op = pending.op(collective, sequence);
    op.memory = HVD_MEMORY_CUDA;
    op.device = device;
    op.stream = stream;
    return op;
  }
  void synchronize() const { hvddouble::synchronize(stream); }

  Inbox inbox;
  std::unique_ptr<Instance> instance;
  const int device;
  const hvddouble::CuStream stream;
};

/// `size` workers, each on a device of its own, in generation 1.
class NcclCluster {
 public:
  explicit NcclCluster(int size, bool connected = true) {
    hvddouble::set_device_count(size);
    hvddouble::reset();
    for (int rank = 0; rank < size; ++rank) workers_.push_back(std::make_unique<NcclWorker>(store, rank));
    if (connected) connect(1);
  }
  ~NcclCluster() {
    workers_.clear();
    EXPECT_EQ(hvddouble::alive(), "");
    for (const std::string& violation : hvddouble::violations()) ADD_FAILURE() << violation;
    hvddouble::reset();
  }
  int size() const { return static_cast<int>(workers_.size()); }
  NcclWorker& operator[](int rank) { return *workers_[static_cast<size_t>(rank)]; }
  void connect(uint64_t generation) {
    std::vector<Member> members;
    for (size_t i = 0; i < workers_.size(); ++i) {
      Member member{i + 1, "localhost", {}};
      const Status status = workers_[i]->instance->offers(&member.offers);
      EXPECT_TRUE(status.ok()) << status.message;
      members.push_back(std::move(member));
    }
    for (int rank = 0; rank < size(); ++rank) {
      const Status status = (*this)[rank].instance->connect(generation, rank, members, kSoon);
      EXPECT_TRUE(status.ok()) << status.message;
    }
  }
  void each(const std::function<void(int, NcclWorker&)>& function) {
    on_all(size(), [&](int rank) { function(rank, (*this)[rank]); });
  }
  void drop(int rank) { workers_[static_cast<size_t>(rank)].reset(); }

  Store store;

 private:
  std::vector<std::unique_ptr<NcclWorker>> workers_;
};

}  // namespace hvd::backend::test
