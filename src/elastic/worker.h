// One worker: its session with the driver, its backend, and the engine of the generation it is in. A
// worker that is alone has no session, and a generation that is never lost.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/loop.h"
#include "base/options.h"
#include "collective/engine.h"
#include "elastic/current_generation.h"
#include "elastic/engine_timer.h"
#include "elastic/feeding.h"
#include "elastic/leaving.h"
#include "elastic/notification_manager.h"
#include "elastic/process_set.h"
#include "elastic/progress.h"
#include "elastic/recovery_log.h"
#include "elastic/submitter.h"
#include "session/session.h"
#include "state/device_copies.h"
#include "state/state.h"
#include "timeline/timeline.h"

namespace hvd::elastic {

/// What an agreed epoch word means in a generation that takes `epoch` into account: HVD_HOSTS_UPDATED, or
/// HVD_OK.
Status verdict_on(uint64_t word, uint64_t epoch);

/// How long the parts of entering a generation took.
struct EntryTimes {
  Duration forming{0}, connecting{0};
  int32_t attempts = 0;  // generations tried
};

/// Thread-safe, but for enter(), which the elastic loop calls in one thread at a time.
class Worker {
 public:
  /// Of no job yet. Never blocks.
  explicit Worker(const Options& options);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();  // close

  /// Joins the job and its first generation, within option init_timeout or `timeout`. Once. `options` may say
  /// more than at construction: who this worker is, where the driver is. HVD_CLOSED as soon as the worker is
  /// aborted or closed.
  Status open(const Options& options, Duration timeout);
  /// Gives everything up and ends every thread; whoever is in a call comes out with `why`. Idempotent.
  void close(const Status& why, Duration linger);

  /// Leaves in peace: see hvd_shutdown. `done`: says that it is done.
  Status shutdown(Duration timeout, bool done);
  Leaving& leaving() { return leaving_; }
  /// Leaves at once; everything pending and later fails with `why`.
  void abort(const Status& why);

  hvd_membership_info membership() const;
  const backend::Description& backend() const { return backend_; }
  std::string backend_detail() const;
  /// See backend::Instance::choice; between generations, why there is none.
  Status backend_choice(hvd_memory memory, hvd_dtype dtype, hvd_collective collective,
                        backend::Choice* ret_choice);

  /// For states; stays when the worker is gone, and is of no use then.
  const std::shared_ptr<state::DeviceCopies>& copies() const { return copies_; }

  /// Operations of the current generation.
  Submitter& operations() { return submitter_; }
  /// Whom a process set means in the current generation.
  std::shared_ptr<const SetPlace> place_in(ProcessSet& set) const { return current_.place_in(set, false); }

  /// Contract 1: the same answer on every rank that asks at the same point.
  Status check_host_updates();

  // For the elastic loop.
  /// Gives the current generation up and becomes a member of the next one. `ready` needs no addresses.
  Status enter(session::ReadyInfo ready, Duration timeout, EntryTimes* times);
  /// Why the current generation is lost; nothing while it is whole.
  std::optional<Loss> loss() const { return current_.loss(); }
  /// Why the current generation's engine does not work any more; HVD_OK: nothing is known of that.
  Status engine_failure() {
    const EngineUse use = engine();
    return use ? use->failure() : Status();
  }
  /// The data plane or the program says that the generation is lost: the driver and all pending operations
  /// are told.
  void lose(int32_t rank, const std::string& reason);
  /// What this rank brings does not fit what this worker has: the generation is lost, the driver sends one of
  /// them away.
  void unfit(int32_t rank, const std::string& reason);
  /// No more generations: why. Nothing while the job goes on.
  std::optional<Status> ended() const;
  /// Nothing between generations, after the end, and if another generation than the one given is current.
  EngineUse engine(std::optional<uint64_t> generation = std::nullopt) { return current_.engine(generation); }
  /// Why there is none.
  Status why_no_engine() const { return current_.why_no_engine(); }
  session::Assignment assignment() const { return current_.assignment(); }
  /// In which shards of a state travel. Fails with why there is none.
  Status generation(state::Generation* ret_generation);
  enum class Syncs { kRunLoops, kAny };
  /// by: kAny: the program has called for it.
  void report_synced(uint64_t revision, Syncs by = Syncs::kRunLoops);
  /// A state was synced in the current generation: what its assignment says of states holds no more.
  bool has_synced(Syncs by) const;
  void set_revision(uint64_t revision);
  /// What the driver is told of this worker's training, and of how it came into its generation.
  ProgressMeter& progress() { return progress_; }
  void report(const session::Progress& progress);
  void report_recovered(const hvd_recovery_info& recovery);
  Duration init_timeout() const { return init_timeout_; }
  Feeding& feeding() { return feeding_; }

  NotificationManager& notifications() { return notifications_; }
  RecoveryLog& recoveries() { return recoveries_; }
  const TimelinePtr& timeline() const { return timeline_; }
  Logger& log() const { return *logger_; }
  LoggerPtr logger() const { return logger_; }

 private:
  /// Open or enter under way: close waits for it before it takes away what they work on.
  class Entering;
  Status open_within(const Options& options, Duration timeout);
  Status apply(Options* options, Duration timeout);
  Status enter_within(session::ReadyInfo ready, Duration timeout, EntryTimes* times);
  session::Session* session() const { return session_now_.load(std::memory_order_acquire); }
  Status connect(const session::Assignment& assignment);
  void become(const session::Assignment& assignment);
  void release_engine(const Status& why);
  enum class Report { kNo, kFailure, kUnfit };  // what the driver is told
  bool lose_generation(uint64_t generation, const Status& why, Duration silence, Report report);
  void on_abort(const session::AbortInfo& info);
  void on_hosts_updated(const session::HostsUpdate& update);
  void on_ended(const Status& why);
  void on_driver_changed(const session::DriverChange& change);
  void on_stalled(const std::string& text, const std::vector<int32_t>& missing, Duration waited);
  void post_event(hvd_event_kind kind, uint64_t generation, int32_t rank, int32_t size,
                  const std::string& message);

  const LoggerPtr logger_;
  const LoggerPtr
      session_log_;  // for the session's thread, whose heartbeats nothing of the program may hold up
  uint64_t worker_;  // known when open begins
  const Duration connect_timeout_, init_timeout_, stall_warning_;
  const uint64_t fusion_threshold_;
  const bool deterministic_, join_counts_;
  const std::string divergence_every_, on_divergence_;  // the same on all workers
  NotificationManager notifications_;
  RecoveryLog recoveries_;
  ProgressMeter progress_;
  const TimelinePtr timeline_;

  CurrentGeneration current_;
  Submitter submitter_;

  mutable std::mutex mutex_;  // taken before current_'s
  std::optional<Status> ended_;
  std::set<std::string> shrinking_;  // hosts that had slots taken away since this generation began
  bool entering_ = false;
  std::condition_variable entered_;
  uint64_t revision_ = 0;
  static constexpr uint64_t kNone = ~uint64_t{0};
  std::atomic<uint64_t> synced_in_{kNone}, run_synced_in_{kNone};  // generations: the newest

  Feeding feeding_;

  std::mutex close_mutex_;
  Loop timers_;
  EngineTimer engine_timer_;
  Leaving leaving_;
  backend::Description backend_;
  std::string backend_detail_;
  const std::shared_ptr<state::DeviceCopies> copies_;  // the instance's
  std::unique_ptr<backend::Instance> instance_;
  std::unique_ptr<session::Session> session_;  // none if the worker is alone
  std::atomic<session::Session*> session_now_{nullptr};
};

}  // namespace hvd::elastic
