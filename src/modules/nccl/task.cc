// Calls of NCCL for one operation.
#include "modules/nccl/task.h"

#include <fmt/format.h>

#include <algorithm>

#include "modules/nccl/failure.h"
#include "numeric/dtype.h"

namespace hvdnccl {
namespace {

bool reduces(hvd_collective c) { return c == HVD_COLLECTIVE_ALLREDUCE || c == HVD_COLLECTIVE_REDUCESCATTER; }
bool has_parts(hvd_collective c) { return c == HVD_COLLECTIVE_ALLREDUCE || c == HVD_COLLECTIVE_BROADCAST; }

}  // namespace

Task checked(const hvd_backend_op& given, int rank, int size) {
  Task task{hvdkit::checked(given, HVD_MEMORY_CUDA, rank, size), {}};
  if (reduces(task.op.collective) && !type_of(task.op.dtype)) {
    throw Failure(HVD_UNSUPPORTED,
                  fmt::format("NCCL does no arithmetic on {}", hvd::dtype_name(task.op.dtype)));
  }
  return task;
}

std::optional<NcclType> type_of(hvd_dtype dtype) {
  switch (dtype) {
    case HVD_DTYPE_UINT8: return kNcclUint8;
    case HVD_DTYPE_INT8: return kNcclInt8;
    case HVD_DTYPE_UINT32: return kNcclUint32;
    case HVD_DTYPE_INT32: return kNcclInt32;
    case HVD_DTYPE_UINT64: return kNcclUint64;
    case HVD_DTYPE_INT64: return kNcclInt64;
    case HVD_DTYPE_FLOAT16: return kNcclFloat16;
    case HVD_DTYPE_BFLOAT16: return kNcclBfloat16;
    case HVD_DTYPE_FLOAT32: return kNcclFloat32;
    case HVD_DTYPE_FLOAT64: return kNcclFloat64;
    case HVD_DTYPE_BOOL: return kNcclUint8;
    default: return std::nullopt;
  }
}

NcclReduction reduction_of(hvd_dtype dtype, hvd_reduction reduction) {
  if (dtype == HVD_DTYPE_BOOL) {  // "or" and "and" of bytes 0 and 1
    return reduction == HVD_REDUCTION_SUM || reduction == HVD_REDUCTION_MAX ? kNcclMax : kNcclMin;
  }
  switch (reduction) {
    case HVD_REDUCTION_AVERAGE:
      return kNcclAvg;  // of integers the sum, wrapped, divided and cut towards zero, as on the host
    case HVD_REDUCTION_MIN: return kNcclMin;
    case HVD_REDUCTION_MAX: return kNcclMax;
    case HVD_REDUCTION_PRODUCT: return kNcclProd;
    default: return kNcclSum;
  }
}

bool needs_communicator(const Task& task) {
  if (task.ranks.size() < 2) return false;
  if (task.op.collective == HVD_COLLECTIVE_BARRIER) return true;
  if (has_parts(task.op.collective)) {
    return std::any_of(task.parts.begin(), task.parts.end(),
                       [](const hvd_backend_part& p) { return p.count > 0; });
  }
  // alltoall: a rank without data of its own may still be the only one; the others' communicator needs it.
  return task.op.collective == HVD_COLLECTIVE_ALLTOALL ||
         std::any_of(task.counts.begin(), task.counts.end(), [](size_t count) { return count > 0; });
}

void throw_nccl(const Libraries& libraries, NcclResult result, const char* what) {
  const char* const name = libraries.nccl.ncclGetErrorString(result);
  const char* const last = libraries.nccl.ncclGetLastError(nullptr);
  std::string text = fmt::format("{}: {} ({})", what, name != nullptr ? name : "unknown", result);
  if (last != nullptr && *last != 0) text += fmt::format(": {}", last);
  std::replace(text.begin(), text.end(), '\n', ' ');
  const bool lost = result == kNcclRemoteError || result == kNcclSystemError;
  throw vendor_failure(lost ? HVD_PEER_LOST : HVD_INTERNAL, text, result);
}

}  // namespace hvdnccl
