// The driver's end of agents: their connections, the programs that start them, and what their workers print.
// The decisions are Fleet's.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/fleet.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/patient_clock.h"
#include "base/rate_limit.h"
#include "launch/guard.h"
#include "launch/keeper.h"
#include "launch/launcher.h"
#include "launch/output.h"
#include "launch/process.h"
#include "wire/channel.h"
#include "wire/sequence.h"

namespace hvd::agent {

struct ServerConfig {
  std::string job, secret;
  FleetConfig fleet;
  Duration heartbeat_interval = seconds(1), heartbeat_timeout = seconds(10), stop_grace = seconds(5);
  // How agents are started, if they are.
  std::vector<std::string> words;            // parse_template
  std::string program;                       // hvdrun on other hosts
  std::vector<std::string> own_environment;  // of those programs: "NAME=value", all of it
  // Of workers.
  std::vector<std::string> base, argv;  // no argv: agents have commands of their own
  std::string directory;
  int umask = -1;
  std::string output_directory;
  std::shared_ptr<launch::Keeper> keeper;  // of the programs that start agents; or null
};

/// Everything on the loop's thread.
class Server {
 public:
  Server(Loop& loop, ServerConfig config, std::shared_ptr<launch::OutputThread> output,
         std::function<std::shared_ptr<launch::Guard>()> guard, LoggerPtr logger);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Events come from a later turn of the loop on.
  void set_events(launch::Launcher::Events events) { events_ = std::move(events); }
  /// Called when an agent of another host has come, or one was given up.
  void set_hosts_changed(std::function<void()> changed) { hosts_changed_ = std::move(changed); }
  /// Called when a host's agent says that the host is about to go.
  void set_drain(
      std::function<void(const std::string& host, Duration timeout, const std::string& why)> drain) {
    drain_ = std::move(drain);
  }
  /// term: of this driver. fence: an agent names this one, and shows this proof of it; true if this driver
  /// must not have the agent.
  void set_terms(std::function<uint64_t()> term, std::function<bool(uint64_t, const std::string&)> fence) {
    term_ = std::move(term);
    fence_ = std::move(fence);
  }
  /// An agent has this worker from an earlier driver. Its events follow.
  void set_found(std::function<void(uint64_t worker, const std::string& host, int32_t slot)> found) {
    found_ = std::move(found);
  }
  /// Called when the connection of an agent is over.
  void set_lost(std::function<void()> lost) { lost_ = std::move(lost); }
  // Of an earlier driver; see Fleet.
  void inherit_programs();
  bool expect(const std::string& host, int32_t slots);
  void expect(uint64_t worker, const std::string& host, int32_t slot);
  void hurry(Duration patience);
  /// An agent of an earlier driver; or, once retired, the end of a program that was started here.
  bool awaits() const { return retired_ ? !programs_.empty() : fleet_.awaits(); }
  void forget(uint64_t worker);
  /// Another driver has taken over: its are the agents now. Those that were started here are watched until
  /// they end.
  void retire();
  /// Where the agents that are started are to dial.
  void listening(std::vector<std::string> endpoints) { endpoints_ = std::move(endpoints); }

  /// The first message of a connection: true if it is an agent's, whose channel is taken over.
  bool guest(const std::shared_ptr<wire::Channel>& channel, const wire::EnvelopeT& message);

  void start(launch::LaunchRequest request);
  void stop(uint64_t worker, Duration grace);
  void set_rank(uint64_t worker, int32_t rank);
  void set_process(uint64_t worker, const launch::ProcessClaim& claim);
  launch::Life life(uint64_t worker) const;
  bool has(uint64_t worker) const { return fleet_.has(worker); }
  bool knows(const std::string& host) const { return fleet_.knows(host); }
  std::vector<std::pair<std::string, int32_t>> hosts() const { return fleet_.hosts(); }

  /// Tells all agents to end; `quiet` is called when none is left.
  void end(bool success, bool try_again, const std::string& reason, std::function<void()> quiet);
  /// Without further ado.
  void close();

 private:
  static constexpr Duration kLinger = std::chrono::seconds(5);
  struct Connection;
  struct Program;
  struct Worker;
  using ConnectionPtr = std::shared_ptr<Connection>;

  std::optional<std::pair<wire::Refusal, std::string>> objection(const wire::Channel& channel,
                                                                 const wire::EnvelopeT& message,
                                                                 const AgentHello& hello);
  ConnectionPtr connect(const std::shared_ptr<wire::Channel>& channel, const wire::EnvelopeT& message,
                        const AgentHello& hello);
  void welcome(Connection& connection, const AgentWelcome& decided);
  void received(const ConnectionPtr& connection, std::span<const uint8_t> frame);
  void drop(const ConnectionPtr& connection, const std::string& why);
  void left(const ConnectionPtr& connection, const std::string& why);
  void drain(const ConnectionPtr& connection, const wire::AgentDrainT& said);
  void died(const ConnectionPtr& connection, const wire::AgentDiedT& said);
  void refuse(const std::shared_ptr<wire::Channel>& channel, wire::Refusal code, const std::string& reason);
  void acknowledge(const ConnectionPtr& connection);
  void count_unread(const std::string& host, size_t bytes);
  void watch();
  void look_for_silence();
  void apply(FleetActions actions);
  void perform(StartAgent& action);
  void perform(StopAgent& action);
  void perform(SendOrder& action);
  void perform(WorkerFailed& action);
  void perform(WorkerExited& action);
  void perform(WorkerOutput& action);
  void perform(WorkerGone& action);
  void perform(WorkerFound& action);
  void perform(HostsChanged& action);
  void perform(FleetLog& action);
  static std::string last_lines(const Program& program);
  void program_gone(const std::string& host, const std::string& command, int32_t status);
  launch::Process::Handlers handlers_of(const std::string& host, const std::shared_ptr<Program>& program);
  launch::Process::Options options_of(const std::string& host);
  void add_worker(uint64_t worker, const std::string& host, int32_t slot);
  void let_go_of(const std::string& host);
  void later(std::function<void()> fn);
  template <class Body>
  void send(wire::Channel& channel, wire::Sequence& sequence, Body body);

  Loop& loop_;
  const ServerConfig config_;
  const std::shared_ptr<launch::OutputThread> output_;
  const std::function<std::shared_ptr<launch::Guard>()> guard_;
  const LoggerPtr logger_;
  launch::Launcher::Events events_;
  std::function<void()> hosts_changed_, quiet_;
  std::function<void(const std::string&, Duration, const std::string&)> drain_;
  std::function<void(uint64_t, const std::string&, int32_t)> found_;
  std::function<uint64_t()> term_;
  std::function<bool(uint64_t, const std::string&)> fence_;
  std::function<void()> lost_;
  Fleet fleet_;
  mutable PatientClock clock_;  // deadlines of agents
  std::vector<std::string> endpoints_;
  std::map<std::string, ConnectionPtr> connections_;  // by host
  std::map<std::string, std::shared_ptr<Program>> programs_;
  std::map<uint64_t, std::unique_ptr<Worker>> workers_;
  std::map<std::string, size_t> unread_;     // bytes of output by host that were not acknowledged
  std::map<std::string, uint64_t> drained_;  // instance of the agent that has said so, by host
  RateLimit notes_{20, seconds(1)};
  Loop::Timer tick_, silence_;
  bool waiting_for_output_ = false, ending_ = false, closed_ = false, retired_ = false;
  const std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace hvd::agent
