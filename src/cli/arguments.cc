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

}  // namespace

int parse(int argc, char** argv, Arguments* arguments) {
  CLI::App app(
      "Runs an elastic training job: hvdrun -np 3 [options] command [arguments]\n"
      "Asks and steers one that runs: hvdrun ctl --help",
      "hvdrun");
  app.set_version_flag("--version", std::string("hvdrun ") + hvd_version());
  app.prefix_command();
  app.allow_extras(false);

  // Options of the library that have an option of their own here: the text is passed on and checked there.
  struct Named {
    const char* flags;
    const char* key;
    const char* meaning;
    std::string text{};
    CLI::Option* given = nullptr;
  };
  std::deque<Named> named = {
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
  for (Named& option : named) option.given = app.add_option(option.flags, option.text, option.meaning);
  std::vector<std::string> cooldown;
  app.add_option("--blocklist-cooldown-range", cooldown, "MIN MAX: how long a failing host is left out")
      ->expected(2)
      ->allow_extra_args(false);
  std::vector<std::string> variables;
  app.add_option("-x", variables, "NAME or NAME=VALUE: environment of the workers; repeatable")
      ->allow_extra_args(false)  // what follows the value is the command
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  std::vector<std::string> settings;
  app.add_option("--set", settings, "KEY=VALUE: any option of the library; repeatable")
      ->allow_extra_args(false)  // what follows the value is the command
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--merge-timeline", arguments->timelines,
                 "OUT IN...: no job, but one trace of several workers' timelines")
      ->expected(2, std::numeric_limits<int>::max());
  app.add_flag("--check-build", arguments->check_build,
               "no job, but a table of the backends: what they can do, and why some can't be used");
  Torchrun torchrun;
  app.add_option("--nnodes", torchrun.nnodes, "N or MIN:MAX: hosts, as torchrun has it; also PET_NNODES");
  app.add_option("--nproc-per-node,--nproc_per_node", torchrun.nproc_per_node,
                 "workers on each of them, or auto, gpu, cpu; also PET_NPROC_PER_NODE");
  app.add_option("--master-addr,--master_addr", torchrun.master_addr,
                 "MASTER_ADDR of workers; default: the first host");
  app.add_option("--master-port,--master_port", torchrun.master_port,
                 "MASTER_PORT of workers; default: a free port");
  bool local_hosts = false;
  app.add_flag("--local-hosts", local_hosts,
               "every host is this machine, whatever it is called: for trying things out");
  app.add_flag("--driver", arguments->driver, "start nothing: the hosts are those where hvdrun --join runs");
  app.add_flag(
      "--standby", arguments->standby,
      "wait beside --journal, a directory that both machines see, until the job's driver is gone, and take over "
      "then; the other options as that driver's");
  app.add_option(
      "--http", arguments->http,
      "ADDRESS:PORT or PORT (on loopback): serves the job's status, read-only: a page, /status, /metrics, "
      "/livez, /readyz");
  app.add_flag("!--no-status-line", arguments->status_line, "no status line below the output on a terminal");
  app.add_flag("-v,--verbose", arguments->verbose,
               "tell what the driver does, and which backends the workers use and why");
  app.footer(std::string(
                 "A duration is a number of seconds, or has a unit: 250ms, 1.5s, 2m.\nOptions for --set:\n") +
             hvd_options_describe());

  try {
    std::vector<std::string> words = rewritten(argc, argv);
    std::reverse(words.begin(), words.end());
    app.parse(words);
    // Later ones win, so those that say more exactly what is meant come last.
    read_torchrun_environment(&torchrun);
    const bool joins = std::any_of(named.begin(), named.end(), [](const Named& option) {
      return std::string(option.flags) == "--join" && option.given->count() > 0;
    });
    try {
      for (auto& option : torchrun_options(torchrun, joins)) arguments->options.push_back(std::move(option));
      arguments->nodes = most_nodes(torchrun);
    } catch (const std::invalid_argument& error) { throw CLI::ValidationError(error.what()); }
    for (const Named& option : named) {
      if (option.given->count() > 0) arguments->options.emplace_back(option.key, option.text);
    }
    if (local_hosts) arguments->options.emplace_back("local_hosts", "true");
    if (arguments->driver) arguments->options.emplace_back("discover_agents", "true");
    if (arguments->standby) arguments->options.emplace_back("standby", "true");
    for (const Named& option : named) {
      if (option.given->count() == 0) continue;
      const std::string flag = option.flags;
      if (flag == "--join") arguments->join = true;
      if (flag == "--follow") arguments->standby = true;
    }
    if (arguments->join && arguments->driver)
      throw CLI::ValidationError("--join", "either an agent or a driver, not both");
    if (arguments->join && arguments->standby)
      throw CLI::ValidationError("--standby",
                                 "an agent needs none: name all drivers with --join A:PORT,B:PORT");
    if (!cooldown.empty()) {
      arguments->options.emplace_back("blocklist_cooldown_min", cooldown[0]);
      arguments->options.emplace_back("blocklist_cooldown_max", cooldown[1]);
    }
    for (const std::string& setting : settings) {
      const size_t equals = setting.find('=');
      if (equals == std::string::npos)
        throw CLI::ValidationError("--set", "'" + setting + "': expected KEY=VALUE");
      if (setting.compare(0, equals, "secret") == 0)
        throw CLI::ValidationError(
            "--set", "the secret would be seen in the list of processes: set HVD_SECRET instead");
      arguments->options.emplace_back(setting.substr(0, equals), setting.substr(equals + 1));
    }
    for (const std::string& variable : variables) {
      if (variable.empty() || variable[0] == '=') {
        throw CLI::ValidationError("-x", "'" + variable + "': expected NAME or NAME=VALUE");
      }
      if (variable.rfind("HVD_SECRET=", 0) == 0)
        throw CLI::ValidationError(
            "-x", "the secret would be seen in the list of processes: set HVD_SECRET instead");
      if (variable.find('=') != std::string::npos) {
        arguments->environment.push_back(variable);
      } else if (const char* value = std::getenv(variable.c_str())) {
        arguments->environment.push_back(variable + "=" + value);
      } else {
        throw CLI::ValidationError("-x", variable + " is not in the environment: expected NAME=VALUE");
      }
    }
    // The command is what hvdrun left over, as it was before it was rewritten.
    arguments->command.assign(argv + argc - static_cast<std::ptrdiff_t>(app.remaining_size()), argv + argc);
    if (!arguments->command.empty() && arguments->command.front() == "--") {
      arguments->command.erase(arguments->command.begin());
    }
    for (const auto& [key, text] : arguments->options) {
      if (key == "journal") arguments->may_be_kept = text != "off";
    }
    if (!arguments->timelines.empty() || arguments->check_build) return -1;
    if (arguments->command.empty() && !arguments->join && !arguments->driver)
      throw CLI::ValidationError("command", "no command to run");
    if (!arguments->command.empty() && arguments->command.front().rfind('-', 0) == 0) {
      throw CLI::ValidationError(arguments->command.front(), "no such option");
    }
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
