// The driver as a thread-safe object: discovers hosts, starts workers, forms generations, notices who
// is lost, and says how the job ended. driver.h of the C API is a thin layer over it.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "agent/server.h"
#include "base/modules.h"
#include "base/options.h"
#include "base/status.h"
#include "driver/discovery.h"
#include "driver/log_tail.h"
#include "driver/standby.h"
#include "driver/succession.h"
#include "driver/supervisor.h"
#include "launch/helper.h"
#include "launch/launcher.h"
#include "launch/output.h"

namespace hvd::driver {

class Driver {
 public:
  /// Reads and checks the options. Throws Error(HVD_INVALID).
  explicit Driver(Options options);
  ~Driver();  // close
  /// Stops what runs and ends every thread, within stop_grace and a few seconds; a start under way is waited
  /// for. Whoever waits comes out. Not from the driver's threads.
  void close();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // Before start; they throw Error(HVD_INVALID) after it.
  void set_command(std::vector<std::string> argv, std::vector<std::string> environment);
  void set_discovery(DiscoverFunction discover);
  void set_launcher(launch::LaunchFunctions launch);
  void set_output(launch::OutputFunction output);

  /// Listens, asks for the hosts, starts workers. Throws Error: HVD_INVALID, HVD_UNAVAILABLE. After a failure
  /// it may be called again.
  void start();
  /// HVD_OK, HVD_JOB_FAILED, HVD_TIMEOUT, HVD_INVALID if it was not started.
  Status wait(Duration timeout);
  /// Ends the job. A second call kills what is left. Throws Error(HVD_INVALID) if it was not started.
  void stop(const std::string& reason);
  // Wishes of an operator: see driver.h of the C API. Throw Error(HVD_INVALID) if they can't be fulfilled.
  void drain(const std::string& host, Duration timeout, const std::string& why);
  void undrain(const std::string& host);
  void scale(int32_t size);
  Duration leave_timeout() const { return succession_.settings().leave_timeout; }
  /// The loop's last word. It may lag some events behind (Supervisor::publish), but not once wait() has
  /// returned.
  DriverStatus status() const;
  /// All that is known of the job: see status/snapshot.h. After close: what was known last.
  status::Snapshot snapshot() const;
  void worker_exited(uint64_t worker, int32_t exit_status);
  Logger& log() const { return *logger_; }

 private:
  void change(const std::function<void()>& set);
  void run_on_loop(const std::function<void()>& fn);
  void wish(const std::function<membership::Answer(Supervisor&)>& what);
  void build();
  void find_helper();
  void start_helper();
  void begin();
  void tear_down(Duration grace);
  const Settings& settings() const { return succession_.settings(); }
  std::unique_ptr<HostDiscovery> make_discovery();
  std::vector<membership::HostSlots> fixed_hosts() const;
  bool may_need_agents() const;
  void make_agent_server();
  void stand_by(const std::string& guard_path);
  std::vector<DriverAddress> others() const;
  void fence_others();
  void tell_followers();
  void succeed(const std::string& guard_path);
  void meet_agents();
  void end_agents(Duration grace);
  std::unique_ptr<launch::Launcher> make_launcher(launch::Launcher::Events events);
  std::vector<std::string> worker_options() const;
  std::string backend_of_workers() const;

  const Options options_;
  const std::shared_ptr<LogTail> log_tail_ = std::make_shared<LogTail>();
  const LoggerPtr logger_;
  Succession succession_;

  mutable std::mutex mutex_;  // guards what follows up to loop_
  std::condition_variable changed_;
  bool starting_ = false, started_ = false, closed_ = false;
  DriverStatus status_;
  std::vector<std::string> argv_, environment_;
  DiscoverFunction discover_;
  launch::LaunchFunctions launch_;
  launch::OutputFunction output_function_;

  std::string program_, listen_;
  bool agents_ = false;         // workers of other hosts are started by agents
  EnvironmentRules variables_;  // of the workers, as their backend's manifest has it
  std::string helper_program_;  // of that backend; ""
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Fence> fence_;      // of one that has followed another
  std::shared_ptr<Standby> standby_;  // while this driver stands by; the mutex guards it
  // The loop's thread only.
  std::shared_ptr<launch::OutputThread> output_;
  std::unique_ptr<launch::Helper> helper_;
  std::string helper_death_;                               // if it died before there was a supervisor
  launch::CallbackLauncher* callback_launcher_ = nullptr;  // the supervisor's
  std::unique_ptr<agent::Server> agent_server_;            // outlives the supervisor
  std::unique_ptr<Supervisor> supervisor_;
};

}  // namespace hvd::driver
