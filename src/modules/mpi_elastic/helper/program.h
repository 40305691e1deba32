// A child process whose lines are read.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace hvdmpi::helper {

/// The file that `name` stands for, looked up in PATH unless it has a slash; "" if none can be executed.
std::string find_program(const std::string& name);

class Program {
 public:
  /// Starts it, with stdout and stderr in one pipe and /dev/null as stdin. It gets SIGKILL when this process
  /// ends. False, and errno, if it can't be started.
  bool start(const std::vector<std::string>& arguments, const std::vector<std::string>& environment);
  /// To wait for its words; -1 when there are no more.
  int output() const { return output_; }
  pid_t pid() const { return pid_; }
  /// Reads what is there.
  void read(const std::function<void(const std::string& line)>& line);
  /// How it ended, if it has: "exited with status 3", "was killed by signal 9".
  std::optional<std::string> ended();
  /// SIGTERM, a moment, SIGKILL.
  void end();

 private:
  pid_t pid_ = -1;
  int output_ = -1;
  std::string heard_;
};

}  // namespace hvdmpi::helper
