// Sockets, addresses, signals: what the system gives.
#pragma once

#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>

namespace hvdkit {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { reset(); }
  void reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

/// Blocks every signal in the calling thread while it lives. Threads made meanwhile keep them blocked:
/// the program's signals stay with the program's threads, and a library's writes to a dead peer, which may
/// go without MSG_NOSIGNAL, can't raise SIGPIPE in them.
class BlockSignals {
 public:
  BlockSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  BlockSignals(const BlockSignals&) = delete;
  BlockSignals& operator=(const BlockSignals&) = delete;
  ~BlockSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

using Token = std::array<uint8_t, 16>;

/// Which connections are encrypted (option `encrypt`). Of two ranks that differ the stricter counts.
enum class Encrypt : uint8_t { kOff, kAuto, kOn };

/// The blob of `address`, or its beginning if the module has more to say: where a generation's links listen,
/// and what a caller has to show.
struct Blob {
  bool v6 = false;
  uint16_t port = 0;
  std::array<uint8_t, 16> ip{};
  Token token{};
  Encrypt encrypt = Encrypt::kOff;

  static constexpr size_t kSize = 40;
  std::array<uint8_t, kSize> encode() const;
  static Blob decode(const void* data, size_t size);  // throws Failure
  sockaddr_storage sockaddr_of(socklen_t* length) const;
};

Token random_token();
void fill_random(void* data, size_t size);  // throws Failure(HVD_UNAVAILABLE)

/// Whether what goes between the two is encrypted; both come to the same answer.
bool encrypts(const Blob& a, const Blob& b);

/// Address of this machine that peers reach it by, as text: `interface` (name or address), else `route`
/// (an address), else what the host's name resolves to, else the first interface that is up. Throws
/// Failure(HVD_UNAVAILABLE) that lists the interfaces.
std::string local_address(const std::string& interface, const std::string& route);

/// At most `most`, and of a process with few descriptors an eighth of RLIMIT_NOFILE: strangers that hold what
/// they may hold leave enough for the ranks' connections.
size_t share_of_descriptors(size_t most);

/// A socket that listens at `ip` on a free port.
Fd listen_at(const std::string& ip, Blob* ret_blob);

}  // namespace hvdkit
