// Notices that this process itself was held up: stopped, starved or suspended. What others said meanwhile is
// still unread then, so that their silence proves nothing (contract 19).
#pragma once

#include "base/clock.h"

namespace hvd {

class HeldUp {
 public:
  /// The next look is to come after `wait`.
  void look_after(Duration wait, Time now) {
    looked_ = now;
    due_ = now + wait;
  }
  /// Since the last look, if this one comes more than `tolerance` late; else 0.
  Duration at(Time now, Duration tolerance) const {
    return now - due_ > tolerance ? now - looked_ : Duration(0);
  }

 private:
  Time looked_{}, due_ = Time::max();
};

/// Time that stands still while this process is held up. What takes less than two beats is not noticed.
class PatientTime {
 public:
  explicit PatientTime(Duration beat) : beat_(beat) {}
  /// `ret_held`: for how long it was held up since the last call, mostly 0.
  Time at(Time real, Duration* ret_held) {
    *ret_held = held_up_.at(real, beat_);
    missed_ += *ret_held;
    held_up_.look_after(beat_, real);
    return real - missed_;
  }

 private:
  const Duration beat_;
  Duration missed_{0};
  HeldUp held_up_;
};

}  // namespace hvd
