// Slots of a board: arriving, closing, and what a rank sees of the others.
#include "backend/board.h"

namespace hvd::backend {

Board::State Board::state(uint64_t seen, const Meeting& meeting) {
  if (seen >> 48 != meeting.grant) return State::kClosed;
  const uint64_t open = (seen & 0xffffffffffff) >> 1;
  if (open > meeting.round) return State::kMet;
  return open == meeting.round && (seen & 1) == 0 ? State::kOpen : State::kClosed;
}

void Board::arrive(const Meeting& meeting, uint64_t checks) {
  BoardNote& mine = own(meeting);
  mine.checks.store(checks, std::memory_order_relaxed);
  mine.arrived.store(word(meeting.grant, meeting.round, false), std::memory_order_release);
}

Board::State Board::look(Meeting& meeting) {
  uint64_t seen = of(meeting).load(std::memory_order_acquire);
  if (const State now = state(seen, meeting); now != State::kOpen) return now;
  const uint64_t arrived = word(meeting.grant, meeting.round, false);
  for (; meeting.seen < notes_.size(); ++meeting.seen) {
    if (note(meeting.seen, meeting).arrived.load(std::memory_order_acquire) != arrived) return State::kOpen;
  }
  of(meeting).compare_exchange_strong(seen, word(meeting.grant, meeting.round + 1, false));
  return state(of(meeting).load(std::memory_order_acquire), meeting);
}

Board::State Board::close(Meeting& meeting) {
  uint64_t seen = word(meeting.grant, meeting.round, false);
  if (of(meeting).compare_exchange_strong(seen, word(meeting.grant, meeting.round, true)))
    return State::kClosed;
  return state(seen, meeting);
}

void Board::open(uint32_t slot, uint32_t grant) {
  words_->slots[slot].value.store(word(grant, 1, false), std::memory_order_release);
}

}  // namespace hvd::backend
