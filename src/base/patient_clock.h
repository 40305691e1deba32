// The clock of PatientTime. Deadlines of others are measured by it where the process may be stopped for
// longer than they are given (contract 19).
#pragma once

#include <functional>
#include <utility>

#include "base/held_up.h"
#include "base/loop.h"

namespace hvd {

/// On the loop's thread.
class PatientClock {
 public:
  /// Called by `now`: for how long the process was held up, and the time that `now` returns.
  using OnHeldUp = std::function<void(Duration held, Time at)>;

  /// It wakes the loop at every beat.
  PatientClock(Loop& loop, Duration beat, OnHeldUp on_held_up = nullptr)
      : beat_(beat), time_(beat), on_held_up_(std::move(on_held_up)), timer_(loop) {
    wait();
  }

  Time now() {
    Duration held{0};
    const Time at = time_.at(hvd::now(), &held);
    if (held > Duration(0) && on_held_up_) on_held_up_(held, at);
    return at;
  }
  void close() { timer_.cancel(); }

 private:
  void wait() {
    now();
    timer_.start(beat_, [this] { wait(); });
  }

  const Duration beat_;
  PatientTime time_;
  const OnHeldUp on_held_up_;
  Loop::Timer timer_;
};

}  // namespace hvd
