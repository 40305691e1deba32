// Running an operation once all ranks have called it. Where one rank's memory does not suffice for its part
// (a gathered result, an object, a staging buffer), it can't take part and the others can't do without it:
// the generation is broken, HVD_INTERNAL here and HVD_PEER_LOST for them.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/dtype.h"
#include "collective/engine_impl.h"

namespace hvd::collective {

namespace {

constexpr size_t kSmallVariable = 64 << 10;  // smaller ones travel packed
constexpr size_t kPack = 4 << 20;            // bytes of a pack, so that packing and sending overlap

hvd_backend_op backend_op(hvd_collective collective, hvd_dtype dtype, const void* input, void* output,
                          size_t count) {
  hvd_backend_op op{};
  op.struct_size = sizeof op;
  op.collective = collective;
  op.dtype = dtype;
  op.input = input;
  op.output = output;
  op.count = count;
  op.memory = HVD_MEMORY_HOST;
  return op;
}

hvd_backend_op broadcast_bytes(void* data, size_t bytes, int32_t root) {
  hvd_backend_op op = backend_op(HVD_COLLECTIVE_BROADCAST, HVD_UINT8, data, data, bytes);
  op.root = root;
  return op;
}

std::vector<int64_t> gathered_shape(const Tensor& input, const std::vector<int64_t>& rows) {
  std::vector<int64_t> shape = input.shape;
  shape[0] = 0;
  for (const int64_t n : rows) {
    if (__builtin_add_overflow(shape[0], n, &shape[0])) return {-1};
  }
  return shape;
}

/// A failure of which every rank learns by itself leaves the generation whole: what a backend does not
/// support it supports on no rank.
bool breaks(hvd_status code) { return code != HVD_OK && code != HVD_UNSUPPORTED; }

}  // namespace

/// Why this outcome can't be one of this operation, or NULL. Of rank 0's own outcomes all fit.
const char* Engine::Impl::misfit(const PendingOperation& op, const Outcome& outcome) const {
  if (!outcome.status.ok()) return nullptr;
  if (outcome.sequence != 0 && outcome.sequence <= last_sequence_) return "its sequence does not grow";
  const Submission& s = op.submission;
  switch (s.kind) {
    case Kind::kBarrier:
    case Kind::kAgree: return outcome.sequence == 0 ? nullptr : "it needs no backend";
    case Kind::kAllgather: {
      if (outcome.rows.size() != (s.members.empty() ? config_.hosts.size() : s.members.size()))
        return "rows are missing";
      if (outcome.rows[static_cast<size_t>(config_.rank)] != s.inputs[0].shape[0])
        return "rows differ from this rank's";
      const auto shape = gathered_shape(s.inputs[0], outcome.rows);
      return spec_bytes(s.inputs[0].dtype, shape) >= 0 ? nullptr : "the result is larger than memory can be";
    }
    case Kind::kBroadcastObject:
      if (config_.rank == s.root)
        return outcome.object_size == s.object.size() ? nullptr : "the object's size differs";
      if (outcome.sequence != 0) return nullptr;
      return outcome.object.size() == outcome.object_size ? nullptr : "the object is cut short";
    default: return nullptr;
  }
}

void Engine::Impl::execute(uint64_t ticket, const OutcomePtr& outcome) {
  Lock lock(mutex_);
  const auto it = ops_.find(ticket);
  if (it == ops_.end()) {
    const bool awaited = outcome->status.ok() && outcome->sequence != 0 && down() == nullptr;
    lock.unlock();
    if (awaited) {  // given up here, and the others now wait for this rank's part
      Status status(HVD_PEER_LOST,
                    fmt::format("{}, which coordinates, answered an operation too late", describe(0)));
      status.rank = 0;
      break_generation(std::move(status), true);
    }
    return;
  }
  const OperationPtr op = it->second;
  if (const char* why = misfit(*op, *outcome)) {
    lock.unlock();
    break_generation(Status(HVD_INTERNAL, fmt::format("{} '{}': outcome refused: {}",
                                                      kind_name(op->submission.kind), op->name, why)),
                     true);
    return;
  }
  if (!outcome->status.ok() || outcome->sequence == 0) {
    Status status = outcome->status.ok() ? settle(*op, *outcome) : outcome->status;
    remove(*op);
    lock.unlock();
    op->complete(stamped(std::move(status)));
    return;
  }
  last_sequence_ = outcome->sequence;
  op->in_backend = true;
  ++in_backend_;
  lock.unlock();
  run(op, *outcome);
}

/// Completes an operation that needs no backend: its answer came with the outcome. Under the lock.
Status Engine::Impl::settle(PendingOperation& op, const Outcome& outcome) const {
  const Submission& s = op.submission;
  op.result_word = outcome.word;
  if (s.kind == Kind::kAllgather) {  // of nothing
    op.result = {s.outputs[0].data, s.inputs[0].dtype, gathered_shape(s.inputs[0], outcome.rows)};
    if (s.outputs[0].data != nullptr && s.outputs[0].shape[0] < op.result.shape[0]) {
      return Status(HVD_INVALID,
                    fmt::format("allgather '{}': output has room for {} rows on {}, {} are needed", op.name,
                                s.outputs[0].shape[0], describe(config_.rank), op.result.shape[0]));
    }
  }
  if (s.kind == Kind::kBroadcastObject) {
    op.buffer_bytes = outcome.object_size;
    if (config_.rank != s.root && !outcome.object.empty()) {
      op.buffer = allocate(outcome.object.size());
      if (op.buffer == nullptr) {  // hurts nobody else
        return Status(HVD_INTERNAL, fmt::format("broadcast_object '{}': no memory for {} bytes", op.name,
                                                outcome.object.size()));
      }
      std::memcpy(op.buffer.get(), outcome.object.data(), outcome.object.size());
    }
  }
  return {};
}

Status Engine::Impl::plan(PendingOperation& op, const Outcome& outcome, Plan* ret_plan) const {
  const Submission& s = op.submission;
  auto& ops = ret_plan->ops;
  switch (s.kind) {
    case Kind::kAllreduce:
      ops.push_back(backend_op(HVD_COLLECTIVE_ALLREDUCE, s.inputs[0].dtype, s.inputs[0].data,
                               s.outputs[0].data, static_cast<size_t>(s.inputs[0].elements())));
      ops.back().reduction = s.reduction;
      break;
    case Kind::kBroadcastObject: {
      void* data = op.submission.object.data();
      if (config_.rank != s.root) {
        op.buffer = allocate(outcome.object_size);
        if (op.buffer == nullptr) {
          return Status(HVD_INTERNAL, fmt::format("broadcast_object '{}': no memory for {} bytes", op.name,
                                                  outcome.object_size));
        }
        data = op.buffer.get();
      }
      op.buffer_bytes = outcome.object_size;
      ops.push_back(broadcast_bytes(data, outcome.object_size, s.root));
      break;
    }
    case Kind::kAllgather:
      if (Status status = plan_allgather(op, outcome, ret_plan); !status.ok()) return status;
      break;
    case Kind::kBroadcast:
      if (Status status = plan_variables(op, outcome, ret_plan); !status.ok()) return status;
      break;
    default: break;
  }
  for (size_t i = 0; i < ops.size(); ++i) {
    ops[i].sequence = outcome.sequence + i;
    if (s.members.size() == config_.hosts.size() || s.members.empty()) continue;
    ops[i].ranks = s.members.data();
    ops[i].rank_count = static_cast<int32_t>(s.members.size());
  }
  return {};
}

Status Engine::Impl::plan_allgather(PendingOperation& op, const Outcome& outcome, Plan* ret_plan) const {
  const Submission& s = op.submission;
  Tensor result{s.outputs[0].data, s.inputs[0].dtype, gathered_shape(s.inputs[0], outcome.rows)};
  const int64_t total = result.shape[0];
  const bool room = s.outputs[0].data != nullptr && s.outputs[0].shape[0] >= total;
  if (s.outputs[0].data != nullptr && !room) {
    // The others still need this rank's part, so it takes part and throws the result away.
    op.verdict =
        Status(HVD_INVALID, fmt::format("allgather '{}': output has room for {} rows on {}, {} are needed",
                                        op.name, s.outputs[0].shape[0], describe(config_.rank), total));
  }
  if (!room) {
    op.buffer = allocate(result.bytes());
    if (op.buffer == nullptr) {
      return Status(HVD_INTERNAL,
                    fmt::format("allgather '{}': no memory for {} bytes", op.name, result.bytes()));
    }
    op.buffer_bytes = result.bytes();
    result.data = op.buffer.get();
  }
  const auto row = static_cast<size_t>(result.elements() / total);  // some rank has rows: total > 0
  for (const int64_t rows : outcome.rows) ret_plan->counts.push_back(static_cast<size_t>(rows) * row);
  ret_plan->ops.push_back(backend_op(HVD_COLLECTIVE_ALLGATHER, s.inputs[0].dtype, s.inputs[0].data,
                                     result.data, static_cast<size_t>(s.inputs[0].elements())));
  ret_plan->ops.back().counts = ret_plan->counts.data();
  op.result = std::move(result);
  return {};
}

/// Large variables each by themselves, small ones packed. Follows from the shapes, so equal on all ranks.
Status Engine::Impl::plan_variables(PendingOperation& op, const Outcome&, Plan* ret_plan) const {
  const Submission& s = op.submission;
  PendingOperation::Pack pack;
  const auto seal = [&]() -> Status {
    if (pack.members.size() == 1) {
      ret_plan->ops.push_back(broadcast_bytes(s.outputs[pack.members[0]].data, pack.bytes, s.root));
    } else if (!pack.members.empty()) {
      pack.memory = allocate(pack.bytes);
      if (pack.memory == nullptr) {
        return Status(HVD_INTERNAL,
                      fmt::format("broadcast '{}': no memory for {} bytes", op.name, pack.bytes));
      }
      if (config_.rank == s.root) {
        uint8_t* to = pack.memory.get();
        for (const size_t i : pack.members) {
          std::memcpy(to, s.outputs[i].data, s.outputs[i].bytes());
          to += s.outputs[i].bytes();
        }
      }
      ret_plan->ops.push_back(broadcast_bytes(pack.memory.get(), pack.bytes, s.root));
      op.packs.push_back(std::move(pack));
    }
    pack = {};
    return {};
  };
  for (size_t i = 0; i < s.outputs.size(); ++i) {
    const size_t bytes = s.outputs[i].bytes();
    if (bytes == 0) continue;
    if (bytes >= kSmallVariable) {
      ret_plan->ops.push_back(broadcast_bytes(s.outputs[i].data, bytes, s.root));
      continue;
    }
    if (pack.bytes + bytes > kPack) {
      if (Status status = seal(); !status.ok()) return status;
    }
    pack.members.push_back(i);
    pack.bytes += bytes;
  }
  return seal();
}

/// Hands the operation to the backend. Its references keep operation and engine until the last part is done.
void Engine::Impl::run(const OperationPtr& op, const Outcome& outcome) {
  Plan todo;
  Status status;
  try {
    status = plan(*op, outcome, &todo);
  } catch (const std::exception& error) {
    status = Status(HVD_INTERNAL,
                    fmt::format("{} '{}': {}", kind_name(op->submission.kind), op->name, error.what()));
  }
  if (!status.ok()) todo.ops.clear();
  op->self = op;
  op->engine = shared_from_this();
  op->outstanding.store(static_cast<int64_t>(todo.ops.size()) + 1, std::memory_order_relaxed);
  int64_t undone = 1;  // this function's own part, and those that were not accepted
  for (size_t i = 0; i < todo.ops.size() && status.ok(); ++i) {
    todo.ops[i].done = on_done;
    todo.ops[i].done_context = op.get();
    status = instance_.submit(todo.ops[i]);
    if (!status.ok()) undone += static_cast<int64_t>(todo.ops.size() - i);
  }
  if (!status.ok()) {
    const hvd_status code = status.code;
    op->note(std::move(status));
    // Nobody may wait for this rank's part.
    if (breaks(code) && code != HVD_PEER_LOST) instance_.abort(config_.generation);
  }
  release(op.get(), undone);
}

void Engine::Impl::on_done(void* context, hvd_status code, const hvd_error* error) {
  auto* op = static_cast<PendingOperation*>(context);
  if (code != HVD_OK) {
    op->note(error != nullptr ? Status::from(code, *error) : Status(code, "the backend gave no reason"));
  }
  release(op, 1);
}

void Engine::Impl::release(PendingOperation* op, int64_t parts) {
  if (op->outstanding.fetch_sub(parts, std::memory_order_acq_rel) != parts) return;
  const OperationPtr self = std::move(op->self);
  const auto engine = std::static_pointer_cast<Impl>(std::move(op->engine));
  engine->finished(self);
}

/// All parts are done.
void Engine::Impl::finished(const OperationPtr& op) {
  Status status = op->noted();
  const bool broken = breaks(status.code);
  if (status.ok()) {
    for (const auto& pack : op->packs) {
      if (config_.rank == op->submission.root) break;
      const uint8_t* from = pack.memory.get();
      for (const size_t i : pack.members) {
        const Tensor& variable = op->submission.outputs[i];
        std::memcpy(variable.data, from, variable.bytes());
        from += variable.bytes();
      }
    }
    status = op->verdict;
  }
  status = stamped(std::move(status));
  std::vector<OperationPtr> waiting;
  Status for_waiting;
  {
    Lock lock(mutex_);
    remove(*op);
    if (down() != nullptr) {
      status = *down();  // contract 3: the reason that was given, not what the backend made of it
    } else if (broken) {
      broken_ = status;
      for_waiting = status;
      waiting = take_waiting();
    }
  }
  if (!status.ok()) {
    op->buffer.reset();
    op->buffer_bytes = 0;
  }
  op->complete(std::move(status));
  complete(waiting, for_waiting);
  {
    Lock lock(mutex_);
    --in_backend_;
    idle_.notify_all();
  }
}

}  // namespace hvd::collective
