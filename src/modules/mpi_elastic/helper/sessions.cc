// Finds and ends the daemons of Open MPI's processes.
#include "modules/mpi_elastic/helper/sessions.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace hvdmpi::helper {
namespace {

constexpr const char* kSessions = "OMPI_MCA_orte_tmpdir_base=";
constexpr unsigned kStepUs = 10000;
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

// Held by descriptor before it is looked at: what is signalled is what was looked at.
class Daemon {
 public:
  explicit Daemon(pid_t pid) : pid_(pid), fd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {}
  Daemon(Daemon&& other) noexcept : pid_(other.pid_), fd_(other.fd_) { other.fd_ = -1; }
  Daemon& operator=(Daemon&&) = delete;
  ~Daemon() {
    if (fd_ >= 0) ::close(fd_);
  }
  pid_t pid() const { return pid_; }
  void kill() const {
    if (fd_ >= 0) {
      ::syscall(SYS_pidfd_send_signal, fd_, SIGKILL, nullptr, 0);
    } else {
      ::kill(pid_, SIGKILL);  // before Linux 5.3
    }
  }

 private:
  pid_t pid_;
  int fd_;
};

std::vector<Daemon> find(const std::string& directory) {
  std::vector<Daemon> found;
  DIR* const proc = ::opendir("/proc");
  if (proc == nullptr) return found;
  const std::string entry_wanted = kSessions + directory;
  while (const dirent* entry = ::readdir(proc)) {
    const pid_t pid = static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10));
    if (pid <= 1) continue;
    Daemon daemon(pid);
    const std::string folder = std::string("/proc/") + entry->d_name;
    if (read_all(folder + "/comm") != "orted\n") continue;
    const std::string environment = '\0' + read_all(folder + "/environ") + '\0';
    if (environment.find('\0' + entry_wanted + '\0') != std::string::npos) found.push_back(std::move(daemon));
  }
  ::closedir(proc);
  return found;
}

}  // namespace

std::vector<pid_t> daemons_in(const std::string& directory) {
  std::vector<pid_t> pids;
  for (const Daemon& daemon : find(directory)) pids.push_back(daemon.pid());
  return pids;
}

void end_daemons(const std::string& directory, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!find(directory).empty() && std::chrono::steady_clock::now() < deadline) ::usleep(kStepUs);
  for (const Daemon& daemon : find(directory)) daemon.kill();
  for (int i = 0; i < kAttempts && !find(directory).empty(); ++i) ::usleep(kStepUs);
}

}  // namespace hvdmpi::helper
