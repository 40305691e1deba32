// What a rank does with rank 0's word about its operations: complete them, with the data that came along or
// without any, or run them in the backend. Where one rank's memory does not suffice for its part (a result,
// an object, a scaled copy), it can't take part and the others can't do without it: the generation is broken,
// HVD_INTERNAL here and HVD_PEER_LOST for them.
#include <fmt/format.h>

#include <algorithm>

#include "base/internal_status.h"
#include "collective/answer.h"
#include "collective/batch.h"
#include "collective/engine.h"
#include "numeric/reduce.h"

namespace hvd::collective {

namespace {
constexpr uint64_t kMostSequence = uint64_t{1} << 62;  // backends make tags of them
}

/// Why this can't be the outcome of these operations, or NULL. Under the lock.
const char* Engine::misfit(const std::vector<OperationPtr>& ops, const Outcome& outcome) const {
  if (std::any_of(ops.begin(), ops.end(), [](const OperationPtr& op) { return op->in_backend; }))
    return "it was answered before";  // and its memory is in use
  if (!outcome.status.ok()) return nullptr;
  if (outcome.sequence != 0 && outcome.sequence <= last_sequence_) return "its sequence does not grow";
  if (outcome.sequence > kMostSequence) return "its sequence is out of range";
  for (const auto& op : ops) {
    const Answer answer{*op, outcome, config_.rank, config_.hosts};
    if (const char* why = answer.misfit()) return why;
    if (ops.size() > 1 && (outcome.sequence == 0 || op->call->kind != ops[0]->call->kind ||
                           answer.count() < 2 || answer.row().parts == nullptr)) {
      return "these operations are no batch";
    }
  }
  return nullptr;
}

namespace {
bool names_one_twice(std::vector<uint64_t> more, uint64_t ticket) {
  if (more.empty()) return false;
  more.push_back(ticket);
  std::sort(more.begin(), more.end());
  return std::adjacent_find(more.begin(), more.end()) != more.end();
}
}  // namespace

void Engine::execute(const Work& work, Lock& lock) noexcept try {
  const Outcome& outcome = *work.outcome;
  std::vector<OperationPtr> ops;
  checks_.learned(work.proposal);
  bool all = true;
  const auto take = [&](uint64_t ticket) {
    const auto it = ops_.find(ticket);
    if (it == ops_.end() || !is_question(it->second->submission)) checks_.answered(ticket);
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
  const char* why = misfit(ops, outcome);
  if (names_one_twice(work.more, work.ticket)) why = "it names an operation twice";
  if (why != nullptr) {
    lock.unlock();
    Status status(coordinator() ? HVD_INTERNAL : HVD_PEER_LOST,
                  fmt::format("{} '{}': outcome refused: {}", kind_name(ops[0]->submission.kind),
                              ops[0]->submission.name, why));
    if (!coordinator()) status.rank = 0;  // contract 3: this rank can go on without it
    break_generation(std::move(status), true);
    return;
  }
  for (const auto& op : ops) op->matched(ops.size());
  Operation& op = *ops[0];
  Answer answer{op, outcome, config_.rank, config_.hosts};
  if (outcome.status.ok() && (outcome.sequence != 0 || answer.alone())) {
    auto batch = std::make_unique<Batch>(std::move(ops), outcome.sequence != 0, takes_parts_);
    if (outcome.grant.number != 0 && batch->ops.size() == 1) granted(op, outcome.grant);
    // From here on nothing fails before run().
    if (outcome.sequence != 0) last_sequence_ = outcome.sequence;
    for (const auto& each : batch->ops) each->in_backend = true;
    ++in_backend_;
    lock.unlock();
    run(std::move(batch), outcome);
    return;
  }
  // Under the lock, so that nobody takes the caller's memory away; it is little.
  Status status = outcome.status.ok() ? answer.settle() : outcome.status;
  if (outcome.status.ok() && answer.row().joins) checks_.resume(outcome.checks);
  if (outcome.grant.number != 0) granted(op, outcome.grant);
  remove(op);
  lock.unlock();
  op.complete(stamped(std::move(status)));
} catch (const std::exception& error) {
  if (lock.owns_lock()) lock.unlock();
  stuck(error);
}

Status Engine::plan(Batch& batch, const Outcome& outcome) const {
  Operation& first = *batch.ops[0];
  batch.ranks = outcome.participants.empty() ? first.call->members : outcome.participants;
  if (batch.ranks.size() == config_.hosts.size()) batch.ranks.clear();
  if (batch.ops.size() > 1) {
    plan_together(batch.plan, batch.ops);
  } else {
    Answer answer{first, outcome, config_.rank, config_.hosts};
    if (Status status = answer.row().plan(batch.plan, answer); !status.ok()) return status;
  }
  const size_t members = first.call->member_count(config_.hosts.size());
  if (config_.join_counts && first.submission.reduction == HVD_REDUCTION_AVERAGE &&
      !first.call->on_device() && !outcome.participants.empty() && outcome.participants.size() < members) {
    batch.divisor = static_cast<int32_t>(members);
    for (Plan::Step& step : batch.plan.steps()) step.op.reduction = HVD_REDUCTION_SUM;
  }
  uint64_t sequence = outcome.sequence;
  for (Plan::Step& step : batch.plan.steps()) {
    step.op.sequence = sequence++;
    if (!batch.ranks.empty()) {
      step.op.ranks = batch.ranks.data();
      step.op.rank_count = static_cast<int32_t>(batch.ranks.size());
    }
    if (!step.counts.empty()) step.op.counts = step.counts.data();
    if (step.parts.size() == 1) {
      step.op.input = step.parts[0].input;
      step.op.output = step.parts[0].output;
      step.op.count = step.parts[0].count;
      step.parts.clear();
    }
  }
  return {};
}

/// Hands operations to the backend. The batch keeps them and the engine until the last step is done.
void Engine::run(std::unique_ptr<Batch> owned, const Outcome& outcome) noexcept {
  Batch* const batch = owned.release();  // its own from here on: release() deletes it
  batch->engine = shared_from_this();
  Status status;
  try {
    status = plan(*batch, outcome);
  } catch (const std::exception& error) {
    status = internal_status(error, batch->ops[0]->submission.name.c_str());
  }
  if (!status.ok()) batch->plan.steps().clear();
  for (const auto& op : batch->ops) op->running();
  const size_t steps = batch->plan.steps().size();
  batch->outstanding.store(static_cast<int64_t>(steps) + 1, std::memory_order_relaxed);
  int64_t undone = 1;  // this function's own part, and those that were not accepted
  for (size_t i = 0; i < steps && status.ok(); ++i) {
    auto& step = batch->plan.steps()[i];
    step.op.done = on_done;
    step.op.done_context = batch;
    try {
      status = instance_.submit(step.op, step.parts);
    } catch (const std::exception& error) { status = internal_status(error); }
    if (!status.ok()) undone += static_cast<int64_t>(steps - i);
  }
  if (!status.ok()) {
    const hvd_status code = status.code;
    batch->note(std::move(status));
    // Nobody may wait for this rank's part.
    try {
      if (breaks(code) && code != HVD_PEER_LOST) abort_backend();
    } catch (const std::exception&) {}  // the others have the deadlines of their waits
  }
  release(batch, undone);
}

// A module may be written in C: nothing is thrown into it.
void Engine::on_done(void* context, hvd_status code, const hvd_error* error) noexcept {
  auto* batch = static_cast<Batch*>(context);
  if (code != HVD_OK) {
    try {
      batch->note(error != nullptr ? Status::from(code, *error) : Status(code, "the backend gave no reason"));
    } catch (const std::exception&) { batch->note(Status(code, "out of memory")); }  // none is needed
  }
  release(batch, 1);
}

void Engine::release(Batch* batch, int64_t steps) noexcept {
  if (batch->outstanding.fetch_sub(steps, std::memory_order_acq_rel) != steps) return;
  const std::unique_ptr<Batch> owned(batch);
  const std::shared_ptr<Engine> engine = batch->engine;
  engine->finished(*batch);
}

/// All steps are done: whatever fails here, its operations are over and the engine may be closed.
void Engine::finished(Batch& batch) noexcept {
  try {
    complete_batch(batch);
  } catch (const std::exception& error) {
    {
      const Lock lock(mutex_);
      for (const auto& op : batch.ops) {
        const auto it = ops_.find(op->ticket);
        if (it != ops_.end() && it->second == op) remove(*op);
      }
    }
    for (const auto& op : batch.ops) op->complete_without_memory();
    stuck(error);  // rank 0 may not have counted it
  }
  Lock lock(mutex_);
  --in_backend_;
  idle_.notify_all();
  drain(lock);
}

void Engine::complete_batch(Batch& batch) {
  Status status = batch.noted();
  const bool broken = breaks(status.code);
  if (status.ok()) {
    for (const auto& op : batch.ops) {
      const Submission& s = op->submission;
      const Row& row = row_of(s.kind);
      if (!row.reduces || !op->verdict.ok()) continue;
      for (const Tensor& t : row.place == nullptr ? s.outputs : op->results) {
        const auto elements = static_cast<size_t>(t.elements());
        if (elements > 0 && batch.divisor != 0) divide(t.dtype, t.data, elements, batch.divisor);
        if (elements > 0 && s.postscale != 1) scale(t.dtype, t.data, elements, s.postscale);
      }
    }
  }
  status = stamped(std::move(status));
  std::vector<OperationPtr> waiting;
  Status for_waiting;
  {
    Lock lock(mutex_);
    for (const auto& op : batch.ops) remove(*op);
    if (down() != nullptr) {
      status = *down();  // contract 3: the reason that was given, not what the backend made of it
    } else if (broken) {
      for_waiting = status;
      broken_ = status;
      waiting = take_waiting();
    }
    if (coordinator() && batch.in_order && down() == nullptr) {
      matcher_.ran();
      collect();
    }
  }
  complete(waiting, for_waiting);
  for (const auto& op : batch.ops) {
    Status own = status.ok() ? stamped(op->verdict) : status;
    if (!own.ok()) op->buffers.clear();
    op->complete(std::move(own));
  }
}

}  // namespace hvd::collective
