// How two ranks convince each other that they belong to a generation: pure functions of bytes, without
// sockets.
//
// The rank that dials sends a hello, in the clear and without any secret: who it is, and a nonce. From there
// on the connection is encrypted where the two addresses say so. The other one answers with a nonce of its
// own; then each proves by an HMAC-SHA256 over all of that, in constant time, that it knows both ranks'
// tokens. Tokens came to all members by the authenticated control channel and never cross a link.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "modules/kit/net.h"
#include "modules/kit/socket.h"

namespace hvdkit {

/// What a rank tells another when they meet: bytes of the module's own, which it checks itself.
using Greeting = std::vector<uint8_t>;
constexpr size_t kMaxGreeting = 4096;
constexpr uint32_t kMaxStreams = 16;  // between two ranks, the link not counted

struct LinkGroup {
  uint64_t generation = 0;
  int rank = 0;
  std::vector<Blob> members;
};

// kLost: int32_t, the rank that rank 0 knows to be gone, or -1: somebody gave up.
enum class Frame : uint32_t {
  kHello = 1,
  kStep,
  kMessage,
  kBye,
  kGaveUp,
  kChallenge,
  kProof,
  kWelcome,
  kLost
};
struct FrameHeader {
  uint32_t size;  // bytes that follow
  Frame kind;
};

/// One connection's greeting, at either end. `group` outlives it.
class Handshake {
 public:
  /// The end that dials. stream: 0 for the link, or the number of a data connection from 1 on.
  Handshake(const LinkGroup& group, int peer, uint32_t stream, Greeting mine);
  /// The end that is dialed. greetings: by rank; outlives this.
  Handshake(const LinkGroup& group, const std::vector<Greeting>& greetings);

  /// What the end that dials begins with.
  std::vector<uint8_t> hello() const;

  /// At most so many bytes may be given to `take` at a time: nothing behind a greeting is read with it. 0:
  /// done.
  size_t wants() const;
  /// Appends to *ret_out what is to be sent then. False: refused, and `refusal` says why.
  bool take(const uint8_t* data, size_t size, std::vector<uint8_t>* ret_out);

  bool done() const { return state_ == State::kDone; }
  const std::string& refusal() const { return refusal_; }
  /// From the hello on, at either end.
  int peer() const { return peer_; }  // -1: not known yet
  uint32_t stream() const { return stream_; }
  bool encrypted() const;  // what follows the hello goes under TLS with this key
  Key tls_key() const { return key("TLS 1.3 pre-shared key"); }
  bool dials() const { return dials_; }
  const Greeting& theirs() const { return theirs_; }  // once done

 private:
  enum class State { kHello, kChallenge, kProof, kWelcome, kDone };
  struct Hello {
    uint32_t magic, version;
    uint64_t generation;
    int32_t rank, size;
    uint32_t stream, reserved;
    std::array<uint8_t, 32> nonce;
  };
  bool refuse(const std::string& why);
  bool take_body(const uint8_t* body, size_t size, std::vector<uint8_t>* ret_out);
  bool take_hello(const uint8_t* body);
  Key key(const char* purpose) const;
  Key proof(const char* whose, const Greeting& greeting) const;
  void append_proof(Frame kind, const char* whose, const Greeting& greeting,
                    std::vector<uint8_t>* ret_out) const;

  const LinkGroup& group_;
  const std::vector<Greeting>* const greetings_;
  const bool dials_;
  State state_;
  int peer_ = -1;
  uint32_t stream_ = 0;
  Greeting mine_, theirs_;
  Hello hello_{};
  std::array<uint8_t, 32> challenge_{};
  std::vector<uint8_t> in_;
  std::string refusal_;
};

}  // namespace hvdkit
