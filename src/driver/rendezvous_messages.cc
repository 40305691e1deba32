// What the rendezvous server does with each message of a worker.
#include <fmt/format.h>

#include <algorithm>

#include "driver/rendezvous_impl.h"
#include "wire/heartbeat.h"
#include "wire/member.h"
#include "wire/tls.h"

namespace hvd::driver {
namespace {

constexpr size_t kMaxKey = 1024;
constexpr size_t kMaxStallText = 4096;
constexpr size_t kMaxBackendsText = 1024;
constexpr size_t kMaxMissing = 1 << 16;
constexpr Duration kHearsTheEnd = std::chrono::seconds(5);
constexpr int64_t kLongestWaitMs = int64_t{366} * 24 * 3600 * 1000;

void check_key(const std::string& key) {
  if (key.empty() || key.size() > kMaxKey)
    throw Error(HVD_INVALID, fmt::format("a key of {} bytes: expected 1 to {}", key.size(), kMaxKey));
}

}  // namespace

void RendezvousServer::received(const ConnectionPtr& connection, std::span<const uint8_t> frame) {
  if (connection->over) return;
  try {
    if (connection->worker != 0) {
      if (const wire::Envelope* beat = wire::heartbeat_in(frame);
          beat != nullptr && heartbeat(*connection, *beat))
        return;
    }
    wire::EnvelopeT message = wire::decode(frame);
    if (connection->channel->identity() == wire::kOperatorIdentity) return operate(connection, message);
    if (connection->worker == 0) connection->claimed = message.worker;
    if (connection->worker == 0 && message.body.type != wire::Body::Hello &&
        (message.job.empty() || message.job == config_.job) && events_.guest &&
        events_.guest(connection->channel, message)) {
      return remove(connection);
    }
    if (message.job != config_.job) {
      return reject(connection, wire::Refusal::Job,
                    fmt::format("this is job {}, not {}", config_.job, printable(message.job)));
    }
    if (fenced(connection, message)) return;
    if (connection->worker == 0) return hello(connection, message);
    if (message.worker != connection->worker) {
      throw Error(HVD_INVALID, fmt::format("a message in the name of worker {}", message.worker));
    }
    const Time at = now();
    if (std::exchange(connection->slow, false)) {
      logger_->info("worker {} is heard again after {} s", message.worker,
                    seconds_text(at - connection->heard));
    }
    heard(*connection, at);
    if (!connection->sequence.hear(message)) return;
    handle(connection, message);
  } catch (const Error& error) {
    if (connection->over) throw;
    const std::string why = fmt::format("protocol error: {}", printable(error.what()));
    if (connection->worker == 0) return reject(connection, wire::Refusal::Protocol, why);  // which notes it
    logger_->warning("worker {} at {}: {}", connection->worker, connection->channel->peer(), why);
    tell_refusal(*connection, wire::Refusal::Protocol, why);
    lose(connection, membership::LossKind::kConnectionClosed, why);
  }
}

void RendezvousServer::hello(const ConnectionPtr& connection, const wire::EnvelopeT& message) {
  const auto* hello = message.body.AsHello();
  if (hello == nullptr) {
    throw Error(HVD_INVALID,
                fmt::format("expected Hello as the first message, not {}", wire::body_name(message)));
  }
  if (const std::string why = wire::foreign_protocol("the worker", hello->protocol, hello->library);
      !why.empty())
    return reject(connection, wire::Refusal::Protocol, why);
  const uint64_t worker = message.worker;
  if (worker == 0) return reject(connection, wire::Refusal::Unknown, "worker 0 is nobody");
  // Its key says who it is: a worker plays no other one, though all are of this job (contract 13).
  if (const std::string& identity = connection->channel->identity();
      identity != wire::worker_identity(worker)) {
    return reject(connection, wire::Refusal::Unknown,
                  fmt::format("the key of {} is not worker {}'s", identity, worker));
  }
  // A worker that resumes: the driver before this one ended the job, or was about to. One that comes too late
  // for a success has not failed either.
  if (ended_ && (hello->resumes || ended_->first)) {
    wire::JobEndedT ended;
    ended.success = ended_->first;
    ended.reason = ended_->second;
    send(*connection, 0, std::move(ended));
    connection->channel->close(kHearsTheEnd);
    return remove(connection);
  }
  if (ended_) {
    return reject(connection, wire::Refusal::Ended, fmt::format("the job has ended: {}", ended_->second));
  }
  if (const auto found = connections_.find(worker); found != connections_.end()) {
    if (!hello->resumes || found->second->process.process != hello->pid) {
      return reject(
          connection, wire::Refusal::Busy,
          fmt::format("worker {} is connected already from {}", worker, found->second->channel->peer()));
    }
    // It has not heard this driver for too long on the connection that it had: that one is replaced.
    const ConnectionPtr former = found->second;
    remove(former);
    former->channel->close(Duration(0));
  }
  if (const std::optional<Refusal> refusal = events_.admit(worker)) {
    const bool may_tell = hello->resumes && refusal->code == wire::Refusal::Unknown && events_.may_be_known &&
                          events_.may_be_known(worker);
    if (!may_tell) return reject(connection, refusal->code, refusal->reason);
  }
  let_in(connection, message, *hello);
}

/// Its hello is accepted.
void RendezvousServer::let_in(const ConnectionPtr& connection, const wire::EnvelopeT& message,
                              const wire::HelloT& hello) {
  const uint64_t worker = message.worker;
  std::erase(strangers_, connection);
  connection->deadline.cancel();
  connection->worker = worker;
  connection->channel->trust();
  connection->host = printable(hello.host);
  connection->process.process = hello.pid;
  if (hello.life >= 0 && hello.life_token != nullptr) {
    connection->process.life = hello.life;
    connection->process.life_token = wire::to_digest(hello.life_token.get());
  }
  connection->resumes = hello.resumes;
  connection->slot = hello.slot;
  connection->takes_waiting = hello.takes_waiting;
  connection->takes_rosters = hello.takes_rosters;
  connection->sequence.hear(message);
  connections_[worker] = connection;
  connection->silence = by_silence_.insert(by_silence_.end(), connection.get());
  heard(*connection, now());
  wire::WelcomeT welcome;
  welcome.heartbeat_interval_ms = heartbeat_interval().count();
  welcome.heartbeat_timeout_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(config_.heartbeat_timeout).count();
  welcome.epoch = epoch_;
  welcome.takes_stalls = true;
  welcome.term = term_;
  welcome.takes_leaving = true;
  welcome.takes_recoveries = true;
  send(*connection, 0, std::move(welcome));
  logger_->debug("worker {} connected from {}, process {} on host {}", worker, connection->channel->peer(),
                 hello.pid, connection->host);
  if (connections_.size() == 1) watch();
  watch_life(connection);
  events_.connected(worker, connection->process);
}

/// Only a member of a generation may speak in its name: late messages of one that is over change nothing
/// (contract 11).
bool RendezvousServer::in_generation(const ConnectionPtr& connection, const wire::EnvelopeT& message) {
  if (message.generation != 0 && message.generation == connection->generation) return true;
  logger_->debug("worker {}: {} of generation {} ignored, it is in {}", connection->worker,
                 wire::body_name(message), message.generation, connection->generation);
  return false;
}

/// Of the generation that the worker was given a place in last, over or not.
bool RendezvousServer::of_last_place(const Connection& connection, const wire::EnvelopeT& message) {
  return message.generation != 0 && message.generation == connection.assigned;
}

/// Whether these can be ranks of the generation, the membership knows.
void RendezvousServer::stalled(uint64_t worker, const wire::EnvelopeT& message) {
  const wire::StallT& stall = *message.body.AsStall();
  if (stall.waited_ms < 0 || stall.waited_ms > kLongestWaitMs) {
    throw Error(HVD_INVALID,
                fmt::format("a stall of {} ms: expected 0 to {}", stall.waited_ms, kLongestWaitMs));
  }
  if (stall.missing.size() > kMaxMissing) {
    throw Error(HVD_INVALID, fmt::format("a stall that waits for {} ranks: expected at most {}",
                                         stall.missing.size(), kMaxMissing));
  }
  membership::StallEvent event;
  event.text = printable(stall.message, kMaxStallText);
  event.missing = stall.missing;
  event.waited = milliseconds(stall.waited_ms);
  events_.stalled(worker, message.generation, event);
}

membership::ReadyEvent RendezvousServer::ready_event(const Connection& connection, uint64_t generation,
                                                     const wire::ReadyT& ready) const {
  membership::ReadyEvent event;
  event.left_generation = generation;
  event.has_state = ready.has_state;
  event.revision = ready.revision;
  event.digest = wire::to_digest(ready.digest.get());
  event.host = connection.host;
  event.lost_peer = ready.cause == wire::Cause::PeerLost;
  event.offers = wire::read_offers(ready.addresses);
  event.settings = wire::read_settings(ready.settings);
  event.feeds = ready.feeds;
  return event;
}

/// contract 14: who has heard of a newer driver listens to this one no more.
bool RendezvousServer::fence(uint64_t named, const std::string& proof) {
  if (named <= term_) return false;
  if (term_ == 0) return false;  // terms mean nothing to it
  const bool proved = wire::proves_term(proof, config_.secret, config_.job, named);
  const uint64_t term = events_.newer_term ? events_.newer_term(named, proved) : 0;
  if (term <= named) return true;
  begin_term(term);
  return false;
}

void RendezvousServer::begin_term(uint64_t term) {
  term_ = term;
  term_proof_ = term == 0 ? "" : wire::term_proof(config_.secret, config_.job, term);
}

bool RendezvousServer::fenced(const ConnectionPtr& connection, const wire::EnvelopeT& message) {
  if (connection->worker == 0 && connection->channel->identity() != wire::worker_identity(message.worker))
    return false;
  if (!fence(message.term, message.term_proof)) return false;
  if (connection->worker == 0) {
    reject(connection, wire::Refusal::Superseded,
           fmt::format("this driver is of term {}, and there is one of term {}", term_, message.term));
  }
  return true;
}

/// Where a worker stands that has connected again.
void RendezvousServer::resumed(const ConnectionPtr& connection, wire::EnvelopeT& message) {
  if (!std::exchange(connection->resumes, false))
    throw Error(HVD_INVALID, "Resume is for a connection that resumes");
  const wire::ResumeT& resume = *message.body.AsResume();
  constexpr int32_t kMostRanks = 1 << 22;
  if (resume.size < 0 || resume.size > kMostRanks || resume.epoch > uint64_t{1} << 62 ||
      message.generation > uint64_t{1} << 62) {
    throw Error(HVD_INVALID, fmt::format("rank {} of {} in generation {}, epoch {}", resume.rank, resume.size,
                                         message.generation, resume.epoch));
  }
  if (resume.suspect < -1 || resume.suspect >= std::max(resume.size, 1)) {
    throw Error(HVD_INVALID, fmt::format("a link to rank {} broke: expected -1 to {}", resume.suspect,
                                         std::max(resume.size, 1) - 1));
  }
  membership::BackEvent event;
  event.generation = message.generation;
  event.rank = resume.rank;
  event.size = resume.size;
  event.synced = resume.synced;
  event.has_state = resume.has_state;
  event.left = resume.left;
  event.lost = resume.lost;
  event.interrupt = resume.interrupt;
  event.epoch = resume.epoch;
  event.revision = resume.revision;
  event.suspect = resume.suspect;
  event.closed = resume.closed;
  event.slot_host = connection->host;
  event.slot = connection->slot;
  if (resume.ready != nullptr) event.last = ready_event(*connection, message.generation, *resume.ready);
  event.last.host = connection->host;
  connection->assigned = message.generation;
  connection->generation = resume.left || resume.lost ? 0 : message.generation;
  events_.back(connection->worker, event);
}

void RendezvousServer::ready(const ConnectionPtr& connection, const wire::EnvelopeT& message) {
  const wire::ReadyT& ready = *message.body.AsReady();
  const uint64_t worker = connection->worker;
  connection->generation = 0;
  connection->revision = ready.revision;
  progressed(worker, ready.progress.get());
  kv_.forget(worker);
  if (std::string backends = printable(ready.backends, kMaxBackendsText); backends != connection->backends) {
    connection->backends = std::move(backends);
    note(*connection, HVD_LOG_INFO,
         fmt::format("worker {} on host {} uses {}", worker, connection->host, connection->backends));
  }
  events_.ready(worker, ready_event(*connection, message.generation, ready));
}

void RendezvousServer::failed(const ConnectionPtr& connection, const wire::EnvelopeT& message) {
  const wire::FailureT& failure = *message.body.AsFailure();
  // Another loss may have been faster: that this worker does not fit is as true after it. And of one that has
  // left already, a driver that takes over learns only so whom it has lost.
  if (failure.unfit && of_last_place(*connection, message)) {
    events_.unfit(connection->worker, message.generation, failure.rank, printable(failure.message));
  } else if (of_last_place(*connection, message) || in_generation(connection, message)) {
    events_.failure(connection->worker, message.generation, failure.rank, printable(failure.message));
  }
}

void RendezvousServer::leaving(uint64_t worker, const wire::EnvelopeT& message) {
  const wire::LeavingT& leaving = *message.body.AsLeaving();
  if (leaving.timeout_ms < 0 || leaving.timeout_ms > kLongestWaitMs) {
    throw Error(HVD_INVALID, fmt::format("a worker that leaves within {} ms: expected 0 to {}",
                                         leaving.timeout_ms, kLongestWaitMs));
  }
  events_.leaving(worker, milliseconds(leaving.timeout_ms), printable(leaving.message));
}

void RendezvousServer::feed_offered(const ConnectionPtr& connection, const wire::EnvelopeT& message) {
  const wire::FeedOfferT& offer = *message.body.AsFeedOffer();
  if (offer.endpoint.size() > kMaxKey || offer.key.size() > kMaxKey) {
    throw Error(HVD_INVALID,
                fmt::format("an endpoint of {} bytes and a key of {} to be fed by: expected up to {}",
                            offer.endpoint.size(), offer.key.size(), kMaxKey));
  }
  if (!in_generation(connection, message)) return;
  events_.feed_offered(connection->worker, message.generation,
                       {offer.endpoint, offer.key, printable(offer.reason)});
}

void RendezvousServer::kv_set(const ConnectionPtr& connection, wire::EnvelopeT& message) {
  wire::KvSetT& set = *message.body.AsKvSet();
  check_key(set.key);
  if (!in_generation(connection, message)) return;
  std::optional<KvStore::Answer> waited;
  const Status status =
      kv_.set(connection->worker, message.generation, set.key, std::move(set.value), &waited);
  if (!status.ok()) {
    note(*connection, HVD_LOG_WARNING,
         fmt::format("worker {}: {}", connection->worker, printable(status.message)));
    count_refused(connection);
  }
  if (waited) answer(*waited);
}

void RendezvousServer::kv_get(const ConnectionPtr& connection, const wire::EnvelopeT& message) {
  const wire::KvGetT& get = *message.body.AsKvGet();
  check_key(get.key);
  // Of no generation if it is not of this one: HVD_PEER_LOST.
  const uint64_t generation = in_generation(connection, message) ? message.generation : 0;
  if (const auto found = kv_.get(connection->worker, generation, get.key)) answer(*found);
}

void RendezvousServer::handle(const ConnectionPtr& connection, wire::EnvelopeT& message) {
  const uint64_t worker = connection->worker;
  switch (message.body.type) {
    case wire::Body::Heartbeat: {
      const wire::HeartbeatT& heartbeat = *message.body.AsHeartbeat();
      connection->revision = heartbeat.revision;
      progressed(worker, heartbeat.progress.get());
      return answer_heartbeat(*connection, heartbeat.sent_ns);
    }
    case wire::Body::Ready: return ready(connection, message);
    case wire::Body::Resume: return resumed(connection, message);
    case wire::Body::Synced:
      // It may have crossed the abort of its generation: that the worker has state from then on stays true.
      if (of_last_place(*connection, message)) {
        connection->revision = message.body.AsSynced()->revision;
        events_.synced(worker, message.generation, message.body.AsSynced()->revision);
      }
      return;
    case wire::Body::Failure: return failed(connection, message);
    case wire::Body::Stall:
      // Each report is a line of the log; they come at doubling times.
      if (in_generation(connection, message) && connection->notes.pass(now())) stalled(worker, message);
      return;
    case wire::Body::Done:
      // It may have crossed the abort of its generation: that its work was complete stays true.
      progressed(worker, message.body.AsDone()->progress.get());
      return events_.done(worker, message.generation);
    case wire::Body::Recovered:
      // Each report is a line of the history; a generation is entered once.
      if (of_last_place(*connection, message) &&
          std::exchange(connection->recovered, message.generation) != message.generation)
        recovered(worker, message);
      return;
    case wire::Body::Leave:
      return lose(connection, membership::LossKind::kLeft, printable(message.body.AsLeave()->message));
    case wire::Body::Leaving: return leaving(worker, message);
    case wire::Body::FeedOffer: return feed_offered(connection, message);
    case wire::Body::Fed: {
      const wire::FedT& fed = *message.body.AsFed();
      return events_.fed(worker, {fed.source, fed.revision, fed.bytes, fed.lacking, printable(fed.failure)});
    }
    case wire::Body::KvSet: return kv_set(connection, message);
    case wire::Body::KvGet: return kv_get(connection, message);
    default: throw Error(HVD_INVALID, fmt::format("a worker may not send {}", wire::body_name(message)));
  }
}

}  // namespace hvd::driver
