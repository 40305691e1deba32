// Draws and erases the status line by the control sequences that every terminal of today has (ECMA-48).
#include "cli/screen.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>

#include "base/thread.h"

namespace hvd::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostWaiting = size_t{64} << 10;  // bytes; more than that holds up who writes
constexpr size_t kMostLines = 100000;              // of what is posted
// A reader that takes anything is seen to do so: a write of more returns when it has taken all of it.
constexpr size_t kPiece = 4096;

size_t width() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
}

/// At most `most` characters of UTF-8.
std::string_view cut(std::string_view text, size_t most) {
  size_t characters = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0U) == 0x80U) continue;
    if (characters++ == most) return text.substr(0, i);
  }
  return text;
}

}  // namespace

struct Screen::State {
  struct Item {
    int fd;
    std::string text;
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Item> queue;
  size_t waiting = 0;  // bytes that are not written yet
  bool on = false;
  std::string status, drawn;  // what the line is to show, and shows
  bool stopping = false, ended = false, given_up = false;
  std::optional<std::chrono::milliseconds> patience;
  Clock::time_point moved = Clock::now();  // when somebody last took something, or nothing waited

  void push(int fd, std::string text) {
    if (given_up) return;
    if (waiting == 0) moved = Clock::now();
    waiting += text.size();
    queue.push_back({fd, std::move(text)});
    changed.notify_all();
  }

  bool line_is_right() const { return given_up || drawn == (on ? status : std::string()); }

  /// The thread's, as all that follow. Without the lock while it writes.
  void put(std::unique_lock<std::mutex>& lock, int fd, std::string_view bytes) {
    while (!bytes.empty() && !given_up) {
      lock.unlock();
      const ssize_t n = ::write(fd, bytes.data(), std::min(bytes.size(), kPiece));
      const bool failed = n < 0 && errno != EINTR;  // the reader is gone
      lock.lock();
      moved = Clock::now();
      if (failed) return;
      if (n > 0) bytes.remove_prefix(static_cast<size_t>(n));
    }
  }

  void erase(std::unique_lock<std::mutex>& lock) {
    if (!std::exchange(drawn, {}).empty()) put(lock, STDERR_FILENO, "\r\x1b[K");
  }

  void draw(std::unique_lock<std::mutex>& lock) {
    if (!on || status.empty()) return;
    drawn = status;
    // One column stays free: a terminal that wraps there would keep the line for ever.
    put(lock, STDERR_FILENO, "\x1b[2m" + std::string(cut(drawn, width() - 1)) + "\x1b[0m");
  }

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stopping || !queue.empty() || !line_is_right(); });
      if (queue.empty() && line_is_right()) break;
      erase(lock);
      for (const Item& item : std::exchange(queue, {})) {
        put(lock, item.fd, item.text);
        waiting -= std::min(waiting, item.text.size());
        changed.notify_all();
      }
      draw(lock);
    }
    ended = true;
    changed.notify_all();
  }

  /// Waits for `done`, unless nobody takes anything any more.
  template <class Done>
  void wait(std::unique_lock<std::mutex>& lock, Done done) {
    while (!done() && !given_up) {
      if (!patience) {
        changed.wait(lock);
      } else if (const Clock::time_point end = moved + *patience; Clock::now() < end) {
        changed.wait_until(lock, end);
      } else {
        given_up = true;
        queue.clear();
        waiting = 0;
        changed.notify_all();
      }
    }
  }
};

Screen::Screen() : state_(std::make_shared<State>()) {
  // With SIGPIPE blocked: a reader that is gone is no reason to end.
  start_thread("hvdrun-screen", [state = state_] { state->run(); }).detach();
}

Screen::~Screen() {
  std::unique_lock lock(state_->mutex);
  state_->stopping = true;
  state_->changed.notify_all();
  // A write that nobody ends can't be interrupted: then the thread is left behind with its state.
  state_->wait(lock, [this] { return state_->ended; });
}

bool Screen::has_terminal() {
  const char* kind = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && kind != nullptr && *kind != '\0' && std::string_view(kind) != "dumb";
}

void Screen::turn_on() {
  const std::lock_guard lock(state_->mutex);
  state_->on = true;
  state_->changed.notify_all();
}

void Screen::turn_off() {
  const std::lock_guard lock(state_->mutex);
  state_->on = false;
  state_->changed.notify_all();
}

void Screen::show(std::string_view status) {
  const std::lock_guard lock(state_->mutex);
  state_->status = status;
  state_->changed.notify_all();
}

void Screen::write(int fd, std::string lines) {
  std::unique_lock lock(state_->mutex);
  state_->wait(lock, [this] { return state_->waiting < kMostWaiting; });
  state_->push(fd, std::move(lines));
}

void Screen::post(std::string line) {
  const std::lock_guard lock(state_->mutex);
  if (state_->queue.size() < kMostLines) state_->push(STDERR_FILENO, std::move(line));
}

void Screen::give_up_after(std::chrono::milliseconds patience) {
  const std::lock_guard lock(state_->mutex);
  state_->patience = patience;
  state_->moved = Clock::now();
  state_->changed.notify_all();
}

}  // namespace hvd::cli
