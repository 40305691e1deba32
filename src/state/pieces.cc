// Copies and digests piece by piece, in one thread or in several.
#include "state/pieces.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <thread>

#include "base/stream_copy.h"
#include "base/thread.h"
#include "state/pages.h"

namespace hvd::state {
namespace {

// Starting threads costs some 50 us: from here on that is less than a hundredth of the copy.
constexpr uint64_t kParallelFrom = 32 << 20;
constexpr size_t kMostThreads = 16;
// Plain copies go in larger pieces.
constexpr size_t kPlainPiece = 16 << 20;
// And past the caches, if they are so large in all: a whole line that is written needs not be read first. The
// C library's memcpy does so only where each call is large, by the processor's caches.
constexpr uint64_t kStreamFrom = 32 << 20;

}  // namespace

uint64_t copy_piece(const PieceCopy& piece, bool stream) {
  if (piece.pieces == nullptr) {
    if (piece.size >= kPiece) touch(piece.to, piece.size);
    copy_to(piece.to, piece.from, piece.size, stream);
    return piece.size;
  }
  Digest& held = piece.pieces->digests[piece.index];
  uint8_t& marks = piece.pieces->marks[piece.index];
  if (piece.to == nullptr) {
    held = digest(piece.from, piece.size);
    marks = Pieces::kKnown;
    return 0;
  }
  // Reading alone costs half of a copy. What changed at the last copy is taken to have changed again, which
  // saves reading it twice.
  constexpr uint8_t kBoth = Pieces::kKnown | Pieces::kSteady;
  const Extent whole{piece.from, piece.size};
  const std::span<const Extent> parts = piece.from != nullptr ? std::span(&whole, 1) : piece.parts;
  if ((marks & kBoth) == kBoth && digest(parts) == held) return 0;
  const Digest copied = copy_and_digest(piece.to, parts);
  marks = (marks & Pieces::kKnown) != 0 && copied == held ? kBoth : Pieces::kKnown;
  held = copied;
  return piece.size;
}

void add_bytes(uint8_t* to, const uint8_t* from, size_t size) {
  using Block [[gnu::vector_size(16)]] = uint64_t;
  size_t at = 0;
  for (; at + sizeof(Block) <= size; at += sizeof(Block)) {
    Block a, b;  // both lie as they come
    std::memcpy(&a, to + at, sizeof(a));
    std::memcpy(&b, from + at, sizeof(b));
    a ^= b;
    std::memcpy(to + at, &a, sizeof(a));
  }
  for (; at < size; ++at) to[at] ^= from[at];
}

Digest content_digest(const void* data, size_t size) {
  if (size <= kPiece) return digest(data, size);
  std::vector<Digest> digests;
  digests.reserve(pieces_of(size));
  for (size_t at = 0; at < size; at += kPiece) {
    digests.push_back(digest(static_cast<const uint8_t*>(data) + at, std::min(kPiece, size - at)));
  }
  return digest(digests.data(), digests.size() * sizeof(Digest));
}

void append_pieces(void* to, const void* from, size_t bytes, Pieces* pieces, std::vector<PieceCopy>* list) {
  const size_t length = pieces != nullptr ? kPiece : kPlainPiece;
  size_t index = 0;
  for (size_t at = 0; at < bytes; at += length) {
    list->push_back({to == nullptr ? nullptr : static_cast<uint8_t*>(to) + at,
                     static_cast<const uint8_t*>(from) + at, std::min(length, bytes - at), pieces, index++});
  }
}

void append_pieces(void* to, std::span<const Extent> extents, Pieces* pieces, std::vector<Extent>* parts,
                   std::vector<PieceCopy>* list) {
  size_t size = 0;
  for (const Extent& extent : extents) size += extent.size;
  parts->clear();
  parts->reserve(extents.size() + pieces_of(size));  // spans of it must stay valid
  size_t taken = 0;                                  // of extents[0]
  for (size_t at = 0; at < size; at += kPiece) {
    const size_t length = std::min(kPiece, size - at), first = parts->size();
    for (size_t filled = 0; filled < length;) {
      const size_t some = std::min(extents[0].size - taken, length - filled);
      if (some > 0) parts->push_back({static_cast<const uint8_t*>(extents[0].data) + taken, some});
      filled += some;
      taken += some;
      if (taken < extents[0].size) continue;
      extents = extents.subspan(1);
      taken = 0;
    }
    PieceCopy piece{static_cast<uint8_t*>(to) + at, nullptr, length, pieces, at / kPiece};
    piece.parts = std::span(*parts).subspan(first);
    if (piece.parts.size() == 1) piece.from = static_cast<const uint8_t*>(piece.parts[0].data);
    list->push_back(piece);
  }
}

size_t usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return std::max(1U, std::thread::hardware_concurrency());
  return static_cast<size_t>(std::max(1, CPU_COUNT(&set)));
}

void in_parallel(size_t count, uint64_t bytes, const std::function<void(size_t)>& fn) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) fn(i);
  };
  std::array<std::thread, kMostThreads> helpers;
  if (bytes >= kParallelFrom) {
    const size_t cores = std::min({usable_cores(), kMostThreads, count});
    const SignalsBlocked blocked;
    try {
      for (size_t i = 1; i < cores; ++i) helpers[i] = std::thread(work);
    } catch (const std::exception&) {}  // no thread or no memory left: those that are there do it
  }
  work();
  for (std::thread& helper : helpers) {
    if (helper.joinable()) helper.join();
  }
}

uint64_t copy_pieces(std::span<const PieceCopy> list, bool parallel) {
  uint64_t bytes = 0;
  for (const PieceCopy& piece : list) bytes += piece.size;
  struct {
    std::span<const PieceCopy> list;
    const bool stream;
    std::atomic<uint64_t> written{0};
  } work{list, bytes >= kStreamFrom};
  // One reference: a function of more would be allocated.
  in_parallel(list.size(), parallel ? bytes : 0,
              [&work](size_t i) { work.written += copy_piece(work.list[i], work.stream); });
  return work.written;
}

SharedCopy::SharedCopy(std::span<const PieceCopy> list) : list_(list) {
  for (const PieceCopy& piece : list) bytes_ += piece.size;
  stream_ = bytes_ >= kStreamFrom;
}

bool SharedCopy::make_one() {
  const size_t i = next_++;
  if (i >= list_.size()) return false;
  written_ += copy_piece(list_[i], stream_);
  if (++done_ < list_.size()) return true;
  const std::lock_guard lock(mutex_);
  all_done_.notify_all();
  return true;
}

uint64_t SharedCopy::finish() {
  while (make_one()) {}
  std::unique_lock lock(mutex_);
  all_done_.wait(lock, [&] { return done_ >= list_.size(); });
  return written_;
}

void SharedCopy::help() {
  const size_t begun = next_;
  if (begun >= list_.size()) return;
  const size_t left = list_.size() - begun;
  in_parallel(left, bytes_ / list_.size() * left, [this](size_t) { make_one(); });
}

}  // namespace hvd::state
