// A child process in a process group of its own, watched on the loop: what it prints, how it ends, and
// that nothing of its group is left behind.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/loop.h"

namespace hvd::launch {

class Guard;
class Keeper;

struct SpawnSpec {
  std::string path;  // of the file
  std::vector<std::string> argv;
  std::vector<std::string> environment;  // all of it: "NAME=value"
  int in = -1, out = -1, err = -1;       // -1: /dev/null
  bool own_session = false;              // else a process group of its own
  // Of children that are held: as hvd-guard makes them before the program runs.
  std::string directory;  // "": this process's
  int umask = -1;         // -1: this process's
};

/// The soft limit of descriptors (RLIMIT_NOFILE) of whatever this process starts from now on; 0: its own. Of
/// the whole process, as the limit is: one that has raised its own hands on what it had.
void limit_descriptors_of_children(int64_t soft);

/// Starts a program with default signal mask and dispositions. Throws Error(HVD_UNAVAILABLE).
pid_t spawn(const SpawnSpec& spec);

/// A child that exists and has not begun to run its program. If this process ends first, so does the child.
struct HeldChild {
  pid_t pid = -1;
  int gate = -1;  // the caller's: the child goes on after let_go, and ends if it is closed
};
/// spawn, by way of hvd-guard (`guard`: its file).
HeldChild spawn_held(const SpawnSpec& spec, const std::string& guard);
void let_go(int gate);
/// Once the child has ended: errno if its program could not be started, -errno if its directory can't be
/// entered; 0 if it was started, or was never let go.
int start_error(int gate);

/// The file that `name` stands for, looked up in PATH unless it has a slash. Throws Error(HVD_UNAVAILABLE).
std::string find_program(const std::string& name);
/// The same with another PATH, and for a program that will run in `directory` ("": this process's).
std::string find_program(const std::string& name, const std::string& path, const std::string& directory);

/// This process's environment with `ours` replacing variables of the same name, without the job's secret.
std::vector<std::string> merged_environment(const std::vector<std::string>& ours);

/// "exited with status 3", "killed by signal 9 (SIGKILL)". As hvd_driver_worker_exited counts; -1: not known.
std::string exit_text(int32_t exit_status);

class Process : public std::enable_shared_from_this<Process> {
 public:
  /// All on the loop's thread.
  struct Handlers {
    std::function<void(bool is_stderr, std::string_view bytes)> output;
    std::function<void()> reaping;                    // once, before its pid can be used again
    std::function<void(int32_t exit_status)> exited;  // once; what was left of its group got SIGKILL
    std::function<void()> gone;                       // once, after exited: no more output
    /// Instead of exited and gone, only with a guard: its program could not be started.
    std::function<void(const std::string& why)> failed;
  };
  struct Options {
    bool poll_exit = false;                    // notice the end by polling, as on kernels without pidfd_open
    std::shared_ptr<Guard> guard;              // has it in its charge before it runs, and until it is reaped
    bool helper = false;                       // it serves others: the guard ends it after them
    std::shared_ptr<Keeper> keeper = nullptr;  // keeps it for a next driver
    std::string kept_as{}, kept_text{};        // under this name; the process's number goes before the text
  };
  /// A process that an earlier driver of this job has started: no child of this one.
  struct Inherited {
    pid_t pid = -1;
    int out = -1, err = -1;              // its pipes, owned from here on
    std::optional<int32_t> exit_status;  // it has ended, and was reaped
  };
  static std::shared_ptr<Process> inherit(Loop& loop, const Inherited& process, Handlers handlers,
                                          Options options);
  /// From now on it is kept under this name, with its number before the text, and can be inherited.
  void keep(std::shared_ptr<Keeper> keeper, const std::string& name, const std::string& text);
  /// An inherited one has ended, and was reaped by whose child it was.
  void inherited_exited(int32_t exit_status);

  /// Starts `spec` with pipes for stdout and stderr. On the loop's thread. Throws Error(HVD_UNAVAILABLE).
  static std::shared_ptr<Process> start(Loop& loop, SpawnSpec spec, Handlers handlers, Options options);
  static std::shared_ptr<Process> start(Loop& loop, SpawnSpec spec, Handlers handlers) {
    return start(loop, std::move(spec), std::move(handlers), Options{});
  }
  ~Process();

  pid_t pid() const;
  bool running() const;  // exited was not called yet
  /// To the whole group, as long as it can't be somebody else's.
  void signal_group(int signal);
  /// SIGTERM to the group; after the grace, if it still runs, `late` is called and it gets SIGKILL. Without
  /// one at once.
  void stop(Duration grace, std::function<void()> late);
  /// Its exit status if it has ended, though nobody was told yet.
  std::optional<int32_t> ended() const;
  /// Stops reading what it prints, or goes on.
  void hold_output(bool hold);
  /// SIGKILL to the group, reaped, closed; no handler but `reaping` is called.
  void abandon();

 private:
  struct Impl;
  explicit Process(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hvd::launch
