// A commit of shards: parcels are placed with their holders, and then sealed by all.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "state/flight.h"
#include "state/pages.h"
#include "state/shard_tables.h"
#include "state/shard_wire.h"
#include "state/shards.h"

namespace hvd::state {
namespace {

constexpr size_t kReadPiece = 4 << 20;

Status lacks_memory(int32_t rank) {
  Status status(HVD_INTERNAL,
                fmt::format("state: rank {} is out of memory for its part of the commit, so that no rank "
                            "committed",
                            rank));
  return status.at_rank(rank);
}

}  // namespace

Status Shards::begin(const Generation& generation, std::vector<PieceCopy>* pieces,
                     std::vector<PieceCopy>* staged) {
  next_ = {};
  window_ = nullptr;
  maps_.clear();
  if (Status status = stage(); !status.ok()) return status;
  const bool shared = shares(generation);
  std::vector<Segment> list = segments(ranges(), -1);
  if (shared) await_spare(list.back().at + whole_lines(list.back().bytes));
  try {
    next_.own = parcel(std::move(list), sealed_.own ? sealed_.own->owner : -1, shared);
  } catch (const std::bad_alloc&) {
    return {HVD_INTERNAL, fmt::format("out of memory: {} bytes for the copy of shards", own_bytes())};
  }
  for (Segment& segment : next_.own->segments) {
    const Shard& shard = shards_[segment.range.key];
    segment.pieces.fit(segment.bytes);
    append_pieces(next_.own->data(segment), shard.live, segment.bytes, &segment.pieces,
                  shard.device ? staged : pieces);
  }
  return {};
}

Status Shards::place(const Generation& generation, uint64_t revision, const Status& local) {
  try {
    return place_all(generation, revision, local);
  } catch (const std::bad_alloc&) {
    if (generation.engine == nullptr) throw;
    return starved(*generation.engine, generation.rank, "a commit of shards");
  }
}

Status Shards::place_all(const Generation& generation, uint64_t revision, const Status& local) {
  const int32_t size = generation.size(), rank = generation.rank;
  const Time deadline = now() + generation.timeout;
  const bool copied = local.ok() && next_.own != nullptr;
  if (copied) {
    next_.own->owner = rank;
    for (Segment& segment : next_.own->segments) segment.digest = segment.pieces.content();
  }
  next_.revision = revision;
  const std::vector<uint8_t> registered = specs();
  CommitHead mine{static_cast<uint64_t>(rank),
                  static_cast<uint64_t>(local.code),
                  revision,
                  shards_.size(),
                  digest(registered.data(), registered.size()),
                  {}};
  if (copied && reads_others_) {
    mine.place = {own_reach(), reinterpret_cast<uint64_t>(next_.own->memory.data()),
                  next_.own->memory.place()};
  }
  std::vector<CommitPart> parts(shards_.size());
  for (uint32_t key = 0; key < shards_.size(); ++key) {
    parts[key].begin = shards_[key].begin;
    parts[key].end = shards_[key].end;
  }
  if (copied) {
    for (const Segment& segment : next_.own->segments) parts[segment.range.key].digest = segment.digest;
  }
  const std::vector<uint8_t> bytes = write_commit_table(mine, parts);
  std::vector<uint8_t> all;
  if (size == 1) {
    all = bytes;
  } else if (Status status =
                 gather(*generation.engine, deadline, "hvd.shards.commit", bytes.data(), bytes.size(), &all);
             !status.ok()) {
    return local.ok() ? status : local;
  }
  if (!local.ok()) return local;
  CommitTables tables;
  if (Status status =
          read_commit_tables(all, static_cast<size_t>(size), static_cast<size_t>(rank), bytes, &tables);
      !status.ok()) {
    return status;
  }
  if (tables.odd) return name_mismatch(generation, deadline, *tables.odd);
  places_.clear();
  for (const CommitHead& head : tables.heads) places_.push_back(head.place);
  Ranges own(static_cast<size_t>(size));
  std::vector<std::vector<Digest>> digests(own.size());
  for (size_t r = 0; r < own.size(); ++r) {
    for (const CommitPart& part : tables.parts[r]) digests[r].push_back(part.digest);
  }
  for (uint32_t key = 0; key < shards_.size(); ++key) {
    std::vector<ShardRange> of_key;
    for (size_t r = 0; r < own.size(); ++r) {
      own[r].push_back({key, tables.parts[r][key].begin, tables.parts[r][key].end});
      of_key.push_back(own[r].back());
    }
    if (const std::string what = misfit(shards_[key].elements, of_key); !what.empty()) {
      return {HVD_MISMATCH, fmt::format("state key '{}': {}; expected each of its {} elements on one rank",
                                        shards_[key].key, what, shards_[key].elements)};
    }
  }

  const auto layout = std::make_shared<ShardLayout>(layout_of(std::move(own), generation));
  layout->digests = std::move(digests);
  next_.layout = layout;
  next_.whole = size == 1;
  return size == 1 ? Status() : distribute(generation, deadline);
}

/// Rank 0 and `other` registered different shards: tells all ranks the first key that differs.
Status Shards::name_mismatch(const Generation& generation, Time deadline, size_t other) {
  const auto rank = static_cast<size_t>(generation.rank);
  std::vector<uint8_t> mine, all;
  const std::vector<uint8_t> text = rank == 0 || rank == other ? specs() : std::vector<uint8_t>();
  put(&mine, uint64_t{text.size()});
  mine.insert(mine.end(), text.begin(), text.end());
  if (Status status =
          gather(*generation.engine, deadline, "hvd.shards.specs", mine.data(), mine.size(), &all);
      !status.ok()) {
    return status;
  }
  std::span<const uint8_t> rest(all), of_first, of_other;
  uint64_t length = 0;
  for (size_t from = 0; take(&rest, &length) && length <= rest.size(); ++from) {
    if (from == 0) of_first = rest.first(length);
    if (from == other) of_other = rest.first(length);
    rest = rest.subspan(length);
  }
  Status status(HVD_MISMATCH, fmt::format("shards differ between ranks: {}; expected the same keys, dtypes, "
                                          "lengths and copies on every rank",
                                          difference(of_first, 0, of_other, other)));
  return status.at_rank(static_cast<int32_t>(other));
}

/// Maps what this rank is to hold and can map, where that is worth it.
void Shards::map_parcels(const ShardLayout& layout, int32_t rank) {
  maps_.clear();
  if (longest(layout) < kReadFrom || !reads_others_) return;
  maps_.resize(places_.size());
  for (size_t owner = 0; owner < maps_.size(); ++owner) {
    const std::vector<int32_t>& holders = layout.holders[owner];
    const auto copy = std::find(holders.begin(), holders.end(), rank);
    if (copy == holders.end()) continue;
    maps_[owner] = mapped(places_[owner].memory,
                          segments(layout.own[owner], static_cast<int32_t>(copy - holders.begin())));
  }
}

/// Memory for what this rank is to hold and has not mapped, by owner. Throws std::bad_alloc.
std::vector<ParcelPtr> Shards::room_for_copies(const ShardLayout& layout, int32_t rank) {
  std::vector<ParcelPtr> room(layout.own.size());
  for (size_t owner = 0; owner < room.size(); ++owner) {
    const std::vector<int32_t>& holders = layout.holders[owner];
    const auto copy = std::find(holders.begin(), holders.end(), rank);
    if (copy == holders.end() || (!maps_.empty() && maps_[owner].size() > 0)) continue;
    room[owner] = parcel(segments(layout.own[owner], static_cast<int32_t>(copy - holders.begin())),
                         static_cast<int32_t>(owner));
  }
  std::vector<ParcelPtr> sums;  // parity is made later, of what is spare then
  for (const ParityBlock& block : blocks_of(layout, rank)) {
    Segment whole;
    whole.bytes = block.chunk;
    sums.push_back(parcel({whole}, kNobody));
  }
  if (!sums.empty()) {
    Segment window;
    for (const ParcelPtr& sum : sums) window.bytes = std::max(window.bytes, sum->segments[0].bytes);
    window.bytes = std::min<size_t>(window.bytes, kWindow);
    window_ = parcel({window}, kNobody);
  }
  for (ParcelPtr& sum : sums) let_go(std::move(sum));
  return room;
}

/// Bytes of the longest shard that is kept elsewhere: what all ranks know alike.
uint64_t Shards::longest(const ShardLayout& layout) const {
  uint64_t bytes = 0;
  for (const std::vector<ShardRange>& own : layout.own) {
    for (const ShardRange& range : own) {
      if (shards_[range.key].copies == 0 && shards_[range.key].parity == 0) continue;
      bytes = std::max(bytes, static_cast<uint64_t>(range.elements()) * shards_[range.key].element_bytes);
    }
  }
  return bytes;
}

/// Ranks tell whose parcels they read in their owner's memory, or have mapped, where that is worth asking;
/// and, in a commit (`has_room`), whether all have room for what they are to hold: before anything is sent.
Status Shards::agree_on_reads(const ShardLayout& layout, int32_t rank, std::optional<bool> has_room,
                              collective::Engine& engine, Time deadline) {
  reads_.clear();
  const bool reads_any = longest(layout) >= kReadFrom;
  if (!reads_any && !has_room) return {};
  std::vector<uint8_t> mine(places_.size()), all;
  for (size_t owner = 0; owner < mine.size() && reads_others_ && reads_any; ++owner) {
    const auto is_in = [](const std::vector<int32_t>& ranks, int32_t wanted) {
      return std::find(ranks.begin(), ranks.end(), wanted) != ranks.end();
    };
    const bool is_mapped = !maps_.empty() && maps_[owner].size() > 0;
    bool reads = is_in(layout.holders[owner], rank) && !is_mapped;
    for (const auto& [parity, groups] : layout.groups) {
      for (const std::vector<int32_t>& group : groups)
        reads = reads || (is_in(group, rank) && is_in(group, static_cast<int32_t>(owner)));
    }
    mine[owner] = reads && places_[owner].address != 0 && can_read(places_[owner].reach) ? kReads : 0;
    if (is_mapped) mine[owner] |= kMaps;
  }
  if (!has_room.value_or(true)) mine[static_cast<size_t>(rank)] |= kHasNoRoom;
  Status status = gather(engine, deadline, "hvd.shards.reads", mine.data(), mine.size(), &all);
  if (!status.ok()) return status;
  if (all.size() != mine.size() * mine.size()) return unreadable("a commit of shards");
  for (size_t r = 0; r < mine.size(); ++r) {
    if ((all[r * mine.size() + r] & kHasNoRoom) != 0) return lacks_memory(static_cast<int32_t>(r));
  }
  for (size_t r = 0; r < mine.size() && reads_any; ++r) {
    const auto row = all.begin() + static_cast<ptrdiff_t>(r * mine.size());
    reads_.emplace_back(row, row + static_cast<ptrdiff_t>(mine.size()));
  }
  return {};
}

/// One copy, and nothing for their owners to do but to leave them as they are until the seal.
Status Shards::read_parcels(const std::vector<Read>& reads) {
  std::vector<Read> pieces;
  uint64_t bytes = 0;
  for (const Read& read : reads) {
    bytes += read.size;
    for (size_t at = 0; at < read.size; at += kReadPiece) {
      pieces.push_back(
          {read.from, read.owner, read.to + at, read.at + at, std::min(kReadPiece, read.size - at)});
    }
  }
  std::atomic<int32_t> failed{-1};
  in_parallel(pieces.size(), bytes, [&](size_t i) {
    const Read& piece = pieces[i];
    touch(piece.to, piece.size);
    if (!read_from(piece.from->reach, piece.from->address + piece.at, piece.to, piece.size))
      failed = piece.owner;
  });
  if (failed < 0) return {};
  Status status(HVD_PEER_LOST,
                fmt::format("state: the shards of rank {} can't be read any more", failed.load()));
  return status.at_rank(failed);
}

/// Does this rank's part for a parcel to get to its holders, who read it or are sent it.
void Shards::carry(int32_t owner, const Parcel& parcel, const std::vector<int32_t>& holders, int32_t rank,
                   Flight* flight, std::vector<Read>* reads) const {
  // Keys with the same number of copies lie beside each other and travel together.
  for (size_t first = 0, last = 0; first < parcel.segments.size(); first = last) {
    const auto copies = [&](size_t i) { return shards_[parcel.segments[i].range.key].copies; };
    while (last < parcel.segments.size() && copies(last) == copies(first)) ++last;
    const size_t count = std::min(holders.size(), static_cast<size_t>(std::max(copies(first), 0)));
    const size_t end = last < parcel.segments.size() ? parcel.segments[last].at : parcel.memory.size();
    const size_t at = parcel.segments[first].at;
    if (count == 0 || end == at) continue;
    std::vector<int32_t> members(holders.begin(), holders.begin() + static_cast<ptrdiff_t>(count));
    std::erase_if(members, [&](int32_t member) {
      return !reads_.empty() && reads_[static_cast<size_t>(member)][static_cast<size_t>(owner)] != 0;
    });
    if (owner != rank && std::find(members.begin(), members.end(), rank) == members.end()) {
      const bool mine = std::find(holders.begin(), holders.begin() + static_cast<ptrdiff_t>(count), rank) !=
                        holders.begin() + static_cast<ptrdiff_t>(count);
      if (mine) {
        reads->push_back(
            {&places_[static_cast<size_t>(owner)], owner, parcel.memory.data() + at, at, end - at});
      }
      continue;
    }
    if (members.empty()) continue;
    members.push_back(owner);
    std::sort(members.begin(), members.end());
    flight->submit(one_to_some(fmt::format("hvd.shards.{}.{}", owner, copies(first)), owner,
                               std::move(members), parcel.memory.data() + at, end - at));
  }
}

/// Each parcel goes to its holders: the front of it, of those keys that have so many copies.
Status Shards::distribute(const Generation& generation, Time deadline) {
  const ShardLayout& layout = *next_.layout;
  std::vector<ParcelPtr> room;
  bool has_room = true;
  try {
    map_parcels(layout, generation.rank);
    room = room_for_copies(layout, generation.rank);
  } catch (const std::bad_alloc&) { has_room = false; }
  if (Status status = agree_on_reads(layout, generation.rank, has_room, *generation.engine, deadline);
      !status.ok()) {
    return status;
  }
  std::vector<Read> reads;
  Flight flight(*generation.engine, deadline);
  flight.keep(next_.own);
  for (int32_t owner = 0; owner < generation.size(); ++owner) {
    const std::vector<int32_t>& holders = layout.holders[static_cast<size_t>(owner)];
    const auto place = std::find(holders.begin(), holders.end(), generation.rank);
    if (owner != generation.rank && place == holders.end()) continue;
    ParcelPtr parcel = next_.own;
    if (owner != generation.rank) {
      if (!maps_.empty() && maps_[static_cast<size_t>(owner)].size() > 0) {
        next_.held.push_back(std::make_shared<Parcel>(Parcel{
            owner,
            segments(layout.own[static_cast<size_t>(owner)], static_cast<int32_t>(place - holders.begin())),
            std::move(maps_[static_cast<size_t>(owner)])}));
        continue;
      }
      parcel = room[static_cast<size_t>(owner)];
      for (Segment& segment : parcel->segments) segment.pieces = {};  // others write it
      next_.held.push_back(parcel);
      flight.keep(parcel);
    }
    carry(owner, *parcel, holders, generation.rank, &flight, &reads);
  }
  const Status read = read_parcels(reads);
  if (Status status = flight.land(); !status.ok()) return status;
  if (!read.ok()) return read;
  for (const ParcelPtr& parcel : next_.held) {
    for (Segment& segment : parcel->segments)
      segment.digest = layout.digests[static_cast<size_t>(parcel->owner)][segment.range.key];
  }
  return seal_placed(generation, deadline);
}

/// Makes parity; then all ranks tell each other that they have placed theirs.
Status Shards::seal_placed(const Generation& generation, Time deadline) {
  SyncResult moved;
  bool placed = true;
  try {
    Status status = make_parity(&next_, generation.rank, nullptr, *generation.engine, deadline, &moved);
    if (!status.ok()) return status;
  } catch (const std::bad_alloc&) {
    if (sends_parity(*next_.layout)) throw;  // others wait for what this rank was to send
    placed = false;
  }
  // From here on it does not depend on this rank any more which of the two commits it will be.
  next_.whole = placed;
  spare_.clear();
  const uint8_t word = placed ? 1 : 0;
  std::vector<uint8_t> all;
  Status status = gather(*generation.engine, deadline, "hvd.shards.seal", &word, sizeof(word), &all);
  if (!status.ok()) return status;
  const auto failed = std::find(all.begin(), all.end(), 0);
  if (failed == all.end()) return {};
  next_.whole = false;
  return lacks_memory(static_cast<int32_t>(failed - all.begin()));
}

void Shards::adopt() {
  std::vector<ParcelPtr> before = std::exchange(spare_, {});
  for (ParcelPtr& parcel : sealed_.held) let_go(std::move(parcel));
  for (Parity& parity : sealed_.parity) let_go(std::move(parity.sum));
  let_go(std::move(sealed_.own));
  sealed_ = std::exchange(next_, {});
  // A parcel that is in both is no spare. Where all are nothing was made: the spare of before stays.
  std::erase_if(spare_, [&](const ParcelPtr& parcel) {
    const auto is_sum = [&](const Parity& parity) { return parity.sum == parcel; };
    return parcel == sealed_.own ||
           std::find(sealed_.held.begin(), sealed_.held.end(), parcel) != sealed_.held.end() ||
           std::any_of(sealed_.parity.begin(), sealed_.parity.end(), is_sum);
  });
  if (spare_.empty()) spare_ = std::move(before);
  for (Shard& shard : shards_) shard.stale = false;
}

}  // namespace hvd::state
