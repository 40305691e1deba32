// A worker that leaves: until when it wants to be gone and why, and whether it has left so.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "base/loop.h"
#include "base/status.h"
#include "elastic/current_generation.h"
#include "elastic/leave_descriptor.h"
#include "session/session.h"

namespace hvd::elastic {

/// Thread-safe. Its lock is taken before the current generation's and the session's.
class Leaving {
 public:
  /// `loop` reads the descriptor. timeout: the option.
  Leaving(const CurrentGeneration& current, Loop& loop, Duration timeout)
      : current_(current), loop_(loop), timeout_(timeout) {}
  Duration timeout() const { return timeout_; }

  /// Wants to go: see hvd_leave. Why `current` is closed, after that.
  Status want(Duration timeout, const std::string& why);
  /// See hvd_get_leave_fd. Throws Error(HVD_UNAVAILABLE), or why `current` is closed.
  int fd();
  /// It has gone so, or as an operator wished.
  bool has_left() const;

  /// This session is told of each wish from now on, and of an earlier one at once.
  void tell(session::Session& session);
  /// Why it wants to go; "" if it does not.
  std::string wish() const;
  /// A worker that is alone asks nobody: it has left if it wanted to. As wish().
  std::string leave_alone();
  /// Its program shuts it down, and so does not want to go any more: peers end too, and that is no loss.
  void shut_down();
  bool shuts_down() const { return shuts_down_; }
  /// After `current` was closed and the loop has stopped.
  void close();

 private:
  const CurrentGeneration& current_;
  Loop& loop_;
  const Duration timeout_;
  mutable std::mutex mutex_;
  std::atomic<session::Session*> session_{nullptr};  // none if the worker is alone, and before
  std::atomic<bool> shuts_down_{false};
  Time by_ = Time::max();
  std::string why_;  // "": it does not want to
  std::atomic<bool> left_alone_{false};
  std::unique_ptr<LeaveDescriptor> descriptor_;
};

}  // namespace hvd::elastic
