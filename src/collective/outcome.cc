// What a rank does with rank 0's word about its operations: complete them, with the data that came along or
// without any, or hand them to the backend.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "collective/engine_impl.h"
#include "numeric/dtype.h"
#include "numeric/reduce.h"

namespace hvd::collective {

namespace {

size_t row_bytes(const Tensor& t) {
  return static_cast<size_t>(spec_bytes(t.dtype, std::span(t.shape).subspan(1)));
}

/// The shape of a result: the input's with another first dimension; {-1} if that is more than memory can be.
std::vector<int64_t> with_rows(const Tensor& input, std::span<const int64_t> rows) {
  std::vector<int64_t> shape = input.shape;
  shape[0] = 0;
  for (const int64_t n : rows) {
    if (__builtin_add_overflow(shape[0], n, &shape[0])) return {-1};
  }
  return shape;
}

bool has_results(Kind kind) {
  return kind == Kind::kAllgather || kind == Kind::kReducescatter || kind == Kind::kAlltoall;
}

bool has_data(const Submission& s) {
  const auto any = [](const std::vector<Tensor>& tensors) {
    return std::any_of(tensors.begin(), tensors.end(), [](const Tensor& t) { return t.bytes() > 0; });
  };
  return s.kind == Kind::kBroadcast ? any(s.outputs) : any(s.inputs);
}

}  // namespace

size_t Engine::Impl::participants(const PendingOperation& op, const Outcome& outcome) const {
  return outcome.participants.empty() ? op.call->member_count(config_.hosts.size())
                                      : outcome.participants.size();
}

/// Nobody else takes part: this rank's own data is the result.
bool Engine::Impl::alone(const PendingOperation& op, const Outcome& outcome) const {
  return outcome.sequence == 0 && !outcome.carries && participants(op, outcome) == 1 &&
         !op.call->on_device() && op.call->kind != Kind::kBroadcast && has_data(op.submission);
}

/// Why this outcome can't be one of this operation, or NULL. Of rank 0's own outcomes all fit.
const char* Engine::Impl::misfit(const PendingOperation& op, const Outcome& outcome) const {
  if (!outcome.status.ok()) return nullptr;
  if (outcome.sequence != 0 && outcome.sequence <= last_sequence_) return "its sequence does not grow";
  const Submission& s = op.submission;
  const auto& members = op.call->members;
  const auto& ranks = outcome.participants;
  if (!ranks.empty()) {
    if (!std::binary_search(ranks.begin(), ranks.end(), config_.rank)) return "this rank takes no part in it";
    if (!members.empty() && !std::includes(members.begin(), members.end(), ranks.begin(), ranks.end()))
      return "its participants are no members";
  }
  const size_t count = participants(op, outcome);
  const bool device = op.call->on_device();
  if (device && outcome.carries) return "it brings data for device memory";
  const bool here = outcome.sequence == 0 && (count > 1 || device);  // the data has to be in the outcome
  const auto place = [&](const std::vector<int32_t>& of) {
    return static_cast<size_t>(std::lower_bound(of.begin(), of.end(), config_.rank) - of.begin());
  };
  const size_t me = !ranks.empty() ? place(ranks) : !members.empty() ? place(members) : size_t(config_.rank);
  size_t expected = 0;
  switch (s.kind) {
    case Kind::kBarrier:
    case Kind::kJoin:
    case Kind::kAgree: return outcome.sequence == 0 ? nullptr : "it needs no backend";
    case Kind::kBroadcastObject:
      if (config_.rank == s.root)
        return outcome.object_size == s.object.size() ? nullptr : "the object's size differs";
      return !here || outcome.payload.size() == outcome.object_size ? nullptr : "the object is cut short";
    case Kind::kBroadcast:
      if (config_.rank == s.root) return nullptr;
      expected = op.call->payload;
      if (expected == 0) return nullptr;
      break;
    case Kind::kAllreduce:
      expected = op.call->payload;
      if (!has_data(s)) return nullptr;
      break;
    case Kind::kReducescatter:
      if (me >= s.splits.size()) return "it is of other members";
      expected = row_bytes(s.inputs[0]) * static_cast<size_t>(s.splits[me]);
      if (!has_data(s)) return nullptr;
      break;
    case Kind::kAllgather: {
      if (outcome.rows.size() != count * s.inputs.size()) return "rows are missing";
      bool any = false;
      for (size_t t = 0; t < s.inputs.size(); ++t) {
        const auto rows = std::span(outcome.rows).subspan(t * count, count);
        if (rows[me] != s.inputs[t].shape[0]) return "rows differ from this rank's";
        const int64_t bytes = spec_bytes(s.inputs[t].dtype, with_rows(s.inputs[t], rows));
        if (bytes < 0) return "the result is larger than memory can be";
        any = any || bytes > 0;
        expected = payload_aligned(expected) + static_cast<size_t>(bytes);
      }
      if (!any) return nullptr;
      break;
    }
    case Kind::kAlltoall: {
      if (outcome.rows.size() != count || me >= s.splits.size()) return "rows are missing";
      if (outcome.rows[me] != s.splits[me]) return "rows differ from this rank's";
      const int64_t bytes = spec_bytes(s.inputs[0].dtype, with_rows(s.inputs[0], outcome.rows));
      if (bytes < 0) return "the result is larger than memory can be";
      expected = static_cast<size_t>(bytes);
      if (expected == 0) return nullptr;
      break;
    }
  }
  if (!here) return nullptr;
  return outcome.carries && outcome.payload.size() == expected ? nullptr : "its data is missing";
}

void Engine::Impl::execute(Work& work) {
  const Outcome& outcome = *work.outcome;
  std::vector<OperationPtr> ops;
  Lock lock(mutex_);
  checks_.learned(work.proposal);
  bool all = true;
  const auto take = [&](uint64_t ticket) {
    checks_.answered(ticket);
    const auto it = ops_.find(ticket);
    if (it == ops_.end()) {
      all = false;
    } else {
      ops.push_back(it->second);
    }
  };
  take(work.ticket);
  for (const uint64_t ticket : work.more) take(ticket);
  if (!all) {
    const bool awaited = outcome.status.ok() && outcome.sequence != 0 && down() == nullptr;
    lock.unlock();
    if (awaited) {  // given up here, and the others now wait for this rank's part
      Status status(HVD_PEER_LOST,
                    fmt::format("{}, which coordinates, answered an operation too late", describe(0)));
      status.rank = 0;
      break_generation(std::move(status), true);
    }
    return;
  }
  const char* why = nullptr;
  for (const auto& op : ops) {
    if (why == nullptr) why = misfit(*op, outcome);
    const Kind kind = op->call->kind;
    if (why == nullptr && ops.size() > 1 &&
        (outcome.sequence == 0 || kind != ops[0]->call->kind || participants(*op, outcome) < 2 ||
         (kind != Kind::kAllreduce && kind != Kind::kBroadcast))) {
      why = "these operations are no batch";
    }
  }
  if (why != nullptr) {
    lock.unlock();
    break_generation(
        Status(HVD_INTERNAL, fmt::format("{} '{}': outcome refused: {}", kind_name(ops[0]->submission.kind),
                                         ops[0]->submission.name, why)),
        true);
    return;
  }
  for (const auto& op : ops) op->matched(ops.size());
  if (outcome.status.ok() && (outcome.sequence != 0 || alone(*ops[0], outcome))) {
    if (outcome.sequence != 0) last_sequence_ = outcome.sequence;
    for (const auto& op : ops) op->in_backend = true;
    ++in_backend_;
    lock.unlock();
    run(std::move(ops), outcome);
    return;
  }
  PendingOperation& op = *ops[0];
  Status status = outcome.status.ok() ? settle(op, outcome) : outcome.status;
  if (outcome.status.ok() && op.call->kind == Kind::kJoin) checks_.resume(outcome.checks);
  remove(op);
  lock.unlock();
  op.complete(stamped(std::move(status)));
}

/// Completes an operation without the backend: the outcome brings what there is. Under the lock, so that
/// nobody takes the caller's memory away; it is little.
Status Engine::Impl::settle(PendingOperation& op, const Outcome& outcome) const {
  const Submission& s = op.submission;
  op.result_word = outcome.word;
  if (s.kind == Kind::kBroadcastObject) {
    PendingOperation::Memory memory{nullptr, outcome.object_size};
    if (config_.rank != s.root && !outcome.payload.empty()) {
      memory.data = allocate(outcome.payload.size());
      if (memory.data == nullptr) {  // hurts nobody else
        return Status(HVD_INTERNAL, fmt::format("broadcast_object '{}': no memory for {} bytes", s.name,
                                                outcome.payload.size()));
      }
      std::memcpy(memory.data.get(), outcome.payload.data(), outcome.payload.size());
    }
    op.buffers.push_back(std::move(memory));
    return {};
  }
  std::vector<Tensor>* targets = &op.submission.outputs;
  if (has_results(s.kind)) {
    if (Status status = place_results(op, outcome, false); !status.ok() || !op.verdict.ok()) {
      return status.ok() ? op.verdict : status;
    }
    targets = &op.results;
  }
  if (!outcome.carries) return {};
  size_t at = 0;
  for (const Tensor& t : *targets) {
    at = payload_aligned(at);
    const size_t bytes = t.bytes();
    if (bytes == 0) continue;
    std::memcpy(t.data, outcome.payload.data() + at, bytes);
    if (s.postscale != 1 && (s.kind == Kind::kAllreduce || s.kind == Kind::kReducescatter)) {
      scale(t.dtype, t.data, static_cast<size_t>(t.elements()), s.postscale);
    }
    at += bytes;
  }
  return {};
}

/// Where a result goes: the caller's room, or the library's memory. Without room for it the verdict says so;
/// `discard`: the others still need this rank's part, so that it takes part and throws the result away.
Status Engine::Impl::place(PendingOperation& op, size_t index, std::vector<int64_t> shape,
                           bool discard) const {
  const Submission& s = op.submission;
  const Tensor& output = s.outputs[index];
  Tensor& result = op.results[index];
  const Tensor& input = s.inputs[index];
  result = {output.data, input.dtype, std::move(shape), input.memory, input.device, input.stream};
  const size_t bytes = result.bytes();
  const bool device = result.memory != HVD_MEMORY_HOST;
  const bool given = output.data != nullptr || device;
  const bool room = given && output.shape[0] >= result.shape[0];
  if (device && !room) {  // rank 0 was told the room
    return Status(HVD_INTERNAL, fmt::format("{} '{}': output has room for {} rows, {} came",
                                            kind_name(s.kind), s.name, output.shape[0], result.shape[0]));
  }
  if (given && !room) {
    if (op.verdict.ok()) {
      op.verdict =
          Status(HVD_INVALID,
                 fmt::format("{} '{}': output has room for {} rows on {}, {} are needed", kind_name(s.kind),
                             s.name, output.shape[0], describe(config_.rank), result.shape[0]));
    }
    if (!discard) return {};
  }
  if (room || bytes == 0) return {};
  auto& memory = op.buffers[index];
  memory.data = allocate(bytes);
  if (memory.data == nullptr) {
    return Status(HVD_INTERNAL,
                  fmt::format("{} '{}': no memory for {} bytes", kind_name(s.kind), s.name, bytes));
  }
  memory.bytes = bytes;
  result.data = memory.data.get();
  return {};
}

Status Engine::Impl::place_results(PendingOperation& op, const Outcome& outcome, bool discard) const {
  const Submission& s = op.submission;
  op.results.resize(s.inputs.size());
  op.buffers.resize(s.inputs.size());
  const size_t count = participants(op, outcome);
  for (size_t t = 0; t < s.inputs.size(); ++t) {
    std::vector<int64_t> shape;
    if (s.kind == Kind::kAllgather) {
      shape = with_rows(s.inputs[t], std::span(outcome.rows).subspan(t * count, count));
    } else if (s.kind == Kind::kAlltoall) {
      shape = with_rows(s.inputs[t], outcome.rows);
      op.splits = outcome.rows;
    } else {
      const auto& members = s.members;
      const size_t me =
          members.empty()
              ? size_t(config_.rank)
              : size_t(std::lower_bound(members.begin(), members.end(), config_.rank) - members.begin());
      shape = with_rows(s.inputs[t], std::span(&s.splits[me], 1));
    }
    if (Status status = place(op, t, std::move(shape), discard); !status.ok()) return status;
  }
  return {};
}

}  // namespace hvd::collective
