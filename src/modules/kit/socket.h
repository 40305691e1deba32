// One TCP connection between two ranks, in the clear or under TLS 1.3. It never blocks and never raises
// SIGPIPE.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "modules/kit/net.h"

namespace hvdkit {

using Key = std::array<uint8_t, 32>;

/// Not safe for several threads at once.
class Socket {
 public:
  Socket();
  explicit Socket(Fd fd);
  Socket(Socket&&) noexcept;
  Socket& operator=(Socket&&) noexcept;
  ~Socket();

  int fd() const { return fd_.get(); }
  void close();

  /// From here on TLS 1.3 with this pre-shared key, an ephemeral key exchange and AES-128-GCM; the handshake
  /// is made by the reads and writes that follow. Throws Failure(HVD_UNAVAILABLE) if OpenSSL can't.
  void encrypt(bool server, const Key& key);
  bool encrypted() const { return tls_ != nullptr; }

  enum : ssize_t { kNothing = 0, kEnd = -1 };
  /// The number of bytes read; kNothing: none are there now; kEnd: no more will come, `why` says so.
  ssize_t read(void* data, size_t size);
  /// The number of bytes taken. kNothing: none now. What was taken need not have left: see `holds`.
  ssize_t write(const iovec* parts, int count);
  /// Bytes that were taken wait for room in the system's buffer: flush when it has some, or write more.
  bool holds() const;
  ssize_t flush();  // kNothing, or kEnd
  /// Whether a write came to nothing for want of room, and not because the handshake waits for the peer.
  bool full() const { return full_; }
  /// Bytes were received that only `read` knows of: poll does not tell.
  bool buffered() const;
  const std::string& why() const { return why_; }

 private:
  struct Tls;
  friend struct Tls;
  ssize_t end(const std::string& why);
  ssize_t end_of_tls(int result, const char* what);

  Fd fd_;
  std::unique_ptr<Tls> tls_;
  bool full_ = false;
  bool drained_ = true;  // the last read has taken all that makes sense so far
  std::string why_;
};

}  // namespace hvdkit
