// What one generation has: communicators and the thread that uses them. The thread begins with the first
// operation on device memory. All calls of NCCL are its own, so that an abort finds nobody inside one; the
// others leave it flags.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "modules/nccl/failure.h"
#include "modules/nccl/host.h"
#include "modules/nccl/task.h"

namespace hvdnccl {

using Clock = std::chrono::steady_clock;

struct Place {
  uint64_t generation = 0;
  int rank = 0, size = 1;
  Clock::duration timeout{};  // of connect
  std::string refusal;        // why no operation can be served, the same on every rank; "" if they can
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  /// older: earlier generations of this instance that may still be taken apart. Two at a time on one device
  /// would wait for each other, so this one's first communicator waits for their end.
  Generation(std::shared_ptr<Host> host, Place place, std::vector<std::shared_ptr<Generation>> older);
  ~Generation();

  const Place& place() const { return place_; }

  /// `done` follows unless this throws. All tasks of a generation are on one device.
  void submit(Task task, const std::shared_ptr<Device>& device);
  /// The device that this generation's operations are on; -1: none yet.
  int device() const;

  void abort();  // any thread, within 100 ms; every task completes with HVD_PEER_LOST
  void leave();  // in peace: goes on in the thread
  /// Until the communicators are gone, or there never were any; false at the deadline.
  bool wait_finished(Clock::time_point deadline);
  /// The thread joined, or left to itself if a library does not give it back.
  void release();

 private:
  using TaskPtr = std::shared_ptr<Task>;
  struct Aborted {};  // thrown in the thread alone
  struct Running {    // queued on the device, not known to be done
    Device::Event after;
    NcclComm communicator;
    uint64_t sequence;
  };

  void run();
  void work();
  void await_older();
  void issue(const TaskPtr& task);
  NcclComm communicator(const std::vector<int>& ranks);
  NcclUniqueId unique_id(const std::vector<int>& ranks);
  void await(NcclComm communicator, const char* what, Clock::time_point deadline);
  void watch();
  void order_behind(const Task& task);  // the caller's stream, behind what this task has queued
  void fail(const Failure& failure);
  void abort_communicators();
  void finish_in_peace();
  void take_apart();
  void pause(Clock::duration most);  // a flag wakes it
  void complete(const Task& task, const Failure* failure);
  void settle(const TaskPtr& task, const Failure* failure);
  Failure lost() const;

  const std::shared_ptr<Host> host_;
  const Place place_;
  std::vector<std::shared_ptr<Generation>> older_;  // the thread's

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<TaskPtr> queue_;
  TaskPtr current_;         // the thread's, unless abort has taken it
  bool launching_ = false;  // current_ may be running on the device
  std::atomic<bool> aborted_{false}, leaving_{false};
  bool started_ = false, finished_ = false;
  std::unique_ptr<Failure> broken_;
  std::shared_ptr<Device> device_;
  std::thread thread_;

  // The thread's own.
  std::map<std::vector<int>, NcclComm> communicators_;
  std::deque<Running> running_;
  CuPointer scratch_ = 0;
  int idle_looks_ = 0;
};

}  // namespace hvdnccl
