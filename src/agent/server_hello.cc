// A connection that says to be an agent: it is refused, or is the agent's from now on.
#include <fmt/format.h>

#include "agent/server_impl.h"
#include "base/text.h"
#include "hvd/hvd.h"

namespace hvd::agent {
namespace {

constexpr int32_t kMaxSlots = kMostSlotsOfAnAgent;
constexpr size_t kLongestName = 253;

}  // namespace

void Server::refuse(const std::shared_ptr<wire::Channel>& channel, wire::Refusal code,
                    const std::string& reason) {
  if (notes_.pass(now())) {
    logger_->warning("agent at {} refused ({}): {}", channel->peer(), wire::EnumNameRefusal(code), reason);
  }
  wire::RefusedT refused;
  refused.code = code;
  refused.reason = reason;
  wire::Sequence first;
  send(*channel, first, std::move(refused));
  channel->set_handlers({});
  channel->close(kLinger);
}

/// Why an agent's hello is refused; nothing if it is not.
std::optional<std::pair<wire::Refusal, std::string>> Server::objection(const wire::Channel& channel,
                                                                       const wire::EnvelopeT& message,
                                                                       const AgentHello& hello) {
  const wire::AgentHelloT& said = *message.body.AsAgentHello();
  const std::string host = printable(said.host, kLongestName);
  if (said.protocol != wire::kProtocol || said.abi != HVD_ABI_VERSION) {
    return {{wire::Refusal::Protocol,
             fmt::format("the agent of host {} is libhvd {} (ABI {}, protocol {}), "
                         "this driver is libhvd {} (ABI {}, protocol {}): install the same version on both",
                         host, printable(said.library, 40), said.abi, said.protocol, HVD_VERSION_STRING,
                         HVD_ABI_VERSION, wire::kProtocol)}};
  }
  if (const std::string& identity = channel.identity(); identity != wire::agent_identity(said.host)) {
    return {{wire::Refusal::Unknown,
             fmt::format("the key of {} is not that of host {}'s agent", identity, host)}};
  }
  if (said.host.empty() || host != said.host || said.slots < 1 || said.slots > kMaxSlots ||
      said.instance == 0) {
    return {{wire::Refusal::Protocol,
             fmt::format("an agent for host '{}' with {} slots: expected a name and 1 to {}", host,
                         said.slots, kMaxSlots)}};
  }
  // Terms are a job's own: an agent may have been of another one before.
  const bool of_this_job = said.of_job.empty() || said.of_job == config_.job;
  if (retired_ || (of_this_job && fence_ && fence_(message.term, message.term_proof))) {
    return {{wire::Refusal::Superseded,
             fmt::format("another driver has taken over from this one, which is of term {}", term_())}};
  }
  if (const std::optional<std::string> busy = fleet_.objection(hello)) {
    const auto other = connections_.find(host);
    return {{wire::Refusal::Busy, other == connections_.end()
                                      ? *busy
                                      : fmt::format("{}, from {}", *busy, other->second->channel->peer())}};
  }
  return std::nullopt;
}

/// The agent's connection from now on.
Server::ConnectionPtr Server::connect(const std::shared_ptr<wire::Channel>& channel,
                                      const wire::EnvelopeT& message, const AgentHello& hello) {
  auto connection = std::make_shared<Connection>();
  connection->channel = channel;
  connection->host = hello.host;
  connection->instance = hello.instance;
  connection->heard = clock_.now();
  connection->sequence.hear(message);
  connections_[hello.host] = connection;
  channel->trust();
  const std::weak_ptr<Connection> weak = connection;
  wire::ChannelHandlers handlers;
  handlers.frame = [this, weak](std::span<const uint8_t> frame) {
    if (auto c = weak.lock()) received(c, frame);
  };
  handlers.closed = [this, weak](const Status& why) {
    if (auto c = weak.lock()) drop(c, why.message);
  };
  channel->set_handlers(std::move(handlers));
  return connection;
}

void Server::welcome(Connection& connection, const AgentWelcome& decided) {
  connection.acknowledged = decided.received;
  wire::AgentWelcomeT welcome;
  const auto ms = [](Duration d) { return std::chrono::duration_cast<std::chrono::milliseconds>(d).count(); };
  welcome.heartbeat_interval_ms = ms(config_.heartbeat_interval);
  welcome.heartbeat_timeout_ms = ms(config_.heartbeat_timeout);
  welcome.received = decided.received;
  welcome.resumed = decided.resumed;
  welcome.takes_drain = true;
  send(*connection.channel, connection.sequence, welcome);
}

bool Server::guest(const std::shared_ptr<wire::Channel>& channel, const wire::EnvelopeT& message) {
  const wire::AgentHelloT* said = message.body.AsAgentHello();
  if (said == nullptr || closed_) return false;
  AgentHello hello{said->host, said->slots, said->instance, said->received, said->reported};
  hello.of_this_job = said->of_job == config_.job;
  for (const auto& worker : said->kept) {
    if (worker != nullptr && worker->worker != 0) hello.kept.emplace_back(worker->worker, worker->slot);
  }
  if (const auto refusal = objection(*channel, message, hello)) {
    refuse(channel, refusal->first, refusal->second);
    return true;
  }
  // The same agent by another connection: the old one is dead and nobody has noticed.
  if (const auto old = connections_.find(hello.host); old != connections_.end()) {
    old->second->over = true;
    old->second->channel->close(Duration(0));
    connections_.erase(old);
  }
  FleetActions actions;
  AgentWelcome decided;
  try {
    decided = fleet_.hello(hello, clock_.now(), &actions);
  } catch (const Error& error) {
    refuse(channel, wire::Refusal::Protocol, error.what());
    apply(fleet_.closed(hello.host, hello.instance, clock_.now()));
    return true;
  }
  welcome(*connect(channel, message, hello), decided);
  if (notes_.pass(now())) {
    logger_->info("the agent of host {} {} from {}: process {}{}", hello.host,
                  decided.resumed ? "is back" : "has come", channel->peer(), said->pid,
                  config_.fleet.starts_agents ? "" : fmt::format(", {} slots", said->slots));
  }
  apply(std::move(actions));
  watch();
  return true;
}

}  // namespace hvd::agent
