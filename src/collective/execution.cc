// Running operations in the backend once all ranks have called them. Where one rank's memory does not suffice
// for its part (a result, an object, a scaled copy), it can't take part and the others can't do without it:
// the generation is broken, HVD_INTERNAL here and HVD_PEER_LOST for them.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "collective/engine_impl.h"
#include "numeric/dtype.h"
#include "numeric/reduce.h"

namespace hvd::collective {

namespace {

constexpr size_t kSmallTensor = 64 << 10;  // of a group: smaller ones travel together
constexpr size_t kTogether = 4 << 20;      // bytes, so that packing and sending overlap

hvd_collective collective_of(Kind kind) {
  switch (kind) {
    case Kind::kAllreduce: return HVD_COLLECTIVE_ALLREDUCE;
    case Kind::kAllgather: return HVD_COLLECTIVE_ALLGATHER;
    case Kind::kReducescatter: return HVD_COLLECTIVE_REDUCESCATTER;
    case Kind::kAlltoall: return HVD_COLLECTIVE_ALLTOALL;
    default: return HVD_COLLECTIVE_BROADCAST;
  }
}

bool reduces(Kind kind) { return kind == Kind::kAllreduce || kind == Kind::kReducescatter; }

/// A tensor as the backend gets it: broadcasts move bytes.
backend::Part part_of(const PendingOperation& op, size_t index) {
  const Submission& s = op.submission;
  const Tensor& out = s.outputs[index];
  if (s.kind == Kind::kBroadcast) return {out.data, out.data, out.bytes()};
  const void* in = s.prescale == 1 ? s.inputs[index].data : out.data;  // scaled there
  return {in, out.data, static_cast<size_t>(out.elements())};
}

}  // namespace

struct Engine::Impl::Batch {
  struct Step {
    hvd_backend_op op{};
    std::vector<backend::Part> parts;
    std::vector<size_t> counts;
  };
  std::vector<OperationPtr> ops;
  std::vector<int32_t> ranks;  // empty: all
  std::vector<Step> steps;
  bool in_order = false;                // has a sequence, so that rank 0 counts it
  std::shared_ptr<Impl> engine;         // stays while the backend may call
  std::atomic<int64_t> outstanding{0};  // steps not done, plus one while they are submitted
  std::vector<Buffer> scratch;

  Step& add(const PendingOperation& of, hvd_dtype dtype) {
    Step& step = steps.emplace_back();
    step.op.struct_size = sizeof step.op;
    step.op.collective = collective_of(of.submission.kind);
    step.op.dtype = dtype;
    step.op.reduction = of.submission.reduction;
    step.op.root = of.submission.root;
    const auto& tensors = of.submission.inputs.empty() ? of.submission.outputs : of.submission.inputs;
    if (!tensors.empty()) {
      step.op.memory = tensors[0].memory;
      step.op.device = tensors[0].device;
      step.op.stream = tensors[0].stream;
    }
    return step;
  }
  /// The first failure stays. Any thread.
  void note(Status status) {
    const std::lock_guard lock(mutex_);
    if (noted_.ok()) noted_ = std::move(status);
  }
  Status noted() {
    const std::lock_guard lock(mutex_);
    return noted_;
  }

 private:
  std::mutex mutex_;
  Status noted_;
};

Status Engine::Impl::plan(Batch& batch, const Outcome& outcome) const {
  const PendingOperation& first = *batch.ops[0];
  batch.ranks = outcome.participants.empty() ? first.call->members : outcome.participants;
  if (batch.ranks.size() == config_.hosts.size()) batch.ranks.clear();
  for (const auto& op : batch.ops) {
    if (Status status = prescale(*op); !status.ok()) return status;
  }
  if (batch.ops.size() == 1) {
    if (Status status = plan_one(batch, *batch.ops[0], outcome); !status.ok()) return status;
  } else {
    auto& step =
        batch.add(first, first.submission.kind == Kind::kBroadcast ? hvd_dtype(HVD_DTYPE_UINT8)
                                                                   : first.submission.inputs[0].dtype);
    for (const auto& op : batch.ops) {
      for (size_t i = 0; i < op->submission.outputs.size(); ++i) {
        if (const backend::Part part = part_of(*op, i); part.count > 0) step.parts.push_back(part);
      }
    }
  }
  for (size_t i = 0; i < batch.steps.size(); ++i) {
    auto& step = batch.steps[i];
    step.op.sequence = outcome.sequence + i;
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

Status Engine::Impl::plan_one(Batch& batch, PendingOperation& op, const Outcome& outcome) const {
  const Submission& s = op.submission;
  switch (s.kind) {
    case Kind::kBroadcast:
    case Kind::kAllreduce:
      if (!batch.in_order) {  // nobody else: its own data is the result
        for (size_t i = 0; i < s.outputs.size(); ++i) {
          const backend::Part part = part_of(op, i);
          const size_t bytes = s.outputs[i].bytes();
          if (bytes > 0 && part.input != part.output) std::memmove(part.output, part.input, bytes);
        }
        return {};
      }
      plan_parts(batch, op);
      return {};
    case Kind::kBroadcastObject: {
      void* data = op.submission.object.data();
      PendingOperation::Memory memory{nullptr, outcome.object_size};
      if (config_.rank != s.root) {
        memory.data = allocate(outcome.object_size);
        if (memory.data == nullptr) {
          return Status(HVD_INTERNAL, fmt::format("broadcast_object '{}': no memory for {} bytes", s.name,
                                                  outcome.object_size));
        }
        data = memory.data.get();
      }
      op.buffers.push_back(std::move(memory));
      batch.add(op, HVD_DTYPE_UINT8).parts.push_back({data, data, static_cast<size_t>(outcome.object_size)});
      return {};
    }
    default: return plan_counted(batch, op, outcome);
  }
}

/// Large tensors each by themselves, small ones together. Follows from the shapes, so equal on all ranks.
void Engine::Impl::plan_parts(Batch& batch, const PendingOperation& op) const {
  const Submission& s = op.submission;
  Batch::Step* open = nullptr;
  size_t open_bytes = 0;
  for (size_t i = 0; i < s.outputs.size(); ++i) {
    const backend::Part part = part_of(op, i);
    if (part.count == 0) continue;
    const size_t bytes = s.outputs[i].bytes();
    const hvd_dtype dtype = s.kind == Kind::kBroadcast ? hvd_dtype(HVD_DTYPE_UINT8) : s.outputs[i].dtype;
    if (bytes >= kSmallTensor) {
      batch.add(op, dtype).parts.push_back(part);
      open = nullptr;  // its address may have changed
      continue;
    }
    if (open == nullptr || open->op.dtype != dtype || open_bytes + bytes > kTogether) {
      open = &batch.add(op, dtype);
      open_bytes = 0;
    }
    open->parts.push_back(part);
    open_bytes += bytes;
  }
}

/// Operations whose parts differ from rank to rank.
Status Engine::Impl::plan_counted(Batch& batch, PendingOperation& op, const Outcome& outcome) const {
  const Submission& s = op.submission;
  if (Status status = place_results(op, outcome, batch.in_order); !status.ok()) return status;
  const size_t count = participants(op, outcome);
  for (size_t t = 0; t < s.inputs.size(); ++t) {
    const Tensor& in = s.inputs[t];
    const void* input = in.data;
    const auto elements = static_cast<size_t>(in.elements());
    const size_t element = dtype_size(in.dtype);
    if (s.kind == Kind::kReducescatter && s.prescale != 1 && elements > 0) {
      Buffer scaled = allocate(elements * element);
      if (scaled == nullptr) {
        return Status(HVD_INTERNAL,
                      fmt::format("reducescatter '{}': no memory for {} bytes", s.name, elements * element));
      }
      std::memcpy(scaled.get(), in.data, elements * element);
      scale(in.dtype, scaled.get(), elements, s.prescale);
      input = scaled.get();
      batch.scratch.push_back(std::move(scaled));
    }
    if (!batch.in_order) {  // nobody else: its own data is the result
      if (op.verdict.ok() && elements > 0) std::memcpy(op.results[t].data, input, elements * element);
      continue;
    }
    const auto row = static_cast<size_t>(spec_bytes(in.dtype, std::span(in.shape).subspan(1))) / element;
    std::vector<size_t> counts;
    const auto add = [&](std::span<const int64_t> rows) {
      for (const int64_t n : rows) counts.push_back(static_cast<size_t>(n) * row);
    };
    if (s.kind == Kind::kAllgather) {
      add(std::span(outcome.rows).subspan(t * count, count));
      if (std::all_of(counts.begin(), counts.end(), [](size_t n) { return n == 0; })) continue;
    } else {
      add(s.splits);
      if (s.kind == Kind::kAlltoall) add(outcome.rows);
    }
    auto& step = batch.add(op, in.dtype);
    step.counts = std::move(counts);
    step.op.input = input;
    step.op.output = op.results[t].data;
    step.op.count = elements;
  }
  return {};
}

/// Allreduce: the scaled input goes to the output, where it is reduced in place.
Status Engine::Impl::prescale(PendingOperation& op) const {
  const Submission& s = op.submission;
  if (s.kind != Kind::kAllreduce || s.prescale == 1) return {};
  for (size_t i = 0; i < s.inputs.size(); ++i) {
    const Tensor& out = s.outputs[i];
    if (out.bytes() == 0) continue;
    if (out.data != s.inputs[i].data) std::memcpy(out.data, s.inputs[i].data, out.bytes());
    scale(out.dtype, out.data, static_cast<size_t>(out.elements()), s.prescale);
  }
  return {};
}

/// Hands operations to the backend. The batch keeps them and the engine until the last step is done.
void Engine::Impl::run(std::vector<OperationPtr> ops, const Outcome& outcome) {
  auto owned = std::make_unique<Batch>();
  Batch* const batch = owned.release();  // its own from here on: release() deletes it
  batch->ops = std::move(ops);
  batch->in_order = outcome.sequence != 0;
  batch->engine = shared_from_this();
  Status status;
  try {
    status = plan(*batch, outcome);
  } catch (const std::exception& error) {
    status = Status(HVD_INTERNAL, fmt::format("{} '{}': {}", kind_name(batch->ops[0]->submission.kind),
                                              batch->ops[0]->submission.name, error.what()));
  }
  if (!status.ok()) batch->steps.clear();
  for (const auto& op : batch->ops) op->running();
  const size_t steps = batch->steps.size();
  batch->outstanding.store(static_cast<int64_t>(steps) + 1, std::memory_order_relaxed);
  int64_t undone = 1;  // this function's own part, and those that were not accepted
  for (size_t i = 0; i < steps && status.ok(); ++i) {
    auto& step = batch->steps[i];
    step.op.done = on_done;
    step.op.done_context = batch;
    status = instance_.submit(step.op, step.parts);
    if (!status.ok()) undone += static_cast<int64_t>(steps - i);
  }
  if (!status.ok()) {
    const hvd_status code = status.code;
    batch->note(std::move(status));
    // Nobody may wait for this rank's part.
    if (breaks(code) && code != HVD_PEER_LOST) abort_backend();
  }
  release(batch, undone);
}

void Engine::Impl::on_done(void* context, hvd_status code, const hvd_error* error) {
  auto* batch = static_cast<Batch*>(context);
  if (code != HVD_OK) {
    batch->note(error != nullptr ? Status::from(code, *error) : Status(code, "the backend gave no reason"));
  }
  release(batch, 1);
}

void Engine::Impl::release(Batch* batch, int64_t steps) {
  if (batch->outstanding.fetch_sub(steps, std::memory_order_acq_rel) != steps) return;
  const std::unique_ptr<Batch> owned(batch);
  const std::shared_ptr<Impl> engine = batch->engine;
  engine->finished(*batch);
}

/// All steps are done.
void Engine::Impl::finished(Batch& batch) {
  Status status = batch.noted();
  const bool broken = breaks(status.code);
  if (status.ok()) {
    for (const auto& op : batch.ops) {
      const Submission& s = op->submission;
      if (!reduces(s.kind) || s.postscale == 1 || !op->verdict.ok()) continue;
      for (const Tensor& t : s.kind == Kind::kAllreduce ? s.outputs : op->results) {
        if (t.bytes() > 0) scale(t.dtype, t.data, static_cast<size_t>(t.elements()), s.postscale);
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
      broken_ = status;
      for_waiting = status;
      waiting = take_waiting();
    }
    if (coordinator() && batch.in_order && down() == nullptr) {
      matcher_.ran();
      collect();
    }
  }
  for (const auto& op : batch.ops) {
    Status own = status.ok() ? stamped(op->verdict) : status;
    if (!own.ok()) op->buffers.clear();
    op->complete(std::move(own));
  }
  complete(waiting, for_waiting);
  Lock lock(mutex_);
  --in_backend_;
  idle_.notify_all();
  drain(lock);
}

}  // namespace hvd::collective
