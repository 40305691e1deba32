// Copies of tensors by pieces, each with a digest: pieces that the target holds already are not written
// again, and several cores can take part.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "base/digest.h"

namespace hvd::state {

/// Small enough to stay in a core's cache between its digest and its copy.
inline constexpr size_t kPiece = 1 << 20;

inline constexpr size_t pieces_of(size_t bytes) { return (bytes + kPiece - 1) / kPiece; }

/// Digest of a variable's bytes: of all of them up to kPiece, else of the digests of its pieces.
Digest content_digest(const void* data, size_t size);

/// What a buffer holds, as far as that is known, piece by piece.
struct Pieces {
  std::vector<Digest> digests;
  std::vector<uint8_t> marks;  // kKnown, kSteady

  static constexpr uint8_t kKnown = 1;
  static constexpr uint8_t kSteady = 2;  // it was the same at the last copy: likely to be so again

  /// Memory for those of so many bytes: then fit() throws nothing. Nothing else changes.
  void reserve(size_t bytes) {
    digests.reserve(pieces_of(bytes));
    marks.reserve(pieces_of(bytes));
  }
  /// Room for a buffer of so many bytes. What was known stays if the size does.
  void fit(size_t bytes) {
    if (digests.size() == pieces_of(bytes)) return;
    reserve(bytes);
    digests.assign(pieces_of(bytes), {});
    marks.assign(pieces_of(bytes), 0);
  }
  /// content_digest of the buffer, all of which is known.
  Digest content() const {
    return digests.size() == 1 ? digests[0] : digest(digests.data(), digests.size() * sizeof(Digest));
  }
};

/// One piece of a copy. `pieces` NULL: nothing is known, and nothing is to be. `to` NULL: it is only to be
/// digested. `from` NULL: it is put together from `parts`, which are somebody else's.
struct PieceCopy {
  uint8_t* to;
  const uint8_t* from;
  size_t size;
  Pieces* pieces;
  size_t index;
  std::span<const Extent> parts = {};
};

/// Appends the pieces of a copy of `bytes`. With `pieces`, which fit it, digests are taken as well.
void append_pieces(void* to, const void* from, size_t bytes, Pieces* pieces, std::vector<PieceCopy>* list);

/// The same of extents that are copied one after the other. `parts` gets what the list refers to; room for
/// extents.size() + pieces_of() of them is enough, and they must stay.
void append_pieces(void* to, std::span<const Extent> extents, Pieces* pieces, std::vector<Extent>* parts,
                   std::vector<PieceCopy>* list);

/// Makes the copies with as many threads as the process has cores, if they are large and `parallel`; gives
/// the bytes that had to be written.
uint64_t copy_pieces(std::span<const PieceCopy> list, bool parallel);

/// One of them, in this thread; gives the bytes that had to be written. `stream`: past the caches, if nothing
/// is to be known of it.
uint64_t copy_piece(const PieceCopy& piece, bool stream = false);

/// Copies that one thread makes, and that whoever comes to wait for them makes with it.
class SharedCopy {
 public:
  /// `list` must stay until finish() has returned.
  explicit SharedCopy(std::span<const PieceCopy> list);
  /// Makes those that nobody has begun, and waits for those that others have; once. Returns the bytes that
  /// had to be written.
  uint64_t finish();
  /// Makes those that nobody has begun, as copy_pieces does in parallel. Any thread but that of finish(), and
  /// after that as well.
  void help();

 private:
  bool make_one();

  const std::span<const PieceCopy> list_;
  uint64_t bytes_ = 0;
  bool stream_ = false;
  std::atomic<size_t> next_{0}, done_{0};
  std::atomic<uint64_t> written_{0};
  std::mutex mutex_;
  std::condition_variable all_done_;
};

/// Adds bytes to others, as exclusive or.
void add_bytes(uint8_t* to, const uint8_t* from, size_t size);

/// Calls fn for each number below `count`, with as many threads as the process has cores if `bytes`, which
/// they work on in all, are worth it, and as there are to be had. fn must not throw.
void in_parallel(size_t count, uint64_t bytes, const std::function<void(size_t)>& fn);

/// How many cores this process may use.
size_t usable_cores();

}  // namespace hvd::state
