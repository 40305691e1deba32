// What hvdrun's modes share: lines for stderr, and signals.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "cli/screen.h"

namespace hvd::cli {

/// Lines for stderr, written by a thread of its own: a terminal that is stopped must not hold up the driver.
class ErrorOutput {
 public:
  ErrorOutput() : thread_([this] { run(); }) {}
  /// Where stderr is, with its status line.
  Screen& screen() { return screen_; }
  ~ErrorOutput() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void line(std::string text) {
    {
      std::lock_guard lock(mutex_);
      if (lines_.size() >= kMost) return;  // a reader that takes nothing gets the first ones
      lines_.push_back("hvdrun: " + std::move(text) + "\n");
    }
    changed_.notify_all();
  }

 private:
  static constexpr size_t kMost = 100000;

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopping_ || !lines_.empty(); });
      if (lines_.empty()) return;
      const std::string text = std::move(lines_.front());
      lines_.pop_front();
      lock.unlock();
      screen_.write(STDERR_FILENO, text);
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> lines_;
  bool stopping_ = false;
  Screen screen_;
  std::thread thread_;
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
