// The simulated workers: what they are told, what they do, and how they end.
#include <fmt/format.h>

#include <algorithm>

#include "membership/simulator.h"

namespace hvd::membership::test {

bool Simulator::deliver_to_worker(Process& p) {
  if (p.inbox.empty() || p.hung || p.where == Where::kGone) return false;
  const ToWorker m = p.inbox.front();
  p.inbox.pop_front();
  switch (m.kind) {
    case ToWorker::kEnd:
      note(fmt::format("worker {} is told to end", p.id));
      die(p, LossKind::kExited);
      break;
    case ToWorker::kNotify: p.word = std::max(p.word, m.word); break;
    case ToWorker::kAbort:
      if (p.generation == m.generation && (p.where == Where::kConnecting || p.where == Where::kTraining ||
                                           p.where == Where::kReducing || p.where == Where::kBlocked)) {
        leave(p);
      }
      break;
    case ToWorker::kAssign:
      if (p.where == Where::kDone) break;
      require(p.where == Where::kWaiting,
              "contract 1: a place in a new generation for a worker still in the old one");
      p.generation = m.generation;
      p.word = std::max(p.word, m.word);
      p.where = Where::kConnecting;
      p.round = 0;
      ++generations_[m.generation].entered;
      break;
  }
  return true;
}

bool Simulator::step(Process& p) {
  if (p.hung) return false;
  Generation& g = generations_[p.generation];
  switch (p.where) {
    case Where::kStarting: say_ready(p); return true;
    case Where::kConnecting:
      if (g.entered < g.members.size()) return false;
      require(!p.has_state || p.revision <= g.revision,
              "contract 5: a commit was lost while one who held it lives");
      p.has_state = true;
      p.revision = g.revision;
      p.where = Where::kTraining;
      p.outbox.push_back({ToDriver::kSynced, p.generation, {}, p.revision});
      return true;
    case Where::kTraining:
      ++p.revision;  // commit, then the agreement about hosts
      if (g.rounds.size() <= p.round) g.rounds.resize(p.round + 1);
      ++g.rounds[p.round].contributions;
      g.rounds[p.round].word = std::max(g.rounds[p.round].word, p.word);
      p.where = Where::kReducing;
      return true;
    case Where::kReducing:
      if (g.rounds[p.round].contributions < g.members.size()) return false;
      if (g.rounds[p.round].word % 2 == 1) {  // contract 1: everybody's maximum, so everybody's decision
        leave(p);
      } else if (p.revision >= last_revision_) {
        p.where = Where::kDone;
        p.outbox.push_back({ToDriver::kDone, p.generation});
      } else {
        ++p.round;
        p.where = Where::kTraining;
      }
      return true;
    default: return false;
  }
}

void Simulator::say_ready(Process& p) {
  p.last_ready = ReadyEvent{p.generation, p.has_state, p.revision, Digest{p.revision, 0}, p.host};
  p.last_ready.feeds = all_feed_ || p.id % 2 == 0;
  p.last_ready.settings = {{"flavour", std::to_string(p.flavour)}};
  p.where = Where::kWaiting;
  p.outbox.push_back({ToDriver::kReady, 0, p.last_ready});
}

void Simulator::leave(Process& p) {
  note(fmt::format("worker {} leaves generation {}", p.id, p.generation));
  say_ready(p);
}

void Simulator::die(Process& p, LossKind kind) {
  note(fmt::format("worker {} ends", p.id));
  p.hung = false;
  if (p.where == Where::kStarting && random_.chance(50)) kind = LossKind::kStartFailed;
  // Its last messages may never arrive.
  for (size_t lost = static_cast<size_t>(random_.below(p.outbox.size() + 1)); lost > 0; --lost)
    p.outbox.pop_back();
  p.outbox.push_back({ToDriver::kLost, 0, {}, 0, -1, kind});
  p.where = Where::kGone;
}

}  // namespace hvd::membership::test
