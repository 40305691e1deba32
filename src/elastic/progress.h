// What a worker has done since its process began, for the driver: commits, and the training that they keep.
#pragma once

#include <mutex>
#include <optional>

#include "base/clock.h"
#include "session/session.h"

namespace hvd::elastic {

/// Thread-safe. docs/observability.md defines what is useful.
class ProgressMeter {
 public:
  /// The training function is called (again).
  void training(Time now) {
    std::lock_guard lock(mutex_);
    since_ = now;
  }
  /// It has lost its peers or failed: what came after the last commit is done again or for nothing.
  void lost() {
    std::lock_guard lock(mutex_);
    since_.reset();
  }
  /// All until `began` is kept by a commit, for which the program waited until `ended`.
  session::Progress committed(Time began, Time ended) {
    std::lock_guard lock(mutex_);
    keep(began);
    since_ = ended;
    ++progress_.commits;
    progress_.commit += ended - began;
    return progress_;
  }
  /// All until now is kept without a commit: training is complete.
  session::Progress complete(Time now) {
    std::lock_guard lock(mutex_);
    keep(now);
    since_.reset();
    return progress_;
  }
  session::Progress synced(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    progress_.sync_bytes += bytes;
    return progress_;
  }

 private:
  void keep(Time until) {
    if (since_ && until > *since_) progress_.useful += until - *since_;
  }
  std::mutex mutex_;
  session::Progress progress_;
  std::optional<Time> since_;  // nothing is kept yet of what came after
};

}  // namespace hvd::elastic
