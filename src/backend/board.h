// A board: slots in memory that all ranks of a generation share, on which ranks that repeat a small operation
// meet without messages. Who may use a slot, and for what, is agreed elsewhere.
//
// A slot is granted under a number; its meetings are rounds, counted from 1. A rank arrives by leaving a
// note: its data, in one of two places by turns, and which round it is for. One word a slot says which round
// is open. Whoever sees that all have arrived opens the next one: that is the one moment at which the meeting
// takes place, for all. Whoever does not want to wait closes the slot instead, at the same word: then nobody
// has met, and nobody will under this grant.
//
// A place for notes is written again two rounds later, which opens only after everybody has arrived at the
// round between them, and so has read what stood there.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/placement.h"

namespace hvd::backend {

/// Slots for much data come first, by their numbers, and then many for little. The words of all share 71
/// pages with four more lines. Pages that nobody touches take no memory.
inline constexpr size_t kLargeSlots = 508, kSmallSlots = 4032, kBoardSlots = kLargeSlots + kSmallSlots;

/// One rank's part of a meeting. It alone writes it. The data follow.
struct BoardNote {
  std::atomic<uint64_t> arrived;  // grant and round
  std::atomic<uint64_t> checks;   // see collective/agreement.h
  uint8_t* data() { return reinterpret_cast<uint8_t*>(this + 1); }
  const uint8_t* data() const { return reinterpret_cast<const uint8_t*>(this + 1); }
};
template <size_t kSize>
struct alignas(64) BoardNoteOf : BoardNote {
  uint8_t room[kSize - sizeof(BoardNote)];
};
inline constexpr size_t kLargeNote = 4096, kSmallNote = 64;
inline constexpr size_t kBoardBytes = kLargeNote - sizeof(BoardNote);  // of data in a note of a large slot
inline constexpr size_t kSmallBytes = kSmallNote - sizeof(BoardNote);

struct BoardNotes {
  BoardNoteOf<kLargeNote> large[kLargeSlots][2];
  BoardNoteOf<kSmallNote> small[kSmallSlots][2];
};
static_assert(sizeof(BoardNotes) == 2 * (kLargeNote * kLargeSlots + kSmallNote * kSmallSlots));

/// One rank's, for all to write.
struct BoardWords {
  struct alignas(64) Word {
    std::atomic<uint64_t> value;  // grant, the open round, closed
  };
  Word slots[kBoardSlots];
};

/// One rank's view of it. Any thread; each meeting is one thread's.
class Board {
 public:
  static constexpr uint32_t kMostGrants = 0xffff;  // of a slot

  /// notes: by rank. placement: may be NULL. keep: holds the memory.
  Board(std::vector<BoardNotes*> notes, int32_t rank, BoardWords* words, bool crowded,
        std::shared_ptr<Placement> placement, std::shared_ptr<const void> keep)
      : notes_(std::move(notes)),
        rank_(rank),
        words_(words),
        crowded_(crowded),
        placement_(std::move(placement)),
        keep_(std::move(keep)) {}

  struct Meeting {
    uint32_t slot = 0;
    uint32_t grant = 0;  // 1 to kMostGrants
    uint64_t round = 0;
    size_t seen = 0;  // how many of the first ranks are known to have arrived
  };
  enum class State { kOpen, kMet, kClosed };

  size_t size() const { return notes_.size(); }
  /// More ranks than processors.
  bool crowded() const { return crowded_; }
  /// Of the ranks, while they wait for each other; may be NULL.
  Placement* placement() const { return placement_.get(); }

  /// Bytes of data in a note of this slot.
  static constexpr size_t bytes_of(uint32_t slot) { return slot < kLargeSlots ? kBoardBytes : kSmallBytes; }
  /// Where this rank's data for a meeting goes, bytes_of its slot at most, before it arrives.
  uint8_t* room(const Meeting& meeting) { return own(meeting).data(); }
  void arrive(const Meeting& meeting, uint64_t checks);
  State look(Meeting& meeting);
  /// Gives it up. kMet: too late, all had arrived.
  State close(Meeting& meeting);

  // After kMet, until this rank's next arrival in that slot.
  const uint8_t* data(size_t rank, const Meeting& meeting) const { return note(rank, meeting).data(); }
  uint64_t checks(size_t rank, const Meeting& meeting) const {
    return note(rank, meeting).checks.load(std::memory_order_relaxed);
  }

  /// Before anybody knows of the grant, and when nobody uses an earlier one any more.
  void open(uint32_t slot, uint32_t grant);

 private:
  static uint64_t word(uint32_t grant, uint64_t round, bool closed) {
    return uint64_t{grant} << 48 | (round << 1 & 0xffffffffffff) | (closed ? 1 : 0);
  }
  static State state(uint64_t seen, const Meeting& meeting);
  std::atomic<uint64_t>& of(const Meeting& meeting) { return words_->slots[meeting.slot].value; }
  static BoardNote& note_of(BoardNotes& notes, const Meeting& meeting) {
    const size_t turn = meeting.round % 2;
    if (meeting.slot < kLargeSlots) return notes.large[meeting.slot][turn];
    return notes.small[meeting.slot - kLargeSlots][turn];
  }
  const BoardNote& note(size_t rank, const Meeting& meeting) const { return note_of(*notes_[rank], meeting); }
  BoardNote& own(const Meeting& meeting) { return note_of(*notes_[static_cast<size_t>(rank_)], meeting); }

  const std::vector<BoardNotes*> notes_;
  const int32_t rank_;
  BoardWords* const words_;
  const bool crowded_;
  const std::shared_ptr<Placement> placement_;
  const std::shared_ptr<const void> keep_;
};

}  // namespace hvd::backend
