// Frames, proofs and keys of a greeting.
#include "modules/kit/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstring>

#include "hvd/backend.hpp"

namespace hvdkit {
namespace {

constexpr uint32_t kMagic = 0x4c647668;
constexpr uint32_t kVersion = 4;

Key hmac(const void* key, size_t key_size, const std::vector<uint8_t>& text) {
  Key mac{};
  unsigned length = static_cast<unsigned>(mac.size());
  if (HMAC(EVP_sha256(), key, static_cast<int>(key_size), text.data(), text.size(), mac.data(), &length) ==
      nullptr) {
    throw Failure(HVD_UNAVAILABLE, "OpenSSL can't make an HMAC with SHA-256");
  }
  return mac;
}

void append(std::vector<uint8_t>& to, const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  to.insert(to.end(), bytes, bytes + size);
}

}  // namespace

Handshake::Handshake(const LinkGroup& group, int peer, uint32_t stream, Greeting mine)
    : group_(group),
      greetings_(nullptr),
      dials_(true),
      state_(State::kChallenge),
      peer_(peer),
      stream_(stream),
      mine_(std::move(mine)) {
  hello_.magic = kMagic;
  hello_.version = kVersion;
  hello_.generation = group.generation;
  hello_.rank = group.rank;
  hello_.size = static_cast<int32_t>(group.members.size());
  hello_.stream = stream;
  fill_random(hello_.nonce.data(), hello_.nonce.size());
}

Handshake::Handshake(const LinkGroup& group, const std::vector<Greeting>& greetings)
    : group_(group), greetings_(&greetings), dials_(false), state_(State::kHello) {
  fill_random(challenge_.data(), challenge_.size());
}

std::vector<uint8_t> Handshake::hello() const {
  const FrameHeader header{sizeof(Hello), Frame::kHello};
  std::vector<uint8_t> bytes;
  append(bytes, &header, sizeof(header));
  append(bytes, &hello_, sizeof(hello_));
  return bytes;
}

size_t Handshake::wants() const {
  if (done() || !refusal_.empty()) return 0;
  FrameHeader header{};
  if (in_.size() < sizeof(header)) return sizeof(header) - in_.size();
  std::memcpy(&header, in_.data(), sizeof(header));
  return sizeof(header) + header.size - in_.size();
}

bool Handshake::refuse(const std::string& why) {
  if (refusal_.empty()) refusal_ = why;
  return false;
}

bool Handshake::take(const uint8_t* data, size_t size, std::vector<uint8_t>* ret_out) {
  for (size_t used = 0; used < size;) {
    const size_t piece = std::min(wants(), size - used);
    if (piece == 0) return refuse("more than a greeting");
    append(in_, data + used, piece);
    used += piece;
    if (in_.size() < sizeof(FrameHeader)) continue;
    FrameHeader header{};
    std::memcpy(&header, in_.data(), sizeof(header));
    if (in_.size() == sizeof(header)) {  // before any of its body is waited for
      constexpr size_t kProofSize = sizeof(Key);
      Frame expected = Frame::kHello;
      size_t least = sizeof(Hello), most = sizeof(Hello);
      if (state_ == State::kChallenge) {
        expected = Frame::kChallenge;
        least = most = challenge_.size();
      } else if (state_ != State::kHello) {
        expected = state_ == State::kProof ? Frame::kProof : Frame::kWelcome;
        least = kProofSize;
        most = kProofSize + kMaxGreeting;
      }
      if (header.kind != expected || header.size < least || header.size > most)
        return refuse("another protocol");
    }
    if (in_.size() < sizeof(header) + header.size) continue;
    const std::vector<uint8_t> frame = std::move(in_);
    in_.clear();
    if (!take_body(frame.data() + sizeof(header), header.size, ret_out)) return false;
  }
  return true;
}

bool Handshake::take_body(const uint8_t* body, size_t size, std::vector<uint8_t>* ret_out) {
  if (state_ == State::kHello) {
    if (!take_hello(body)) return false;
    const FrameHeader header{static_cast<uint32_t>(challenge_.size()), Frame::kChallenge};
    append(*ret_out, &header, sizeof(header));
    append(*ret_out, challenge_.data(), challenge_.size());
    state_ = State::kProof;
    return true;
  }
  if (state_ == State::kChallenge) {
    std::memcpy(challenge_.data(), body, challenge_.size());
    append_proof(Frame::kProof, "the one that dials", mine_, ret_out);
    state_ = State::kWelcome;
    return true;
  }
  theirs_.assign(body + sizeof(Key), body + size);
  const Key expected = proof(dials_ ? "the one that is dialed" : "the one that dials", theirs_);
  if (CRYPTO_memcmp(body, expected.data(), expected.size()) != 0) return refuse("a wrong token");
  if (!dials_) append_proof(Frame::kWelcome, "the one that is dialed", mine_, ret_out);
  state_ = State::kDone;
  return true;
}

bool Handshake::take_hello(const uint8_t* body) {
  std::memcpy(&hello_, body, sizeof(hello_));
  if (hello_.magic != kMagic || hello_.version != kVersion) return refuse("another protocol");
  if (hello_.generation != group_.generation || hello_.size != static_cast<int32_t>(group_.members.size())) {
    return refuse("generation " + std::to_string(hello_.generation) + " of " + std::to_string(hello_.size) +
                  " ranks");
  }
  if (hello_.rank == group_.rank || hello_.rank < 0 || hello_.rank >= hello_.size)
    return refuse("rank " + std::to_string(hello_.rank));
  if (hello_.stream > kMaxStreams) return refuse("stream " + std::to_string(hello_.stream));
  peer_ = hello_.rank;
  stream_ = hello_.stream;
  if (stream_ == 0) mine_ = greetings_->at(static_cast<size_t>(peer_));
  return true;
}

bool Handshake::encrypted() const {
  return peer_ >= 0 && encrypts(group_.members[static_cast<size_t>(group_.rank)],
                                group_.members[static_cast<size_t>(peer_)]);
}

// Of both tokens, so that neither end can be played by one who knows the other's alone.
Key Handshake::key(const char* purpose) const {
  const int dialer = dials_ ? group_.rank : peer_;
  const int dialed = dials_ ? peer_ : group_.rank;
  std::array<uint8_t, 2 * sizeof(Token)> tokens{};
  std::memcpy(tokens.data(), group_.members[static_cast<size_t>(dialed)].token.data(), sizeof(Token));
  std::memcpy(tokens.data() + sizeof(Token), group_.members[static_cast<size_t>(dialer)].token.data(),
              sizeof(Token));
  const std::string text = std::string("libhvd link 4, ") + purpose + ", generation " +
                           std::to_string(group_.generation) + ", rank " + std::to_string(dialer) + " to " +
                           std::to_string(dialed) + " of " + std::to_string(group_.members.size()) +
                           ", stream " + std::to_string(stream_);
  const Key made = hmac(tokens.data(), tokens.size(), std::vector<uint8_t>(text.begin(), text.end()));
  OPENSSL_cleanse(tokens.data(), tokens.size());
  return made;
}

Key Handshake::proof(const char* whose, const Greeting& greeting) const {
  std::vector<uint8_t> text;
  append(text, whose, std::strlen(whose) + 1);
  append(text, &hello_, sizeof(hello_));
  append(text, challenge_.data(), challenge_.size());
  append(text, greeting.data(), greeting.size());
  Key secret = key("proofs");
  const Key made = hmac(secret.data(), secret.size(), text);
  OPENSSL_cleanse(secret.data(), secret.size());
  return made;
}

void Handshake::append_proof(Frame kind, const char* whose, const Greeting& greeting,
                             std::vector<uint8_t>* ret_out) const {
  const Key mac = proof(whose, greeting);
  const FrameHeader header{static_cast<uint32_t>(mac.size() + greeting.size()), kind};
  append(*ret_out, &header, sizeof(header));
  append(*ret_out, mac.data(), mac.size());
  append(*ret_out, greeting.data(), greeting.size());
}

}  // namespace hvdkit
