// A program that a backend needs beside the job, which its manifest names (docs/backends.md). The driver
// starts it before the workers and ends it after them. It says on stdout what the workers' environment needs,
// by lines of EnvironmentRules, and then "ready"; what it says on stderr is for people.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/modules.h"
#include "base/status.h"
#include "launch/guard.h"
#include "launch/keeper.h"
#include "launch/output.h"
#include "launch/process.h"

namespace hvd::launch {

struct HelperConfig {
  std::string program;                       // its file
  std::vector<std::string> environment;      // what the workers' would be without it
  std::string listen;                        // where the driver listens
  std::string interface;                     // option interface, or ""
  bool local = true;                         // workers are processes of this machine
  Duration timeout = seconds(20);            // to be ready
  std::shared_ptr<Keeper> keeper = nullptr;  // keeps it for a next driver
};

/// Everything on the loop's thread.
class Helper {
 public:
  struct Events {
    std::function<void(const Status& status)> started;  // once
    std::function<void(const std::string& why)> died;   // once, if it ends though nobody asked it to
  };

  /// Makes the job's directories and starts the program, with KEY=VALUE as arguments: `directory` and
  /// `memory` (private directories, the latter in /dev/shm, only with local), `listen`, `interface`, `local`
  /// (0 or 1). Throws Error(HVD_UNAVAILABLE). `guard` may be null: then nothing ends the program of a driver
  /// that is killed.
  Helper(Loop& loop, HelperConfig config, std::shared_ptr<Guard> guard, LoggerPtr logger, Events events);
  /// SIGTERM, some seconds, SIGKILL; removes the directories. The workers are gone by then.
  ~Helper();
  Helper(const Helper&) = delete;
  Helper& operator=(const Helper&) = delete;

  /// Complete when `started` has been called.
  const EnvironmentRules& variables() const { return variables_; }

 private:
  void make_directories();
  void start_program();
  bool inherit();
  Process::Handlers handlers();
  void line(bool is_stderr, const std::string& text);
  void exited(int32_t status);
  void gone();
  void tell(const Status& status);

  const HelperConfig config_;
  const std::shared_ptr<Guard> guard_;
  const LoggerPtr logger_;
  Events events_;
  Loop& loop_;
  EnvironmentRules variables_;
  std::string directory_, memory_;
  std::vector<std::string> directories_;
  std::shared_ptr<Process> process_;
  Loop::Timer deadline_;
  LineSplitter lines_[2];
  std::string said_;    // on stderr, lately
  std::string rules_;   // what it has said of the workers' environment, by lines
  std::string ending_;  // how it ended
  bool told_ = false;
};

}  // namespace hvd::launch
