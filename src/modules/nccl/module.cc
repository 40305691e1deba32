// The module: its description, its options and its instances.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "hvd/backend.hpp"
#include "modules/nccl/copies.h"
#include "modules/nccl/generation.h"
#include "numeric/generation_gate.h"

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

LibraryPaths paths_of(const hvdkit::Options& options) {
  LibraryPaths paths;
  paths.nccl = options.text("nccl_library");
  paths.cuda = options.text("cuda_library");
  return paths;
}

class Instance {
 public:
  static constexpr const char* kName = hvdnccl::kName;

  static hvd_backend_description describe() {
    // Version 2 is that of libnccl.so.2, whichever open finds: detail tells.
    hvd_backend_description description = hvdkit::description_of(kName, "2", HVD_MEMORY_CUDA);
    description.local = 1;
    return description;
  }

  Instance(const hvd_backend_host& host, const hvdkit::Options& options)
      : host_(std::make_shared<Host>(host)), libraries_(Libraries::load(paths_of(options))) {}

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

  std::vector<uint8_t> address() const {
    std::vector<uint8_t> blob(std::begin(Blob::kMagic), std::end(Blob::kMagic));
    const auto version = static_cast<uint32_t>(libraries_->nccl_version);
    for (size_t i = 0; i < 4; ++i) blob.push_back(static_cast<uint8_t>(version >> (8 * i)));
    return blob;
  }

  std::string detail() const {
    return fmt::format("NCCL {} of {}, CUDA driver {}", version_text(libraries_->nccl_version),
                       libraries_->nccl_path, libraries_->cuda_path);
  }

  void connect(const hvd_backend_group& group) {
    retire(take(), true);
    Place place;
    place.generation = group.generation;
    place.rank = group.rank;
    place.size = group.size;
    const int own = version_of(group.members[group.rank], group.rank);
    for (int rank = 0; rank < group.size; ++rank) {
      const int version = version_of(group.members[rank], rank);
      // NCCL refuses such a group. Operations on host memory have nothing to do with it, so that connect goes
      // on.
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
    if (!gate_.enter(group.generation)) {
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
      if (gate_.give_up(number)) retired_.push_back(std::exchange(current_, nullptr));
      // Also one that is leaving in peace: a peer may have been lost before the device was done.
      for (const GenerationPtr& generation : retired_) {
        if (generation->place().generation == number) lost.push_back(generation);
      }
    }
    for (const GenerationPtr& generation : lost) generation->abort();
  }

  void disconnect() { retire(take(), false); }

  void* host_alloc(size_t size) { return copies_.alloc(any_device(), size); }
  void host_free(void* memory) { copies_.free(memory); }
  void* copy(int32_t device, void* stream, bool to_device, const hvd_backend_copy* copies, size_t count) {
    return copies_.start(this->device(device), static_cast<CuStream>(stream), to_device, false, copies,
                         count);
  }
  void* copy_aside(int32_t device, void* stream, const hvd_backend_copy* copies, size_t count) {
    return copies_.start(this->device(device), static_cast<CuStream>(stream), false, true, copies, count);
  }
  bool copy_wait(void* ticket, int64_t timeout_ns) { return copies_.wait(ticket, timeout_ns); }

 private:
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
    gate_.leave();
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
  hvd::GenerationGate gate_;  // says whether there is a current_
  std::mutex devices_mutex_;
  std::map<int, std::shared_ptr<Device>> devices_;
  int last_device_ = -1;
  Copies copies_;
};

}  // namespace
}  // namespace hvdnccl

HVDKIT_EXPORT_MODULE(hvdnccl::Instance)
