// The data of an outcome. Rank 0 makes them where the message about them is written; where they come in, they
// stay in that message until somebody has to wait with them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace hvd::collective {

/// Bytes of its own, or others'. A copy of one with bytes of others refers to the same.
class Payload {
 public:
  /// In front of what make gives; a multiple of 16.
  static constexpr size_t kHead = 96;

  Payload() = default;
  Payload(std::vector<uint8_t> bytes) : own_(std::move(bytes)) {}  // NOLINT(google-explicit-constructor)
  /// Refers to bytes of others, which have to stay.
  static Payload lent(std::span<const uint8_t> bytes) {
    Payload payload;
    payload.lent_ = bytes;
    return payload;
  }
  /// So many zeros of its own, to be written there, behind room for a message's head.
  uint8_t* make(size_t size) {
    own_.assign(kHead + size, 0);
    begin_ = kHead;
    return own_.data() + kHead;
  }

  bool is_lent() const { return !lent_.empty(); }
  std::span<const uint8_t> bytes() const {
    return is_lent() || own_.empty() ? lent_ : std::span<const uint8_t>(own_).subspan(begin_);
  }
  const uint8_t* data() const { return bytes().data(); }
  size_t size() const { return bytes().size(); }
  bool empty() const { return bytes().empty(); }
  /// The room that make has left, which is no part of the value: one thread at a time writes there. NULL if
  /// there is none.
  uint8_t* head() const { return begin_ == kHead && !own_.empty() ? own_.data() : nullptr; }
  friend bool operator==(const Payload& a, const Payload& b) {
    return std::ranges::equal(a.bytes(), b.bytes());
  }

 private:
  mutable std::vector<uint8_t> own_;
  size_t begin_ = 0;
  std::span<const uint8_t> lent_;
};

}  // namespace hvd::collective
