// The driver's view of the agents: which hosts have one, what each was ordered and has reported, whose agent
// is to be started or given up. Pure: what agents say, ends of their processes and the time go in, actions
// come out.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "agent/numbered.h"
#include "base/clock.h"
#include "launch/life.h"

namespace hvd::agent {

/// More than any machine has cores: an agent that lies must not have a driver start workers without end.
constexpr int32_t kMostSlotsOfAnAgent = 4096;
/// Workers in an agent's hello: of some that have ended the end is to be reported yet.
constexpr size_t kMostKept = size_t{4} * kMostSlotsOfAnAgent;
/// Bytes of that message, which names them all twice at most.
constexpr size_t kLongestHello = (size_t{64} << 10) + kMostKept * 32;

struct FleetConfig {
  bool starts_agents = false;            // by a template; else they come by themselves
  Duration patience = seconds(60);       // for an agent whose connection broke
  Duration start_timeout = seconds(30);  // for one that is started to connect
  size_t max_hosts = size_t{1} << 16;
  bool takes_over = false;  // agents may have workers of an earlier driver, which go on
};

struct AgentHello {
  std::string host;
  int32_t slots = 0;
  uint64_t instance = 0;
  uint64_t received = 0;
  // For a driver that takes over.
  uint64_t reported = 0;
  std::vector<std::pair<uint64_t, int32_t>> kept = {};  // workers and their slots
  bool of_this_job = false;
};

struct AgentWelcome {
  bool resumed = false;
  uint64_t received = 0;
};

struct StartAgent {
  std::string host;
};
struct StopAgent {
  std::string host;
};  // the program that was started for it
struct SendOrder {
  std::string host;
  Order order;
};
struct WorkerFailed {
  uint64_t worker = 0;
  std::string why;
};
struct WorkerExited {
  uint64_t worker = 0;
  int32_t exit_status = 0;
};
struct WorkerOutput {
  uint64_t worker = 0;
  bool is_stderr = false;
  std::vector<uint8_t> bytes;
};
struct WorkerGone {
  uint64_t worker = 0;
};
/// Its agent has it from an earlier driver.
struct WorkerFound {
  uint64_t worker = 0;
  std::string host;
  int32_t slot = 0;
};
struct HostsChanged {};
struct FleetLog {
  bool warning = false;
  std::string text;
};
using FleetAction = std::variant<StartAgent, StopAgent, SendOrder, WorkerFailed, WorkerExited, WorkerOutput,
                                 WorkerGone, WorkerFound, HostsChanged, FleetLog>;
using FleetActions = std::vector<FleetAction>;

class Fleet {
 public:
  explicit Fleet(FleetConfig config) : config_(config) {}

  // Of an earlier driver: hosts that had an agent, and workers that were started there. They are lost if
  // their agent does not come within `patience`, or comes without them. True: the host is new, or has more
  // slots than before.
  bool expect(const std::string& host, int32_t slots, bool program, Time now);
  void expect(uint64_t worker, const std::string& host, int32_t slot, Time now);
  /// The job has ended: agents that have not come yet get `patience` to do so.
  void hurry(Duration patience, Time now);
  bool awaits() const;  // an agent of an earlier driver
  /// No worker of this job: its agent is not asked about it any more.
  void forget(uint64_t worker);

  // Orders of the driver.
  FleetActions start(const std::string& host, wire::AgentStartT order, Time now);
  FleetActions stop(uint64_t worker, Duration grace, Time now);
  FleetActions watch(uint64_t worker, const launch::ProcessClaim& claim);
  FleetActions end(bool success, bool try_again, const std::string& reason);  // to all agents, now and later

  /// Why this agent may not come (now), or nothing.
  std::optional<std::string> objection(const AgentHello& hello) const;
  /// One that may: what it is told first; then the actions.
  AgentWelcome hello(const AgentHello& hello, Time now, FleetActions* actions);
  FleetActions closed(const std::string& host, uint64_t instance, Time now);
  /// It went by itself, and has ended its workers before.
  FleetActions left(const std::string& host, uint64_t instance);
  /// Throws Error(HVD_INVALID) for what breaks the protocol.
  FleetActions reported(const std::string& host, Report report);
  void acknowledged(const std::string& host, uint64_t received);

  /// The program that was started for a host's agent has ended; `why`: command, status and what it said.
  FleetActions agent_ended(const std::string& host, const std::string& why, Time now);
  /// It could not even be started.
  FleetActions agent_failed(const std::string& host, const std::string& why, Time now) {
    return agent_ended(host, why, now);
  }

  FleetActions tick(Time now);
  std::optional<Time> next_tick() const;

  bool knows(const std::string& host) const { return hosts_.contains(host); }
  bool connected(const std::string& host) const;
  bool has(uint64_t worker) const { return workers_.contains(worker); }
  std::optional<std::string> host_of(uint64_t worker) const;
  uint64_t received(const std::string& host) const;
  /// Those that have an agent, or whose agent may come back.
  std::vector<std::pair<std::string, int32_t>> hosts() const;
  size_t agents() const;  // connected
  /// Nothing is connected or running.
  bool quiet() const;

 private:
  enum class Phase : uint8_t { kStarting, kConnected, kLost };
  struct Worker {
    std::string host;
    bool sent = false;  // its order may have reached an agent
    bool exited = false, stopping = false;
  };
  struct Host {
    Phase phase = Phase::kStarting;
    bool came = false;     // it has slots
    bool awaited = false;  // an earlier driver had it, and it has not come to this one
    bool hurried = false;  // by the end of the job
    bool program = false;  // that was started for its agent runs
    int32_t slots = 0;
    uint64_t instance = 0;
    Inbox reports;
    Outbox<Order> orders;
    std::set<uint64_t> workers;
    Time deadline{};
  };
  void order(const std::string& name, Host* host, Order order, FleetActions* actions);
  void lose(Host* host, FleetActions* actions);
  void lose(uint64_t worker, FleetActions* actions);
  void fail(Host* host, const std::string& why, FleetActions* actions);
  bool adopts(const Host& host, const AgentHello& hello) const;
  void adopt(Host* host, const AgentHello& hello, FleetActions* actions);
  void start_program(const std::string& name, Host* host, Time now, FleetActions* actions);

  const FleetConfig config_;
  std::map<std::string, Host> hosts_;
  std::map<uint64_t, Worker> workers_;
  std::optional<wire::AgentEndT> end_;
};

}  // namespace hvd::agent
