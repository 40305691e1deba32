// hvdrun: starts an elastic job. A thin user of hvd/driver.h.
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/signal_name.h"
#include "base/thread.h"
#include "cli/arguments.h"
#include "cli/check_build.h"
#include "cli/console.h"
#include "cli/ctl.h"
#include "cli/job_page.h"
#include "cli/join.h"
#include "cli/keep.h"
#include "cli/status_line.h"
#include "cli/timeline_merge.h"
#include "hvd/driver.h"

namespace {

using hvd::signal_name;
using hvd::cli::Arguments;
using hvd::cli::ErrorOutput;
using hvd::cli::kUsage;
using hvd::cli::Screen;
using hvd::cli::Signals;
using hvd::cli::StatusLine;

// What a scheduler can act on (docs/leaving.md); the numbers are those of sysexits.h where it has one.
constexpr int kTryAgain = 75, kGiveUp = 76;
// A signal is to end the job, though a reader of its output (a stopped terminal, a pager) takes nothing.
constexpr std::chrono::seconds kForReaders{5};

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
    std::thread starter = hvd::start_thread("hvdrun-start", [&] {
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
      hvd::start_thread("hvdrun-end", [status, keeper] {
        std::this_thread::sleep_for(kPatience);
        hvd::cli::tell_over(keeper, status);
        std::_Exit(status);
      }).detach();
    });
  }

  int wait(const Signals& signals, int first) {
    hvd_status status = HVD_OK;
    hvd_error error = HVD_ERROR_INIT;
    std::thread waiter = hvd::start_thread("hvdrun-wait", [&] {
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
  if (const int status = hvd::cli::parse(argc, argv, &arguments); status >= 0) return status;
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
