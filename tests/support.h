// What several tests need: waiting for an event with a deadline, and a logger that keeps lines.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "base/log.h"
#include "patience.h"

namespace hvd::test {

/// Long enough for a loaded machine under a sanitizer; a test that waits this long has failed.
inline const std::chrono::milliseconds kDeadline = patient(std::chrono::seconds(60));

/// A value that threads change and the test waits for.
template <class T>
class Watched {
 public:
  Watched() = default;
  explicit Watched(T value) : value_(std::move(value)) {}

  template <class Function>
  void update(Function&& change) {
    std::lock_guard lock(mutex_);
    change(value_);
    changed_.notify_all();
  }

  /// False if the condition did not come true before the deadline.
  template <class Condition>
  bool wait(Condition&& condition, std::chrono::milliseconds deadline = kDeadline) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, deadline, [&] { return condition(value_); });
  }

  T get() const {
    std::lock_guard lock(mutex_);
    return value_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  T value_{};
};

/// A logger whose lines can be read.
class LogLines {
 public:
  LoggerPtr logger() {
    return std::make_shared<Logger>(HVD_LOG_TRACE, Callback<hvd_log_fn>(&LogLines::add, this, nullptr));
  }
  Watched<std::vector<std::string>> lines;

 private:
  static void add(void* self, hvd_log_level, const char* line) {
    static_cast<LogLines*>(self)->lines.update([&](auto& all) { all.emplace_back(line); });
  }
};

}  // namespace hvd::test
