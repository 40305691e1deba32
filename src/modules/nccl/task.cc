#include "modules/nccl/task.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "modules/nccl/failure.h"
#include "numeric/dtype.h"

namespace hvdnccl {
namespace {

constexpr size_t kMost = std::numeric_limits<size_t>::max();

template <class... Args>
[[noreturn]] void invalid(const hvd_backend_op& op, fmt::format_string<Args...> text, Args&&... args) {
  throw Failure(HVD_INVALID,
                fmt::format("op {}: {}", op.sequence, fmt::format(text, std::forward<Args>(args)...)));
}

bool reduces(hvd_collective c) { return c == HVD_COLLECTIVE_ALLREDUCE || c == HVD_COLLECTIVE_REDUCESCATTER; }
bool has_parts(hvd_collective c) { return c == HVD_COLLECTIVE_ALLREDUCE || c == HVD_COLLECTIVE_BROADCAST; }

void check_kind(const hvd_backend_op& op) {
  if (op.collective < HVD_COLLECTIVE_BROADCAST || op.collective > HVD_COLLECTIVE_ALLTOALL) {
    throw Failure(HVD_UNSUPPORTED, fmt::format("collective {} is not supported", op.collective));
  }
  if (op.memory != HVD_MEMORY_CUDA)
    throw Failure(HVD_UNSUPPORTED, fmt::format("memory {} is not supported", op.memory));
  if (op.collective != HVD_COLLECTIVE_BARRIER && hvd::dtype_size(op.dtype) == 0) {
    throw Failure(HVD_UNSUPPORTED, fmt::format("dtype {} is not supported", op.dtype));
  }
  if (reduces(op.collective)) {
    if (op.reduction < HVD_REDUCTION_SUM || op.reduction > HVD_REDUCTION_PRODUCT)
      invalid(op, "reduction {}", op.reduction);
    if (!type_of(op.dtype)) {
      throw Failure(HVD_UNSUPPORTED, fmt::format("NCCL does no arithmetic on {}", hvd::dtype_name(op.dtype)));
    }
    if (op.dtype == HVD_DTYPE_BOOL && op.reduction == HVD_REDUCTION_AVERAGE) {
      throw Failure(HVD_UNSUPPORTED, "the average of bool is not supported");
    }
  }
  if (op.done == nullptr) invalid(op, "done is NULL");
}

void take_ranks(Task& task, int rank, int size) {
  const hvd_backend_op& op = task.op;
  if (op.ranks == nullptr) {
    for (int r = 0; r < size; ++r) task.ranks.push_back(r);
  } else {
    task.ranks.assign(op.ranks, op.ranks + std::max(op.rank_count, 0));
  }
  int before = -1;
  task.me = task.root = -1;
  for (size_t i = 0; i < task.ranks.size(); ++i) {
    const int r = task.ranks[i];
    if (r <= before || r >= size) invalid(op, "ranks must ascend and be below {}", size);
    if (r == rank) task.me = static_cast<int>(i);
    if (r == op.root) task.root = static_cast<int>(i);
    before = r;
  }
  if (task.me < 0) invalid(op, "rank {} takes no part in it", rank);
  if (op.collective == HVD_COLLECTIVE_BROADCAST && task.root < 0)
    invalid(op, "root {} takes no part in it", op.root);
}

void take_parts(Task& task) {
  const hvd_backend_op& op = task.op;
  const size_t most = kMost / hvd::dtype_size(op.dtype);
  const bool together =
      op.struct_size >= offsetof(hvd_backend_op, part_count) + sizeof(size_t) && op.part_count > 0;
  if (together) {
    if (op.parts == nullptr) invalid(op, "parts is NULL");
    task.parts.assign(op.parts, op.parts + op.part_count);
  } else {
    task.parts.push_back({op.input, op.output, op.count});
  }
  size_t sum = 0;
  for (const hvd_backend_part& part : task.parts) {
    if (part.count > most - sum) invalid(op, "a count of {} is more than memory can hold", part.count);
    sum += part.count;
    const bool reads = op.collective == HVD_COLLECTIVE_ALLREDUCE;
    if (part.count > 0 && (part.output == nullptr || (reads && part.input == nullptr))) {
      invalid(op, "input or output is NULL");
    }
  }
}

size_t sum_of(const Task& task, size_t begin) {
  const size_t most = kMost / hvd::dtype_size(task.op.dtype);
  size_t sum = 0;
  for (size_t i = begin; i < begin + task.ranks.size(); ++i) {
    if (task.counts[i] > most - sum) invalid(task.op, "counts are more than memory can hold");
    sum += task.counts[i];
  }
  return sum;
}

void take_counts(Task& task) {
  const hvd_backend_op& op = task.op;
  const size_t n = task.ranks.size();
  const auto me = static_cast<size_t>(task.me);
  if (op.counts == nullptr) invalid(op, "counts is NULL");
  task.counts.assign(op.counts, op.counts + (op.collective == HVD_COLLECTIVE_ALLTOALL ? 2 * n : n));
  const size_t sum = sum_of(task, 0);
  const auto must = [&](bool holds, const char* text) {
    if (!holds) invalid(op, "{} (count is {})", text, op.count);
  };
  size_t output = task.counts[me];
  if (op.collective == HVD_COLLECTIVE_ALLGATHER) {
    must(task.counts[me] == op.count, "count must be this rank's entry of counts");
    output = sum;
  } else {
    must(sum == op.count, "count must be the sum of counts' first entries, one for each rank");
  }
  if (op.collective == HVD_COLLECTIVE_ALLTOALL) {
    must(task.counts[me] == task.counts[n + me], "this rank sends to itself what it receives from itself");
    output = sum_of(task, n);
  }
  if ((output > 0 && op.output == nullptr) || (op.count > 0 && op.input == nullptr)) {
    invalid(op, "input or output is NULL");
  }
}

}  // namespace

Task checked(const hvd_backend_op& given, int rank, int size) {
  constexpr size_t kLeast = offsetof(hvd_backend_op, done_context) + sizeof(void*);
  if (given.struct_size < kLeast)
    throw Failure(HVD_INVALID, fmt::format("an op of struct_size {}", given.struct_size));
  Task task;
  std::memcpy(&task.op, &given, std::min(given.struct_size, sizeof(task.op)));
  check_kind(task.op);
  take_ranks(task, rank, size);
  if (has_parts(task.op.collective)) {
    take_parts(task);
  } else if (task.op.collective != HVD_COLLECTIVE_BARRIER) {
    take_counts(task);
  }
  task.op.ranks = nullptr;
  task.op.counts = nullptr;
  task.op.parts = nullptr;
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
  throw Failure(lost ? HVD_PEER_LOST : HVD_INTERNAL, text, result);
}

}  // namespace hvdnccl
