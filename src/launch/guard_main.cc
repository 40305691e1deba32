// hvd-guard: ends process groups when the driver that started them is gone. Reads lines "+group", "*group" (one
// that serves the others), "-group" and "/directory" from stdin; at its end, which the kernel brings about even
// if the driver gets SIGKILL, workers have a moment to notice by themselves that the driver is gone and to end
// in order; what is left gets SIGTERM, a grace (milliseconds, first argument), SIGKILL. Then those that served
// them are killed, and the job's directories are removed.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "launch/job_directory.h"

namespace {

constexpr unsigned kStepMs = 20;
constexpr long kNoticeMs = 2000;  // for workers to end by themselves

constexpr std::chrono::milliseconds kDaemonsMs{2000};

struct Charges {
  std::set<pid_t> groups, helpers;
  std::vector<std::string> directories;
};

void apply(const std::string& line, Charges* charges) {
  if (line.size() < 2) return;
  if (line[0] == '/') return charges->directories.push_back(line);
  const pid_t group = static_cast<pid_t>(std::strtol(line.c_str() + 1, nullptr, 10));
  if (group <= 1) return;  // kill(-1) is everybody
  if (line[0] == '+') charges->groups.insert(group);
  if (line[0] == '*') charges->helpers.insert(group);
  if (line[0] == '-') {
    charges->groups.erase(group);
    charges->helpers.erase(group);
  }
}

/// Forgets those that are gone, so that their number is not used once it is somebody else's.
void signal_all(std::set<pid_t>* groups, int signal) {
  for (auto it = groups->begin(); it != groups->end();) {
    it = ::kill(-*it, signal) != 0 && errno == ESRCH ? groups->erase(it) : std::next(it);
  }
}

/// Waits until all groups are gone, at most for `longest_ms`.
void wait_until_gone(std::set<pid_t>* groups, long longest_ms) {
  for (long waited = 0; waited < longest_ms && !groups->empty(); waited += kStepMs) {
    ::usleep(kStepMs * 1000);
    signal_all(groups, 0);
  }
}

}  // namespace

int main(int argc, char** argv) {
  // It has to outlive what ends the driver.
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) std::signal(number, SIG_IGN);
#ifdef SYS_close_range
  ::syscall(SYS_close_range, 3U, ~0U, 0U);
#endif
  const long grace_ms = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 5000;
  Charges charges;
  std::string line;
  char buffer[4096];
  while (true) {
    const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    for (ssize_t i = 0; i < n; ++i) {
      if (buffer[i] != '\n') {
        line += buffer[i];
        continue;
      }
      apply(line, &charges);
      line.clear();
    }
  }
  std::set<pid_t>& groups = charges.groups;
  signal_all(&groups, 0);
  wait_until_gone(&groups, std::min(grace_ms, kNoticeMs));
  signal_all(&groups, SIGTERM);
  signal_all(&groups, SIGCONT);  // one that is stopped would not see SIGTERM
  wait_until_gone(&groups, grace_ms);
  signal_all(&groups, SIGKILL);
  signal_all(&charges.helpers, SIGKILL);
  hvd::launch::remove_job_directories(charges.directories, kDaemonsMs);
  return 0;
}
