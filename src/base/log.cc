// Formats log lines and hands them to the program's hook.
#include "base/log.h"

#include "base/status.h"

namespace hvd {

void Logger::write(hvd_log_level level, const std::string& line) {
  if (!enabled(level)) return;
  std::lock_guard lock(mutex_);
  log_(level, line.c_str());
}

hvd_log_level parse_log_level(const std::string& name) {
  constexpr const char* kNames[] = {"trace", "debug", "info", "warning", "error", "off"};
  for (hvd_log_level level = HVD_LOG_TRACE; level <= HVD_LOG_OFF; ++level) {
    if (name == kNames[level - HVD_LOG_TRACE]) return level;
  }
  throw Error(HVD_INVALID,
              fmt::format("log level is '{}': expected trace, debug, info, warning, error or off", name));
}

}  // namespace hvd
