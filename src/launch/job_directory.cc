#include "launch/job_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "launch/process_handle.h"

namespace hvd::launch {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPrefix = "hvd-job.";
constexpr const char* kSessions = "OMPI_MCA_orte_tmpdir_base=";
constexpr std::chrono::milliseconds kStep{10};
constexpr int kAttempts = 100;

/// Of a file of /proc, which has no size to be asked for.
std::string read_all(const std::string& path) {
  std::string text;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  char buffer[4096];
  while (true) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  ::close(fd);
  return text;
}

/// Ours by name and owner, and no link.
bool may_be_removed(const std::string& directory) {
  const size_t slash = directory.rfind('/');
  if (slash == std::string::npos || slash == 0) return false;
  if (std::string_view(directory).substr(slash + 1, kPrefix.size()) != kPrefix) return false;
  struct stat info {};
  return ::lstat(directory.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid();
}

bool remove(const std::string& directory) {
  // A daemon on its way out removes its part at the same time: what is gone meanwhile is no failure.
  for (int i = 0; i < kAttempts && may_be_removed(directory); ++i) {
    std::error_code error;
    fs::remove_all(directory, error);
    if (!error) break;
    ::usleep(static_cast<useconds_t>(kStep.count()) * 1000);
  }
  struct stat info {};
  return ::lstat(directory.c_str(), &info) != 0 && errno == ENOENT;
}

/// Each is held by descriptor before it is looked at: what is signalled is what was looked at.
std::vector<ProcessHandle> find_daemons(const std::string& directory) {
  std::vector<ProcessHandle> found;
  DIR* const proc = ::opendir("/proc");
  if (proc == nullptr) return found;
  const std::string entry_wanted = kSessions + directory;
  while (const dirent* entry = ::readdir(proc)) {
    const pid_t pid = static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10));
    if (pid <= 1) continue;
    ProcessHandle process(pid);
    const std::string folder = std::string("/proc/") + entry->d_name;
    if (read_all(folder + "/comm") != "orted\n") continue;
    const std::string environment = '\0' + read_all(folder + "/environ") + '\0';
    if (environment.find('\0' + entry_wanted + '\0') != std::string::npos) {
      found.push_back(std::move(process));
    }
  }
  ::closedir(proc);
  return found;
}

}  // namespace

std::string make_job_directory(const std::string& base) {
  std::string path = base + "/" + std::string(kPrefix) + "XXXXXX";
  return ::mkdtemp(path.data()) == nullptr ? std::string() : path;
}

std::vector<pid_t> daemons_in(const std::string& directory) {
  std::vector<pid_t> pids;
  for (const ProcessHandle& daemon : find_daemons(directory)) pids.push_back(daemon.pid());
  return pids;
}

std::vector<std::string> remove_job_directories(const std::vector<std::string>& directories,
                                                std::chrono::milliseconds patience) {
  std::vector<std::string> left;
  for (const std::string& directory : directories) {
    if (!may_be_removed(directory)) continue;
    const auto deadline = std::chrono::steady_clock::now() + patience;
    std::vector<ProcessHandle> daemons = find_daemons(directory);
    while (!daemons.empty() && std::chrono::steady_clock::now() < deadline) {
      ::usleep(static_cast<useconds_t>(kStep.count()) * 1000);
      daemons = find_daemons(directory);
    }
    for (const ProcessHandle& daemon : daemons) daemon.signal(SIGKILL);
    for (int i = 0; i < kAttempts && !daemons.empty(); ++i) {
      ::usleep(static_cast<useconds_t>(kStep.count()) * 1000);
      daemons = find_daemons(directory);
    }
    if (!remove(directory)) left.push_back(directory);
  }
  return left;
}

}  // namespace hvd::launch
