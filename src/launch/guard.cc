// Finds hvd-guard, starts it, and tells it about processes.
#include "launch/guard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/own_directory.h"
#include "base/status.h"
#include "launch/process.h"

namespace hvd::launch {
namespace {

constexpr const char *kSelf = "hvd-guard", *kEffect = "no worker begins";

}  // namespace

std::string find_guard(const std::string& option) {
  std::vector<std::string> paths;
  if (!option.empty()) {
    paths.push_back(option);
  } else {
    const std::string folder = fmt::format("hvd/{}/hvd-guard", HVD_ABI_VERSION);
    if (const std::string directory = own_directory(); !directory.empty()) {
      paths.push_back(directory + "/" + folder);
      paths.push_back(directory + "/../lib/" + folder);  // the core within a program in bin/
    }
#ifdef HVD_INSTALL_MODULE_DIR
    paths.push_back(std::string(HVD_INSTALL_MODULE_DIR) + "/hvd-guard");
#endif
  }
  std::string tried;
  for (const std::string& path : paths) {
    if (::access(path.c_str(), X_OK) == 0) return path;
    tried += fmt::format("{}{}: {}", tried.empty() ? "" : "; ", path, std::strerror(errno));
  }
  throw Error(HVD_UNAVAILABLE,
              fmt::format("hvd-guard, which ends the workers if the driver is killed, was not found "
                          "(option guard names its file). Tried {}",
                          tried));
}

Guard::Guard(const std::string& path, Duration grace, LoggerPtr logger)
    : path_(path), logger_(std::move(logger)), queue_(kSelf, kEffect, logger_) {
  // A socket, not a pipe: writing to a guard that is gone must not raise SIGPIPE. Of packets: a line goes
  // whole or not at all.
  std::array<int, 2> sockets{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets.data()) != 0) {
    throw Error(HVD_UNAVAILABLE, fmt::format("no socket for hvd-guard: {}", std::strerror(errno)));
  }
  socket_ = sockets[0];
  const int64_t grace_ms = std::chrono::duration_cast<std::chrono::milliseconds>(grace).count();
  try {
    SpawnSpec spec;
    spec.path = path;
    spec.argv = {path, std::to_string(grace_ms)};
    spec.in = sockets[1];
    spec.own_session = true;
    pid_ = spawn(spec);
  } catch (...) {
    ::close(sockets[0]);
    ::close(sockets[1]);
    throw;
  }
  ::close(sockets[1]);
}

Guard::Guard(const std::string& path, pid_t pid, int socket, LoggerPtr logger)
    : path_(path), logger_(std::move(logger)), socket_(socket), pid_(pid), queue_(kSelf, kEffect, logger_) {}

Guard::~Guard() {
  queue_.flush();
  if (socket_ >= 0) ::close(socket_);
  // With nothing left to end it is gone at once; otherwise it needs its grace, which is not waited for.
  for (int i = 0; i < 200; ++i) {
    const pid_t got = ::waitpid(pid_, nullptr, WNOHANG);
    if (got == pid_ || (got < 0 && errno != EINTR)) return;
    ::usleep(5000);
  }
}

// A message takes back the waiting one that is its contrary: no more wait than there are processes.
void Guard::add(pid_t group, std::function<void()> known) {
  send(fmt::format("+{}", group), fmt::format("+{}\n", group), std::move(known));
}

void Guard::add_helper(pid_t group, std::function<void()> known) {
  send(fmt::format("+{}", group), fmt::format("*{}\n", group), std::move(known));
}

void Guard::remove(pid_t group) {
  if (!queue_.forget(fmt::format("+{}", group))) send("", fmt::format("-{}\n", group));
}

void Guard::add_directory(const std::string& path) {
  if (path.front() == '/' && path.find('\n') == std::string::npos) send("", path + "\n");
}

void Guard::send(const std::string& name, const std::string& line, std::function<void()> sent) {
  queue_.add(name, [this, line, sent = std::move(sent)] {
    if (!write(line)) return false;
    if (sent) sent();
    return true;
  });
}

bool Guard::write(const std::string& line) {
  if (socket_ < 0) return true;
  ssize_t n = 0;
  do {
    n = ::send(socket_, line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(line.size())) return true;
  if (no_room(errno)) return false;
  logger_->warning("hvd-guard (process {}) is gone ({}): workers would outlive a driver that is killed", pid_,
                   std::strerror(errno));
  ::close(socket_);
  socket_ = -1;
  return true;
}

}  // namespace hvd::launch
