// The parts of a driver, chosen by its options and the program's callbacks: discovery, launcher, agents,
// helper.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <set>
#include <utility>

#include "agent/command.h"
#include "agent/environment.h"
#include "agent/launcher.h"
#include "base/file.h"
#include "driver/driver.h"
#include "driver/hostfile.h"
#include "launch/process.h"

namespace hvd::driver {
namespace {

constexpr Duration kLastPatience = std::chrono::seconds(3);

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
    int64_t total = 0;
    for (const auto& [name, slots] : server_.hosts()) {
      if (const auto many = too_many_slots(name, slots, total))
        return done(Status(HVD_UNAVAILABLE, "the agents offer " + *many), {});
      hosts.push_back({name, slots});
      total += slots;
    }
    done(Status(), std::move(hosts));
  }
  void close(Duration) override {}

 private:
  const agent::Server& server_;
};

}  // namespace

/// The options of this driver that are the workers' as well: they inherit what was set, wherever it was set.
std::vector<std::string> Driver::worker_options() const {
  std::vector<std::string> result = options_.for_workers();
  // Reports of a stall come after stall_warning, twice that time, and so on: one of them is to fall on
  // stall_shutdown.
  if (const Duration shutdown = options_.duration("stall_shutdown"); shutdown > Duration(0)) {
    Duration warning = shutdown;
    const Duration wished = options_.duration("stall_warning");  // 0: none but this one
    while (wished > Duration(0) && warning > wished) warning /= 2;
    result.push_back(fmt::format("HVD_STALL_WARNING={}", to_seconds(std::max(warning, milliseconds(1)))));
  }
  const std::vector<std::string> theirs = variables_.added_to(launch::merged_environment(environment_));
  result.insert(result.end(), theirs.begin(), theirs.end());
  result.insert(result.end(), environment_.begin(), environment_.end());
  return result;
}

/// The program that the workers' backend needs beside the job, and its variables for them, by the module's
/// manifest.
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
          launch::find_program(option.empty() ? path_in(manifest->directory, manifest->helper) : option);
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
  config.keeper = succession_.keeper();
  run_on_loop([&] {
    launch::Helper::Events events;
    events.started = [told](const Status& status) { told->set_value(status); };
    events.died = [this](const std::string& why) {
      const std::string sentence = why + ": without it no worker can join others";
      if (supervisor_) return supervisor_->close_joining(sentence);
      helper_death_ = sentence;
    };
    helper_ =
        std::make_unique<launch::Helper>(*loop_, config, succession_.guard(), logger_, std::move(events));
  });
  if (started.wait_for(config.timeout + kLastPatience) != std::future_status::ready) {
    throw Error(HVD_UNAVAILABLE, config.program + " gave no answer");
  }
  if (Status status = started.get(); !status.ok()) throw Error(status);
  run_on_loop([this] { variables_.append(helper_->variables()); });
}

/// Of option hosts or hostfile, or of the Slurm allocation if nothing else names hosts; none: they are
/// discovered.
std::vector<membership::HostSlots> Driver::fixed_hosts() const {
  if (options_.is_set("hosts")) return parse_fixed_hosts(options_.string("hosts"), settings().slots_per_host);
  if (options_.is_set("hostfile"))
    return read_hostfile(options_.string("hostfile"), settings().slots_per_host);
  const std::optional<std::string> nodes = options_.environment("SLURM_JOB_NODELIST");
  if (!nodes || nodes->empty() || discover_ || launch_.start || options_.is_set("discovery_script") ||
      options_.boolean("discover_agents") || options_.boolean("local_hosts"))
    return {};
  return parse_slurm_nodes(*nodes, options_.environment("SLURM_TASKS_PER_NODE").value_or(""),
                           settings().slots_per_host);
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
  config.job = settings().job;
  config.secret = settings().secret;
  config.fleet.patience = options_.duration("agent_timeout");
  config.fleet.start_timeout = options_.duration("connect_timeout");
  config.fleet.starts_agents = !options_.boolean("discover_agents");
  config.fleet.takes_over = succession_.known().has_value();
  config.keeper = succession_.keeper();
  config.heartbeat_interval = settings().heartbeat_interval;
  config.heartbeat_timeout = settings().heartbeat_timeout;
  const bool slurm = options_.environment("SLURM_JOB_ID").has_value();
  config.words = agent::parse_template(options_.is_set("agent") ? options_.string("agent")
                                       : slurm                  ? kSlurmAgent
                                                                : kDefaultAgent);
  config.program = options_.is_set("agent_program") ? options_.string("agent_program") : "hvdrun";
  config.own_environment = agent::sendable(launch::merged_environment({}));
  config.base = agent::sendable(variables_.without(launch::merged_environment(environment_)));
  config.argv = argv_;
  config.directory = real_path(".");
  config.umask = own_umask();
  config.output_directory = options_.string("output_directory");
  agent_server_ = std::make_unique<agent::Server>(
      *loop_, std::move(config), output_, [this] { return succession_.guard(); }, logger_);
  agent_server_->set_hosts_changed([this] {
    if (supervisor_) supervisor_->agents_changed();
  });
  agent_server_->set_drain([this](const std::string& host, Duration timeout, const std::string& why) {
    if (!supervisor_) return;
    const membership::Answer answer = supervisor_->drain(host, timeout, why);
    if (!answer.accepted) logger_->info("the agent of host {} drains: {}", host, answer.text);
  });
  meet_agents();
}

std::unique_ptr<HostDiscovery> Driver::make_discovery() {
  if (agents_ && options_.boolean("discover_agents")) return std::make_unique<AgentDiscovery>(*agent_server_);
  if (discover_) return make_callback_discovery(*loop_, discover_, settings().discovery_timeout);
  if (options_.is_set("discovery_script")) {
    return make_script_discovery(*loop_, options_.string("discovery_script"), settings().slots_per_host,
                                 settings().discovery_timeout, logger_);
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
  config.keeper = succession_.keeper();
  auto local = launch::make_local_launcher(*loop_, std::move(config), output_, succession_.guard(), logger_,
                                           std::move(events));
  if (!agents_) return local;
  return agent::make_launcher(
      *agent_server_, std::move(local),
      [names = agent::own_names()](const std::string& host) { return agent::is_own(names, host); });
}

}  // namespace hvd::driver
