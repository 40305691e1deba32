// Each collective as nonblocking MPI calls over chunks.
#include "modules/mpi/operation.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <utility>

#include "modules/mpi/reduction.h"
#include "modules/mpi/runtime.h"
#include "numeric/dtype.h"
#include "numeric/reduce.h"

namespace hvdmpi {
namespace {

constexpr size_t kDirectBytes = size_t{16} << 20;  // of a call on the user's memory
constexpr size_t kMostInACall = INT_MAX;           // elements: MPI counts in int

// Where in a slot MPI writes, behind what it reads. Never at the same place: Open MPI takes that for
// MPI_IN_PLACE, even where there is nothing to read.
size_t apart(size_t in_bytes) { return in_bytes / 64 * 64 + 64; }

}  // namespace

uint8_t* Slot::take(size_t bytes) {
  used = bytes;
  if (bytes > room) {
    room = 0;
    memory.reset(new uint8_t[bytes]);
    room = bytes;
  }
  return memory.get();
}

Operation::Operation(Task given, bool staged, size_t segment_bytes)
    : task(std::move(given)),
      staged_(staged),
      segment_bytes_(segment_bytes),
      element_(task.op.collective == HVD_COLLECTIVE_BARRIER ? 1 : hvd::dtype_size(task.op.dtype)),
      n_(static_cast<int>(task.ranks.size())) {
  plan_parts();
  choose_chunks();
}

void Operation::plan_parts() {
  const hvd_backend_op& op = task.op;
  const auto me = static_cast<size_t>(task.me);
  const auto n = static_cast<size_t>(n_);
  const auto parts = [&](size_t begin) {
    std::vector<Part> list;
    size_t offset = 0;
    for (size_t i = begin; i < begin + n; ++i) {
      list.push_back({task.counts[i], offset});
      offset += task.counts[i];
    }
    return list;
  };
  switch (op.collective) {
    case HVD_COLLECTIVE_BROADCAST:
      if (task.me == task.root) in_ = {{op.count, 0}};
      out_ = {{op.count, 0}};
      break;
    case HVD_COLLECTIVE_ALLREDUCE: in_ = out_ = {{op.count, 0}}; break;
    case HVD_COLLECTIVE_ALLGATHER:
      in_ = {{op.count, 0}};
      out_ = parts(0);
      break;
    case HVD_COLLECTIVE_REDUCESCATTER:
      in_ = parts(0);
      out_ = {{task.counts[me], 0}};
      break;
    case HVD_COLLECTIVE_ALLTOALL:
      in_ = parts(0);
      out_ = parts(n);
      agrees_ = n_ > 1;
      break;
    default: break;
  }
}

void Operation::choose_chunks() {
  const hvd_backend_op& op = task.op;
  if (op.collective == HVD_COLLECTIVE_BARRIER) {
    alone_ = n_ == 1;
    known_ = chunks_ = 1;
    return;
  }
  const std::vector<Part>& wide = op.collective == HVD_COLLECTIVE_REDUCESCATTER ? in_ : out_;
  size_t most = 0;
  size_t total = 0;
  for (const std::vector<Part>* parts : {&in_, &out_}) {
    size_t sum = 0;
    for (const Part& part : *parts) {
      most = std::max(most, part.count);
      sum += part.count;
    }
    total = std::max(total, sum);
  }
  // Counts of all ranks are known to all, but for alltoall: there the agreement decides.
  alone_ = n_ == 1 || (total == 0 && !agrees_);
  const bool by_parts = wide.size() > 1;
  whole_ = !staged_ && by_parts && total <= kMostInACall && !agrees_;
  const size_t bytes = staged_ || by_parts ? segment_bytes_ : kDirectBytes;
  span_ = std::max<size_t>(bytes / element_ / wide.size(), 1);
  chunks_ = whole_ ? 1 : (most + span_ - 1) / span_;
  stage_in_ = stage_out_ = staged_ || (by_parts && !whole_);
  if (op.collective == HVD_COLLECTIVE_BROADCAST) stage_in_ = false;  // one array, on the root as well
  if (!stage_in_ || !stage_out_) {
    // MPI forbids what the core allows: memory that is both read and written.
    const auto* output = static_cast<const uint8_t*>(op.output);
    const auto* input = static_cast<const uint8_t*>(op.input);
    // In place on every rank, as MPI wants it. MPI_Iallreduce in place is slow in Open MPI 4: twice
    // MPI_Allreduce's time.
    blocks_ = op.collective == HVD_COLLECTIVE_ALLREDUCE;
    if (op.collective == HVD_COLLECTIVE_ALLGATHER && whole_)
      stage_in_ = input == output + out_[static_cast<size_t>(task.me)].offset * element_;
    if (op.collective == HVD_COLLECTIVE_REDUCESCATTER && whole_)
      stage_out_ = input + in_[static_cast<size_t>(task.me)].offset * element_ == output;
  }
  agreed_ = !agrees_;
  // The first chunk need not wait for the agreement, unless that decides how it is made.
  known_ = agreed_ ? chunks_ : staged_ ? 2 : 1;
}

Operation::Range Operation::range_of(const Part& part, size_t chunk) const {
  if (whole_) return {part.offset, part.count};
  const size_t begin = std::min(chunk * span_, part.count);
  return {part.offset + begin, std::min(span_, part.count - begin)};
}

size_t Operation::length_of(const std::vector<Part>& parts, size_t chunk) const {
  size_t length = 0;
  for (const Part& part : parts) length += range_of(part, chunk).length;
  return length;
}

void Operation::pack(uint8_t* to, const std::vector<Part>& parts, size_t chunk) const {
  const auto* from = static_cast<const uint8_t*>(
      task.op.collective == HVD_COLLECTIVE_BROADCAST ? task.op.output : task.op.input);
  for (const Part& part : parts) {
    const Range range = range_of(part, chunk);
    if (range.length == 0) continue;
    std::memcpy(to, from + range.offset * element_, range.length * element_);
    to += range.length * element_;
  }
}

void Operation::unpack(const uint8_t* from, const std::vector<Part>& parts, size_t chunk) const {
  auto* to = static_cast<uint8_t*>(task.op.output);
  for (const Part& part : parts) {
    const Range range = range_of(part, chunk);
    if (range.length == 0) continue;
    std::memcpy(to + range.offset * element_, from, range.length * element_);
    from += range.length * element_;
  }
}

void Operation::run_alone() {
  const hvd_backend_op& op = task.op;
  if (op.collective == HVD_COLLECTIVE_BARRIER || op.collective == HVD_COLLECTIVE_BROADCAST) return;
  const size_t bytes = op.count * element_;
  if (bytes > 0 && op.input != op.output) std::memmove(op.output, op.input, bytes);
}

void Operation::begin_agreement(Slot& slot) {
  size_t total = 0;
  for (const std::vector<Part>* parts : {&in_, &out_}) {
    size_t sum = 0;
    for (const Part& part : *parts) sum += part.count;
    total = std::max(total, sum);
  }
  slot.words[0] = chunks_;
  slot.words[1] = total;
  check(MPI_Iallreduce(slot.words, slot.words + 2, 2, MPI_UINT64_T, MPI_MAX, comm, &slot.request),
        "MPI_Iallreduce");
}

size_t Operation::begin_chunk(Slot& slot) {
  const size_t number = issued_;
  if (agrees_ && number == 0) {
    begin_agreement(slot);
  } else {
    const size_t chunk = number - (agrees_ ? 1 : 0);
    const size_t in_bytes = stage_in_ ? length_of(in_, chunk) * element_ : 0;
    const size_t out_bytes = stage_out_ ? length_of(out_, chunk) * element_ : 0;
    const size_t out_at = apart(in_bytes);
    uint8_t* const memory = slot.take(out_at + out_bytes);
    const auto user = [&](const void* base, const std::vector<Part>& parts) {
      const size_t offset = whole_ || parts.empty() ? 0 : range_of(parts[0], chunk).offset;
      return base == nullptr ? nullptr : static_cast<const uint8_t*>(base) + offset * element_;
    };
    const void* in = stage_in_ ? memory : user(task.op.input, in_);
    void* out = stage_out_ ? memory + out_at : const_cast<uint8_t*>(user(task.op.output, out_));
    if (task.op.collective == HVD_COLLECTIVE_BROADCAST) {
      if (stage_out_ && task.me == task.root) pack(memory + out_at, in_, chunk);
    } else if (stage_in_) {
      pack(memory, in_, chunk);
    }
    if (blocks_ && in != out) std::memcpy(out, in, length_of(in_, chunk) * element_);
    if (in == out) in = slot.words;  // nothing to give: see apart
    call(slot, chunk, in, out);
  }
  ++issued_;
  return number;
}

void Operation::call(Slot& slot, size_t chunk, const void* in, void* out) {
  const hvd_backend_op& op = task.op;
  if (op.collective == HVD_COLLECTIVE_BARRIER)
    return check(MPI_Ibarrier(comm, &slot.request), "MPI_Ibarrier");
  MPI_Datatype type = type_of(op.dtype);
  // How the parts lie in the memory that MPI gets: one after the other, the user's memory being whole then.
  const auto lay_out = [&](const std::vector<Part>& parts, std::vector<int>& counts,
                           std::vector<int>& offsets) {
    counts.clear();
    offsets.clear();
    int offset = 0;
    for (const Part& part : parts) {
      counts.push_back(static_cast<int>(range_of(part, chunk).length));
      offsets.push_back(offset);
      offset += counts.back();
    }
  };
  lay_out(in_, slot.in_counts, slot.in_offsets);
  lay_out(out_, slot.out_counts, slot.out_offsets);
  switch (op.collective) {
    case HVD_COLLECTIVE_BROADCAST:
      return check(MPI_Ibcast(out, slot.out_counts[0], type, task.root, comm, &slot.request), "MPI_Ibcast");
    case HVD_COLLECTIVE_ALLREDUCE:
      if (blocks_) {
        return check(MPI_Allreduce(MPI_IN_PLACE, out, slot.in_counts[0], type,
                                   operator_of(op.dtype, op.reduction), comm),
                     "MPI_Allreduce");
      }
      return check(MPI_Iallreduce(in, out, slot.in_counts[0], type, operator_of(op.dtype, op.reduction), comm,
                                  &slot.request),
                   "MPI_Iallreduce");
    case HVD_COLLECTIVE_ALLGATHER:
      return check(MPI_Iallgatherv(in, slot.in_counts[0], type, out, slot.out_counts.data(),
                                   slot.out_offsets.data(), type, comm, &slot.request),
                   "MPI_Iallgatherv");
    case HVD_COLLECTIVE_REDUCESCATTER:
      return check(MPI_Ireduce_scatter(in, out, slot.in_counts.data(), type,
                                       operator_of(op.dtype, op.reduction), comm, &slot.request),
                   "MPI_Ireduce_scatter");
    default:
      return check(MPI_Ialltoallv(in, slot.in_counts.data(), slot.in_offsets.data(), type, out,
                                  slot.out_counts.data(), slot.out_offsets.data(), type, comm, &slot.request),
                   "MPI_Ialltoallv");
  }
}

void Operation::end_chunk(Slot& slot, size_t number) {
  ++done_;
  if (task.op.collective == HVD_COLLECTIVE_BARRIER) return;
  if (agrees_ && number == 0) {
    agreed_ = true;
    chunks_ = static_cast<size_t>(slot.words[2]);
    whole_ = !staged_ && slot.words[3] <= kMostInACall;
    if (whole_) {
      chunks_ = std::min<size_t>(chunks_, 1);
      stage_in_ = stage_out_ = false;
    }
    known_ = 1 + (staged_ ? std::max<size_t>(chunks_, 1) : chunks_);
    return;
  }
  const size_t chunk = number - (agrees_ ? 1 : 0);
  const size_t length = length_of(out_, chunk);
  const bool averages =
      task.op.reduction == HVD_REDUCTION_AVERAGE &&
      (task.op.collective == HVD_COLLECTIVE_ALLREDUCE || task.op.collective == HVD_COLLECTIVE_REDUCESCATTER);
  const size_t out_at = apart(stage_in_ ? length_of(in_, chunk) * element_ : 0);
  uint8_t* out = stage_out_ ? slot.memory.get() + out_at
                            : static_cast<uint8_t*>(task.op.output) +
                                  (whole_ ? 0 : range_of(out_[0], chunk).offset) * element_;
  if (averages && length > 0) {
    const void* const sums[] = {out};
    hvd::reduce_many(task.op.dtype, HVD_REDUCTION_AVERAGE, out, sums, 1, length,
                     n_);  // narrow floats as well
  }
  const bool has_it = task.op.collective == HVD_COLLECTIVE_BROADCAST && task.me == task.root;
  if (stage_out_ && !has_it) unpack(out, out_, chunk);
}

}  // namespace hvdmpi
