// Starts programs, and what is known about them before and after.
#include <fmt/format.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>

#include "base/descriptor.h"
#include "base/secret.h"
#include "base/signal_name.h"
#include "base/status.h"
#include "launch/process.h"

extern char** environ;

namespace hvd::launch {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

std::atomic<int64_t> children_descriptors{0};

/// posix_spawn has no limits. A child that is held has not begun yet; another one may see the old limit for a
/// moment.
void limit_descriptors(pid_t pid) {
  const int64_t soft = children_descriptors;
  rlimit limit{};
  if (soft <= 0 || ::prlimit(pid, RLIMIT_NOFILE, nullptr, &limit) != 0) return;
  limit.rlim_cur = std::min(limit.rlim_max, static_cast<rlim_t>(soft));
  ::prlimit(pid, RLIMIT_NOFILE, &limit, nullptr);
}

/// inherit: a descriptor that the child keeps under its number, or -1.
pid_t spawn_with(const SpawnSpec& spec, int inherit) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  const auto stream = [&](int fd, int target, int flags) {
    if (fd >= 0) {
      posix_spawn_file_actions_adddup2(&actions, fd, target);
    } else {
      posix_spawn_file_actions_addopen(&actions, target, "/dev/null", flags, 0);
    }
  };
  stream(spec.in, STDIN_FILENO, O_RDONLY);
  stream(spec.out, STDOUT_FILENO, O_WRONLY);
  stream(spec.err, STDERR_FILENO, O_WRONLY);
  if (inherit >= 0) posix_spawn_file_actions_adddup2(&actions, inherit, inherit);  // clears close-on-exec
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(
      &attributes, static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                      (spec.own_session ? POSIX_SPAWN_SETSID : POSIX_SPAWN_SETPGROUP)));
  std::vector<char*> argv = pointers(spec.argv);
  std::vector<char*> environment = pointers(spec.environment);
  pid_t pid = -1;
  const int error =
      ::posix_spawn(&pid, spec.path.c_str(), &actions, &attributes, argv.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    Status status(HVD_UNAVAILABLE, fmt::format("{} can't be started: {}", spec.path, std::strerror(error)));
    status.vendor_code = error;
    throw Error(status);
  }
  limit_descriptors(pid);
  return pid;
}

}  // namespace

void limit_descriptors_of_children(int64_t soft) { children_descriptors = soft; }

pid_t spawn(const SpawnSpec& spec) { return spawn_with(spec, -1); }

HeldChild spawn_held(const SpawnSpec& spec, const std::string& guard) {
  std::array<int, 2> fds{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) != 0) {
    throw Error(HVD_UNAVAILABLE, fmt::format("no socket for a child process: {}", std::strerror(errno)));
  }
  Descriptor ours(fds[0]);
  Descriptor theirs(fds[1]);
  theirs = above_standard(std::move(theirs), "a socket");
  SpawnSpec held = spec;
  held.path = guard;
  held.argv = {guard,
               "--exec",
               std::to_string(theirs.get()),
               std::to_string(::getpid()),
               spec.umask < 0 ? "-" : fmt::format("{:o}", spec.umask),
               spec.directory,
               spec.path};
  held.argv.insert(held.argv.end(), spec.argv.begin(), spec.argv.end());
  HeldChild child;
  child.pid = spawn_with(held, theirs.get());
  child.gate = ours.release();
  return child;
}

void let_go(int gate) {
  const char byte = 1;
  // A child that ended meanwhile is noticed as any other.
  while (::send(gate, &byte, 1, MSG_NOSIGNAL) < 0 && errno == EINTR) {}
}

int start_error(int gate) {
  int error = 0;
  const ssize_t n = ::recv(gate, &error, sizeof error, MSG_DONTWAIT);
  return n == static_cast<ssize_t>(sizeof error) ? error : 0;
}

std::string find_program(const std::string& name) {
  const char* variable = ::secure_getenv("PATH");
  return find_program(name, variable != nullptr ? variable : "/usr/local/bin:/usr/bin:/bin", "");
}

std::string find_program(const std::string& name, const std::string& path, const std::string& directory) {
  // Relative ones are so to the directory in which the program will run, and are left as they are for it.
  const auto executable = [&](const std::string& file) {
    const std::string there = directory.empty() || file.front() == '/' ? file : directory + "/" + file;
    struct stat info {};
    return ::stat(there.c_str(), &info) == 0 && S_ISREG(info.st_mode) && ::access(there.c_str(), X_OK) == 0;
  };
  if (name.empty()) throw Error(HVD_UNAVAILABLE, "command not found: its name is empty");
  if (name.find('/') != std::string::npos) {
    if (executable(name)) return name;
    throw Error(HVD_UNAVAILABLE, fmt::format("command not found: {} is no executable file", name));
  }
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    std::string candidate = path.substr(begin, end - begin);
    candidate = (candidate.empty() ? "." : candidate) + "/" + name;
    if (executable(candidate)) return candidate;
    begin = end + 1;
  }
  throw Error(HVD_UNAVAILABLE,
              fmt::format("command not found: {} is in no directory of PATH ({})", name, path));
}

std::vector<std::string> merged_environment(const std::vector<std::string>& ours) {
  std::map<std::string, std::string> merged;
  const auto add = [&](const std::string& entry) {
    if (!tells_secret(entry)) merged[entry.substr(0, entry.find('='))] = entry;
  };
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) add(*entry);
  for (const std::string& entry : ours) add(entry);
  std::vector<std::string> result;
  for (auto& [name, entry] : merged) result.push_back(std::move(entry));
  return result;
}

std::string exit_text(int32_t exit_status) {
  if (exit_status < 0) return "ended, its status is not known";
  if (exit_status < 256) return fmt::format("exited with status {}", exit_status);
  return "killed by " + signal_text(exit_status - 256);
}

}  // namespace hvd::launch
