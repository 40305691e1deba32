// Wakes a worker's engine at the earliest of the times that it asked for.
#pragma once

#include <algorithm>
#include <memory>

#include "base/clock.h"
#include "base/loop.h"
#include "elastic/current_generation.h"

namespace hvd::elastic {

/// Destroyed after its loop has stopped.
class EngineTimer {
 public:
  /// The engine that is current when the time has come is woken, on the loop's thread.
  EngineTimer(CurrentGeneration& current, Loop& loop) : current_(current), loop_(loop) {}
  EngineTimer(const EngineTimer&) = delete;
  EngineTimer& operator=(const EngineTimer&) = delete;

  /// At `when`, unless it is to wake at an earlier time. Any thread; it calls nothing of the caller's.
  void wake_at(Time when) {
    loop_.post([this, when] {
      if (when >= wakes_) return;
      wakes_ = when;
      if (timer_ == nullptr) timer_ = std::make_unique<Loop::Timer>(loop_);
      timer_->start(std::max(when - now(), Duration(0)), [this] {
        wakes_ = Time::max();
        if (EngineUse use = current_.engine()) use->tick(now());
      });
    });
  }

 private:
  CurrentGeneration& current_;
  Loop& loop_;
  // Of the loop's thread.
  Time wakes_ = Time::max();
  std::unique_ptr<Loop::Timer> timer_;
};

}  // namespace hvd::elastic
