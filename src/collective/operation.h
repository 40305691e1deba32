// An operation under way: what its caller waits for, and what the engine knows of it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collective/messages.h"
#include "collective/submission.h"
#include "timeline/timeline.h"

namespace hvd::collective {

class Engine;

/// Shared by the engine and whoever waits. The first part is thread-safe.
class Operation {
 public:
  explicit Operation(Submission s) : submission(std::move(s)) {}
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  bool done() const { return done_.load(std::memory_order_acquire); }
  /// Waits at most for `timeout`; false if it is still pending.
  bool wait(Duration timeout);
  /// Polls readable from completion on; the operation's own. Throws Error(HVD_UNAVAILABLE) if there is none
  /// to be had.
  int completion_fd();
  /// Of a completed operation.
  Status status() const { return done() ? status_ : Status(); }
  /// Which ranks it waits for, as far as this rank knows: "rank 2 (host b) has not called 'loss'"; "" if
  /// complete.
  std::string waiting_for() const;

  // Results of a completed operation.
  uint64_t word() const { return result_word; }  // agree; join: the rank that joined last
  /// Allgather, reducescatter, alltoall: as it came out.
  const Tensor& output(size_t index = 0) const;
  /// Alltoall, and allgather of one tensor: rows from each member, 0 from one that took no part.
  const std::vector<int64_t>& received_splits() const { return splits; }
  /// Allgather: ascending; empty if all have.
  const std::vector<int32_t>& took_part() const { return participants; }
  /// The library's memory, once: allgather, reducescatter, alltoall and object.
  Buffer take_buffer(size_t index = 0);
  size_t buffer_size(size_t index = 0) const {  // bytes
    return index < buffers.size() ? buffers[index].bytes : 0;
  }

  // ---- The engine's side ------------------------------------------------------------------------

  /// Once. Lets go of everything that was borrowed, then wakes those who wait.
  void complete(Status status);
  /// The same with HVD_INTERNAL, unless it is complete: without a record, and without memory for it.
  void complete_without_memory() noexcept;

  // For the timeline: puts it on record if that is on, and says how far it has come.
  void watch(const TimelinePtr& timeline) {
    if (!is_on(timeline)) return;
    timeline_ = timeline;
    times_.submitted = now();
  }
  void matched(size_t together) {
    if (timeline_ == nullptr) return;
    times_.matched = now();
    fused_ = together;
  }
  void running() {
    if (timeline_ != nullptr) times_.running = now();
  }

  // Belongs to whoever moves the operation on: the engine's lock guards the hand-over.
  Submission submission;
  SignaturePtr call;  // set once it is on its way
  uint64_t ticket = 0;
  std::weak_ptr<Engine> engine;
  bool in_backend = false;         // under the engine's lock
  bool resent = false;             // described in full, since rank 0 asked for that
  Time give_up = Time::max();      // rank 0 must have answered by then
  std::vector<int32_t> missing;    // as rank 0 said last, under the engine's lock
  uint64_t checks = 0, epoch = 0;  // as its request said
  size_t weight = 0;               // of what is bounded for each rank
  Status verdict;                  // decided before the end: the room for a result is too small

  // Results, readable once done.
  struct Memory {
    Buffer data;
    size_t bytes = 0;
  };
  uint64_t result_word = 0;
  std::vector<Tensor> results;
  std::vector<int64_t> splits;
  std::vector<int32_t> participants;  // allgather: whose rows they are; empty: all members'
  std::vector<Memory> buffers;        // by tensor, where the library allocated

 private:
  void record(const Status& status) const;
  void signal_fd() const;

  TimelinePtr timeline_;  // none: it is not on record
  OperationTimes times_;
  size_t fused_ = 1;  // operations that run as one with it, itself among them
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> done_{false};
  int fd_ = -1;  // made when it is asked for
  Status status_;
  const Tensor none_;
};

using OperationPtr = std::shared_ptr<Operation>;

}  // namespace hvd::collective
