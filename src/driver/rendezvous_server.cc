#include "driver/rendezvous_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace hvd::driver {
namespace {

// For a worker that was stopped and comes back: long enough to read why it is out.
constexpr Duration kLinger = std::chrono::seconds(5);
constexpr size_t kMaxText = 512;  // of what a worker says, in logs and reasons
constexpr size_t kMaxKey = 1024;

std::string cut(const std::string& text) {
  std::string result = text.substr(0, kMaxText);
  std::replace_if(
      result.begin(), result.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return result;
}

wire::AddressT copy(const wire::AddressT& address) {
  wire::AddressT result;
  result.backend = address.backend;
  result.blob = address.blob;
  return result;
}

}  // namespace

struct RendezvousServer::Connection {
  explicit Connection(wire::Loop& loop) : deadline(loop) {}
  std::shared_ptr<wire::Channel> channel;
  wire::Loop::Timer deadline;  // for hello
  uint64_t worker = 0;         // 0 until its hello was accepted
  uint64_t claimed = 0;        // whom it says to be
  std::string host;
  uint64_t generation = 0;  // what it is a member of: 0 before, after an abort and while it waits
  uint64_t received = 0;    // sequence of its last message
  uint64_t sent = 0;
  Time heard{};
  bool over = false;
};

RendezvousServer::RendezvousServer(wire::Loop& loop, RendezvousConfig config, LoggerPtr logger, Events events)
    : loop_(loop),
      config_(std::move(config)),
      logger_(std::move(logger)),
      events_(std::move(events)),
      timer_(loop) {
  listener_ = std::make_unique<wire::Listener>(
      loop_, config_.listen, config_.secret, config_.limits, logger_,
      [this](std::shared_ptr<wire::Channel> channel) { accepted(std::move(channel)); });
}

RendezvousServer::~RendezvousServer() {
  listener_.reset();
  for (const ConnectionPtr& connection : strangers_) connection->channel->close(Duration(0));
  for (const auto& [worker, connection] : connections_) connection->channel->close(kLinger);
}

uint16_t RendezvousServer::port() const { return listener_->port(); }
std::string RendezvousServer::address() const { return listener_->address(); }

template <class Body>
void RendezvousServer::send(Connection& connection, uint64_t generation, Body body) {
  wire::EnvelopeT message = wire::envelope(config_.job, connection.claimed, generation, std::move(body));
  message.sequence = ++connection.sent;
  connection.channel->send(wire::encode(message));
}

void RendezvousServer::accepted(std::shared_ptr<wire::Channel> channel) {
  auto connection = std::make_shared<Connection>(loop_);
  connection->channel = std::move(channel);
  connection->heard = now();
  if (strangers_.size() >= config_.max_strangers) {
    const ConnectionPtr oldest = strangers_.front();
    oldest->channel->close(Duration(0));
    remove(oldest);
  }
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
    auto c = weak.lock();
    if (!c) return;
    logger_->warning("{} said nothing for {:g} s after connecting: closed", c->channel->peer(),
                     to_seconds(config_.hello_timeout));
    reject(c, wire::Refusal::Protocol, "no hello in time");
  });
}

void RendezvousServer::received(const ConnectionPtr& connection, std::span<const uint8_t> frame) {
  if (connection->over) return;
  try {
    wire::EnvelopeT message = wire::decode(frame);
    if (connection->worker == 0) connection->claimed = message.worker;
    if (message.job != config_.job) {
      return reject(connection, wire::Refusal::Job,
                    fmt::format("this is job {}, not {}", config_.job, cut(message.job)));
    }
    if (connection->worker == 0) return hello(connection, message);
    if (message.worker != connection->worker) {
      throw Error(HVD_INVALID, fmt::format("a message in the name of worker {}", message.worker));
    }
    connection->heard = now();
    if (message.sequence <= connection->received) return;  // a repeated request counts once (contract 11)
    connection->received = message.sequence;
    handle(connection, message);
  } catch (const Error& error) {
    if (connection->over) throw;
    const std::string why = fmt::format("protocol error: {}", cut(error.what()));
    logger_->warning("worker {} at {}: {}", connection->worker, connection->channel->peer(), why);
    if (connection->worker == 0) return reject(connection, wire::Refusal::Protocol, why);
    send(*connection, 0, [&] {
      wire::RefusedT refused;
      refused.code = wire::Refusal::Protocol;
      refused.reason = why;
      return refused;
    }());
    lose(connection, LossKind::kConnectionClosed, why);
  }
}

void RendezvousServer::hello(const ConnectionPtr& connection, const wire::EnvelopeT& message) {
  const auto* hello = message.body.AsHello();
  if (hello == nullptr) {
    throw Error(HVD_INVALID,
                fmt::format("expected Hello as the first message, not {}", wire::body_name(message)));
  }
  if (hello->protocol != wire::kProtocol) {
    return reject(connection, wire::Refusal::Protocol,
                  fmt::format("the worker speaks protocol {} (library {}), this driver {}", hello->protocol,
                              cut(hello->library), wire::kProtocol));
  }
  const uint64_t worker = message.worker;
  if (worker == 0) return reject(connection, wire::Refusal::Unknown, "worker 0 is nobody");
  if (ended_) {
    return reject(connection, wire::Refusal::Ended, fmt::format("the job has ended: {}", ended_->second));
  }
  if (connections_.contains(worker)) {
    return reject(connection, wire::Refusal::Busy,
                  fmt::format("worker {} is connected already from {}", worker,
                              connections_.at(worker)->channel->peer()));
  }
  if (const std::optional<Refusal> refusal = events_.admit(worker)) {
    return reject(connection, refusal->code, refusal->reason);
  }
  std::erase(strangers_, connection);
  connection->deadline.cancel();
  connection->worker = worker;
  connection->host = cut(hello->host);
  connection->received = message.sequence;
  connection->heard = now();
  connections_[worker] = connection;
  wire::WelcomeT welcome;
  welcome.heartbeat_interval_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(config_.heartbeat_interval).count();
  welcome.heartbeat_timeout_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(config_.heartbeat_timeout).count();
  welcome.epoch = epoch_;
  send(*connection, 0, std::move(welcome));
  logger_->debug("worker {} connected from {}, process {} on host {}", worker, connection->channel->peer(),
                 hello->pid, connection->host);
  if (connections_.size() == 1) watch();
  events_.connected(worker);
}

/// Only a member of a generation may speak in its name: late messages of one that is over change nothing (contract 11).
bool RendezvousServer::in_generation(const ConnectionPtr& connection, const wire::EnvelopeT& message) {
  if (message.generation != 0 && message.generation == connection->generation) return true;
  logger_->debug("worker {}: {} of generation {} ignored, it is in {}", connection->worker,
                 wire::body_name(message), message.generation, connection->generation);
  return false;
}

void RendezvousServer::handle(const ConnectionPtr& connection, wire::EnvelopeT& message) {
  const uint64_t worker = connection->worker;
  switch (message.body.type) {
    case wire::Body::Heartbeat: {
      wire::HeartbeatAckT ack;
      ack.sent_ns = message.body.AsHeartbeat()->sent_ns;
      return send(*connection, 0, std::move(ack));
    }
    case wire::Body::Ready: {
      const wire::ReadyT& ready = *message.body.AsReady();
      connection->generation = 0;
      kv_.forget(worker);
      std::vector<wire::AddressT>& addresses = addresses_[worker];
      addresses.clear();
      for (const auto& address : ready.addresses) {
        if (address) addresses.push_back(copy(*address));
      }
      ReadyEvent event;
      event.left_generation = message.generation;
      event.has_state = ready.has_state;
      event.revision = ready.revision;
      event.digest = wire::to_digest(ready.digest.get());
      event.host = connection->host;
      return events_.ready(worker, event);
    }
    case wire::Body::Synced:
      if (in_generation(connection, message)) {
        events_.synced(worker, message.generation, message.body.AsSynced()->revision);
      }
      return;
    case wire::Body::Failure:
      if (in_generation(connection, message)) {
        const wire::FailureT& failure = *message.body.AsFailure();
        events_.failure(worker, message.generation, failure.rank, cut(failure.message));
      }
      return;
    case wire::Body::Done:
      // It may have crossed the abort of its generation: that its work was complete stays true.
      return events_.done(worker, message.generation);
    case wire::Body::Leave: return lose(connection, LossKind::kLeft, cut(message.body.AsLeave()->message));
    case wire::Body::KvSet: {
      wire::KvSetT& set = *message.body.AsKvSet();
      if (set.key.empty() || set.key.size() > kMaxKey) {
        throw Error(HVD_INVALID, fmt::format("a key of {} bytes: expected 1 to {}", set.key.size(), kMaxKey));
      }
      if (!in_generation(connection, message)) return;
      std::vector<KvStore::Answer> answers;
      const Status status = kv_.set(message.generation, set.key, std::move(set.value), &answers);
      if (!status.ok()) logger_->warning("worker {}: {}", worker, cut(status.message));
      return answer(answers);
    }
    case wire::Body::KvGet: {
      const wire::KvGetT& get = *message.body.AsKvGet();
      if (get.key.empty() || get.key.size() > kMaxKey) {
        throw Error(HVD_INVALID, fmt::format("a key of {} bytes: expected 1 to {}", get.key.size(), kMaxKey));
      }
      if (!in_generation(connection, message)) { return answer({{worker, get.key, HVD_PEER_LOST, {}}}); }
      if (const auto found = kv_.get(worker, message.generation, get.key)) answer({*found});
      return;
    }
    default: throw Error(HVD_INVALID, fmt::format("a worker may not send {}", wire::body_name(message)));
  }
}

void RendezvousServer::answer(const std::vector<KvStore::Answer>& answers) {
  for (const KvStore::Answer& a : answers) {
    const auto found = connections_.find(a.worker);
    if (found == connections_.end()) continue;
    wire::KvValueT value;
    value.key = a.key;
    value.status = a.status;
    value.value = a.value;
    send(*found->second, found->second->generation, std::move(value));
  }
}

void RendezvousServer::closed(const ConnectionPtr& connection, const Status& why) {
  if (connection->over) return;
  if (connection->worker == 0) {
    logger_->debug("{} went without a hello: {}", connection->channel->peer(), why.message);
    remove(connection);
    return;
  }
  lose(connection, LossKind::kConnectionClosed, "connection closed");
}

void RendezvousServer::reject(const ConnectionPtr& connection, wire::Refusal code,
                              const std::string& reason) {
  logger_->warning("{} refused ({}): {}", connection->channel->peer(), wire::EnumNameRefusal(code), reason);
  wire::RefusedT refused;
  refused.code = code;
  refused.reason = reason;
  send(*connection, 0, std::move(refused));
  connection->channel->close(kLinger);
  if (connection->worker != 0) return lose(connection, LossKind::kConnectionClosed, reason);
  remove(connection);
}

void RendezvousServer::remove(const ConnectionPtr& connection) {
  connection->over = true;
  connection->deadline.cancel();
  std::erase(strangers_, connection);
  if (connection->worker == 0) return;
  const auto found = connections_.find(connection->worker);
  if (found != connections_.end() && found->second == connection) connections_.erase(found);
  kv_.forget(connection->worker);
}

void RendezvousServer::lose(const ConnectionPtr& connection, LossKind kind, const std::string& why) {
  // A closed connection is noticed at once: only a worker that fell silent took time to be missed.
  if (kind == LossKind::kSilent) silence_[connection->worker] = now() - connection->heard;
  while (silence_.size() > 4096) silence_.erase(silence_.begin());
  remove(connection);
  connection->channel->close(kLinger);
  addresses_.erase(connection->worker);
  events_.lost(connection->worker, kind, why);
}

void RendezvousServer::watch() {
  if (connections_.empty()) return timer_.cancel();
  Time first = Time::max();
  for (const auto& [worker, connection] : connections_) first = std::min(first, connection->heard);
  watch_at_ = std::max(first + config_.heartbeat_timeout, now());
  timer_.start(watch_at_ - now(), [this] { look_for_silence(); });
}

void RendezvousServer::look_for_silence() {
  const Time at = now();
  // Was it this process that slept? Then what the workers said meanwhile is still unread.
  if (const Duration late = at - watch_at_; late > config_.heartbeat_interval) {
    logger_->warning("the driver was held up for {:.1f} s: workers get that much longer", to_seconds(late));
    for (const auto& [worker, connection] : connections_) {
      connection->heard = std::min(at, connection->heard + late + config_.heartbeat_interval);
    }
    return watch();
  }
  std::vector<ConnectionPtr> silent;
  for (const auto& [worker, connection] : connections_) {
    if (at - connection->heard >= config_.heartbeat_timeout) silent.push_back(connection);
  }
  for (const ConnectionPtr& connection : silent) {
    if (connection->over) continue;
    const std::string why = fmt::format("no sign of life for {:.1f} s", to_seconds(at - connection->heard));
    wire::RefusedT refused;
    refused.code = wire::Refusal::Evicted;
    refused.reason = why;
    send(*connection, connection->generation, std::move(refused));
    lose(connection, LossKind::kSilent, why);
  }
  watch();
}

void RendezvousServer::assign(const Assign& assign) {
  answer(kv_.begin(assign.generation));
  wire::AssignmentT assignment;
  assignment.epoch = assign.epoch;
  assignment.root = assign.root;
  assignment.reason = cut(assign.reason);
  for (const MemberPlace& place : assign.members) {
    auto member = std::make_unique<wire::MemberT>();
    member->worker = place.worker;
    member->host = place.host;
    member->local_rank = place.local_rank;
    member->has_state = place.ready.has_state;
    member->revision = place.ready.revision;
    member->digest = std::make_unique<wire::Digest>(place.ready.digest.low, place.ready.digest.high);
    for (const wire::AddressT& address : addresses_[place.worker]) {
      member->addresses.push_back(std::make_unique<wire::AddressT>(copy(address)));
    }
    assignment.members.push_back(std::move(member));
  }
  wire::EnvelopeT message = wire::envelope(config_.job, 0, assign.generation, std::move(assignment));
  for (const MemberPlace& place : assign.members) {
    const auto found = connections_.find(place.worker);
    if (found == connections_.end()) continue;
    Connection& connection = *found->second;
    connection.generation = assign.generation;
    message.worker = place.worker;
    message.sequence = ++connection.sent;
    connection.channel->send(wire::encode(message));
  }
}

void RendezvousServer::abort(const Abort& abort) {
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
  if (kv_.generation() == abort.generation) answer(kv_.begin(0));
}

void RendezvousServer::notify(const Notify& notify) {
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
  wire::RefusedT refused;
  refused.code = code;
  refused.reason = reason;
  send(*found->second, found->second->generation, std::move(refused));
}

void RendezvousServer::dismiss(uint64_t worker, wire::Refusal code, const std::string& reason) {
  refuse(worker, code, reason);
  const auto found = connections_.find(worker);
  if (found == connections_.end()) return;
  const ConnectionPtr connection = found->second;
  remove(connection);
  addresses_.erase(worker);
  connection->channel->close(kLinger);
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
  answer(kv_.begin(0));
}

}  // namespace hvd::driver
