// A process by descriptor (pidfd): its number may be somebody else's once it is reaped, the descriptor never
// is. Standard library alone: hvd-guard uses it too.
#pragma once

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

namespace hvd::launch {

class ProcessHandle {
 public:
  ProcessHandle() = default;
  /// Of a process that can't have been reaped yet. by_number: as on a kernel without pidfd (before Linux
  /// 5.3).
  explicit ProcessHandle(pid_t pid, bool by_number = false) : pid_(pid) {
#ifdef SYS_pidfd_open
    if (!by_number) fd_ = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));  // close-on-exec
#endif
  }
  ProcessHandle(ProcessHandle&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), fd_(std::exchange(other.fd_, -1)) {}
  ProcessHandle& operator=(ProcessHandle&& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~ProcessHandle() {
    if (fd_ >= 0) ::close(fd_);
  }

  pid_t pid() const { return pid_; }
  int descriptor() const { return fd_; }  // -1 where the kernel has none

  /// False, and errno: ESRCH if it is gone. Signal 0 only asks.
  bool signal(int number) const {
#ifdef SYS_pidfd_send_signal
    if (fd_ >= 0) return ::syscall(SYS_pidfd_send_signal, fd_, number, nullptr, 0) == 0;
#endif
    return ::kill(pid_, number) == 0;
  }

  /// To the group that it leads, or led: ESRCH if nobody of it is left.
  bool signal_group(int number) const {
#ifdef SYS_pidfd_send_signal
    constexpr unsigned kProcessGroup = 1U << 2;  // PIDFD_SIGNAL_PROCESS_GROUP, since Linux 6.9
    if (fd_ >= 0) {
      if (::syscall(SYS_pidfd_send_signal, fd_, number, nullptr, kProcessGroup) == 0) return true;
      if (errno != EINVAL && errno != ENOSYS) return false;
    }
#endif
    return ::kill(-pid_, number) == 0;
  }

 private:
  pid_t pid_ = -1;
  int fd_ = -1;
};

}  // namespace hvd::launch
