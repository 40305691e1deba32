// Connections of workers: hello, heartbeats, silence, assignments.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "agent/fleet.h"
#include "driver/rendezvous_impl.h"
#include "wire/circular.h"
#include "wire/member.h"
#include "wire/tls.h"

namespace hvd::driver {
namespace {

// For a worker that was stopped and comes back: long enough to read why it is out.
constexpr Duration kLinger = std::chrono::seconds(5);
// Of a worker that is dead: turns of the loop without anything new before its frames count as heard, and
// for how long.
constexpr int32_t kMostRefused = 1000;  // messages of one worker

std::string with_held_back(const std::string& text, uint64_t more) {
  return more == 0 ? text : fmt::format("{} ({} such lines before it were held back)", text, more);
}

}  // namespace

RendezvousServer::RendezvousServer(Loop& loop, RendezvousConfig config, LoggerPtr logger, Events events)
    : loop_(loop),
      config_(std::move(config)),
      logger_(std::move(logger)),
      events_(std::move(events)),
      timer_(loop) {
  begin_term(config_.term);
  const auto on_accepted = [this](std::shared_ptr<wire::Channel> channel) { accepted(std::move(channel)); };
  listener_ = config_.socket >= 0 ? std::make_unique<wire::Listener>(loop_, config_.socket, config_.secret,
                                                                     config_.limits, logger_, on_accepted)
                                  : std::make_unique<wire::Listener>(loop_, config_.listen, config_.secret,
                                                                     config_.limits, logger_, on_accepted);
}

RendezvousServer::~RendezvousServer() {
  listener_.reset();
  for (const ConnectionPtr& connection : strangers_) connection->channel->close(Duration(0));
  for (const auto& [worker, connection] : connections_) connection->channel->close(kLinger);
  for (const ConnectionPtr& connection : operators_) connection->channel->close(kLinger);
}

uint16_t RendezvousServer::port() const { return listener_->port(); }
std::string RendezvousServer::address() const { return listener_->address(); }

void RendezvousServer::accepted(std::shared_ptr<wire::Channel> channel) {
  auto connection = std::make_shared<Connection>(loop_);
  connection->channel = std::move(channel);
  connection->heard = now();
  const auto close_first = [this](auto which) {
    const auto first = std::find_if(strangers_.begin(), strangers_.end(), which);
    const ConnectionPtr oldest = *first;
    oldest->channel->close(Duration(0));
    remove(oldest);
  };
  if (strangers_.size() >= config_.max_strangers) close_first([](const ConnectionPtr&) { return true; });
  const std::string identity = connection->channel->identity();
  const auto same = [&](const ConnectionPtr& c) { return c->channel->identity() == identity; };
  // "worker/7": one worker's. Those that come by address share an identity.
  if (identity.find('/') != std::string::npos &&
      static_cast<size_t>(std::count_if(strangers_.begin(), strangers_.end(), same)) >=
          config_.max_strangers_of_one)
    close_first(same);
  // An agent's first message names all its workers.
  if (wire::is_agent(identity)) connection->channel->lengthen_first(agent::kLongestHello);
  strangers_.push_back(connection);
  const std::weak_ptr<Connection> weak = connection;
  wire::ChannelHandlers handlers;
  handlers.frame = [this, weak](std::span<const uint8_t> frame) {
    if (auto c = weak.lock()) received(c, frame);
  };
  handlers.closed = [this, weak](const Status& why) {
    if (auto c = weak.lock()) closed(c, why);
  };
  connection->channel->set_handlers(std::move(handlers));
  connection->deadline.start(config_.hello_timeout, [this, weak] {
    if (auto c = weak.lock())
      reject(c, wire::Refusal::Protocol,
             fmt::format("no hello within {} s after connecting", seconds_text(config_.hello_timeout)));
  });
}

/// A line that a worker's message causes: a worker must not be able to fill the log.
void RendezvousServer::note(Connection& connection, hvd_log_level level, const std::string& text) {
  if (!connection.notes.pass(now())) return;
  logger_->write(level, with_held_back(text, connection.notes.held_back()));
}

void RendezvousServer::count_refused(const ConnectionPtr& connection) {
  if (++connection->refused != kMostRefused) return;
  // Not from within what its message has set off.
  loop_.post([this, weak = std::weak_ptr<Connection>(connection)] {
    const ConnectionPtr rude = weak.lock();
    if (!rude || rude->over) return;
    lose(rude, membership::LossKind::kConnectionClosed,
         fmt::format("{} of its messages were refused", kMostRefused));
  });
}

void RendezvousServer::answer(const KvStore::Answer& answer) {
  std::map<uint64_t, wire::Circular> forms;  // by generation, which all have alike but for a moment
  for (const uint64_t worker : answer.workers) {
    const auto found = connections_.find(worker);
    if (found == connections_.end()) continue;
    Connection& to = *found->second;
    auto form = forms.find(to.generation);
    if (form == forms.end()) {
      wire::KvValueT value;
      value.key = answer.key;
      value.status = answer.status;
      value.value = *answer.value;
      wire::EnvelopeT message = wire::envelope(config_.job, 0, to.generation, std::move(value));
      message.term = term_;
      form = forms.emplace(to.generation, std::move(message)).first;
    }
    form->second.send(*to.channel, worker, to.sequence.next());
  }
}

void RendezvousServer::begin_values(uint64_t generation, size_t members) {
  for (const KvStore::Answer& lost : kv_.begin(generation, members)) answer(lost);
}

void RendezvousServer::closed(const ConnectionPtr& connection, const Status& why) {
  if (connection->over) return;
  if (connection->worker == 0) {
    logger_->debug("{} went{}: {}", connection->channel->peer(),
                   connection->operates ? ", an operator" : " without a hello", why.message);
    remove(connection);
    return;
  }
  lose(connection, membership::LossKind::kConnectionClosed, "connection closed");
}

void RendezvousServer::reject(const ConnectionPtr& connection, wire::Refusal code,
                              const std::string& reason) {
  if (rejections_.pass(now())) {
    logger_->write(HVD_LOG_WARNING,
                   with_held_back(fmt::format("{} refused ({}): {}", connection->channel->peer(),
                                              wire::EnumNameRefusal(code), reason),
                                  rejections_.held_back()));
  }
  wire::RefusedT refused;
  refused.code = code;
  refused.reason = reason;
  send(*connection, 0, std::move(refused));
  connection->channel->close(kLinger);
  if (connection->worker != 0) return lose(connection, membership::LossKind::kConnectionClosed, reason);
  remove(connection);
}

void RendezvousServer::remove(const ConnectionPtr& connection) {
  connection->over = true;
  connection->deadline.cancel();
  std::erase(strangers_, connection);
  std::erase(operators_, connection);
  if (connection->worker == 0) return;
  const auto found = connections_.find(connection->worker);
  if (found != connections_.end() && found->second == connection) {
    by_silence_.erase(connection->silence);
    connections_.erase(found);
    lives_.forget(connection->worker);
  }
  kv_.forget(connection->worker);
}

void RendezvousServer::lose(const ConnectionPtr& connection, membership::LossKind kind,
                            const std::string& why) {
  // A closed connection is noticed at once: only a worker that fell silent took time to be missed.
  if (kind == membership::LossKind::kSilent) silence_[connection->worker] = now() - connection->heard;
  while (silence_.size() > 4096) silence_.erase(silence_.begin());
  remove(connection);
  connection->channel->close(kLinger);
  events_.lost(connection->worker, kind, why);
}

void RendezvousServer::heard(Connection& connection, Time at) {
  connection.heard = at;
  by_silence_.splice(by_silence_.end(), by_silence_, connection.silence);
}

void RendezvousServer::watch() {
  if (connections_.empty()) return timer_.cancel();
  Time first = Time::max();
  for (const Connection* connection : by_silence_) {
    first = std::min(
        first, connection->heard + (connection->slow ? config_.slow_timeout : config_.heartbeat_timeout));
    if (!connection->slow) break;  // those behind it have been heard later
  }
  // Not only when somebody may be silent: then nobody would know for how long this process was held up.
  const Time at = now();
  const Duration wait = std::clamp<Duration>(first - at, Duration(0), config_.heartbeat_interval);
  held_up_.look_after(wait, at);
  timer_.start(wait, [this] { look_for_silence(); });
}

void RendezvousServer::look_for_silence() {
  const Time at = now();
  if (const Duration held = held_up_.at(at, config_.heartbeat_interval); held > Duration(0)) {
    logger_->warning("the driver was held up for {} s: workers get that much longer", seconds_text(held));
    for (Connection* connection : by_silence_) {  // which stays in order
      connection->heard = std::min(at, connection->heard + held + config_.heartbeat_interval);
    }
    return watch();
  }
  std::vector<std::pair<ConnectionPtr, std::string>> lost;
  for (Connection* connection : by_silence_) {
    if (at - connection->heard < config_.heartbeat_timeout) break;
    if (std::string why = verdict_on(*connection, at); !why.empty())
      lost.emplace_back(connections_.at(connection->worker), std::move(why));
  }
  for (const auto& [connection, why] : lost) {
    if (connection->over) continue;
    tell_refusal(*connection, wire::Refusal::Evicted, why);
    lose(connection, membership::LossKind::kSilent, why);
  }
  watch();
}

/// Why a worker is lost by its silence; "" if it is not. Slow is not dead: whoever started its process sees
/// whether it runs (contract 19). One that is stopped would be waited for in vain.
std::string RendezvousServer::verdict_on(Connection& connection, Time at) {
  const Duration silence = at - connection.heard;
  if (silence < config_.heartbeat_timeout) return "";
  const launch::Life life = this->life(connection.worker);
  const std::string silent = fmt::format("no sign of life for {} s", seconds_text(silence));
  if (life != launch::Life::kRunning) {
    return fmt::format("{}{} (heartbeat_timeout is {} s)", silent,
                       life == launch::Life::kStopped ? ", its process is stopped" : "",
                       seconds_text(config_.heartbeat_timeout));
  }
  if (silence >= config_.slow_timeout) {
    return fmt::format("{}, though its process runs (slow_timeout is {} s)", silent,
                       seconds_text(config_.slow_timeout));
  }
  if (!std::exchange(connection.slow, true)) {
    logger_->warning("worker {} on host {}: {}, but its process runs: it is given {} s (slow_timeout)",
                     connection.worker, connection.host, silent, seconds_text(config_.slow_timeout));
  }
  return "";
}

/// Each form of an assignment is encoded when the first one needs it: for who knows the generation before,
/// for who knows none, and for workers of libraries that have no rosters.
void RendezvousServer::assign(const membership::Assign& assign) {
  begin_values(assign.generation, assign.members().size());
  const auto encoded = [&](wire::AssignmentT assignment) {
    assignment.epoch = assign.epoch;
    assignment.root = assign.root;
    assignment.reason = printable(assign.reason);
    assignment.spares = assign.spares;
    wire::EnvelopeT message = wire::envelope(config_.job, 0, assign.generation, std::move(assignment));
    message.term = term_;
    return wire::Circular(std::move(message));
  };
  const auto roster = [&](const wire::Known* known) {
    wire::AssignmentT assignment;
    assignment.roster = wire::write_roster(assign.members(), known);
    return encoded(std::move(assignment));
  };
  const auto plain = [&] {
    wire::AssignmentT assignment;
    for (const Member& member : assign.members()) assignment.members.push_back(wire::write_member(member));
    return encoded(std::move(assignment));
  };
  std::optional<wire::Circular> change, whole, members;
  const auto form_for = [&](const Connection& connection) -> const wire::Circular& {
    if (!connection.takes_rosters) return members ? *members : members.emplace(plain());
    if (assigned_ && connection.roster == assigned_->generation)
      return change ? *change : change.emplace(roster(assigned_.get()));
    return whole ? *whole : whole.emplace(roster(nullptr));
  };
  for (const Member& member : assign.members()) {
    const auto found = connections_.find(member.worker);
    if (found == connections_.end()) continue;
    Connection& connection = *found->second;
    const wire::Circular& form = form_for(connection);
    connection.generation = connection.assigned = connection.roster = assign.generation;
    form.send(*connection.channel, member.worker, connection.sequence.next());
  }
  assigned_ = assign.roster;
}

void RendezvousServer::abort(const membership::Abort& abort) {
  wire::AbortT body;
  body.reason = abort.reason;
  body.rank = abort.rank;
  if (const auto silence = silence_.find(abort.worker); silence != silence_.end()) {
    body.silence_ns = silence->second.count();
  }
  for (const uint64_t worker : abort.to) {
    const auto found = connections_.find(worker);
    if (found == connections_.end()) continue;
    if (found->second->generation == abort.generation) found->second->generation = 0;
    send(*found->second, abort.generation, wire::AbortT(body));
  }
  // After the aborts, which nobody should wait for (contract 3).
  if (kv_.generation() == abort.generation) begin_values(0, 0);
}

void RendezvousServer::notify(const membership::Notify& notify) {
  set_epoch(notify.epoch);
  wire::HostsUpdatedT body;
  body.epoch = notify.epoch;
  body.interrupt = notify.interrupt;
  body.added = notify.added;
  body.removed = notify.removed;
  for (const uint64_t worker : notify.to) {
    if (const auto found = connections_.find(worker); found != connections_.end()) {
      send(*found->second, found->second->generation, wire::HostsUpdatedT(body));
    }
  }
}

void RendezvousServer::refuse(uint64_t worker, wire::Refusal code, const std::string& reason) {
  const auto found = connections_.find(worker);
  if (found == connections_.end()) return;
  const ConnectionPtr connection = found->second;
  note(*connection, ended_ ? HVD_LOG_DEBUG : HVD_LOG_WARNING,
       fmt::format("a message of worker {} on host {} was refused: {}", worker, connection->host, reason));
  tell_refusal(*connection, code, reason);
  count_refused(connection);
}

void RendezvousServer::tell_refusal(Connection& connection, wire::Refusal code, const std::string& reason) {
  wire::RefusedT refused;
  refused.code = code;
  refused.reason = reason;
  send(connection, connection.generation, std::move(refused));
}

bool RendezvousServer::probe(uint64_t worker) {
  const auto found = connections_.find(worker);
  if (found == connections_.end()) return false;
  if (found->second->takes_waiting)
    send(*found->second, 0, wire::ProbeT{});  // else its next heartbeat will do
  return true;
}

launch::Life RendezvousServer::life(uint64_t worker) const {
  const auto found = connections_.find(worker);
  if (found == connections_.end() || !events_.life) return launch::Life::kUnknown;
  return events_.life(worker, found->second->process.process);
}

bool RendezvousServer::heard_since(uint64_t worker, Time time) const {
  const auto found = connections_.find(worker);
  return found != connections_.end() && found->second->heard > time;
}

void RendezvousServer::wait(const membership::Wait& wait) {
  const auto found = connections_.find(wait.worker);
  if (found == connections_.end() || !found->second->takes_waiting) return;
  wire::WaitingT waiting;
  waiting.reason = wait.reason;
  send(*found->second, 0, std::move(waiting));
}

void RendezvousServer::want_feed(const membership::WantFeed& want) {
  const auto found = connections_.find(want.worker);
  if (found == connections_.end() || found->second->generation != want.generation) return;
  wire::FeedWantedT wanted;
  wanted.reason = want.reason;
  send(*found->second, want.generation, std::move(wanted));
}

void RendezvousServer::start_feed(const membership::StartFeed& start) {
  const auto found = connections_.find(start.worker);
  if (found == connections_.end()) return;
  wire::FeedT feed;
  feed.source = start.source;
  feed.endpoint = start.endpoint;
  try {
    feed.key = wire::key_text(start.key, wire::worker_identity(start.worker));  // it can play no other one
  } catch (const Error&) {
    feed.key = start.key;  // no key that serves anybody, as that worker will report
  }
  feed.pause_ns = start.pause.count();
  send(*found->second, 0, std::move(feed));
}

void RendezvousServer::dismiss(uint64_t worker, wire::Refusal code, const std::string& reason, bool left) {
  const auto found = connections_.find(worker);
  if (found == connections_.end()) return;
  const ConnectionPtr connection = found->second;
  wire::RefusedT refused;
  refused.code = code;
  refused.reason = reason;
  refused.left = left;
  send(*connection, connection->generation, std::move(refused));
  remove(connection);
  connection->channel->close(kLinger);
}

void RendezvousServer::run_on(uint64_t generation, size_t members) {
  if (kv_.generation() != generation) begin_values(generation, members);
}

void RendezvousServer::retire() {
  ended_ = {false, "another driver has taken over"};
  timer_.cancel();
  for (const ConnectionPtr& connection : std::exchange(strangers_, {})) {
    connection->over = true;
    connection->deadline.cancel();
    connection->channel->close(kLinger);
  }
  by_silence_.clear();
  for (const auto& [worker, connection] : std::exchange(connections_, {})) {
    connection->over = true;
    connection->channel->close(kLinger);
  }
}

void RendezvousServer::end(bool success, const std::string& sentence) {
  if (ended_) return;
  ended_ = {success, sentence};
  for (const auto& [worker, connection] : connections_) {
    wire::JobEndedT ended;
    ended.success = success;
    ended.reason = sentence;
    send(*connection, connection->generation, std::move(ended));
  }
  begin_values(0, 0);
}

}  // namespace hvd::driver
