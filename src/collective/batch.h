// The operations that an engine has handed to the backend.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "collective/engine.h"
#include "collective/plan.h"

namespace hvd::collective {

/// Operations that run in the backend as one.
struct Engine::Batch {
  Batch(std::vector<OperationPtr> of, bool in_sequence, bool takes_parts)
      : ops(std::move(of)), in_order(in_sequence), plan(!in_sequence, takes_parts) {}

  std::vector<OperationPtr> ops;
  const bool in_order;  // has a sequence, so that rank 0 counts it
  Plan plan;
  std::vector<int32_t> ranks;           // empty: all
  int32_t divisor = 0;                  // by which sums become averages at the end; 0: they are, or are none
  std::shared_ptr<Engine> engine;       // stays while the backend may call
  std::atomic<int64_t> outstanding{0};  // steps not done, plus one while they are submitted

  /// The first failure stays. Any thread.
  void note(Status status) {
    const std::lock_guard lock(mutex_);
    if (noted_.ok()) noted_ = std::move(status);
  }
  Status noted() {
    const std::lock_guard lock(mutex_);
    return noted_;
  }

 private:
  std::mutex mutex_;
  Status noted_;
};

}  // namespace hvd::collective
