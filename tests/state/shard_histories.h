// Histories of a job with shards: other sizes, and commits and syncs that are cut off at every point.
#pragma once

#include "state/shard_workers.h"

namespace hvd::state {

/// One copy of each shard, and parity instead.
inline constexpr int32_t kKept[] = {1, parity_of(2), parity_of(3)};

/// `kept`: copies or parity of the longer key.
struct ShardHistories : ShardJob {
  /// A job of four that loses workers and gains others, several times.
  void change_sizes(int32_t kept);
  void cut_off_commits(int32_t kept);
  /// Every so many ranks are lost in turns.
  void cut_off_syncs(size_t every);
  /// A worker is lost, another takes its place, and the sync is cut off: nobody tries again.
  void give_up(int32_t kept);
  /// Two at once, in a commit or a sync, at every point: with two copies nothing is lost, with one all is
  /// there or the sentence says what is not.
  void lose_two(int32_t kept, bool in_commit);
  /// One leaves as planned; of the others as many are lost as may be before copies are made anew.
  void leave_and_lose(int32_t kept, int32_t size);
  void random_histories(uint32_t seeds);
};

}  // namespace hvd::state
