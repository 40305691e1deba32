// libnccl_double.so: communicators among the ranks of this process. The data are read when all ranks' streams
// have come to an operation, and written then, as on devices.
#include "modules/nccl/double/nccl_double.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "modules/nccl/double/double.h"
#include "numeric/dtype.h"
#include "numeric/reduce.h"

namespace hvddouble {
namespace {

using hvdnccl::NcclConfig;
using hvdnccl::NcclResult;
using hvdnccl::NcclUniqueId;
constexpr NcclResult kSuccess = 0, kUnhandledCuda = 1, kInternal = 3, kInvalidArgument = 4, kInvalidUsage = 5,
                     kInProgress = 7;

struct Comm;

/// What one rank brings to an operation.
struct Entry {
  std::string signature;
  const void* input = nullptr;
  void* output = nullptr;
};

struct Slot {
  std::map<int, Entry> entries;
  std::map<int, std::vector<uint8_t>> results;
  bool computed = false;
};

struct Clique {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0;
  std::set<int> joined, dead, finalized;
  std::map<uint64_t, Slot> slots;
  std::map<std::pair<int, int>, std::deque<std::vector<uint8_t>>> mail;
};

struct Comm {
  std::shared_ptr<Clique> clique;
  int rank = 0, device = 0;
  std::atomic<NcclResult> state{kInProgress};
  std::atomic<bool> aborted{false}, inside{false};
  std::atomic<int> running{0};
  bool finalized = false;
  uint64_t next = 0;
  std::thread background;  // of init, of a launch, or of finalize
  void join() {
    if (background.joinable()) background.join();
  }
};
using CommPtr = std::shared_ptr<Comm>;

struct World {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<hvdnccl::NcclComm, CommPtr> communicators;
  std::map<std::string, std::shared_ptr<Clique>> cliques;
  uint64_t ids = 0;
  int version = 22809;
  bool hang_aborts = false;
  std::atomic<NcclResult> async_error{kSuccess};
};
World& world() {
  static World* const instance = new World;
  return *instance;
}

struct Call {
  CommPtr comm;
  CuStream stream;
  std::function<void()> work;
  bool sends = false;
};
thread_local int depth = 0;
thread_local NcclResult group_error = kSuccess;
thread_local std::vector<Call> group;
thread_local std::vector<hvdnccl::NcclComm> group_aborts;

CommPtr find(hvdnccl::NcclComm handle, const char* what) {
  const std::lock_guard lock(world().mutex);
  const auto found = world().communicators.find(handle);
  if (found != world().communicators.end()) return found->second;
  violation(std::string(what) + " of a communicator that is not there");
  return nullptr;
}

/// Only one thread at a time may be in a call on a communicator.
class Inside {
 public:
  Inside(CommPtr comm, const char* what) : comm_(std::move(comm)) {
    if (comm_->inside.exchange(true))
      violation(std::string(what) + " while another thread is in a call on the communicator");
  }
  ~Inside() { comm_->inside = false; }

 private:
  const CommPtr comm_;
};

hvd_dtype dtype_of(int type) {
  constexpr hvd_dtype kTypes[] = {HVD_DTYPE_INT8,    HVD_DTYPE_UINT8,   HVD_DTYPE_INT32,   HVD_DTYPE_UINT32,
                                  HVD_DTYPE_INT64,   HVD_DTYPE_UINT64,  HVD_DTYPE_FLOAT16, HVD_DTYPE_FLOAT32,
                                  HVD_DTYPE_FLOAT64, HVD_DTYPE_BFLOAT16};
  return type >= 0 && type < 10 ? kTypes[type] : 0;
}
hvd_reduction reduction_of(int op) {
  constexpr hvd_reduction kReductions[] = {HVD_REDUCTION_SUM, HVD_REDUCTION_PRODUCT, HVD_REDUCTION_MAX,
                                           HVD_REDUCTION_MIN, HVD_REDUCTION_AVERAGE};
  return kReductions[op];
}

using Compute = std::function<void(Clique&, Slot&)>;

// On the stream's thread: meets the other ranks, and takes this rank's result. Leaves when this rank aborts.
void meet(const CommPtr& comm, uint64_t number, const Entry& entry, const Compute& compute) {
  if (comm->aborted) return;
  ++comm->running;
  Clique& clique = *comm->clique;
  {
    std::unique_lock lock(clique.mutex);
    Slot& slot = clique.slots[number];
    for (const auto& [rank, other] : slot.entries) {
      if (other.signature != entry.signature) {
        violation("call " + std::to_string(number) + ": rank " + std::to_string(comm->rank) + " does " +
                  entry.signature + ", rank " + std::to_string(rank) + " " + other.signature);
      }
    }
    slot.entries[comm->rank] = entry;
    if (static_cast<int>(slot.entries.size()) == clique.size && clique.dead.empty()) {
      compute(clique, slot);
      slot.computed = true;
    }
    clique.changed.notify_all();
    clique.changed.wait(lock, [&] { return slot.computed || comm->aborted; });
    if (slot.computed) {
      const auto& result = slot.results[comm->rank];
      if (!result.empty() && !comm->aborted) std::memcpy(entry.output, result.data(), result.size());
      slot.entries.erase(comm->rank);
      if (slot.entries.empty()) clique.slots.erase(number);
    }
  }
  --comm->running;
  const std::lock_guard lock(clique.mutex);
  clique.changed.notify_all();
}

NcclResult submit(const char* name, hvdnccl::NcclComm handle, CuStream stream,
                  const std::function<std::function<void()>(const CommPtr&)>& make) {
  if (const int injected = enter(name, kInternal); injected != 0) {
    if (depth > 0) group_error = injected;
    return injected;
  }
  const CommPtr comm = find(handle, name);
  if (comm == nullptr) return group_error = kInvalidArgument;
  const Inside inside(comm, name);
  if (comm->state == kInProgress) {
    violation(std::string(name) + " on a communicator that is in progress");
    return group_error = kInvalidArgument;
  }
  if (device_of(current_context()) != comm->device)
    violation(std::string(name) + " with another device current");
  if (!knows_stream(stream)) return group_error = kInvalidArgument;
  if (depth == 0) {
    violation(std::string(name) + " outside of a group");
    return kInvalidUsage;
  }
  group.push_back({comm, stream, make(comm), std::strcmp(name, "ncclSend") == 0});
  return kSuccess;
}

void on_device(const CommPtr& comm, const char* name, const void* memory) {
  if (memory != nullptr && device_of_memory(memory) != comm->device) {
    violation(std::string(name) + " with memory that is not the communicator's device's");
  }
}

NcclResult collective(const char* name, hvdnccl::NcclComm handle, CuStream stream,
                      const std::string& signature, const void* input, void* output, const Compute& compute) {
  return submit(name, handle, stream, [&](const CommPtr& comm) {
    on_device(comm, name, input);
    on_device(comm, name, output);
    const uint64_t number = comm->next++;
    const Entry entry{signature, input, output};
    return [comm, number, entry, compute] { meet(comm, number, entry, compute); };
  });
}

std::string sign(const char* name, size_t count, int type, int op = 0, int root = 0) {
  return std::string(name) + " of " + std::to_string(count) + " of type " + std::to_string(type) + " op " +
         std::to_string(op) + " root " + std::to_string(root);
}

/// The reduction of `count` elements from `offset` (in elements) of every rank's input.
std::vector<uint8_t> reduced(const Clique& clique, const Slot& slot, size_t offset, size_t count, int type,
                             int op) {
  const hvd_dtype dtype = dtype_of(type);
  const size_t element = hvd::dtype_size(dtype);
  std::vector<const void*> inputs;
  for (int rank = 0; rank < clique.size; ++rank) {
    inputs.push_back(static_cast<const uint8_t*>(slot.entries.at(rank).input) + offset * element);
  }
  std::vector<uint8_t> result(count * element);
  hvd::reduce_many(dtype, reduction_of(op), result.data(), inputs.data(), inputs.size(), count, clique.size);
  return result;
}

void abort_one(const CommPtr& comm) {
  comm->aborted = true;
  Clique& clique = *comm->clique;
  {
    const std::lock_guard lock(clique.mutex);
    clique.dead.insert(comm->rank);
    clique.changed.notify_all();
  }
  comm->join();
  std::unique_lock lock(clique.mutex);
  clique.changed.wait(lock, [&] { return comm->running == 0; });
}

void forget(hvdnccl::NcclComm handle) {
  const std::lock_guard lock(world().mutex);
  if (world().communicators.erase(handle) > 0) count_communicators(-1);
}

}  // namespace

void set_nccl_version(int version) { world().version = version; }
void set_async_error(int result) { world().async_error = result; }
void hang_aborts(bool hang) {
  const std::lock_guard lock(world().mutex);
  world().hang_aborts = hang;
  world().changed.notify_all();
}

}  // namespace hvddouble

using namespace hvddouble;

extern "C" {
#pragma GCC visibility push(default)

NcclResult ncclGetVersion(int* version) {
  *version = world().version;
  return kSuccess;
}

NcclResult ncclGetUniqueId(NcclUniqueId* id) {
  if (const int injected = enter(__func__, kInternal); injected != 0) return injected;
  const std::lock_guard lock(world().mutex);
  std::memset(id, 0, sizeof(*id));
  const std::string text = "double-" + std::to_string(++world().ids);
  std::memcpy(id->internal, text.data(), text.size());
  return kSuccess;
}

NcclResult ncclCommInitRankConfig(hvdnccl::NcclComm* communicator, int size, NcclUniqueId id, int rank,
                                  NcclConfig* config) {
  if (const int injected = enter(__func__, kInternal); injected != 0) return injected;
  if (config->size != sizeof(NcclConfig) || config->magic != 0xcafebeef || config->blocking != 0) {
    violation("a configuration that is none, or of a communicator that blocks");
    return kInvalidArgument;
  }
  if (current_context() == nullptr) return kUnhandledCuda;
  auto comm = std::make_shared<Comm>();
  comm->rank = rank;
  comm->device = device_of(current_context());
  const auto handle = reinterpret_cast<hvdnccl::NcclComm>(comm.get());
  {
    const std::lock_guard lock(world().mutex);
    auto& clique = world().cliques[std::string(id.internal, sizeof(id.internal))];
    if (clique == nullptr) clique = std::make_shared<Clique>();
    comm->clique = clique;
    world().communicators[handle] = comm;
  }
  count_communicators(1);
  *communicator = handle;
  comm->background = std::thread([comm = comm.get(), size] {
    Clique& clique = *comm->clique;
    std::unique_lock lock(clique.mutex);
    clique.size = size;
    if (!clique.joined.insert(comm->rank).second) violation("a rank joins a communicator twice");
    clique.changed.notify_all();
    clique.changed.wait(
        lock, [&] { return static_cast<int>(clique.joined.size()) == clique.size || comm->aborted; });
    if (!comm->aborted) comm->state = kSuccess;
  });
  return kInProgress;
}

NcclResult ncclCommGetAsyncError(hvdnccl::NcclComm handle, NcclResult* state) {
  if (const int injected = enter(__func__, kInternal); injected != 0) return injected;
  const CommPtr comm = find(handle, __func__);
  if (comm == nullptr) return kInvalidArgument;
  const Inside inside(comm, __func__);
  *state = comm->state;
  if (*state == kSuccess) *state = world().async_error;
  return kSuccess;
}

NcclResult ncclCommFinalize(hvdnccl::NcclComm handle) {
  if (const int injected = enter(__func__, kInternal); injected != 0) return injected;
  const CommPtr comm = find(handle, __func__);
  if (comm == nullptr) return kInvalidArgument;
  const Inside inside(comm, __func__);
  if (comm->state != kSuccess) violation("ncclCommFinalize on a communicator that is in progress");
  if (std::exchange(comm->finalized, true)) violation("ncclCommFinalize twice");
  comm->join();
  comm->state = kInProgress;
  comm->background = std::thread([comm = comm.get()] {
    Clique& clique = *comm->clique;
    std::unique_lock lock(clique.mutex);
    clique.finalized.insert(comm->rank);
    clique.changed.notify_all();
    clique.changed.wait(lock, [&] {
      return (static_cast<int>(clique.finalized.size()) == clique.size && comm->running == 0) ||
             comm->aborted;
    });
    if (!comm->aborted) comm->state = kSuccess;
  });
  return kInProgress;
}

NcclResult ncclCommDestroy(hvdnccl::NcclComm handle) {
  const int injected = enter(__func__, kInternal);
  const CommPtr comm = find(handle, __func__);
  if (comm == nullptr) return kInvalidArgument;
  {
    const Inside inside(comm, __func__);
    if (!comm->finalized || comm->state == kInProgress) violation("ncclCommDestroy of what is not finalized");
    comm->join();
  }
  forget(handle);
  return injected;
}

NcclResult ncclCommAbort(hvdnccl::NcclComm handle) {
  const int injected = enter(__func__, kInternal);
  const CommPtr comm = find(handle, __func__);
  if (comm == nullptr) return kInvalidArgument;
  {
    std::unique_lock lock(world().mutex);
    world().changed.wait(lock, [] { return !world().hang_aborts; });
  }
  {
    const Inside inside(comm, __func__);
    abort_one(comm);
  }
  if (depth > 0) group_aborts.push_back(handle);
  forget(handle);
  return injected;
}

NcclResult ncclGroupStart() {
  if (const int injected = enter(__func__, kInternal); injected != 0) return injected;
  ++depth;
  return kSuccess;
}

NcclResult ncclGroupEnd() {
  const int injected = enter(__func__, kInternal);
  if (depth == 0) {
    violation("ncclGroupEnd without ncclGroupStart");
    return kInvalidUsage;
  }
  if (--depth > 0) return kSuccess;
  std::vector<Call> calls;
  calls.swap(group);
  group_aborts.clear();
  const NcclResult error = std::exchange(group_error, kSuccess);
  if (error != kSuccess) return error;
  if (injected != 0) return injected;
  // Those of a group go on side by side, so that no receive keeps a send from its start.
  std::stable_partition(calls.begin(), calls.end(), [](const Call& call) { return call.sends; });
  std::set<CommPtr> comms;
  for (const Call& call : calls) comms.insert(call.comm);
  if (comms.empty()) return kSuccess;
  if (comms.size() > 1) violation("one group for several communicators");
  const CommPtr comm = *comms.begin();
  const Inside inside(comm, "ncclGroupEnd");
  comm->join();
  comm->state = kInProgress;
  // In the background: nothing is on the stream when this returns.
  comm->background = std::thread([comm = comm.get(), calls = std::move(calls)] {
    for (int i = 0; i < 20; ++i) std::this_thread::yield();
    for (const Call& call : calls) {
      if (comm->aborted) return;
      enqueue(call.stream, call.work);
    }
    comm->state = kSuccess;
  });
  return kInProgress;
}

NcclResult ncclAllReduce(const void* input, void* output, size_t count, int type, int op,
                         hvdnccl::NcclComm comm, CuStream stream) {
  return collective(__func__, comm, stream, sign(__func__, count, type, op), input, output,
                    [=](Clique& clique, Slot& slot) {
                      const auto result = reduced(clique, slot, 0, count, type, op);
                      for (int rank = 0; rank < clique.size; ++rank) slot.results[rank] = result;
                    });
}

NcclResult ncclReduce(const void* input, void* output, size_t count, int type, int op, int root,
                      hvdnccl::NcclComm comm, CuStream stream) {
  return collective(
      __func__, comm, stream, sign(__func__, count, type, op, root), input, output,
      [=](Clique& clique, Slot& slot) { slot.results[root] = reduced(clique, slot, 0, count, type, op); });
}

NcclResult ncclReduceScatter(const void* input, void* output, size_t count, int type, int op,
                             hvdnccl::NcclComm comm, CuStream stream) {
  return collective(__func__, comm, stream, sign(__func__, count, type, op), input, output,
                    [=](Clique& clique, Slot& slot) {
                      for (int rank = 0; rank < clique.size; ++rank) {
                        slot.results[rank] =
                            reduced(clique, slot, static_cast<size_t>(rank) * count, count, type, op);
                      }
                    });
}

NcclResult ncclBroadcast(const void* input, void* output, size_t count, int type, int root,
                         hvdnccl::NcclComm comm, CuStream stream) {
  return collective(__func__, comm, stream, sign(__func__, count, type, 0, root), input, output,
                    [=](Clique& clique, Slot& slot) {
                      const auto* data = static_cast<const uint8_t*>(slot.entries.at(root).input);
                      const size_t bytes = count * hvd::dtype_size(dtype_of(type));
                      for (int rank = 0; rank < clique.size; ++rank)
                        slot.results[rank].assign(data, data + bytes);
                    });
}

NcclResult ncclAllGather(const void* input, void* output, size_t count, int type, hvdnccl::NcclComm comm,
                         CuStream stream) {
  return collective(__func__, comm, stream, sign(__func__, count, type), input, output,
                    [=](Clique& clique, Slot& slot) {
                      const size_t bytes = count * hvd::dtype_size(dtype_of(type));
                      std::vector<uint8_t> all;
                      for (int rank = 0; rank < clique.size; ++rank) {
                        const auto* data = static_cast<const uint8_t*>(slot.entries.at(rank).input);
                        all.insert(all.end(), data, data + bytes);
                      }
                      for (int rank = 0; rank < clique.size; ++rank) slot.results[rank] = all;
                    });
}

NcclResult ncclSend(const void* data, size_t count, int, int peer, hvdnccl::NcclComm handle,
                    CuStream stream) {
  return submit(__func__, handle, stream, [&](const CommPtr& comm) {
    on_device(comm, "ncclSend", data);
    return [=] {
      if (comm->aborted) return;
      Clique& clique = *comm->clique;
      const std::lock_guard lock(clique.mutex);
      const auto* bytes = static_cast<const uint8_t*>(data);
      clique.mail[{comm->rank, peer}].emplace_back(bytes, bytes + count);
      clique.changed.notify_all();
    };
  });
}

NcclResult ncclRecv(void* data, size_t count, int, int peer, hvdnccl::NcclComm handle, CuStream stream) {
  return submit(__func__, handle, stream, [&](const CommPtr& comm) {
    on_device(comm, "ncclRecv", data);
    return [=] {
      if (comm->aborted) return;
      ++comm->running;
      Clique& clique = *comm->clique;
      std::unique_lock lock(clique.mutex);
      auto& mail = clique.mail[{peer, comm->rank}];
      clique.changed.wait(lock, [&] { return !mail.empty() || comm->aborted; });
      if (!comm->aborted) {
        if (mail.front().size() != count) violation("ncclRecv of another size than was sent");
        std::memcpy(data, mail.front().data(), std::min(count, mail.front().size()));
        mail.pop_front();
      }
      --comm->running;
      clique.changed.notify_all();
    };
  });
}

const char* ncclGetErrorString(NcclResult result) {
  switch (result) {
    case 0: return "no error";
    case 1: return "unhandled cuda error";
    case 3: return "internal error";
    case 4: return "invalid argument";
    case 6: return "remote process exited or there was a network error";
    default: return "another error";
  }
}
const char* ncclGetLastError(hvdnccl::NcclComm) { return "said by the double"; }

#pragma GCC visibility pop
}
