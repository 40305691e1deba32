// Reads the state of processes.
#include "launch/life.h"

#include <fmt/format.h>
#include <unistd.h>

#include <string>

#include "base/file.h"

namespace hvd::launch {
namespace {

/// As the kernel says: the state in /proc/PID/stat stands after the last parenthesis of the name.
Life life_of(pid_t pid) {
  std::string line;
  if (!read_file(fmt::format("/proc/{}/stat", pid), 4096, &line)) return Life::kUnknown;
  const size_t name = line.rfind(')');
  if (name == std::string::npos || name + 2 >= line.size()) return Life::kUnknown;
  switch (line[name + 2]) {
    case 'T':
    case 't': return Life::kStopped;
    case 'Z':
    case 'X': return Life::kEnded;
    default: return Life::kRunning;
  }
}

}  // namespace

Life life_of(pid_t leader, int64_t said) {
  const auto process = static_cast<pid_t>(said);
  return said > 1 && process == said && ::getpgid(process) == leader ? life_of(process) : life_of(leader);
}

}  // namespace hvd::launch
