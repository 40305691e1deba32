// The driver's end of hvd-guard, a small program that outlives the driver and, if the driver is killed, ends
// the process groups that it started and removes the job's directories.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "base/loop.h"
#include "launch/send_queue.h"

namespace hvd::launch {

/// The guard's file: option `guard`, else beside this library, else where it is installed. Throws
/// Error(HVD_UNAVAILABLE) that names what was tried.
std::string find_guard(const std::string& option);

/// Methods from one thread. None waits for the program, which may be stopped.
class Guard {
 public:
  /// Starts the program. Throws Error(HVD_UNAVAILABLE).
  Guard(const std::string& path, Duration grace, LoggerPtr logger);
  /// One that an earlier driver has started: its number, and the socket to it, which this owns from here on.
  Guard(const std::string& path, pid_t pid, int socket, LoggerPtr logger);
  ~Guard();  // the guard ends what was not removed, then itself
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  const std::string& path() const { return path_; }
  /// As SendQueue has it.
  void run_on(Loop& loop) { queue_.run_on(loop); }
  /// `known` is called as soon as it is certain that the guard will have the group in its charge, even if
  /// this process ends; not if the group is removed before.
  void add(pid_t group, std::function<void()> known = nullptr);
  /// A group that serves the others: ended when they are gone.
  void add_helper(pid_t group, std::function<void()> known = nullptr);
  /// At last the guard removes it, if it is still there; made by make_job_directory.
  void add_directory(const std::string& path);
  /// Before the group's leader is reaped: afterwards the number may be somebody else's.
  void remove(pid_t group);
  pid_t pid() const { return pid_; }
  int descriptor() const { return socket_; }

 private:
  void send(const std::string& name, const std::string& line, std::function<void()> sent = nullptr);
  bool write(const std::string& line);

  const std::string path_;
  const LoggerPtr logger_;
  int socket_ = -1;
  pid_t pid_ = -1;
  SendQueue queue_;
};

}  // namespace hvd::launch
