// A file descriptor that closes itself.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/status.h"

namespace hvd {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

/// Away from 0, 1 and 2, which a program that closed them would otherwise hand to its children mixed up.
inline Descriptor above_standard(Descriptor fd, const char* what) {
  if (fd.get() > STDERR_FILENO) return fd;
  Descriptor moved(::fcntl(fd.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (moved.get() < 0)
    throw Error(HVD_UNAVAILABLE, fmt::format("no descriptor for {}: {}", what, std::strerror(errno)));
  return moved;
}

}  // namespace hvd
