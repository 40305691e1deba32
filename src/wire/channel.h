// A connection that carries frames: 4 bytes of length (big endian), then that many bytes. TLS 1.3 with a key
// of each peer's own as external pre-shared key: no certificate, no other cipher, no tickets. A peer without
// its key never gets past the handshake, so none of its bytes reaches a parser of messages (contract 13).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/log.h"
#include "base/loop.h"
#include "base/status.h"
#include "wire/bytes.h"

namespace hvd::wire {

struct ChannelLimits {
  size_t max_frame = 16 << 20;    // a longer one ends the connection
  size_t first_frame = 64 << 10;  // the same, until trust() is called
  size_t max_queued = 64 << 20;   // bytes waiting to be sent; a reader slower than that is cut off
  Duration handshake_timeout = seconds(5);
  // Of a listener: connections that are over but for their last words. The oldest gives way. Where the
  // process may have few descriptors they are fewer (base/descriptors.h).
  size_t most_lingering = 256;       // of peers that were never trusted, together
  size_t most_lingering_of_one = 4;  // of one identity that was
};

/// Called on the loop's thread.
struct ChannelHandlers {
  std::function<void(std::span<const uint8_t> frame)> frame;
  /// Once, when the connection is over and close was not called by us: why.
  std::function<void(const Status& why)> closed;
};

/// An authenticated connection. Held by shared_ptr; methods on the loop's thread only.
class Channel {
 public:
  virtual ~Channel() = default;
  virtual void set_handlers(ChannelHandlers handlers) = 0;  // nothing is read before it was called
  virtual void send(Bytes frame) = 0;                       // queued; dropped if closed
  /// The same, of a short frame that stays the caller's.
  virtual void send_copy(std::span<const uint8_t> frame) { send(Bytes(frame.begin(), frame.end())); }
  /// A frame of `head` and what `rest` has from byte `from` on, which is not copied (wire/circular.h).
  virtual void send_shared(Bytes head, std::shared_ptr<const Bytes> rest, size_t from) {
    head.insert(head.end(), rest->begin() + static_cast<ptrdiff_t>(from), rest->end());
    send(std::move(head));
  }
  virtual void trust() = 0;  // from here on the peer may send frames of max_frame bytes
  /// Sends what is queued, at most for `linger`, then closes. Handlers are dropped at once. Of a listener's
  /// channels only so many linger (ChannelLimits): who is refused again and again keeps no descriptors.
  virtual void close(Duration linger) = 0;
  /// The same, and says when the socket is closed: from then on nothing of this channel is under way.
  virtual void close_then(Duration linger, std::function<void()> closed) {
    close(linger);
    closed();
  }
  virtual bool pending() const { return false; }  // bytes have come that no handler has seen
  virtual std::string peer() const = 0;           // "127.0.0.1:4711"
  virtual std::string identity() const = 0;       // whose key the peer knows; "" for the driver's
  virtual std::string local_address() const = 0;  // address only: the route to the peer
  /// Before trust(): how long a frame may be where a first message needs more than first_frame.
  virtual void lengthen_first(size_t bytes) = 0;
};

/// Connects to "host:port", or to the first of several, separated by commas, that answers; authenticates as
/// `identity` (wire/tls.h), at most for `timeout`. `done` is
/// called once on the loop's thread, with a channel or with why there is none (HVD_DRIVER_LOST: not
/// reachable; HVD_REFUSED: wrong secret; HVD_TIMEOUT: no answer; HVD_INVALID: unfit endpoint or secret). A
/// driver that does not listen yet is tried again. Frames are delivered from the next turn of the loop after
/// set_handlers on, and wait until then.
void connect_channel(Loop& loop, const std::string& endpoint, const std::string& secret,
                     const std::string& identity, const ChannelLimits& limits, Duration timeout,
                     std::function<void(std::shared_ptr<Channel> channel, const Status& why)> done);

/// Accepts authenticated connections. Those that have not finished the handshake are bounded in number
/// and time; the oldest gives way. Running out of descriptors pauses accepting and says so in the log.
class Listener {
 public:
  /// endpoint: "address:port", port 0 for any. Throws Error(HVD_UNAVAILABLE) naming the endpoint.
  Listener(Loop& loop, const std::string& endpoint, const std::string& secret, const ChannelLimits& limits,
           LoggerPtr logger, std::function<void(std::shared_ptr<Channel>)> accepted);
  /// With a socket that listens already, which it owns from here on.
  Listener(Loop& loop, int socket, const std::string& secret, const ChannelLimits& limits, LoggerPtr logger,
           std::function<void(std::shared_ptr<Channel>)> accepted);
  int descriptor() const;  // of its socket
  ~Listener();             // on the loop's thread, or after it has stopped
  uint16_t port() const;
  std::string address() const;
  struct Counters {
    uint64_t accepted, refused;
  };
  Counters counters() const;  // on the loop's thread

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace hvd::wire
