#include "collective/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/reduce.h"
#include "collective/checks.h"
#include "collective/engine_impl.h"

namespace hvd::collective {

namespace {
/// How much longer than an operation's own time-out a rank waits for rank 0's word about it.
constexpr Duration kCoordinatorGrace = std::chrono::seconds(10);
constexpr size_t kMaxSmallData = 64 << 10;  // see kMaxPayload

bool reduces(Kind kind) { return kind == Kind::kAllreduce || kind == Kind::kReducescatter; }

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

namespace {
MatcherConfig matcher_config(const EngineConfig& config, const backend::Description& backend) {
  MatcherConfig matcher;
  matcher.hosts = config.hosts;
  matcher.stall_warning = config.stall_warning;
  matcher.fusion_threshold = config.fusion_threshold;
  matcher.keep_order = config.deterministic;
  matcher.keep_order_on_a_host =
      !backend.local;  // whose collectives within a host are the core's own, or unknown
  matcher.interrupts = config.interrupts;
  return matcher;
}
}  // namespace

Engine::Impl::Impl(EngineConfig config, backend::Instance& instance)
    : config_(std::move(config)),
      instance_(instance),
      log_(*config_.logger),
      matcher_(matcher_config(config_, instance.description())),
      received_(config_.hosts.size()) {}

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
  op->engine = weak_from_this();
  op->watch(config_.timeline);
  if (Status status = collective::check(op->submission, config_.rank, size(), instance_.description());
      !status.ok()) {
    return ended(std::move(op), stamped(std::move(status)));
  }
  complete_submission(&op->submission, size());
  Lock lock(mutex_);
  if (Status status = obstacle(op->submission); !status.ok()) {
    lock.unlock();
    return ended(std::move(op), std::move(status));
  }
  begin(op, false);
  drain(lock);
  return op;
}

Status Engine::Impl::check(Duration timeout, uint64_t* ret_word) {
  Submission submission;
  submission.name = kCheckName;
  submission.kind = Kind::kAgree;
  submission.timeout = timeout;
  OperationPtr op;
  {
    Lock lock(mutex_);
    if (Status status = obstacle(submission); !status.ok()) return status;
    if (checks_.begin(ret_word)) return {};
    op = std::make_shared<PendingOperation>(std::move(submission));
    op->engine = weak_from_this();
    op->watch(config_.timeline);
    begin(op, true);
    drain(lock);
  }
  if (!op->wait(std::min(timeout, kMaxTimeout) + 2 * kCoordinatorGrace)) {
    return stamped(Status(HVD_TIMEOUT, fmt::format("check of host updates: {}", op->waiting_for())));
  }
  Status status = op->status();
  if (status.ok()) *ret_word = op->word();
  return status;
}

Status Engine::Impl::obstacle(const Submission& s) {
  if (down() != nullptr) return *down();
  if (finished_) {
    return stamped(
        Status(HVD_CLOSED, fmt::format("{} '{}': this rank has finished and calls no more operations",
                                       kind_name(s.kind), s.name)));
  }
  const bool in_use =
      s.members.empty() ? keys_.contains(s.name) : keys_.contains(matching_key(s.name, s.set, s.members));
  if (!in_use) return {};
  return stamped(
      Status(HVD_INVALID, fmt::format("{} '{}': an operation of that name is still under way on this "
                                      "rank",
                                      kind_name(s.kind), s.name)));
}

/// Under the lock.
void Engine::Impl::begin(const OperationPtr& op, bool question) {
  const Time time = now();
  SentSignatures::Found found = sent_.find(op->submission);
  op->ticket = next_ticket_++;
  op->epoch = config_.word ? config_.word() : 0;
  op->checks = checks_.begun();
  if (question) {
    --op->checks;  // it is what is asked for
  } else {
    checks_.called(op->ticket);
  }
  op->call =
      coordinator() ? received_.remember(0, 0, std::move(found.signature)) : std::move(found.signature);
  keys_.insert(op->call->key);
  ops_.emplace(op->ticket, op);
  if (!coordinator()) {
    op->give_up = time + op->call->timeout + kCoordinatorGrace;
    arm(op->give_up);
    queue_request(*op, found.id, !found.known);
    return;
  }
  Request request;
  request.ticket = op->ticket;
  request.call = op->call;
  request.checks = op->checks;
  request.epoch = op->epoch;
  request.word = op->submission.word;
  if (op->call->kind == Kind::kBroadcastObject && op->call->root == 0) {
    request.object_size = op->submission.object.size();
    if (request.object_size <= kInlineObject) request.payload = op->submission.object;
  } else if (carries(*op->call)) {
    request.carries = true;
    request.payload.resize(op->call->payload);
    fill(*op, request.payload.data());
  }
  matcher_.request(0, std::move(request), time);
  collect();
}

/// Does this rank's data travel with its request?
bool Engine::Impl::carries(const Signature& call) const {
  switch (call.kind) {
    case Kind::kBroadcast:
      if (call.root != config_.rank) return false;
      break;
    case Kind::kAllreduce:
    case Kind::kAllgather:
    case Kind::kReducescatter:
    case Kind::kAlltoall: break;
    default: return false;
  }
  const size_t members = call.member_count(config_.hosts.size());
  return members > 1 && call.payload <= std::min(config_.small_data, kMaxSmallData) / members;
}

/// Copies an operation's data to where it travels.
void Engine::Impl::fill(const PendingOperation& op, uint8_t* room) const {
  const Submission& s = op.submission;
  size_t at = 0;
  for (const Tensor& t : s.kind == Kind::kBroadcast ? s.outputs : s.inputs) {
    const size_t bytes = t.bytes(), begin = payload_aligned(at);
    std::memset(room + at, 0, begin - at);
    at = begin + bytes;
    if (bytes == 0) continue;
    std::memcpy(room + begin, t.data, bytes);
    if (reduces(s.kind) && s.prescale != 1) {
      scale(t.dtype, room + begin, static_cast<size_t>(t.elements()), s.prescale);
    }
  }
}

/// Under the lock.
void Engine::Impl::queue_request(const PendingOperation& op, uint32_t id, bool in_full) {
  const Submission& s = op.submission;
  Request request;
  request.ticket = op.ticket;
  request.call = op.call;
  request.checks = op.checks;
  request.epoch = op.epoch;
  request.word = s.word;
  size_t bytes = 0;
  if (s.kind == Kind::kBroadcastObject && s.root == config_.rank) {
    request.object_size = s.object.size();
    if (request.object_size <= kInlineObject) bytes = s.object.size();
  } else if (carries(*op.call)) {
    request.carries = true;
    bytes = op.call->payload;
  }
  queue_message(request_encoder_.encode(request, id, in_full, bytes, [&](uint8_t* room) {
    if (s.kind == Kind::kBroadcastObject) {
      std::memcpy(room, s.object.data(), bytes);
    } else {
      fill(op, room);
    }
  }));
}

void Engine::Impl::queue_message(std::span<const uint8_t> bytes) {
  Work& work = queue_.emplace_back();
  work.type = Work::Type::kMessage;
  if (!spare_bytes_.empty()) {
    work.bytes = std::move(spare_bytes_.back());
    spare_bytes_.pop_back();
  }
  work.bytes.assign(bytes.begin(), bytes.end());
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
  } else if (auto* stall = std::get_if<StallMessage>(&message)) {
    if (const auto it = ops_.find(stall->ticket); it != ops_.end())
      it->second->missing = std::move(stall->missing);
  } else if (const auto* again = std::get_if<ResendMessage>(&message)) {
    const auto it = ops_.find(again->ticket);
    if (it != ops_.end() && !it->second->in_backend) queue_request(*it->second, 0, true);
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
    queue_message(request_encoder_.encode(FinishMessage{}));
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
                              kind_name(op->submission.kind), op->submission.name, describe(0),
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
  keys_.erase(op.call->key);
  ops_.erase(op.ticket);
}

void Engine::Impl::complete(const std::vector<OperationPtr>& ops, const Status& status) {
  for (const auto& op : ops) op->complete(status);
}

void Engine::Impl::close() {
  closing_ = true;
  fail(Status(HVD_CLOSED, "the generation was left"));
  Lock lock(mutex_);
  idle_.wait(lock, [&] { return in_backend_ == 0 && !draining_ && lent_ == 0; });
}

void Engine::Impl::progress(const std::atomic<bool>& done, Time deadline) {
  ++lent_;
  if (!closing_) instance_.progress(done, deadline);
  if (--lent_ == 0 && closing_) {
    const Lock lock(mutex_);
    idle_.notify_all();
  }
}

std::string Engine::Impl::waiting_for(const std::string&, uint64_t ticket) const {
  Lock lock(mutex_);
  const auto it = ops_.find(ticket);
  if (it == ops_.end()) return "";
  const PendingOperation& op = *it->second;
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

// ---- The queue ----------------------------------------------------------------------------------

/// Queues what the matcher has decided. Under the lock.
void Engine::Impl::collect() {
  matcher_.take(&actions_);
  for (auto& action : actions_) {
    using Type = Matcher::Action::Type;
    if (action.type == Type::kStall && action.rank == config_.rank) continue;  // it knows
    Work& work = queue_.emplace_back();
    switch (action.type) {
      case Type::kOutcome: work.type = Work::Type::kOutcome; break;
      case Type::kStall: work.type = Work::Type::kStall; break;
      case Type::kLog: work.type = Work::Type::kLog; break;
      case Type::kStallReport: work.type = Work::Type::kStallReport; break;
    }
    work.rank = action.rank;
    work.ticket = action.ticket;
    work.more = std::move(action.more);
    work.outcome = std::move(action.outcome);
    work.proposal = action.proposal;
    work.missing = std::move(action.missing);
    work.waited = action.waited;
    work.line = std::move(action.line);
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
    perform(work);
    lock.lock();
    if (work.bytes.capacity() > 0 && spare_bytes_.size() < 16) spare_bytes_.push_back(std::move(work.bytes));
  }
  draining_ = false;
  idle_.notify_all();
}

void Engine::Impl::perform(Work& work) noexcept {
  try {
    switch (work.type) {
      case Work::Type::kMessage: send(0, work.bytes); break;
      case Work::Type::kOutcome:
        if (work.rank == config_.rank) {
          execute(work);
        } else {
          send(work.rank, encoder_.encode(OutcomeMessage{work.ticket, std::move(work.more),
                                                         std::move(work.outcome), work.proposal}));
        }
        break;
      case Work::Type::kStall:
        send(work.rank, encoder_.encode(StallMessage{work.ticket, std::move(work.missing)}));
        break;
      case Work::Type::kResend: send(work.rank, encoder_.encode(ResendMessage{work.ticket})); break;
      case Work::Type::kLog: log_.warning("{}", work.line); break;
      case Work::Type::kStallReport:
        log_.warning("{}", work.line);
        if (config_.stalled) config_.stalled(work.line, work.missing, work.waited);
        break;
    }
  } catch (const std::exception& error) {
    try {
      break_generation(Status(HVD_INTERNAL, error.what()), true);
    } catch (...) {  // no memory even for that: whoever waits still has the deadline of the wait
    }
  }
}

void Engine::Impl::send(int32_t rank, std::span<const uint8_t> bytes) {
  Status status = instance_.send_message(rank, bytes);
  if (status.ok()) return;
  // Without this message some rank would wait in vain.
  const bool lost = status.code == HVD_PEER_LOST;
  if (status.rank < 0) status.rank = rank;
  break_generation(std::move(status), !lost);
}

}  // namespace hvd::collective
