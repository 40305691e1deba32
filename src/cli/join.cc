// Runs an agent, a thin user of hvd_agent_*.
#include "cli/join.h"

#include <climits>
#include <cstring>
#include <memory>
#include <thread>

#include "base/signal_name.h"
#include "base/thread.h"
#include "hvd/driver.h"

namespace hvd::cli {
namespace {

constexpr int kUsage = 2;
// docs/leaving.md
constexpr int kTryAgain = 75;  // the driver was lost, or the job lacked what may be there another time
constexpr int kGiveUp = 76;    // the job failed by itself, or never takes this agent

struct Deleter {
  void operator()(hvd_options* options) const { hvd_options_destroy(options); }
  void operator()(hvd_agent* agent) const { hvd_agent_destroy(agent); }
};

void log(void* userdata, hvd_log_level level, const char* message) {
  const char* prefix = level >= HVD_LOG_ERROR ? "error: " : level == HVD_LOG_WARNING ? "warning: " : "";
  static_cast<ErrorOutput*>(userdata)->line(std::string(prefix) + message);
}

std::vector<const char*> pointers(const std::vector<std::string>& texts) {
  std::vector<const char*> result;
  for (const std::string& text : texts) result.push_back(text.c_str());
  result.push_back(nullptr);
  return result;
}

int wait(hvd_agent* agent, const Signals& signals, ErrorOutput* errors) {
  hvd_status status = HVD_OK;
  hvd_error error = HVD_ERROR_INIT;
  std::thread waiter = start_thread("hvdrun-wait", [&] {
    do { status = hvd_agent_wait(agent, HVD_DEFAULT_TIMEOUT, &error); } while (status == HVD_TIMEOUT);
    Signals::wake();
  });
  int first = 0;
  while (const int number = signals.next()) {
    const std::string name = signal_name(number);
    if (first == 0 && number == SIGTERM) {
      errors->line("SIGTERM: this host's workers leave at their next commit; a second signal ends them");
      hvd_agent_drain(agent, HVD_DEFAULT_TIMEOUT, ("its agent got " + name).c_str(), nullptr);
    } else {
      hvd_agent_stop(agent, ("stopped by " + name).c_str(), nullptr);
    }
    if (first == 0) first = number;
    errors->screen().give_up_after(std::chrono::seconds(5));
  }
  waiter.join();
  if (status == HVD_OK) return 0;
  errors->line(std::string("agent ended: ") + error.message);
  if (first != 0) return 128 + first;
  return status == HVD_INVALID                                    ? kUsage
         : status == HVD_DRIVER_LOST || status == HVD_UNAVAILABLE ? kTryAgain
                                                                  : kGiveUp;
}

}  // namespace

std::string own_path() {
  char path[PATH_MAX];
  const ssize_t n = ::readlink("/proc/self/exe", path, sizeof path);
  return n > 0 && n < static_cast<ssize_t>(sizeof path) ? std::string(path, static_cast<size_t>(n)) : "";
}

int join(const std::vector<std::pair<std::string, std::string>>& settings,
         const std::vector<std::string>& command, const std::vector<std::string>& environment, bool verbose,
         ErrorOutput* errors) {
  hvd_error error = HVD_ERROR_INIT;
  const auto failed = [&](hvd_status status) {
    errors->line(error.message);
    return status == HVD_INVALID ? kUsage : kTryAgain;
  };
  hvd_options* made = nullptr;
  if (const hvd_status status = hvd_options_create(&made, &error); status != HVD_OK) return failed(status);
  const std::unique_ptr<hvd_options, Deleter> options(made);
  for (const auto& [key, text] : settings) {
    const hvd_status status = hvd_options_set(made, key.c_str(), text.c_str(), &error);
    if (status != HVD_OK) return failed(status);
  }
  const hvd_log_level level = verbose ? HVD_LOG_INFO : HVD_LOG_DEFAULT;
  if (const hvd_status status = hvd_options_set_log(made, level, &log, errors, nullptr, &error);
      status != HVD_OK)
    return failed(status);
  const Signals signals;
  hvd_agent* started = nullptr;
  if (const hvd_status status = hvd_agent_create(made, &started, &error); status != HVD_OK)
    return failed(status);
  const std::unique_ptr<hvd_agent, Deleter> agent(started);
  if (!command.empty()) {
    const hvd_status status =
        hvd_agent_set_command(started, pointers(command).data(), pointers(environment).data(), &error);
    if (status != HVD_OK) return failed(status);
  }
  if (const hvd_status status = hvd_agent_start(started, &error); status != HVD_OK) return failed(status);
  return wait(started, signals, errors);
}

}  // namespace hvd::cli
