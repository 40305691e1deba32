// The engine's queue: what is done without the lock, in order, by one thread at a time.
#include "collective/engine.h"

namespace hvd::collective {

namespace {
constexpr size_t kSpare = 16;
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
    Work& work = queue_.emplace_back();
    switch (action.type) {
      case Type::kOutcome: work.type = Work::Type::kOutcome; break;
      case Type::kGrant: break;
      case Type::kStall: work.type = Work::Type::kStall; break;
      case Type::kLog: work.type = Work::Type::kLog; break;
      case Type::kStallReport: work.type = Work::Type::kStallReport; break;
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
    lock.unlock();
    perform(work);
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
        if (work.rank == config_.rank) {
          execute(work);
        } else {
          bytes = encoder_.encode(
              OutcomeMessage{work.ticket, std::move(work.more), std::move(work.outcome), work.proposal});
        }
        break;
      case Work::Type::kStall:
        bytes = encoder_.encode(StallMessage{work.ticket, std::move(work.missing)});
        break;
      case Work::Type::kResend: bytes = encoder_.encode(ResendMessage{work.ticket}); break;
      case Work::Type::kLog: log_.warning("{}", work.line); break;
      case Work::Type::kStallReport:
        log_.warning("{}", work.line);
        if (config_.stalled) config_.stalled(work.line, work.missing, work.waited);
        break;
    }
    if (bytes.empty()) return;
    Status status = carrier_.send_message(work.rank, bytes);
    if (!status.ok()) unsent(work.rank, std::move(status));
  } catch (const std::exception& error) {
    try {
      break_generation(Status(HVD_INTERNAL, error.what()), true);
    } catch (...) {  // no memory even for that: whoever waits still has the deadline of the wait
    }
  }
}

/// Without this message some rank would wait in vain.
void Engine::unsent(int32_t rank, Status status) {
  const bool lost = status.code == HVD_PEER_LOST;
  if (status.rank < 0) status.rank = rank;
  break_generation(std::move(status), !lost);
}

}  // namespace hvd::collective
