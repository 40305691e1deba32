// The simulated workers: what passes between them and their driver, and what they do meanwhile.
#include <fmt/format.h>

#include <algorithm>

#include "membership/takeover_simulator.h"

namespace hvd::membership::test {

bool TakeoverSimulator::move(Process& p) {
  const int32_t what = random_.below(3);
  if (has_older(p) && !p.cut) {
    if (!shared_ && !p.up.empty() && random_.chance(60)) return as_older([&] { return deliver_up(p); });
    return deliver_down(p) || step(p);
  }
  if (what == 0 && deliver_up(p)) return true;
  if (what <= 1 && deliver_down(p)) return true;
  return step(p) || connect(p) || deliver_up(p) || deliver_down(p);
}

bool TakeoverSimulator::connect(Process& p) {
  if (p.where == Where::kGone || p.term == term_ || (has_older(p) && !p.cut)) return false;
  p.term = p.newest_term = term_;
  p.cut = false;
  p.up.clear();
  p.down.clear();
  if (!driver_->expects(p.id) && !driver_->may_come_back() &&
      p.where != Where::kDone) {  // as the server's admission does
    note(fmt::format("worker {} is refused: not expected", p.id));
    require(!only_drivers_die_, "contract 14: a worker was refused though nothing but drivers died");
    die(p, false);
    return true;
  }
  note(fmt::format("worker {} connects", p.id));
  BackEvent back;
  back.generation = p.instance.first;
  back.rank = p.rank;
  back.size = p.size;
  back.synced = p.synced;
  back.has_state = p.ever_synced;
  back.left = p.left;
  back.lost = p.lost;
  back.interrupt = p.interrupt && p.epoch > p.assigned_epoch;
  back.epoch = p.epoch;
  back.revision = p.revision;
  back.suspect = p.failure.value_or(-1);
  back.closed = !older_ || random_.chance(50);
  back.slot_host = p.host;
  back.slot = p.slot;
  if (p.last_ready) back.last = *p.last_ready;
  p.up.push_back({ToDriver::kBack, p.instance.first, back});
  if (p.left && p.last_ready) p.up.push_back({ToDriver::kReady, 0, {}, *p.last_ready});
  if (p.failure && !p.left) p.up.push_back({ToDriver::kFailedLink, p.instance.first, {}, {}, 0, *p.failure});
  if (p.where == Where::kDone) p.up.push_back({ToDriver::kDone, p.instance.first});
  return true;
}

bool TakeoverSimulator::deliver_up(Process& p) {
  if (p.up.empty() || p.where == Where::kGone || p.term != term_) return false;
  const ToDriver m = std::move(p.up.front());
  p.up.pop_front();
  const Time t = driver_time();
  switch (m.kind) {
    case ToDriver::kBack: {
      const bool known = driver_->expects(p.id);
      note(fmt::format("driver: worker {} back, generation {}, rank {}{}", p.id, m.back.generation,
                       m.back.rank, m.back.left ? ", left it" : ""));
      take(driver_->worker_back(p.id, m.back, t));
      p.forgotten = !driver_->expects(p.id) && p.where != Where::kDone;
      if (!known && driver_ && driver_->expects(p.id)) ++tally_.unheard_of;
      if (active() && !driver_->gathering() && driver_->generation() == before_) ++tally_.same_generation;
      break;
    }
    case ToDriver::kReady:
      note(fmt::format("driver: worker {} ready, left {}, revision {}", p.id, m.ready.left_generation,
                       m.ready.revision));
      take(driver_->worker_ready(p.id, m.ready, t));
      break;
    case ToDriver::kSynced: take(driver_->worker_synced(p.id, m.generation, m.revision, t)); break;
    case ToDriver::kFailedLink:
      note(fmt::format("driver: worker {} lost its link to rank {}", p.id, m.rank));
      take(driver_->worker_failed_link(p.id, m.generation, m.rank, "connection reset", t));
      break;
    case ToDriver::kDone:
      note(fmt::format("driver: worker {} done in {}", p.id, m.generation));
      take(driver_->worker_done(p.id, m.generation, t));
      break;
  }
  return true;
}

bool TakeoverSimulator::deliver_down(Process& p) {
  if (p.down.empty() || p.where == Where::kGone) return false;
  const ToWorker m = p.down.front();
  p.down.pop_front();
  const bool inside =
      p.where == Where::kConnecting || p.where == Where::kTraining || p.where == Where::kReducing;
  switch (m.kind) {
    case ToWorker::kEnd: die(p, true); break;
    case ToWorker::kNotify:
      if (m.epoch > p.epoch) {
        p.epoch = m.epoch;
        p.interrupt = m.interrupt;
      }
      break;
    case ToWorker::kAbort:
      if (p.instance.first != m.instance.first || p.left || p.lost) break;
      p.lost = true;
      if (inside) leave(p);
      break;
    case ToWorker::kAssign: {
      if (p.where == Where::kDone || m.instance.first <= p.instance.first) break;
      require(p.where == Where::kWaiting,
              "contract 1: a place in a new generation for a worker in the old one");
      Generation& g = generations_[m.instance];
      p.instance = m.instance;
      p.size = static_cast<int32_t>(g.members.size());
      p.rank = static_cast<int32_t>(std::find(g.members.begin(), g.members.end(), p.id) - g.members.begin());
      p.left = p.lost = p.synced = p.lost_peer = p.interrupt = false;
      p.failure.reset();
      p.assigned_epoch = m.epoch;
      p.epoch = std::max(p.epoch, m.epoch);
      p.where = Where::kConnecting;
      p.round = 0;
      ++g.entered;
      break;
    }
  }
  return true;
}

/// As the data plane shows: somebody of its generation has ended, or has left it for good.
bool TakeoverSimulator::peer_is_gone(const Process& p) {
  for (const uint64_t id : generations_[p.instance].members) {
    const Process& q = processes_.at(id);
    if (q.where == Where::kGone) return true;
    if (q.instance == p.instance && q.left && q.where != Where::kDone) return true;
  }
  return false;
}

bool TakeoverSimulator::to_be_left(const Generation& g, const Process& p) const {
  return std::any_of(g.members.begin(), g.members.end(), [&](uint64_t id) {
    const Process& q = processes_.at(id);
    return q.instance == p.instance && q.interrupt && q.epoch > q.assigned_epoch;
  });
}

bool TakeoverSimulator::step(Process& p) {
  Generation& g = generations_[p.instance];
  switch (p.where) {
    case Where::kStarting:
      if (!is_linked(p)) return false;  // its first hello
      say_ready(p);
      return true;
    case Where::kConnecting:
      if (g.entered < g.members.size()) break;
      require(!p.ever_synced || p.revision <= g.revision,
              "contract 5: a commit was lost while its holder lives");
      if (!g.trained) {
        g.trained = true;
        for (const auto& [formed, other] : generations_) {
          const auto& instance = formed;
          // All who knew of the other one may have been cut off, and the journal lost.
          const bool lives = std::any_of(other.members.begin(), other.members.end(), [&](uint64_t id) {
            const Process& q = processes_.at(id);
            return q.where != Where::kGone && !q.told_end && q.term == term_ && q.instance == instance;
          });
          const bool split =
              instance != p.instance && instance.first == p.instance.first && other.trained && lives;
          tally_.split += split;
          // Two drivers may know nothing of each other and have a part of the workers each:
          // docs/driver-loss.md.
          require(!split || lossy_ || !shared_, "contract 11: two generations of one number were at work");
        }
      }
      p.synced = p.ever_synced = true;
      p.revision = g.revision;
      p.where = Where::kTraining;
      if (is_linked(p)) p.up.push_back({ToDriver::kSynced, p.instance.first, {}, {}, p.revision});
      return true;
    case Where::kTraining:
      if (last_revision_ == UINT64_MAX && calm_ && p.round > 3 && p.round >= g.rounds.size() &&
          !to_be_left(g, p))
        return false;
      ++p.revision;
      if (g.rounds.size() <= p.round) g.rounds.resize(p.round + 1);
      ++g.rounds[p.round].contributions;
      g.rounds[p.round].interrupt |= p.interrupt && p.epoch > p.assigned_epoch;
      p.where = Where::kReducing;
      return true;
    case Where::kReducing:
      if (g.rounds[p.round].contributions < g.members.size()) break;
      if (g.rounds[p.round].interrupt) {
        leave(p);
      } else if (p.revision >= last_revision_) {
        p.where = Where::kDone;
        any_done_ = true;
        if (is_linked(p)) p.up.push_back({ToDriver::kDone, p.instance.first});
      } else {
        ++p.round;
        p.where = Where::kTraining;
      }
      return true;
    default: return false;
  }
  // It waits for others.
  if (!peer_is_gone(p) || !random_.chance(50)) return false;
  note(fmt::format("worker {} sees that a peer is gone", p.id));
  p.lost_peer = true;
  // Which link breaks first is chance; some belong to members that live and have left.
  std::vector<int32_t> broken;
  for (size_t i = 0; i < g.members.size(); ++i) {
    const Process& q = processes_.at(g.members[i]);
    if (q.where == Where::kGone || (q.instance == p.instance && q.left))
      broken.push_back(static_cast<int32_t>(i));
  }
  const int32_t rank = broken.empty() ? -1 : broken[static_cast<size_t>(random_.below(broken.size()))];
  p.failure = rank;
  if (is_linked(p)) p.up.push_back({ToDriver::kFailedLink, p.instance.first, {}, {}, 0, rank});
  leave(p);
  return true;
}

void TakeoverSimulator::say_ready(Process& p) {
  ReadyEvent ready{p.instance.first, p.ever_synced, p.revision, Digest{p.revision, 0}, p.host};
  ready.lost_peer = p.lost_peer;
  p.left = true;
  p.last_ready = ready;
  p.where = Where::kWaiting;
  if (is_linked(p)) p.up.push_back({ToDriver::kReady, 0, {}, ready});
}

void TakeoverSimulator::leave(Process& p) {
  note(fmt::format("worker {} leaves generation {}", p.id, p.instance.first));
  say_ready(p);
}

void TakeoverSimulator::die(Process& p, bool driver_sees) {
  note(fmt::format("worker {} ends", p.id));
  p.where = Where::kGone;
  p.up.clear();
  p.down.clear();
  if (driver_sees && driver_ && driver_->expects(p.id))
    take(driver_->worker_lost(p.id, LossKind::kConnectionClosed, "", driver_time()));
}

}  // namespace hvd::membership::test
