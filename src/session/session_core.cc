// What each message and each moment changes in a session.
#include "session/session_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "session/assignment.h"
#include "wire/member.h"

namespace hvd::session {
namespace {

constexpr uint64_t kLargestEpoch = uint64_t{1} << 62;
constexpr int64_t kLongestHeartbeatMs = int64_t{24} * 3600 * 1000;

uint64_t to_word(uint64_t epoch, bool interrupt) { return epoch * 2 + (interrupt ? 1 : 0); }

hvd_status to_status(wire::Refusal refusal) {
  switch (refusal) {
    case wire::Refusal::Removed:
    case wire::Refusal::Evicted: return HVD_REMOVED;
    case wire::Refusal::Ended: return HVD_JOB_FAILED;
    default: return HVD_REFUSED;
  }
}

}  // namespace

SessionCore::SessionCore(CoreConfig config) : config_(std::move(config)) {}

void SessionCore::log(hvd_log_level level, std::string text) {
  actions_.emplace_back(LogLine{level, std::move(text)});
}

void SessionCore::end(Status why, Duration linger) {
  if (phase_ == Phase::kEnded) return;
  phase_ = Phase::kEnded;
  gets_.clear();  // whoever waits learns of the end
  held_.reset();
  actions_.emplace_back(End{std::move(why)});
  actions_.emplace_back(Close{linger});
}

void SessionCore::broken(const std::string& what) {
  end(Status(HVD_DRIVER_LOST, fmt::format("the driver at {} broke the protocol: {}", config_.driver, what)));
}

SessionCore::Actions SessionCore::take() { return std::exchange(actions_, {}); }

// ---- the channel ----

SessionCore::Actions SessionCore::connected(Duration patience, Time now) {
  if (phase_ != Phase::kNew) return take();
  phase_ = Phase::kHello;
  last_received_ = now;
  hello_deadline_ = now + patience;
  send(0, hello());
  return take();
}

bool SessionCore::begin_anew() {
  if (phase_ != Phase::kHello || refusal_) return false;
  phase_ = Phase::kNew;
  link_ = Link{};
  return true;
}

wire::HelloT SessionCore::hello() const {
  wire::HelloT hello;
  hello.protocol = wire::kProtocol;
  hello.library = HVD_VERSION_STRING;
  hello.host = config_.host;
  hello.slot = config_.slot;
  hello.pid = config_.pid;
  hello.takes_waiting = hello.takes_rosters = true;
  hello.resumes = phase_ == Phase::kWelcomed;
  hello.life = config_.life;
  if (config_.life >= 0)
    hello.life_token = std::make_unique<wire::Digest>(config_.life_token.low, config_.life_token.high);
  return hello;
}

SessionCore::Actions SessionCore::frame(std::span<const uint8_t> bytes, Time now) {
  if (phase_ == Phase::kEnded) return take();
  try {
    return received(wire::decode(bytes), now);
  } catch (const Error& e) {
    broken(e.what());
    return take();
  }
}

SessionCore::Actions SessionCore::received(const wire::EnvelopeT& message, Time now) {
  if (phase_ != Phase::kHello && phase_ != Phase::kWelcomed) return take();
  last_received_ = now;
  suspected_.reset();
  if (missed_since_) found(now);
  // A driver of another job, or one that does not know this worker, can still say so.
  const bool is_answer = phase_ == Phase::kHello && message.body.type == wire::Body::Refused;
  if (!is_answer && (message.job != config_.job || message.worker != config_.worker)) {  // contract 11
    log(HVD_LOG_WARNING,
        fmt::format("dropped {} for worker {} of job \"{}\": this is worker {} of job \"{}\"",
                    wire::body_name(message), message.worker, message.job, config_.worker, config_.job));
    return take();
  }
  if (message.sequence <= link_.seen) {
    log(HVD_LOG_WARNING, fmt::format("dropped {} with sequence {}: {} was seen already",
                                     wire::body_name(message), message.sequence, link_.seen));
    return take();
  }
  link_.seen = message.sequence;
  if (outlives_driver()) term_ = std::max(term_, message.term);
  if (!message.term_proof.empty()) term_proof_ = message.term_proof;
  dispatch(message, now);
  return take();
}

void SessionCore::dispatch(const wire::EnvelopeT& message, Time now) {
  const wire::BodyUnion& body = message.body;
  if (phase_ == Phase::kHello) {
    if (body.type == wire::Body::Welcome) return on_welcome(*body.AsWelcome(), now);
    if (body.type == wire::Body::Refused) return on_refused(*body.AsRefused());
    if (body.type != wire::Body::JobEnded)
      return broken(fmt::format("{} came before Welcome", wire::body_name(message)));
  }
  switch (body.type) {
    case wire::Body::Refused: return on_refused(*body.AsRefused());
    case wire::Body::Assignment: return on_assignment(message.generation, *body.AsAssignment(), now);
    case wire::Body::Abort: return on_abort(message.generation, *body.AsAbort(), now);
    case wire::Body::HostsUpdated: return on_hosts_updated(*body.AsHostsUpdated());
    case wire::Body::KvValue: return on_kv_value(message.generation, *body.AsKvValue());
    case wire::Body::HeartbeatAck: return on_heartbeat_ack(*body.AsHeartbeatAck(), now);
    case wire::Body::Probe: return heartbeat(now);
    case wire::Body::Waiting:
      actions_.emplace_back(NotifyWaiting{printable(body.AsWaiting()->reason)});
      return;
    case wire::Body::FeedWanted:
      if (is_live(message.generation)) actions_.emplace_back(NotifyFeedWanted{message.generation});
      return;
    case wire::Body::Feed: {
      const wire::FeedT& feed = *body.AsFeed();
      if (taken_ && left_ && !synced_) {  // it waits for a place
        actions_.emplace_back(NotifyFeed{
            {feed.source, feed.endpoint, feed.key, Duration(std::max<int64_t>(feed.pause_ns, 0))}});
      }
      return;
    }
    case wire::Body::JobEnded: {
      const wire::JobEndedT& ended = *body.AsJobEnded();
      return end(Status(ended.success ? HVD_OK : HVD_JOB_FAILED, ended.reason));
    }
    default: log(HVD_LOG_WARNING, fmt::format("dropped {}: not for a worker", wire::body_name(message)));
  }
}

void SessionCore::on_welcome(const wire::WelcomeT& welcome, Time now) {
  if (!take_welcome(welcome, now)) return;
  term_ = welcome.term;
  phase_ = Phase::kWelcomed;
  actions_.emplace_back(Welcomed{});
  say_leaving(now);
}

/// False: the session has ended.
bool SessionCore::take_welcome(const wire::WelcomeT& welcome, Time now) {
  const int64_t interval = welcome.heartbeat_interval_ms, timeout = welcome.heartbeat_timeout_ms;
  if (interval <= 0 || timeout <= interval || timeout > kLongestHeartbeatMs) {
    broken(fmt::format("heartbeat every {} ms with a time-out of {} ms", interval, timeout));
    return false;
  }
  if (welcome.epoch > kLargestEpoch) {
    broken(fmt::format("epoch {}", welcome.epoch));
    return false;
  }
  heartbeat_interval_ = milliseconds(interval);
  heartbeat_timeout_ = milliseconds(timeout);
  next_heartbeat_ = now + heartbeat_interval_;
  takes_stalls_ = welcome.takes_stalls;
  takes_leaving_ = welcome.takes_leaving;
  takes_recoveries_ = welcome.takes_recoveries;
  word_ = std::max(word_, to_word(welcome.epoch, false));
  return true;
}

// A sign of life; and a driver of many workers wants to hear of each more seldom.
void SessionCore::on_heartbeat_ack(const wire::HeartbeatAckT& ack, Time now) {
  if (ack.interval_ms == 0) return;
  const int64_t timeout_ms = heartbeat_timeout_ / milliseconds(1);
  if (ack.interval_ms < 0 || ack.interval_ms >= timeout_ms) {
    return log(HVD_LOG_WARNING, fmt::format("dropped a heartbeat interval of {} ms: expected less than {} ms",
                                            ack.interval_ms, timeout_ms));
  }
  heartbeat_interval_ = milliseconds(ack.interval_ms);
  next_heartbeat_ = std::min(next_heartbeat_, now + heartbeat_interval_);
}

void SessionCore::on_refused(const wire::RefusedT& refused, bool final) {
  const std::string reason = refused.reason.empty() ? wire::EnumNameRefusal(refused.code) : refused.reason;
  Status why(to_status(refused.code),
             fmt::format("the driver at {} refused worker {}: {}", config_.driver, config_.worker, reason));
  if (!final && phase_ == Phase::kWelcomed && refused.code == wire::Refusal::Stale) {
    // One message of ours came too late. The session goes on, unless the driver hangs up.
    log(HVD_LOG_WARNING, why.message);
    refusal_ = std::move(why);
    return;
  }
  const bool left = refused.left;
  end(std::move(why));
  if (!left) return;
  for (Action& action : actions_) {
    if (End* ended = std::get_if<End>(&action)) ended->left = true;
  }
}

void SessionCore::on_assignment(uint64_t generation, const wire::AssignmentT& received, Time now) {
  if (generation <= generation_) {  // contract 11
    log(HVD_LOG_WARNING,
        fmt::format("dropped assignment of generation {}: {} is assigned", generation, generation_));
    return;
  }
  if (received.epoch > kLargestEpoch) return broken(fmt::format("epoch {}", received.epoch));
  Assignment assignment;
  try {
    assignment =
        to_assignment(generation, received, config_.worker, roster_.generation != 0 ? &roster_ : nullptr);
  } catch (const Error& e) { return broken(e.what()); }
  // A thread still at work in the former generation must not wait in it for ever (contract 3).
  if (taken_ && !left_ && !lost_ && generation_ != 0) {
    AbortInfo info;
    info.generation = generation_;
    info.reason = fmt::format("replaced by generation {}", generation);
    info.received = now;
    lose_generation(std::move(info));
  }
  fail_gets(generation, "a newer generation was formed");
  generation_ = generation;
  taken_ = left_ = lost_ = synced_ = false;
  held_.reset();
  refusal_.reset();
  failure_.reset();
  set_.clear();
  rank_ = assignment.rank;
  size_ = static_cast<int32_t>(assignment.members.size());
  assigned_epoch_ = assignment.epoch;
  if (assignment.epoch >= word_ / 2) word_ = to_word(assignment.epoch, false);
  roster_ = {generation, assignment.members};
  actions_.emplace_back(Deliver{std::move(assignment)});
}

void SessionCore::on_abort(uint64_t generation, const wire::AbortT& abort, Time now) {
  if (!is_live(generation)) {  // contract 11
    log(HVD_LOG_INFO, fmt::format("dropped abort of generation {}: {} is {}", generation, generation_,
                                  lost_ ? "lost already" : "the current one"));
    return;
  }
  AbortInfo info;
  info.generation = generation;
  info.reason = abort.reason;
  info.rank = abort.rank;
  info.silence = Duration(std::max<int64_t>(abort.silence_ns, 0));
  info.received = now;
  lose_generation(std::move(info));
}

void SessionCore::lose_generation(AbortInfo info) {
  lost_ = true;
  fail_gets(info.generation + 1, info.reason);
  if (taken_) {
    actions_.emplace_back(NotifyAbort{std::move(info)});
  } else {
    held_ = std::move(info);
  }
}

void SessionCore::on_hosts_updated(const wire::HostsUpdatedT& received) {
  if (received.epoch > kLargestEpoch) return broken(fmt::format("epoch {}", received.epoch));
  const uint64_t word = to_word(received.epoch, received.interrupt);
  if (received.epoch <= assigned_epoch_ || word <= word_) {
    log(HVD_LOG_DEBUG,
        fmt::format("dropped update of hosts, epoch {}: {} is known", received.epoch, word_ / 2));
    return;
  }
  word_ = word;
  HostsUpdate update;
  update.epoch = received.epoch;
  update.interrupt = received.interrupt;
  update.added = received.added;
  update.removed = received.removed;
  actions_.emplace_back(NotifyHosts{std::move(update)});
}

SessionCore::Actions SessionCore::channel_closed(const Status& why, Time now) {
  if (phase_ == Phase::kEnded || !linked_) return take();
  if (refusal_) {
    end(*refusal_);
  } else if (phase_ == Phase::kWelcomed && outlives_driver()) {
    linked_ = false;
    miss(now, why.message, now);
  } else {
    end(Status(HVD_DRIVER_LOST, fmt::format("the driver at {} is lost: {}", config_.driver, why.message)));
  }
  return take();
}

SessionCore::Actions SessionCore::tick(Time now) {
  if (phase_ == Phase::kHello && now >= hello_deadline_) {
    end(Status(HVD_TIMEOUT,
               fmt::format("the driver at {} accepted the connection but has not answered hello within "
                           "{} s",
                           config_.driver, seconds_text(now - last_received_))));
  }
  if (phase_ != Phase::kWelcomed) return take();
  if (missed_since_) look_for_driver(now);
  if (!linked_ || phase_ != Phase::kWelcomed) return take();
  if (now >= next_heartbeat_) { heartbeat(now); }
  look_for_silence(now);
  return take();
}

void SessionCore::heartbeat(Time now) {
  wire::HeartbeatT heartbeat;
  heartbeat.revision = revision_;
  heartbeat.epoch = word_ / 2;
  heartbeat.progress = progress();
  heartbeat.sent_ns = now.time_since_epoch().count();
  send(generation_, std::move(heartbeat));
  next_heartbeat_ = now + heartbeat_interval_;
}

// A driver that is dead closes its connection. One that is silent on an open one is held up, and training
// needs nothing of it for now: the commits that would go with its workers are worth some patience (contract
// 19).
void SessionCore::look_for_silence(Time now) {
  const Duration silence = now - last_received_, patience = driver_patience();
  if (silence < heartbeat_timeout_) {
    suspected_.reset();
    silence_told_ = false;
    return;
  }
  if (!std::exchange(silence_told_, true) && patience > heartbeat_timeout_) {
    log(HVD_LOG_WARNING,
        fmt::format(
            "the driver at {} has been silent for {} s: this worker goes on without it for up to {} s "
            "(driver_timeout)",
            config_.driver, seconds_text(silence), seconds_text(patience)));
  }
  // Not at the first look: perhaps it was this process that was stopped, and the driver's word waits in the
  // socket.
  if (silence < patience && !missed_since_ && outlives_driver() &&
      silence >= heartbeat_timeout_ + std::min(heartbeat_interval_, (patience - heartbeat_timeout_) / 4)) {
    miss(last_received_, fmt::format("silent for {} s", seconds_text(silence)), now);
  }
  if (silence < patience) return;
  if (!suspected_ || now >= *suspected_ + patience / 2) {
    // Perhaps this process was stopped, not the driver. What has come meanwhile waits in the socket and
    // tells the truth: it is read before the driver is judged. The same if this verdict comes much too late.
    suspected_ = now + std::min(heartbeat_interval_, patience / 4);
  } else if (now >= *suspected_) {
    end(Status(
        HVD_DRIVER_LOST,
        fmt::format(
            "the driver at {} is lost: silent for {} s though its connection is open (driver_timeout is "
            "{} s)",
            config_.driver, seconds_text(silence), seconds_text(patience))));
  }
}

Duration SessionCore::driver_patience() const { return std::max(config_.driver_timeout, heartbeat_timeout_); }

std::optional<Time> SessionCore::next_tick() const {
  if (phase_ == Phase::kHello) return hello_deadline_;
  if (phase_ != Phase::kWelcomed) return std::nullopt;
  if (!linked_) return next_look();
  const Time silent = last_received_ + (silence_told_ ? driver_patience() : heartbeat_timeout_);
  const Time next = std::min(next_heartbeat_, suspected_ ? *suspected_ : silent);
  const std::optional<Time> look = next_look();
  return look ? std::min(next, *look) : next;
}

}  // namespace hvd::session
