// A terminal with a status line below what else is written to it.
#pragma once

#include <mutex>
#include <string>
#include <string_view>

namespace hvd::cli {

/// Thread-safe. Where the line is off, bytes go out as they are.
class Screen {
 public:
  /// Whether stderr is a terminal that understands more than letters.
  static bool has_terminal();

  void turn_on();
  /// Takes the line away for good.
  void turn_off();
  /// What the line shows from now on, cut to the terminal's width.
  void show(std::string_view status);
  /// Whole lines to stdout or stderr, above the status line. Blocks until all is written or the reader is
  /// gone.
  void write(int fd, std::string_view lines);

 private:
  void draw();
  void erase();

  std::mutex mutex_;
  bool on_ = false;
  bool drawn_ = false;
  std::string status_;
};

}  // namespace hvd::cli
