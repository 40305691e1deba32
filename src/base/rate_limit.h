// Lets so many events through at once and then one an interval; counts those that it holds back. Pure: time
// is an argument.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/clock.h"

namespace hvd {

class RateLimit {
 public:
  /// burst: at least 1. interval: above zero.
  RateLimit(int64_t burst, Duration interval) : burst_(burst), interval_(interval), left_(burst) {}

  /// Whether this event may pass.
  bool pass(Time now) {
    if (!filled_) filled_ = now;
    const int64_t gained = std::max<int64_t>(0, (now - *filled_) / interval_);
    left_ = std::min(burst_, left_ + std::min(gained, burst_));
    *filled_ += gained * interval_;
    if (left_ == 0) {
      ++held_back_;
      return false;
    }
    --left_;
    return true;
  }

  /// How many were held back since this was asked last.
  uint64_t held_back() { return std::exchange(held_back_, 0); }

 private:
  const int64_t burst_;
  const Duration interval_;
  int64_t left_;
  std::optional<Time> filled_;
  uint64_t held_back_ = 0;
};

}  // namespace hvd
