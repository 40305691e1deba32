// Starts and stops the driver, and answers the questions of the program that embeds it.
#include "driver/driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <future>
#include <utility>

#include "launch/guard.h"
#include "launch/process.h"

namespace hvd::driver {
namespace {

namespace fs = std::filesystem;

constexpr Duration kLeastGrace = std::chrono::milliseconds(200);
constexpr Duration kLastPatience = std::chrono::seconds(3);  // after SIGKILL

bool job_over(hvd_phase phase) { return phase == HVD_PHASE_SUCCEEDED || phase == HVD_PHASE_FAILED; }

}  // namespace

Driver::Driver(Options options)
    : options_(std::move(options)), settings_(read_settings(options_)), logger_(options_.logger) {
  if (options_.is_set("hosts")) parse_fixed_hosts(options_.string("hosts"), settings_.slots_per_host);
  if (options_.is_set("hosts") && options_.is_set("discovery_script")) {
    throw Error(HVD_INVALID,
                fmt::format("both option hosts ({}) and option discovery_script ({}) are given: expected one",
                            options_.string("hosts"), options_.string("discovery_script")));
  }
}

Driver::~Driver() { close(); }

void Driver::close() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !starting_ || started_; });
    if (std::exchange(closed_, true) || loop_ == nullptr) return;
  }
  const Time deadline = now() + settings_.stop_grace + kLastPatience;
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
        std::clamp<Duration>(deadline - now(), kLeastGrace, std::max(settings_.stop_grace, kLeastGrace)));
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

/// The options of this driver that are the workers' as well: they inherit what was set, wherever it was set.
std::vector<std::string> Driver::worker_options() const {
  std::vector<std::string> result;
  for (const char* key : {"backend", "plugin_path", "interface", "local", "log_level", "init_timeout",
                          "connect_timeout", "driver_timeout", "operation_timeout", "stall_warning",
                          "shutdown_timeout", "segment_bytes", "encrypt", "checksum", "fusion_threshold",
                          "deterministic", "timeline", "nccl_library", "cuda_library"}) {
    if (!options_.is_set(key)) continue;
    std::string name = std::string("HVD_") + key;
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
    result.push_back(name + "=" + options_.text(key));
  }
  // Reports of a stall come after stall_warning, twice that time, and so on: one of them is to fall on stall_shutdown.
  if (const Duration shutdown = options_.duration("stall_shutdown"); shutdown > Duration(0)) {
    Duration warning = shutdown;
    while (warning > options_.duration("stall_warning")) warning /= 2;
    result.push_back(fmt::format("HVD_STALL_WARNING={}", to_seconds(std::max(warning, milliseconds(1)))));
  }
  const std::vector<std::string> theirs = variables_.added_to(launch::merged_environment(environment_));
  result.insert(result.end(), theirs.begin(), theirs.end());
  result.insert(result.end(), environment_.begin(), environment_.end());
  return result;
}

std::shared_ptr<launch::Guard> Driver::guard() {
  if (guard_ == nullptr) guard_ = std::make_shared<launch::Guard>(guard_path_, settings_.stop_grace, logger_);
  return guard_;
}

/// The program that the workers' backend needs beside the job, and its variables for them, by the module's manifest.
void Driver::find_helper() {
  helper_program_.clear();
  variables_ = {};
  const std::string option = options_.string("helper");
  if (option == "off") return;
  const std::vector<Manifest> manifests = read_manifests(options_);
  for (const std::string& name : names_in_list(backend_of_workers())) {
    const Manifest* const manifest = serving(manifests, name);
    if (manifest == nullptr) continue;
    variables_ = manifest->variables;
    if (manifest->helper.empty()) continue;
    try {
      helper_program_ =
          launch::find_program(option.empty() ? manifest->directory / manifest->helper : fs::path(option));
    } catch (const Error& error) {
      throw Error(
          HVD_UNAVAILABLE,
          fmt::format(
              "backend {} needs a program beside the job: {} (option helper names its file; the backend "
              "needs {})",
              name, error.what(), manifest->needs));
    }
  }
}

/// The backend that workers will use: HVD_BACKEND among their own variables, else the option.
std::string Driver::backend_of_workers() const {
  constexpr std::string_view kName = "HVD_BACKEND=";
  std::string backend = options_.string("backend");
  for (const std::string& entry : environment_) {
    if (entry.starts_with(kName)) backend = entry.substr(kName.size());
  }
  return backend;
}

/// Waits for it: the workers need what it says when they start.
void Driver::start_helper() {
  auto told = std::make_shared<std::promise<Status>>();
  std::future<Status> started = told->get_future();
  launch::HelperConfig config;
  config.program = helper_program_;
  config.environment = variables_.without(launch::merged_environment(environment_));
  config.listen = settings_.listen;
  config.interface = options_.string("interface");
  config.local = !launch_.start;
  run_on_loop([&] {
    launch::Helper::Events events;
    events.started = [told](const Status& status) { told->set_value(status); };
    events.died = [this](const std::string& why) {
      const std::string sentence = why + ": without it no worker can join others";
      if (supervisor_) return supervisor_->close_joining(sentence);
      helper_death_ = sentence;
    };
    helper_ = std::make_unique<launch::Helper>(*loop_, config, guard(), logger_, std::move(events));
  });
  if (started.wait_for(config.timeout + kLastPatience) != std::future_status::ready) {
    throw Error(HVD_UNAVAILABLE, config.program + " gave no answer");
  }
  if (Status status = started.get(); !status.ok()) throw Error(status);
  run_on_loop([this] { variables_.append(helper_->variables()); });
}

std::unique_ptr<HostDiscovery> Driver::make_discovery() {
  if (discover_) return make_callback_discovery(*loop_, discover_, settings_.discovery_timeout);
  if (options_.is_set("discovery_script")) {
    return make_script_discovery(*loop_, options_.string("discovery_script"), settings_.slots_per_host,
                                 settings_.discovery_timeout, logger_);
  }
  return make_fixed_discovery(parse_fixed_hosts(options_.string("hosts"), settings_.slots_per_host));
}

std::unique_ptr<launch::Launcher> Driver::make_launcher(launch::Launcher::Events events) {
  if (launch_.start) {
    auto launcher = launch::make_callback_launcher(*loop_, launch_, logger_, std::move(events));
    callback_launcher_ = launcher.get();
    return launcher;
  }
  launch::LocalLauncherConfig config;
  config.program = program_;
  config.argv = argv_;
  config.environment = variables_.without(launch::merged_environment(environment_));
  config.output_directory = options_.string("output_directory");
  return launch::make_local_launcher(*loop_, std::move(config), output_, guard(), logger_, std::move(events));
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
  SupervisorConfig config;
  config.settings = settings_;
  config.environment = worker_options();
  config.logger = logger_;
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
  if (told.wait_for(settings_.discovery_timeout + kLastPatience) != std::future_status::ready) {
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
    const bool hosts = options_.is_set("hosts");
    const bool script = options_.is_set("discovery_script");
    if (!discover_ && !hosts && !script) {
      throw Error(HVD_INVALID,
                  "no hosts: expected option hosts, option discovery_script or a discovery callback");
    }
    if (!launch_.start && argv_.empty()) {
      throw Error(HVD_INVALID, "no command: expected hvd_driver_set_command or a launcher callback");
    }
    starting_ = true;
  }
  try {
    if (!launch_.start) program_ = launch::find_program(argv_.front());
    find_helper();
    if (!launch_.start || !helper_program_.empty())
      guard_path_ = launch::find_guard(options_.string("guard"));
    {
      auto loop = std::make_unique<Loop>("hvd-driver");
      std::lock_guard lock(mutex_);
      loop_ = std::move(loop);
    }
    if (!helper_program_.empty()) start_helper();
    run_on_loop([this] { build(); });
    begin();
  } catch (...) {
    if (loop_ != nullptr) tear_down(settings_.stop_grace);
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

void Driver::tear_down(Duration grace) {
  run_on_loop([&] {
    if (supervisor_) supervisor_->close(grace);
    callback_launcher_ = nullptr;
    supervisor_.reset();
    helper_.reset();  // the workers are gone
    guard_.reset();
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
  if (!started_) throw Error(HVD_INVALID, "the driver was not started");
  if (loop_ == nullptr) return;  // closed meanwhile
  loop_->post([this, reason] {
    if (supervisor_) supervisor_->stop(reason);
  });
}

DriverStatus Driver::status() const {
  std::lock_guard lock(mutex_);
  return status_;
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
