// Fills this rank's new parcels in a sync: from what it has, by reading others' memory, or by the backend.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "state/flight.h"
#include "state/shard_move.h"
#include "state/shard_wire.h"
#include "state/shards.h"

namespace hvd::state {

/// Agrees on the moves that receivers make by reading the source's memory, and maps new parcels whose copies
/// this rank is to hold. Small syncs ask nobody, and all ranks know that they are small.
Status Shards::agree_on_moves(const std::vector<ShardMove>& moves, const Ranges& has, const Set& next,
                              const std::vector<ParcelPtr>& bag, int32_t rank, collective::Engine& engine,
                              Time deadline, ShardReads* ret_reads) {
  uint64_t bytes = 0;
  for (const ShardMove& move : moves)
    bytes += static_cast<uint64_t>(move.range.elements()) * shards_[move.range.key].element_bytes;
  if (bytes < kReadFrom) return {};
  const auto me = static_cast<size_t>(rank);
  std::vector<uint8_t> mine, all;
  put(&mine, reads_others_ && ranges_in(bag) == has[me] ? own_reach() : Reach());
  put(&mine, next.own->memory.place());
  std::vector<uint64_t> addresses;
  for (const ParcelPtr& parcel : bag) {
    for (const Segment& segment : parcel->segments)
      addresses.push_back(reinterpret_cast<uint64_t>(parcel->data(segment)));
  }
  addresses.resize(has[me].size());
  for (const uint64_t address : addresses) put(&mine, address);
  if (Status status = gather(engine, deadline, "hvd.shards.reach", mine.data(), mine.size(), &all);
      !status.ok()) {
    return status;
  }
  ShardReads reads;
  reads.reach.resize(has.size());
  reads.addresses.resize(has.size());
  std::vector<MemoryPlace> places(has.size());
  std::span<const uint8_t> rest(all);
  for (size_t r = 0; r < has.size(); ++r) {
    if (!take(&rest, &reads.reach[r]) || !take(&rest, &places[r]))
      return unreadable("where their shards are");
    reads.addresses[r].resize(has[r].size());
    for (uint64_t& address : reads.addresses[r]) {
      if (!take(&rest, &address)) return unreadable("where their shards are");
    }
  }
  if (!rest.empty()) return unreadable("where their shards are");

  mine.assign(has.size(), 0);
  for (const ShardMove& move : moves) {
    const auto source = static_cast<size_t>(move.source);
    if (!reads_others_ || mine[source] != 0) continue;
    if (!std::binary_search(move.receivers.begin(), move.receivers.end(), rank)) continue;
    mine[source] = can_read(reads.reach[source]) ? kReads : 0;
  }
  reads.mapped.resize(has.size());
  for (size_t owner = 0; owner < has.size(); ++owner) {
    const std::vector<int32_t>& holders = next.layout->holders[owner];
    const auto copy = std::find(holders.begin(), holders.end(), rank);
    if (copy == holders.end()) continue;
    const std::vector<Segment> list =
        segments(next.layout->own[owner], static_cast<int32_t>(copy - holders.begin()));
    const auto has_it = [&](const ParcelPtr& parcel) { return holds(*parcel, list); };
    if (std::any_of(bag.begin(), bag.end(), has_it)) continue;
    reads.mapped[owner] = mapped(places[owner], list);
    if (reads.mapped[owner].size() > 0) mine[owner] |= kMaps;
  }
  Status status = gather(engine, deadline, "hvd.shards.reads", mine.data(), mine.size(), &all);
  if (!status.ok()) return status;
  if (all.size() != has.size() * has.size()) return unreadable("where their shards are");
  for (size_t r = 0; r < has.size(); ++r) {
    std::vector<uint8_t>&can = reads.reads.emplace_back(has.size()),
    &maps = reads.maps.emplace_back(has.size());
    for (size_t owner = 0; owner < has.size(); ++owner) {
      const uint8_t said = all[r * has.size() + owner];
      can[owner] = (said & kReads) != 0 ? 1 : 0;
      maps[owner] = (said & kMaps) != 0 ? 1 : 0;
    }
  }
  *ret_reads = std::move(reads);
  return {};
}

/// Fills `fresh`, from what this rank has and what others have. `own`: the one that live memory gets as well,
/// where the program's is new.
Status Shards::move(const std::vector<ShardMove>& moves, const Ranges& has, const ShardReads& reads,
                    const std::vector<ParcelPtr>& bag, const std::vector<ParcelPtr>& fresh, int32_t rank,
                    const Parcel* own, collective::Engine& engine, Time deadline, SyncResult* result) {
  const std::vector<uint64_t> elements = element_bytes();
  Filling filling(bag, elements);
  std::vector<ShardMove> sent;  // by the backend
  for (const ShardMove& move : moves) {
    const uint64_t bytes = static_cast<uint64_t>(move.range.elements()) * elements[move.range.key];
    const bool receives = std::binary_search(move.receivers.begin(), move.receivers.end(), rank);
    if (move.source == rank) result->sent_bytes += bytes;
    if (receives) result->received_bytes += bytes;
    if (receives && reads.direct(move, rank)) {
      const auto source = static_cast<size_t>(move.source);
      size_t place = 0;
      const auto within = [&](const ShardRange& range) {
        return range.key == move.range.key && range.begin <= move.range.begin && range.end >= move.range.end;
      };
      while (place < has[source].size() && !within(has[source][place])) ++place;
      if (place == has[source].size())
        return {HVD_INTERNAL, "state: a plan of shards does not fit what is there"};
      const auto skip = static_cast<uint64_t>(move.range.begin - has[source][place].begin);
      filling.add_read(move, reads.reach[source],
                       reads.addresses[source][place] + skip * elements[move.range.key]);
    }
    ShardMove rest = move;
    std::erase_if(rest.receivers, [&](int32_t receiver) { return reads.direct(move, receiver); });
    if (!rest.receivers.empty()) sent.push_back(std::move(rest));
  }
  for (const ParcelPtr& parcel : fresh) {
    for (Segment& segment : parcel->segments) {
      Shard& shard = shards_[segment.range.key];
      uint8_t* const data = parcel.get() == own && shard.stale ? shard.written() : nullptr;
      filling.add(*parcel, segment, data);
    }
  }
  Carriage carriage(engine, deadline, rank, elements, bag, fresh);
  if (Status status = carriage.start(sent); !status.ok()) return status;
  const Status filled = filling.fill();
  if (Status status = carriage.land(); !status.ok()) return status;
  if (!filled.ok()) return filled;
  if (Status status = filling.finish(); !status.ok()) return status;
  for (const ParcelPtr& parcel : fresh) {
    for (Segment& segment : parcel->segments) segment.digest = segment.pieces.content();
  }
  return {};
}

/// All have filled their own parcels: what this rank has mapped of them is what they say. Before that it
/// would not outlive its owner.
Status Shards::tell_filled(Set* next, const std::vector<ParcelPtr>& mapped, int32_t rank,
                           collective::Engine& engine, Time deadline) const {
  std::vector<Digest> mine(shards_.size());
  for (const Segment& segment : next->own->segments) mine[segment.range.key] = segment.digest;
  std::vector<uint8_t> all;
  const size_t bytes = mine.size() * sizeof(Digest);
  if (Status status = gather(engine, deadline, "hvd.shards.filled", mine.data(), bytes, &all); !status.ok())
    return status;
  if (all.size() != bytes * next->layout->own.size() ||
      std::memcmp(all.data() + bytes * static_cast<size_t>(rank), mine.data(), bytes) != 0) {
    return unreadable("their shards");
  }
  for (const ParcelPtr& parcel : mapped) {
    for (Segment& segment : parcel->segments) {
      std::memcpy(
          &segment.digest,
          all.data() + bytes * static_cast<size_t>(parcel->owner) + segment.range.key * sizeof(Digest),
          sizeof(Digest));
    }
  }
  return {};
}

}  // namespace hvd::state
