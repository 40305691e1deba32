// Which of two ways to go through memory is the faster one on this machine: both take turns until that is
// clear.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <optional>

#include "base/clock.h"

namespace hvd {

/// A pure function of sizes and times. The second way is chosen if its median time of a byte is clearly less.
class WayTrial {
 public:
  static constexpr size_t kTurns = 15;  // of each way: the first ones also wait for pages that nobody had
  static constexpr double kClearly = 0.95;

  /// The way whose turn it is, 0 or 1: 0 1 1 0 0 1 1 0, so that neither is always the first of a pair.
  size_t turn() const { return (taken_ + 1) / 2 % 2; }

  /// That way took `time` for so many bytes (above 0): the choice, once both have had their turns.
  std::optional<size_t> took(size_t bytes, Duration time) {
    if (taken_ == 2 * kTurns) return choice();
    times_[turn()][taken_ / 2] = static_cast<double>(time.count()) / static_cast<double>(bytes);
    if (++taken_ < 2 * kTurns) return std::nullopt;
    for (auto& times : times_) std::sort(times.begin(), times.end());
    return choice();
  }

 private:
  size_t choice() const { return times_[1][kTurns / 2] < kClearly * times_[0][kTurns / 2] ? 1 : 0; }

  std::array<std::array<double, kTurns>, 2> times_{};
  size_t taken_ = 0;
};

/// Two ways of one thing that is done again and again, from any thread. Lasts as long as the process.
class TwoWays {
 public:
  static constexpr size_t kLeast = size_t{16} << 10;  // bytes that tell anything

  /// Calls go(way) once, with 0 or 1. Both ways have the same result.
  template <class Go>
  void run(size_t bytes, Go&& go) {
    const int chosen = chosen_.load(std::memory_order_relaxed);
    if (chosen >= 0) return go(static_cast<size_t>(chosen));
    const std::unique_lock lock(mutex_, std::try_to_lock);  // one thread tries; the others go on meanwhile
    if (!lock.owns_lock() || bytes < kLeast) return go(size_t{0});
    const Time began = now();
    go(trial_.turn());
    if (const auto choice = trial_.took(bytes, now() - began)) chosen_ = static_cast<int>(*choice);
  }

 private:
  std::atomic<int> chosen_{-1};
  std::mutex mutex_;
  WayTrial trial_;  // under the mutex
};

}  // namespace hvd
