// The module's table and its instances.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "modules/nccl/copies.h"
#include "modules/nccl/generation.h"

namespace hvdnccl {

namespace {

using namespace std::chrono_literals;
using GenerationPtr = std::shared_ptr<Generation>;

// What a worker tells the others: that it has NCCL, and which.
struct Blob {
  static constexpr char kMagic[8] = {'h', 'v', 'd', 'n', 'c', 'c', 'l', '1'};
  static constexpr size_t kSize = sizeof(kMagic) + sizeof(uint32_t);
};

int version_of(const hvd_backend_member& member, int rank) {
  const auto* data = static_cast<const uint8_t*>(member.address);
  if (data == nullptr || member.address_size != Blob::kSize ||
      std::memcmp(data, Blob::kMagic, sizeof(Blob::kMagic)) != 0) {
    throw Failure(HVD_INVALID, fmt::format("the address of rank {} is not this module's", rank));
  }
  uint32_t version = 0;
  for (size_t i = 0; i < 4; ++i) version |= static_cast<uint32_t>(data[sizeof(Blob::kMagic) + i]) << (8 * i);
  return static_cast<int>(version);
}

class Instance {
 public:
  Instance(const hvd_backend_host& host, std::shared_ptr<Libraries> libraries)
      : host_(std::make_shared<Host>(host)), libraries_(std::move(libraries)) {}

  ~Instance() {
    if (GenerationPtr generation = take()) generation->abort();
    const auto deadline = Clock::now() + 500ms;
    for (const GenerationPtr& generation : retired_) {
      // One that left in peace is not waited for longer than one that was given up.
      if (!generation->wait_finished(deadline)) {
        generation->abort();
        generation->wait_finished(deadline + 200ms);
      }
    }
    if (!copies_.close()) host_->log(HVD_LOG_WARNING, "a copy does not end: its memory is left to it");
    host_->close();
    for (const GenerationPtr& generation : retired_) generation->release();
  }

  const Libraries& libraries() const { return *libraries_; }

  void connect(const hvd_backend_group& group) {
    retire(take(), true);
    Place place;
    place.generation = group.generation;
    place.rank = group.rank;
    place.size = group.size;
    const int own = version_of(group.members[group.rank], group.rank);
    for (int rank = 0; rank < group.size; ++rank) {
      const int version = version_of(group.members[rank], rank);
      // NCCL refuses such a group. Operations on host memory have nothing to do with it, so that connect goes on.
      if (version != own && place.refusal.empty()) {
        const int first = version_of(group.members[0], 0);
        int other = 0;
        while (version_of(group.members[other], other) == first) ++other;
        place.refusal =
            fmt::format("rank 0 has NCCL {} and rank {} has {}: expected the same everywhere",
                        version_text(first), other, version_text(version_of(group.members[other], other)));
      }
    }
    const std::lock_guard lock(mutex_);
    if (any_aborted_ && group.generation <= aborted_) {
      throw Failure(HVD_PEER_LOST, fmt::format("generation {} was given up", group.generation));
    }
    current_ = std::make_shared<Generation>(host_, std::move(place), retired_);
  }

  void submit(const hvd_backend_op& op) {
    GenerationPtr generation;
    {
      const std::lock_guard lock(mutex_);
      generation = current_;
    }
    if (generation == nullptr) throw Failure(HVD_PEER_LOST, "no generation is connected");
    const Place& place = generation->place();
    Task task = checked(op, place.rank, place.size);
    if (!place.refusal.empty()) throw Failure(HVD_UNSUPPORTED, place.refusal);
    const std::shared_ptr<Device> device = this->device(op.device);
    const Device::Current current(*device);
    const auto stream = static_cast<CuStream>(op.stream);
    device->check_stream(stream);
    check_memory(*device, task);
    task.before = device->record(stream);
    generation->submit(std::move(task), device);
  }

  void abort(uint64_t number) {
    std::vector<GenerationPtr> lost;
    {
      const std::lock_guard lock(mutex_);
      aborted_ = any_aborted_ ? std::max(aborted_, number) : number;
      any_aborted_ = true;
      if (current_ != nullptr && current_->place().generation == number) {
        retired_.push_back(std::exchange(current_, nullptr));
      }
      // Also one that is leaving in peace: a peer may have been lost before the device was done.
      for (const GenerationPtr& generation : retired_) {
        if (generation->place().generation == number) lost.push_back(generation);
      }
    }
    for (const GenerationPtr& generation : lost) generation->abort();
  }

  void disconnect() { retire(take(), false); }

  std::shared_ptr<Device> device(int ordinal) {
    libraries_->start();
    const std::lock_guard lock(devices_mutex_);  // not that of abort: a context may take its time to be made
    auto& device = devices_[ordinal];
    if (device == nullptr) device = std::make_shared<Device>(libraries_, ordinal);
    last_device_ = ordinal;
    return device;
  }

  /// For memory that belongs to no device: the one in use, so that no context is made on another for it.
  std::shared_ptr<Device> any_device() {
    libraries_->start();
    int ordinal = -1;
    {
      const std::lock_guard lock(devices_mutex_);
      ordinal = last_device_;
    }
    CuContext context = nullptr;
    if (ordinal < 0 && libraries_->cuda.cuCtxGetCurrent(&context) == kCuSuccess && context != nullptr) {
      libraries_->check(libraries_->cuda.cuCtxGetDevice(&ordinal), "cuCtxGetDevice");
    }
    return device(std::max(ordinal, 0));
  }

  Copies& copies() { return copies_; }

 private:
  static void check_memory(Device& device, const Task& task) {
    const hvd_backend_op& op = task.op;
    for (const hvd_backend_part& part : task.parts) {
      if (part.count == 0) continue;
      if (op.collective == HVD_COLLECTIVE_ALLREDUCE) device.check_memory(part.input, "the input");
      if (part.output != part.input) device.check_memory(part.output, "the output");
    }
    if (task.counts.empty()) return;
    if (op.count > 0) device.check_memory(op.input, "the input");
    if (op.output != nullptr) device.check_memory(op.output, "the output");
  }

  GenerationPtr take() {
    const std::lock_guard lock(mutex_);
    GenerationPtr generation = std::exchange(current_, nullptr);
    if (generation != nullptr) retired_.push_back(generation);
    return generation;
  }

  // Ends a generation that take gave, and joins those that have come to their end.
  void retire(const GenerationPtr& generation, bool lost) {
    if (generation != nullptr && lost) generation->abort();
    if (generation != nullptr && !lost) generation->leave();
    std::vector<GenerationPtr> ended;
    {
      const std::lock_guard lock(mutex_);
      const auto over = std::stable_partition(retired_.begin(), retired_.end(), [](const GenerationPtr& g) {
        return !g->wait_finished(Clock::now());
      });
      ended.assign(over, retired_.end());
      retired_.erase(over, retired_.end());
    }
    for (const GenerationPtr& g : ended) g->release();
  }

  const std::shared_ptr<Host> host_;
  const std::shared_ptr<Libraries> libraries_;
  std::mutex mutex_;
  GenerationPtr current_;
  std::vector<GenerationPtr> retired_;
  bool any_aborted_ = false;
  uint64_t aborted_ = 0;  // an abort may come before the connect that it is for
  std::mutex devices_mutex_;
  std::map<int, std::shared_ptr<Device>> devices_;
  int last_device_ = -1;
  Copies copies_;
};

Instance& of(void* instance) { return *static_cast<Instance*>(instance); }

hvd_status open(const hvd_backend_host* host, const hvd_backend_option* options, size_t option_count,
                void** ret_instance, hvd_error* error) {
  return guarded(error, 0, [&] {
    if (host == nullptr || host->struct_size < sizeof(hvd_backend_host)) {
      throw Failure(HVD_INVALID, "the host's table is missing or too small");
    }
    LibraryPaths paths;
    for (size_t i = 0; i < option_count; ++i) {
      if (std::strcmp(options[i].key, "nccl_library") == 0) paths.nccl = options[i].value;
      if (std::strcmp(options[i].key, "cuda_library") == 0) paths.cuda = options[i].value;
    }
    *ret_instance = new Instance(*host, Libraries::load(paths));
  });
}

hvd_status address(void* instance, void* data, size_t* size, hvd_error* error) {
  return guarded(error, 0, [&] {
    if (*size < Blob::kSize) {
      const size_t room = std::exchange(*size, Blob::kSize);
      throw Failure(HVD_INVALID, fmt::format("the address has {} bytes, the room {}", Blob::kSize, room));
    }
    auto* to = static_cast<uint8_t*>(data);
    std::memcpy(to, Blob::kMagic, sizeof(Blob::kMagic));
    const auto version = static_cast<uint32_t>(of(instance).libraries().nccl_version);
    for (size_t i = 0; i < 4; ++i) to[sizeof(Blob::kMagic) + i] = static_cast<uint8_t>(version >> (8 * i));
    *size = Blob::kSize;
  });
}

hvd_status connect(void* instance, const hvd_backend_group* group, hvd_error* error) {
  return guarded(error, group->generation, [&] {
    if (group->size < 1 || group->rank < 0 || group->rank >= group->size) {
      throw Failure(HVD_INVALID, fmt::format("rank {} of {}", group->rank, group->size));
    }
    of(instance).connect(*group);
  });
}

hvd_status submit(void* instance, const hvd_backend_op* op, hvd_error* error) {
  return guarded(error, 0, [&] { of(instance).submit(*op); });
}

void abort(void* instance, uint64_t generation) {
  guarded(nullptr, generation, [&] { of(instance).abort(generation); });
}

void disconnect(void* instance) {
  guarded(nullptr, 0, [&] { of(instance).disconnect(); });
}

void close(void* instance) {
  guarded(nullptr, 0, [&] { delete static_cast<Instance*>(instance); });
}

void detail(void* instance, char* text, size_t size) {
  guarded(nullptr, 0, [&] {
    if (size == 0) return;
    const Libraries& libraries = of(instance).libraries();
    const std::string line =
        fmt::format("NCCL {} of {}, CUDA driver {}", version_text(libraries.nccl_version),
                    libraries.nccl_path, libraries.cuda_path);
    const size_t length = std::min(size - 1, line.size());
    std::memcpy(text, line.data(), length);
    text[length] = 0;
  });
}

hvd_status host_alloc(void* instance, size_t size, void** ret_memory, hvd_error* error) {
  return guarded(error, 0,
                 [&] { *ret_memory = of(instance).copies().alloc(of(instance).any_device(), size); });
}

void host_free(void* instance, void* memory) {
  guarded(nullptr, 0, [&] { of(instance).copies().free(memory); });
}

hvd_status copy(void* instance, int32_t device, void* stream, int32_t to_device,
                const hvd_backend_copy* copies, size_t count, void** ret_ticket, hvd_error* error) {
  return guarded(error, 0, [&] {
    *ret_ticket = of(instance).copies().start(of(instance).device(device), static_cast<CuStream>(stream),
                                              to_device != 0, copies, count);
  });
}

hvd_status copy_wait(void* instance, void* ticket, int64_t timeout_ns, hvd_error* error) {
  return guarded(error, 0, [&] {
    if (!of(instance).copies().wait(ticket, timeout_ns)) {
      throw Failure(HVD_TIMEOUT, fmt::format("copies between host and device have not ended within {} ms",
                                             timeout_ns / HVD_MILLISECOND));
    }
  });
}

}  // namespace
}  // namespace hvdnccl

extern "C" __attribute__((visibility("default"))) hvd_status hvd_backend_init(uint32_t abi_version,
                                                                              hvd_backend_table* table,
                                                                              hvd_error* error) {
  using namespace hvdnccl;
  return guarded(error, 0, [&] {
    if (abi_version != HVD_BACKEND_ABI_VERSION) {
      throw Failure(HVD_UNSUPPORTED, fmt::format("this module speaks backend ABI version {}, the library {}",
                                                 HVD_BACKEND_ABI_VERSION, abi_version));
    }
    if (table == nullptr) throw Failure(HVD_INVALID, "the table is NULL");
    hvd_backend_table full{};
    full.struct_size = std::min(table->struct_size, sizeof(full));
    full.description.struct_size = sizeof(full.description);
    full.description.name = "nccl";
    full.description.version = "2";  // of libnccl.so.2, whichever open finds: detail tells
    full.description.memories = uint64_t{1} << HVD_MEMORY_CUDA;
    for (int dtype = HVD_DTYPE_UINT8; dtype <= HVD_DTYPE_BOOL; ++dtype)
      full.description.dtypes |= uint64_t{1} << dtype;
    for (int c = HVD_COLLECTIVE_BROADCAST; c <= HVD_COLLECTIVE_ALLTOALL; ++c) {
      full.description.collectives |= uint64_t{1} << c;
    }
    full.description.local = 1;
    full.open = open;
    full.address = address;
    full.connect = connect;
    full.submit = submit;
    full.abort = abort;
    full.disconnect = disconnect;
    full.close = close;
    full.detail = detail;
    full.host_alloc = host_alloc;
    full.host_free = host_free;
    full.copy = copy;
    full.copy_wait = copy_wait;
    std::memcpy(table, &full, full.struct_size);
  });
}
