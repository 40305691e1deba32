// Operations: checked, executed over shared memory or handed to the other backend; and the thread that waits.
#include "base/internal_status.h"
#include "local/bell.h"
#include "local/local_instance.h"
#include "numeric/dtype.h"

namespace hvd::local {
namespace {

bool needs_counts(hvd_collective collective) {
  return collective == HVD_COLLECTIVE_ALLGATHER || collective == HVD_COLLECTIVE_REDUCESCATTER ||
         collective == HVD_COLLECTIVE_ALLTOALL;
}

// Whether several ranks take part and no two of them share a host.
bool each_alone(const Generation& generation, const std::vector<int32_t>& ranks) {
  if (!generation.joins_hosts() || ranks.size() < 2 || ranks.size() > generation.hosts.groups.size())
    return false;
  std::vector<bool> seen(generation.hosts.groups.size());
  for (const int32_t rank : ranks) {
    const auto host = static_cast<size_t>(generation.hosts.group_of[static_cast<size_t>(rank)]);
    if (seen[host]) return false;
    seen[host] = true;
  }
  return true;
}

}  // namespace

Status LocalInstance::check(const Generation& generation, const hvd_backend_op& op) const {
  const auto invalid = [&](const std::string& text) {
    return error(HVD_INVALID, fmt::format("op {}: {}", op.sequence, text));
  };
  if (op.done == nullptr) return invalid("done is NULL");
  if (op.collective < 0 || op.collective > 63 || (kCollectives >> op.collective & 1) == 0) {
    return error(HVD_UNSUPPORTED, fmt::format("collective {} is not supported", op.collective));
  }
  if (op.memory != HVD_MEMORY_HOST) return error(HVD_UNSUPPORTED, "device memory is not supported");
  if (op.collective != HVD_COLLECTIVE_BARRIER && dtype_size(op.dtype) == 0) {
    return error(HVD_UNSUPPORTED, fmt::format("dtype {} is not supported", op.dtype));
  }
  bool me = op.ranks == nullptr, root = op.ranks == nullptr;
  if (op.ranks != nullptr) {
    int32_t before = -1;
    for (int32_t i = 0; i < op.rank_count; ++i) {
      const int32_t rank = op.ranks[i];
      if (rank <= before || rank >= generation.size()) {
        return invalid(fmt::format("ranks must ascend and be below {}", generation.size()));
      }
      me |= rank == generation.rank;
      root |= rank == op.root;
      before = rank;
    }
  }
  if (!me) return invalid(fmt::format("rank {} takes no part in it", generation.rank));
  if (op.collective == HVD_COLLECTIVE_BROADCAST && (!root || op.root < 0 || op.root >= generation.size())) {
    return invalid(fmt::format("root {} takes no part in it", op.root));
  }
  if (op.counts == nullptr && needs_counts(op.collective)) return invalid("counts is NULL");
  return {};
}

Status LocalInstance::submit(const hvd_backend_op& op, std::span<const backend::Part> parts) {
  if (inherited()) return not_here();
  GenerationPtr generation = current();
  if (generation == nullptr) return error(HVD_PEER_LOST, "no generation is connected");
  if (executor_ == nullptr) return inner_->submit(op, parts);
  if (Status status = check(*generation, op); !status.ok()) return status;
  std::unique_ptr<Job> job = executor_->blank();
  job->op = op;
  if (op.ranks != nullptr) {
    job->ranks.assign(op.ranks, op.ranks + op.rank_count);
  } else {
    job->ranks = generation->all;
  }
  job->counts.clear();
  const size_t counts = job->ranks.size() * (op.collective == HVD_COLLECTIVE_ALLTOALL ? 2 : 1);
  if (needs_counts(op.collective)) job->counts.assign(op.counts, op.counts + counts);
  job->parts.assign(parts.begin(), parts.end());
  job->op.ranks = job->ranks.data();
  job->op.rank_count = static_cast<int32_t>(job->ranks.size());
  job->op.counts = job->counts.empty() ? nullptr : job->counts.data();
  job->generation = std::move(generation);
  executor_->submit(std::move(job), lender_.load() == std::this_thread::get_id());
  return {};
}

// The operation's end is told whatever fails.
bool LocalInstance::execute(Job& job, Time deadline) noexcept {
  const uint64_t number = job.generation->number;
  const hvd_backend_op& op = job.op;
  Status status;
  try {
    if (!job.task) {
      job.passed_on = false;
      job.task = perform(job);
    }
    if (!job.generation->group.carry_on(job.task, deadline)) return false;
    status = job.task.outcome();
  } catch (const Error& error) { status = error.status(); } catch (const std::exception& error) {
    status = internal_status(error);
    abandon(number);  // the others wait for this rank's part
  }
  job.task = Task();
  if (job.passed_on) return true;
  if (status.ok()) {
    op.done(op.done_context, HVD_OK, nullptr);
    return true;
  }
  status.in_generation(number);
  if (status.backend.empty()) status.backend = "local";
  hvd_error text = HVD_ERROR_INIT;
  status.write_to(&text);
  op.done(op.done_context, status.code, &text);
  return true;
}

Task LocalInstance::perform(Job& job) {
  Generation& generation = *job.generation;
  const hvd_backend_op& op = job.op;
  if (generation.group.aborted()) co_return given_up(generation.number);
  if (each_alone(generation, job.ranks)) {
    hvd_backend_op alone = op;
    alone.sequence <<= InnerOps::kNumberBits;
    Status status = inner_->submit(alone, job.parts);
    job.passed_on = status.ok();
    co_return status;
  }
  if (job.parts.empty() &&
      (op.collective == HVD_COLLECTIVE_BROADCAST || op.collective == HVD_COLLECTIVE_ALLREDUCE)) {
    job.parts.push_back({op.input, op.output, op.count});
  }
  InnerOps inner(generation.joins_hosts() ? inner_.get() : nullptr, generation.group, op.sequence);
  // The ranks of this host wait for what the backend between hosts did not bring, and the operations that it
  // still has for other hosts: all are given up, so that these end.
  try {
    Status status =
        co_await run_collective(generation.group, generation.hosts, op, job.parts, job.ranks, inner);
    if (status.ok()) status = co_await generation.group.settle();
    if (!status.ok() && inner.used()) abandon(generation.number);
    co_return status;
  } catch (const Error&) {  // of an operation that none of them can execute
    if (inner.used()) abandon(generation.number);
    throw;
  } catch (const std::exception&) {
    abandon(generation.number);
    throw;
  }
}

void LocalInstance::abandon(uint64_t number) noexcept {
  try {
    abort(number);
  } catch (const std::exception&) {}  // all but its memory
}

void LocalInstance::lends(bool will) {
  if (will) {
    lender_ = std::this_thread::get_id();
  } else if (lender_.load() == std::this_thread::get_id()) {
    lender_ = std::thread::id();
    // The generation may have ended before the job was there: progress finds none any more.
    if (executor_ != nullptr && current() == nullptr) executor_->nudge();
  }
}

// Looks for messages, executes what they led to, and gives up when nothing has happened for a while: the
// message thread and the executor's then go on.
void LocalInstance::progress(const std::atomic<bool>& done, Time deadline) {
  if (inherited()) return;
  const GenerationPtr generation = current();
  if (generation == nullptr) return;
  Messages& messages = generation->messages;
  const bool lends = executor_ != nullptr;
  bool entered = false;
  for (Spin spin = generation->group.spin(deadline); !done && !messages.stopped() && spin.again();) {
    bool any = false;
    if (entered || (entered = messages.enter())) {
      if (lends) lender_ = std::this_thread::get_id();
      any = messages.poll();
      if (lends) lender_ = std::thread::id();
    }
    if (lends && !done && executor_->waiting()) {
      // The message thread's turn meanwhile: an operation may take long.
      if (std::exchange(entered, false)) messages.leave();
      any |= executor_->lend(deadline);
    }
    if (!any) continue;
    if (now() >= deadline) break;
    spin.restart();
  }
  if (entered) messages.leave();
  if (executor_ != nullptr) executor_->nudge();
}

}  // namespace hvd::local
