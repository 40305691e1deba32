// The thread that makes a state's copies in host memory, and waits for those between host and device memory,
// so that the program's does not have to.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "state/device_copies.h"

namespace hvd::state {

/// One job at a time, given by one thread at a time.
class CopyThread {
 public:
  /// copies: may be none; then there are no tickets.
  explicit CopyThread(std::shared_ptr<DeviceCopies> copies);
  CopyThread(const CopyThread&) = delete;
  CopyThread& operator=(const CopyThread&) = delete;
  ~CopyThread() { end(Duration(0)); }

  /// Waits for the job under way at most for `patience`; the last call. False: its copies may still be
  /// running, and what they read and write must stay.
  bool end(Duration patience);

  /// Does `work`, if there is any, and waits for all tickets; then calls `arrived`, in its thread, with the
  /// first failure. Not while a job is under way.
  void watch(std::vector<DeviceCopies::Ticket> tickets, std::function<void(Status)> arrived,
             std::function<Status()> work = {});
  /// Whether no job is under way any more, at once or until the deadline.
  bool idle(Time deadline);

 private:
  void run();

  const std::shared_ptr<DeviceCopies> copies_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<DeviceCopies::Ticket> tickets_;
  std::function<Status()> work_;
  std::function<void(Status)> arrived_;
  bool busy_ = false, gave_up_ = false;
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace hvd::state
