// Time that stands still while this process is held up. Deadlines of others are measured by it where the
// process may be stopped for longer than they are given (contract 19).
#pragma once

#include "base/held_up.h"
#include "base/loop.h"

namespace hvd {

/// On the loop's thread.
class PatientClock {
 public:
  /// It wakes the loop at every beat. What takes less than two of them is not noticed.
  PatientClock(Loop& loop, Duration beat) : beat_(beat), timer_(loop) { wait(); }

  Time now() {
    const Time at = hvd::now();
    missed_ += held_up_.at(at, beat_);
    held_up_.look_after(beat_, at);
    return at - missed_;
  }
  void close() { timer_.cancel(); }

 private:
  void wait() {
    now();
    timer_.start(beat_, [this] { wait(); });
  }

  const Duration beat_;
  Duration missed_{0};
  HeldUp held_up_;
  Loop::Timer timer_;
};

}  // namespace hvd
