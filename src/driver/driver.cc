// Starts and stops the driver, and answers the questions of the program that embeds it.
#include "driver/driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <set>
#include <utility>

#include "agent/command.h"
#include "agent/environment.h"
#include "agent/launcher.h"
#include "base/file.h"
#include "driver/hostfile.h"
#include "launch/guard.h"
#include "launch/job_directory.h"
#include "launch/process.h"

namespace hvd::driver {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kIdentitiesOfTerm = 1'000'000;
constexpr Duration kLeastGrace = std::chrono::milliseconds(200);
constexpr Duration kLastPatience = std::chrono::seconds(3);  // after SIGKILL

constexpr char kDefaultAgent[] = "ssh -o BatchMode=yes {host}";
constexpr char kSlurmAgent[] = "srun --overlap -N1 -n1 -w {host}";

/// This process's, or -1 where the kernel does not tell: asking by umask() would change it for a moment.
int own_umask() {
  std::string text;
  if (!read_file("/proc/self/status", 4096, &text)) return -1;
  const size_t at = text.find("\nUmask:");
  return at == std::string::npos ? -1 : static_cast<int>(std::strtol(text.c_str() + at + 7, nullptr, 8));
}

/// The hosts are those whose agents have come.
class AgentDiscovery final : public HostDiscovery {
 public:
  explicit AgentDiscovery(const agent::Server& server) : server_(server) {}
  void discover(Done done) override {
    std::vector<membership::HostSlots> hosts;
    for (const auto& [name, slots] : server_.hosts()) hosts.push_back({name, slots});
    done(Status(), std::move(hosts));
  }
  void close(Duration) override {}

 private:
  const agent::Server& server_;
};

bool job_over(hvd_phase phase) { return phase == HVD_PHASE_SUCCEEDED || phase == HVD_PHASE_FAILED; }

}  // namespace

Driver::Driver(Options options)
    : options_(std::move(options)),
      logger_(LogTail::around(options_.logger, log_tail_)),
      keeper_(options_.integer("keeper") >= 0
                  ? std::make_shared<launch::Keeper>(static_cast<int>(options_.integer("keeper")), logger_)
                  : nullptr),
      settings_(make_settings()) {
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

/// The name and the secret of the job are those of the driver before this one, if there was one.
Settings Driver::make_settings() {
  Settings settings = read_settings(options_);
  if (!keeper_) return settings;
  if (const auto kept = keeper_->take("job")) {
    std::vector<std::string> parts(1);
    for (const char c : kept->text) c == '\n' ? void(parts.emplace_back()) : parts.back().push_back(c);
    if (parts.size() == 3) {
      settings.job = parts[0];
      settings.secret = parts[1];
      journal_directory_ = parts[2];
    }
  }
  return settings;
}

/// What is known of the job if this driver is not its first one.
void Driver::take_over() {
  known_.reset();
  term_ = 0;
  // Agents end the workers of a driver that does not come back as the same one: nothing is kept then.
  if (agents_ && !settings_.takeover && settings_.private_journal) return;
  std::string directory = journal_directory_.empty() ? settings_.journal : journal_directory_;
  if (directory.empty() && settings_.private_journal && keeper_) {
    const char* const temporary = ::secure_getenv("TMPDIR");
    directory = launch::make_job_directory(temporary != nullptr && *temporary == '/' ? temporary : "/tmp");
    if (directory.empty())
      logger_->warning("no directory for the journal can be made: {}", std::strerror(errno));
    if (!directory.empty() && !guard_path_.empty()) guard()->add_directory(directory);
  }
  journal_directory_ = directory;
  if (directory.empty()) {
    if (settings_.takeover) known_.emplace();
    if (settings_.takeover || keeper_) term_ = 1;
    if (keeper_ && keeper_->drivers_before() > 0) {
      term_ = static_cast<uint64_t>(keeper_->drivers_before()) + 1;
      known_.emplace();
    }
  } else {
    JournalFile::Found found = JournalFile::find(directory);
    const bool ours = keeper_ && keeper_->drivers_before() > 0;
    if (found.driver_lives && !settings_.takeover && !ours) {
      throw Error(
          HVD_UNAVAILABLE,
          fmt::format("a driver of a job writes the journal in {} at this moment (term {}): expected another "
                      "directory, or option takeover to take that job over",
                      directory, found.term));
    }
    term_ = found.term + 1;
    const membership::Journal& journal = found.journal;
    const bool same_job =
        journal.began.job == settings_.job || (journal.began.term > 0 && !options_.is_set("job"));
    if (ours || (journal.began.term > 0 && same_job && !journal.job.finish)) {
      if (!ours && journal.began.job != settings_.job) {
        throw Error(
            HVD_UNAVAILABLE,
            fmt::format(
                "the journal in {} is of job {}, which has not ended: expected options job and secret "
                "of that job to take it over, or another directory",
                directory, journal.began.job));
      }
      known_ = journal.job;
      // Of a driver whose machine runs on everything is there; of another machine the last records may be lost.
      known_->told = known_->told && ours;
      if (!journal.whole()) {
        logger_->warning("the journal in {} is damaged in {} places: {} records are whole", directory,
                         journal.damaged, journal.records);
      }
    }
    // Which identities were in use nobody can tell: these were not.
    if (known_ && !known_->told)
      known_->next_worker = std::max(known_->next_worker, term_ * kIdentitiesOfTerm);
    journal_ = std::make_shared<JournalFile>(directory, term_, logger_);
    JournalFile::remove_older(directory, term_);
  }
  if (keeper_) keeper_->keep("job", settings_.job + "\n" + settings_.secret + "\n" + directory, {});
}

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
  std::vector<std::string> result = options_.for_workers();
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
  if (guard_ != nullptr) return guard_;
  if (keeper_) {
    pid_t pid = -1;
    if (const auto kept = keeper_->take("guard"); kept && kept->descriptors.size() == 1) {
      std::from_chars(kept->text.data(), kept->text.data() + kept->text.size(), pid);
      return guard_ = std::make_shared<launch::Guard>(guard_path_, pid, kept->descriptors.front(), logger_);
    }
  }
  guard_ = std::make_shared<launch::Guard>(guard_path_, settings_.stop_grace, logger_);
  // As long as it is kept the guard does not take the end of this driver for that of the job.
  if (keeper_) keeper_->keep("guard", std::to_string(guard_->pid()), {guard_->descriptor()});
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
  config.listen = listen_;
  config.interface = options_.string("interface");
  config.local = !launch_.start && !agents_;
  config.keeper = keeper_;
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

/// Of option hosts or hostfile, or of the Slurm allocation if nothing else names hosts; none: they are discovered.
std::vector<membership::HostSlots> Driver::fixed_hosts() const {
  if (options_.is_set("hosts")) return parse_fixed_hosts(options_.string("hosts"), settings_.slots_per_host);
  if (options_.is_set("hostfile"))
    return read_hostfile(options_.string("hostfile"), settings_.slots_per_host);
  const std::optional<std::string> nodes = options_.environment("SLURM_JOB_NODELIST");
  if (!nodes || nodes->empty() || discover_ || launch_.start || options_.is_set("discovery_script") ||
      options_.boolean("discover_agents") || options_.boolean("local_hosts"))
    return {};
  return parse_slurm_nodes(*nodes, options_.environment("SLURM_TASKS_PER_NODE").value_or(""),
                           settings_.slots_per_host);
}

/// Whether a worker may have to be started on another machine.
bool Driver::may_need_agents() const {
  if (launch_.start) return false;
  if (options_.boolean("discover_agents")) return true;
  if (options_.boolean("local_hosts")) return false;
  const std::vector<membership::HostSlots> hosts = fixed_hosts();
  if (hosts.empty()) return true;
  const std::set<std::string> names = agent::own_names();
  return !std::all_of(hosts.begin(), hosts.end(),
                      [&](const membership::HostSlots& host) { return agent::is_own(names, host.name); });
}

void Driver::make_agent_server() {
  agent::ServerConfig config;
  config.job = settings_.job;
  config.secret = settings_.secret;
  config.fleet.patience = options_.duration("agent_timeout");
  config.fleet.start_timeout = options_.duration("connect_timeout");
  config.fleet.starts_agents = !options_.boolean("discover_agents");
  config.heartbeat_interval = settings_.heartbeat_interval;
  config.heartbeat_timeout = settings_.heartbeat_timeout;
  const bool slurm = options_.environment("SLURM_JOB_ID").has_value();
  config.words = agent::parse_template(options_.is_set("agent") ? options_.string("agent")
                                       : slurm                  ? kSlurmAgent
                                                                : kDefaultAgent);
  config.program = options_.is_set("agent_program") ? options_.string("agent_program") : "hvdrun";
  config.own_environment = agent::sendable(launch::merged_environment({}));
  config.base = agent::sendable(variables_.without(launch::merged_environment(environment_)));
  config.argv = argv_;
  std::error_code error;
  config.directory = fs::current_path(error).string();
  config.umask = own_umask();
  config.output_directory = options_.string("output_directory");
  agent_server_ = std::make_unique<agent::Server>(
      *loop_, std::move(config), output_, [this] { return guard(); }, logger_);
  agent_server_->set_hosts_changed([this] {
    if (supervisor_) supervisor_->discover_now();
  });
  agent_server_->set_drain([this](const std::string& host, Duration timeout, const std::string& why) {
    if (!supervisor_) return;
    const membership::Answer answer = supervisor_->drain(host, timeout, why);
    if (!answer.accepted) logger_->info("the agent of host {} drains: {}", host, answer.text);
  });
}

std::unique_ptr<HostDiscovery> Driver::make_discovery() {
  if (agents_ && options_.boolean("discover_agents")) return std::make_unique<AgentDiscovery>(*agent_server_);
  if (discover_) return make_callback_discovery(*loop_, discover_, settings_.discovery_timeout);
  if (options_.is_set("discovery_script")) {
    return make_script_discovery(*loop_, options_.string("discovery_script"), settings_.slots_per_host,
                                 settings_.discovery_timeout, logger_);
  }
  return make_fixed_discovery(fixed_hosts());
}

std::unique_ptr<launch::Launcher> Driver::make_launcher(launch::Launcher::Events events) {
  if (launch_.start) {
    auto launcher = launch::make_callback_launcher(*loop_, launch_, logger_, std::move(events));
    callback_launcher_ = launcher.get();
    return launcher;
  }
  if (agent_server_) agent_server_->set_events(events);
  if (agents_ && options_.boolean("discover_agents"))
    return agent::make_launcher(*agent_server_, nullptr, nullptr);
  launch::LocalLauncherConfig config;
  config.program = program_;
  config.argv = argv_;
  config.environment = variables_.without(launch::merged_environment(environment_));
  config.output_directory = options_.string("output_directory");
  config.keeper = keeper_;
  auto local =
      launch::make_local_launcher(*loop_, std::move(config), output_, guard(), logger_, std::move(events));
  if (!agents_) return local;
  return agent::make_launcher(
      *agent_server_, std::move(local),
      [names = agent::own_names()](const std::string& host) { return agent::is_own(names, host); });
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
  config.settings = settings_;
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
  config.term = term_;
  config.journal = journal_;
  config.known = known_;
  config.keeper = keeper_;
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
    // With agents on other hosts it may be there alone: its absence here fails only those that are started here.
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
    listen_ = agents_ && !options_.is_set("listen") ? "0.0.0.0:0" : settings_.listen;
    find_helper();
    if (!launch_.start || !helper_program_.empty())
      guard_path_ = launch::find_guard(options_.string("guard"));
    {
      auto loop = std::make_unique<Loop>("hvd-driver");
      std::lock_guard lock(mutex_);
      loop_ = std::move(loop);
    }
    if (keeper_) run_on_loop([this] { keeper_->watch(*loop_); });
    run_on_loop([this] { take_over(); });
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
  if (agents_) end_agents(grace);
  run_on_loop([&] {
    if (supervisor_) supervisor_->close(grace);
    callback_launcher_ = nullptr;
    supervisor_.reset();
    agent_server_.reset();
    helper_.reset();  // the workers are gone
    if (keeper_) {
      keeper_->stop_watching();
      keeper_->drop("guard");
    }
    if (settings_.private_journal && journal_) launch::remove_job_directories({journal_directory_});
    journal_.reset();
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
