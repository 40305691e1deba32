// The agent as a thread-safe object: dials the driver, starts and watches the workers of this host, and says
// how it ended. AgentCore makes its decisions.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/loop.h"
#include "base/options.h"
#include "base/status.h"

namespace hvd::agent {

struct AgentSettings {
  std::vector<std::string> drivers;  // "host:port", tried in turn
  std::string job;                   // "": whatever the driver's is
  std::string secret, host;
  int32_t slots = 1;
  Duration patience{}, stop_grace{}, connect_timeout{}, leave_timeout{};
  std::string guard;
  std::string spool;  // its directory
  uint64_t spool_bytes = 0;
};

/// Reads the options; the secret from option secret, else from the file of option secret_file. Throws
/// Error(HVD_INVALID).
AgentSettings read_agent_settings(const Options& options);

class Agent {
 public:
  explicit Agent(const Options& options);
  ~Agent();  // close
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  /// Wins over the driver's. Before start; throws Error(HVD_INVALID) after it.
  void set_command(std::vector<std::string> argv, std::vector<std::string> environment);
  /// Throws Error: HVD_INVALID, HVD_UNAVAILABLE.
  void start();
  /// How it ended: HVD_OK with the job's success; HVD_TIMEOUT: it goes on.
  Status wait(Duration timeout);
  void stop(const std::string& reason);
  /// The host is about to go: wait says HVD_OK if all workers have left in time. timeout 0: option
  /// leave_timeout.
  void drain(const std::string& reason, Duration timeout);
  void close();

 private:
  struct Impl;
  const AgentSettings settings_;
  const LoggerPtr logger_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false, over_ = false;
  Status result_;
  std::vector<std::string> argv_, environment_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Impl> impl_;  // the loop's thread only
};

}  // namespace hvd::agent
