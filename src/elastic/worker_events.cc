// What happens to a worker between entering a generation and leaving it: operations, losses, events.
#include <algorithm>
#include <cstring>

#include "elastic/worker.h"

namespace hvd::elastic {

namespace {

template <size_t N>
void copy_text(char (&target)[N], const std::string& text) {
  const size_t length = std::min(text.size(), N - 1);
  std::memcpy(target, text.data(), length);
  target[length] = 0;
}

/// On the timeline.
const char* name_of(hvd_event_kind kind) {
  switch (kind) {
    case HVD_EVENT_PEER_LOST: return "peer lost";
    case HVD_EVENT_JOB_ENDED: return "job ended";
    case HVD_EVENT_DRIVER_LOST: return "driver lost";
    case HVD_EVENT_STALLED: return "stalled";
    case HVD_EVENT_DIVERGED: return "diverged";
    case HVD_EVENT_DRIVER_BACK: return "driver back";
    default: return "event";
  }
}

/// A word is an epoch * 2 + whether hosts have changed: the newest epoch that any rank knows decides, by its
/// own flag.
bool is_interrupt(uint64_t word) { return (word & 1U) != 0; }

}  // namespace

Status verdict_on(uint64_t word, uint64_t epoch) {
  if (!is_interrupt(word) || (word >> 1U) <= epoch) return {};
  return Status(
      HVD_HOSTS_UPDATED,
      fmt::format("hosts changed: membership epoch is {}, this generation has {}", word >> 1U, epoch));
}

bool Worker::lose_generation(uint64_t generation, const Status& why, Duration silence, Report report) {
  const bool leaving = leaving_.shuts_down();
  switch (current_.lose(generation, why, silence, report == Report::kNo)) {
    case CurrentGeneration::Lost::kNot: return false;
    case CurrentGeneration::Lost::kBefore:
      // As true as before, and the next generation would break by it as well.
      if (report == Report::kUnfit && session() != nullptr) {
        session()->report_failure(generation, why.rank, why.message, true);
      }
      return false;
    case CurrentGeneration::Lost::kNow: break;
  }
  if (EngineUse use = engine(generation)) use->fail(why);
  if (report != Report::kNo && leaving)
    return true;  // a peer closed its links first: the driver tells how the job ends
  if (report != Report::kNo && session() != nullptr) {
    session()->report_failure(generation, why.rank, why.message, report == Report::kUnfit);
  }
  session_log_->info("generation {} is lost: {}", generation, why.message);
  post_event(HVD_EVENT_PEER_LOST, generation, why.rank, 0, why.message);
  return true;
}

void Worker::lose(int32_t rank, const std::string& reason) {
  Status why(HVD_PEER_LOST, reason);
  lose_generation(current_.generation(), why.at_rank(rank), Duration(0), Report::kFailure);
}

void Worker::unfit(int32_t rank, const std::string& reason) {
  Status why(HVD_PEER_LOST, reason);
  lose_generation(current_.generation(), why.at_rank(rank), Duration(0), Report::kUnfit);
}

void Worker::on_abort(const session::AbortInfo& info) {
  Status why(HVD_PEER_LOST, info.reason);
  lose_generation(info.generation, why.at_rank(info.rank).in_generation(info.generation), info.silence,
                  Report::kNo);
}

void Worker::on_hosts_updated(const session::HostsUpdate& update) {
  {
    std::lock_guard lock(mutex_);
    for (const std::string& host : update.added) shrinking_.erase(host);
    shrinking_.insert(update.removed.begin(), update.removed.end());
  }
  std::string text = fmt::format("membership epoch {}", update.epoch);
  for (const std::string& host : update.added) text += " +" + host;
  for (const std::string& host : update.removed) text += " -" + host;
  session_log_->info("hosts updated: {}{}", text, update.interrupt ? "" : " (no change for this generation)");
  hvd_event event{};
  event.kind = HVD_EVENT_HOSTS_UPDATED;
  event.membership_epoch = update.epoch;
  event.rank = -1;
  const hvd_membership_info place = membership();
  event.generation = place.generation;
  event.size = place.size;
  copy_text(event.message, text);
  if (is_on(timeline_)) {
    timeline_->instant("hosts updated", now(), {{"message", text}, {"interrupt", int64_t{update.interrupt}}});
  }
  notifications_.post(event);
}

void Worker::on_ended(const Status& why) {
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = why;
  }
  current_.fail(why.ok() ? Status(HVD_CLOSED, "the job has ended") : why);
  post_event(why.code == HVD_DRIVER_LOST ? HVD_EVENT_DRIVER_LOST : HVD_EVENT_JOB_ENDED, 0, -1, 0,
             why.message);
}

hvd_membership_info Worker::membership() const {
  hvd_membership_info place = current_.place();
  if (const session::Session* const now = session()) place.term = now->term();
  return place;
}

// contract 14: training goes on without a driver; who wants to know is told.
void Worker::on_driver_changed(const session::DriverChange& change) {
  const hvd_membership_info place = membership();
  post_event(change.lost ? HVD_EVENT_DRIVER_LOST : HVD_EVENT_DRIVER_BACK, place.generation, -1, place.size,
             change.message);
}

// The engine has logged it.
void Worker::on_stalled(const std::string& text, const std::vector<int32_t>& missing, Duration waited) {
  const hvd_membership_info place = membership();
  if (session() != nullptr) session()->report_stall(place.generation, text, missing, waited);
  post_event(HVD_EVENT_STALLED, place.generation, missing.empty() ? -1 : missing.front(), place.size, text);
}

void Worker::post_event(hvd_event_kind kind, uint64_t generation, int32_t rank, int32_t size,
                        const std::string& message) {
  if (is_on(timeline_) && kind != HVD_EVENT_GENERATION) {  // whose place says it
    timeline_->instant(
        name_of(kind), now(),
        {{"message", message}, {"generation", static_cast<int64_t>(generation)}, {"rank", int64_t{rank}}});
  }
  hvd_event event{};
  event.kind = kind;
  event.generation = generation;
  event.membership_epoch = membership().membership_epoch;
  event.rank = rank;
  event.size = size;
  copy_text(event.message, message);
  notifications_.post(event);
}

std::optional<Status> Worker::ended() const {
  std::lock_guard lock(mutex_);
  return ended_;
}

Status Worker::backend_choice(hvd_memory memory, hvd_dtype dtype, hvd_collective collective,
                              backend::Choice* ret_choice) {
  const EngineUse use = engine();  // the backend stays while it is held
  if (use) return instance_->choice(memory, dtype, collective, ret_choice);
  return current_.why_no_engine();
}

Status Worker::check_host_updates() {
  if (session() == nullptr) {
    if (const auto why = current_.closed()) return *why;
    std::string wish = leaving_.wish();
    return wish.empty() ? Status() : Status(HVD_HOSTS_UPDATED, std::move(wish));
  }
  const EngineUse use = engine();
  if (!use) return current_.why_no_engine();
  uint64_t word = 0;
  Status status = use->check(submitter_.operation_timeout(), &word);
  if (status.ok() && is_interrupt(word)) status = verdict_on(word, use.place().membership_epoch);
  return status;
}

void Worker::report_synced(uint64_t revision, Syncs by) {
  const uint64_t generation = current_.generation();
  set_revision(revision);
  const bool first = synced_in_.exchange(generation) != generation;
  const bool runs_first = by == Syncs::kRunLoops && run_synced_in_.exchange(generation) != generation;
  if ((first || runs_first) && session() != nullptr) session()->report_synced(generation, revision);
}

bool Worker::has_synced(Syncs by) const {
  return (by == Syncs::kAny ? synced_in_ : run_synced_in_) == current_.generation();
}

void Worker::set_revision(uint64_t revision) {
  {
    std::lock_guard lock(mutex_);
    revision_ = revision;
  }
  if (session() != nullptr) session()->set_revision(revision);
}

void Worker::report(const session::Progress& progress) {
  if (session() != nullptr) session()->set_progress(progress);
}

void Worker::report_recovered(const hvd_recovery_info& recovery) {
  recoveries_.add(recovery);
  if (session() != nullptr) session()->report_recovered(recovery.to_generation, recovery);
}

}  // namespace hvd::elastic
