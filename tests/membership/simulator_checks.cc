// Checks of every action that the simulated job's membership takes.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "membership/simulator.h"

namespace hvd::membership::test {

bool Simulator::listed(const Process& p) const {
  return std::any_of(hosts_.begin(), hosts_.end(),
                     [&](const HostSlots& h) { return h.name == p.host && p.slot < h.slots; });
}

bool Simulator::placed(const Process& p) const { return !p.leaves && (p.own_place || listed(p)); }

bool Simulator::drained(const std::string& host, int32_t slot) const {
  return drained_hosts_.contains(host) || drained_slots_.contains({host, slot});
}

int64_t Simulator::most() const { return scaled_ > 0 ? scaled_ : config_.max_np; }

std::vector<uint64_t> Simulator::inside() const {
  std::vector<uint64_t> ids;
  for (uint64_t id : generations_.back().members) {
    const Process& p = processes_[id - 1];
    if (p.expected && p.member && !p.ready) ids.push_back(id);
  }
  return ids;
}

/// That of the members, or of most that may become some.
int32_t Simulator::flavour_of_job() const {
  int64_t sum = 0;
  for (const Process& p : processes_) {
    if (p.expected && p.member) return p.flavour;
    if (p.expected) sum += p.flavour == 1 ? 1 : -1;
  }
  return sum > 0 ? 1 : 0;
}

/// contract 16: it is no member, and somebody who may be in the next generation has another flavour.
bool Simulator::is_misfit(const Process& p) const {
  return !p.member && std::any_of(processes_.begin(), processes_.end(),
                                  [&](const Process& q) { return q.expected && q.flavour != p.flavour; });
}

void Simulator::apply(std::vector<Action> actions) {
  saw_abort_ = saw_notify_ = just_finished_ = false;
  if (!driver_->difference().empty()) {
    note(driver_->difference());
    require(false, "an event that changed no decision changed one");
  }
  for (const Action& action : actions) {
    const bool refusal = std::holds_alternative<Refuse>(action);
    if (finished_ && !just_finished_) require(refusal, "contract 8: an ended job still acts");
    std::visit([&](const auto& a) { apply(a); }, action);
    if (broken_) return;
  }
  check_state();
}

void Simulator::apply(const StartWorker& a) {
  note(fmt::format("  start worker {} on {}:{}", a.worker, a.host, a.slot));
  require(a.worker == processes_.size() + 1, "worker ids grow by one from 1");
  Process p;
  p.id = a.worker;
  p.host = a.host;
  p.slot = a.slot;
  p.started = now_;
  p.flavour = !all_fit_ && random_.chance(6) ? 1 - flavour_of_job() : flavour_of_job();
  require(placed(p), "a worker was started in a slot that is not there");
  require(!drained(p.host, p.slot), "contract 15: a drained slot got a worker");
  for (const Process& q : processes_) {
    require(!(q.expected && q.host == a.host && q.slot == a.slot), "two living workers in one slot");
  }
  require(!any_done_, "a worker was started though the job is finishing");
  processes_.push_back(std::move(p));
  require(driver_->expects(a.worker), "a started worker is not expected");
}

void Simulator::apply(const StopWorker& a) {
  note(fmt::format("  stop worker {}: {}", a.worker, a.reason));
  Process& p = at(a.worker);
  require(p.expected, "a worker was stopped that is not there any more");
  require(!a.reason.empty(), "a worker was stopped without a reason");
  // Only a worker that left its generation may be stopped, or one that kept the others waiting too long.
  const bool late = a.reason.find("within") != std::string::npos;
  const bool unfit = a.reason.starts_with("does not fit");
  require(!unfit || a.worker == unfit_ || is_misfit(p), "contract 16: the wrong worker was sent away");
  if (unfit && a.worker == unfit_) {
    unfit_ = 0;
    ++tally_.unfit;
  } else if (unfit) {
    ++tally_.misfits;
  }
  require(!p.member || p.ready || late || unfit || finished_,
          "contract 1: a member was stopped inside its generation");
  if (late) ++tally_.late_ends;
  if (a.left) ++(p.drained ? tally_.drained : tally_.left);
  require(!a.left || p.leaves || scaled_ > 0, "contract 15: a worker left that nobody wanted to leave");
  const bool unconnected = a.reason.starts_with("the generation could not be connected");
  require(!p.leaves || late || unfit || unconnected || finished_ || a.left,
          "contract 15: a worker that leaves was removed");
  if (a.reason.starts_with("had not left within")) {
    ++tally_.left_late;
    require(p.leaves && now_ >= p.leaves_by, "contract 15: a worker was lost before its deadline");
  }
  if (p.member && late) aborted_ = true;
  p.expected = false;
  p.inbox.push_back({ToWorker::kEnd});
}

void Simulator::apply(const Assign& a) {
  if (tracing_) {
    std::string line = fmt::format("  generation {}, epoch {}, root {}:", a.generation, a.epoch, a.root);
    for (const Member& m : a.members()) line += fmt::format(" {}", m.worker);
    note(line);
  }
  ++tally_.generations;
  require(a.generation == generations_.size(), "contract 11: generations are numbered one after another");
  require(!a.members().empty(), "an empty generation");
  require(a.epoch * 2 >= newest_word_, "contract 1: an old interrupt reaches into the new generation");
  check_assign_order(a);
  if (broken_) return;

  // contract 5: over those that really live, not only over those that were taken in.
  uint64_t best = 0;
  bool any_state = false;
  for (const Process& p : processes_) {
    if (!p.expected || !p.member || !p.said_state) continue;
    any_state = true;
    best = std::max(best, p.heard.revision);
  }
  const Member& root = a.members()[static_cast<size_t>(a.root)];
  if (any_state) {
    require(root.has_state && root.revision >= best, "contract 5: the newest commit is not the root's");
  }
  if (state_exists_ && !root.has_state) {
    // To begin again is right only if the last generation began without state too, and never got as far as
    // one common commit.
    require(generations_.back().fresh, "contract 8: a generation without state, though there was some");
    for (const Round& r : generations_.back().rounds) {
      require(r.contributions < generations_.back().members.size(),
              "contract 8: a generation without state, though there was some");
    }
    state_exists_ = false;
    ++tally_.fresh_starts;
  }
  require(driver_->size() == static_cast<int32_t>(a.members().size()), "size is not the number of members");

  Generation g;
  std::set<uint64_t> in;
  int32_t homeless = 0, leavers = 0, spares = 0, unfed = 0;
  for (const Member& m : a.members()) {
    in.insert(m.worker);
    g.members.push_back(m.worker);
    const Process& p = at(m.worker);
    spares += p.waits ? 1 : 0;
    if (!p.member && p.fed) ++tally_.joined_fed;
    unfed += held(p) ? 1 : 0;
    if (!placed(p)) ++(p.leaves && (p.own_place || listed(p)) ? leavers : homeless);
    require(!p.leaves || now_ < p.leaves_by, "contract 15: a member past its deadline");
    require(at(m.worker).flavour == at(a.members()[0].worker).flavour,
            "contract 16: members that do not fit each other");
  }
  require(in.size() == a.members().size(), "a worker has two ranks");
  const auto size = static_cast<int32_t>(a.members().size());
  require(unfed == 0 || refused_to_feed_ || size - unfed - homeless - leavers < config_.min_np,
          "a worker joined before it was fed, and was not needed");
  tally_.joined_unfed += static_cast<uint64_t>(unfed);
  if (!any_done_) {
    require(homeless <= 1, "contract 2: removed workers were taken into the new generation");
    // A worker that only hands its state over comes on top; so does one whose removal is undone meanwhile.
    const bool leaver_hands_over = leavers > 0 && size - homeless - (leavers - 1) > config_.min_np;
    if (homeless == 1 || leaver_hands_over) ++tally_.hand_overs;
    require(size - homeless >= config_.min_np, "fewer than the minimum");
    // Those that leave are kept for the sake of the minimum alone.
    require(leavers == 0 || size - homeless - leavers < config_.min_np || leaver_hands_over,
            "contract 15: a worker that leaves was taken into the new generation");
    if (leaver_hands_over) {
      require(leavers == 1 && homeless == 0, "contract 15: more than one worker that leaves hands over");
    }
    if (most() > 0) require(size <= most() + 1, "more than the maximum");
    if (most() > 0 && size > most()) {
      // Only the one holder of the newest commit may stand above the maximum.
      const auto holders = std::count_if(a.members().begin(), a.members().end(), [&](const Member& m) {
        return m.has_state && m.revision >= root.revision;
      });
      require(holders == 1 && state_exists_, "more than the maximum without a hand-over");
    }
  }
  require(spares == a.spares, "the number of spares among the members is wrong");
  tally_.spares_used += static_cast<uint64_t>(spares);
  g.revision = root.revision;
  g.fresh = !root.has_state;
  for (uint64_t id : in) {
    Process& p = at(id);
    p.member = true;
    p.ready = p.synced = p.waits = false;
    p.inbox.push_back({ToWorker::kAssign, a.generation, a.epoch * 2});
  }
  for (Process& p : processes_) {
    if (p.expected && p.member && !in.contains(p.id))
      continue;  // told to stop next; apply(StopWorker) sees it
    p.member = in.contains(p.id);
  }
  for (size_t i = 0; i < a.members().size(); ++i) at(a.members()[i].worker).rank = static_cast<int32_t>(i);
  generations_.push_back(std::move(g));
  newest_epoch_ = std::max(newest_epoch_, a.epoch);
  told_interrupt_ = aborted_ = false;
}

void Simulator::check_assign_order(const Assign& a) {
  std::map<std::string, int32_t> on_host;
  const bool any_state =
      std::any_of(a.members().begin(), a.members().end(), [](const Member& m) { return m.has_state; });
  require(!any_state || a.members()[0].has_state, "contract 7: rank 0 holds no state");
  int32_t last_with = -1, last_without = -1;
  bool newcomers_with = false, newcomers_without = false;
  for (const Member& m : a.members()) {
    const Process& p = at(m.worker);
    require(p.expected, "contract 11: a worker that is gone got a rank");
    require(p.ready, "contract 1: a worker that is not ready got a rank");
    require(m.local_rank == on_host[m.host]++, "local rank is not the index among the members of the host");
    // Members with state may stand before those without; among each the order is kept.
    int32_t& last = m.has_state ? last_with : last_without;
    bool& newcomers = m.has_state ? newcomers_with : newcomers_without;
    if (p.member) {
      require(p.rank > last && !newcomers, "contract 7: survivors do not keep their order");
      last = p.rank;
    } else {
      newcomers = true;
    }
  }
}

void Simulator::apply(const Abort& a) {
  note(fmt::format("  abort {}: {}", a.generation, a.reason));
  ++tally_.aborts;
  saw_abort_ = true;
  forming_since_ = now_;
  require(a.generation + 1 == generations_.size(), "contract 11: an abort of another generation");
  require(a.reason.find("left the generation") == std::string::npos,
          "contract 1: workers left by agreement and the driver knew of none");
  std::vector<uint64_t> to = a.to, expected = inside();
  std::sort(to.begin(), to.end());
  std::sort(expected.begin(), expected.end());
  require(to == expected,
          "contract 3: an abort goes to all that are inside the generation, and to them only");
  for (uint64_t id : to) at(id).inbox.push_back({ToWorker::kAbort, a.generation});
}

void Simulator::apply(const Notify& a) {
  note(fmt::format("  notify epoch {} interrupt {}", a.epoch, a.interrupt));
  saw_notify_ = true;
  if (a.interrupt) ++tally_.interrupts;
  if (told_interrupt_ && !a.interrupt) ++tally_.undone;
  require(a.epoch > newest_epoch_, "contract 2: a new truth with an old epoch");
  require(!aborted_ && driver_->phase() == Phase::kRunning,
          "contract 2: members of a lost generation are notified");
  std::vector<uint64_t> to = a.to, expected = inside();
  std::sort(to.begin(), to.end());
  std::sort(expected.begin(), expected.end());
  require(to == expected, "contract 2: not all members, or others, are notified");
  newest_epoch_ = a.epoch;
  newest_word_ = std::max(newest_word_, a.epoch * 2 + a.interrupt);
  told_interrupt_ = a.interrupt;
  for (uint64_t id : to) at(id).inbox.push_back({ToWorker::kNotify, 0, a.epoch * 2 + a.interrupt});
}

void Simulator::apply(const Refuse& a) {
  note(fmt::format("  refuse worker {}: {}", a.worker, a.reason));
  ++tally_.refusals;
  require(!a.reason.empty(), "contract 11: refused without a reason");
  if (a.worker <= processes_.size()) at(a.worker).inbox.push_back({ToWorker::kEnd});
}

void Simulator::apply(const Wait& a) {
  note(fmt::format("  worker {} waits: {}", a.worker, a.reason));
  Process& p = at(a.worker);
  require(p.expected && p.ready && !p.member && !p.waits, "a worker was made a spare that is none");
  require(config_.spares > 0 || p.own_place, "a worker waits though nobody asked for spares");
  p.waits = true;
}

/// As far as it was told: it is ready, and need not be taken before it was fed.
bool Simulator::held(const Process& p) const {
  if (!p.expected || p.member || !p.ready || !p.feeds || p.fed || any_done_) return false;
  if (now_ >= p.ready_since + config_.feed_timeout) return false;
  return std::any_of(processes_.begin(), processes_.end(),
                     [](const Process& q) { return q.expected && q.member && q.feeds; });
}

void Simulator::apply(const WantFeed& a) {
  note(fmt::format("  worker {} is to feed", a.worker));
  Process& p = at(a.worker);
  require(config_.feed_timeout > Duration(0), "feeding though it is switched off");
  require(a.generation == driver_->generation() && p.expected && p.member && p.synced && p.feeds,
          "a worker is to feed that is no member with state");
  require(p.asked_in < a.generation, "a worker was asked to feed twice in a generation");
  p.asked_in = a.generation;
  if (random_.chance(85)) {
    ToDriver offer{ToDriver::kOffer, a.generation};
    offer.works = !random_.chance(10);
    p.outbox.push_back(offer);
  }
}

void Simulator::apply(const StartFeed& a) {
  note(fmt::format("  worker {} is fed by {}", a.worker, a.source));
  Process& p = at(a.worker);
  const Process& source = at(a.source);
  require(p.expected && p.ready && !p.member && p.feeds, "a worker is fed that does not wait for a place");
  require(source.expected && source.member && source.offered_in == driver_->generation(),
          "a worker is fed by one that did not offer it");
  require(p.fed_in < driver_->generation(), "a worker was told twice in a generation who feeds it");
  p.fed_in = driver_->generation();
  p.fed_from = a.source;
  if (random_.chance(85)) {
    ToDriver fed{ToDriver::kFed};
    fed.source = a.source;
    fed.works = !random_.chance(20);
    p.outbox.push_back(fed);
  }
}

void Simulator::apply(const Finish& a) {
  note(fmt::format("  finish {}: {}", a.success, a.sentence));
  require(!finished_, "contract 8: the job ended twice");
  require(!a.sentence.empty(), "contract 8: the job ended without a sentence");
  finished_ = just_finished_ = true;
  (a.success ? tally_.successes : tally_.failures)++;
  bool unfinished = false;
  for (uint64_t id : generations_.back().members) unfinished = unfinished || at(id).expected;
  if (a.success) require(any_done_ && !unfinished, "contract 8: success though not all workers are done");
  if (!a.success)
    require(!any_done_ || unfinished, "contract 8: failure though all workers that live are done");
  if (calm_) {
    require(a.sentence.find("not enough slots") == std::string::npos,
            "contract 12: slots enough, and none was used");
  }
}

/// What must hold after each event.
void Simulator::check_state() {
  require(driver_->ended() == finished_, "contract 8: ended without Finish");
  if (finished_ || broken_) return;
  for (const Process& p : processes_) {
    require(!p.expected || p.member || p.ready || now_ < p.started + config_.start_timeout,
            "contract 12: a worker that does not become ready is waited for too long");
  }
  if (driver_->phase() != Phase::kRunning) {
    // Each loss begins a wait of its own, so the bound is on a wait in which nothing happens.
    require(now_ <= forming_since_ + 2 * config_.elastic_timeout, "contract 12: forming has no end");
    require(!driver_->waiting_for().empty(), "contract 12: waits and cannot say for what");
    return;
  }
  forming_since_ = now_;
  // contract 2: what was said last is true now.
  int32_t kept = 0, leaving = 0, ready = 0, starting = 0;  // one that is fed first is one that starts
  bool kept_state = false;
  for (const Process& p : processes_) {
    if (!p.expected) continue;
    if (!p.member) {
      (p.ready && !held(p) ? ready : starting)++;
    } else if (placed(p)) {
      ++kept;
      kept_state = kept_state || p.said_state;
    } else {
      ++leaving;
    }
  }
  if (told_interrupt_) {
    const bool surplus = most() > 0 && kept > most();
    const bool given_up = refused_to_feed_ && starting > 0;  // one that is not fed after all
    require(leaving > 0 || ready > 0 || surplus || given_up,
            "contract 2: members are interrupted for nothing");
  } else if (!any_done_) {
    const int64_t room = most() > 0 ? std::max<int64_t>(0, most() - kept) : ready;
    require(!(ready > 0 && room > 0 && starting == 0 && kept + ready >= config_.min_np),
            "contract 2: workers are ready and the members are not told");
    require(!(leaving > 0 && kept >= config_.min_np && kept_state),
            "contract 2: members were removed and are not told");
  }
}

/// At rest the current generation is what the hosts ask for.
void Simulator::check_target() {
  const std::vector<uint64_t>& members = generations_.back().members;
  for (uint64_t id : members) {
    const Process& p = at(id);
    require(p.expected && p.synced, "contract 2: at rest a member is not synced");
    require(placed(p), "contract 2: at rest a member lives on a removed host");
  }
  int32_t spares = 0;
  for (const Process& p : processes_) {
    if (!p.expected || p.member) continue;
    require(p.waits, "contract 2: at rest a worker waits outside");
    if (!p.own_place) ++spares;
  }
  require(spares <= config_.spares, "at rest more spares than were asked for");
  const auto size = static_cast<int32_t>(members.size());
  require(most() == 0 || size <= most(), "at rest more than the maximum");
  if (config_.restart)
    require(size >= driver_->usable_slots(now_), "contract 2: at rest a usable slot is empty");
}

}  // namespace hvd::membership::test
