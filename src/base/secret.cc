// Reads the job's secret.
#include "base/secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/status.h"

namespace hvd {
namespace {

constexpr size_t kMost = 1024;

/// Why a file of this kind, owner and mode can't be trusted; "" if it can.
std::string distrust(const struct stat& info) {
  if (!S_ISREG(info.st_mode)) {
    const char* const kind = S_ISFIFO(info.st_mode)   ? "a FIFO"
                             : S_ISDIR(info.st_mode)  ? "a directory"
                             : S_ISSOCK(info.st_mode) ? "a socket"
                                                      : "a device";
    return fmt::format("is {}: expected a regular file, or - for standard input", kind);
  }
  // systemd and Kubernetes hand secrets to other users so: root owns the file, and one group may read it.
  const bool given = info.st_uid == 0 && ::geteuid() != 0;
  const mode_t others = given ? S_IWGRP | S_IXGRP | S_IRWXO : S_IRWXG | S_IRWXO;
  if ((info.st_mode & others) == 0) return "";
  return fmt::format("has mode {:o}: others can read or change it; expected {} or less", info.st_mode & 07777,
                     given ? 640 : 600);
}

}  // namespace

std::string read_secret_file(const std::string& path) {
  const bool standard = path == "-";
  // Not blocking: a FIFO would wait for somebody who writes, before it can be refused.
  const int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  const int fd = standard ? STDIN_FILENO : ::open(path.c_str(), flags);
  if (fd < 0)
    throw Error(HVD_INVALID, fmt::format("secret file {} can't be opened: {}", path, std::strerror(errno)));
  std::string reason;
  if (struct stat info{}; !standard) {
    reason =
        ::fstat(fd, &info) == 0 ? distrust(info) : fmt::format("can't be examined: {}", std::strerror(errno));
  }
  std::string text;
  int error = 0;
  char byte = 0;
  // Byte by byte: what follows the line on standard input is somebody else's.
  while (reason.empty() && text.size() <= kMost) {
    const ssize_t n = ::read(fd, &byte, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) error = errno;
    if (n <= 0 || byte == '\n') break;
    text += byte;
  }
  if (!standard) ::close(fd);
  if (!reason.empty()) throw Error(HVD_INVALID, fmt::format("secret file {} {}", path, reason));
  if (error != 0)
    throw Error(HVD_INVALID, fmt::format("secret file {} can't be read: {}", path, std::strerror(error)));
  while (!text.empty() && (text.back() == '\r' || text.back() == ' ' || text.back() == '\t')) text.pop_back();
  if (text.empty())
    throw Error(HVD_INVALID,
                fmt::format("secret file {} has an empty first line", standard ? "on standard input" : path));
  if (text.size() > kMost)
    throw Error(HVD_INVALID,
                fmt::format("secret file {}: its first line has more than {} characters", path, kMost));
  return text;
}

std::string read_secret(const Options& options) {
  if (options.is_set("secret") || !options.is_set("secret_file")) return options.string("secret");
  return read_secret_file(options.string("secret_file"));
}

bool tells_secret(std::string_view entry) {
  return entry.starts_with("HVD_SECRET=") || entry.starts_with("HVD_SECRET_FILE=");
}

}  // namespace hvd
