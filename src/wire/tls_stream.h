// TLS over a socket, for one thread, without ever blocking. Memory for records exists while something is
// under way and not between messages: a driver has thousands of these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "wire/socket.h"

struct bio_st;
struct ssl_ctx_st;
struct ssl_st;

namespace hvd::wire {

class TlsStream {
 public:
  enum class Role { kClient, kServer };
  /// kReads, kWrites: to be called again when the socket can be read or written. kEnd: never again, see
  /// `failure`.
  enum class Step { kDone, kReads, kWrites, kEnd };
  struct Failure {
    enum class Kind { kClosed, kSystem, kTls } kind = Kind::kClosed;  // kClosed: by the peer
    std::string text;
  };

  /// context: of wire/tls.h. Throws Error(HVD_UNAVAILABLE) if OpenSSL refuses.
  TlsStream(Tcp::socket socket, ssl_ctx_st* context, Role role);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  Tcp::socket& socket() { return socket_; }
  const Tcp::socket& socket() const { return socket_; }
  ssl_st* ssl() const { return ssl_; }

  Step handshake();
  /// kDone: *ret_got bytes, at least one.
  Step read(uint8_t* to, size_t room, size_t* ret_got);
  /// Bytes have been received that `read` has not given out: the socket does not tell of them.
  bool holds() const;
  /// Takes *ret_taken bytes, at least one; kWrites: what was taken is not all on its way, and `flush` is
  /// next.
  Step write(const uint8_t* from, size_t size, size_t* ret_taken);
  Step flush();

  const Failure& failure() const { return failure_; }

 private:
  struct Bio;
  Step ended(int result);
  Step end(Failure::Kind kind, std::string text);

  Tcp::socket socket_;
  ssl_st* ssl_ = nullptr;
  std::vector<uint8_t> out_;  // records that the socket has not taken
  size_t sent_ = 0;           // of them
  int error_ = 0;             // of the socket, as of the last call
  bool closed_ = false;       // by the peer
  Failure failure_;
};

/// Calls `done` once on the loop's thread, perhaps at once: with nothing, or with why there is no handshake.
/// The socket's being closed here counts as a failure.
void async_handshake(const std::shared_ptr<TlsStream>& stream,
                     std::function<void(const TlsStream::Failure* why)> done);

}  // namespace hvd::wire
