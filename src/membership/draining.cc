// Who goes by its own or an operator's wish, who waits beyond the maximum, and who comes by itself.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "base/text.h"
#include "membership/impl.h"

namespace hvd::membership {

bool Membership::Impl::placed(const Worker& worker) const {
  if (worker.leaves_by || worker.own_place) return worker.own_place && !worker.leaves_by;
  if (worker.looked_in != hosts.version()) {
    worker.slot_there = hosts.has_slot(worker.host, worker.slot);
    worker.looked_in = hosts.version();
  }
  return worker.slot_there;
}

/// contract 15: it stays in its generation until all members agree to leave it, at most for `timeout`. False:
/// it leaves as early already.
bool Membership::Impl::leaves(Worker& worker, Duration timeout, const std::string& why) {
  const Time by = now + std::max(timeout, Duration(0));
  // The earlier deadline holds: whoever asks again and again must not put it off for ever.
  if (worker.leaves_by && *worker.leaves_by <= by) return false;
  if (!worker.leaves_by) worker.leaves_why = why;
  worker.leaves_by = by;
  leaver_ids.insert(worker.id);
  log(HVD_LOG_INFO,
      fmt::format("{} leaves within {} s: {}", describe(worker), seconds_text(timeout), worker.leaves_why));
  return true;
}

void Membership::Impl::worker_leaving(uint64_t id, Duration timeout, const std::string& why) {
  Worker* worker = workers.find(id);
  quiet = true;
  if (worker == nullptr) {
    if (workers.ending(id) != Ending::kDone) refuse(id, workers.objection(id));
    return;
  }
  if (worker->wishes >= kMostChanges) {
    return refuse(id, fmt::format("worker {} has said {} times that it leaves, and sooner each time", id,
                                  worker->wishes));
  }
  const bool withdrawn = !worker->own_place && hosts.withdraw(worker->host, worker->slot);
  if (!leaves(*worker, timeout, why.empty() ? "it asked to" : why) && !withdrawn) return;
  quiet = false;
  ++worker->wishes;
  // Each change is a line of the log and all that is known of the job for the journal.
  remember(known());
}

std::string Membership::Impl::hosts_text() const {
  std::vector<std::string> names = hosts.names();
  std::unordered_set<std::string> listed(names.begin(), names.end());
  for (const auto& [id, worker] : workers.living()) {
    if (listed.insert(worker.host).second) names.push_back(worker.host);
  }
  if (names.empty()) return "there are none";
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < names.size() && i < kShown; ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

Answer Membership::Impl::drain(const std::string& host, Duration timeout, const std::string& why) {
  int64_t going = 0;
  const std::vector<std::string> listed = hosts.names();
  if (!workers.lives_on(host) && std::find(listed.begin(), listed.end(), host) == listed.end()) {
    return {false, fmt::format("no host '{}' to be drained: expected one of {}", host, hosts_text())};
  }
  const bool again = hosts.drained(host);
  hosts.drain(host);
  for (auto& [id, worker] : workers.living()) {
    if (worker.host != host) continue;
    if (!worker.leaves_by) worker.drained = true;
    leaves(worker, timeout, why.empty() ? fmt::format("host {} is drained", host) : why);
    ++going;
  }
  if (!again) {
    ++epoch;
    unheard = true;
    removed.add(host, true);
  }
  const std::string in_time = fmt::format("within {} s", seconds_text(timeout));
  return {true, fmt::format("host {} is drained: {}", host,
                            going == 0 ? "no worker lives there"
                                       : fmt::format("{} {} {}", count(going, "worker"),
                                                     going == 1 ? "leaves" : "leave", in_time))};
}

Answer Membership::Impl::undrain(const std::string& host) {
  if (!hosts.undrain(host)) {
    return {false, fmt::format("host '{}' is not drained: expected one that is", host)};
  }
  int64_t staying = 0;
  for (auto& [id, worker] : workers.living()) {
    if (worker.host != host || !worker.drained) continue;
    worker.drained = false;
    worker.leaves_by.reset();
    ++staying;
  }
  ++epoch;
  unheard = true;
  added.add(host, true);
  return {true, fmt::format("host {} may be used again{}", host,
                            staying == 0 ? "" : fmt::format(": {} of it stay", count(staying, "worker")))};
}

Answer Membership::Impl::scale(int32_t size) {
  const int32_t most = config.max_np;
  if (size < config.min_np || (most > 0 && size > most)) {
    return {false, fmt::format("can't scale to {}: expected {} to {} (min_np, max_np)", size, config.min_np,
                               most > 0 ? std::to_string(most) : "any number")};
  }
  scaled = size;
  return {true, fmt::format("at most {} from now on, {} now", count(size, "worker"), survivors().size())};
}

Arrival Membership::Impl::worker_arrived(const std::string& host, int32_t slot) {
  const auto refused = [](std::string why) { return Arrival{0, -1, std::move(why), 0}; };
  if (!closed.empty()) return refused("nobody can join any more: " + closed);
  if (finishing()) return refused("the job is about to end: workers are done");
  if (hosts.drained(host)) return refused(fmt::format("host {} is drained", host));
  const Plan now_placed = make_plan();
  const auto waiting = std::count_if(now_placed.spares.begin(), now_placed.spares.end(),
                                     [](const Worker* w) { return w->own_place; });
  const bool full = std::ssize(now_placed.kept) + std::ssize(now_placed.newcomers) >= capacity();
  if (full && waiting >= config.max_waiting) {
    return refused(fmt::format("{} wait for a place already (max_waiting)", count(waiting, "worker")));
  }
  if (slot >= 0) {
    for (const auto& [id, w] : workers.living()) {
      if (w.host != host || w.slot != slot) continue;
      return {0, slot, fmt::format("slot {} of host {} has worker {}, which lives", slot, host, id), id};
    }
  } else {
    slot = 0;
    while (workers.occupied(host, slot)) ++slot;
  }
  Worker& worker = workers.start(host, slot, now);
  worker.own_place = true;
  return {worker.id, slot, "", 0};
}

/// Newcomers beyond the maximum: those that wait until a place is free, and those that nobody asked for.
void Membership::Impl::place_beyond(Plan* plan, std::vector<Worker*> rest) const {
  int32_t spares = 0;
  for (Worker* w : rest) {
    const bool waits = w->own_place || spares < config.spares;
    if (!w->own_place && waits) ++spares;
    (waits ? plan->spares : plan->surplus).push_back(w);
  }
}

/// Who wants to go stays, until its deadline, as long as the others would be too few without it.
void Membership::Impl::keep_the_needed(Plan* plan) const {
  if (initial || finishing() || plan->leaving.empty()) return;
  auto placed_now = std::ssize(plan->kept) + std::count_if(plan->newcomers.begin(), plan->newcomers.end(),
                                                           [](Worker* w) { return w->ready; });
  for (auto it = plan->leaving.begin(); it != plan->leaving.end() && placed_now < config.min_np;) {
    Worker* w = *it;
    const bool has_slot = w->own_place || hosts.has_slot(w->host, w->slot);
    if (!w->leaves_by || !has_slot) {
      ++it;
      continue;
    }
    plan->kept.push_back(w);
    it = plan->leaving.erase(it);
    ++placed_now;
  }
  std::sort(plan->kept.begin(), plan->kept.end(),
            [](const Worker* a, const Worker* b) { return a->rank < b->rank; });
}

/// A spare that was used is replaced when all are at work again: starting a process takes time from those who
/// recover.
int32_t Membership::Impl::spares_wanted() {
  if (initial || config.spares == 0) return config.spares;
  const std::vector<Worker*>& members_now = survivors();
  const bool at_work =
      running() && std::all_of(members_now.begin(), members_now.end(), [](Worker* w) { return w->synced; });
  return at_work ? config.spares : 0;
}

/// Spares are told that they are, so that they wait for longer than for a place that is about to be free.
void Membership::Impl::tell_waiting(const std::vector<Worker*>& spares) {
  for (Worker* w : spares) {
    if (!w->ready || w->waits) continue;
    w->waits = true;
    out.push_back(Wait{w->id, fmt::format("{} have a place, which is the maximum: this one is a spare",
                                          count(capacity(), "worker"))});
  }
}

/// What a member that has no place in the next generation is told.
StopWorker Membership::Impl::farewell(const Worker& w) const {
  if (w.leaves_by) return {w.id, w.leaves_why, true, std::max(*w.leaves_by - now, Duration(0))};
  if (w.own_place || hosts.has_slot(w.host, w.slot)) {
    return {w.id, fmt::format("no place is left: {} are the maximum", count(capacity(), "worker")),
            scaled.has_value()};
  }
  if (!hosts.has_slot(w.host, 0))
    return {w.id, fmt::format("host {} was removed from the job", w.host.str())};
  return {w.id, fmt::format("slot {} of host {} was removed from the job", w.slot, w.host.str())};
}

/// Past its deadline a leaver is a loss like any other, but it says nothing about its host.
void Membership::Impl::end_late_leavers() {
  std::vector<uint64_t> late;
  for (const Worker* w : leavers()) {
    if (now >= *w->leaves_by) late.push_back(w->id);
  }
  for (const uint64_t id : late) {
    Worker* worker = workers.find(id);
    if (worker == nullptr) continue;  // the job has ended with an earlier one
    const std::string why = fmt::format("had not left within its time: {}", worker->leaves_why);
    out.push_back(StopWorker{id, why});
    lose(*worker, why);
    if (phase == Phase::kEnded) return;
  }
}

// ---- the public class ----

std::vector<Action> Membership::worker_leaving(uint64_t worker, Duration timeout, const std::string& why,
                                               Time now) {
  impl_->now = std::max(impl_->now, now);
  if (!ended()) impl_->worker_leaving(worker, timeout, why);
  return impl_->take(now);
}

std::vector<Action> Membership::drain(const std::string& host, Duration timeout, const std::string& why,
                                      Time now, Answer* ret_answer) {
  impl_->now = std::max(impl_->now, now);
  *ret_answer = ended() ? Answer{false, "the job has ended"} : impl_->drain(host, timeout, why);
  if (ret_answer->accepted) impl_->remember(known());
  return impl_->take(now);
}

std::vector<Action> Membership::undrain(const std::string& host, Time now, Answer* ret_answer) {
  impl_->now = std::max(impl_->now, now);
  *ret_answer = ended() ? Answer{false, "the job has ended"} : impl_->undrain(host);
  if (ret_answer->accepted) impl_->remember(known());
  return impl_->take(now);
}

std::vector<Action> Membership::scale(int32_t size, Time now, Answer* ret_answer) {
  impl_->now = std::max(impl_->now, now);
  *ret_answer = ended() ? Answer{false, "the job has ended"} : impl_->scale(size);
  if (ret_answer->accepted) impl_->remember(known());
  return impl_->take(now);
}

std::vector<Action> Membership::worker_arrived(const std::string& host, int32_t slot, Time now,
                                               Arrival* ret_arrival) {
  impl_->now = std::max(impl_->now, now);
  *ret_arrival = ended() ? Arrival{0, -1, "the job has ended", 0} : impl_->worker_arrived(host, slot);
  if (ret_arrival->worker != 0) impl_->remember(known());
  return impl_->take(now);
}

}  // namespace hvd::membership
