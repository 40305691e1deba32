// The end of a process, told before its memory is given back. The kernel closes a dead process' sockets after
// it has freed its memory, which takes 27 ms for 256 MiB and a third of a second for 4 GiB; but it walks a
// dying thread's list of robust futexes (set_robust_list(2), the kernel's
// Documentation/locking/robust-futexes.rst) first of all. A thread of the process holds one in a page of
// shared memory, and others wait on it.
//
// It works within a machine, for processes that may look at each other's /proc; everybody else has the
// sockets. A stopped process holds its futex still, a forked child has none, and exec lets it go: the worker
// is gone then.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/digest.h"
#include "base/status.h"

namespace hvd {

/// What is shared: nobody but its owner can write to it.
struct LifePage {
  uint64_t magic;
  uint64_t token[2];
  std::atomic<uint32_t> word;  // the holder's thread, FUTEX_OWNER_DIED once it is dead, 0: let go
};

/// This process' own, from now until it is destroyed. Its thread takes none of the process' signals.
class Life {
 public:
  /// HVD_UNAVAILABLE with the reason.
  static Status hold(std::unique_ptr<Life>* ret_life);
  Life(const Life&) = delete;
  Life& operator=(const Life&) = delete;
  ~Life();  // in peace: nobody is told

  int descriptor() const { return descriptor_; }
  const Digest& token() const { return token_; }  // random

 private:
  Life() = default;
  void run();

  int descriptor_ = -1;
  Digest token_{};
  LifePage* page_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false, ending_ = false, works_ = false;
  std::thread thread_;
};

/// How often a thread looks at pages that others write to. One whose word never rests wakes it all the time.
class LookPace {
 public:
  /// After a wait that lasted so long: how long to rest before the next look. The first few short ones in a
  /// row cost nothing, so that each of some deaths at once is told at once.
  Duration rest_after(Duration waited) {
    if (waited >= kLong) short_ones_ = 0;
    short_ones_ = std::min(short_ones_ + 1, kFree + kSteps);
    if (waited >= kLong || short_ones_ <= kFree) return Duration(0);
    return std::chrono::milliseconds(1 << (short_ones_ - kFree - 1));
  }

 private:
  static constexpr Duration kLong = std::chrono::milliseconds(10);
  static constexpr int kFree = 16, kSteps = 6;  // up to 32 ms
  int short_ones_ = 0;
};

/// Waits for the ends of any number of processes. All functions from any thread, but for the destructor.
class LifeWatch {
 public:
  LifeWatch() = default;
  LifeWatch(const LifeWatch&) = delete;
  LifeWatch& operator=(const LifeWatch&) = delete;
  ~LifeWatch();  // nobody is told any more

  /// Whether it can be watched: `died` is called at most once, from a thread of this, with a lock held: it
  /// must not call back. Not where there is no memory or no thread for it. process, descriptor and token are
  /// what its owner says; nothing of it is believed.
  /// `key` is the caller's, and none that is watched already.
  bool watch(uint64_t key, int64_t process, int descriptor, const Digest& token, std::function<void()> died);
  /// After it `died` is not called.
  void forget(uint64_t key);

 private:
  struct Watched {
    std::shared_ptr<const LifePage> page;
    std::function<void()> died;
  };
  struct Group {  // a thread's: the kernel waits for so many at once
    std::mutex mutex;
    std::map<uint64_t, Watched> watched;
    std::atomic<uint32_t> changed{0};  // the thread sleeps on it as well
    bool ending = false;
    std::thread thread;
  };
  Group& group_with_room();
  static void run(Group& group);
  static void change(Group& group);

  std::mutex mutex_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::map<uint64_t, Group*> group_of_;
};

}  // namespace hvd
