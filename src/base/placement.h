// Parts workers that wait for each other on one processor while another one is free. The kernel takes 10 to
// 20 ms for that: threads that give way to each other in turns never look like two that want to run.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "base/clock.h"

namespace hvd {

/// Where the one at `index` would be better off than with others on its processor: at least two fewer are
/// there. processors: of each; what is no number of a processor is unknown. Of those on a processor only the
/// last one goes, so that they don't all go at once.
std::optional<int32_t> better_processor(std::span<const int32_t> processors, size_t index,
                                        const cpu_set_t& allowed);

int processors_online();

/// One worker's. Any thread that waits for the others. A thread moves by allowing itself one processor alone
/// for a moment; afterwards it may use all again. So one that is kept to some of the processors is not moved:
/// that is the decision of whoever keeps it there.
class Placement {
 public:
  /// Where the one at an index says on which processor it is, in memory that all share; NULL: nowhere.
  using Told = std::function<std::atomic<int32_t>*(size_t index)>;
  /// online: processors there are.
  Placement(size_t size, size_t index, Told told, int online = processors_online());
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;

  static constexpr int32_t kUnknown = -1;
  static constexpr size_t kMost = 128;  // are looked at

  /// The calling thread works for this one: tells the others where.
  void here() {
    const int32_t on = sched_getcpu();
    if (own_ != nullptr && own_->load(std::memory_order_relaxed) != on)
      own_->store(on, std::memory_order_relaxed);
  }
  /// The calling thread has given way. It may be on another processor afterwards.
  void gave_way(Time now) noexcept {
    here();
    Time next = next_.load(std::memory_order_relaxed);
    if (now >= next && next_.compare_exchange_strong(next, now + kPause, std::memory_order_relaxed)) part();
  }

 private:
  static constexpr Duration kPause = std::chrono::milliseconds(2);  // a move takes some 10 us
  void part();

  const size_t size_, index_;
  const Told told_;
  std::atomic<int32_t>* const own_;
  const int online_;  // processors
  std::atomic<Time> next_{Time()};
};

}  // namespace hvd
