// The elastic loop: what happens between two calls of the training function.
#pragma once

#include <vector>

#include "base/callback.h"
#include "elastic/worker.h"
#include "state/state.h"

namespace hvd::elastic {

/// A state and what belongs to it in the elastic loop.
struct ElasticState {
  explicit ElasticState(LoggerPtr logger, TimelinePtr timeline = nullptr,
                        std::shared_ptr<state::DeviceCopies> copies = nullptr,
                        const state::Settings& given = {})
      : settings(given), state(std::move(logger), std::move(timeline), std::move(copies), given) {}

  const state::Settings settings;
  state::State state;
  std::vector<Callback<hvd_reset_fn>> reset_callbacks;
  /// They run before the sync of a new generation, and what they change is part of it.
  bool reset_before_sync = false;
  /// Where HVD_HOSTS_UPDATED came from. From a commit: live values are the last commit already. From a check:
  /// they are to be kept. From neither: this worker had joined, and the others went on without it.
  enum class Left : uint8_t { kInJoin, kAtCommit, kAtCheck };
  Left left = Left::kInJoin;
};

/// Explicit sync: see hvd_state_sync.
Status sync_now(Worker& worker, ElasticState& elastic);
/// See hvd_state_save, hvd_state_commit, hvd_state_commit_end and hvd_state_check_host_updates.
Status save(Worker& worker, ElasticState& elastic);
Status commit(Worker& worker, ElasticState& elastic);
Status commit_end(Worker& worker, ElasticState& elastic);
Status check_host_updates(Worker& worker, ElasticState& elastic);

/// One thread at a time.
class RunLoop {
 public:
  /// `elastic` may be NULL: nothing to keep. Both outlive the loop.
  RunLoop(Worker& worker, ElasticState* elastic) : worker_(worker), elastic_(elastic) {}

  /// Prepares the next call of the training function, given what the last one returned (ignored the first
  /// time). *ret_again: call it; otherwise training is complete. On failure the loop is over.
  Status next(hvd_status last, bool* ret_again);

 private:
  Status begin();
  Status recover(hvd_status cause);
  Status try_to_recover(hvd_status cause);
  Status restore();
  Status keep_live_values();
  Status settle_commit();
  void record(const char* phase, Time began) const;
  Status settle(hvd_recovery_info* recovery, const std::vector<state::Summary>& known);
  Status run_reset_callbacks();
  state::Known known_at_the_beginning() const;
  Status sync(const state::Known& known, state::SyncResult* result, bool refresh_first = false);
  session::ReadyInfo ready(hvd_status cause) const;
  Status finished(hvd_status last);

  Worker& worker_;
  ElasticState* const elastic_;
  bool begun_ = false;
  bool over_ = false;
};

}  // namespace hvd::elastic
