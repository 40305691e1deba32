// The two ends of a ring: a stream of bytes from one rank to another, in which messages follow each other.
// A message is a head of 8 bytes (its length and its number, the least 32 bits of each) and its bytes,
// filled up to a multiple of 8, so that neither head nor positions ever lie across the ring's end.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "local/layout.h"

namespace hvd::local {

inline constexpr size_t kMostMessage = size_t{1} << 20;
/// Bytes of messages that wait until a peer reads them; then it is lost. Payload never waits here. A rank is
/// sent answers to its own calls, of which it has 512 MiB under way at most, so that one that is merely slow
/// does not come so far.
inline constexpr size_t kMostKept = size_t{1} << 30;

/// The sender's end. One thread at a time.
class StreamWriter {
 public:
  explicit StreamWriter(Ring& ring, size_t most_kept = kMostKept) : ring_(&ring), most_kept_(most_kept) {}

  /// Takes the message: into the ring as far as there is room, the rest is kept. False: the ring is broken,
  /// or too much is kept.
  bool write(std::span<const uint8_t> message);
  /// Writes what was kept, as far as there is room; asks for a ring of the bell when there is more.
  bool flush();
  bool keeps() const { return !kept_.empty(); }
  size_t kept() const { return kept_bytes_; }  // about, with what each message takes besides
  bool full() const { return full_; }          // why the last write was refused

 private:
  std::optional<size_t> room() const;  // none: broken
  void copy(const uint8_t* data, size_t size);
  void publish() { ring_->written.value.store(written_, std::memory_order_seq_cst); }

  Ring* ring_;
  const size_t most_kept_;
  uint64_t written_ = 0;
  uint32_t number_ = 0;
  std::deque<std::vector<uint8_t>> kept_;
  size_t kept_from_ = 0;  // of the first, what is written already
  size_t kept_bytes_ = 0;
  bool full_ = false;
};

/// The receiver's end. One thread at a time. Nothing in the ring is believed before it is checked, and what
/// is checked was copied out of the ring first.
class StreamReader {
 public:
  explicit StreamReader(Ring& ring) : ring_(&ring) {}

  /// Any thread. True once it is broken.
  bool empty() const {
    return broken_.load() || ring_->written.value.load(std::memory_order_seq_cst) == read_.load();
  }

  enum class Result { kNothing, kMessage, kBroken };
  /// kMessage: `message()` until the next call. kNothing: no whole message is there. Throws std::bad_alloc;
  /// then it may be called again.
  Result next();
  std::span<const uint8_t> message() const { return {buffer_.get(), size_}; }
  const std::string& reason() const { return reason_; }  // after kBroken

  /// Whether the sender waits for room and there is some: it wants its bell rung. Asked once a wish.
  bool wanted() {
    return ring_->starved.value.load(std::memory_order_seq_cst) != 0 &&
           ring_->starved.value.exchange(0, std::memory_order_seq_cst) != 0;
  }

 private:
  void copy(uint8_t* out, size_t size);
  Result broken(std::string reason);

  Ring* ring_;
  std::atomic<uint64_t> read_{0};
  std::atomic<bool> broken_{false};
  uint32_t number_ = 0;
  bool in_message_ = false;
  size_t size_ = 0;  // of the message
  size_t got_ = 0;   // filled up to 8
  std::unique_ptr<uint8_t[]> buffer_;
  size_t room_ = 0;
  std::string reason_;
};

}  // namespace hvd::local
