// How each collective is said in NCCL's words.
#include <fmt/format.h>

#include <bit>

#include "modules/nccl/failure.h"
#include "modules/nccl/task.h"
#include "numeric/dtype.h"

namespace hvdnccl {
namespace {

const uint8_t* at(const void* data, size_t offset) { return static_cast<const uint8_t*>(data) + offset; }
uint8_t* at(void* data, size_t offset) { return static_cast<uint8_t*>(data) + offset; }

CuPointer pointer_of(const void* data) { return static_cast<CuPointer>(reinterpret_cast<uintptr_t>(data)); }

// Everything of one task in one group: NCCL launches it together, and a rank's sends and receives go on side
// by side. A group must be the same on every rank, so that tasks, which come at any time, are never put
// together here.
class Group {
 public:
  explicit Group(const Libraries& libraries) : libraries_(libraries) {
    const NcclResult result = nccl().ncclGroupStart();
    if (result != kNcclSuccess) throw_nccl(libraries_, result, "ncclGroupStart");
  }

  const NcclFunctions& nccl() const { return libraries_.nccl; }
  void note(const char* what, NcclResult result) {
    if (result == kNcclSuccess || result == kNcclInProgress || failed_ != nullptr) return;
    failed_ = what;
    result_ = result;
  }
  /// The group is always ended: NCCL counts them by thread.
  NcclResult end() {
    const NcclResult result = nccl().ncclGroupEnd();
    note("ncclGroupEnd", result);
    if (failed_ != nullptr) throw_nccl(libraries_, result_, failed_);
    return result;
  }

 private:
  const Libraries& libraries_;
  const char* failed_ = nullptr;
  NcclResult result_ = kNcclSuccess;
};

struct Call {
  Group& group;
  const Task& task;
  NcclComm communicator;
  CuStream stream;
  size_t element;

  void broadcast(const void* from, void* to, size_t bytes, int root) {
    if (bytes == 0) return;
    group.note("ncclBroadcast",
               group.nccl().ncclBroadcast(from, to, bytes, kNcclUint8, root, communicator, stream));
  }

  void allgather() {
    const auto& op = task.op;
    const size_t first = task.counts[0];
    bool even = true;
    for (const size_t count : task.counts) even = even && count == first;
    if (even) {
      group.note("ncclAllGather", group.nccl().ncclAllGather(op.input, op.output, first * element, kNcclUint8,
                                                             communicator, stream));
      return;
    }
    size_t offset = 0;
    for (size_t i = 0; i < task.counts.size(); ++i) {
      const size_t bytes = task.counts[i] * element;
      void* const to = at(op.output, offset);
      broadcast(static_cast<int>(i) == task.me ? op.input : to, to, bytes, static_cast<int>(i));
      offset += bytes;
    }
  }

  void reducescatter() {
    const auto& op = task.op;
    const NcclType type = *type_of(op.dtype);
    const NcclReduction reduction = reduction_of(op.dtype, op.reduction);
    bool even = true;
    for (const size_t count : task.counts) even = even && count == task.counts[0];
    if (even) {
      group.note("ncclReduceScatter", group.nccl().ncclReduceScatter(op.input, op.output, task.counts[0],
                                                                     type, reduction, communicator, stream));
      return;
    }
    size_t offset = 0;
    for (size_t i = 0; i < task.counts.size(); ++i) {
      if (task.counts[i] > 0) {
        void* const to = static_cast<int>(i) == task.me ? op.output : nullptr;
        group.note("ncclReduce",
                   group.nccl().ncclReduce(at(op.input, offset), to, task.counts[i], type, reduction,
                                           static_cast<int>(i), communicator, stream));
      }
      offset += task.counts[i] * element;
    }
  }

  void alltoall() {
    const auto& op = task.op;
    const size_t n = task.ranks.size();
    size_t sent = 0, received = 0;
    for (size_t i = 0; i < n; ++i) {
      const size_t out = task.counts[i] * element, in = task.counts[n + i] * element;
      const auto peer = static_cast<int>(i);
      if (out > 0) {
        group.note("ncclSend",
                   group.nccl().ncclSend(at(op.input, sent), out, kNcclUint8, peer, communicator, stream));
      }
      if (in > 0) {
        group.note("ncclRecv", group.nccl().ncclRecv(at(op.output, received), in, kNcclUint8, peer,
                                                     communicator, stream));
      }
      sent += out;
      received += in;
    }
  }
};

// A rank that is alone has its result already.
void copy_own(Device& device, const Task& task, CuStream stream, size_t element) {
  const auto copy = [&](const void* from, void* to, size_t count) {
    if (from == to || count == 0) return;
    Libraries& libraries = device.libraries();
    libraries.check(
        libraries.cuda.cuMemcpyDtoDAsync_v2(pointer_of(to), pointer_of(from), count * element, stream),
        "cuMemcpyDtoDAsync");
  };
  switch (task.op.collective) {
    case HVD_COLLECTIVE_ALLREDUCE:
      for (const hvd_backend_part& part : task.parts) copy(part.input, part.output, part.count);
      return;
    case HVD_COLLECTIVE_ALLGATHER:
    case HVD_COLLECTIVE_REDUCESCATTER:
    case HVD_COLLECTIVE_ALLTOALL: copy(task.op.input, task.op.output, task.op.count); return;
    default: return;
  }
}

}  // namespace

NcclResult launch(Device& device, const Task& task, NcclComm communicator, CuPointer scratch,
                  CuStream stream) {
  const size_t element = hvd::dtype_size(task.op.dtype);
  if (task.ranks.size() < 2) {
    copy_own(device, task, stream, element);
    return kNcclSuccess;
  }
  Group group(device.libraries());
  Call call{group, task, communicator, stream, element};
  switch (task.op.collective) {
    case HVD_COLLECTIVE_BROADCAST:
      for (const hvd_backend_part& part : task.parts) {
        call.broadcast(part.output, part.output, part.count * element, task.root);
      }
      break;
    case HVD_COLLECTIVE_ALLREDUCE:
      for (const hvd_backend_part& part : task.parts) {
        if (part.count == 0) continue;
        group.note(
            "ncclAllReduce",
            group.nccl().ncclAllReduce(part.input, part.output, part.count, *type_of(task.op.dtype),
                                       reduction_of(task.op.dtype, task.op.reduction), communicator, stream));
      }
      break;
    case HVD_COLLECTIVE_ALLGATHER: call.allgather(); break;
    case HVD_COLLECTIVE_REDUCESCATTER: call.reducescatter(); break;
    case HVD_COLLECTIVE_ALLTOALL: call.alltoall(); break;
    default: {  // a barrier: an int of everybody
      void* const one = std::bit_cast<void*>(scratch);
      group.note("ncclAllReduce",
                 group.nccl().ncclAllReduce(one, one, 1, kNcclInt32, kNcclMax, communicator, stream));
    }
  }
  return group.end();
}

}  // namespace hvdnccl
