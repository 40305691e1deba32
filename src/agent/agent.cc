// Dials, does what the core decides, and reports.
#include "agent/agent.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <future>
#include <map>
#include <string_view>
#include <utility>

#include "agent/agent_core.h"
#include "agent/environment.h"
#include "agent/fleet.h"
#include "agent/spool.h"
#include "base/secret.h"
#include "base/text.h"
#include "hvd/hvd.h"
#include "launch/guard.h"
#include "launch/life.h"
#include "launch/process.h"
#include "wire/channel.h"
#include "wire/tls.h"

namespace hvd::agent {
namespace {

constexpr Duration kFirstDelay = std::chrono::milliseconds(10);
constexpr Duration kLongestDelay = std::chrono::seconds(1);
constexpr Duration kFirstAttempt = std::chrono::seconds(1);  // with one driver, while others wait to be tried
constexpr Duration kHello = std::chrono::seconds(5);
constexpr Duration kLinger = std::chrono::seconds(2);
constexpr int64_t kShortestBeatMs = 10, kLongestBeatMs = 24 * 3600 * 1000;

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

/// Never 0.
uint64_t random_number() {
  uint64_t number = 0;
  while (number == 0) {
    if (::getrandom(&number, sizeof number, 0) != sizeof number) number = 0;
  }
  return number;
}

}  // namespace

AgentSettings read_agent_settings(const Options& o) {
  AgentSettings s;
  const std::string drivers = o.string("driver");
  for (size_t begin = 0; begin < drivers.size();) {
    const size_t end = std::min(drivers.find(',', begin), drivers.size());
    if (end > begin) s.drivers.push_back(drivers.substr(begin, end - begin));
    begin = end + 1;
  }
  if (s.drivers.empty())
    throw Error(HVD_INVALID, "an agent without option driver: expected host:port of the driver");
  s.job = o.string("job");
  s.secret = read_secret(o);
  if (s.secret.empty()) {
    throw Error(
        HVD_INVALID,
        "an agent without the job's secret: expected option secret_file, or HVD_SECRET in the environment");
  }
  s.host = o.is_set("host") ? o.string("host") : host_name();
  if (s.host.empty() || s.host.size() > 253 || printable(s.host) != s.host)
    throw Error(HVD_INVALID, fmt::format("option host is '{}': expected a name of 1 to 253 characters",
                                         printable(s.host)));
  s.slots = static_cast<int32_t>(o.integer("slots_per_host"));
  if (s.slots > kMostSlotsOfAnAgent) {
    throw Error(HVD_INVALID, fmt::format("option slots_per_host is {}: expected 1 to {} of an agent", s.slots,
                                         kMostSlotsOfAnAgent));
  }
  s.patience = o.duration("agent_timeout");
  s.stop_grace = o.duration("stop_grace");
  s.connect_timeout = std::min<Duration>(o.duration("connect_timeout"), seconds(5));
  s.leave_timeout = o.duration("leave_timeout");
  s.guard = o.string("guard");
  s.spool = o.string("agent_spool");
  s.spool_bytes = static_cast<uint64_t>(o.integer("agent_spool_bytes"));
  return s;
}

struct Agent::Impl {
  struct Worker {
    std::shared_ptr<launch::Process> process;
    int64_t said = 0;  // the process that it names as its own
  };

  Impl(Loop& l, const AgentSettings& s, LoggerPtr log, std::vector<std::string> command,
       std::vector<std::string> variables, std::function<void(Status)> done)
      : loop(l),
        settings(s),
        logger(std::move(log)),
        argv(std::move(command)),
        environment(std::move(variables)),
        finished(std::move(done)),
        core({settings.patience, settings.stop_grace}, now(),
             make_file_spool(settings.spool, settings.spool_bytes)),
        instance(random_number()),
        guard(
            std::make_shared<launch::Guard>(launch::find_guard(settings.guard), settings.stop_grace, logger)),
        dial_timer(loop),
        beat(loop),
        tick(loop) {}

  ~Impl() {
    alive.reset();
    if (channel) channel->close(Duration(0));
    for (const auto& [id, worker] : workers) worker->process->signal_group(SIGKILL);
    for (const auto& [id, worker] : workers) worker->process->abandon();
  }

  template <class Fn>
  auto guarded(Fn fn) {
    return [weak = std::weak_ptr<int>(alive), fn = std::move(fn)](auto&&... arguments) {
      if (!weak.expired()) fn(std::forward<decltype(arguments)>(arguments)...);
    };
  }

  // ---- the connection ----

  void dial() {
    if (core.finished() || channel) return;
    endpoint = settings.drivers[next_driver];
    const bool alone = settings.drivers.size() == 1;
    wire::connect_channel(loop, endpoint, settings.secret, wire::agent_identity(settings.host), {},
                          alone ? settings.connect_timeout : std::min(settings.connect_timeout, attempt),
                          guarded([this](std::shared_ptr<wire::Channel> connected, const Status& why) {
                            if (core.finished()) {
                              if (connected) connected->close(Duration(0));
                              return;
                            }
                            connected ? have(std::move(connected)) : not_reached(why);
                          }));
    arm();
  }

  void not_reached(const Status& why) {
    if (why.code == HVD_INVALID) return do_all(core.refused(HVD_INVALID, why.message, now()));
    refused_by += why.code == HVD_REFUSED ? 1 : 0;
    if (why.code == HVD_REFUSED && (settings.drivers.size() == 1 || refused_by == settings.drivers.size())) {
      return do_all(core.refused(HVD_REFUSED, why.message, now()));
    }
    logger->debug("{}", why.message);
    next_driver = (next_driver + 1) % settings.drivers.size();
    if (next_driver == 0) refused_by = 0;
    do_all(core.disconnected(why.message, now()));
    again(next_driver == 0);
  }

  void again(bool round_over) {
    if (core.finished()) return;
    dial_timer.start(round_over ? delay : Duration(0), [this] { dial(); });
    if (round_over) {
      delay = std::min<Duration>(delay * 2, kLongestDelay);
      attempt = std::min<Duration>(attempt * 2, settings.connect_timeout);
    }
    arm();
  }

  void have(std::shared_ptr<wire::Channel> connected) {
    channel = std::move(connected);
    welcomed = false;
    sent = heard_sequence = 0;
    heard = now();
    wire::ChannelHandlers handlers;
    handlers.frame =
        guarded([this, c = std::weak_ptr<wire::Channel>(channel)](std::span<const uint8_t> frame) {
          if (channel && c.lock() == channel) received(frame);
        });
    handlers.closed = guarded([this, c = std::weak_ptr<wire::Channel>(channel)](const Status& why) {
      if (channel && c.lock() == channel) lost(why.message);
    });
    channel->set_handlers(std::move(handlers));
    wire::AgentHelloT hello;
    hello.protocol = wire::kProtocol;
    hello.library = HVD_VERSION_STRING;
    hello.abi = HVD_ABI_VERSION;
    hello.host = settings.host;
    hello.slots = settings.slots;
    hello.pid = ::getpid();
    hello.instance = instance;
    hello.received = core.received();
    hello.workers = core.workers();
    hello.reported = core.reported();
    hello.of_job = job;
    for (const auto& [worker, slot] : core.kept()) {
      hello.kept.push_back(std::make_unique<wire::AgentWorkerT>());
      hello.kept.back()->worker = worker;
      hello.kept.back()->slot = slot;
    }
    hello.own_command = !argv.empty();
    send(std::move(hello));
    beat.start(kHello, [this] { lost("no answer to its hello"); });
  }

  template <class Body>
  void send(Body body) {
    if (!channel) return;
    wire::EnvelopeT message = wire::envelope(settings.job, 0, 0, std::move(body));
    message.sequence = ++sent;
    message.term = term;
    channel->send(wire::encode(message));
  }

  void lost(const std::string& why) {
    if (!channel) return;
    channel->close(kLinger);
    channel.reset();
    beat.cancel();
    if (core.finished()) return;
    if (welcomed) {
      logger->warning("the connection to the driver is over ({}): dialling again", why);
      delay = kFirstDelay;
    } else {
      next_driver = (next_driver + 1) % settings.drivers.size();  // another one may do
    }
    do_all(core.disconnected(why, now()));
    again(true);
  }

  void received(std::span<const uint8_t> frame) {
    try {
      wire::EnvelopeT message = wire::decode(frame);
      if (message.sequence <= heard_sequence) return;
      heard_sequence = message.sequence;
      heard = now();
      if (const wire::RefusedT* refused = message.body.AsRefused()) return refuse(*refused);
      if (!welcomed) {
        const wire::AgentWelcomeT* welcome = message.body.AsAgentWelcome();
        if (welcome == nullptr)
          throw Error(HVD_INVALID, fmt::format("expected AgentWelcome, not {}", wire::body_name(message)));
        // contract 14: of two drivers the older one is refused. It has read our term, and ends.
        if (message.job == job && message.term < term) {
          return lost(fmt::format("the driver at {} is of term {}, and there is one of term {}", endpoint,
                                  message.term, term));
        }
        term = message.term;
        return welcome_from_driver(*welcome, message.job);
      }
      std::optional<Order> order;
      switch (message.body.type) {
        case wire::Body::AgentStart: order = std::move(*message.body.AsAgentStart()); break;
        case wire::Body::AgentStop: order = *message.body.AsAgentStop(); break;
        case wire::Body::AgentWatch: order = *message.body.AsAgentWatch(); break;
        case wire::Body::AgentEnd: order = std::move(*message.body.AsAgentEnd()); break;
        case wire::Body::AgentAck:
          return do_all(core.acknowledged(message.body.AsAgentAck()->received, now()));
        default:
          throw Error(HVD_INVALID,
                      fmt::format("a driver may not send {} to an agent", wire::body_name(message)));
      }
      do_all(core.ordered(std::move(*order), now()));
      if (channel) {
        wire::AgentAckT ack;
        ack.received = core.received();
        send(ack);
      }
    } catch (const Error& error) { lost(fmt::format("protocol error: {}", printable(error.what()))); }
  }

  void refuse(const wire::RefusedT& refused) {
    const std::string why =
        fmt::format("the driver at {} refused this agent: {}", endpoint, printable(refused.reason));
    if (refused.code == wire::Refusal::Busy || refused.code == wire::Refusal::Superseded || welcomed)
      return lost(why);
    do_all(core.refused(refused.code == wire::Refusal::Ended ? HVD_CLOSED : HVD_REFUSED, why, now()));
  }

  void welcome_from_driver(const wire::AgentWelcomeT& welcome, const std::string& of_job) {
    welcomed = true;
    job = of_job;
    delay = kFirstDelay;
    attempt = kFirstAttempt;
    refused_by = 0;
    takes_drain = welcome.takes_drain;
    channel->trust();
    const auto duration = [](int64_t ms) {
      return milliseconds(std::clamp(ms, kShortestBeatMs, kLongestBeatMs));
    };
    interval = duration(welcome.heartbeat_interval_ms);
    timeout = duration(welcome.heartbeat_timeout_ms);
    logger->info("joined job {} at {} as host {} with {} slots{}", printable(job), endpoint, settings.host,
                 settings.slots, welcome.resumed ? ", again" : "");
    do_all(core.connected(welcome.resumed, welcome.received, now()));
    heartbeat();
  }

  void heartbeat() {
    if (!channel || !welcomed) return;
    if (now() - heard >= timeout) {
      return lost(fmt::format("no sign of life for {} s", seconds_text(now() - heard)));
    }
    wire::AgentHeartbeatT message;
    message.received = core.received();
    for (const auto& [id, worker] : workers) {
      if (!worker->process->running()) continue;
      const launch::Life life = launch::life_of(worker->process->pid(), worker->said);
      if (life == launch::Life::kRunning) message.running.push_back(id);
      if (life == launch::Life::kStopped) message.stopped.push_back(id);
    }
    send(std::move(message));
    beat.start(interval, [this] { heartbeat(); });
  }

  /// As workers are to dial: the driver that this agent has, then those that may take over from it.
  std::string drivers() const {
    std::string all = endpoint;
    for (const std::string& driver : settings.drivers) {
      if (driver != endpoint) all += "," + driver;
    }
    return all;
  }

  // ---- the core's actions ----

  void do_all(CoreActions actions) {
    for (CoreAction& action : actions) {
      std::visit([this](auto& a) { perform(a); }, action);
    }
    arm();
  }

  void arm() {
    if (const std::optional<Time> next = core.next_tick()) {
      tick.start(std::max(*next - now(), Duration(0)), [this] { do_all(core.tick(now())); });
    } else {
      tick.cancel();
    }
  }

  void perform(SendReport& action) {
    if (!welcomed) return;
    std::visit([this](auto& report) { send(std::move(report)); }, action.report);
  }

  void perform(SendDrain& action) {
    if (!welcomed) return;
    if (!takes_drain) return do_all(core.stop(action.reason, now()));
    wire::AgentDrainT drain;
    drain.timeout_ms = std::chrono::duration_cast<std::chrono::milliseconds>(action.timeout).count();
    drain.reason = action.reason;
    send(std::move(drain));
  }

  void perform(AgentNote& action) {
    logger->write(action.warning ? HVD_LOG_WARNING : HVD_LOG_INFO, action.text);
  }

  void perform(HoldOutput& action) {
    holding = action.hold;
    for (const auto& [id, worker] : workers) worker->process->hold_output(holding);
  }

  void perform(StopProcess& action) {
    const auto found = workers.find(action.worker);
    if (found == workers.end() || !found->second->process->running()) return;
    found->second->process->stop(action.grace, [log = logger, id = action.worker] {
      log->warning("worker {} did not end within its grace: SIGKILL", id);
    });
  }

  void perform(WatchProcess& action) {
    if (const auto found = workers.find(action.worker); found != workers.end())
      found->second->said = action.process;
  }

  void perform(LaunchWorker& action) {
    const uint64_t id = action.order.worker;
    const auto failed = [this, id](const std::string& why) {
      loop.post(guarded([this, id, why] {
        workers.erase(id);
        do_all(core.failed(id, why, now()));
      }));
    };
    try {
      launch::SpawnSpec spec;
      const bool own = !argv.empty();
      spec.argv = own ? argv : action.order.argv;
      if (spec.argv.empty())
        throw Error(HVD_UNAVAILABLE, "neither the driver nor the agent has a command for workers");
      spec.directory = own ? "" : action.order.directory;
      spec.umask = own ? -1 : action.order.umask & 0777;
      if (!own && action.order.umask < 0) spec.umask = -1;
      struct stat info {};
      if (!spec.directory.empty() && (::stat(spec.directory.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)))
        throw Error(HVD_UNAVAILABLE, fmt::format("the working directory {} is not there", spec.directory));
      spec.environment = worker_environment(own ? std::vector<std::string>() : action.order.base,
                                            launch::merged_environment(environment), own,
                                            action.order.environment, drivers());
      spec.path = launch::find_program(spec.argv.front(), path_of(spec.environment), spec.directory);
      auto worker = std::make_unique<Worker>();
      launch::Process::Handlers handlers;
      handlers.output = [this, id](bool is_stderr, std::string_view bytes) {
        do_all(core.output(id, is_stderr, bytes, now()));
      };
      handlers.exited = [this, id](int32_t status) { do_all(core.exited(id, status, now())); };
      handlers.gone = [this, id] {
        loop.post(guarded([this, id] {
          workers.erase(id);
          do_all(core.gone(id, now()));
        }));
      };
      handlers.failed = failed;
      worker->process =
          launch::Process::start(loop, std::move(spec), std::move(handlers), {false, guard, false});
      if (holding) worker->process->hold_output(true);
      workers[id] = std::move(worker);
    } catch (const Error& error) { failed(error.what()); }
  }

  void perform(Finished& action) {
    dial_timer.cancel();
    beat.cancel();
    if (channel && welcomed) {
      wire::AgentLeaveT leave;
      leave.reason = action.sentence;
      send(std::move(leave));
    }
    if (channel) channel->close(kLinger);
    channel.reset();
    finished(action.code == HVD_OK ? Status() : Status(action.code, action.sentence));
  }

  Loop& loop;
  const AgentSettings& settings;
  const LoggerPtr logger;
  const std::vector<std::string> argv, environment;
  const std::function<void(Status)> finished;
  AgentCore core;
  const uint64_t instance;
  const std::shared_ptr<launch::Guard> guard;
  std::shared_ptr<wire::Channel> channel;
  bool welcomed = false, holding = false, takes_drain = false;
  uint64_t sent = 0, heard_sequence = 0;
  Time heard{};
  Duration interval = seconds(1), timeout = seconds(10), delay = kFirstDelay, attempt = kFirstAttempt;
  size_t next_driver = 0, refused_by = 0;
  std::string endpoint, job;
  uint64_t term = 0;  // the newest that any driver has named
  Loop::Timer dial_timer, beat, tick;
  std::map<uint64_t, std::unique_ptr<Worker>> workers;
  std::shared_ptr<int> alive = std::make_shared<int>(0);
};

Agent::Agent(const Options& options) : settings_(read_agent_settings(options)), logger_(options.logger) {}

Agent::~Agent() { close(); }

void Agent::set_command(std::vector<std::string> argv, std::vector<std::string> environment) {
  std::lock_guard lock(mutex_);
  if (started_) throw Error(HVD_INVALID, "the agent is started already: set it up before");
  if (argv.empty()) throw Error(HVD_INVALID, "the command is empty");
  for (const std::string& entry : environment) {
    if (entry.find('=') == std::string::npos || entry.front() == '=')
      throw Error(HVD_INVALID, fmt::format("environment entry '{}': expected NAME=value", entry));
  }
  argv_ = std::move(argv);
  environment_ = std::move(environment);
}

void Agent::start() {
  std::unique_lock lock(mutex_);
  if (started_) throw Error(HVD_INVALID, "the agent is started already");
  auto loop = std::make_unique<Loop>("hvd-agent");
  std::promise<void> promise;
  loop->post([&] {
    try {
      impl_ = std::make_unique<Impl>(*loop, settings_, logger_, argv_, environment_,
                                     [this](const Status& status) {
                                       {
                                         std::lock_guard inner(mutex_);
                                         result_ = status;
                                         over_ = true;
                                       }
                                       changed_.notify_all();
                                     });
      promise.set_value();
    } catch (...) { promise.set_exception(std::current_exception()); }
  });
  promise.get_future().get();
  loop->post([this] { impl_->dial(); });
  loop_ = std::move(loop);
  started_ = true;
}

Status Agent::wait(Duration timeout) {
  std::unique_lock lock(mutex_);
  if (!started_) return Status(HVD_INVALID, "the agent was not started");
  if (!changed_.wait_until(lock, now() + std::min<Duration>(timeout, std::chrono::hours(24 * 365)),
                           [this] { return over_; })) {
    return Status(HVD_TIMEOUT, fmt::format("the agent of host {} goes on after {:.1f} s", settings_.host,
                                           to_seconds(timeout)));
  }
  return result_;
}

void Agent::stop(const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (!started_) throw Error(HVD_INVALID, "the agent was not started");
  if (loop_) loop_->post([this, reason] { impl_->do_all(impl_->core.stop(reason, now())); });
}

void Agent::drain(const std::string& reason, Duration timeout) {
  std::lock_guard lock(mutex_);
  if (!started_) throw Error(HVD_INVALID, "the agent was not started");
  const Duration longest = timeout > Duration(0) ? timeout : settings_.leave_timeout;
  if (loop_)
    loop_->post([this, reason, longest] { impl_->do_all(impl_->core.drain(reason, longest, now())); });
}

void Agent::close() {
  std::unique_ptr<Loop> loop;
  {
    std::lock_guard lock(mutex_);
    loop = std::move(loop_);
  }
  if (!loop) return;
  std::promise<void> promise;
  loop->post([&] {
    impl_.reset();
    promise.set_value();
  });
  promise.get_future().get();
  std::lock_guard lock(mutex_);
  if (!std::exchange(over_, true)) result_ = Status(HVD_CLOSED, "the agent was closed");
  changed_.notify_all();
}

}  // namespace hvd::agent
