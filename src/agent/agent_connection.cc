// Dials the driver, and hears its orders.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "agent/agent_impl.h"
#include "base/text.h"
#include "hvd/hvd.h"
#include "launch/life.h"
#include "wire/tls.h"

namespace hvd::agent {
namespace {

constexpr Duration kLongestDelay = std::chrono::seconds(1);
constexpr Duration kHello = std::chrono::seconds(5);
constexpr int64_t kShortestBeatMs = 10, kLongestBeatMs = int64_t{24} * 3600 * 1000;

}  // namespace

void Agent::Impl::dial() {
  if (core.finished() || channel) return;
  endpoint = settings.drivers[next_driver];
  const bool alone = settings.drivers.size() == 1;
  wire::connect_channel(loop, endpoint, settings.secret, wire::agent_identity(settings.host), {},
                        alone ? settings.connect_timeout : std::min(settings.connect_timeout, attempt),
                        guarded([this](std::shared_ptr<wire::Channel> connected, const Status& why) {
                          if (core.finished()) {
                            if (connected) connected->close(Duration(0));
                            return;
                          }
                          connected ? have(std::move(connected)) : not_reached(why);
                        }));
  arm();
}

void Agent::Impl::not_reached(const Status& why) {
  if (why.code == HVD_INVALID) return do_all(core.refused(HVD_INVALID, why.message, now()));
  refused_by += why.code == HVD_REFUSED ? 1 : 0;
  if (why.code == HVD_REFUSED && (settings.drivers.size() == 1 || refused_by == settings.drivers.size())) {
    return do_all(core.refused(HVD_REFUSED, why.message, now()));
  }
  logger->debug("{}", why.message);
  next_driver = (next_driver + 1) % settings.drivers.size();
  if (next_driver == 0) refused_by = 0;
  do_all(core.disconnected(why.message, now()));
  again(next_driver == 0);
}

void Agent::Impl::again(bool round_over) {
  if (core.finished()) return;
  dial_timer.start(round_over ? delay : Duration(0), [this] { dial(); });
  if (round_over) {
    delay = std::min<Duration>(delay * 2, kLongestDelay);
    attempt = std::min<Duration>(attempt * 2, settings.connect_timeout);
  }
  arm();
}

void Agent::Impl::have(std::shared_ptr<wire::Channel> connected) {
  channel = std::move(connected);
  welcomed = false;
  sequence = {};
  heard = now();
  wire::ChannelHandlers handlers;
  handlers.frame = guarded([this, c = std::weak_ptr<wire::Channel>(channel)](std::span<const uint8_t> frame) {
    if (channel && c.lock() == channel) received(frame);
  });
  handlers.closed = guarded([this, c = std::weak_ptr<wire::Channel>(channel)](const Status& why) {
    if (channel && c.lock() == channel) lost(why.message);
  });
  channel->set_handlers(std::move(handlers));
  wire::AgentHelloT hello;
  hello.protocol = wire::kProtocol;
  hello.library = HVD_VERSION_STRING;
  hello.abi = HVD_ABI_VERSION;
  hello.host = settings.host;
  hello.slots = settings.slots;
  hello.pid = ::getpid();
  hello.instance = instance;
  hello.received = core.received();
  hello.workers = core.workers();
  hello.reported = core.reported();
  hello.of_job = job;
  for (const auto& [worker, slot] : core.kept()) {
    hello.kept.push_back(std::make_unique<wire::AgentWorkerT>());
    hello.kept.back()->worker = worker;
    hello.kept.back()->slot = slot;
  }
  hello.own_command = !argv.empty();
  send(std::move(hello));
  beat.start(kHello, [this] { lost("no answer to its hello"); });
}

void Agent::Impl::lost(const std::string& why) {
  if (!channel) return;
  channel->close(kLinger);
  channel.reset();
  beat.cancel();
  if (core.finished()) return;
  if (welcomed) {
    logger->warning("the connection to the driver is over ({}): dialling again", why);
    delay = kFirstDelay;
  } else {
    next_driver = (next_driver + 1) % settings.drivers.size();  // another one may do
  }
  do_all(core.disconnected(why, now()));
  again(true);
}

void Agent::Impl::received(std::span<const uint8_t> frame) {
  try {
    wire::EnvelopeT message = wire::decode(frame);
    if (!sequence.hear(message)) return;
    heard = now();
    if (const wire::RefusedT* refused = message.body.AsRefused()) return refuse(*refused);
    if (!welcomed) {
      const wire::AgentWelcomeT* welcome = message.body.AsAgentWelcome();
      if (welcome == nullptr)
        throw Error(HVD_INVALID, fmt::format("expected AgentWelcome, not {}", wire::body_name(message)));
      // contract 14: of two drivers the older one is refused. It has read our term, and ends.
      if (message.job == job && message.term < term) {
        return lost(fmt::format("the driver at {} is of term {}, and there is one of term {}", endpoint,
                                message.term, term));
      }
      term = message.term;
      term_proof = message.term_proof;
      return welcome_from_driver(*welcome, message.job);
    }
    std::optional<Order> order;
    switch (message.body.type) {
      case wire::Body::AgentStart: order = std::move(*message.body.AsAgentStart()); break;
      case wire::Body::AgentStop: order = *message.body.AsAgentStop(); break;
      case wire::Body::AgentWatch: order = *message.body.AsAgentWatch(); break;
      case wire::Body::AgentEnd: order = std::move(*message.body.AsAgentEnd()); break;
      case wire::Body::AgentAck: return do_all(core.acknowledged(message.body.AsAgentAck()->received, now()));
      default:
        throw Error(HVD_INVALID,
                    fmt::format("a driver may not send {} to an agent", wire::body_name(message)));
    }
    do_all(core.ordered(std::move(*order), now()));
    if (channel) {
      wire::AgentAckT ack;
      ack.received = core.received();
      send(ack);
    }
  } catch (const Error& error) { lost(fmt::format("protocol error: {}", printable(error.what()))); }
}

void Agent::Impl::refuse(const wire::RefusedT& refused) {
  const std::string why =
      fmt::format("the driver at {} refused this agent: {}", endpoint, printable(refused.reason));
  if (refused.code == wire::Refusal::Busy || refused.code == wire::Refusal::Superseded || welcomed)
    return lost(why);
  do_all(core.refused(refused.code == wire::Refusal::Ended ? HVD_CLOSED : HVD_REFUSED, why, now()));
}

void Agent::Impl::welcome_from_driver(const wire::AgentWelcomeT& welcome, const std::string& of_job) {
  welcomed = true;
  job = of_job;
  delay = kFirstDelay;
  attempt = kFirstAttempt;
  refused_by = 0;
  takes_drain = welcome.takes_drain;
  channel->trust();
  const auto duration = [](int64_t ms) {
    return milliseconds(std::clamp(ms, kShortestBeatMs, kLongestBeatMs));
  };
  interval = duration(welcome.heartbeat_interval_ms);
  timeout = duration(welcome.heartbeat_timeout_ms);
  logger->info("joined job {} at {} as host {} with {} slots{}", printable(job), endpoint, settings.host,
               settings.slots, welcome.resumed ? ", again" : "");
  do_all(core.connected(welcome.resumed, welcome.received, now()));
  held_up = {};
  heartbeat();
}

void Agent::Impl::heartbeat() {
  if (!channel || !welcomed) return;
  const Time at = now();
  if (const Duration held = held_up.at(at, interval); held > Duration(0)) {
    heard = std::min(at, heard + held + interval);
  } else if (at - heard >= timeout) {
    return lost(fmt::format("no sign of life for {} s", seconds_text(at - heard)));
  }
  wire::AgentHeartbeatT message;
  message.received = core.received();
  for (const auto& [id, worker] : workers) {
    if (!worker->process->running()) continue;
    const launch::Life life = launch::life_of(worker->process->pid(), worker->claim.process);
    if (life == launch::Life::kRunning) message.running.push_back(id);
    if (life == launch::Life::kStopped) message.stopped.push_back(id);
  }
  send(std::move(message));
  held_up.look_after(interval, at);
  beat.start(interval, [this] { heartbeat(); });
}

/// As workers are to dial: the driver that this agent has, then those that may take over from it.
std::string Agent::Impl::drivers() const {
  std::string all = endpoint;
  for (const std::string& driver : settings.drivers) {
    if (driver != endpoint) all += "," + driver;
  }
  return all;
}

}  // namespace hvd::agent
