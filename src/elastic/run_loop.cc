// Restore, rejoin, sync and reset between two calls of the training function.
#include "elastic/run_loop.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

namespace hvd::elastic {

namespace {

std::vector<state::Summary> summaries(const session::Assignment& assignment) {
  std::vector<state::Summary> known;
  for (const Member& member : assignment.members) {
    known.push_back({member.has_state, member.revision, member.digest});
  }
  return known;
}

int64_t count(Duration d) { return d.count(); }

/// A recovery on the timeline, from what came before this worker learnt of it until it is over, however that
/// ends.
class RecoverySlice {
 public:
  RecoverySlice(const TimelinePtr& timeline, const hvd_recovery_info& recovery)
      : timeline_(timeline), recovery_(recovery) {}
  RecoverySlice(const RecoverySlice&) = delete;
  RecoverySlice& operator=(const RecoverySlice&) = delete;
  ~RecoverySlice() {
    if (!begun_) return;
    timeline_->end(TimelineRow::kGenerations, now(),
                   {{"to_generation", static_cast<int64_t>(recovery_.to_generation)},
                    {"attempts", int64_t{recovery_.attempts}},
                    {"sync_bytes", static_cast<int64_t>(recovery_.sync_bytes)}});
  }

  /// Once the silence of who was lost is known. `returned`: when the training function had.
  void begin(const std::string& reason, Time returned) {
    if (begun_ || !is_on(timeline_)) return;
    begun_ = true;
    constexpr TimelineRow kRow = TimelineRow::kGenerations;
    const Time learnt{Duration(recovery_.began_at_ns)};
    const Time began = learnt - Duration(recovery_.detection_ns);
    timeline_->begin(kRow, "recovery", began, {{"cause", status_name(recovery_.cause)}, {"reason", reason}});
    if (began < learnt) timeline_->slice(kRow, "detection", began, learnt);
    if (learnt < returned) timeline_->slice(kRow, "abort", learnt, returned);
  }

 private:
  const TimelinePtr& timeline_;
  const hvd_recovery_info& recovery_;
  bool begun_ = false;
};

}  // namespace

Status sync_now(Worker& worker, ElasticState& elastic) {
  EngineUse engine = worker.engine();
  if (!engine) return Status(HVD_CLOSED, "the context is closed");
  const hvd_membership_info place = worker.membership();
  state::Known known;
  if (!worker.has_synced(Worker::Syncs::kAny)) known = {summaries(worker.assignment()), false};
  state::SyncResult result;
  Status status = elastic.state.sync(*engine, place.rank, place.size, known,
                                     worker.operations().operation_timeout(), &result, true);
  if (status.ok()) worker.report_synced(result.revision, Worker::Syncs::kAny);
  return status;
}

Status save(Worker& worker, ElasticState& elastic) {
  const Time began = now();
  if (Status status = elastic.state.save(); !status.ok()) return status;
  worker.report(worker.progress().committed(began, now()));
  worker.set_revision(elastic.state.revision());
  return {};
}

namespace {

void tell_diverged(Worker& worker, const hvd_membership_info& place, const state::Diverged& diverged) {
  const bool mine =
      std::find(diverged.ranks.begin(), diverged.ranks.end(), place.rank) != diverged.ranks.end();
  if (mine || place.rank == 0) worker.log().warning("{}", diverged.text);
  for (const int32_t rank : diverged.ranks) {
    hvd_event event{};
    event.kind = HVD_EVENT_DIVERGED;
    event.generation = place.generation;
    event.membership_epoch = place.membership_epoch;
    event.rank = rank;
    event.size = place.size;
    std::strncpy(event.message, diverged.text.c_str(), sizeof(event.message) - 1);
    worker.notifications().post(event);
  }
}

/// Every so many commits: whoever holds other bytes than the others is named, and by option corrected or the
/// end.
Status compare(Worker& worker, ElasticState& elastic) {
  const state::Settings& settings = elastic.settings;
  const hvd_membership_info place = worker.membership();
  if (settings.divergence_every == 0 || place.size < 2) return {};
  if (elastic.state.revision() % settings.divergence_every != 0) return {};
  if (Status status = elastic.state.settle(); !status.ok()) return status;
  EngineUse engine = worker.engine();
  if (!engine) {
    const auto loss = worker.loss();
    return loss ? loss->status : Status(HVD_CLOSED, "the context is closed");
  }
  std::vector<state::Diverged> found;
  const Duration timeout = worker.operations().operation_timeout();
  if (Status status = elastic.state.find_diverged(*engine, place.rank, timeout, &found); !status.ok())
    return status;
  if (found.empty()) return {};
  std::set<int32_t> odd;  // ranks that differ in replicated values
  bool majority = true;
  for (const state::Diverged& diverged : found) {
    tell_diverged(worker, place, diverged);
    if (!diverged.kept) odd.insert(diverged.ranks.begin(), diverged.ranks.end());
    majority = majority && diverged.majority;
  }
  using enum state::Settings::OnDivergence;
  if (settings.on_divergence == kReport) return {};
  Status stop(HVD_MISMATCH, found.front().text);
  stop.rank = found.front().ranks.front();
  if (settings.on_divergence == kStop || !majority || odd.size() == static_cast<size_t>(place.size))
    return stop;
  // Live values are those of this commit on every rank: a sync corrects both.
  // All have this revision, as they have just told; whoever differs leads nobody, whatever it says.
  const uint64_t revision = elastic.state.revision();
  std::vector<state::Summary> known(static_cast<size_t>(place.size), {true, revision, {}});
  for (const int32_t rank : odd) known[static_cast<size_t>(rank)].has_state = false;
  if (odd.contains(place.rank)) elastic.state.disown();
  elastic.state.mend();
  state::SyncResult result;
  return elastic.state.sync(*engine, place.rank, place.size, {std::move(known), false}, timeout, &result);
}

Status committed(Worker& worker, ElasticState& elastic) {
  if (Status status = compare(worker, elastic); !status.ok()) return status;
  Status status = worker.check_host_updates();
  if (status.code == HVD_HOSTS_UPDATED) elastic.left = ElasticState::Left::kAtCommit;
  return status;
}

}  // namespace

Status commit(Worker& worker, ElasticState& elastic) {
  if (Status status = save(worker, elastic); !status.ok()) return status;
  return committed(worker, elastic);
}

Status commit_end(Worker& worker, ElasticState& elastic) {
  const Time began = now();
  if (Status status = elastic.state.end(); !status.ok()) return status;
  worker.report(worker.progress().committed(began, now()));  // what the program waited for
  worker.set_revision(elastic.state.revision());
  return committed(worker, elastic);
}

Status check_host_updates(Worker& worker, ElasticState& elastic) {
  Status status = worker.check_host_updates();
  if (status.code == HVD_HOSTS_UPDATED) elastic.left = ElasticState::Left::kAtCheck;
  return status;
}

Status RunLoop::next(hvd_status last, bool* ret_again) {
  if (over_) return Status(HVD_INVALID, "the loop is over: begin another one");
  Status status;
  bool again = true;
  if (!begun_) {
    begun_ = true;
    status = begin();
  } else if (last == HVD_PEER_LOST || last == HVD_HOSTS_UPDATED) {
    status = recover(last);
    if (!status.ok() && worker_.leaving().has_left()) {
      again = false;  // as was wished: that is success
      status = {};
    }
  } else {
    again = false;
    status = finished(last);
  }
  over_ = !again || !status.ok();
  if (status.ok() && again) worker_.progress().training(now());
  if (status.ok()) *ret_again = again;
  return status;
}

Status RunLoop::finished(hvd_status last) {
  if (last == HVD_OK) {
    worker_.report(worker_.progress().complete(now()));
    return {};
  }
  if (auto why = worker_.ended(); why && !why->ok()) return *why;
  return Status(last, fmt::format("the training function returned {}", status_name(last)));
}

Status RunLoop::begin() {
  worker_.feeding().feed_from(elastic_ == nullptr ? nullptr : elastic_->state.feed());
  if (elastic_ != nullptr) elastic_->state.take_fed(worker_.feeding().take_fed());
  if (!worker_.loss()) {
    state::SyncResult result;
    const state::Known known = known_at_the_beginning();
    // Live values are saved first, but where others have state: what was written since a commit counts.
    const bool late =
        std::any_of(known.ranks.begin(), known.ranks.end(), [](const auto& s) { return s.has_state; });
    Status status = sync(known, &result, !late);
    if (status.ok()) {
      worker_.report(worker_.progress().synced(result.sent_bytes + result.received_bytes));
      worker_.report_synced(result.revision);
      return status;
    }
    if (status.code != HVD_PEER_LOST) return status;
  }
  return recover(HVD_PEER_LOST);
}

/// The assignment's word, as long as it holds: before the first sync of the generation. A worker that comes
/// where others have state brings nothing that counts, also if its program has called for a sync already.
state::Known RunLoop::known_at_the_beginning() const {
  if (worker_.has_synced(Worker::Syncs::kRunLoops)) return {};
  std::vector<state::Summary> known = summaries(worker_.assignment());
  const auto rank = static_cast<size_t>(worker_.membership().rank);
  if (rank >= known.size() || known[rank].has_state) return {};
  const bool late = std::any_of(known.begin(), known.end(), [](const auto& s) { return s.has_state; });
  if (!late && worker_.has_synced(Worker::Syncs::kAny)) return {};
  return {std::move(known), false};
}

session::ReadyInfo RunLoop::ready(hvd_status cause) const {
  session::ReadyInfo info;
  info.cause = cause == HVD_PEER_LOST ? session::Cause::kPeerLost : session::Cause::kHostsUpdated;
  if (elastic_ != nullptr) {
    const state::Summary summary = elastic_->state.summary();
    info.has_state = summary.has_state;
    info.revision = summary.revision;
    info.digest = summary.digest;
  } else {
    info.has_state = true;  // nothing to keep: every survivor has it
  }
  return info;
}

/// Waits for a commit that is under way: what it comes to is what the others are told of this worker's state.
Status RunLoop::settle_commit() {
  Status status = elastic_->state.settle();
  if (!status.ok()) worker_.log().warning("{}", status.message);
  return status;
}

Status RunLoop::restore() {
  if (elastic_ == nullptr) return {};
  // A commit that has not arrived is none: the one before it is put back, and who has a newer one brings
  // that.
  if (Status status = settle_commit(); status.code == HVD_TIMEOUT || status.code == HVD_CLOSED) return status;
  if (!elastic_->state.has_commit()) return {};
  // Callbacks before the sync see all that was committed.
  return elastic_->state.restore(elastic_->reset_before_sync && !elastic_->reset_callbacks.empty());
}

Status RunLoop::keep_live_values() {
  if (elastic_ == nullptr) return {};
  // Everybody else left at the same commit or check, so everybody else counts the same revision. Who had
  // joined has values that are older than theirs, whatever it committed: it must not become the root
  // (contract 5).
  const ElasticState::Left left = std::exchange(elastic_->left, ElasticState::Left::kInJoin);
  if (left == ElasticState::Left::kInJoin) {
    // No commit of shards is older than another's: nobody commits without this worker.
    if (elastic_->state.has_shards() && elastic_->state.has_commit()) return elastic_->state.restore();
    Status status = elastic_->state.refresh();
    return status.ok() ? settle_commit() : status;
  }
  Status status;
  if (left == ElasticState::Left::kAtCommit) status = settle_commit();
  if (left == ElasticState::Left::kAtCheck && elastic_->state.has_shards() && elastic_->state.has_commit()) {
    bool joined = false;
    if (status = elastic_->state.has_anybody_joined(&joined); !status.ok()) return status;
    // Live values would lack the shards of a rank that waits in its join and goes back: so do all.
    if (joined) return elastic_->state.restore();
  }
  // If its copy failed the values are those of the commit still.
  if (left != ElasticState::Left::kAtCommit || status.code == HVD_INTERNAL) {
    status = save(worker_, *elastic_);
    if (status.ok()) status = settle_commit();
  }
  return status.ok() ? elastic_->state.hand_over() : status;
}

Status RunLoop::sync(const state::Known& known, state::SyncResult* result, bool refresh_first) {
  if (elastic_ == nullptr) return {};
  EngineUse engine = worker_.engine();
  if (!engine) return Status(HVD_CLOSED, "the context is closed");
  const hvd_membership_info place = worker_.membership();
  return elastic_->state.sync(*engine, place.rank, place.size, known,
                              worker_.operations().operation_timeout(), result, refresh_first);
}

Status RunLoop::run_reset_callbacks() {
  if (elastic_ == nullptr || elastic_->reset_callbacks.empty()) return {};
  const Time began = now();
  Status status;
  for (size_t i = 0; status.ok() && i < elastic_->reset_callbacks.size(); ++i) {
    const Callback<hvd_reset_fn> callback = elastic_->reset_callbacks[i];
    const int32_t result = callback();
    if (result == 0) continue;
    // A callback may fail because a peer was lost meanwhile: then that is the reason.
    if (auto loss = worker_.loss()) {
      status = loss->status;
    } else {
      status = Status(HVD_CALLBACK_FAILED, fmt::format("reset callback {} returned {}", i, result));
    }
  }
  record("reset callbacks", began);
  return status;
}

/// A phase of a recovery, until now.
void RunLoop::record(const char* phase, Time began) const {
  const TimelinePtr& timeline = worker_.timeline();
  if (is_on(timeline)) timeline->slice(TimelineRow::kGenerations, phase, began, now());
}

Status RunLoop::settle(hvd_recovery_info* recovery, const std::vector<state::Summary>& known) {
  // Before the sync: what callbacks have set goes to newcomers, and operations in them meet those that
  // newcomers call before their training function.
  const bool resets_first =
      elastic_ != nullptr && elastic_->reset_before_sync && !elastic_->reset_callbacks.empty();
  if (resets_first) {
    if (Status status = run_reset_callbacks(); !status.ok()) return status;
  }
  const Time began = now();
  state::SyncResult result;
  Status status = sync(known, &result, resets_first);
  record("sync", began);
  recovery->sync_ns += count(now() - began);
  if (!status.ok()) return status;
  recovery->revision = result.revision;
  recovery->sync_bytes += result.sent_bytes + result.received_bytes;
  worker_.report(worker_.progress().synced(result.sent_bytes + result.received_bytes));
  worker_.report_synced(result.revision);
  return resets_first ? Status() : run_reset_callbacks();
}

Status RunLoop::recover(hvd_status cause) {
  Status status = try_to_recover(cause);
  // Without a sync nobody has written them.
  const bool writes_shards = !status.ok() && elastic_ != nullptr && elastic_->state.has_shards();
  if (writes_shards && elastic_->state.has_commit()) static_cast<void>(elastic_->state.restore());
  return status;
}

Status RunLoop::try_to_recover(hvd_status cause) {
  const hvd_membership_info from = worker_.membership();
  hvd_recovery_info recovery{};
  recovery.struct_size = sizeof(recovery);
  recovery.cause = cause;
  recovery.from_generation = from.generation;
  recovery.from_size = from.size;
  const Time returned = now();
  Time began = returned;
  std::string reason = "hosts were updated";
  if (cause == HVD_PEER_LOST) {
    // The program may know of a loss before anybody else, or before the thread that broke the engine says so:
    // then everybody is told.
    if (!worker_.loss()) {
      const Status seen = worker_.engine_failure();
      const bool named = seen.code == HVD_PEER_LOST;
      worker_.lose(named ? seen.rank : -1,
                   named ? seen.message : fmt::format("rank {} reports a lost peer", from.rank));
    }
    const std::optional<Loss> loss = worker_.loss();
    if (!loss) return worker_.why_no_engine();  // aborted or shut down: no other generation comes
    began = std::min(loss->at, returned);
    reason = loss->status.message;
  }
  if (cause == HVD_PEER_LOST) worker_.progress().lost();
  recovery.began_at_ns = count(began.time_since_epoch());
  recovery.abort_ns = count(returned - began);

  RecoverySlice slice(worker_.timeline(), recovery);
  hvd_status attempt = cause;
  while (true) {
    const Time restoring = now();
    Status status = attempt == HVD_PEER_LOST ? restore() : keep_live_values();
    if (status.code == HVD_PEER_LOST && attempt != HVD_PEER_LOST) {
      attempt = HVD_PEER_LOST;  // lost meanwhile: what devices hold can't be kept
      status = restore();
    }
    if (!status.ok()) return status;
    if (attempt == HVD_PEER_LOST) recovery.restore_ns += count(now() - restoring);

    EntryTimes times;
    const Duration silence = worker_.loss() ? worker_.loss()->silence : Duration(0);
    if (cause == HVD_PEER_LOST) recovery.detection_ns = std::max(recovery.detection_ns, count(silence));
    slice.begin(reason, returned);
    if (attempt == HVD_PEER_LOST) record("restore", restoring);
    status = worker_.enter(ready(attempt), worker_.init_timeout(), &times);
    recovery.forming_ns += count(times.forming);
    recovery.connecting_ns += count(times.connecting);
    recovery.attempts += times.attempts;
    if (!status.ok()) return status;

    status = settle(&recovery, summaries(worker_.assignment()));
    if (status.ok()) break;
    // Contract 3: whatever came in between, a generation that is lost is tried again with those who live.
    if (auto why = worker_.ended(); why && !why->ok()) return *why;
    if (status.code != HVD_PEER_LOST && status.code != HVD_HOSTS_UPDATED) return status;
    if (!worker_.loss()) worker_.lose(status.rank, status.message);
    worker_.log().info("generation {} was lost while it was formed: {}", worker_.membership().generation,
                       status.message);
    attempt = HVD_PEER_LOST;
  }

  // The driver knows better than a broken link who was lost.
  if (const std::string told = worker_.assignment().reason; !told.empty()) reason = told;
  const hvd_membership_info to = worker_.membership();
  recovery.to_generation = to.generation;
  recovery.to_size = to.size;
  recovery.spares = worker_.assignment().spares;
  recovery.total_ns = count(now() - began);
  std::strncpy(recovery.reason, reason.c_str(), sizeof(recovery.reason) - 1);
  worker_.report_recovered(recovery);
  hvd_event event{};
  event.kind = HVD_EVENT_RECOVERED;
  event.generation = to.generation;
  event.membership_epoch = to.membership_epoch;
  event.rank = -1;
  event.size = to.size;
  std::strncpy(event.message, reason.c_str(), sizeof(event.message) - 1);
  worker_.notifications().post(event);
  return {};
}

}  // namespace hvd::elastic
