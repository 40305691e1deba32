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

/// Says for whom an operation waits; the engine, as long as it lives.
class Explainer {
 public:
  virtual std::string waiting_for(const std::string& name, uint64_t ticket) const = 0;

 protected:
  ~Explainer() = default;
};

class PendingOperation final : public Operation {
 public:
  explicit PendingOperation(Submission s) : submission(std::move(s)), name(submission.name) {}

  bool done() const override { return done_.load(std::memory_order_acquire); }
  bool wait(Duration timeout) override;
  Status status() const override { return done() ? status_ : Status(); }
  std::string waiting_for() const override;
  uint64_t word() const override { return result_word; }
  const Tensor& output(size_t) const override { return result; }
  const std::vector<int64_t>& received_splits() const override { return splits; }
  Buffer take_buffer(size_t) override;
  size_t buffer_size(size_t) const override { return buffer_bytes; }

  /// Once. Lets go of everything that was borrowed, then wakes those who wait.
  void complete(Status status);

  // Belongs to whoever moves the operation on: the engine's lock guards the hand-over.
  Submission submission;
  const std::string name;
  uint64_t ticket = 0;
  std::weak_ptr<const Explainer> explainer;
  bool in_backend = false;       // under the engine's lock
  Time give_up = Time::max();    // rank 0 must have answered by then
  std::vector<int32_t> missing;  // as rank 0 said last, under the engine's lock

  // While it runs in the backend.
  struct Pack {  // small variables that travel together
    Buffer memory;
    size_t bytes = 0;
    std::vector<size_t> members;
  };
  std::vector<Pack> packs;
  std::atomic<int64_t> outstanding{0};     // backend operations not done, plus one while they are submitted
  std::shared_ptr<PendingOperation> self;  // the backend's reference
  std::shared_ptr<void> engine;            // keeps the engine's insides while the backend may call
  Status verdict;                          // decided before the end: allgather's room is too small

  // Results, readable once done.
  uint64_t result_word = 0;
  Tensor result;
  std::vector<int64_t> splits;
  Buffer buffer;
  size_t buffer_bytes = 0;

  /// The backend's verdict about one part; the first failure stays. Any thread.
  void note(Status status);
  Status noted();

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> done_{false};
  Status status_;
  Status noted_;
};

}  // namespace hvd::collective
