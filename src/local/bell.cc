// Sleeps and wakes by futex.
#include "local/bell.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/placement.h"

namespace hvd::local {
namespace {

uint32_t* address_of(std::atomic<uint32_t>& word) { return reinterpret_cast<uint32_t*>(&word); }

void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// Not FUTEX_PRIVATE: other processes ring.
void sleep_on(std::atomic<uint32_t>& bell, uint32_t value, Duration longest) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(longest);
  const timespec limit{seconds.count(), (longest - seconds).count()};
  syscall(SYS_futex, address_of(bell), FUTEX_WAIT, value, &limit, nullptr, 0);
}

void wake_sleeper(std::atomic<uint32_t>& bell) {
  syscall(SYS_futex, address_of(bell), FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

// The sleeper may not sleep yet when it is woken, and a peer may write the word back meanwhile.
void Sleeper::rouse(std::atomic<uint32_t>& bell, uint32_t word) {
  Time until{};
  for (int round = 0;; ++round) {
    bell.store(word, std::memory_order_seq_cst);
    wake_sleeper(bell);
    if (!sleeps_.load(std::memory_order_seq_cst)) return;
    if (round == 0) until = now() + kRouse;
    if (now() >= until) return;
    if (round < 16) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
}

bool crowded(size_t threads) {
  cpu_set_t processors;
  if (sched_getaffinity(0, sizeof(processors), &processors) != 0) return false;  // more than a set holds
  return threads > static_cast<size_t>(CPU_COUNT(&processors));
}

void Patience::yielded(Duration time) {
  const int32_t penalty = penalty_.load(std::memory_order_relaxed);
  if (time > kLong) {
    const int32_t more = std::min(kMost, 2 * penalty + 16);
    penalty_.store(more, std::memory_order_relaxed);
    skip_.store(more, std::memory_order_relaxed);
  } else if (penalty > 0) {
    penalty_.store(penalty - 1, std::memory_order_relaxed);
  }
}

bool Spin::again() {
  if (left_ > 0) {
    --left_;
    pause_processor();
    return true;
  }
  if (!yields_) return false;
  const Time before = now();
  if (until_ == Time()) until_ = std::min(before + kLimit, deadline_);
  sched_yield();
  const Time after = now();
  patience_.yielded(after - before);
  if (placement_ != nullptr) placement_->gave_way(after);
  return after < until_;
}

}  // namespace hvd::local
