// Deadlines of the links' thread: greetings that do not come, peers that are dialed again.
#include <sys/epoll.h>

#include <algorithm>

#include "modules/kit/links.h"

namespace hvdkit {

int Links::next_timer() const {
  Clock::time_point next = Clock::time_point::max();
  for (const auto& [id, c] : young_) {
    if (c->deadline != Clock::time_point{}) next = std::min(next, c->deadline);
  }
  for (const Dial& redial : redials_) next = std::min(next, redial.when);
  if (resting_) next = std::min(next, rested_);
  if (next == Clock::time_point::max()) return -1;
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
  return static_cast<int>(std::clamp(wait, std::chrono::milliseconds(0), kBeat).count());
}

// A peer's silence proves nothing about the time in which this thread did not run, and its words are unread
// yet. `waited`: the milliseconds that this thread meant to wait since it looked last; -1: no deadline was
// there.
void Links::forgive(int waited) {
  const Clock::time_point last = looked_;
  looked_ = Clock::now();
  if (waited < 0 || looked_ - last <= std::chrono::milliseconds(waited) + kPunctual) return;
  const Clock::duration missed = looked_ - last;
  for (const auto& [id, c] : young_) {
    if (c->deadline != Clock::time_point{}) c->deadline += missed;
    if (c->dial.asked != Clock::time_point{}) c->dial.asked += missed;
  }
  for (Dial& redial : redials_) {
    if (redial.asked != Clock::time_point{}) redial.asked += missed;
  }
}

void Links::run_timers() {
  const Clock::time_point now = Clock::now();
  std::vector<ConnectionPtr> late;
  for (const auto& [id, c] : young_) {
    if (c->deadline != Clock::time_point{} && c->deadline <= now) late.push_back(c);
  }
  for (const ConnectionPtr& c : late) {
    if (c->handshake.dials()) {
      lost(c, "did not greet in time");
    } else {
      refused("a connection that did not greet in time was closed");
      forget(c);
    }
  }
  std::vector<Dial> due;
  const auto later =
      std::partition(redials_.begin(), redials_.end(), [&](const Dial& redial) { return redial.when > now; });
  std::move(later, redials_.end(), std::back_inserter(due));
  redials_.erase(later, redials_.end());
  for (const Dial& redial : due) try_dial(redial);
  if (resting_ && rested_ <= now && listener_.get() >= 0) {
    resting_ = false;
    watch(listener_.get(), kListenerId, EPOLLIN, EPOLL_CTL_ADD);
  }
}

}  // namespace hvdkit
