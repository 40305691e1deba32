// hvd-guard: ends process groups when the driver that started them is gone. Reads lines "+group", "*group"
// (one that serves the others), "-group" and "/directory" from stdin; at its end, which the kernel brings
// about even if the driver gets SIGKILL, workers have a moment to notice by themselves that the driver is
// gone and to end in order; what is left gets SIGTERM, a grace (milliseconds, first argument), SIGKILL. Then
// those that served them are ended the same way, and the job's directories are removed.
//
// hvd-guard --exec GATE PARENT UMASK DIRECTORY FILE ARGV...: becomes the program FILE once PARENT writes a
// byte to the socket GATE, and ends without a trace if PARENT is gone before: a worker does not begin before
// a guard has it in its charge. UMASK (octal) may be "-" and DIRECTORY empty: then they stay as they are.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "launch/job_directory.h"
#include "launch/process_handle.h"

namespace {

constexpr unsigned kStepMs = 20;
constexpr long kNoticeMs = 2000;   // for workers to end by themselves
constexpr long kHelpersMs = 4000;  // for those that served them to leave nothing behind
constexpr int kParentMs = 200;     // between two looks for the parent

using hvd::launch::ProcessHandle;
using Groups = std::map<pid_t, ProcessHandle>;  // by the number of their leader

struct Charges {
  Groups groups, helpers;
  std::vector<std::string> directories;
};

void read_line(const std::string& line, Charges* charges) {
  if (line.size() < 2) return;
  if (line[0] == '/') return charges->directories.push_back(line);
  const pid_t group = static_cast<pid_t>(std::strtol(line.c_str() + 1, nullptr, 10));
  if (group <= 1) return;  // kill(-1) is everybody
  if (line[0] == '+') charges->groups.insert_or_assign(group, ProcessHandle(group));
  if (line[0] == '*') charges->helpers.insert_or_assign(group, ProcessHandle(group));
  if (line[0] == '-') {
    charges->groups.erase(group);
    charges->helpers.erase(group);
  }
}

/// Forgets those that are gone.
void signal_all(Groups* groups, int signal) {
  for (auto it = groups->begin(); it != groups->end();) {
    it = !it->second.signal_group(signal) && errno == ESRCH ? groups->erase(it) : std::next(it);
  }
}

/// Waits until all groups are gone, at most for `longest_ms`.
void wait_until_gone(Groups* groups, long longest_ms) {
  for (long waited = 0; waited < longest_ms && !groups->empty(); waited += kStepMs) {
    ::usleep(kStepMs * 1000);
    signal_all(groups, 0);
  }
}

/// Whether the parent has let this process go; false if it is gone.
bool let_go(int gate, pid_t parent) {
  while (true) {
    pollfd wanted{gate, POLLIN, 0};
    const int ready = ::poll(&wanted, 1, kParentMs);
    if (ready < 0 && errno != EINTR) return false;
    // Its end of the socket may live on in a child that it forked at a bad moment.
    if (ready <= 0 && ::getppid() != parent) return false;
    if (ready <= 0) continue;
    char byte = 0;
    const ssize_t n = ::recv(gate, &byte, 1, 0);
    if (n < 0 && errno == EINTR) continue;
    return n == 1;
  }
}

int become(int argc, char** argv) {
  if (argc < 8) return 127;
  const int gate = std::atoi(argv[2]);
  if (::fcntl(gate, F_SETFD, FD_CLOEXEC) != 0) return 127;
  if (!let_go(gate, static_cast<pid_t>(std::strtol(argv[3], nullptr, 10)))) return 127;
  int error = 0;
  if (*argv[5] != 0 && ::chdir(argv[5]) != 0) {
    error = -errno;
  } else {
    if (*argv[4] != '-') ::umask(static_cast<mode_t>(std::strtol(argv[4], nullptr, 8)));
    ::execv(argv[6], argv + 7);
    error = errno;
  }
  ::send(gate, &error, sizeof error, MSG_NOSIGNAL);
  return 127;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--exec") == 0) return become(argc, argv);
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
      read_line(line, &charges);
      line.clear();
    }
  }
  Groups& groups = charges.groups;
  signal_all(&groups, 0);
  wait_until_gone(&groups, std::min(grace_ms, kNoticeMs));
  signal_all(&groups, SIGTERM);
  signal_all(&groups, SIGCONT);  // one that is stopped would not see SIGTERM
  wait_until_gone(&groups, grace_ms);
  signal_all(&groups, SIGKILL);
  signal_all(&charges.helpers, SIGTERM);
  wait_until_gone(&charges.helpers, kHelpersMs);
  signal_all(&charges.helpers, SIGKILL);
  hvd::launch::remove_job_directories(charges.directories);
  return 0;
}
