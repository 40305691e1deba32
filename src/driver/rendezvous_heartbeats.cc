// Heartbeats: how often each worker sends one and is answered, and the short way that most of them take.
#include <algorithm>
#include <chrono>

#include "driver/rendezvous_impl.h"
#include "wire/heartbeat.h"

namespace hvd::driver {
namespace {

constexpr Duration kEach = std::chrono::milliseconds(1);  // of all workers' together

}  // namespace

/// Many workers send theirs more seldom, so that all together cost this driver no more than a thousand a
/// second; but three times within heartbeat_timeout, so that one that is late proves nothing.
Duration spread_heartbeats(Duration interval, Duration timeout, size_t workers) {
  const Duration seldom = std::min(kEach * static_cast<int64_t>(workers), timeout / 3);
  return std::max(interval, seldom);
}

/// An answer costs as much as a heartbeat, so the same holds for answers; but each worker gets one within two
/// thirds of heartbeat_timeout, so that it does not take this driver for silent.
int64_t heartbeats_an_answer(Duration interval, Duration timeout, size_t workers) {
  const Duration seldom = std::min(kEach * static_cast<int64_t>(workers), timeout * 2 / 3);
  return std::max<int64_t>(seldom / spread_heartbeats(interval, timeout, workers), 1);
}

std::chrono::milliseconds RendezvousServer::heartbeat_interval() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      spread_heartbeats(config_.heartbeat_interval, config_.heartbeat_timeout, connections_.size()));
}

/// False: there is more to it, so that it is to be read as any other message.
bool RendezvousServer::heartbeat(Connection& connection, const wire::Envelope& message) {
  if (connection.slow || message.worker() != connection.worker || message.term() > term_ ||
      message.job()->string_view() != config_.job) {
    return false;
  }
  const Time at = now();
  heard(connection, at);
  if (!connection.sequence.hear(message.sequence())) return true;
  const wire::Heartbeat& beat = *message.body_as_Heartbeat();
  connection.revision = beat.revision();
  if (const wire::Progress* told = beat.progress())
    progressed(connection.worker, told->commits(), told->useful_ns(), told->commit_ns(), told->sync_bytes());
  answer_heartbeat(connection, beat.sent_ns());
  return true;
}

void RendezvousServer::answer_heartbeat(Connection& connection, int64_t sent_ns) {
  if (++connection.unanswered <
      heartbeats_an_answer(config_.heartbeat_interval, config_.heartbeat_timeout, connections_.size()))
    return;
  connection.unanswered = 0;
  const std::chrono::milliseconds interval = heartbeat_interval();
  if (connection.told_term != term_) {  // it gets the term's proof
    wire::HeartbeatAckT answer;
    answer.sent_ns = sent_ns;
    answer.interval_ms = interval.count();
    return send(connection, 0, std::move(answer));
  }
  if (!answer_ || answer_->interval() != interval || answer_->term() != term_)
    answer_ = std::make_unique<wire::HeartbeatAnswer>(config_.job, term_, interval);
  connection.channel->send_copy(answer_->to(connection.worker, connection.sequence.next(), sent_ns));
}

}  // namespace hvd::driver
