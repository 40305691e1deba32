// All that hvdrun writes to stdout and stderr, with a status line below it on a terminal.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace hvd::cli {

/// Thread-safe. A thread of its own writes, in order: a terminal that is stopped holds up nobody but who asks
/// for it. Where the status line is off, bytes go out as they are.
class Screen {
 public:
  Screen();
  /// Waits until all is written, or given up.
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  /// Whether stderr is a terminal that understands more than letters.
  static bool has_terminal();

  void turn_on();
  /// Takes the line away for good.
  void turn_off();
  /// What the line shows from now on, cut to the terminal's width.
  void show(std::string_view status);
  /// Whole lines to stdout or stderr, above the status line. Blocks while much waits to be written.
  void write(int fd, std::string lines);
  /// A line to stderr. Never blocks: a reader that takes nothing gets the first ones.
  void post(std::string line);
  /// From now on everything is dropped once nobody has taken a byte for `patience`.
  void give_up_after(std::chrono::milliseconds patience);

 private:
  struct State;

  const std::shared_ptr<State> state_;  // shared with the thread, which may be left behind in a write
};

}  // namespace hvd::cli
