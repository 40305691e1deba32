// Moves ranges in a sync of shards: each goes straight to its place, and is digested on its way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "collective/engine.h"
#include "state/flight.h"
#include "state/reach.h"
#include "state/shard_plan.h"
#include "state/shards.h"

namespace hvd::state {

/// Moves that travel by the backend, from what this rank has to what it is to have. Not copied, used by one
/// thread.
class Carriage {
 public:
  Carriage(collective::Engine& engine, Time deadline, int32_t rank,
           const std::vector<uint64_t>& element_bytes, const std::vector<ParcelPtr>& from,
           const std::vector<ParcelPtr>& to);
  Status start(const std::vector<ShardMove>& moves);
  /// Waits until all have arrived where they belong.
  Status land();

 private:
  struct Unpack {
    const uint8_t* from;
    uint8_t* to;
    size_t bytes;
  };
  const int32_t rank_;
  const std::vector<uint64_t>& element_bytes_;
  const std::vector<ParcelPtr>&from_, &to_;
  std::vector<Unpack> packed_;
  Flight flight_;
};

/// The moves that a receiver makes by reading the source's memory; all ranks know the same. And whose new
/// parcel is mapped by whom, to whom it needs not to move.
struct ShardReads {
  std::vector<Reach> reach;                      // by rank; empty: nobody reads
  std::vector<std::vector<uint64_t>> addresses;  // by rank: of the ranges that it has
  std::vector<std::vector<uint8_t>> reads;       // by rank, whose memory it reads
  std::vector<std::vector<uint8_t>> maps;        // by rank, whose new parcel it has mapped
  std::vector<Memory> mapped;                    // by owner: what this rank has mapped
  bool has_maps() const {
    return std::any_of(maps.begin(), maps.end(), [](const std::vector<uint8_t>& of_rank) {
      return std::find(of_rank.begin(), of_rank.end(), 1) != of_rank.end();
    });
  }
  bool direct(const ShardMove& move, int32_t receiver) const {
    return !reach.empty() && reads[static_cast<size_t>(receiver)][static_cast<size_t>(move.source)] != 0;
  }
};

/// Fills parcels with what this rank has and what it reads, by pieces. Each piece is digested while it is in
/// a core's cache, by all cores.
class Filling {
 public:
  /// `from`: what this rank has. Both stay while this is used.
  Filling(const std::vector<ParcelPtr>& from, const std::vector<uint64_t>& element_bytes)
      : from_(from), element_bytes_(element_bytes) {}
  /// What is to be read: the range of a move, at an address in its source's memory.
  void add_read(const ShardMove& move, const Reach& reach, uint64_t address) {
    reads_.push_back({move.range, move.source, &reach, address});
  }
  /// A segment of `to` is to be filled, and live memory with it unless that is NULL.
  void add(Parcel& to, Segment& segment, uint8_t* live);
  /// All pieces that need nothing of what travels by the backend. HVD_PEER_LOST: memory can't be read.
  Status fill() { return run(&ready_); }
  /// The others, when all has arrived.
  Status finish() { return run(&waiting_); }

 private:
  struct Read {
    ShardRange range;
    int32_t source;
    const Reach* reach;
    uint64_t address;
  };
  struct Span {  // of a segment's bytes
    size_t begin, end;
    const uint8_t* here;  // NULL: elsewhere
    const Read* read;     // NULL: it arrives by itself
    uint64_t address;     // of its first byte there
  };
  struct Piece {
    uint8_t *to, *live;
    size_t at, size;
    Pieces* pieces;
    const std::vector<Span>* spans;
    size_t first;  // of the spans that it touches
  };

  /// In order, and all of it: what nobody here or there has arrives by itself.
  std::vector<Span> spans_of(const Segment& segment) const;
  Status run(std::vector<Piece>* pieces);
  static void touch_live(std::span<const Piece> pieces);
  /// -1, or whose memory could not be read.
  static int32_t fill_one(const Piece& piece);

  const std::vector<ParcelPtr>& from_;
  const std::vector<uint64_t>& element_bytes_;
  std::deque<Read> reads_;
  std::deque<std::vector<Span>> spans_;
  std::vector<Piece> ready_, waiting_;
};

}  // namespace hvd::state
