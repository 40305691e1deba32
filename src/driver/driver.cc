// Starts and stops the driver, and answers the questions of the program that embeds it.
#include "driver/driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <utility>

#include "agent/command.h"
#include "agent/launcher.h"
#include "base/secret.h"
#include "driver/hostfile.h"
#include "launch/process.h"

namespace hvd::driver {
namespace {

constexpr Duration kLeastGrace = std::chrono::milliseconds(200);
constexpr Duration kLastPatience = std::chrono::seconds(3);  // after SIGKILL

bool job_over(hvd_phase phase) { return phase == HVD_PHASE_SUCCEEDED || phase == HVD_PHASE_FAILED; }

}  // namespace

Driver::Driver(Options options)
    : options_(std::move(options)),
      logger_(LogTail::around(options_.logger, log_tail_)),
      succession_(options_, logger_) {
  if (const int64_t soft = options_.integer("children_descriptors"); soft > 0)
    launch::limit_descriptors_of_children(soft);
  fixed_hosts();  // checked
  if (options_.is_set("hosts") && options_.is_set("hostfile")) {
    throw Error(HVD_INVALID,
                fmt::format("both option hosts ({}) and option hostfile ({}) are given: expected one",
                            options_.string("hosts"), options_.string("hostfile")));
  }
  if (options_.is_set("hostfile") && options_.is_set("discovery_script")) {
    throw Error(
        HVD_INVALID,
        fmt::format("both option hostfile ({}) and option discovery_script ({}) are given: expected one",
                    options_.string("hostfile"), options_.string("discovery_script")));
  }
  if (options_.is_set("hosts") && options_.is_set("discovery_script")) {
    throw Error(HVD_INVALID,
                fmt::format("both option hosts ({}) and option discovery_script ({}) are given: expected one",
                            options_.string("hosts"), options_.string("discovery_script")));
  }
  if (options_.boolean("discover_agents") &&
      (options_.is_set("hosts") || options_.is_set("hostfile") || options_.is_set("discovery_script"))) {
    throw Error(
        HVD_INVALID,
        "option discover_agents and option hosts, hostfile or discovery_script are given: expected one of them");
  }
  if (options_.is_set("agent")) agent::parse_template(options_.string("agent"));
}

Driver::~Driver() { close(); }

void Driver::close() {
  {
    std::unique_lock lock(mutex_);
    if (standby_) standby_->stop("the driver was closed");
    changed_.wait(lock, [this] { return !starting_ || started_; });
    if (std::exchange(closed_, true) || loop_ == nullptr) return;
  }
  const Time deadline = now() + settings().stop_grace + kLastPatience;
  try {
    if (!job_over(status().phase)) {
      loop_->post([this] {
        if (!supervisor_->stopped()) supervisor_->stop("the driver was closed");
      });
      std::unique_lock lock(mutex_);
      changed_.wait_until(lock, deadline, [&] { return job_over(status_.phase); });
    }
    // A callback that hangs gets what is left of the time, and enough to be asked at all.
    tear_down(
        std::clamp<Duration>(deadline - now(), kLeastGrace, std::max(settings().stop_grace, kLeastGrace)));
  } catch (const std::exception& error) { logger_->error("closing the driver: {}", error.what()); }
}

void Driver::change(const std::function<void()>& set) {
  std::lock_guard lock(mutex_);
  if (starting_ || started_) throw Error(HVD_INVALID, "the driver is started already: set it up before");
  set();
}

void Driver::set_command(std::vector<std::string> argv, std::vector<std::string> environment) {
  if (argv.empty()) throw Error(HVD_INVALID, "the command is empty");
  for (const std::string& entry : environment) {
    if (entry.find('=') == std::string::npos || entry.front() == '=') {
      throw Error(HVD_INVALID, fmt::format("environment entry '{}': expected NAME=value", entry));
    }
  }
  std::erase_if(environment, tells_secret);
  change([&] {
    argv_ = std::move(argv);
    environment_ = std::move(environment);
  });
}

void Driver::set_discovery(DiscoverFunction discover) {
  change([&] { discover_ = std::move(discover); });
}

void Driver::set_launcher(launch::LaunchFunctions launch) {
  change([&] { launch_ = std::move(launch); });
}

void Driver::set_output(launch::OutputFunction output) {
  change([&] { output_function_ = std::move(output); });
}

void Driver::run_on_loop(const std::function<void()>& fn) {
  std::promise<void> promise;
  std::future<void> done = promise.get_future();
  loop_->post([&] {
    try {
      fn();
      promise.set_value();
    } catch (...) { promise.set_exception(std::current_exception()); }
  });
  done.get();
}

void Driver::build() {
  output_ = std::make_shared<launch::OutputThread>(
      output_function_ ? output_function_ : launch::standard_output(), logger_);
  if (agents_) make_agent_server();
  SupervisorConfig config;
  config.settings = settings();
  config.settings.listen = listen_;
  if (agents_) {
    config.is_here = [names = agent::own_names(), any = options_.boolean("local_hosts")](
                         const std::string& host) { return any || agent::is_own(names, host); };
    config.listening = [this](const std::string& address, uint16_t port) {
      const std::vector<std::string> endpoints = agent::reachable_endpoints(address, port);
      agent_server_->listening(endpoints);
      return endpoints.empty() ? std::string() : endpoints.front();
    };
    config.guest = [this](const std::shared_ptr<wire::Channel>& channel, const wire::EnvelopeT& message) {
      return agent_server_->guest(channel, message);
    };
  }
  config.environment = worker_options();
  config.term = succession_.term();
  config.journal = succession_.journal();
  config.known = succession_.known();
  config.keeper = succession_.keeper();
  config.logger = logger_;
  config.log_lines = [tail = log_tail_] { return tail->lines(); };
  config.make_launcher = [this](launch::Launcher::Events events) { return make_launcher(std::move(events)); };
  config.changed = [this](const DriverStatus& status) {
    {
      std::lock_guard lock(mutex_);
      status_ = status;
    }
    changed_.notify_all();
  };
  supervisor_ = std::make_unique<Supervisor>(*loop_, std::move(config), make_discovery());
  if (!helper_death_.empty()) supervisor_->close_joining(helper_death_);
}

/// Waits for the first discovery: it is the one whose failure is fatal.
void Driver::begin() {
  auto first = std::make_shared<std::promise<Status>>();
  std::future<Status> told = first->get_future();
  run_on_loop(
      [&] { supervisor_->discover_first([first](const Status& status) { first->set_value(status); }); });
  if (told.wait_for(settings().discovery_timeout + kLastPatience) != std::future_status::ready) {
    throw Error(HVD_UNAVAILABLE, "the first discovery gave no answer");
  }
  const Status status = told.get();
  if (!status.ok()) throw Error(HVD_UNAVAILABLE, "the first discovery failed: " + status.message);
  run_on_loop([this] { supervisor_->begin(); });
}

void Driver::start() {
  {
    std::lock_guard lock(mutex_);
    if (closed_) throw Error(HVD_CLOSED, "the driver was closed");
    if (starting_ || started_) throw Error(HVD_INVALID, "the driver is started already");
    const bool hosts = !fixed_hosts().empty();
    const bool script = options_.is_set("discovery_script");
    const bool by_agents = options_.boolean("discover_agents");
    if (!discover_ && !hosts && !script && !by_agents) {
      throw Error(
          HVD_INVALID,
          "no hosts: expected option hosts, option hostfile, option discovery_script, option discover_agents or a discovery callback");
    }
    if (by_agents && (discover_ || launch_.start)) {
      throw Error(
          HVD_INVALID,
          "option discover_agents and a callback for discovery or launch are given: expected one of them");
    }
    if (!launch_.start && !by_agents && argv_.empty()) {
      throw Error(HVD_INVALID, "no command: expected hvd_driver_set_command or a launcher callback");
    }
    starting_ = true;
  }
  try {
    const bool by_agents = options_.boolean("discover_agents");
    // With agents on other hosts it may be there alone: its absence here fails only those that are started
    // here.
    agents_ = may_need_agents();
    if (!launch_.start && !by_agents) {
      try {
        program_ = launch::find_program(argv_.front());
      } catch (const Error&) {
        if (!agents_) throw;
        program_ = argv_.front();  // it may be on the other hosts alone
      }
    }
    // Agents and workers of other hosts connect to it, and nothing gets in without a key.
    listen_ = agents_ && !options_.is_set("listen") ? "0.0.0.0:0" : settings().listen;
    find_helper();
    std::string guard_path;
    if (!launch_.start || !helper_program_.empty()) guard_path = launch::find_guard(options_.string("guard"));
    {
      auto loop = std::make_unique<Loop>("hvd-driver");
      std::lock_guard lock(mutex_);
      loop_ = std::move(loop);
    }
    if (const auto& keeper = succession_.keeper()) run_on_loop([&] { keeper->watch(*loop_); });
    succeed(guard_path);
    if (!helper_program_.empty()) start_helper();
    run_on_loop([this] { build(); });
    begin();
    fence_others();
  } catch (...) {
    if (loop_ != nullptr) tear_down(settings().stop_grace);
    std::lock_guard lock(mutex_);
    starting_ = false;
    status_ = DriverStatus();
    changed_.notify_all();
    throw;
  }
  std::lock_guard lock(mutex_);
  started_ = true;
  changed_.notify_all();
}

/// Tells the agents how the job ended, and waits until they have gone.
void Driver::end_agents(Duration grace) {
  const DriverStatus last = status();
  auto gone = std::make_shared<std::promise<void>>();
  std::future<void> quiet = gone->get_future();
  run_on_loop([&] {
    if (!agent_server_) return gone->set_value();
    agent_server_->end(last.phase == HVD_PHASE_SUCCEEDED, last.try_again, last.sentence,
                       [gone] { gone->set_value(); });
  });
  quiet.wait_for(grace + kLastPatience);
}

void Driver::tear_down(Duration grace) {
  fence_.reset();
  tell_followers();
  if (agents_) end_agents(grace);
  run_on_loop([&] {
    if (supervisor_) supervisor_->close(grace);
    callback_launcher_ = nullptr;
    supervisor_.reset();
    agent_server_.reset();
    helper_.reset();  // the workers are gone
    succession_.end();
    helper_death_.clear();
  });
  output_.reset();
  std::unique_ptr<Loop> loop;
  {
    std::lock_guard lock(mutex_);
    loop = std::move(loop_);
  }
}

Status Driver::wait(Duration timeout) {
  std::unique_lock lock(mutex_);
  if (!started_) return Status(HVD_INVALID, "the driver was not started");
  // A deadline that is too far away for the clock is none that matters.
  const bool over =
      changed_.wait_until(lock, now() + std::min<Duration>(timeout, std::chrono::hours(24 * 365)),
                          [&] { return job_over(status_.phase); });
  if (!over) {
    return Status(HVD_TIMEOUT,
                  fmt::format("the job goes on after {:.1f} s: generation {}, {} workers alive{}{}",
                              to_seconds(timeout), status_.generation, status_.workers,
                              status_.sentence.empty() ? "" : "; ", status_.sentence));
  }
  if (status_.phase == HVD_PHASE_SUCCEEDED) return {};
  Status failed(HVD_JOB_FAILED, status_.sentence);
  failed.generation = status_.generation;
  return failed;
}

void Driver::stop(const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (standby_) return standby_->stop(reason);
  if (!started_) throw Error(HVD_INVALID, "the driver was not started");
  if (loop_ == nullptr) return;  // closed meanwhile
  loop_->post([this, reason] {
    if (supervisor_) supervisor_->stop(reason);
  });
}

void Driver::wish(const std::function<membership::Answer(Supervisor&)>& what) {
  auto told = std::make_shared<std::promise<membership::Answer>>();
  std::future<membership::Answer> answer = told->get_future();
  {
    std::lock_guard lock(mutex_);
    if (!started_) throw Error(HVD_INVALID, "the driver was not started");
    if (loop_ == nullptr) throw Error(HVD_CLOSED, "the driver was closed");
    loop_->post([this, what, told] {
      told->set_value(supervisor_ ? what(*supervisor_) : membership::Answer{false, "the driver was closed"});
    });
  }
  // The loop never blocks; should it be closed meanwhile nobody answers.
  if (answer.wait_for(kLastPatience) != std::future_status::ready) {
    throw Error(HVD_TIMEOUT, "the driver has not answered in time");
  }
  try {
    if (const membership::Answer given = answer.get(); !given.accepted) throw Error(HVD_INVALID, given.text);
  } catch (const std::future_error&) { throw Error(HVD_CLOSED, "the driver was closed"); }
}

void Driver::drain(const std::string& host, Duration timeout, const std::string& why) {
  wish([=](Supervisor& supervisor) { return supervisor.drain(host, timeout, why); });
}

void Driver::undrain(const std::string& host) {
  wish([=](Supervisor& supervisor) { return supervisor.undrain(host); });
}

void Driver::scale(int32_t size) {
  wish([=](Supervisor& supervisor) { return supervisor.scale(size); });
}

DriverStatus Driver::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

status::Snapshot Driver::snapshot() const {
  auto asked = std::make_shared<std::promise<status::Snapshot>>();
  std::future<status::Snapshot> told = asked->get_future();
  {
    std::lock_guard lock(mutex_);
    if (loop_ != nullptr) {
      if (loop_->in_loop()) return supervisor_ ? supervisor_->snapshot() : status_;  // from the log's hook
      // Dropped with the loop, which breaks the promise: then the last status is what there is.
      loop_->post([this, asked] { asked->set_value(supervisor_ ? supervisor_->snapshot() : status()); });
      asked.reset();
    } else {
      return status_;
    }
  }
  if (told.wait_for(kLastPatience) == std::future_status::ready) {
    try {
      return told.get();
    } catch (const std::future_error&) {}
  }
  return status();
}

void Driver::worker_exited(uint64_t worker, int32_t exit_status) {
  if (!launch_.start) throw Error(HVD_INVALID, "worker_exited is for workers started by callback");
  std::lock_guard lock(mutex_);
  // From within the start callback, for example: the driver may not have returned from start yet.
  if (!starting_ && !started_) throw Error(HVD_INVALID, "the driver was not started");
  if (loop_ == nullptr) return;
  loop_->post([this, worker, exit_status] {
    if (callback_launcher_ != nullptr) callback_launcher_->worker_exited(worker, exit_status);
  });
}

}  // namespace hvd::driver
