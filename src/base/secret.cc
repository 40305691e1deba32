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

}  // namespace

std::string read_secret_file(const std::string& path) {
  const bool standard = path == "-";
  const int fd = standard ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0)
    throw Error(HVD_INVALID, fmt::format("secret file {} can't be opened: {}", path, std::strerror(errno)));
  struct stat info {};
  const bool known = ::fstat(fd, &info) == 0;
  const bool exposed = !standard && (!known || (info.st_mode & (S_IRWXG | S_IRWXO)) != 0);
  std::string text;
  int error = 0;
  char byte = 0;
  // Byte by byte: what follows the line on standard input is somebody else's.
  while (!exposed && text.size() <= kMost) {
    const ssize_t n = ::read(fd, &byte, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) error = errno;
    if (n <= 0 || byte == '\n') break;
    text += byte;
  }
  if (!standard) ::close(fd);
  if (exposed) {
    throw Error(
        HVD_INVALID,
        fmt::format("secret file {} has mode {:o}: others can read or change it; expected 600 or less", path,
                    info.st_mode & 07777));
  }
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

}  // namespace hvd
