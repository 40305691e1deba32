// Events of workers and hosts, and what they change.
#include "membership/membership.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "membership/impl.h"

namespace hvd::membership {
namespace {

const char* words(LossKind kind) {
  switch (kind) {
    case LossKind::kConnectionClosed: return "connection closed";
    case LossKind::kSilent: return "no sign of life";
    case LossKind::kExited: return "exited";
    case LossKind::kStartFailed: return "could not be started";
    case LossKind::kLeft: return "left without being done";
    case LossKind::kEvicted: return "evicted";
  }
  return "lost";
}

}  // namespace

std::string count(int64_t n, const char* what) { return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s"); }

void HostNames::add(const std::string& name, bool has_workers) {
  constexpr size_t kEntry = 16;                   // of a message, besides the name
  constexpr size_t kMost = size_t{4} << 20;       // a quarter of what a channel takes
  constexpr size_t kMostIdle = size_t{16} << 10;  // for each member's log
  const size_t bytes = bytes_ + name.size() + kEntry;
  if (bytes > (has_workers ? kMost : kMostIdle) || !known_.insert(name).second) return;
  names_.push_back(name);
  bytes_ = bytes;
}

Membership::Impl::Impl(MembershipConfig c, Time t)
    : config(std::move(c)), hosts(config), now(t), waiting_since(t), short_since(t) {
  config.min_np = std::max(config.min_np, 1);
}

void Membership::Impl::hosts_changed(const std::vector<HostSlots>& list) {
  const bool first = !std::exchange(hosts_told, true);
  HostManager::Change change =
      hosts.set_hosts(list, [&](const std::string& h) { return workers.lives_on(h); });
  if (!change.any() || (first && gathering))
    return;  // these are the hosts that the job has, as far as anybody knows
  ++epoch;
  unheard = true;
  for (const std::string& host : change.added) added.add(host, workers.lives_on(host));
  for (const std::string& host : change.removed) removed.add(host, workers.lives_on(host));
}

/// A member may be ahead of all others by any number of saves that no collective rides on, and by commits
/// made while the others had joined: the newest commit wins (contract 5). What no member can have come to is
/// a lie, which counts for what the driver knew before.
uint64_t Membership::Impl::believed(const Worker& worker, uint64_t revision) const {
  return newest && revision > *newest ? std::min(worker.revision, *newest) : revision;
}

/// Its word of its state counts as far as the driver has seen it. False: it says nothing new.
bool Membership::Impl::hear(Worker& worker, ReadyEvent event) {
  const uint64_t told = event.revision;
  // A worker has state from its first sync on: nobody leads a generation by its word alone.
  event.has_state = event.has_state && worker.ever_synced;
  if (event.has_state) event.revision = believed(worker, told);
  // contract 11: a repeated request counts once. Each new one is a decision about all workers.
  if (worker.ready && event == worker.event) return false;
  if (worker.ready && ++worker.changes > kMostChanges) {
    refuse(worker.id, fmt::format("worker {} is ready, and has said {} times that it is with something else",
                                  worker.id, kMostChanges));
    return false;
  }
  if (event.revision != told) {
    log(HVD_LOG_WARNING, fmt::format("{} says that it holds revision {}: no member comes to more than {}, so "
                                     "it counts for revision {}",
                                     describe(worker), told, *newest, event.revision));
  }
  worker.take(std::move(event));
  return true;
}

void Membership::Impl::worker_ready(uint64_t id, ReadyEvent event) {
  Worker* worker = workers.find(id);
  quiet = true;
  if (worker == nullptr) return refuse(id, workers.objection(id));  // contract 11
  if (event.left_generation > generation) {
    return refuse(id, fmt::format("worker {} says that it left generation {}, but the newest is {}", id,
                                  event.left_generation, generation));
  }
  // A member said this before it was given its place; the assignment is on its way to it. Even when that
  // generation is lost already, the worker may have committed in it: only what it says after leaving it
  // counts.
  if (worker->member() && event.left_generation < generation && !worker->behind) return;
  if (!hear(*worker, std::move(event))) return;
  const bool was_ready = std::exchange(worker->ready, true);
  if (!was_ready) {
    worker->ready_since = now;
    worker->changes = 0;
  }
  worker->judged_in = ~uint64_t{0};
  worker->has_state = worker->event.has_state;
  worker->revision = worker->event.revision;
  quiet = !worker->member() ? !was_ready && quiet_beginner_ready(*worker) : quiet_member_ready();
  if (!worker->member() || !running()) return;

  phase = Phase::kForming;
  waiting_since = now;
  // Without an interrupt there was no agreement to leave: the others would wait for it (contract 3). A worker
  // that lost a peer may be here before its word of whom, and before the driver itself notices: it is not the
  // one to blame.
  if (interrupted) return;
  if (inherited && worker->event.left_generation == generation && !worker->event.lost_peer) {
    interrupted = true;  // as an earlier driver had announced
    return;
  }
  if (aborted) return;
  if (worker->event.lost_peer)
    return abort(describe(*worker) + " lost a peer and left the generation", -1, 0);
  abort(describe(*worker) + " left the generation", worker->rank, id);
}

void Membership::Impl::worker_synced(uint64_t id, uint64_t in_generation, uint64_t revision) {
  Worker* worker = workers.find(id);
  quiet = true;
  if (worker == nullptr) {
    if (workers.ending(id) != Ending::kDone) refuse(id, workers.objection(id));
    return;
  }
  if (!worker->member() || in_generation != generation || worker->synced) return;
  state_exists = true;
  worker->synced = worker->has_state = true;
  // They went on. A generation may also form of workers whose end is not known yet, and what the driver reads
  // of the one before was sent before it was held up.
  if (generation > held_up_in) held_up.clear();
  worker->revision = std::max(worker->revision, believed(*worker, revision));
  if (!worker->ever_synced) {
    hosts.record_success(worker->host, worker->slot);
    remember(WorkerSynced{id});
  }
  worker->ever_synced = true;
  quiet = quiet_synced();
}

void Membership::Impl::worker_failed_link(uint64_t id, uint64_t in_generation, int32_t rank,
                                          const std::string& message) {
  Worker* worker = workers.find(id);
  quiet = true;
  if (worker == nullptr) {
    if (workers.ending(id) != Ending::kDone) refuse(id, workers.objection(id));
    return;
  }
  const bool named = rank >= 0 && static_cast<size_t>(rank) < members.size();
  if (gathering && worker->member() && in_generation == generation && named) suspects.insert(rank);
  if (!worker->member() || worker->ready || in_generation != generation || aborted) return;
  quiet = false;
  link_failure = fmt::format("{}: {}", describe(*worker), message);
  abort(link_failure, named ? rank : -1, named ? members[static_cast<size_t>(rank)] : 0);
}

// contract 16
void Membership::Impl::worker_unfit(uint64_t id, uint64_t in_generation, int32_t rank,
                                    const std::string& message) {
  Worker* accuser = workers.find(id);
  const bool names_another = accuser != nullptr && accuser->member() && in_generation == generation &&
                             rank >= 0 && static_cast<size_t>(rank) < members.size() && rank != accuser->rank;
  if (!names_another) return worker_failed_link(id, in_generation, rank, message);
  Worker* accused = workers.find(members[static_cast<size_t>(rank)]);
  if (accused == nullptr) {  // gone already
    quiet = true;
    return confirm_unfit(*accuser, members[static_cast<size_t>(rank)]);
  }
  if (accuser->ever_synced && accused->ever_synced)
    return worker_failed_link(id, in_generation, rank, message);
  // Among those that never were in the work the lower rank's offer is what the others are measured by.
  const bool keeps_accuser =
      accuser->ever_synced != accused->ever_synced ? accuser->ever_synced : accuser->rank < accused->rank;
  found_unfit = found_unfit || keeps_accuser;
  if (!keeps_accuser) return send_away(*accuser, message);
  // One that lies may cost a newcomer its process, and no host its place: where there are other members, one
  // of them has to say the same.
  const bool alone = survivors().size() > 2;
  if (alone && !accused->own_place && !accused->leaves_by)
    unconfirmed[accused->id] = {accuser->id, accused->host};
  send_away(*accused, fmt::format("{} (as {} says)", message, describe(*accuser)),
            alone ? Fault::kNobodys : Fault::kHosts);
}

/// A second member says what one alone had said.
void Membership::Impl::confirm_unfit(const Worker& witness, uint64_t accused) {
  const auto found = unconfirmed.find(accused);
  if (found == unconfirmed.end() || found->second.accuser == witness.id) return;
  const Name host = found->second.host;
  unconfirmed.erase(found);
  quiet = false;
  blame(host, generation);
  remember(known());
}

void Membership::Impl::worker_stalled(uint64_t id, uint64_t in_generation, const StallEvent& event) {
  Worker* worker = workers.find(id);
  quiet = true;
  if (worker == nullptr) {
    if (workers.ending(id) != Ending::kDone) refuse(id, workers.objection(id));
    return;
  }
  if (in_generation != generation || worker->rank != 0) {
    return refuse(id, fmt::format("{} reports a stall in generation {}: expected that of rank 0 of {}",
                                  describe(*worker), in_generation, generation));
  }
  if (aborted || worker->ready) return;  // it is over already
  for (const int32_t rank : event.missing) {
    if (rank >= 0 && static_cast<size_t>(rank) < members.size()) continue;
    return refuse(id, fmt::format("a stall that waits for rank {} of {}", rank, members.size()));
  }
  stall = event.text;
  log(HVD_LOG_WARNING, stall);
  if (config.stall_shutdown <= Duration(0) || event.waited < config.stall_shutdown) return;
  // Those that wait are told of the loss and go on without them (contract 3).
  const std::string why =
      fmt::format("evicted: others waited {:.1f} s for it (stall_shutdown is {:g} s): {}",
                  to_seconds(event.waited), to_seconds(config.stall_shutdown), event.text);
  for (const int32_t rank : event.missing) {
    const uint64_t late = members[static_cast<size_t>(rank)];
    Worker* missing = workers.find(late);
    if (missing == nullptr || missing->ready) continue;
    quiet = false;
    out.push_back(StopWorker{late, why});
    lose(*missing, why);
    if (phase == Phase::kEnded) return;
  }
}

void Membership::Impl::worker_done(uint64_t id, uint64_t in_generation) {
  Worker* worker = workers.find(id);
  quiet = true;
  if (worker == nullptr) {
    if (workers.ending(id) != Ending::kDone) refuse(id, workers.objection(id));
    return;  // a repeated request counts once (contract 11)
  }
  // Who was away while a generation was formed of others may have been done before.
  const bool before = worker->behind && in_generation > 0 && in_generation < generation;
  if (!before && (!worker->member() || in_generation != generation)) {
    return refuse(id,
                  fmt::format("worker {} says that it is done in generation {}, but {}", id, in_generation,
                              worker->member() ? fmt::format("the current one is {}", generation)
                                               : "it was never a member"));
  }
  ++done;
  end_worker(id, Ending::kDone, "");
  remember(WorkerDone{id});
  quiet = quiet_done();
  if (!gathering && !somebody_lives()) all_members_gone();
}

void Membership::Impl::worker_lost(uint64_t id, LossKind kind, const std::string& why) {
  Worker* worker = workers.find(id);
  if (worker == nullptr) return;
  std::string text = why.empty() ? words(kind) : why;
  if (kind == LossKind::kExited && !worker->member() && !worker->ready) text += " before it was ready";
  lose(*worker, text);
}

void Membership::Impl::close_joining(const std::string& reason) {
  if (!closed.empty()) return;
  closed = reason;
  if (initial) return finish(false, closed);
  std::vector<uint64_t> waiting;
  for (const auto& [id, worker] : workers.living()) {
    if (!worker.member()) waiting.push_back(id);
  }
  for (uint64_t id : waiting) stop_worker(id, "nobody can join any more: " + closed);
}

void Membership::Impl::stop(const std::string& reason) {
  finish(false, reason);
  std::vector<uint64_t> rest;
  for (const auto& [id, worker] : workers.living()) rest.push_back(id);
  for (uint64_t id : rest) stop_worker(id, reason);
}

/// The others of the generation stay known: to look all of them up for one takes longer than most decisions.
void Membership::Impl::end_worker(uint64_t id, Ending ending, const std::string& why) {
  const bool known = seated_version == workers.version();
  if (known) std::erase(known_seated, workers.find(id));
  workers.end(id, ending, why);
  if (known) seated_version = workers.version();
}

void Membership::Impl::lose(Worker& lost, const std::string& why, Fault fault) {
  const Worker worker = lost;
  last_loss = fmt::format("{} lost: {}", describe(worker), why);
  end_worker(worker.id, Ending::kLost, why);
  forget_plan();
  // A worker that is going anyway, or its host, says nothing about the host.
  if (hosts.has_slot(worker.host, worker.slot) && !worker.leaves_by && !worker.own_place) {
    hosts.record_failure(worker.host, worker.slot, now);
    if (fault == Fault::kHosts) blame(worker.host, worker.member() ? generation : 0);
  }
  remember(WorkerGone{worker.id, worker.member(), last_loss, {}});
  records_lack_hosts = true;
  if (!worker.member()) {
    log(HVD_LOG_WARNING, last_loss);
    return;
  }
  lost_any = true;
  if (finishing()) ++lost_at_end;
  if (!aborted) abort(last_loss, worker.rank, worker.id);
  if (!gathering && !somebody_lives()) all_members_gone();
}

void Membership::Impl::blame(const std::string& host, uint64_t in_generation) {
  const auto failure = hosts.blame(host, in_generation, now);
  if (!failure.blocked) return;
  log(HVD_LOG_WARNING,
      fmt::format("host {} is on the blocklist {} after {} in a row; last: {}", host,
                  failure.cooldown ? fmt::format("for {:g} s", to_seconds(*failure.cooldown)) : "for good",
                  count(config.blocklist_after, "failure"), last_loss));
}

// contract 3: at once, to everyone who may be waiting for somebody
void Membership::Impl::abort(const std::string& reason, int32_t rank, uint64_t worker) {
  aborted = true;
  remember(WorkerGone{0, true, "", {}});
  stall.clear();
  phase = Phase::kForming;
  waiting_since = now;
  std::vector<uint64_t> to = inside();
  if (!to.empty()) out.push_back(Abort{generation, reason, rank, worker, std::move(to)});
}

std::string Membership::Impl::last_loss_with_cause() const {
  return held_up.empty() || now > held_up_until ? last_loss : fmt::format("{}; {}", last_loss, held_up);
}

// contract 8
void Membership::Impl::all_members_gone() {
  if (finishing()) {
    std::string sentence =
        fmt::format("{} done after {}", done == 1 ? "the worker is" : fmt::format("all {} workers are", done),
                    count(resets + 1, "generation"));
    if (lost_at_end > 0) {
      sentence += fmt::format("; {} lost at the end: {}",
                              lost_at_end == 1 ? "1 was" : fmt::format("{} were", lost_at_end), last_loss);
    }
    return finish(true, std::move(sentence));
  }
  if (state_exists) {
    return finish(false, "all workers failed: no survivor holds state; last: " + last_loss_with_cause());
  }
  if (!closed.empty())
    return finish(false, fmt::format("all workers failed: {}; {}", last_loss_with_cause(), closed));
  // Nothing is lost that anybody had: begin again.
  initial = true;
  waiting_since = now;
  short_since = now;
  remember(known());
}

void Membership::Impl::stop_worker(uint64_t id, const std::string& reason) {
  stop_worker(StopWorker{id, reason});
}

void Membership::Impl::stop_worker(StopWorker stop) {
  end_worker(stop.worker, Ending::kStopped, stop.reason);
  forget_plan();
  remember(WorkerGone{stop.worker, false, "", {}});
  out.push_back(std::move(stop));
}

void Membership::Impl::finish(bool success, std::string sentence, bool try_again) {
  if (phase == Phase::kEnded) return;
  phase = Phase::kEnded;
  out.push_back(Finish{success, sentence, try_again});
  remember(JobFinished{{success, sentence}});
  std::vector<uint64_t> waiting;
  for (const auto& [id, worker] : workers.living()) {
    if (!worker.member()) waiting.push_back(id);
  }
  for (uint64_t id : waiting) stop_worker(id, "the job has ended: " + sentence);
}

}  // namespace hvd::membership
