// An operation under way, as the engine sees it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collective/engine.h"
#include "collective/messages.h"

namespace hvd::collective {

Buffer allocate(size_t bytes);  // NULL if there is no memory

/// What a waiting thread needs of the engine, as long as that lives.
class Waiter {
 public:
  /// Says for whom an operation waits.
  virtual std::string waiting_for(const std::string& key, uint64_t ticket) const = 0;
  /// See backend::Instance::progress.
  virtual void progress(const std::atomic<bool>& done, Time deadline) = 0;

 protected:
  ~Waiter() = default;
};

class PendingOperation final : public Operation {
 public:
  explicit PendingOperation(Submission s) : submission(std::move(s)) {}
  ~PendingOperation() override;

  bool done() const override { return done_.load(std::memory_order_acquire); }
  bool wait(Duration timeout) override;
  int completion_fd() override;
  Status status() const override { return done() ? status_ : Status(); }
  std::string waiting_for() const override;
  uint64_t word() const override { return result_word; }
  const Tensor& output(size_t index) const override;
  const std::vector<int64_t>& received_splits() const override { return splits; }
  Buffer take_buffer(size_t index) override;
  size_t buffer_size(size_t index) const override {
    return index < buffers.size() ? buffers[index].bytes : 0;
  }

  /// Once. Lets go of everything that was borrowed, then wakes those who wait.
  void complete(Status status);

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
  std::weak_ptr<Waiter> engine;
  bool in_backend = false;         // under the engine's lock
  Time give_up = Time::max();      // rank 0 must have answered by then
  std::vector<int32_t> missing;    // as rank 0 said last, under the engine's lock
  uint64_t checks = 0, epoch = 0;  // as its request said
  Status verdict;                  // decided before the end: the room for a result is too small

  // Results, readable once done.
  struct Memory {
    Buffer data;
    size_t bytes = 0;
  };
  uint64_t result_word = 0;
  std::vector<Tensor> results;
  std::vector<int64_t> splits;
  std::vector<Memory> buffers;  // by tensor, where the library allocated

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

}  // namespace hvd::collective
