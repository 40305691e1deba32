// Connections of agents, and the orders and reports that they carry.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "agent/server_impl.h"
#include "base/text.h"

namespace hvd::agent {
namespace {

// Workers of one heartbeat: those in its slots, and some that are about to end.
constexpr size_t kMostTold = size_t{2} * kMostSlotsOfAnAgent;
// Output of one agent that is not acknowledged: it may keep 4 MiB, and a piece of each worker may be under
// way beside that.
constexpr size_t kMostUnread = size_t{16} << 20;

}  // namespace

Server::Server(Loop& loop, ServerConfig config, std::shared_ptr<launch::OutputThread> output,
               std::function<std::shared_ptr<launch::Guard>()> guard, LoggerPtr logger)
    : loop_(loop),
      config_(std::move(config)),
      output_(std::move(output)),
      guard_(std::move(guard)),
      logger_(std::move(logger)),
      fleet_(config_.fleet),
      clock_(loop, config_.heartbeat_interval),
      tick_(loop),
      silence_(loop) {}

Server::~Server() { close(); }

void Server::close() {
  if (std::exchange(closed_, true)) return;
  clock_.close();
  tick_.cancel();
  silence_.cancel();
  for (const auto& [host, connection] : connections_) {
    connection->over = true;
    connection->channel->close(kLinger);
  }
  connections_.clear();
  for (const auto& [host, program] : programs_) {
    program->process->signal_group(SIGTERM);
    program->process->abandon();
  }
  programs_.clear();
  workers_.clear();
}

void Server::later(std::function<void()> fn) {
  loop_.post([alive = std::weak_ptr<int>(alive_), fn = std::move(fn)] {
    if (!alive.expired()) fn();
  });
}

// ---- connections ----

void Server::received(const ConnectionPtr& connection, std::span<const uint8_t> frame) {
  if (connection->over) return;
  try {
    wire::EnvelopeT message = wire::decode(frame);
    if (!connection->sequence.hear(message)) return;
    connection->heard = clock_.now();
    std::optional<Report> report;
    switch (message.body.type) {
      case wire::Body::AgentFailed: report = std::move(*message.body.AsAgentFailed()); break;
      case wire::Body::AgentExited: report = *message.body.AsAgentExited(); break;
      case wire::Body::AgentOutput: {
        wire::AgentOutputT& output = *message.body.AsAgentOutput();
        count_unread(connection->host, output.bytes.size());
        report = std::move(output);
        break;
      }
      case wire::Body::AgentGone: report = *message.body.AsAgentGone(); break;
      case wire::Body::AgentAck:
        return fleet_.acknowledged(connection->host, message.body.AsAgentAck()->received);
      case wire::Body::AgentHeartbeat: {
        const wire::AgentHeartbeatT& heartbeat = *message.body.AsAgentHeartbeat();
        if (const size_t told = heartbeat.running.size() + heartbeat.stopped.size(); told > kMostTold)
          throw Error(HVD_INVALID,
                      fmt::format("{} workers in a heartbeat: expected at most {}", told, kMostTold));
        fleet_.acknowledged(connection->host, heartbeat.received);
        const auto see = [&](const std::vector<uint64_t>& ids, launch::Life life) {
          for (const uint64_t id : ids) {
            const auto worker = workers_.find(id);
            if (worker == workers_.end() || fleet_.host_of(id) != connection->host) continue;
            worker->second->life = life;
            worker->second->seen = clock_.now();
          }
        };
        see(heartbeat.running, launch::Life::kRunning);
        see(heartbeat.stopped, launch::Life::kStopped);
        connection->acknowledged = UINT64_MAX;  // it gets an answer in any case
        return acknowledge(connection);
      }
      case wire::Body::AgentLeave: return left(connection, printable(message.body.AsAgentLeave()->reason));
      case wire::Body::AgentDied: return died(connection, *message.body.AsAgentDied());
      case wire::Body::AgentDrain: return drain(connection, *message.body.AsAgentDrain());
      default: throw Error(HVD_INVALID, fmt::format("an agent may not send {}", wire::body_name(message)));
    }
    apply(fleet_.reported(connection->host, std::move(*report)));
    if (!connection->over) acknowledge(connection);
  } catch (const Error& error) {
    const std::string why = fmt::format("protocol error: {}", printable(error.what()));
    wire::RefusedT refused;
    refused.code = wire::Refusal::Protocol;
    refused.reason = why;
    send(*connection->channel, connection->sequence, std::move(refused));
    drop(connection, why);
  }
}

/// An agent that does not wait for acknowledgements would fill the driver's memory. What it has sent counts
/// across its connections.
void Server::count_unread(const std::string& host, size_t bytes) {
  size_t& unread = unread_[host];
  unread += bytes;
  if (unread > kMostUnread) {
    throw Error(HVD_INVALID,
                fmt::format("{} bytes of output beyond what was acknowledged: expected at most {}", unread,
                            kMostUnread));
  }
}

/// A reader of the job's output that is slow holds up the agents: they send no more than they may keep.
void Server::acknowledge(const ConnectionPtr& connection) {
  const uint64_t received = fleet_.received(connection->host);
  if (connection->acknowledged == received) return;
  if (output_->full()) {
    if (connection->acknowledged == UINT64_MAX) {
      send(*connection->channel, connection->sequence,
           wire::AgentAckT{});  // a sign of life that acknowledges nothing
      connection->acknowledged = 0;
    }
    if (std::exchange(waiting_for_output_, true)) return;
    output_->when_drained([this, &loop = loop_, alive = std::weak_ptr<int>(alive_)] {
      loop.post([this, alive] {
        if (alive.expired()) return;
        waiting_for_output_ = false;
        unread_.clear();
        for (const auto& [host, c] : std::map<std::string, ConnectionPtr>(connections_)) acknowledge(c);
      });
    });
    return;
  }
  unread_.erase(connection->host);
  connection->acknowledged = received;
  wire::AgentAckT ack;
  ack.received = received;
  send(*connection->channel, connection->sequence, ack);
}

void Server::drop(const ConnectionPtr& connection, const std::string& why) {
  if (std::exchange(connection->over, true)) return;
  if (notes_.pass(now())) {
    logger_->write(
        ending_ ? HVD_LOG_DEBUG : HVD_LOG_WARNING,
        fmt::format(
            "the connection of host {}'s agent is over ({}): its workers are waited for up to {} s (agent_timeout)",
            connection->host, why, seconds_text(config_.fleet.patience)));
  }
  if (const auto found = connections_.find(connection->host);
      found != connections_.end() && found->second == connection)
    connections_.erase(found);
  connection->channel->close(kLinger);
  apply(fleet_.closed(connection->host, connection->instance, clock_.now()));
  if (lost_) later(lost_);
}

void Server::drain(const ConnectionPtr& connection, const wire::AgentDrainT& said) {
  constexpr int64_t kLongestMs = int64_t{24} * 3600 * 1000;
  if (!drain_ || ending_) return;
  // Each wish is a line of the log. One that came before is for another driver.
  uint64_t& heard = drained_[connection->host];
  if (std::exchange(heard, connection->instance) == connection->instance) return;
  const std::string reason = printable(said.reason, kLongestLine);
  drain_(connection->host, milliseconds(std::clamp<int64_t>(said.timeout_ms, 0, kLongestMs)),
         fmt::format("host {} is about to go{}{}", connection->host, reason.empty() ? "" : ": ", reason));
}

void Server::left(const ConnectionPtr& connection, const std::string& why) {
  connection->over = true;
  if (notes_.pass(now())) {
    logger_->write(ending_ ? HVD_LOG_DEBUG : HVD_LOG_INFO,
                   fmt::format("the agent of host {} has left: {}", connection->host, why));
  }
  if (const auto found = connections_.find(connection->host);
      found != connections_.end() && found->second == connection)
    connections_.erase(found);
  connection->channel->close(kLinger);
  drained_.erase(connection->host);
  apply(fleet_.left(connection->host, connection->instance));
}

void Server::watch() {
  if (connections_.empty() || closed_) return silence_.cancel();
  silence_.start(config_.heartbeat_interval, [this] { look_for_silence(); });
}

void Server::look_for_silence() {
  const Time at = clock_.now();
  std::vector<ConnectionPtr> silent;
  for (const auto& [host, connection] : connections_) {
    if (at - connection->heard >= config_.heartbeat_timeout) silent.push_back(connection);
  }
  for (const ConnectionPtr& connection : silent) {
    drop(connection, fmt::format("no sign of life for {} s", seconds_text(at - connection->heard)));
  }
  watch();
}

// ---- orders ----

void Server::start(launch::LaunchRequest request) {
  auto worker = std::make_unique<Worker>();
  try {
    worker->output = std::make_unique<launch::WorkerOutput>(output_, config_.output_directory, request.host,
                                                            request.slot, request.worker);
  } catch (const Error& error) {
    return later([this, id = request.worker, why = std::string(error.what())] { events_.failed(id, why); });
  }
  worker->host = request.host;
  workers_[request.worker] = std::move(worker);
  wire::AgentStartT start;
  start.worker = request.worker;
  start.slot = request.slot;
  start.environment = std::move(request.environment);
  start.base = config_.base;
  start.argv = config_.argv;
  start.directory = config_.directory;
  start.umask = config_.umask;
  apply(fleet_.start(request.host, std::move(start), clock_.now()));
}

void Server::stop(uint64_t worker, Duration grace) { apply(fleet_.stop(worker, grace, clock_.now())); }

void Server::set_rank(uint64_t worker, int32_t rank) {
  if (const auto found = workers_.find(worker); found != workers_.end())
    found->second->output->set_rank(rank);
}

void Server::end(bool success, bool try_again, const std::string& reason, std::function<void()> quiet) {
  ending_ = true;
  quiet_ = std::move(quiet);
  if (retired_) return later(std::exchange(quiet_, nullptr));
  apply(fleet_.end(success, try_again, reason));
}

void Server::apply(FleetActions actions) {
  for (FleetAction& action : actions) {
    if (closed_) return;
    std::visit([this](auto& a) { perform(a); }, action);
  }
  if (closed_) return;
  if (const std::optional<Time> next = fleet_.next_tick()) {
    tick_.start(std::max(*next - clock_.now(), Duration(0)), [this] { apply(fleet_.tick(clock_.now())); });
  } else {
    tick_.cancel();
  }
  if (quiet_ && fleet_.quiet()) later(std::exchange(quiet_, nullptr));
}

void Server::perform(SendOrder& action) {
  const auto found = connections_.find(action.host);
  if (found == connections_.end()) return;
  Connection& connection = *found->second;
  std::visit([&](auto& order) { send(*connection.channel, connection.sequence, std::move(order)); },
             action.order);
}

void Server::perform(WorkerFailed& action) {
  later([this, a = std::move(action)] {
    workers_.erase(a.worker);
    events_.failed(a.worker, a.why);
  });
}

void Server::perform(WorkerExited& action) {
  later([this, a = action] { events_.exited(a.worker, a.exit_status); });
}

void Server::perform(WorkerOutput& action) {
  const auto found = workers_.find(action.worker);
  if (found == workers_.end()) return;
  found->second->output->feed(
      action.is_stderr,
      std::string_view(reinterpret_cast<const char*>(action.bytes.data()), action.bytes.size()));
}

void Server::perform(WorkerGone& action) {
  const auto found = workers_.find(action.worker);
  if (found == workers_.end()) return;
  found->second->output->finish();
  workers_.erase(found);
  // Its output was told before anybody learns that it is gone.
  output_->flush([this, id = action.worker, &loop = loop_, alive = std::weak_ptr<int>(alive_)] {
    loop.post([this, id, alive] {
      if (!alive.expired()) events_.gone(id);
    });
  });
}

void Server::perform(HostsChanged&) {
  // Nothing stays of an agent that was lost without a word.
  const auto is_gone = [this](const auto& of_host) { return !fleet_.knows(of_host.first); };
  std::erase_if(unread_, is_gone);
  std::erase_if(drained_, is_gone);
  if (hosts_changed_) later(hosts_changed_);
}

void Server::perform(FleetLog& action) {
  logger_->write(action.warning ? HVD_LOG_WARNING : HVD_LOG_INFO, action.text);
}

}  // namespace hvd::agent
