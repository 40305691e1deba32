// Events that change no decision. A generation of n workers brings n of each kind, and a decision looks at
// all n: so only those events lead to one that can matter. Whatever is not known to be quiet is not
// (tests/membership/twin.h compares).
#include <algorithm>

#include "membership/impl.h"

namespace hvd::membership {

bool Membership::Impl::somebody_inside() {
  return any_member(&inside_cursor, [](const Worker& w) { return !w.ready; });
}

bool Membership::Impl::somebody_unsynced() {
  return any_member(&unsynced_cursor, [](const Worker& w) { return !w.synced; });
}

bool Membership::Impl::somebody_lives() {
  return any_member(&living_cursor, [](const Worker&) { return true; });
}

/// A member has left the generation, which is being given up already: the next one waits for the others.
bool Membership::Impl::quiet_member_ready() { return phase == Phase::kForming && somebody_inside(); }

/// One more of those that begin is ready, and they are still too few. `worker` was not ready before.
bool Membership::Impl::quiet_beginner_ready(const Worker& worker) {
  if (!initial || worker.own_place || now >= waiting_since + config.start_timeout) return false;
  const int64_t started = std::ssize(workers.living());
  if (started > capacity() + config.spares) return false;
  const int64_t ready = ready_beginners + 1;
  if (ready >= std::min<int64_t>(first_size(), started)) return false;
  if (short_since && ready >= config.min_np) return false;
  ready_beginners = ready;
  return true;
}

/// One more of many: it says nothing about who goes, and spares are started when the last one is at work.
bool Membership::Impl::quiet_synced() {
  if (phase == Phase::kForming) return somebody_inside();
  return anybody_leaves == false && somebody_unsynced();
}

/// The job is finishing already.
bool Membership::Impl::quiet_done() { return done > 1 && (running() || somebody_inside()); }

std::vector<Action> Membership::Impl::take(Time t) {
  now = std::max(now, t);
  const bool rests = std::exchange(quiet, false) && config.rests && !undecided && !gathering &&
                     !may_come_back() && now < decided_until;
  if (phase != Phase::kEnded && !rests) {
    const size_t told = out.size();
    forget_plan();
    advance();
    undecided = out.size() != told;  // what was done may have made room for more
    next = wake();
    forget_plan();
    decided_until = next.value_or(Time::max());
    if (gathering) return std::exchange(out, {});  // each event counts, and many come
    if (const auto change = hosts.next_change(now)) decided_until = std::min(decided_until, *change);
  }
  return std::exchange(out, {});
}

std::optional<Time> Membership::Impl::next_tick() const {
  return phase == Phase::kEnded ? std::nullopt : next;
}

}  // namespace hvd::membership
