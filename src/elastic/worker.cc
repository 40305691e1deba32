// Joins the job, enters generations and leaves them.
#include "elastic/worker.h"

#include <unistd.h>

#include <algorithm>

#include "backend/capabilities.h"
#include "base/queued_log.h"
#include "base/secret.h"
#include "selection/selection.h"
#include "session/admission.h"

namespace hvd::elastic {

namespace {

std::string host_of(const Options& options) {
  std::string host = options.string("host");
  if (!host.empty()) return host;
  char name[256] = "";
  if (::gethostname(name, sizeof(name) - 1) != 0 || name[0] == 0) return "localhost";
  return name;
}

session::SessionConfig session_config(const Options& options, LoggerPtr logger) {
  session::SessionConfig config;
  config.driver = options.string("driver");
  config.secret = options.string("secret");
  config.job = options.string("job");
  config.host = host_of(options);
  config.worker = static_cast<uint64_t>(options.integer("worker"));
  config.slot = static_cast<int32_t>(options.integer("slot"));
  config.connect_timeout = options.duration("connect_timeout");
  config.driver_timeout = options.duration("driver_timeout");
  config.logger = std::move(logger);
  if (config.secret.empty()) {
    throw Error(HVD_INVALID,
                "option secret (HVD_SECRET) is empty: the driver gives it to the workers that it starts");
  }
  if (config.worker == 0) {
    throw Error(HVD_INVALID, "option worker (HVD_WORKER) is 0: expected the identity that the driver gave");
  }
  return config;
}

}  // namespace

Worker::Worker(const Options& options)
    : logger_(options.logger),
      session_log_(queue_log(options.logger)),
      worker_(static_cast<uint64_t>(options.integer("worker"))),
      connect_timeout_(options.duration("connect_timeout")),
      init_timeout_(options.duration("init_timeout")),
      stall_warning_(options.duration("stall_warning")),
      fusion_threshold_(static_cast<uint64_t>(options.integer("fusion_threshold"))),
      deterministic_(options.boolean("deterministic")),
      join_counts_(options.boolean("join_counts")),
      divergence_every_(options.text("divergence_every")),
      on_divergence_(options.string("on_divergence")),
      notifications_(options.logger),
      timeline_(std::make_shared<Timeline>(worker_, host_of(options), options.logger)),
      submitter_(current_, options.duration("operation_timeout"),
                 [this](const std::string& reason) { lose(-1, reason); }),
      feeding_(options, session_log_),
      timers_("hvd-timers"),
      engine_timer_(current_, timers_),
      leaving_(current_, timers_, options.duration("leave_timeout")),
      copies_(std::make_shared<state::DeviceCopies>(submitter_.operation_timeout())) {}

std::string Worker::backend_detail() const {
  std::lock_guard lock(mutex_);
  return backend_detail_;
}

Worker::~Worker() { close(Status(HVD_CLOSED, "the context was destroyed"), Duration(0)); }

class Worker::Entering {
 public:
  explicit Entering(Worker& worker) : worker_(worker) {
    std::lock_guard lock(worker.mutex_);
    if (const auto why = worker.current_.closed()) {
      status_ = *why;
    } else if (worker.entering_) {
      status_ = Status(HVD_INVALID, "another thread is joining a generation with this context already");
    } else {
      mine_ = worker.entering_ = true;
    }
  }
  Entering(const Entering&) = delete;
  Entering& operator=(const Entering&) = delete;
  ~Entering() {
    if (!mine_) return;
    std::lock_guard lock(worker_.mutex_);
    worker_.entering_ = false;
    worker_.entered_.notify_all();
  }

  /// What keeps this thread from entering.
  const Status& status() const { return status_; }
  /// Of what was done: the reason for a close is better than what came of it.
  Status outcome(Status status) const {
    const std::optional<Status> why = worker_.current_.closed();
    return !status.ok() && why ? *why : status;
  }

 private:
  Worker& worker_;
  Status status_;
  bool mine_ = false;
};

/// A worker that has a driver's address and no identity asks for one.
Status Worker::apply(Options* options, Duration timeout) {
  if (options->string("driver").empty() || options->integer("worker") != 0) return {};
  session::AdmissionRequest request;
  request.drivers = options->string("driver");
  request.secret = read_secret(*options);
  request.job = options->string("job");
  request.host = host_of(*options);
  request.slot = options->is_set("slot") ? static_cast<int32_t>(options->integer("slot")) : -1;
  request.timeout = std::min(options->duration("connect_timeout"), std::max(timeout, milliseconds(1)));
  if (request.secret.empty()) {
    return Status(
        HVD_INVALID,
        "a worker that no driver started needs the job's secret: expected option secret_file (HVD_SECRET_FILE) "
        "or secret; one that a driver started has its identity in HVD_WORKER");
  }
  session::Admission admission;
  const auto closed = [this] { return current_.closed().has_value(); };
  Status status = session::apply(request, closed, &admission);
  if (!status.ok()) return status;
  options->set("worker", static_cast<int64_t>(admission.worker));
  options->set("job", admission.job);
  options->set("host", admission.host);
  options->set("slot", static_cast<int64_t>(admission.slot));
  options->set("secret", admission.secret);
  session_log_->info("the driver at {} lets this worker in as worker {} of job {}, host {}, slot {}",
                     request.drivers, admission.worker, admission.job, admission.host, admission.slot);
  return {};
}

Status Worker::open(const Options& given, Duration timeout) {
  const Entering entering(*this);
  if (!entering.status().ok()) return entering.status();
  Options options = given;
  const Time began = now();
  if (Status status = apply(&options, timeout); !status.ok()) return entering.outcome(status);
  timeout -= now() - began;
  worker_ = static_cast<uint64_t>(options.integer("worker"));
  if (const std::string path = options.string("timeline"); !path.empty()) {
    // What can't be recorded is no reason not to train.
    const Status status = timeline_->start(path);
    if (!status.ok()) logger_->warning("no timeline: {}", status.message);
  }
  return entering.outcome(open_within(options, timeout));
}

Status Worker::open_within(const Options& options, Duration timeout) {
  const Time deadline = now() + timeout;
  const bool alone = options.string("driver").empty();
  backend::HostHandlers handlers;
  handlers.message = [this](uint64_t generation, int32_t source, std::span<const uint8_t> data) {
    if (EngineUse use = engine(generation)) use->deliver(source, data);
  };
  handlers.failure = [this](uint64_t generation, int32_t peer, const std::string& text) {
    // Held, so that the next generation, whose copies count again, comes after it.
    if (const EngineUse use = engine(generation)) copies_->lost();
    Status why(HVD_PEER_LOST, text);
    lose_generation(generation, why.at_rank(peer), Duration(0), Report::kFailure);
  };
  handlers.kv_set = [this](uint64_t generation, const std::string& key, std::span<const uint8_t> value) {
    if (session() == nullptr) return Status(HVD_INVALID, "a worker that is alone has no key-value store");
    return session()->kv_set(generation, key, value);
  };
  handlers.kv_get = [this](uint64_t generation, const std::string& key, Duration timeout,
                           std::vector<uint8_t>* value) {
    if (session() == nullptr) return Status(HVD_INVALID, "a worker that is alone has no key-value store");
    return session()->kv_get(generation, key, timeout, value);
  };

  std::vector<std::pair<std::string, std::string>> module_options = options.for_modules();
  if (alone) {
    Status status = selection::open(options, "self", module_options, std::move(handlers), &instance_);
    if (!status.ok()) return status;
    copies_->open(*instance_);
    backend_ = instance_->description();
    session::Assignment assignment;
    Member self;
    self.worker = worker_;
    self.host = host_of(options);
    if (status = instance_->offers(&self.offers); !status.ok()) return status;
    assignment.members.push_back(std::move(self));
    return connect(assignment);
  }

  session::SessionEvents events;
  events.aborted = [this](const session::AbortInfo& info) { on_abort(info); };
  events.hosts_updated = [this](const session::HostsUpdate& update) { on_hosts_updated(update); };
  events.ended = [this](const Status& why) { on_ended(why); };
  events.driver_changed = [this](const session::DriverChange& change) { on_driver_changed(change); };
  events.feed_wanted = [this](uint64_t generation) { feeding_.serve(*session(), generation); };
  events.feed = [this](const session::FeedInfo& info) { feeding_.be_fed(*session(), worker_, info); };
  session::SessionConfig config = session_config(options, session_log_);
  config.connect_timeout = std::min(config.connect_timeout, std::max(timeout, milliseconds(1)));
  auto session = std::make_unique<session::Session>(std::move(config), std::move(events));
  {
    std::lock_guard lock(mutex_);
    if (const auto why = current_.closed()) return *why;
    session_ = std::move(session);
    session_now_ = session_.get();  // from here on an abort finds it
  }
  leaving_.tell(*session_);
  Status status = session_->start();
  if (!status.ok()) return status;
  module_options.emplace_back("route", session_->local_address());
  status =
      selection::open(options, options.string("backend"), module_options, std::move(handlers), &instance_);
  if (!status.ok()) {
    session_->leave(status.message);
    return status;
  }
  copies_->open(*instance_);
  backend_ = instance_->description();
  return enter_within({}, deadline - now(), nullptr);
}

Status Worker::enter(session::ReadyInfo ready, Duration timeout, EntryTimes* times) {
  const Entering entering(*this);
  if (!entering.status().ok()) return entering.status();
  return entering.outcome(enter_within(std::move(ready), timeout, times));
}

Status Worker::enter_within(session::ReadyInfo ready, Duration timeout, EntryTimes* times) {
  if (session_ == nullptr) {
    std::string why = leaving_.leave_alone();
    return why.empty() ? Status(HVD_INVALID, "a worker that is alone has no other generation to join")
                       : Status(HVD_REMOVED, std::move(why));
  }
  Time began = now(), deadline = began + timeout;
  Status failed;  // the last attempt to connect
  uint64_t attempts = 0, last = 0;
  while (true) {
    if (auto why = ended(); why && !why->ok()) return *why;
    // After a loss the backend is given up at once. After a planned change it serves on until everybody
    // is out, which the next assignment proves: a peer may not have heard the agreement yet (contract 1).
    if (loss()) release_engine(loss()->status);
    Status status = instance_->offers(&ready.offers);
    ready.settings = selection::settings_of(ready.offers);
    // A rank that compares at another commit than the others would wait for them.
    ready.settings.push_back({"option divergence_every (HVD_DIVERGENCE_EVERY)", divergence_every_});
    ready.settings.push_back({"option on_divergence (HVD_ON_DIVERGENCE)", on_divergence_});
    // Large operations take their divisor from each rank's own option.
    ready.settings.push_back({"option join_counts (HVD_JOIN_COUNTS)", join_counts_ ? "true" : "false"});
    if (!status.ok()) return status;
    ready.backends = backend::describe_choices(*instance_);
    ready.feeds = true;
    feeding_.end();  // of the generation that it leaves

    const Time asked = now();
    session::Assignment assignment;
    status = session_->join(ready, std::max(deadline - asked, Duration(0)), &assignment);
    feeding_.end();
    const Time assigned = now();
    if (times != nullptr) times->forming += assigned - asked;
    if (is_on(timeline_)) {
      timeline_->slice(TimelineRow::kGenerations, "forming", asked, assigned,
                       {{"generation", static_cast<int64_t>(assignment.generation)}});
    }
    if (status.code == HVD_TIMEOUT && attempts > 0) {
      return Status(HVD_TIMEOUT,
                    fmt::format("no generation was connected within {:.1f} s; {} attempts failed, the last "
                                "(generation {}) with: {}",
                                to_seconds(assigned - began), attempts, last, failed.message));
    }
    if (!status.ok()) return status;
    if (assigned > deadline) {  // it was a spare: its time begins now
      began = assigned;
      deadline = began + timeout;
    }
    release_engine(
        Status(HVD_HOSTS_UPDATED, fmt::format("the worker left for generation {}", assignment.generation)));
    status = connect(assignment);
    if (is_on(timeline_)) {
      timeline_->slice(TimelineRow::kGenerations, "connecting", assigned, now(),
                       {{"generation", static_cast<int64_t>(assignment.generation)},
                        {"status", status_name(status.code)}});
    }
    if (times != nullptr) {
      times->connecting += now() - assigned;
      ++times->attempts;
    }
    if (status.ok()) return status;
    ++attempts;
    last = assignment.generation;
    failed = status;
    if (status.code != HVD_PEER_LOST && status.code != HVD_TIMEOUT) {
      // What another rank brings is no reason for this worker to end: the driver sends one of them away
      // (contract 16).
      if (session_ == nullptr || status.rank < 0 || status.rank == assignment.rank) return status;
      unfit(status.rank, status.message);
    } else {
      lose(status.rank, status.message);
    }
    ready.cause = session::Cause::kPeerLost;
  }
}

Status Worker::connect(const session::Assignment& assignment) {
  become(assignment);
  // An abort that came before this worker knew the generation found nobody to tell (contract 3).
  if (session_ != nullptr) {
    if (const auto abort = session_->abort_of(assignment.generation)) on_abort(*abort);
  }
  if (const auto lost = loss()) return lost->status;
  Status status =
      instance_->connect(assignment.generation, assignment.rank, assignment.members, connect_timeout_);
  if (!status.ok()) return status;
  if (EngineUse use = engine()) use->start();
  {
    std::string detail = instance_->detail();
    std::lock_guard lock(mutex_);
    if (backend_detail_.empty()) backend_detail_ = std::move(detail);
  }
  const auto size = static_cast<int32_t>(assignment.members.size());
  logger_->info("generation {}: rank {} of {} by {}", assignment.generation, assignment.rank, size,
                backend_.name);
  timeline_->place(assignment.generation, assignment.rank, size);
  post_event(HVD_EVENT_GENERATION, assignment.generation, -1, size,
             fmt::format("rank {} of {}", assignment.rank, size));
  return status;
}

void Worker::become(const session::Assignment& assignment) {
  {
    std::lock_guard lock(mutex_);
    shrinking_.clear();
  }
  collective::EngineConfig config;
  config.generation = assignment.generation;
  config.rank = assignment.rank;
  for (const Member& member : assignment.members) config.hosts.push_back(member.host);
  config.stall_warning = stall_warning_;
  config.logger = logger_;
  config.fusion_threshold = fusion_threshold_;
  config.deterministic = deterministic_;
  config.join_counts = join_counts_;
  if (session_ != nullptr) config.word = [session = session_.get()] { return session->epoch_word(); };
  config.interrupts = [epoch = assignment.epoch](uint64_t word) { return verdict_on(word, epoch); };
  config.stalled = [this](const std::string& text, const std::vector<int32_t>& missing, Duration waited) {
    on_stalled(text, missing, waited);
  };
  config.timeline = timeline_;
  config.aborting = [copies = copies_] { copies->lost(); };
  config.broken = [this, generation = assignment.generation](const Status& why) {
    lose_generation(generation, why, Duration(0), Report::kFailure);
  };
  config.wake_at = [this](Time when) { engine_timer_.wake_at(when); };
  auto engine = collective::Engine::open(std::move(config), *instance_);
  copies_->renewed();
  current_.begin(assignment, membership_of(assignment, worker_), std::move(engine));
}

void Worker::release_engine(const Status& why) {
  bool whole = false;
  std::shared_ptr<collective::Engine> old = current_.take_engine(why, &whole);
  if (old == nullptr) return;
  old.reset();
  if (whole) instance_->disconnect();
}

Status Worker::shutdown(Duration timeout, bool done) {
  uint64_t revision = 0;
  {
    std::lock_guard lock(mutex_);
    if (current_.closed()) return {};
    revision = revision_;
  }
  leaving_.shut_down();
  Status status;
  if (EngineUse use = engine()) use->finish();
  if (session() != nullptr && !leaving_.has_left()) {
    if (done) {
      status = session()->finish(revision, timeout);
    } else {
      session()->leave("the program left before its training was complete");
    }
  }
  close(Status(HVD_CLOSED, "the context was shut down"), seconds(1));
  return status;
}

void Worker::abort(const Status& why) {
  {
    std::lock_guard lock(mutex_);
    current_.close(why);
  }
  copies_->stop();
  if (EngineUse use = engine()) use->fail(why);
  if (session() != nullptr) session()->close(Duration(0));
}

void Worker::close(const Status& why, Duration linger) {
  std::lock_guard closing(close_mutex_);
  {
    std::lock_guard lock(mutex_);
    current_.close(why);
  }
  copies_->stop();
  if (EngineUse use = engine()) use->fail(why);
  if (session() != nullptr) session()->close(linger);
  feeding_.end();
  {
    // With its session closed and its engine failed, whoever is entering a generation comes out.
    std::unique_lock lock(mutex_);
    entered_.wait(lock, [this] { return !entering_; });
  }
  timers_.stop();
  leaving_.close();
  current_.take_engine(why).reset();
  copies_->close();
  instance_.reset();
  notifications_.close();
  static_cast<void>(timeline_->stop());  // it warns itself of what could not be written
}

}  // namespace hvd::elastic
