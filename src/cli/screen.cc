// Draws and erases the status line by the control sequences that every terminal of today has (ECMA-48).
#include "cli/screen.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace hvd::cli {
namespace {

void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

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

bool Screen::has_terminal() {
  const char* kind = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && kind != nullptr && *kind != '\0' && std::string_view(kind) != "dumb";
}

void Screen::turn_on() {
  const std::lock_guard lock(mutex_);
  on_ = true;
}

void Screen::turn_off() {
  const std::lock_guard lock(mutex_);
  erase();
  on_ = false;
}

void Screen::show(std::string_view status) {
  const std::lock_guard lock(mutex_);
  if (!on_ || (drawn_ && status == status_)) return;
  status_ = status;
  erase();
  draw();
}

void Screen::write(int fd, std::string_view lines) {
  const std::lock_guard lock(mutex_);
  erase();
  write_all(fd, lines);
  if (on_) draw();
}

void Screen::draw() {
  if (status_.empty()) return;
  // One column stays free: a terminal that wraps there would keep the line for ever.
  write_all(STDERR_FILENO, "\x1b[2m" + std::string(cut(status_, width() - 1)) + "\x1b[0m");
  drawn_ = true;
}

void Screen::erase() {
  if (drawn_) write_all(STDERR_FILENO, "\r\x1b[K");
  drawn_ = false;
}

}  // namespace hvd::cli
