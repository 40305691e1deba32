// A session outlives its driver: it misses it, dials until there is one again, and tells that one where the
// worker stands. Training needs no driver until the generation is lost or hosts change.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "session/session_core.h"
#include "wire/member.h"

namespace hvd::session {
namespace {

constexpr Duration kLongestDial = std::chrono::seconds(5);  // then the names are looked up anew
constexpr Duration kShortPause = std::chrono::milliseconds(10);
constexpr Duration kLongPause = std::chrono::seconds(1);  // after an answer that was none of our driver's
constexpr Duration kAnswer = std::chrono::seconds(5);     // to hello
constexpr Duration kMuchTooLate = std::chrono::seconds(1);

}  // namespace

void SessionCore::miss(Time since, const std::string& why, Time now) {
  if (!missed_since_) {
    missed_since_ = since;
    last_chance_.reset();
    missed_why_ = why;
    log(HVD_LOG_WARNING,
        fmt::format(
            "the driver at {} is lost ({}): this worker goes on, and waits up to {} s for it to come back "
            "(driver_timeout)",
            config_.driver, why, seconds_text(config_.driver_timeout)));
    actions_.emplace_back(NotifyDriver{{true, term_, why}});
  } else if (!linked_) {
    missed_why_ = why;  // silent first, and closed now
  }
  if (dialling_ == Dialling::kNo) dial(now);
}

/// It has spoken on the first connection: it was only held up.
void SessionCore::found(Time now) {
  log(HVD_LOG_INFO, fmt::format("the driver at {} is heard again after {} s", config_.driver,
                                seconds_text(now - *missed_since_)));
  missed_since_.reset();
  if (std::exchange(dialling_, Dialling::kNo) != Dialling::kNo) actions_.emplace_back(StopDial{});
  actions_.emplace_back(NotifyDriver{{false, term_, "heard again"}});
}

void SessionCore::dial(Time now) {
  dialling_ = Dialling::kUnderWay;
  const Duration left = gives_up_at() - now;
  actions_.emplace_back(Dial{std::clamp<Duration>(left, kShortPause, kLongestDial)});
}

void SessionCore::drop_candidate(Time again) {
  dialling_ = Dialling::kPause;
  look_at_ = again;
  actions_.emplace_back(StopDial{});
}

Time SessionCore::gives_up_at() const {
  return last_chance_ ? *last_chance_ : *missed_since_ + config_.driver_timeout;
}

void SessionCore::look_for_driver(Time now) {
  // If this comes much too late it was this process that was stopped, and nobody was dialled meanwhile.
  if (!linked_ && now >= gives_up_at() + kMuchTooLate)
    last_chance_ = now + std::min(config_.driver_timeout, kLongestDial + kAnswer);
  if (!linked_ && now >= gives_up_at()) {
    return end(
        Status(HVD_DRIVER_LOST,
               fmt::format("the driver at {} is lost: {}; no driver came back within {} s (driver_timeout)",
                           config_.driver, missed_why_, seconds_text(config_.driver_timeout))));
  }
  if (dialling_ == Dialling::kPause && now >= look_at_) dial(now);
  if (dialling_ == Dialling::kHello && now >= look_at_) drop_candidate(now + kShortPause);
}

std::optional<Time> SessionCore::next_look() const {
  if (!missed_since_) return std::nullopt;
  const Time end = gives_up_at();
  const bool waiting = dialling_ == Dialling::kPause || dialling_ == Dialling::kHello;
  if (linked_) return waiting ? std::optional(look_at_) : std::nullopt;
  return waiting ? std::min(end, look_at_) : end;
}

SessionCore::Actions SessionCore::dialled(Time now) {
  if (phase_ != Phase::kWelcomed || dialling_ != Dialling::kUnderWay) return take();
  dialling_ = Dialling::kHello;
  look_at_ = now + kAnswer;
  candidate_ = Link{};
  wire::EnvelopeT e = wire::envelope(config_.job, config_.worker, 0, hello());
  e.sequence = ++candidate_.sent;
  e.term = term_;
  e.term_proof = term_proof_;
  actions_.emplace_back(Send{std::move(e), true});
  return take();
}

SessionCore::Actions SessionCore::dial_failed(const Status& why, Time now) {
  if (phase_ != Phase::kWelcomed || dialling_ != Dialling::kUnderWay) return take();
  dialling_ = Dialling::kPause;
  // Refused: somebody else listens there now, and may be gone in a moment.
  look_at_ = now + (why.code == HVD_REFUSED ? kLongPause : kShortPause);
  return take();
}

SessionCore::Actions SessionCore::candidate_closed(const Status&, Time now) {
  if (phase_ == Phase::kWelcomed && dialling_ == Dialling::kHello) drop_candidate(now + kLongPause / 4);
  return take();
}

SessionCore::Actions SessionCore::candidate_frame(std::span<const uint8_t> bytes, Time now) {
  if (phase_ != Phase::kWelcomed || dialling_ != Dialling::kHello) return take();
  try {
    return candidate_received(wire::decode(bytes), now);
  } catch (const Error& e) {
    log(HVD_LOG_WARNING, fmt::format("whoever answers at {} is no driver: {}", config_.driver, e.what()));
    drop_candidate(now + kLongPause);
  }
  return take();
}

SessionCore::Actions SessionCore::candidate_received(const wire::EnvelopeT& message, Time now) {
  if (phase_ != Phase::kWelcomed || dialling_ != Dialling::kHello) return take();
  const wire::BodyUnion& body = message.body;
  const bool ours = message.job == config_.job && message.worker == config_.worker;
  if (message.sequence <= candidate_.seen) return take();
  candidate_.seen = message.sequence;
  if (const wire::RefusedT* refused = body.AsRefused()) {
    const bool later = !ours || refused->code == wire::Refusal::Busy ||
                       refused->code == wire::Refusal::Superseded || refused->code == wire::Refusal::Job;
    if (!later) {
      on_refused(*refused, true);
      return take();
    }
    log(HVD_LOG_INFO, fmt::format("the driver at {} can't take worker {} back now: {}", config_.driver,
                                  config_.worker, refused->reason));
    drop_candidate(now + kLongPause);
  } else if (!ours) {  // NOLINT(bugprone-branch-clone): as with a message that is none of these
    drop_candidate(now + kLongPause);
  } else if (const wire::JobEndedT* ended = body.AsJobEnded()) {
    end(Status(ended->success ? HVD_OK : HVD_JOB_FAILED, ended->reason));
  } else if (const wire::WelcomeT* welcome = body.AsWelcome()) {
    if (welcome->term >= term_) {
      term_proof_ = message.term_proof;
      adopt(*welcome, now);
    } else {
      // contract 14: of two drivers the older one is refused. It has read our term, and ends.
      log(HVD_LOG_WARNING, fmt::format("refused the driver at {}: its term is {}, the newest is {}",
                                       config_.driver, welcome->term, term_));
      drop_candidate(now + kLongPause);
    }
  } else {
    drop_candidate(now + kLongPause);
  }
  return take();
}

void SessionCore::adopt(const wire::WelcomeT& welcome, Time now) {
  if (!take_welcome(welcome, now)) return;
  const uint64_t before = std::exchange(term_, welcome.term);
  if (linked_) {
    // An older driver that wakes up reads this before it sees that the connection is closed.
    send(generation_, wire::HeartbeatT{});
    std::get<Send>(actions_.back()).envelope.term_proof = term_proof_;
  }
  actions_.emplace_back(Adopt{});
  link_ = candidate_;
  const bool closed = !std::exchange(linked_, true);
  last_received_ = now;
  suspected_.reset();
  silence_told_ = false;
  refusal_.reset();
  dialling_ = Dialling::kNo;
  const Duration without = now - *missed_since_;
  missed_since_.reset();
  resume(closed);
  say_leaving(now);
  std::string text = term_ == before ? fmt::format("connected again after {} s", seconds_text(without))
                                     : fmt::format("a new driver has taken over after {} s, term {}",
                                                   seconds_text(without), term_);
  log(HVD_LOG_INFO, text);
  actions_.emplace_back(NotifyDriver{{false, term_, std::move(text)}});
}

/// Where the worker stands, and all that it has asked for and not got. `closed`: the driver before closed its
/// connection.
void SessionCore::resume(bool closed) {
  const bool failed = failure_ && failure_->generation == generation_;
  wire::ResumeT where;
  where.closed = closed;
  // If it has left, this alone tells a new driver of a peer's loss.
  if (failed && !failure_->unfit && failure_->rank < size_) where.suspect = std::max(failure_->rank, -1);
  where.rank = rank_;
  where.size = size_;
  where.synced = synced_;
  where.has_state = ever_synced_;
  where.left = left_;
  where.lost = lost_;
  where.epoch = word_ / 2;
  where.interrupt = word_ % 2 == 1 && word_ / 2 > assigned_epoch_;
  where.revision = revision_;
  if (last_ready_) where.ready = std::make_unique<wire::ReadyT>(to_wire(*last_ready_));
  send(generation_, std::move(where));
  if (left_ && last_ready_) send(generation_, to_wire(*last_ready_));
  for (const auto& [key, value] : set_) {
    if (!is_live(generation_)) break;
    wire::KvSetT set;
    set.key = key;
    set.value = value;
    send(generation_, std::move(set));
  }
  for (const PendingGet& pending : gets_) {
    wire::KvGetT get;
    get.key = pending.key;
    send(pending.generation, std::move(get));
  }
  if (failed && !left_) {
    wire::FailureT failure;
    failure.rank = failure_->rank;
    failure.message = failure_->message;
    failure.unfit = failure_->unfit;
    send(generation_, std::move(failure));
  }
  if (done_) {
    wire::DoneT done;
    done.revision = *done_;
    send(generation_, std::move(done));
  }
}

}  // namespace hvd::session
