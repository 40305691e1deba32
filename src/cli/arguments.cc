// Flags of hvdrun, most of which are options of the library by another name.
#include "cli/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <limits>
#include <stdexcept>

#include "cli/torchrun.h"
#include "hvd/driver.h"

namespace hvd::cli {
namespace {

/// -np N, as every MPI user types it, to what CLI11 can parse. One word for each.
std::vector<std::string> rewritten(int argc, char** argv) {
  std::vector<std::string> result;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    result.push_back(word == "-np" ? "--np" : word.rfind("-np=", 0) == 0 ? "-" + word : word);
  }
  return result;
}

/// An option of the library that has an option of its own here: the text is passed on and checked there.
struct Named {
  const char* flags;
  const char* key;
  const char* meaning;
  std::string text{};
  CLI::Option* given = nullptr;
};

std::deque<Named> named_options() {
  return {
      {"-n,--np", "np", "workers to start with (also -np); default: one for each slot"},
      {"--min-np", "min_np", "fewest workers that the job goes on with; default: np"},
      {"--max-np", "max_np", "most workers"},
      {"--spares", "spares", "workers beyond max_np that wait to take the place of a lost one"},
      {"-H,--hosts", "hosts", "hosts: name:slots, separated by commas; default: localhost with np slots"},
      {"--hostfile", "hostfile", "file with a line host [slots=N] for each host, as of Open MPI and Horovod"},
      {"--agent", "agent",
       "command that runs another one on {host}, to start an agent there; default: ssh, within Slurm srun"},
      {"--agent-program", "agent_program", "hvdrun on the other hosts; default: the same path as here"},
      {"--listen", "listen", "address[:port] where the driver listens"},
      {"--secret-file", "secret_file", "file of mode 600 with the job's secret; -: standard input"},
      {"--join", "driver",
       "host:port of a driver: no job, but an agent for it, which runs workers on this host"},
      {"--host", "host", "with --join: the name of this host; default: the system's"},
      {"--slots", "slots_per_host", "with --join: how many workers may run here"},
      {"--host-discovery-script", "discovery_script", "program that prints host[:slots] lines"},
      {"--slots-per-host", "slots_per_host", "slots of a host for which none are named"},
      {"--reset-limit", "reset_limit", "resets after which the job is given up; 0: no limit"},
      {"--elastic-timeout", "elastic_timeout",
       "how long to wait for enough slots, and for workers to rejoin"},
      {"--output-filename", "output_directory", "directory for the workers' output, one folder a worker"},
      {"--backend", "backend",
       "tcp, gloo, mpi, nccl, any other module, several separated by commas, or auto"},
      {"--heartbeat-timeout", "heartbeat_timeout",
       "silence after which a worker is lost, unless its process runs"},
      {"--address-file", "address_file",
       "file that gets the driver's address, and the key to operate the job (hvdrun ctl --address FILE)"},
      {"--journal", "journal",
       "directory of the driver's journal, from which another driver takes the job over; absent: one of the job's own; off: none, and the driver's end is the job's"},
      {"--follow", "follow",
       "host:port of the job's driver, or several separated by commas: stand by for it as with --standby, and copy its journal over the network"},
      {"--stop-grace", "stop_grace", "time between SIGTERM and SIGKILL"},
      {"--timeline-filename", "timeline",
       "file for a trace of what each worker does; .<worker>.json is added"},
      {"--network-interface", "interface", "interface or address for the workers' data"},
  };
}

/// The command line, as CLI11 has taken it apart.
class Line {
 public:
  Line(CLI::App* app, Arguments* arguments) : app_(*app), arguments_(*arguments) {
    declare_options();
    declare_uses();
  }

  /// Takes options of the library: later ones win, so those that say more exactly what is meant come last.
  /// Throws CLI::ValidationError.
  void take_options();
  void take_variables();
  /// The command is what hvdrun left over, as it was before it was rewritten.
  void take_command(int argc, char** argv);

 private:
  void declare_options();
  void declare_uses();
  void take_flags();
  void take_settings();
  bool given(const std::string& flag) const {
    return std::any_of(named_.begin(), named_.end(), [&](const Named& option) {
      return option.flags == flag && option.given->count() > 0;
    });
  }
  void add(std::string key, std::string text) {
    arguments_.options.emplace_back(std::move(key), std::move(text));
  }

  CLI::App& app_;
  Arguments& arguments_;
  std::deque<Named> named_ = named_options();
  std::vector<std::string> cooldown_, variables_, settings_;
  Torchrun torchrun_;
  bool local_hosts_ = false;
};

void Line::declare_options() {
  for (Named& option : named_) option.given = app_.add_option(option.flags, option.text, option.meaning);
  app_.add_option("--blocklist-cooldown-range", cooldown_, "MIN MAX: how long a failing host is left out")
      ->expected(2)
      ->allow_extra_args(false);
  app_.add_option("-x", variables_, "NAME or NAME=VALUE: environment of the workers; repeatable")
      ->allow_extra_args(false)  // what follows the value is the command
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app_.add_option("--set", settings_, "KEY=VALUE: any option of the library; repeatable")
      ->allow_extra_args(false)  // what follows the value is the command
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app_.add_option("--nnodes", torchrun_.nnodes, "N or MIN:MAX: hosts, as torchrun has it; also PET_NNODES");
  app_.add_option("--nproc-per-node,--nproc_per_node", torchrun_.nproc_per_node,
                  "workers on each of them, or auto, gpu, cpu; also PET_NPROC_PER_NODE");
  app_.add_option("--master-addr,--master_addr", torchrun_.master_addr,
                  "MASTER_ADDR of workers; default: the first host");
  app_.add_option("--master-port,--master_port", torchrun_.master_port,
                  "MASTER_PORT of workers; default: a free port");
  app_.add_flag("--local-hosts", local_hosts_,
                "every host is this machine, whatever it is called: for trying things out");
}

void Line::declare_uses() {
  app_.add_option("--merge-timeline", arguments_.timelines,
                  "OUT IN...: no job, but one trace of several workers' timelines")
      ->expected(2, std::numeric_limits<int>::max());
  app_.add_flag("--check-build", arguments_.check_build,
                "no job, but a table of the backends: what they can do, and why some can't be used");
  app_.add_flag("--driver", arguments_.driver, "start nothing: the hosts are those where hvdrun --join runs");
  app_.add_flag(
      "--standby", arguments_.standby,
      "wait beside --journal, a directory that both machines see, until the job's driver is gone, and take over "
      "then; the other options as that driver's");
  app_.add_option(
      "--http", arguments_.http,
      "ADDRESS:PORT or PORT (on loopback): serves the job's status, read-only: a page, /status, /metrics, "
      "/livez, /readyz");
  app_.add_flag("!--no-status-line", arguments_.status_line, "no status line below the output on a terminal");
  app_.add_flag("-v,--verbose", arguments_.verbose,
                "tell what the driver does, and which backends the workers use and why");
}

void Line::take_options() {
  read_torchrun_environment(&torchrun_);
  try {
    for (auto& [key, text] : torchrun_options(torchrun_, given("--join")))
      add(std::move(key), std::move(text));
    arguments_.nodes = most_nodes(torchrun_);
  } catch (const std::invalid_argument& error) { throw CLI::ValidationError(error.what()); }
  for (const Named& option : named_) {
    if (option.given->count() > 0) add(option.key, option.text);
  }
  take_flags();
  if (!cooldown_.empty()) {
    add("blocklist_cooldown_min", cooldown_[0]);
    add("blocklist_cooldown_max", cooldown_[1]);
  }
  take_settings();
  for (const auto& [key, text] : arguments_.options) {
    if (key == "journal") arguments_.may_be_kept = text != "off";
  }
}

void Line::take_flags() {
  if (local_hosts_) add("local_hosts", "true");
  if (arguments_.driver) add("discover_agents", "true");
  if (arguments_.standby) add("standby", "true");
  arguments_.join = given("--join");
  if (given("--follow")) arguments_.standby = true;
  if (arguments_.join && arguments_.driver)
    throw CLI::ValidationError("--join", "either an agent or a driver, not both");
  if (arguments_.join && arguments_.standby)
    throw CLI::ValidationError("--standby",
                               "an agent needs none: name all drivers with --join A:PORT,B:PORT");
}

void Line::take_settings() {
  for (const std::string& setting : settings_) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos)
      throw CLI::ValidationError("--set", "'" + setting + "': expected KEY=VALUE");
    if (setting.compare(0, equals, "secret") == 0)
      throw CLI::ValidationError("--set",
                                 "the secret would be seen in the list of processes: set HVD_SECRET instead");
    add(setting.substr(0, equals), setting.substr(equals + 1));
  }
}

void Line::take_variables() {
  for (const std::string& variable : variables_) {
    if (variable.empty() || variable[0] == '=') {
      throw CLI::ValidationError("-x", "'" + variable + "': expected NAME or NAME=VALUE");
    }
    if (variable.rfind("HVD_SECRET=", 0) == 0)
      throw CLI::ValidationError("-x",
                                 "the secret would be seen in the list of processes: set HVD_SECRET instead");
    if (variable.find('=') != std::string::npos) {
      arguments_.environment.push_back(variable);
    } else if (const char* value = std::getenv(variable.c_str())) {
      arguments_.environment.push_back(variable + "=" + value);
    } else {
      throw CLI::ValidationError("-x", variable + " is not in the environment: expected NAME=VALUE");
    }
  }
}

void Line::take_command(int argc, char** argv) {
  std::vector<std::string>& command = arguments_.command;
  command.assign(argv + argc - static_cast<std::ptrdiff_t>(app_.remaining_size()), argv + argc);
  if (!command.empty() && command.front() == "--") command.erase(command.begin());
  if (!arguments_.timelines.empty() || arguments_.check_build) return;
  if (command.empty() && !arguments_.join && !arguments_.driver)
    throw CLI::ValidationError("command", "no command to run");
  if (!command.empty() && command.front().rfind('-', 0) == 0)
    throw CLI::ValidationError(command.front(), "no such option");
}

}  // namespace

int parse(int argc, char** argv, Arguments* arguments) {
  CLI::App app(
      "Runs an elastic training job: hvdrun -np 3 [options] command [arguments]\n"
      "Asks and steers one that runs: hvdrun ctl --help",
      "hvdrun");
  app.set_version_flag("--version", std::string("hvdrun ") + hvd_version());
  app.prefix_command();
  app.allow_extras(false);
  app.footer(std::string(
                 "A duration is a number of seconds, or has a unit: 250ms, 1.5s, 2m.\nOptions for --set:\n") +
             hvd_options_describe());
  Line line(&app, arguments);

  try {
    std::vector<std::string> words = rewritten(argc, argv);
    std::reverse(words.begin(), words.end());
    app.parse(words);
    line.take_options();
    line.take_variables();
    line.take_command(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      app.exit(error);  // --help, --version
      return 0;
    }
    std::fprintf(stderr, "hvdrun: %s\nhvdrun: hvdrun --help lists the options\n", error.what());
    return kUsage;
  }
  return -1;
}

}  // namespace hvd::cli
