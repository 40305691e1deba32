// Writes and reads a ring whose other end is not trusted.
#include "local/stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace hvd::local {
namespace {

constexpr size_t kHead = 8;
constexpr size_t kKeptRoom = size_t{64} << 10;  // a buffer beyond this is given back after its message

/// Of a message that is kept.
constexpr size_t cost(size_t size) { return size + 64; }

constexpr size_t filled_up(size_t size) { return (size + 7) & ~size_t{7}; }

struct Head {
  uint32_t size;
  uint32_t number;
};
static_assert(sizeof(Head) == kHead && kRingBytes % kHead == 0);

}  // namespace

std::optional<size_t> StreamWriter::room() const {
  const uint64_t read = ring_->read.value.load(std::memory_order_seq_cst);
  if (read > written_ || written_ - read > kRingBytes || read % 8 != 0) return std::nullopt;
  return kRingBytes - (written_ - read);
}

void StreamWriter::copy(const uint8_t* data, size_t size) {
  const size_t at = written_ % kRingBytes;
  const size_t first = std::min(size, kRingBytes - at);
  std::memcpy(ring_->data + at, data, first);
  if (first < size) std::memcpy(ring_->data, data + first, size - first);
}

bool StreamWriter::write(std::span<const uint8_t> message) {
  full_ = kept_bytes_ > 0 && kept_bytes_ + cost(message.size()) > most_kept_;
  if (full_) return false;
  const Head head{static_cast<uint32_t>(message.size()), number_};
  const size_t whole = kHead + filled_up(message.size());
  if (kept_.empty()) {
    const std::optional<size_t> free = room();
    if (!free) return false;
    if (whole <= *free) {
      std::memcpy(ring_->data + written_ % kRingBytes, &head, kHead);
      written_ += kHead;
      if (!message.empty()) copy(message.data(), message.size());
      written_ += whole - kHead;
      ++number_;
      publish();
      return true;
    }
  }
  std::vector<uint8_t>& kept = kept_.emplace_back(whole);
  ++number_;  // once nothing can fail: the reader misses none
  kept_bytes_ += cost(whole);
  std::memcpy(kept.data(), &head, kHead);
  if (!message.empty()) std::memcpy(kept.data() + kHead, message.data(), message.size());
  return flush();
}

bool StreamWriter::flush() {
  while (!kept_.empty()) {
    std::optional<size_t> free = room();
    if (free == size_t{0}) {
      // Dekker's way: the wish first, then another look; the reader makes room first, then looks for the
      // wish.
      ring_->starved.value.store(1, std::memory_order_seq_cst);
      free = room();
      if (free == size_t{0}) return true;
    }
    if (!free) return false;
    std::vector<uint8_t>& first = kept_.front();
    const size_t size = std::min(*free, first.size() - kept_from_);
    copy(first.data() + kept_from_, size);
    written_ += size;
    kept_from_ += size;
    publish();
    if (kept_from_ == first.size()) {
      kept_bytes_ -= cost(first.size());
      kept_.pop_front();
      kept_from_ = 0;
    }
  }
  return true;
}

void StreamReader::copy(uint8_t* out, size_t size) {
  if (size == 0) return;  // of an empty message there is no buffer
  const size_t at = read_.load(std::memory_order_relaxed) % kRingBytes;
  const size_t first = std::min(size, kRingBytes - at);
  std::memcpy(out, ring_->data + at, first);
  if (first < size) std::memcpy(out + first, ring_->data, size - first);
}

StreamReader::Result StreamReader::broken(std::string reason) {
  reason_ = std::move(reason);
  broken_ = true;
  return Result::kBroken;
}

StreamReader::Result StreamReader::next() {
  if (broken_.load(std::memory_order_relaxed)) return Result::kBroken;
  uint64_t read = read_.load(std::memory_order_relaxed);
  const uint64_t written = ring_->written.value.load(std::memory_order_seq_cst);
  if (written == read) return Result::kNothing;
  if (written - read > kRingBytes || written % 8 != 0) {
    return broken(fmt::format("its ring says that {} bytes are there", written - read));
  }
  if (!in_message_) {
    Head head;
    std::memcpy(&head, ring_->data + read % kRingBytes, kHead);
    if (head.size > kMostMessage || head.number != number_) {
      return broken(
          fmt::format("message {} came as number {} with {} bytes", number_, head.number, head.size));
    }
    // Before anything is taken: without memory the message stays where it is.
    if (const size_t need = filled_up(head.size); need > room_ || (room_ > kKeptRoom && need <= kKeptRoom)) {
      const size_t room = std::max(need, size_t{256});
      buffer_.reset(new uint8_t[room]);
      room_ = room;
    }
    ++number_;
    read += kHead;
    read_.store(read, std::memory_order_relaxed);
    in_message_ = true;
    got_ = 0;
    size_ = head.size;
  }
  const size_t size = std::min<size_t>(written - read, filled_up(size_) - got_);
  copy(buffer_.get() + got_, size);
  got_ += size;
  read_.store(read + size, std::memory_order_relaxed);
  ring_->read.value.store(read + size, std::memory_order_seq_cst);
  if (got_ < filled_up(size_)) return Result::kNothing;
  in_message_ = false;
  return Result::kMessage;
}

}  // namespace hvd::local
