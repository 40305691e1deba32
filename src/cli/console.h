// What hvdrun's modes share: lines for stderr, and signals.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>

#include "cli/screen.h"

namespace hvd::cli {

/// Lines for stderr. They wait for nobody: a terminal that is stopped must not hold up the driver.
class ErrorOutput {
 public:
  /// Where stderr is, with its status line.
  Screen& screen() { return screen_; }
  void line(const std::string& text) { screen_.post("hvdrun: " + text + "\n"); }

 private:
  Screen screen_;
};

// A signal handler can do nothing but this.
inline int signal_pipe = -1;
inline void on_signal(int number) {
  const int kept = errno;
  const auto byte = static_cast<unsigned char>(number);
  [[maybe_unused]] const ssize_t n = ::write(signal_pipe, &byte, 1);
  errno = kept;
}

/// Reads SIGINT, SIGTERM and SIGHUP from a pipe.
class Signals {
 public:
  Signals() {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0) return;
    read_ = fds[0];
    signal_pipe = fds[1];
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
      struct sigaction before {};
      ::sigaction(number, nullptr, &before);
      if (before.sa_handler == SIG_IGN) continue;  // as under nohup
      struct sigaction action {};
      action.sa_handler = on_signal;
      action.sa_flags = SA_RESTART;
      ::sigaction(number, &action, nullptr);
    }
    std::signal(SIGPIPE, SIG_IGN);
  }

  /// Waits for the next signal, or for wake, which gives 0.
  int next() const {
    while (true) {
      pollfd fd{read_, POLLIN, 0};
      ::poll(&fd, 1, -1);
      unsigned char byte = 0;
      if (::read(read_, &byte, 1) == 1) return byte;
    }
  }
  static void wake() { on_signal(0); }

 private:
  int read_ = -1;
};

}  // namespace hvd::cli
