// The work of libnccl_double.so: data are read when all ranks' streams have come to an operation, and written
// then, as on devices.
#include "modules/nccl/double/nccl_world.h"

#include <cstring>

#include "modules/nccl/double/double.h"
#include "numeric/dtype.h"
#include "numeric/reduce.h"

namespace hvddouble {

NcclWorld& nccl_world() {
  static auto* const instance = new NcclWorld;
  return *instance;
}

Group& group() {
  static thread_local Group said;
  return said;
}

CommPtr find(hvdnccl::NcclComm handle, const char* what) {
  const std::lock_guard lock(nccl_world().mutex);
  const auto found = nccl_world().communicators.find(handle);
  if (found != nccl_world().communicators.end()) return found->second;
  violation(std::string(what) + " of a communicator that is not there");
  return nullptr;
}

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
    if (group().depth > 0) group().error = injected;
    return injected;
  }
  const CommPtr comm = find(handle, name);
  if (comm == nullptr) return group().error = kInvalidArgument;
  const Inside inside(comm, name);
  if (comm->state == kInProgress) {
    violation(std::string(name) + " on a communicator that is in progress");
    return group().error = kInvalidArgument;
  }
  if (device_of(current_context()) != comm->device)
    violation(std::string(name) + " with another device current");
  if (!knows_stream(stream)) return group().error = kInvalidArgument;
  if (group().depth == 0) {
    violation(std::string(name) + " outside of a group");
    return kInvalidUsage;
  }
  group().calls.push_back({comm, stream, make(comm), std::strcmp(name, "ncclSend") == 0});
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

std::string sign(const char* name, size_t count, int type, int op, int root) {
  return std::string(name) + " of " + std::to_string(count) + " of type " + std::to_string(type) + " op " +
         std::to_string(op) + " root " + std::to_string(root);
}

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
  const std::lock_guard lock(nccl_world().mutex);
  if (nccl_world().communicators.erase(handle) > 0) count_communicators(-1);
}

void set_nccl_version(int version) { nccl_world().version = version; }
void set_async_error(int result) { nccl_world().async_error = result; }
void hang_aborts(bool hang) {
  const std::lock_guard lock(nccl_world().mutex);
  nccl_world().hang_aborts = hang;
  nccl_world().changed.notify_all();
}

}  // namespace hvddouble
