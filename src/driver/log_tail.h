// The last lines of a driver's log, for those who look at the job; the program's own hook gets what it asked
// for.
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "base/log.h"
#include "base/text.h"
#include "status/snapshot.h"

namespace hvd::driver {

/// Thread-safe.
class LogTail {
 public:
  static constexpr size_t kLines = 50;

  /// A logger that keeps lines of level info and above, and hands on to `logger` what that takes.
  static LoggerPtr around(LoggerPtr logger, const std::shared_ptr<LogTail>& tail) {
    struct Both {
      LoggerPtr logger;
      std::shared_ptr<LogTail> tail;
    };
    hvd_log_level level = HVD_LOG_INFO;
    while (level > HVD_LOG_TRACE && logger->enabled(level - 1)) --level;
    const hvd_log_fn write = [](void* userdata, hvd_log_level line_level, const char* line) {
      const auto* both = static_cast<Both*>(userdata);
      if (line_level >= HVD_LOG_INFO) both->tail->add(line);
      both->logger->write(line_level, line);
    };
    return std::make_shared<Logger>(
        level, Callback<hvd_log_fn>(write, new Both{std::move(logger), tail},
                                    [](void* userdata) { delete static_cast<Both*>(userdata); }));
  }

  std::vector<status::LogLine> lines() const {
    std::lock_guard lock(mutex_);
    return {lines_.begin(), lines_.end()};
  }

 private:
  void add(const char* line) {
    const auto at = std::chrono::system_clock::now().time_since_epoch();
    std::lock_guard lock(mutex_);
    lines_.push_back({std::chrono::duration_cast<std::chrono::milliseconds>(at).count(), printable(line)});
    if (lines_.size() > kLines) lines_.pop_front();
  }

  mutable std::mutex mutex_;
  std::deque<status::LogLine> lines_;
};

}  // namespace hvd::driver
