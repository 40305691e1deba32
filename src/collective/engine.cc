#include "collective/engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "collective/checks.h"
#include "collective/engine_impl.h"

namespace hvd::collective {

namespace {
/// How much longer than an operation's own time-out a rank waits for rank 0's word about it.
constexpr Duration kCoordinatorGrace = std::chrono::seconds(10);

EngineConfig complete_config(EngineConfig config) {
  if (config.logger == nullptr) config.logger = std::make_shared<Logger>();
  return config;
}

OperationPtr ended(OperationPtr op, Status status) {
  op->complete(std::move(status));
  return op;
}
}  // namespace

Engine::Engine(EngineConfig config, backend::Instance& instance)
    : impl_(std::make_shared<Impl>(complete_config(std::move(config)), instance)) {}

Engine::~Engine() { impl_->close(); }

void Engine::start() { impl_->start(); }
std::shared_ptr<Operation> Engine::submit(Submission submission) {
  return impl_->submit(std::move(submission));
}
Status Engine::check(Duration timeout, uint64_t* ret_word) { return impl_->check(timeout, ret_word); }
void Engine::deliver(int32_t source, std::span<const uint8_t> data) { impl_->deliver(source, data); }
void Engine::fail(const Status& why) { impl_->fail(why); }
void Engine::finish() { impl_->finish(); }
void Engine::tick(Time now) { impl_->tick(now); }

Engine::Impl::Impl(EngineConfig config, backend::Instance& instance)
    : config_(std::move(config)),
      instance_(instance),
      log_(*config_.logger),
      matcher_(config_.hosts, config_.stall_warning) {}

Status Engine::Impl::stamped(Status status) const {
  if (!status.ok() && status.generation == 0) status.generation = config_.generation;
  return status;
}

// ---- Events -------------------------------------------------------------------------------------

void Engine::Impl::start() {
  Lock lock(mutex_);
  started_ = true;
  drain(lock);
}

OperationPtr Engine::Impl::submit(Submission submission) {
  auto op = std::make_shared<PendingOperation>(std::move(submission));
  op->explainer = weak_from_this();
  if (op->submission.kind == Kind::kAllgather && op->submission.outputs.empty())
    op->submission.outputs.resize(1);
  if (Status status = collective::check(op->submission, config_.rank, size(), instance_.description());
      !status.ok()) {
    return ended(std::move(op), stamped(std::move(status)));
  }
  op->ticket = next_ticket_.fetch_add(1, std::memory_order_relaxed);
  Request request = make_request(op->submission, op->ticket, config_.rank);
  Work work;
  if (!coordinator()) {
    work.type = Work::Type::kRequest;
    work.bytes = encode(request);
  }
  const Time time = now();
  Lock lock(mutex_);
  if (down() != nullptr) {
    Status status = *down();
    lock.unlock();
    return ended(std::move(op), std::move(status));
  }
  if (finished_) {
    lock.unlock();
    return ended(std::move(op),
                 stamped(Status(HVD_CLOSED, fmt::format("{} '{}': this rank has finished and calls no "
                                                        "more operations",
                                                        kind_name(request.kind), request.name))));
  }
  if (!names_.insert(op->name).second) {
    lock.unlock();
    return ended(std::move(op),
                 stamped(Status(HVD_INVALID, fmt::format("{} '{}': an operation of that name is still "
                                                         "under way on this rank",
                                                         kind_name(request.kind), request.name))));
  }
  ops_.emplace(op->ticket, op);
  if (coordinator()) {
    matcher_.request(0, std::move(request), time);
    collect();
  } else {
    op->give_up = time + request.timeout + kCoordinatorGrace;
    arm(op->give_up);
    queue_.push_back(std::move(work));
  }
  drain(lock);
  return op;
}

Status Engine::Impl::check(Duration timeout, uint64_t* ret_word) {
  Submission submission;
  submission.name = "hvd.check_host_updates";
  submission.kind = Kind::kAgree;
  submission.word = config_.word ? config_.word() : 0;
  submission.timeout = timeout;
  const OperationPtr op = submit(std::move(submission));
  if (!op->wait(std::min(timeout, kMaxTimeout) + kCoordinatorGrace)) {
    return stamped(Status(HVD_TIMEOUT, op->waiting_for()));
  }
  if (op->status().ok()) *ret_word = op->word();
  return op->status();
}

void Engine::Impl::deliver(int32_t source, std::span<const uint8_t> data) {
  try {
    receive(source, decode(data, source, size()));
  } catch (const Error& error) {
    log_.warning("dropped a message of {} bytes from rank {}: {}", data.size(), source, error.what());
  } catch (const std::exception& error) {
    break_generation(Status(HVD_INTERNAL, fmt::format("message from rank {}: {}", source, error.what())),
                     true);
  }
}

void Engine::Impl::receive(int32_t source, Message&& message) {
  const bool to_coordinator =
      std::holds_alternative<Request>(message) || std::holds_alternative<FinishMessage>(message);
  if (to_coordinator ? !coordinator() || source == 0 : coordinator() || source != 0) {
    throw Error(HVD_INVALID, to_coordinator ? "request to a rank that does not coordinate"
                                            : "answer from a rank that does not coordinate");
  }
  Lock lock(mutex_);
  if (down() != nullptr) return;
  if (auto* request = std::get_if<Request>(&message)) {
    matcher_.request(source, std::move(*request), now());
    collect();
  } else if (std::holds_alternative<FinishMessage>(message)) {
    matcher_.finish(source);
    collect();
  } else if (auto* outcome = std::get_if<OutcomeMessage>(&message)) {
    Work work;
    work.type = Work::Type::kOutcome;
    work.rank = config_.rank;
    work.ticket = outcome->ticket;
    work.outcome = std::move(outcome->outcome);
    queue_.push_back(std::move(work));
  } else if (auto* stall = std::get_if<StallMessage>(&message)) {
    if (const auto it = ops_.find(stall->ticket); it != ops_.end())
      it->second->missing = std::move(stall->missing);
  }
  drain(lock);
}

void Engine::Impl::finish() {
  Lock lock(mutex_);
  if (finished_ || down() != nullptr) return;
  finished_ = true;
  if (coordinator()) {
    matcher_.finish(0);
    collect();
  } else {
    Work work;
    work.type = Work::Type::kRequest;
    work.bytes = encode(FinishMessage{});
    queue_.push_back(std::move(work));
  }
  drain(lock);
}

void Engine::Impl::tick(Time time) {
  Lock lock(mutex_);
  armed_ = Time::max();
  if (down() != nullptr) return;
  if (coordinator()) {
    matcher_.tick(time);
    collect();
    drain(lock);
    return;
  }
  std::vector<std::pair<OperationPtr, Status>> given_up;
  Time next = Time::max();
  for (const auto& [ticket, op] : ops_) {
    if (op->in_backend) continue;
    if (op->give_up > time) {
      next = std::min(next, op->give_up);
      continue;
    }
    Status status(HVD_TIMEOUT,
                  fmt::format("{} '{}': {}, which coordinates, has not answered within {:g} s",
                              kind_name(op->submission.kind), op->name, describe(0),
                              to_seconds(std::min(op->submission.timeout, kMaxTimeout) + kCoordinatorGrace)));
    status.rank = 0;
    given_up.emplace_back(op, stamped(std::move(status)));
  }
  for (const auto& [op, status] : given_up) remove(*op);
  if (next != Time::max()) arm(next);
  lock.unlock();
  for (auto& [op, status] : given_up) op->complete(std::move(status));
}

// ---- Failure and end ----------------------------------------------------------------------------

void Engine::Impl::fail(const Status& why) {
  Lock lock(mutex_);
  if (failed_) return;
  failed_ = stamped(why);
  if (failed_->ok()) failed_ = stamped(Status(HVD_INTERNAL, "failed without a reason"));
  const auto waiting = take_waiting();
  const Status status = *failed_;
  lock.unlock();
  complete(waiting, status);
  instance_.abort(config_.generation);
}

/// The generation does not work any more, as far as this rank can see. With `abort` the others learn of it.
void Engine::Impl::break_generation(Status why, bool abort) {
  Lock lock(mutex_);
  if (down() != nullptr) return;
  broken_ = stamped(std::move(why));
  const auto waiting = take_waiting();
  const Status status = *broken_;
  lock.unlock();
  complete(waiting, status);
  log_.warning("generation {} is broken: {}", config_.generation, status.message);
  if (abort) instance_.abort(config_.generation);
}

/// Every operation that the backend does not hold, and an empty queue. Under the lock.
std::vector<OperationPtr> Engine::Impl::take_waiting() {
  std::vector<OperationPtr> waiting;
  for (const auto& [ticket, op] : ops_) {
    if (!op->in_backend) waiting.push_back(op);
  }
  for (const auto& op : waiting) remove(*op);
  queue_.clear();
  return waiting;
}

void Engine::Impl::remove(const PendingOperation& op) {
  names_.erase(op.name);
  ops_.erase(op.ticket);
}

void Engine::Impl::complete(const std::vector<OperationPtr>& ops, const Status& status) {
  for (const auto& op : ops) op->complete(status);
}

void Engine::Impl::close() {
  fail(Status(HVD_CLOSED, "the generation was left"));
  Lock lock(mutex_);
  idle_.wait(lock, [&] { return in_backend_ == 0 && !draining_; });
}

std::string Engine::Impl::waiting_for(const std::string& name, uint64_t ticket) const {
  Lock lock(mutex_);
  const auto it = ops_.find(ticket);
  if (it == ops_.end()) return "";
  std::vector<int32_t> missing = it->second->missing;
  if (coordinator()) missing = matcher_.missing(name);
  if (it->second->in_backend || (coordinator() && missing.empty())) {
    return fmt::format("all ranks have called '{}', whose data is on its way", name);
  }
  if (missing.empty()) return fmt::format("waiting for the other ranks to call '{}'", name);
  return fmt::format("{} {} not called '{}'", describe_ranks(missing, config_.hosts),
                     missing.size() == 1 ? "has" : "have", name);
}

// ---- The queue ----------------------------------------------------------------------------------

/// Queues what the matcher has decided. Under the lock.
void Engine::Impl::collect() {
  for (auto& action : matcher_.take()) {
    Work work;
    switch (action.type) {
      case Matcher::Action::Type::kOutcome: work.type = Work::Type::kOutcome; break;
      case Matcher::Action::Type::kStall: work.type = Work::Type::kStall; break;
      case Matcher::Action::Type::kLog: work.type = Work::Type::kLog; break;
    }
    if (work.type == Work::Type::kStall && action.rank == config_.rank) continue;  // it knows
    work.rank = action.rank;
    work.ticket = action.ticket;
    work.outcome = std::move(action.outcome);
    work.missing = std::move(action.missing);
    work.line = std::move(action.line);
    queue_.push_back(std::move(work));
  }
  arm(matcher_.wake());
}

void Engine::Impl::arm(Time when) {
  if (when >= armed_) return;
  armed_ = when;
  if (config_.wake_at) config_.wake_at(when);
}

/// Works the queue off unless another thread is at it already, which then does this one's part too.
void Engine::Impl::drain(Lock& lock) {
  if (draining_ || !started_) return;
  draining_ = true;
  while (!queue_.empty()) {
    Work work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    perform(std::move(work));
    lock.lock();
  }
  draining_ = false;
  idle_.notify_all();
}

void Engine::Impl::perform(Work&& work) noexcept {
  try {
    switch (work.type) {
      case Work::Type::kRequest: send(0, work.bytes); break;
      case Work::Type::kOutcome:
        if (work.rank == config_.rank) {
          execute(work.ticket, work.outcome);
        } else {
          send(work.rank, encode(OutcomeMessage{work.ticket, work.outcome}));
        }
        break;
      case Work::Type::kStall:
        send(work.rank, encode(StallMessage{work.ticket, std::move(work.missing)}));
        break;
      case Work::Type::kLog: log_.warning("{}", work.line); break;
    }
  } catch (const std::exception& error) {
    try {
      break_generation(Status(HVD_INTERNAL, error.what()), true);
    } catch (...) {  // no memory even for that: whoever waits still has the deadline of the wait
    }
  }
}

void Engine::Impl::send(int32_t rank, const std::vector<uint8_t>& bytes) {
  Status status = instance_.send_message(rank, bytes);
  if (status.ok()) return;
  // Without this message some rank would wait in vain.
  const bool lost = status.code == HVD_PEER_LOST;
  if (status.rank < 0) status.rank = rank;
  break_generation(std::move(status), !lost);
}

}  // namespace hvd::collective
