// Starts workers and ends them: as processes of this machine, or through callbacks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/loop.h"
#include "launch/guard.h"
#include "launch/keeper.h"
#include "launch/life.h"
#include "launch/output.h"

namespace hvd::launch {

struct LaunchRequest {
  uint64_t worker = 0;
  std::string host;
  int32_t slot = 0;
  std::vector<std::string> environment;  // "NAME=value": what must reach the worker
};

/// All on the loop's thread.
class Launcher {
 public:
  struct Events {
    /// It could not be started; `gone` is not called for it.
    std::function<void(uint64_t worker, const std::string& why)> failed;
    /// Its process has ended (as hvd_driver_worker_exited counts), its output may still be coming.
    std::function<void(uint64_t worker, int32_t exit_status)> exited;
    /// Nothing is left of it: once for each that was started.
    std::function<void(uint64_t worker)> gone;
    /// The life that it has claimed has ended, says the one that watches it: `exited` follows.
    std::function<void(uint64_t worker, const Digest& life_token)> died;
  };

  virtual ~Launcher() = default;
  /// Events come from a later turn of the loop on.
  virtual void start(LaunchRequest request) = 0;
  /// A worker that an earlier driver has started (launch/keeper.h); false: this launcher can't have it.
  virtual bool inherit(const InheritedWorker&) { return false; }
  /// All workers that it starts on this host are kept: one that can't be inherited is gone.
  virtual bool keeps_all(const std::string& /*host*/) const { return false; }
  /// Somebody on the worker's host watches this worker of an earlier driver, and will tell of it: it is among
  /// those that this launcher runs from here on. False: nobody does.
  virtual bool expect(uint64_t /*worker*/, const std::string& /*host*/, int32_t /*slot*/) { return false; }
  /// It watches this worker by others' eyes.
  virtual bool has(uint64_t /*worker*/) const { return false; }
  /// Workers of this host have come to a driver that knew nothing of it. True: the hosts are others now.
  virtual bool expect_host(const std::string& /*host*/, int32_t /*slots*/) { return false; }
  /// Some are expected that nobody has told of yet; `hurry`: no longer than this from now on.
  virtual bool awaits() const { return false; }
  virtual void hurry(Duration /*patience*/) {}
  /// No worker of this job.
  virtual void forget(uint64_t /*worker*/) {}
  /// Another driver has taken over: what others watch is its business now.
  virtual void retire() {}
  /// SIGTERM, after the grace SIGKILL. Does nothing for one that is gone.
  virtual void stop(uint64_t worker, Duration grace) = 0;
  /// SIGKILL.
  virtual void kill(uint64_t worker) = 0;
  /// For the prefix of its output.
  virtual void set_rank(uint64_t worker, int32_t rank) = 0;
  /// Its exit status if it has ended already, though `exited` was not called yet.
  virtual std::optional<int32_t> ended(uint64_t worker) const = 0;
  /// How its process is now. `process`: the number that the worker itself names, which counts if it is of
  /// those that were started with it (a shell may have been started first); else that of what was started.
  virtual Life life(uint64_t worker, int64_t process) const = 0;
  /// The worker has connected, and claims this process: `life` will be asked about it. With a life that
  /// somebody on its host is to watch: then `died` tells of its end.
  virtual void set_process(uint64_t /*worker*/, const ProcessClaim& /*claim*/) {}
  /// Ends everything at once, without events.
  virtual void close(Duration grace) = 0;
};

struct LocalLauncherConfig {
  std::string program;  // its file
  std::vector<std::string> argv;
  std::vector<std::string> environment;      // all of it; a request's own variables win
  std::string output_directory;              // or ""
  std::shared_ptr<Keeper> keeper = nullptr;  // keeps the workers for a next driver
  bool poll_exit = false;                    // as on kernels without pidfd_open
};

/// guard may be null: then nothing ends the workers of a driver that is killed.
std::unique_ptr<Launcher> make_local_launcher(Loop& loop, LocalLauncherConfig config,
                                              std::shared_ptr<OutputThread> output,
                                              std::shared_ptr<Guard> guard, LoggerPtr logger,
                                              Launcher::Events events);

/// Launch by callbacks, called from one thread that does nothing else.
struct LaunchFunctions {
  std::function<int32_t(const LaunchRequest&)> start;
  std::function<void(uint64_t worker, bool force)> stop;
};

class CallbackLauncher : public Launcher {
 public:
  /// A worker started by callback has ended.
  virtual void worker_exited(uint64_t worker, int32_t exit_status) = 0;
};

/// A worker whose end is not reported within the grace and five seconds after it was stopped by force counts
/// as gone. close waits for a callback under way at most for its grace and then leaves the thread behind: it
/// owns what it uses.
std::unique_ptr<CallbackLauncher> make_callback_launcher(Loop& loop, LaunchFunctions functions,
                                                         LoggerPtr logger, Launcher::Events events);

}  // namespace hvd::launch
