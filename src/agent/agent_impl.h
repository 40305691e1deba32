// The parts of Agent, on the loop's thread: agent_connection.cc dials and talks to the driver,
// agent_workers.cc does what the core decides.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/agent.h"
#include "agent/agent_core.h"
#include "base/held_up.h"
#include "base/life.h"
#include "launch/guard.h"
#include "launch/process.h"
#include "wire/channel.h"
#include "wire/sequence.h"

namespace hvd::agent {

constexpr Duration kFirstDelay = std::chrono::milliseconds(10);
constexpr Duration kFirstAttempt = std::chrono::seconds(1);  // with one driver, while others wait to be tried
constexpr Duration kLinger = std::chrono::seconds(2);

struct Agent::Impl {
  struct Worker {
    std::shared_ptr<launch::Process> process;
    launch::ProcessClaim claim;  // the process that it names as its own
    bool watched = false;        // its life
  };

  Impl(Loop& loop, const AgentSettings& settings, LoggerPtr logger, std::vector<std::string> argv,
       std::vector<std::string> environment, std::function<void(Status)> finished);
  ~Impl();

  template <class Fn>
  auto guarded(Fn fn) {
    return [weak = std::weak_ptr<int>(alive), fn = std::move(fn)](auto&&... arguments) {
      if (!weak.expired()) fn(std::forward<decltype(arguments)>(arguments)...);
    };
  }

  // The connection.
  void dial();
  void not_reached(const Status& why);
  void again(bool round_over);
  void have(std::shared_ptr<wire::Channel> connected);
  void lost(const std::string& why);
  void received(std::span<const uint8_t> frame);
  void refuse(const wire::RefusedT& refused);
  void welcome_from_driver(const wire::AgentWelcomeT& welcome, const std::string& of_job);
  void heartbeat();
  std::string drivers() const;

  template <class Body>
  void send(Body body) {
    if (!channel) return;
    wire::EnvelopeT message = wire::envelope(settings.job, 0, 0, std::move(body));
    sequence.number(message);
    message.term = term;
    if (message.body.type == wire::Body::AgentHello) message.term_proof = term_proof;
    channel->send(wire::encode(message));
  }

  // The core's actions.
  void do_all(CoreActions actions);
  void arm();
  void perform(SendReport& action);
  void perform(SendDrain& action);
  void perform(AgentNote& action);
  void perform(HoldOutput& action);
  void perform(StopProcess& action);
  void perform(WatchProcess& action);
  void perform(SendDied& action);
  void perform(LaunchWorker& action);
  void perform(Finished& action);

  Loop& loop;
  const AgentSettings& settings;
  const LoggerPtr logger;
  const std::vector<std::string> argv, environment;
  const std::function<void(Status)> finished;
  AgentCore core;
  const uint64_t instance;
  const std::shared_ptr<launch::Guard> guard;
  std::shared_ptr<wire::Channel> channel;
  bool welcomed = false, holding = false, takes_drain = false;
  wire::Sequence sequence;
  Time heard{};
  HeldUp held_up;  // between two heartbeats
  Duration interval = seconds(1), timeout = seconds(10), delay = kFirstDelay, attempt = kFirstAttempt;
  size_t next_driver = 0, refused_by = 0;
  std::string endpoint, job;
  uint64_t term = 0;       // the newest that any driver has named
  std::string term_proof;  // and that driver's
  Loop::Timer dial_timer, beat, tick;
  std::map<uint64_t, std::unique_ptr<Worker>> workers;
  std::shared_ptr<int> alive = std::make_shared<int>(0);
  LifeWatch lives;  // by worker. Ends first: what it tells uses the rest
};

}  // namespace hvd::agent
