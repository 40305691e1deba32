// A descriptor into which a signal handler of the program writes when its worker is to leave.
#pragma once

#include <functional>
#include <memory>

#include "base/loop.h"

namespace hvd::elastic {

/// A pipe. Made and destroyed on any thread; destroyed before the loop, or after it has stopped.
class LeaveDescriptor {
 public:
  /// `written` is called on the loop's thread for each look at which something had been written. Throws
  /// Error(HVD_UNAVAILABLE).
  LeaveDescriptor(Loop& loop, std::function<void()> written);
  LeaveDescriptor(const LeaveDescriptor&) = delete;
  LeaveDescriptor& operator=(const LeaveDescriptor&) = delete;
  ~LeaveDescriptor();
  /// To be written to. It never blocks: what does not fit need not be written.
  int fd() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace hvd::elastic
