// hvdrun: starts an elastic job. A thin user of hvd/driver.h.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/signal_name.h"
#include "cli/check_build.h"
#include "cli/console.h"
#include "cli/ctl.h"
#include "cli/job_page.h"
#include "cli/join.h"
#include "cli/keep.h"
#include "cli/status_line.h"
#include "cli/timeline_merge.h"
#include "cli/torchrun.h"
#include "hvd/driver.h"

namespace {

using hvd::signal_name;
using hvd::cli::ErrorOutput;
using hvd::cli::Screen;
using hvd::cli::Signals;
using hvd::cli::StatusLine;

// What a scheduler can act on (docs/leaving.md); the numbers are those of sysexits.h where it has one.
constexpr int kUsage = 2, kTryAgain = 75, kGiveUp = 76;
// A signal is to end the job, though a reader of its output (a stopped terminal, a pager) takes nothing.
constexpr std::chrono::seconds kForReaders{5};

struct Arguments {
  std::vector<std::pair<std::string, std::string>> options;  // of hvd_options
  std::vector<std::string> environment;
  std::vector<std::string> command;
  std::vector<std::string> timelines;  // to be merged instead of a job: the new file, then the others
  std::string http;                    // where the status is served; "": nowhere
  bool verbose = false, status_line = true;
  bool join = false, driver = false, standby = false;
  long nodes = 1;           // at most, as torchrun counts them
  bool may_be_kept = true;  // unless --journal is off
  bool check_build = false;
};

/// -np N, as every MPI user types it, to what CLI11 can parse. One word for each.
std::vector<std::string> rewritten(int argc, char** argv) {
  std::vector<std::string> result;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    result.push_back(word == "-np" ? "--np" : word.rfind("-np=", 0) == 0 ? "-" + word : word);
  }
  return result;
}

/// Fills in `arguments`; an exit status if hvdrun is to end now.
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
  hvd::cli::Torchrun torchrun;
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
    hvd::cli::read_torchrun_environment(&torchrun);
    const bool joins = std::any_of(named.begin(), named.end(), [](const Named& option) {
      return std::string(option.flags) == "--join" && option.given->count() > 0;
    });
    try {
      for (auto& option : hvd::cli::torchrun_options(torchrun, joins))
        arguments->options.push_back(std::move(option));
      arguments->nodes = hvd::cli::most_nodes(torchrun);
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

int merge(const std::vector<std::string>& files) {
  try {
    const hvd::cli::Merged merged =
        hvd::cli::merge_timelines(files.front(), {files.begin() + 1, files.end()});
    for (const std::string& note : merged.notes) std::fprintf(stderr, "hvdrun: warning: %s\n", note.c_str());
    std::fprintf(stderr, "hvdrun: %s: %zu events of %zu workers\n", files.front().c_str(), merged.events,
                 merged.lanes);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "hvdrun: %s\n", error.what());
    return 1;
  }
}

/// A driver has a connection for each worker, and pipes for those that it starts: the soft limit that most
/// systems give, 1,024, is for programs that use select(2). What is started has it still.
void raise_descriptors(Arguments* arguments) {
  constexpr rlim_t kEnough = rlim_t{1} << 20;  // where there is no hard limit
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = std::min(limit.rlim_max, kEnough);
  if (limit.rlim_cur <= before || ::setrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  // The first, so that --set has the last word.
  arguments->options.emplace(arguments->options.begin(), "children_descriptors", std::to_string(before));
}

struct Deleter {
  void operator()(hvd_options* options) const { hvd_options_destroy(options); }
  void operator()(hvd_driver* driver) const { hvd_driver_destroy(driver); }
};

class Job {
 public:
  Job(Arguments arguments, ErrorOutput* errors, int keeper)
      : arguments_(std::move(arguments)), errors_(errors), keeper_(keeper) {}

  int run() {
    hvd_error error = HVD_ERROR_INIT;
    if (const hvd_status status = prepare(&error); status != HVD_OK) {
      errors_->line(error.message);
      return status == HVD_INVALID ? kUsage : kTryAgain;
    }
    const Signals signals;
    int stopped_by = 0;
    if (const hvd_status status = start(signals, &stopped_by, &error); status != HVD_OK) {
      // Nobody needs it any more: how the job went its driver has said.
      if (arguments_.standby && status == HVD_CLOSED) {
        errors_->line(error.message);
        return stopped_by != 0 ? 128 + stopped_by : 0;
      }
      errors_->line(std::string("job failed: ") + error.message);
      return status == HVD_INVALID ? kUsage : kTryAgain;
    }
    if (arguments_.status_line && Screen::has_terminal()) {
      errors_->screen().turn_on();
      status_line_ = std::make_unique<StatusLine>(driver_.get(), &errors_->screen());
    }
    return wait(signals, stopped_by);
  }

 private:
  static void log(void* userdata, hvd_log_level level, const char* message) {
    const char* prefix = level >= HVD_LOG_ERROR ? "error: " : level == HVD_LOG_WARNING ? "warning: " : "";
    static_cast<Job*>(userdata)->errors_->line(std::string(prefix) + message);
  }

  /// As the library does by itself, but above the status line, and until nobody takes it any more.
  static void output(void* userdata, int32_t rank, const char* host, int32_t slot, int32_t is_stderr,
                     const char* line) {
    const std::string from =
        rank >= 0 ? std::to_string(rank) : std::string(host) + ":" + std::to_string(slot);
    static_cast<Job*>(userdata)->errors_->screen().write(is_stderr != 0 ? STDERR_FILENO : STDOUT_FILENO,
                                                         "[" + from + "] " + line + "\n");
  }

  hvd_status serve(hvd_error* error) {
    if (arguments_.http.empty()) return HVD_OK;
#if HVD_WITH_HTTP
    try {
      http_ = std::make_unique<hvd::cli::HttpServer>(arguments_.http, hvd::cli::job_pages(driver_.get()));
      errors_->line("status at " + http_->url());
      return HVD_OK;
    } catch (const std::exception& failure) {
      std::snprintf(error->message, sizeof error->message, "%s", failure.what());
      return HVD_INVALID;
    }
#else
    std::snprintf(error->message, sizeof error->message,
                  "--http %s: this hvdrun was built without Boost.Beast", arguments_.http.c_str());
    return HVD_INVALID;
#endif
  }

  hvd_status set(const std::string& key, const std::string& text, hvd_error* error) {
    return hvd_options_set(options_.get(), key.c_str(), text.c_str(), error);
  }

  hvd_status get(const char* key, std::string* ret_text, hvd_error* error) {
    const char* text = nullptr;
    const hvd_status status = hvd_options_get(options_.get(), key, &text, error);
    if (status == HVD_OK) *ret_text = text;
    return status;
  }

  hvd_status prepare(hvd_error* error) {
    hvd_options* options = nullptr;
    hvd_status status = hvd_options_create(&options, error);
    if (status != HVD_OK) return status;
    options_.reset(options);
    for (const auto& [key, text] : arguments_.options) {
      if (status = set(key, text, error); status != HVD_OK) return status;
    }
    std::string hosts;
    std::string script;
    std::string np;
    std::string hostfile;
    std::string program;
    for (const auto& [key, text] : {std::pair<const char*, std::string*>{"hosts", &hosts},
                                    {"hostfile", &hostfile},
                                    {"agent_program", &program},
                                    {"discovery_script", &script},
                                    {"np", &np}}) {
      if (status = get(key, text, error); status != HVD_OK) return status;
    }
    // Where this program lies it lies on the other hosts, too, unless somebody says better.
    if (const std::string own = hvd::cli::own_path(); program.empty() && !own.empty()) {
      if (status = set("agent_program", own, error); status != HVD_OK) return status;
    }
    if (hosts.empty() && script.empty() && hostfile.empty() && !arguments_.driver && !in_slurm()) {
      if (arguments_.nodes > 1) {
        std::snprintf(
            error->message, sizeof error->message,
            "--nnodes of up to %ld and no hosts: expected -H, --hostfile, a discovery script, or --driver with "
            "hvdrun --join on each",
            arguments_.nodes);
        return HVD_INVALID;
      }
      if (status = set("hosts", "localhost:" + (np == "0" ? "1" : np), error); status != HVD_OK)
        return status;
    }
    const hvd_log_level level = arguments_.verbose ? HVD_LOG_INFO : HVD_LOG_DEFAULT;
    if (status = hvd_options_set_log(options, level, &Job::log, this, nullptr, error); status != HVD_OK)
      return status;
    if (keeper_ >= 0) {
      // The library closes its own: this process says with the other how the job has ended.
      const std::string own = std::to_string(::fcntl(keeper_, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
      if (status = set("keeper", own, error); status != HVD_OK) return status;
    }
    hvd_driver* driver = nullptr;
    if (status = hvd_driver_create(options, &driver, error); status != HVD_OK) return status;
    driver_.reset(driver);
    if (status = serve(error); status != HVD_OK) return status;
    if (status = hvd_driver_set_output(driver, &Job::output, this, nullptr, error); status != HVD_OK)
      return status;
    if (arguments_.command.empty()) return HVD_OK;
    return hvd_driver_set_command(driver, pointers(arguments_.command).data(),
                                  pointers(arguments_.environment).data(), error);
  }

  /// Then the hosts are those of the allocation.
  bool in_slurm() {
    std::string local;
    const char* nodes = std::getenv("SLURM_JOB_NODELIST");
    return nodes != nullptr && *nodes != 0 && get("local_hosts", &local, nullptr) == HVD_OK &&
           local == "false";
  }

  static std::vector<const char*> pointers(const std::vector<std::string>& texts) {
    std::vector<const char*> result;
    for (const std::string& text : texts) result.push_back(text.c_str());
    result.push_back(nullptr);
    return result;
  }

  /// One that stands by may do so for long: it can be told to end meanwhile.
  hvd_status start(const Signals& signals, int* ret_stopped_by, hvd_error* error) {
    if (!arguments_.standby) return hvd_driver_start(driver_.get(), error);
    hvd_status status = HVD_OK;
    std::thread starter([&] {
      status = hvd_driver_start(driver_.get(), error);
      Signals::wake();
    });
    while (const int number = signals.next()) {
      *ret_stopped_by = number;
      hvd_driver_stop(driver_.get(), ("stopped by " + signal_name(number)).c_str(), nullptr);
    }
    starter.join();
    return status;
  }

  /// Ends this process within 15 s of a second signal, even if nobody reads its output: hvd-guard ends what
  /// is left.
  void end_soon(int status) const {
    static constexpr std::chrono::seconds kPatience{15};
    static std::once_flag once;
    std::call_once(once, [status, keeper = keeper_] {
      std::thread([status, keeper] {
        std::this_thread::sleep_for(kPatience);
        hvd::cli::tell_over(keeper, status);
        std::_Exit(status);
      }).detach();
    });
  }

  int wait(const Signals& signals, int first) {
    hvd_status status = HVD_OK;
    hvd_error error = HVD_ERROR_INIT;
    std::thread waiter([&] {
      do {
        status = hvd_driver_wait(driver_.get(), HVD_DEFAULT_TIMEOUT, &error);
      } while (status == HVD_TIMEOUT);
      Signals::wake();
    });
    if (first != 0) {
      errors_->screen().give_up_after(kForReaders);
      hvd_driver_stop(driver_.get(), "stopped as it took over", nullptr);
    }
    while (const int number = signals.next()) {
      // The second one does not wait for stop_grace.
      const std::string reason = (first == 0 ? "stopped by " : "killed by a second ") + signal_name(number);
      errors_->screen().give_up_after(kForReaders);
      if (first != 0) end_soon(128 + first);
      if (first == 0) first = number;
      hvd_driver_stop(driver_.get(), reason.c_str(), nullptr);
    }
    waiter.join();
    return finish(status, error, first);
  }

  int finish(hvd_status status, const hvd_error& error, int signal) {
    hvd_driver_status_info info{};
    info.struct_size = sizeof info;
    hvd_driver_get_status(driver_.get(), &info, nullptr);
    status_line_.reset();
    errors_->screen().turn_off();
#if HVD_WITH_HTTP
    http_.reset();
#endif
    driver_.reset();  // before the last line: it may have something to say
    errors_->line(status == HVD_OK ? std::string("job succeeded: ") + info.sentence
                                   : std::string("job failed: ") + error.message);
    if (status == HVD_OK) return 0;
    if (signal != 0) return 128 + signal;
    return info.try_again != 0 ? kTryAgain : kGiveUp;
  }

  const Arguments arguments_;
  ErrorOutput* const errors_;
  const int keeper_;  // descriptor, or -1
  std::unique_ptr<hvd_options, Deleter> options_;
  std::unique_ptr<hvd_driver, Deleter> driver_;
#if HVD_WITH_HTTP
  std::unique_ptr<hvd::cli::HttpServer> http_;
#endif
  std::unique_ptr<StatusLine> status_line_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "ctl") return hvd::cli::ctl(argc - 1, argv + 1);
  Arguments arguments;
  if (const int status = parse(argc, argv, &arguments); status >= 0) return status;
  if (!arguments.timelines.empty()) return merge(arguments.timelines);
  if (arguments.check_build) return hvd::cli::check_build(arguments.options);
  raise_descriptors(&arguments);
  // An agent ends when its driver does not come back; it has no driver to keep.
  if (arguments.join) {
    ErrorOutput errors;
    return hvd::cli::join(arguments.options, arguments.command, arguments.environment, arguments.verbose,
                          &errors);
  }
  // Forked before there is a thread.
  int keeper = -1;
  if (arguments.may_be_kept) {
    if (const int status = hvd::cli::keep_driver(&keeper); status >= 0) return status;
  }
  int status = 1;
  {
    ErrorOutput errors;
    status = Job(std::move(arguments), &errors, keeper).run();
  }
  hvd::cli::tell_over(keeper, status);
  return status;
}
