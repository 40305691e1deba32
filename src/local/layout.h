// What lies in a rank's box: the shared memory that it owns and the ranks of its host map. Nothing in it but
// the owner's own writes can be trusted by the owner; nothing at all by the others.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "backend/board.h"

namespace hvd::local {

inline constexpr uint64_t kBoxMagic = 0x786f622d64766821;  // "!hvd-box"
inline constexpr uint32_t kLayoutVersion = 6;
inline constexpr size_t kPage = 4096;
inline constexpr size_t kLine = 64;  // no two writers within one

inline constexpr size_t kSegmentBytes = size_t{256} << 10;
inline constexpr size_t kSegments = 8;
inline constexpr int32_t kMostLocal = 128;  // ranks that share memory; further ones are groups of their own
/// Of so many ranks each may look at all others; among more of them that would be too much, and each looks at
/// few.
inline constexpr int32_t kMostAmongAll = 32;
inline constexpr size_t kRingBytes = size_t{64} << 10;

enum class BoxState : uint32_t { kOpen = 0, kGaveUp = 1, kLeft = 2 };

struct alignas(kLine) Counter {
  std::atomic<uint64_t> value;
};

/// Where the owner works; see base/placement.h.
struct alignas(kLine) Processor {
  std::atomic<int32_t> value;
};

/// Messages of one rank of the host to the box's owner. `written` is the sender's, `read` the owner's; both
/// count bytes for ever. `starved`: the sender waits for room; the owner takes it back and rings. In pages of
/// its own: its sender alone can write to them.
struct alignas(kPage) Ring {
  Counter written;
  Counter read;
  Counter starved;
  alignas(kLine) uint8_t data[kRingBytes];
};

/// A word for each segment of one ring.
struct alignas(kLine) SegmentWords {
  std::atomic<uint64_t> value[kSegments];
};

/// Written by all ranks of the host, in pages of its own: to wake the owner, and to meet on the board.
struct alignas(kPage) Bells {
  alignas(kLine) std::atomic<uint32_t> exec;     // 1: the owner's executor sleeps
  alignas(kLine) std::atomic<uint32_t> message;  // 1: the owner's message thread sleeps
  alignas(
      kLine) std::atomic<uint64_t> senders[kMostLocal / 64];  // who has sent the owner a message, by index
  backend::BoardWords board;                                  // of the first rank's box alone
};
static_assert(sizeof(Bells) == 71 * kPage);

/// A peer maps it read-only, but for the bells and its own ring: a wild write elsewhere ends its writer, and
/// nobody else.
struct Box {
  uint64_t magic;
  uint32_t version;
  uint32_t reserved;
  uint64_t token[2];
  uint64_t bytes;
  alignas(kLine) std::atomic<uint32_t> state;  // BoxState, the owner's word to its peers
  Processor processor;                         // -1: unknown
  SegmentWords holds;                          // what the owner has put into each of its segments
  SegmentWords taken[kMostLocal];  // what the owner has read last in each segment of the others, by index
  Bells bells;
  alignas(kPage) backend::BoardNotes notes;  // the owner's
  alignas(kPage) uint8_t segments[kSegments][kSegmentBytes];
  Ring rings[kMostLocal];  // by the sender's index in the group
};

static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

}  // namespace hvd::local
