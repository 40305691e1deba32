// The engine's queue: what is done without the lock, in order, by one thread at a time.
#include <fmt/format.h>

#include "collective/engine.h"

namespace hvd::collective {

namespace {
constexpr uint64_t kMostRefused = 1000;  // messages of one rank
}  // namespace

/// Queues what the matcher has decided. Under the lock.
void Engine::collect() {
  matcher_.take(&actions_);
  for (auto& action : actions_) {
    using Type = Matcher::Action::Type;
    if (action.type == Type::kStall && action.rank == config_.rank) continue;  // it knows
    if (action.type == Type::kGrant) {
      board_->open(action.grant.slot, action.grant.number);
      continue;
    }
    if (action.type == Type::kRefused) {
      refused(action.rank, std::move(action.line));
      continue;
    }
    Work& work = queue_.emplace_back();
    switch (action.type) {
      case Type::kOutcome: work.type = Work::Type::kOutcome; break;
      case Type::kStall: work.type = Work::Type::kStall; break;
      case Type::kStallReport: work.type = Work::Type::kStallReport; break;
      case Type::kBreak: work.type = Work::Type::kBreak; break;
      case Type::kGrant:
      case Type::kRefused: break;
    }
    work.rank = action.rank;
    work.ticket = action.ticket;
    work.more = std::move(action.more);
    work.outcome = std::move(action.outcome);
    work.proposal = action.proposal;
    work.missing = std::move(action.missing);
    work.waited = action.waited;
    work.line = std::move(action.line);
  }
  arm(matcher_.wake());
}

/// A message that makes no sense, or comes too late. Its sender must not fill the log; who goes on and on
/// ends the generation, and is named. Under the lock.
void Engine::refused(int32_t source, std::string line) {
  const bool known = source >= 0 && source < size();
  Refusals& of = refusals_[static_cast<size_t>(known ? source : size())];
  if (++of.count == kMostRefused) {
    Work& work = queue_.emplace_back();
    work.type = Work::Type::kBreak;
    work.rank = known ? source : -1;
    work.line = fmt::format("{} messages of {} were refused, the last: {}", kMostRefused,
                            known ? describe(source) : "ranks that do not exist", line);
  } else if (of.lines.pass(now())) {
    Work& work = queue_.emplace_back();
    work.type = Work::Type::kLog;
    const uint64_t before = of.lines.held_back();
    work.line = before == 0 ? std::move(line)
                            : fmt::format("{} ({} such lines before it were held back)", line, before);
  }
}

void Engine::arm(Time when) {
  if (when >= armed_) return;
  armed_ = when;
  if (config_.wake_at) config_.wake_at(when);
}

/// Works the queue off unless another thread is at it already, which then does this one's part too.
void Engine::drain(Lock& lock) {
  if (draining_ || !started_) return;
  draining_ = true;
  while (!queue_.empty() && !awaits_meeting(queue_.front())) {
    Work work = std::move(queue_.front());
    queue_.pop_front();
    if (work.type == Work::Type::kOutcome && work.rank == config_.rank) {
      execute(work, lock);
    } else {
      lock.unlock();
      perform(work);
    }
    lock.lock();
    if (work.message != nullptr && spare_.size() < kSpare) spare_.push_back(std::move(work.message));
  }
  draining_ = false;
  idle_.notify_all();
}

void Engine::perform(Work& work) noexcept {
  try {
    std::span<const uint8_t> bytes;  // of a message to work.rank; none is empty
    switch (work.type) {
      case Work::Type::kMessage: bytes = work.message->bytes(); break;
      case Work::Type::kOutcome:
        bytes = encoder_.encode(
            OutcomeMessage{work.ticket, std::move(work.more), std::move(work.outcome), work.proposal});
        break;
      case Work::Type::kStall:
        bytes = encoder_.encode(StallMessage{work.ticket, std::move(work.missing)});
        break;
      case Work::Type::kResend: bytes = encoder_.encode(ResendMessage{work.ticket}); break;
      case Work::Type::kLog: log_.warning("{}", work.line); break;
      case Work::Type::kBreak: {
        Status why(HVD_PEER_LOST, std::move(work.line));
        break_generation(why.at_rank(work.rank), true);
        break;
      }
      case Work::Type::kStallReport:
        log_.warning("{}", work.line);
        if (config_.stalled) config_.stalled(work.line, work.missing, work.waited);
        break;
    }
    if (bytes.empty()) return;
    Status status = carrier_.send_message(work.rank, bytes);
    if (!status.ok()) unsent(work.rank, std::move(status));
  } catch (const std::exception& error) { stuck(error); }
}

/// Without this message some rank would wait in vain.
void Engine::unsent(int32_t rank, Status status) {
  const bool lost = status.code == HVD_PEER_LOST;
  if (status.rank < 0 && !lost) status.rank = rank;  // a backend that names nobody has nobody to blame
  break_generation(std::move(status), !lost);
}

}  // namespace hvd::collective
