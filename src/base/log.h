// Log lines go to the program's hook and nowhere else (contract 10).
#pragma once

#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "base/callback.h"
#include "hvd/hvd.h"

namespace hvd {

/// Shared by everything made from one set of options. Thread-safe; one call of the hook at a time.
class Logger {
 public:
  Logger() = default;
  Logger(hvd_log_level level, Callback<hvd_log_fn> log) : level_(level), log_(std::move(log)) {}
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  /// The least that is written; HVD_LOG_OFF: nothing.
  hvd_log_level level() const { return log_ ? level_ : HVD_LOG_OFF; }
  bool enabled(hvd_log_level level) const { return log_ && level >= level_; }

  [[gnu::cold]] void write(hvd_log_level level, const std::string& line);

  template <class... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) {
    print(HVD_LOG_DEBUG, format, std::forward<Args>(args)...);
  }
  template <class... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) {
    print(HVD_LOG_INFO, format, std::forward<Args>(args)...);
  }
  template <class... Args>
  void warning(fmt::format_string<Args...> format, Args&&... args) {
    print(HVD_LOG_WARNING, format, std::forward<Args>(args)...);
  }
  template <class... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) {
    print(HVD_LOG_ERROR, format, std::forward<Args>(args)...);
  }

 private:
  template <class... Args>
  void print(hvd_log_level level, fmt::format_string<Args...> format, Args&&... args) {
    if (enabled(level)) write(level, fmt::format(format, std::forward<Args>(args)...));
  }

  const hvd_log_level level_ = HVD_LOG_OFF;
  const Callback<hvd_log_fn> log_{};
  std::mutex mutex_;
};

using LoggerPtr = std::shared_ptr<Logger>;

/// "warning" to HVD_LOG_WARNING; throws Error(HVD_INVALID) that lists the names.
hvd_log_level parse_log_level(const std::string& name);

}  // namespace hvd
