// The decisions of an agent: which workers to start, signal and end, what to report, when to go. Pure:
// orders, ends of processes and the time go in, actions come out.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "agent/backlog.h"
#include "agent/numbered.h"
#include "base/clock.h"
#include "launch/life.h"

namespace hvd::agent {

struct CoreConfig {
  Duration patience = seconds(60);    // for the driver: workers live on that long without it
  Duration stop_grace = seconds(5);   // between SIGTERM and SIGKILL when the agent ends its workers by itself
  size_t max_kept = size_t{4} << 20;  // bytes of output in memory that the driver has not acknowledged
};

struct LaunchWorker {
  wire::AgentStartT order;
};
struct StopProcess {
  uint64_t worker = 0;
  Duration grace{};
};
struct WatchProcess {
  uint64_t worker = 0;
  launch::ProcessClaim claim;
};
/// Tell the driver, ahead of all reports, that this worker is dead.
struct SendDied {
  uint64_t worker = 0;
  Digest life_token;
};
struct SendReport {
  Report report;
};
/// Stop reading what workers print, or go on: their printing waits.
struct HoldOutput {
  bool hold = false;
};
/// Tell the driver that this host is to be drained.
struct SendDrain {
  Duration timeout{};
  std::string reason;
};
struct AgentNote {
  bool warning = false;
  std::string text;
};
/// The agent is through. Nothing comes after it.
struct Finished {
  hvd_status code = HVD_OK;
  std::string sentence;
};
using CoreAction = std::variant<LaunchWorker, StopProcess, WatchProcess, SendDied, SendReport, HoldOutput,
                                SendDrain, AgentNote, Finished>;
using CoreActions = std::vector<CoreAction>;

class AgentCore {
 public:
  /// `spool` takes output for which there is no room while there is no driver; none: then workers' printing
  /// waits.
  AgentCore(CoreConfig config, Time now, std::unique_ptr<Spool> spool = nullptr);

  // The connection. What was reported and not received is sent again.
  CoreActions connected(bool resumed, uint64_t received, Time now);
  CoreActions disconnected(const std::string& why, Time now);
  /// The driver said that it will never take this agent.
  CoreActions refused(hvd_status code, const std::string& why, Time now);

  // From the driver; throw Error(HVD_INVALID) for what breaks the protocol.
  CoreActions ordered(Order order, Time now);
  CoreActions acknowledged(uint64_t received, Time now);

  // Of the processes.
  CoreActions failed(uint64_t worker, const std::string& why, Time now);
  /// The life that it had claimed has ended. Only a driver that is there is told: `exited` follows.
  CoreActions died(uint64_t worker, const Digest& life_token) const;
  CoreActions exited(uint64_t worker, int32_t exit_status, Time now);
  CoreActions output(uint64_t worker, bool is_stderr, std::string_view bytes, Time now);
  CoreActions gone(uint64_t worker, Time now);

  /// Somebody wants the agent to end: SIGTERM to its workers, then the grace. A second time: SIGKILL.
  CoreActions stop(const std::string& reason, Time now);
  /// The host is about to go: its workers leave at their next commit, and the agent ends with HVD_OK when
  /// they have. Those that are there still at `now + timeout` are ended as by stop. A second time: stop.
  CoreActions drain(const std::string& reason, Duration timeout, Time now);
  CoreActions tick(Time now);
  std::optional<Time> next_tick() const;

  uint64_t received() const { return orders_.received(); }
  uint64_t reported() const { return reports_.acknowledged(); }
  std::vector<uint64_t> workers() const;
  /// Those of which a driver that takes the job over must know, with their slots: they run, or something of
  /// them is to be reported yet.
  std::vector<std::pair<uint64_t, int32_t>> kept();
  bool online() const { return online_; }
  bool finished() const { return finished_; }
  const std::string& ending() const { return ending_; }  // why it ends its workers; "" if it does not

 private:
  struct Worker {
    bool orphan = false;  // of a driver that is gone: nobody is told of it
    bool running = true;  // exited was not called
  };
  struct Drain {
    Time by{};
    std::string reason;
  };
  void report(Report report, CoreActions* actions);
  void refill(CoreActions* actions);
  void hold_or_not(CoreActions* actions);
  void end_all(const std::string& why, Duration grace, hvd_status code, Time now, CoreActions* actions);
  Time gives_up_at() const;
  void judge(Time now, CoreActions* actions);

  const CoreConfig config_;
  bool online_ = false, ever_online_ = false, holding_ = false, finished_ = false;
  Time alone_since_;
  std::optional<Time> last_chance_;  // it ends then, later than it would have
  std::string alone_why_;
  Inbox orders_;
  Outbox<Report> reports_;
  Backlog backlog_;  // what follows them
  std::map<uint64_t, Worker> workers_;
  std::map<uint64_t, int32_t> slots_;  // of them, and of those whose end has not been acknowledged
  std::optional<Drain> drain_;
  std::string ending_;
  hvd_status end_code_ = HVD_OK;
  Time end_by_{};  // reports that nobody has received by then are dropped
};

}  // namespace hvd::agent
