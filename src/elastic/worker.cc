#include "elastic/worker.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>

namespace hvd::elastic {

namespace {

std::string host_of(const Options& options) {
  std::string host = options.string("host");
  if (!host.empty()) return host;
  char name[256] = "";
  if (::gethostname(name, sizeof(name) - 1) != 0 || name[0] == 0) return "localhost";
  return name;
}

session::SessionConfig session_config(const Options& options) {
  session::SessionConfig config;
  config.driver = options.string("driver");
  config.secret = options.string("secret");
  config.job = options.string("job");
  config.host = host_of(options);
  config.worker = static_cast<uint64_t>(options.integer("worker"));
  config.slot = static_cast<int32_t>(options.integer("slot"));
  config.connect_timeout = options.duration("connect_timeout");
  config.logger = options.logger;
  if (config.secret.empty()) {
    throw Error(HVD_INVALID, "option secret (HVD_SECRET) is empty: the driver gives it to the workers that it starts");
  }
  if (config.worker == 0) {
    throw Error(HVD_INVALID, "option worker (HVD_WORKER) is 0: expected the identity that the driver gave");
  }
  return config;
}

template <size_t N>
void copy_text(char (&target)[N], const std::string& text) {
  const size_t length = std::min(text.size(), N - 1);
  std::memcpy(target, text.data(), length);
  target[length] = 0;
}

}  // namespace

hvd_membership membership_of(const session::Assignment& assignment, uint64_t worker) {
  hvd_membership m{};
  m.struct_size = sizeof(m);
  m.rank = assignment.rank;
  m.size = static_cast<int32_t>(assignment.members.size());
  m.generation = assignment.generation;
  m.membership_epoch = assignment.epoch;
  m.worker = worker;
  const session::Member& self = assignment.members.at(static_cast<size_t>(assignment.rank));
  m.local_rank = self.local_rank;
  for (int32_t rank = 0; rank < m.size; ++rank) {
    const session::Member& member = assignment.members[static_cast<size_t>(rank)];
    if (member.host == self.host) ++m.local_size;
    if (member.local_rank != self.local_rank) continue;
    ++m.cross_size;
    if (rank < m.rank) ++m.cross_rank;
  }
  return m;
}

Worker::Worker(const Options& options)
    : logger_(options.logger),
      worker_(static_cast<uint64_t>(options.integer("worker"))),
      operation_timeout_(options.duration("operation_timeout")),
      connect_timeout_(options.duration("connect_timeout")),
      init_timeout_(options.duration("init_timeout")),
      stall_warning_(options.duration("stall_warning")),
      notifications_(options.logger),
      timers_("hvd-timers") {}

Worker::~Worker() { close(Status(HVD_CLOSED, "the context was destroyed"), Duration(0)); }

Status Worker::start(const Options& options, std::unique_ptr<Worker>* ret_worker) {
  std::unique_ptr<Worker> worker(new Worker(options));
  Status status = worker->open(options);
  if (status.ok()) *ret_worker = std::move(worker);
  return status;
}

Status Worker::open(const Options& options) {
  const bool alone = options.string("driver").empty();
  backend::HostHandlers handlers;
  handlers.message = [this](uint64_t generation, int32_t source, std::span<const uint8_t> data) {
    if (EngineUse use = engine(generation)) use->deliver(source, data);
  };
  handlers.failure = [this](uint64_t generation, int32_t peer, const std::string& text) {
    Status why(HVD_PEER_LOST, text);
    lose_generation(generation, why.at_rank(peer), Duration(0), true);
  };
  handlers.kv_set = [this](uint64_t generation, const std::string& key, std::span<const uint8_t> value) {
    if (session_ == nullptr) return Status(HVD_INVALID, "a worker that is alone has no key-value store");
    return session_->kv_set(generation, key, value);
  };
  handlers.kv_get = [this](uint64_t generation, const std::string& key, Duration timeout, std::vector<uint8_t>* value) {
    if (session_ == nullptr) return Status(HVD_INVALID, "a worker that is alone has no key-value store");
    return session_->kv_get(generation, key, timeout, value);
  };

  std::vector<std::pair<std::string, std::string>> module_options = {
      {"interface", options.string("interface")}, {"segment_bytes", options.text("segment_bytes")}};
  if (alone) {
    Status status = backend::open(options, "self", module_options, std::move(handlers), &instance_);
    if (!status.ok()) return status;
    backend_ = instance_->description();
    session::Assignment assignment;
    session::Member self;
    self.worker = worker_;
    self.host = host_of(options);
    assignment.members.push_back(std::move(self));
    return connect(assignment);
  }

  session::SessionEvents events;
  events.aborted = [this](const session::AbortInfo& info) { on_abort(info); };
  events.hosts_updated = [this](const session::HostsUpdate& update) { on_hosts_updated(update); };
  events.ended = [this](const Status& why) { on_ended(why); };
  session_ = std::make_unique<session::Session>(session_config(options), std::move(events));
  Status status = session_->start();
  if (!status.ok()) return status;
  module_options.emplace_back("route", session_->local_address());
  status = backend::open(options, options.string("backend"), module_options, std::move(handlers), &instance_);
  if (!status.ok()) {
    session_->leave(status.message);
    return status;
  }
  backend_ = instance_->description();
  return enter({}, init_timeout_, nullptr);
}

Status Worker::enter(session::ReadyInfo ready, Duration timeout, EntryTimes* times) {
  if (session_ == nullptr) return Status(HVD_INVALID, "a worker that is alone has no other generation to join");
  const Time deadline = now() + timeout;
  while (true) {
    if (auto why = ended(); why && !why->ok()) return *why;
    // After a loss the backend is given up at once. After a planned change it serves on until everybody
    // is out, which the next assignment proves: a peer may not have heard the agreement yet (contract 1).
    if (loss()) release_engine(loss()->status);
    std::vector<uint8_t> address;
    Status status = instance_->address(&address);
    if (!status.ok()) return status;
    ready.addresses = {{backend_.name, std::move(address)}};

    const Time asked = now();
    session::Assignment assignment;
    status = session_->join(ready, std::max(deadline - asked, Duration(0)), &assignment);
    const Time assigned = now();
    if (times != nullptr) times->forming += assigned - asked;
    if (!status.ok()) return status;
    release_engine(Status(HVD_HOSTS_UPDATED, fmt::format("the worker left for generation {}", assignment.generation)));
    status = connect(assignment);
    if (times != nullptr) {
      times->connecting += now() - assigned;
      ++times->attempts;
    }
    if (status.ok()) return status;
    if (status.code != HVD_PEER_LOST && status.code != HVD_TIMEOUT) return status;
    lose(status.rank, status.message);
    ready.cause = wire::Cause::PeerLost;
  }
}

Status Worker::connect(const session::Assignment& assignment) {
  std::vector<backend::Member> members;
  for (size_t rank = 0; rank < assignment.members.size(); ++rank) {
    const session::Member& member = assignment.members[rank];
    backend::Member peer{member.worker, member.host, {}};
    const auto found = std::find_if(member.addresses.begin(), member.addresses.end(),
                                    [&](const session::Address& a) { return a.backend == backend_.name; });
    if (found != member.addresses.end()) {
      peer.address = found->blob;
    } else if (session_ != nullptr) {
      return Status(HVD_UNAVAILABLE,
                    fmt::format("rank {} (host {}) does not offer backend {}: expected the same option backend "
                                "on every worker",
                                rank, member.host, backend_.name));
    }
    members.push_back(std::move(peer));
  }
  become(assignment);
  // An abort that came before this worker knew the generation found nobody to tell (contract 3).
  if (session_ != nullptr) {
    if (const auto abort = session_->abort_of(assignment.generation)) on_abort(*abort);
  }
  if (const auto lost = loss()) return lost->status;
  Status status = instance_->connect(assignment.generation, assignment.rank, members, connect_timeout_);
  if (!status.ok()) return status;
  if (EngineUse use = engine()) use->start();
  if (backend_detail_.empty()) backend_detail_ = instance_->detail();
  const auto size = static_cast<int32_t>(assignment.members.size());
  logger_->info("generation {}: rank {} of {} by {}", assignment.generation, assignment.rank, size, backend_.name);
  post_event(HVD_EVENT_GENERATION, assignment.generation, -1, size, fmt::format("rank {} of {}", assignment.rank, size));
  return status;
}

void Worker::become(const session::Assignment& assignment) {
  collective::EngineConfig config;
  config.generation = assignment.generation;
  config.rank = assignment.rank;
  for (const session::Member& member : assignment.members) config.hosts.push_back(member.host);
  config.stall_warning = stall_warning_;
  config.logger = logger_;
  config.wake_at = [this](Time when) { wake_engine_at(when); };
  auto engine = std::make_shared<collective::Engine>(std::move(config), *instance_);
  std::lock_guard lock(mutex_);
  assignment_ = assignment;
  membership_ = membership_of(assignment, worker_);
  loss_.reset();
  engine_ = std::move(engine);
  if (closed_) engine_->fail(Status(HVD_CLOSED, "the context is closed"));
}

EngineUse::~EngineUse() {
  if (engine_ == nullptr) return;
  engine_.reset();
  std::lock_guard lock(worker_->mutex_);
  if (--worker_->engine_uses_ == 0) worker_->engine_unused_.notify_all();
}

EngineUse Worker::engine(std::optional<uint64_t> generation) {
  std::lock_guard lock(mutex_);
  if (engine_ == nullptr || (generation && *generation != assignment_.generation)) return {this, nullptr};
  ++engine_uses_;
  return {this, engine_};
}

std::shared_ptr<collective::Engine> Worker::take_engine(std::unique_lock<std::mutex>& lock, const Status& why) {
  std::shared_ptr<collective::Engine> old = std::move(engine_);
  engine_ = nullptr;
  if (old == nullptr) return old;
  lock.unlock();
  old->fail(why);
  lock.lock();
  // Nobody stays in an engine that has failed: operations return at once.
  engine_unused_.wait(lock, [&] { return engine_uses_ == 0; });
  return old;
}

void Worker::release_engine(const Status& why) {
  std::unique_lock lock(mutex_);
  const bool whole = !loss_;
  if (engine_ != nullptr && whole) loss_ = Loss{why, Duration(0), now()};
  std::shared_ptr<collective::Engine> old = take_engine(lock, why);
  lock.unlock();
  if (old == nullptr) return;
  old.reset();
  if (whole) instance_->disconnect();
}

void Worker::wake_engine_at(Time when) {
  timers_.post([this, when] {
    if (when >= engine_wakes_) return;
    engine_wakes_ = when;
    if (engine_timer_ == nullptr) engine_timer_ = std::make_unique<wire::Loop::Timer>(timers_);
    engine_timer_->start(std::max(when - now(), Duration(0)), [this] {
      engine_wakes_ = Time::max();
      if (EngineUse use = engine()) use->tick(now());
    });
  });
}

bool Worker::lose_generation(uint64_t generation, const Status& why, Duration silence, bool report) {
  bool leaving = false;
  {
    std::lock_guard lock(mutex_);
    leaving = leaving_;
    if (generation != assignment_.generation || closed_) return false;
    if (loss_) {
      // The driver knows best who was lost and why.
      if (!report && loss_->status.code == HVD_PEER_LOST) {
        loss_->status = why;
        loss_->silence = silence;
      }
      return false;
    }
    loss_ = Loss{why, silence, now()};
    loss_->status.generation = generation;
  }
  if (EngineUse use = engine(generation)) use->fail(why);
  if (report && leaving) return true;  // a peer closed its links first: the driver tells how the job ends
  if (report && session_ != nullptr) session_->report_failure(generation, why.rank, why.message);
  logger_->info("generation {} is lost: {}", generation, why.message);
  post_event(HVD_EVENT_PEER_LOST, generation, why.rank, 0, why.message);
  return true;
}

void Worker::lose(int32_t rank, const std::string& reason) {
  Status why(HVD_PEER_LOST, reason);
  lose_generation(assignment().generation, why.at_rank(rank), Duration(0), true);
}

void Worker::on_abort(const session::AbortInfo& info) {
  Status why(HVD_PEER_LOST, info.reason);
  lose_generation(info.generation, why.at_rank(info.rank).in_generation(info.generation), info.silence, false);
}

void Worker::on_hosts_updated(const session::HostsUpdate& update) {
  std::string text = fmt::format("membership epoch {}", update.epoch);
  for (const std::string& host : update.added) text += " +" + host;
  for (const std::string& host : update.removed) text += " -" + host;
  logger_->info("hosts updated: {}{}", text, update.interrupt ? "" : " (no change for this generation)");
  hvd_event event{};
  event.kind = HVD_EVENT_HOSTS_UPDATED;
  event.membership_epoch = update.epoch;
  event.rank = -1;
  {
    std::lock_guard lock(mutex_);
    event.generation = assignment_.generation;
    event.size = static_cast<int32_t>(assignment_.members.size());
  }
  copy_text(event.message, text);
  notifications_.post(event);
}

void Worker::on_ended(const Status& why) {
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = why;
  }
  if (EngineUse use = engine()) use->fail(why.ok() ? Status(HVD_CLOSED, "the job has ended") : why);
  post_event(why.code == HVD_DRIVER_LOST ? HVD_EVENT_DRIVER_LOST : HVD_EVENT_JOB_ENDED, 0, -1, 0, why.message);
}

void Worker::post_event(hvd_event_kind kind, uint64_t generation, int32_t rank, int32_t size,
                        const std::string& message) {
  hvd_event event{};
  event.kind = kind;
  event.generation = generation;
  event.membership_epoch = membership().membership_epoch;
  event.rank = rank;
  event.size = size;
  copy_text(event.message, message);
  notifications_.post(event);
}

hvd_membership Worker::membership() const {
  std::lock_guard lock(mutex_);
  return membership_;
}

session::Assignment Worker::assignment() const {
  std::lock_guard lock(mutex_);
  return assignment_;
}

std::optional<Loss> Worker::loss() const {
  std::lock_guard lock(mutex_);
  return loss_;
}

std::optional<Status> Worker::ended() const {
  std::lock_guard lock(mutex_);
  return ended_;
}

std::shared_ptr<collective::Operation> Worker::submit(collective::Submission submission) {
  submission.timeout = operation_timeout_;
  if (EngineUse use = engine()) return use->submit(std::move(submission));
  std::lock_guard lock(mutex_);
  throw Error(closed_ || !loss_ ? Status(HVD_CLOSED, "the context is closed") : loss_->status);
}

Status Worker::wait(collective::Operation& operation) const {
  if (operation.wait(longest_wait())) return operation.status();
  return Status(HVD_TIMEOUT, fmt::format("the operation did not complete: {}", operation.waiting_for()));
}

Status Worker::run(collective::Submission submission, std::shared_ptr<collective::Operation>* ret_operation) {
  std::shared_ptr<collective::Operation> operation = submit(std::move(submission));
  Status status = wait(*operation);
  if (status.ok() && ret_operation != nullptr) *ret_operation = std::move(operation);
  return status;
}

Status Worker::check_host_updates() {
  if (session_ == nullptr) {
    std::lock_guard lock(mutex_);
    return closed_ ? Status(HVD_CLOSED, "the context is closed") : Status();
  }
  collective::Submission submission;
  submission.name = "hvd.check_host_updates";
  submission.kind = collective::Kind::kAgree;
  submission.word = session_->epoch_word();
  std::shared_ptr<collective::Operation> operation;
  Status status = run(std::move(submission), &operation);
  if (!status.ok()) return status;
  // epoch * 2 + interrupt: the newest epoch that any rank knows decides, by its own flag.
  const uint64_t word = operation->word();
  const uint64_t epoch = membership().membership_epoch;
  if ((word & 1U) == 0 || (word >> 1U) <= epoch) return {};
  return Status(HVD_HOSTS_UPDATED,
                fmt::format("hosts changed: membership epoch is {}, this generation has {}", word >> 1U, epoch));
}

void Worker::report_synced(uint64_t revision) {
  set_revision(revision);
  if (session_ != nullptr) session_->report_synced(assignment().generation, revision);
}

void Worker::set_revision(uint64_t revision) {
  {
    std::lock_guard lock(mutex_);
    revision_ = revision;
  }
  if (session_ != nullptr) session_->set_revision(revision);
}

Status Worker::shutdown(Duration timeout, bool done) {
  uint64_t revision = 0;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return {};
    leaving_ = true;
    revision = revision_;
  }
  Status status;
  if (EngineUse use = engine()) use->finish();
  if (session_ != nullptr) {
    if (done) {
      status = session_->finish(revision, timeout);
    } else {
      session_->leave("the program left before its training was complete");
    }
  }
  close(Status(HVD_CLOSED, "the context was shut down"), seconds(1));
  return status;
}

void Worker::abort(const Status& why) {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  if (EngineUse use = engine()) use->fail(why);
  if (session_ != nullptr) session_->close(Duration(0));
}

void Worker::close(const Status& why, Duration linger) {
  std::lock_guard closing(close_mutex_);
  if (EngineUse use = engine()) use->fail(why);
  if (session_ != nullptr) session_->close(linger);
  timers_.stop();
  engine_timer_.reset();
  std::unique_lock lock(mutex_);
  closed_ = true;
  std::shared_ptr<collective::Engine> old = take_engine(lock, why);
  lock.unlock();
  old.reset();
  instance_.reset();
  notifications_.close();
}

}  // namespace hvd::elastic
