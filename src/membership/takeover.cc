// A driver takes a job over: it gathers the members of the last generation, and goes on in that generation if
// all of them come back (contract 14). Nothing is formed, started or announced before.
#include "membership/takeover.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "membership/impl.h"

namespace hvd::membership {
namespace {

// Workers of a new driver are numbered from the next such step on: its predecessor may have started some that
// no journal tells of, and no identity may be used twice.
constexpr uint64_t kIdentities = 1000;

// A worker may know of so many more generations and epochs than a journal that has lost some. One that lies
// must not take the numbers that are left.
constexpr uint64_t kMostUnheardOf = uint64_t{1} << 40;

}  // namespace

Membership::Impl::Impl(MembershipConfig c, const KnownJob& known, const Settle& settle, Time t)
    : Impl(std::move(c), t) {
  gathering = inherited = true;
  gather_until = t + settle.longest;
  after_close = settle.after_close;
  after_silence = settle.after_silence;
  last_back = t;
  told = known.told;
  generation = known.generation;
  epoch = known.epoch;
  resets = known.resets;
  excused = known.excused;
  initial = known.initial;
  state_exists = known.state_exists;
  fresh = known.fresh;
  if (told && generation > 0) newest = known.newest;
  interrupted = known.interrupted;
  aborted = known.aborted;
  last_loss = known.last_loss;
  lost_any = aborted && !last_loss.empty();
  members = known.members;
  seated_version = 0;
  scaled = known.scaled;
  hosts_told = !known.hosts.empty();
  hosts.restore(known.hosts, t);
  for (const KnownWorker& w : known.workers) {
    if (!workers.adopt(w.worker, w.host, w.slot, t)) continue;
    Worker& worker = *workers.find(w.worker);
    worker.absent = true;
    worker.ever_synced = worker.has_state = w.ever_synced;
    worker.own_place = w.own_place;
    worker.drained = w.drained;
    worker.leaves_why = w.leaves_why;
    if (w.leaves_within) {
      worker.leaves_by = t + *w.leaves_within;
      leaver_ids.insert(w.worker);
    }
  }
  for (size_t rank = 0; rank < members.size(); ++rank) {
    if (Worker* w = workers.find(members[rank])) w->rank = static_cast<int32_t>(rank);
  }
  for (const uint64_t id : known.done) {
    workers.remember_done(id);
    ++done;
  }
  workers.begin_at((known.next_worker / kIdentities + 1) * kIdentities +
                   (known.next_worker % kIdentities > kIdentities / 2 ? kIdentities : 0));
  if (generation > 0) phase = aborted ? Phase::kForming : Phase::kRunning;
}

KnownJob Membership::Impl::known() const {
  KnownJob job;
  job.told = told || !may_come_back();  // also of a driver that dies while it waits for those who are back
  job.generation = generation;
  job.epoch = epoch;
  job.next_worker = workers.next();
  job.resets = resets;
  job.excused = excused;
  job.initial = initial;
  job.state_exists = state_exists;
  job.fresh = fresh;
  job.newest = newest;
  job.interrupted = interrupted;
  job.aborted = aborted;
  job.members = members;
  job.workers.reserve(workers.living().size());
  const auto add = [&](const Worker& w) {
    KnownWorker& worker = job.workers.emplace_back();
    worker.worker = w.id;
    worker.host = w.host;
    worker.slot = w.slot;
    worker.ever_synced = w.ever_synced;
    worker.own_place = w.own_place;
    worker.drained = w.drained;
    worker.leaves_why = w.leaves_why;
    if (w.leaves_by) worker.leaves_within = std::max<Duration>(*w.leaves_by - now, Duration(0));
  };
  // Members by rank, if they are at hand: to go from node to node of the map takes longer.
  const bool at_hand = !initial && seated_version == workers.version();
  size_t left = workers.living().size();
  if (at_hand) {
    for (const Worker* w : known_seated) add(*w);
    left -= known_seated.size();
  }
  for (auto it = workers.living().rbegin(); left > 0 && it != workers.living().rend(); ++it) {
    if (at_hand && it->second.member()) continue;
    add(it->second);
    --left;
  }
  job.scaled = scaled;
  job.done.assign(workers.done().begin(), workers.done().end());
  job.hosts = hosts.known(now);
  job.last_loss = last_loss;
  return job;
}

/// The sentence that refuses a worker whose word about the job can't be true; nothing if it can.
std::optional<std::string> Membership::Impl::lie_of(uint64_t id, const BackEvent& e) const {
  // A journal that is whole tells of every generation that anybody was told of.
  const bool may_be_newer = gathering && !told && e.generation <= generation + kMostUnheardOf;
  if (e.generation > generation && !may_be_newer) {
    return fmt::format("worker {} says that it is in generation {}, but the newest is {}", id, e.generation,
                       generation);
  }
  // A worker that has had one driver alone has every epoch from it.
  if (e.epoch > epoch + (inherited ? kMostUnheardOf : 0)) {
    return fmt::format("worker {} says that it knows epoch {} of the hosts, but the newest is {}", id,
                       e.epoch, epoch);
  }
  return std::nullopt;
}

void Membership::Impl::worker_back(uint64_t id, const BackEvent& e) {
  if (const std::optional<std::string> lie = lie_of(id, e)) return refuse(id, *lie);
  Worker* w = workers.find(id);
  if (workers.ending(id) == Ending::kDone) {  // it waits for the word that the job has ended
    // A journal of which only this part is left does not say in which generation it was.
    if (!gathering || e.rank < 0 || e.rank >= e.size || e.generation < generation) return;
    if (e.generation > generation) raise(e);
    const auto rank = static_cast<size_t>(e.rank);
    if (rank < members.size() && members[rank] == 0) seat(rank, id);
    return;
  }
  if (w == nullptr) {
    // Its start, or the forming of its generation, may not have come as far as the journal.
    const bool unheard_of = may_come_back() && !workers.ending(id);
    if (!unheard_of) return refuse(id, workers.objection(id));
    if (const uint64_t before = workers.in_slot(e.slot_host, e.slot); before != 0) {
      if (!workers.find(before)->absent)
        return refuse(id, fmt::format("slot {} of host {} has worker {}", e.slot, e.slot_host, before));
      lose(*workers.find(before), "its slot has another worker");
      if (phase == Phase::kEnded) return;
    }
    workers.adopt(id, e.slot_host, e.slot, now);
    w = workers.find(id);
    // Given up as a member, as the journal has it, and not ended: it has its seat still.
    const auto seat = std::find(members.begin(), members.end(), id);
    if (seat != members.end()) w->rank = static_cast<int32_t>(seat - members.begin());
  }
  if (e.generation > 0 && (e.rank < 0 || e.rank >= e.size)) {
    return refuse(id, fmt::format("worker {} says that it is rank {} of {}", id, e.rank, e.size));
  }
  if (e.generation > generation) raise(e);
  if (e.generation > 0 && e.generation == generation && !take_seat(*w, e)) return;

  if (w->member()) initial = false;  // the last one of them was given up, and is here
  w->absent = false;
  last_back = now;
  any_silent = any_silent || !e.closed;
  if (gathering && e.generation == generation && e.suspect >= 0 && e.suspect < e.size)
    suspects.insert(e.suspect);
  w->at_work = !e.left && e.generation == generation;
  // Its word that it was synced may have been lost with the connection, or with a journal; who never had a
  // place was not (contract 11).
  w->ever_synced = w->ever_synced || (e.has_state && ((inherited && !told) || w->member()));
  w->has_state = w->ever_synced;
  if (w->has_state) w->revision = std::max(w->revision, believed(*w, e.revision));
  hear(*w, e.last);
  if (w->ever_synced) {
    state_exists = true;
    initial = false;
  }
  // What is to be told yet is told as an epoch that nobody has seen.
  if (e.epoch >= epoch) epoch = e.epoch + (unheard ? 1 : 0);
  if (e.generation == 0 && !w->member()) return;
  if (e.generation < generation) {
    // Its place was on the way to it when the connection broke: it can't be in that generation any more.
    w->behind = true;
    if (w->member() && !aborted) abort(describe(*w) + " never learnt of its place", w->rank, id);
    if (!e.left && e.generation > 0)
      out.push_back(Abort{e.generation, "a newer generation was formed", -1, 0, {id}});
    return;
  }
  w->synced = w->synced || e.synced;
  interrupted = interrupted || e.interrupt;
  if (aborted && !e.left && !e.lost) out.push_back(Abort{generation, abort_reason(), -1, 0, {id}});
  if (running() && announced && !e.left) out.push_back(Notify{epoch, true, {}, {}, {id}});
}

/// A generation that nobody but its members knows of: who else is in it, they will say.
void Membership::Impl::raise(const BackEvent& e) {
  generation = e.generation;
  members.assign(static_cast<size_t>(e.size), 0);
  seated_version = 0;
  for (auto& [id, w] : workers.living()) {
    w.rank = -1;
    w.synced = false;
    w.behind = !w.absent;  // it is back, and in an older one
  }
  resets = std::max(resets, static_cast<int32_t>(std::min<uint64_t>(generation - 1, 1 << 20)));
  aborted = interrupted = initial = fresh = lost_any = false;
  newest.reset();
  suspects.clear();
  empty_cursor = 0;
  phase = Phase::kRunning;
}

bool Membership::Impl::take_seat(Worker& w, const BackEvent& e) {
  const auto rank = static_cast<size_t>(e.rank);
  const bool fits = static_cast<size_t>(e.size) == members.size() &&
                    (members[rank] == w.id || members[rank] == 0) && (w.rank < 0 || w.rank == e.rank);
  if (!fits) {
    const std::string why = fmt::format("it says that it is rank {} of {} in generation {}: that is not so",
                                        e.rank, e.size, generation);
    out.push_back(StopWorker{w.id, why});
    lose(w, why);
    return false;
  }
  if (members[rank] != w.id || w.rank != e.rank) seat(rank, w.id);
  w.rank = e.rank;
  return true;
}

std::string Membership::Impl::abort_reason() const {
  if (lost_any) return last_loss;
  return link_failure.empty() ? fmt::format("generation {} is lost", generation) : link_failure;
}

/// Nobody sits there, or somebody who is not back.
bool Membership::Impl::is_missing(size_t rank) {
  if (rank >= members.size()) return false;
  const Worker* w = workers.find(members[rank]);
  return members[rank] == 0 || (w != nullptr && w->absent);
}

bool Membership::Impl::all_back() {
  while (empty_cursor < members.size() && members[empty_cursor] != 0) ++empty_cursor;
  if (empty_cursor < members.size()) return false;
  if (any_member(&absent_cursor, [](const Worker& w) { return w.absent; })) return false;
  if (told) return true;
  // A generation is the newest if everybody is inside it: those that have left it may not know of the next
  // one.
  const std::vector<Worker*>& living = survivors();
  return !living.empty() &&
         std::all_of(living.begin(), living.end(), [](const Worker* w) { return w->at_work; });
}

/// A peer has lost its link to one that is missing, and all that may come are back: nobody has come for a
/// while, and no process of one that is missing is known to run. A link breaks as well if its other end
/// leaves the generation, but who leaves it looks for the driver at once.
bool Membership::Impl::loss_was_seen() {
  if (now < seen_by()) return false;
  if (std::none_of(suspects.begin(), suspects.end(),
                   [this](int32_t rank) { return is_missing(static_cast<size_t>(rank)); }))
    return false;
  const std::vector<Worker*>& living = survivors();
  return std::none_of(living.begin(), living.end(), [](const Worker* w) { return w->absent && w->runs; });
}

void Membership::Impl::gather() {
  if (!gathering) return;
  const bool waits = now < gather_until && !all_back(), seen = waits && loss_was_seen();
  if (waits && !seen) return;
  gathering = false;
  const std::string why = seen ? "did not come back to the new driver, and its peers have lost it"
                               : "did not come back to the new driver";
  std::vector<uint64_t> late;
  for (const Worker* w : survivors()) {
    if (w->absent) late.push_back(w->id);
  }
  for (const uint64_t id : late) {
    out.push_back(StopWorker{id, why});
    lose(*workers.find(id), why);
    if (phase == Phase::kEnded) return;
  }
  const auto empty = std::find(members.begin(), members.end(), uint64_t{0});
  if (empty != members.end() && !aborted) {
    abort(fmt::format("rank {} {}", empty - members.begin(), why),
          static_cast<int32_t>(empty - members.begin()), 0);
  }
  if (finishing() && survivors().empty()) return all_members_gone();
  if (generation > 0 && survivors().empty()) {
    if (!aborted) abort(fmt::format("nobody of generation {} came back", generation), -1, 0);
    const auto& living = workers.living();
    const bool state_lives =
        std::any_of(living.begin(), living.end(), [](const auto& w) { return w.second.has_state; });
    if (!state_lives) all_members_gone();
    if (phase == Phase::kEnded) return;
  }
  waiting_since = now;
  short_since.reset();
  if (initial) short_since = now;
  // What those say who have come back already counts from here on.
  const std::vector<Worker*>& living = survivors();
  if (running() && std::any_of(living.begin(), living.end(), [](const Worker* w) { return w->ready; }))
    phase = Phase::kForming;
}

}  // namespace hvd::membership
