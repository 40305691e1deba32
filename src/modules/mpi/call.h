// A blocking call into MPI, in a thread of its own: MPI has calls that can't be interrupted, and one of them
// may wait for a peer that is dead. The waiting thread can give the call up; its thread is then left behind
// at the lowest priority, and its result is dropped.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>

namespace hvdmpi {

using Clock = std::chrono::steady_clock;

class Call {
 public:
  /// body: holds all that it touches. ended: called after it, unless the call was given up; says whether it
  /// threw.
  static std::shared_ptr<Call> start(std::function<void()> body, std::function<void(bool failed)> ended = {});

  /// True once the call has ended; false at the deadline or once it was given up.
  bool wait(Clock::time_point deadline);
  bool succeeded();
  void rethrow();  // what the body threw, if it did
  void abandon();  // any thread, idempotent

  /// Of this process's abandoned calls those that have not returned.
  static int stuck();

 private:
  void run(const std::function<void()>& body, const std::function<void(bool)>& ended);

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false, abandoned_ = false;
  std::exception_ptr error_;
  int thread_ = 0;  // the system's number of it
};

/// From here on thread number `thread` of this process gives way to all others.
void give_way(int thread);

}  // namespace hvdmpi
