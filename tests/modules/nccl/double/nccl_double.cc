// libnccl_double.so: NCCL's functions that module nccl calls, for the ranks of this process.
#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "modules/nccl/double/nccl_world.h"
#include "numeric/dtype.h"

using namespace hvddouble;

extern "C" {
#pragma GCC visibility push(default)

NcclResult ncclGetVersion(int* version) {
  *version = nccl_world().version;
  return kSuccess;
}

NcclResult ncclGetUniqueId(NcclUniqueId* id) {
  if (const int injected = enter(__func__, kInternal); injected != 0) return injected;
  const std::lock_guard lock(nccl_world().mutex);
  std::memset(id, 0, sizeof(*id));
  const std::string text = "double-" + std::to_string(++nccl_world().ids);
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
    const std::lock_guard lock(nccl_world().mutex);
    auto& clique = nccl_world().cliques[std::string(id.internal, sizeof(id.internal))];
    if (clique == nullptr) clique = std::make_shared<Clique>();
    comm->clique = clique;
    nccl_world().communicators[handle] = comm;
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
  if (*state == kSuccess) *state = nccl_world().async_error;
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
    std::unique_lock lock(nccl_world().mutex);
    nccl_world().changed.wait(lock, [] { return !nccl_world().hang_aborts; });
  }
  {
    const Inside inside(comm, __func__);
    abort_one(comm);
  }
  if (group().depth > 0) group().aborts.push_back(handle);
  forget(handle);
  return injected;
}

NcclResult ncclGroupStart() {
  if (const int injected = enter(__func__, kInternal); injected != 0) return injected;
  ++group().depth;
  return kSuccess;
}

NcclResult ncclGroupEnd() {
  const int injected = enter(__func__, kInternal);
  if (group().depth == 0) {
    violation("ncclGroupEnd without ncclGroupStart");
    return kInvalidUsage;
  }
  if (--group().depth > 0) return kSuccess;
  std::vector<Call> calls;
  calls.swap(group().calls);
  group().aborts.clear();
  const NcclResult error = std::exchange(group().error, kSuccess);
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
