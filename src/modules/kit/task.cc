// Copies what submit borrows, and completes the operation once.
#include "modules/kit/task.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>

#include "hvd/backend.hpp"
#include "numeric/dtype.h"

namespace hvdkit {
namespace {

[[noreturn]] void invalid(const hvd_backend_op& op, const std::string& text) {
  throw Failure(HVD_INVALID, "op " + std::to_string(op.sequence) + ": " + text);
}

bool reduces(hvd_collective collective) {
  return collective == HVD_COLLECTIVE_ALLREDUCE || collective == HVD_COLLECTIVE_REDUCESCATTER;
}

bool has_parts(hvd_collective collective) {
  return collective == HVD_COLLECTIVE_ALLREDUCE || collective == HVD_COLLECTIVE_BROADCAST;
}

size_t most_elements(const hvd_backend_op& op) {
  return std::numeric_limits<size_t>::max() / hvd::dtype_size(op.dtype);
}

void check_kind(const hvd_backend_op& op, hvd_memory memory) {
  if (op.collective < HVD_COLLECTIVE_BROADCAST || op.collective > HVD_COLLECTIVE_ALLTOALL) {
    throw Failure(HVD_UNSUPPORTED, "collective " + std::to_string(op.collective) + " is not supported");
  }
  if (op.memory != memory) {
    throw Failure(HVD_UNSUPPORTED, op.memory == HVD_MEMORY_HOST
                                       ? "host memory is not supported"
                                       : "memory of kind " + std::to_string(op.memory) + " is not supported");
  }
  if (op.collective != HVD_COLLECTIVE_BARRIER && hvd::dtype_size(op.dtype) == 0) {
    throw Failure(HVD_UNSUPPORTED, "dtype " + std::to_string(op.dtype) + " is not supported");
  }
  if (reduces(op.collective)) {
    if (op.reduction < HVD_REDUCTION_SUM || op.reduction > HVD_REDUCTION_PRODUCT)
      invalid(op, "reduction " + std::to_string(op.reduction));
    if (op.dtype == HVD_DTYPE_BOOL && op.reduction == HVD_REDUCTION_AVERAGE) {
      throw Failure(HVD_UNSUPPORTED, "the average of bool is not supported");
    }
  }
  if (op.done == nullptr) invalid(op, "done is NULL");
  // Modules make two tags of it.
  if (op.sequence > std::numeric_limits<uint64_t>::max() / 2) invalid(op, "the sequence is beyond 2^63");
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
    if (r <= before || r >= size) invalid(op, "ranks must ascend and be below " + std::to_string(size));
    if (r == rank) task.me = static_cast<int>(i);
    if (r == op.root) task.root = static_cast<int>(i);
    before = r;
  }
  if (task.me < 0) invalid(op, "rank " + std::to_string(rank) + " takes no part in it");
  if (op.collective == HVD_COLLECTIVE_BROADCAST && task.root < 0)
    invalid(op, "root " + std::to_string(op.root) + " takes no part in it");
}

// The tensors that travel together, or the op's own as the only one.
void take_parts(Task& task) {
  const hvd_backend_op& op = task.op;
  if (op.part_count == 0) {
    task.parts.push_back({op.input, op.output, op.count});
  } else {
    if (op.memory == HVD_MEMORY_HOST) invalid(op, "parts of host memory: they are for device memory alone");
    if (op.parts == nullptr) invalid(op, "parts is NULL");
    task.parts.assign(op.parts, op.parts + op.part_count);
  }
  const bool reads = op.collective == HVD_COLLECTIVE_ALLREDUCE;
  size_t sum = 0;
  for (const hvd_backend_part& part : task.parts) {
    if (part.count > most_elements(op) - sum) {
      invalid(op, "a count of " + std::to_string(part.count) + " is more than memory can hold");
    }
    sum += part.count;
    if (part.count > 0 && (part.output == nullptr || (reads && part.input == nullptr))) {
      invalid(op, "input or output is NULL");
    }
  }
}

// Elements from `begin` on, of one part per member. All of them in bytes fit in size_t.
size_t sum_of(const Task& task, size_t begin) {
  size_t sum = 0;
  for (size_t i = begin; i < begin + task.ranks.size(); ++i) {
    if (task.counts[i] > most_elements(task.op) - sum)
      invalid(task.op, "counts are more than memory can hold");
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
    if (!holds) invalid(op, std::string(text) + " (count is " + std::to_string(op.count) + ")");
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

Task checked(const hvd_backend_op& given, hvd_memory memory, int rank, int size) {
  constexpr size_t kLeast = offsetof(hvd_backend_op, done_context) + sizeof(void*);
  if (given.struct_size < kLeast) {
    throw Failure(HVD_INVALID, "an op of struct_size " + std::to_string(given.struct_size));
  }
  Task task;
  std::memcpy(&task.op, &given, std::min(given.struct_size, sizeof(task.op)));
  check_kind(task.op, memory);
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

}  // namespace hvdkit
