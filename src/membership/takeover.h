// What a driver knows of a job that it takes over: by its predecessor's journal, and by what workers say that
// come back. No moment in it is a time of day: a clock that jumps changes nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "membership/membership.h"

namespace hvd::membership {

/// A host with the failures of its slots. Durations count from when the record was made.
struct KnownHost {
  struct Slot {
    int32_t slot = 0, failures = 0;
    Duration wait{0};  // until it may be used again
    bool abandoned = false;
    bool operator==(const Slot&) const = default;
  };
  Name name;
  int32_t slots = 0, failures = 0, blockings = 0;
  uint64_t failed_generation = 0;
  bool blocked = false;
  std::optional<Duration> blocked_for;  // absent: for good
  std::vector<Slot> records;
  bool drained = false;
  std::vector<int32_t> withdrawn;  // slots that are drained by themselves
  bool operator==(const KnownHost&) const = default;
};

/// A worker that was started and not lost, stopped or done.
struct KnownWorker {
  uint64_t worker = 0;
  Name host;
  int32_t slot = 0;
  bool ever_synced = false;
  bool own_place = false;  // it came by itself
  bool drained = false;    // it leaves as its host is drained
  std::optional<Duration> leaves_within;
  std::string leaves_why;
  bool operator==(const KnownWorker&) const = default;
};

struct KnownJob {
  bool told =
      false;  // all of it, by a journal of which nothing can be missing; else workers that come back tell more
  uint64_t generation = 0, epoch = 0, next_worker = 1;
  int32_t resets = 0, excused = 0;
  bool initial = true, state_exists = false, fresh = false;
  bool interrupted = false;        // the members of the generation were to leave it by agreement
  bool aborted = false;            // the generation is lost
  std::optional<uint64_t> newest;  // revision that no member of the generation can have passed
  std::vector<uint64_t> members;   // by rank, also those that ended since
  std::vector<KnownWorker> workers;
  std::vector<uint64_t> done;  // of whichever generation
  std::vector<KnownHost> hosts;
  std::optional<int32_t> scaled;  // an operator's maximum
  std::string last_loss;
  std::optional<Finish> finish;  // the job has ended
  bool operator==(const KnownJob&) const = default;
};

}  // namespace hvd::membership
