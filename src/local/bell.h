// A word in shared memory that somebody sleeps on. The sleeper stores kAsleep, checks its condition once
// more, and only then sleeps. The waker makes the condition true first and rings afterwards. Stores and loads
// on both sides are sequentially consistent, so that one of the two sees the other. Ringing costs a load when
// nobody sleeps.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "base/placement.h"

namespace hvd::local {

inline constexpr uint32_t kAwake = 0;
inline constexpr uint32_t kAsleep = 1;
inline constexpr uint32_t kClosed = 2;  // stays
// The bits of the above. The others count how often it was rung: a word that was hung up and rung again
// meanwhile is another.
inline constexpr uint32_t kState = 3;
inline constexpr uint32_t kRung = 4;

/// Peers can write anything into a bell, so none is slept on for longer without another look.
inline constexpr Duration kLongestSleep = std::chrono::seconds(1);

/// Sleeps while the word is `value`, `longest` at most; may wake without a reason.
void sleep_on(std::atomic<uint32_t>& bell, uint32_t value, Duration longest = kLongestSleep);

void wake_sleeper(std::atomic<uint32_t>& bell);  // whatever the word says

inline void ring(std::atomic<uint32_t>& bell) {
  uint32_t word = bell.load(std::memory_order_seq_cst);
  if ((word & kState) == kAsleep && bell.compare_exchange_strong(word, (word & ~kState) + kRung + kAwake)) {
    wake_sleeper(bell);
  }
}

/// The one thread that sleeps on a bell of its own, as its process knows it. A thread that ends its wait for
/// good does not rely on the bell's value.
class Sleeper {
 public:
  /// The sleeper's. Sleeps while the word is `value`, unless over(): asked when rouse sees that it may sleep.
  template <class Over>
  void sleep(std::atomic<uint32_t>& bell, uint32_t value, Over over, Duration longest = kLongestSleep) {
    sleeps_.store(true, std::memory_order_seq_cst);
    if (!over()) sleep_on(bell, value, longest);
    sleeps_.store(false, std::memory_order_seq_cst);
  }
  /// Any thread, after over() has become true: wakes until nobody sleeps any more, for kRouse at most. A
  /// sleeper that misses even that checks again after kLongestSleep.
  void rouse(std::atomic<uint32_t>& bell, uint32_t word);

 private:
  static constexpr Duration kRouse = std::chrono::milliseconds(50);
  std::atomic<bool> sleeps_{false};
};

/// Whether so many threads that wait for each other are more than there are processors for them.
bool crowded(size_t threads);

/// Whether giving way is worth it, learned from what it cost. Where other programs or computing threads keep
/// the processors busy it takes their whole time slices, and whoever sleeps instead is woken sooner.
class Patience {
 public:
  bool yields() {
    if (skip_.load(std::memory_order_relaxed) <= 0) return true;
    skip_.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  void yielded(Duration time);

 private:
  static constexpr Duration kLong =
      std::chrono::milliseconds(1);  // peers at work on an operation give way sooner
  static constexpr int32_t kMost = 1024;
  std::atomic<int32_t> skip_{0};     // waits that sleep at once (a guess: it may be wrong by some)
  std::atomic<int32_t> penalty_{0};  // from which the next bad experience makes them
};

/// How long a thread looks again and again before it sleeps: a few pauses first, then it gives way to others
/// between two looks. In a crowd it gives way at once: the one it waits for may need its processor. Being
/// woken costs more than a look, and a peer that shares a processor with others takes some hundred
/// microseconds for its part of a MiB.
class Spin {
 public:
  static constexpr Duration kLimit = std::chrono::milliseconds(1);
  Spin(bool in_a_crowd, Patience& patience, Time deadline = Time::max(), Placement* placement = nullptr)
      : left_(pauses(in_a_crowd)),
        crowd_(in_a_crowd),
        patience_(patience),
        yields_(patience.yields()),
        deadline_(deadline),
        placement_(placement) {}
  /// False when the time is up.
  bool again();
  void restart() {
    left_ = pauses(crowd_);
    until_ = {};
  }

 private:
  static constexpr int pauses(bool in_a_crowd) { return in_a_crowd ? 1 : 64; }
  int left_;
  const bool crowd_;
  Patience& patience_;
  bool yields_;
  const Time deadline_;
  Placement* const placement_;  // may be NULL
  Time until_{};
};

}  // namespace hvd::local
