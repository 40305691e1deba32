// Follows a job's events and remembers what a snapshot tells of the past. Pure: time is an argument.
#pragma once

#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "status/snapshot.h"

namespace hvd::status {

/// What a worker has done since its process began. None of it ever falls.
struct Progress {
  uint64_t commits = 0;
  Duration useful{0}, commit{0};
  uint64_t sync_bytes = 0;
};

class Recorder {
 public:
  static constexpr size_t kGenerations = 64;  // that are kept

  explicit Recorder(Time began) : began_(began) {}

  void formed(uint64_t generation, const std::vector<uint64_t>& members, const std::string& reason, Time now);
  void lost(uint64_t generation, Time now);
  /// Of a member, at any time until it is gone. What is less than before is the word of a confused worker and
  /// ignored.
  void progress(uint64_t worker, const Progress& progress, Time now);
  void recovered(uint64_t worker, uint64_t generation, const Recovery& recovery);
  /// An operation has waited for so long; reports of one operation come at doubling times.
  void stalled(const std::string& text, Duration waited, Time now);
  void gone(uint64_t worker) { workers_.erase(worker); }
  void ended(Time now);

  /// All but what only the driver knows; `view` of a worker that is in `snapshot->all` already.
  void fill(Snapshot* snapshot, Time now) const;

 private:
  struct Sample {
    Time at;
    uint64_t commits;
  };
  struct Worker {
    Progress last;
    bool told = false;
    int32_t size = 1;  // of its generation
    std::deque<Sample> samples;
    std::optional<Recovery> recovery;
  };
  struct Stall {
    std::string operation;
    Time until;  // no later report of it by then: it goes on
  };
  static double rate_of(const Worker& worker, Time now);

  const Time began_;
  std::optional<Time> ended_;
  std::unordered_map<uint64_t, Worker> workers_;
  std::deque<GenerationView> generations_;
  std::vector<Stall> stalls_;
  std::array<uint64_t, kCauses> resets_{};
  std::array<Histogram, kPhases> recoveries_{};
  double useful_ = -1;
  Progress total_;
};

}  // namespace hvd::status
