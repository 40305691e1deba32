// The record of recoveries of one worker.
#pragma once

#include <deque>
#include <mutex>

#include "base/status.h"

namespace hvd::elastic {

inline constexpr size_t kRecoveriesKept = 1024;

/// Thread-safe.
class RecoveryLog {
 public:
  void add(const hvd_recovery_info& recovery) {
    std::lock_guard lock(mutex_);
    if (recoveries_.size() == kRecoveriesKept) recoveries_.pop_front();
    recoveries_.push_back(recovery);
  }

  size_t count() const {
    std::lock_guard lock(mutex_);
    return recoveries_.size();
  }

  /// Throws Error(HVD_INVALID) if there is none.
  hvd_recovery_info at(size_t index) const {
    std::lock_guard lock(mutex_);
    if (index >= recoveries_.size()) {
      throw Error(HVD_INVALID, "recovery " + std::to_string(index) + " of " +
                                   std::to_string(recoveries_.size()) +
                                   " asked for: the index counts from 0");
    }
    return recoveries_[index];
  }

 private:
  mutable std::mutex mutex_;
  std::deque<hvd_recovery_info> recoveries_;
};

}  // namespace hvd::elastic
