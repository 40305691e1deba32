// The engine's life, submissions, and messages that come in.
#include "collective/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "base/internal_status.h"
#include "collective/validation.h"

namespace hvd::collective {

namespace {
constexpr Duration kPunctual = std::chrono::seconds(1);  // a tick that comes so late is one in time
constexpr Duration kToRead = std::chrono::seconds(2);    // what came while this process was held up

EngineConfig complete_config(EngineConfig config) {
  if (config.logger == nullptr) config.logger = std::make_shared<Logger>();
  return config;
}

OperationPtr ended(OperationPtr op, Status status) {
  op->complete(std::move(status));
  return op;
}
}  // namespace

namespace {
MatcherConfig matcher_config(const EngineConfig& config, const backend::Description& backend) {
  MatcherConfig matcher;
  matcher.hosts = config.hosts;
  matcher.stall_warning = config.stall_warning;
  matcher.fusion_threshold = config.fusion_threshold;
  matcher.keep_order = config.deterministic;
  matcher.keep_order_on_a_host =
      !backend.local;  // whose collectives within a host are the core's own, or unknown
  matcher.join_counts = config.join_counts;
  matcher.most_under_way = config.most_under_way;
  matcher.interrupts = config.interrupts;
  return matcher;
}
}  // namespace

Engine::Engine(EngineConfig config, backend::Instance& instance)
    : config_(std::move(config)),
      instance_(instance),
      carrier_(instance.carrier()),
      log_(*config_.logger),
      matcher_(matcher_config(config_, instance.description())),
      received_(config_.hosts.size()),
      refusals_(config_.hosts.size() + 1) {
  spare_.reserve(kSpare);  // what drains puts messages there without memory
}

// The engine itself lives on while an operation or the backend holds it; what is given out closes it.
std::shared_ptr<Engine> Engine::open(EngineConfig config, backend::Instance& instance) {
  std::shared_ptr<Engine> engine(new Engine(complete_config(std::move(config)), instance));
  Engine* const pointer = engine.get();
  return {pointer, [engine = std::move(engine)](Engine*) { engine->close(); }};
}

Status Engine::stamped(Status status) const {
  if (!status.ok() && status.generation == 0) status.generation = config_.generation;
  return status;
}

// ---- Events -------------------------------------------------------------------------------------

void Engine::start() {
  Lock lock(mutex_);
  if (!started_) take_board();
  started_ = true;
  drain(lock);
}

OperationPtr Engine::submit(Submission submission) {
  auto op = std::make_shared<Operation>(std::move(submission));
  op->engine = weak_from_this();
  op->watch(config_.timeline);
  if (Status status = collective::check(op->submission, config_.rank, size(), instance_); !status.ok()) {
    return ended(std::move(op), stamped(std::move(status)));
  }
  complete_submission(&op->submission, size());
  Lock lock(mutex_);
  Status status = obstacle(op->submission);
  if (status.ok()) status = too_many(op->submission);
  if (!status.ok()) {
    lock.unlock();
    return ended(std::move(op), std::move(status));
  }
  begin(op, false, lock);
  drain(lock);
  return op;
}

Status Engine::ask(Submission question, uint64_t* ret_word) {
  const Duration timeout = question.timeout;
  const auto op = std::make_shared<Operation>(std::move(question));
  op->engine = weak_from_this();
  op->watch(config_.timeline);
  {
    Lock lock(mutex_);
    if (Status status = obstacle(op->submission); !status.ok()) return status;
    begin(op, true, lock);
    drain(lock);
  }
  if (!op->wait(std::min(timeout, kMaxTimeout) + 2 * kCoordinatorGrace)) {
    return stamped(Status(HVD_TIMEOUT, fmt::format("check of host updates: {}", op->waiting_for())));
  }
  Status status = op->status();
  if (status.ok()) *ret_word = op->word();
  return status;
}

Status Engine::obstacle(const Submission& s) {
  return obstacle(s.kind, s.name,
                  s.members.empty() ? keys_.contains(s.name) || meeting(s.name)
                                    : keys_.contains(matching_key(s.name, s.set, s.members)));
}

Status Engine::obstacle(Kind kind, const std::string& name, bool in_use) {
  if (down() != nullptr) return *down();
  if (finished_) {
    return stamped(Status(
        HVD_CLOSED,
        fmt::format("{} '{}': this rank has finished and calls no more operations", kind_name(kind), name)));
  }
  if (!in_use) return {};
  return stamped(
      Status(HVD_INVALID, fmt::format("{} '{}': an operation of that name is still under way on this "
                                      "rank",
                                      kind_name(kind), name)));
}

/// Rank 0 has to remember them until all ranks have called them. Nothing was sent yet.
Status Engine::too_many(const Submission& s) const {
  if (ops_.size() >= config_.most_under_way) {
    return stamped(
        Status(HVD_INVALID,
               fmt::format("{} '{}': {} has {} operations under way: expected at most {}", kind_name(s.kind),
                           s.name, describe(config_.rank), ops_.size(), config_.most_under_way)));
  }
  if (bytes_under_way_ < kMostBytesUnderWay) return {};
  return stamped(
      Status(HVD_INVALID,
             fmt::format("{} '{}': the {} operations that {} has under way come to {} bytes in messages: "
                         "expected at most {}",
                         kind_name(s.kind), s.name, ops_.size(), describe(config_.rank), bytes_under_way_,
                         kMostBytesUnderWay)));
}

void Engine::deliver(int32_t source, std::span<const uint8_t> data) try {
  Message message = decode(data, source, size());
  const bool to_coordinator =
      std::holds_alternative<RequestMessage>(message) || std::holds_alternative<FinishMessage>(message);
  if (to_coordinator ? !coordinator() || source == 0 : coordinator() || source != 0) {
    throw Error(HVD_INVALID, to_coordinator ? "request to a rank that does not coordinate"
                                            : "answer from a rank that does not coordinate");
  }
  Lock lock(mutex_);
  if (down() != nullptr) return;
  if (auto* called = std::get_if<RequestMessage>(&message)) {
    Request& request = called->request;
    const auto rank = static_cast<size_t>(source);
    if (request.call != nullptr) {
      validate(request, source, size());
      request.call = received_.remember(rank, called->id, std::move(request.call));
    } else if (request.call = received_.find(rank, called->id, called->digest); request.call == nullptr) {
      Work& work = queue_.emplace_back();
      work.type = Work::Type::kResend;
      work.rank = source;
      work.ticket = request.ticket;
      return drain(lock);
    } else {
      validate(request, source, size());
    }
    matcher_.request(source, std::move(request), now());
    collect();
  } else if (std::holds_alternative<FinishMessage>(message)) {
    matcher_.finish(source);
    collect();
  } else if (auto* outcome = std::get_if<OutcomeMessage>(&message)) {
    Work& work = queue_.emplace_back();
    work.type = Work::Type::kOutcome;
    work.rank = config_.rank;
    work.ticket = outcome->ticket;
    work.more = std::move(outcome->more);
    work.outcome = std::move(outcome->outcome);
    work.proposal = outcome->proposal;
    // Its data stay in the message if drain begins with it, and is done with it when this returns.
    if (draining_ || !started_ || held_ || queue_.size() > 1) work.outcome = kept(std::move(work.outcome));
  } else if (auto* stall = std::get_if<StallMessage>(&message)) {
    if (const auto it = ops_.find(stall->ticket); it != ops_.end())
      it->second->missing = std::move(stall->missing);
  } else if (const auto* again = std::get_if<ResendMessage>(&message)) {
    const auto it = ops_.find(again->ticket);
    if (it != ops_.end() && !it->second->in_backend) {
      if (std::exchange(it->second->resent, true)) throw Error(HVD_INVALID, "it asks twice for a call");
      queue_request(*it->second, 0, true);
    }
  }
  drain(lock);
} catch (const Error& error) {
  Lock lock(mutex_);
  if (down() != nullptr) return;
  refused(source,
          fmt::format("dropped a message of {} bytes from rank {}: {}", data.size(), source, error.what()));
  drain(lock);
} catch (const std::exception& error) { stuck(error); }

void Engine::finish() {
  Lock lock(mutex_);
  if (finished_ || down() != nullptr) return;
  finished_ = true;
  if (coordinator()) {
    matcher_.finish(0);
    collect();
  } else {
    queue_message([](Encoder& encoder) { encoder.encode(FinishMessage{}); });
  }
  drain(lock);
}

/// Contract 19: who was stopped or starved itself finds deadlines of others in the past, and what they said
/// meanwhile unread. Messages come by other threads: they get the time to be read, once for each deadline.
Duration Engine::held_up(Time time) {
  if (armed_ == Time::max() || time - armed_ <= kPunctual) return Duration(0);
  const Duration late = time - armed_;
  if (armed_ <= read_by_) return late;
  read_by_ = time + kToRead;
  return late + kToRead;
}

void Engine::tick(Time time) {
  try {
    look_at_deadlines(time);
  } catch (const std::exception& error) { stuck(error); }  // or what waits would have no deadline
}

void Engine::look_at_deadlines(Time time) {
  Lock lock(mutex_);
  const Duration late = held_up(time);
  armed_ = Time::max();
  if (down() != nullptr) return;
  if (coordinator()) {
    if (late > Duration(0)) matcher_.held_up(late);
    matcher_.tick(time);
    collect();
    drain(lock);
    return;
  }
  std::vector<std::pair<OperationPtr, Status>> given_up;
  Time next = Time::max();
  for (const auto& [ticket, op] : ops_) {
    if (op->in_backend) continue;
    op->give_up += late;
    if (op->give_up > time) {
      next = std::min(next, op->give_up);
      continue;
    }
    Status status(HVD_TIMEOUT,
                  fmt::format("{} '{}': {}, which coordinates, has not answered within {:g} s",
                              kind_name(op->submission.kind), op->submission.name, describe(0),
                              to_seconds(std::min(op->submission.timeout, kMaxTimeout) + kCoordinatorGrace)));
    status.rank = 0;
    given_up.emplace_back(op, stamped(std::move(status)));
  }
  if (next != Time::max()) arm(next);
  for (const auto& [op, status] : given_up) remove(*op);
  lock.unlock();
  for (auto& [op, status] : given_up) op->complete(std::move(status));
}

// ---- Failure and end ----------------------------------------------------------------------------

void Engine::fail(const Status& why) {
  Lock lock(mutex_);
  if (failed_) return;
  Status status;
  try {
    status = stamped(why.ok() ? Status(HVD_INTERNAL, "failed without a reason") : why);
    failed_ = status;
  } catch (const std::exception&) {  // this needs no memory
    status = stamped(Status(why.ok() ? hvd_status{HVD_INTERNAL} : why.code, "out of memory"));
    failed_ = status;
  }
  const auto waiting = take_waiting();
  lock.unlock();
  complete(waiting, status);
  abort_backend();
}

Status Engine::failure() const {
  const Lock lock(mutex_);
  const Status* const why = down();
  return why == nullptr ? Status() : *why;
}

void Engine::abort_backend() {
  if (config_.aborting) config_.aborting();
  instance_.abort(config_.generation);
}

/// The generation does not work any more, as far as this rank can see. With `abort` the others learn of it.
void Engine::break_generation(Status why, bool abort) {
  Lock lock(mutex_);
  if (down() != nullptr) return;
  const Status status = stamped(std::move(why));
  broken_ = status;
  const auto waiting = take_waiting();
  lock.unlock();
  complete(waiting, status);
  if (abort) abort_backend();
  log_.warning("generation {} is broken: {}", config_.generation, status.message);
  if (abort && status.code == HVD_PEER_LOST && config_.broken) config_.broken(status);
}

/// An exception has cut off what others wait for.
void Engine::stuck(const std::exception& error) noexcept {
  for (const Status& why : {internal_status(error), internal_status(std::bad_alloc())}) {
    try {
      return break_generation(why, true);
    } catch (const std::exception&) {}  // the second one needs no memory to end those who wait here
  }
}

/// Every operation that the backend does not hold, and an empty queue. Without memory for them they are over
/// already. Under the lock.
std::vector<OperationPtr> Engine::take_waiting() noexcept {
  std::vector<OperationPtr> waiting;
  bool takes = true;
  try {
    waiting.reserve(ops_.size());
  } catch (const std::exception&) { takes = false; }
  for (auto it = ops_.begin(); it != ops_.end();) {
    const OperationPtr op = it->second;
    ++it;  // it is removed
    if (op->in_backend) continue;
    remove(*op);
    if (takes) {
      waiting.push_back(op);
    } else {
      op->complete_without_memory();
    }
  }
  queue_.clear();
  return waiting;
}

void Engine::remove(const Operation& op) {
  bytes_under_way_ -= op.weight;
  keys_.erase(op.call->key);
  ops_.erase(op.ticket);
}

void Engine::complete(const std::vector<OperationPtr>& ops, const Status& status) noexcept {
  for (const auto& op : ops) {
    try {
      op->complete(status);
    } catch (const std::exception&) { op->complete_without_memory(); }
  }
}

void Engine::close() {
  closing_ = true;
  try {
    fail(Status(HVD_CLOSED, "the generation was left"));
  } catch (const std::exception&) {}  // of the backend's abort: who waited has come out
  Lock lock(mutex_);
  idle_.wait(lock, [&] { return in_backend_ == 0 && !draining_ && lent_ == 0; });
}

void Engine::progress(const std::atomic<bool>& done, Time deadline) {
  ++lent_;
  try {
    if (!closing_) carrier_.progress(done, deadline);
  } catch (const std::exception&) {}  // the backend's own threads go on, and this one waits for them
  if (--lent_ == 0 && closing_) {
    const Lock lock(mutex_);
    idle_.notify_all();
  }
}

std::string Engine::waiting_for(uint64_t ticket) const {
  Lock lock(mutex_);
  const auto it = ops_.find(ticket);
  if (it == ops_.end()) return "";
  const Operation& op = *it->second;
  const std::string& name = op.submission.name;
  std::vector<int32_t> missing = op.missing;
  if (coordinator()) missing = matcher_.missing(key_of(*op.call, op.checks));
  if (op.in_backend || (coordinator() && missing.empty())) {
    return fmt::format("all ranks have called '{}', whose data is on its way", name);
  }
  if (missing.empty()) return fmt::format("waiting for the other ranks to call '{}'", name);
  return fmt::format("{} {} not called '{}'", describe_ranks(missing, config_.hosts),
                     missing.size() == 1 ? "has" : "have", name);
}

}  // namespace hvd::collective
