// A sync among ranks of one machine that copies nothing but live memory: each maps the parcels of the last
// commit that its new ranges lie in, and those of the copies that it is to hold. Each byte then has as many
// holders as after a new commit, and the next commit is the first in the new split.
#include <algorithm>
#include <utility>

#include "state/flight.h"
#include "state/shard_check.h"
#include "state/shard_tables.h"
#include "state/shard_wire.h"
#include "state/shards.h"

namespace hvd::state {
namespace {

bool is_within(const ShardRange& part, const ShardRange& whole) {
  return part.key == whole.key && part.begin >= whole.begin && part.end <= whole.end;
}

bool overlap(const ShardRange& a, const ShardRange& b) {
  return a.key == b.key && std::max(a.begin, b.begin) < std::min(a.end, b.end);
}

const PlacedParcel* find_placed(const std::vector<PlacedParcel>& parcels, const ShardRange& range) {
  for (const PlacedParcel& parcel : parcels) {
    if (parcel.memory.process == 0) continue;
    for (const PlacedSegment& segment : parcel.segments) {
      if (is_within(range, segment.range)) return &parcel;
    }
  }
  return nullptr;
}

ParcelPtr map_parcel(const PlacedParcel& placed) {
  ParcelPtr parcel = std::make_shared<Parcel>();
  parcel->memory = Memory::map(placed.memory);
  if (parcel->memory.size() == 0) return nullptr;
  for (const PlacedSegment& from : placed.segments) {
    Segment& segment = parcel->segments.emplace_back();
    segment.range = from.range;
    segment.at = from.at;
    segment.bytes = from.bytes;
    segment.digest = from.digest;
  }
  return parcel;
}

Status does_not_fit() { return {HVD_INTERNAL, "state: a plan of shards does not fit what is there"}; }

/// Where this rank's parcels are, for those that may map them.
std::vector<PlacedParcel> places_of(const std::vector<ParcelPtr>& parcels, bool may_map) {
  std::vector<PlacedParcel> places;
  for (const ParcelPtr& parcel : parcels) {
    PlacedParcel& place = places.emplace_back();
    if (may_map) place.memory = parcel->memory.place();
    for (const Segment& segment : parcel->segments)
      place.segments.push_back({segment.range, segment.at, segment.bytes, segment.digest});
  }
  return places;
}

std::vector<std::vector<ShardRange>> mappable_ranges(const std::vector<std::vector<PlacedParcel>>& placed) {
  std::vector<std::vector<ShardRange>> has(placed.size());
  for (size_t r = 0; r < placed.size(); ++r) {
    for (const PlacedParcel& parcel : placed[r]) {
      for (const PlacedSegment& segment : parcel.segments) {
        if (parcel.memory.process != 0) has[r].push_back(segment.range);
      }
    }
  }
  return has;
}

/// Maps what this rank is to have of others. *can: so far all could be mapped.
Status map_sources(const std::vector<ShardMove>& moves, const std::vector<std::vector<PlacedParcel>>& placed,
                   const std::vector<uint64_t>& elements, int32_t rank, std::vector<ParcelPtr>* mapped,
                   bool* can) {
  for (const ShardMove& move : moves) {
    if (!*can || !std::binary_search(move.receivers.begin(), move.receivers.end(), rank)) continue;
    if (find(*mapped, move.range, elements[move.range.key]).parcel != nullptr) continue;
    const PlacedParcel* const parcel = find_placed(placed[static_cast<size_t>(move.source)], move.range);
    if (parcel == nullptr) return does_not_fit();
    mapped->push_back(map_parcel(*parcel));
    *can = mapped->back() != nullptr;
  }
  return {};
}

/// Bytes of ranks' own ranges, which this one gives or gets.
void count_moved(const std::vector<ShardMove>& moves, const std::vector<std::vector<ShardRange>>& owns,
                 const std::vector<uint64_t>& elements, int32_t rank, SyncResult* result) {
  for (const ShardMove& move : moves) {
    for (const int32_t receiver : move.receivers) {
      const ShardRange& own = owns[static_cast<size_t>(receiver)][move.range.key];
      const int64_t begin = std::max(move.range.begin, own.begin), end = std::min(move.range.end, own.end);
      if (begin >= end || (move.source != rank && receiver != rank)) continue;
      (receiver == rank ? result->received_bytes : result->sent_bytes) +=
          static_cast<uint64_t>(end - begin) * elements[move.range.key];
    }
  }
}

bool has_some(const Parcel& parcel, const std::vector<ShardRange>& ranges) {
  return std::any_of(parcel.segments.begin(), parcel.segments.end(), [&](const Segment& segment) {
    return std::any_of(ranges.begin(), ranges.end(),
                       [&](const ShardRange& range) { return overlap(range, segment.range); });
  });
}

}  // namespace

/// All ranks come to the same answer.
bool Shards::may_take_over(const Generation& generation) const {
  uint64_t bytes = 0;
  for (const Shard& shard : shards_) {
    if (shard.parity > 0) return false;  // is made of new parcels
    bytes += static_cast<uint64_t>(shard.elements) * shard.element_bytes;
  }
  const auto& hosts = generation.hosts;
  return hosts.size() > 1 && bytes / hosts.size() >= kReadFrom &&
         std::all_of(hosts.begin(), hosts.end(), [&](const std::string& host) { return host == hosts[0]; });
}

Status Shards::take_over(const ShardTables& tables, const ShardPlan& checked, const Ranges& wants, Set next,
                         const std::vector<ParcelPtr>& all_parcels, int32_t rank, collective::Engine& engine,
                         Time deadline, SyncResult* result, bool* ret_done) {
  const auto me = static_cast<size_t>(rank);
  const std::vector<uint64_t> elements = element_bytes();
  const std::vector<PlacedParcel> places = places_of(all_parcels, reads_others_);
  const std::vector<uint8_t> mine = write_parcel_table(places);
  std::vector<uint8_t> all;
  Status status = gather(engine, deadline, "hvd.shards.parcels", mine.data(), mine.size(), &all);
  if (!status.ok()) return status;
  std::vector<std::vector<PlacedParcel>> placed;
  if (!read_parcel_tables(all, me, mine, tables.has, elements, &placed))
    return unreadable("where their shards are");

  // A parcel that can't be mapped counts for nothing.
  std::vector<ParcelPtr> bag;
  for (size_t i = 0; i < all_parcels.size(); ++i) {
    if (places[i].memory.process != 0) bag.push_back(all_parcels[i]);
  }
  ShardTables mappable;
  mappable.has = mappable_ranges(placed);
  const ShardPlan plan = plan_shards(mappable.has, wants, elements);
  if (!plan.lost.empty()) return {};
  if (plan.moves != checked.moves) {  // other sources, since some have what can't be mapped
    ShardCheck check;
    check.uses = uses_of(plan.moves);
    check.own = false;
    bool dropped = false;
    status = check_uses(&check, rank, engine, deadline, &mappable, &bag, &dropped);
    if (!status.ok()) return status;
    if (dropped) return {HVD_PEER_LOST, "state sync: shards that are not what was committed: it is repeated"};
  }

  // Before anybody counts on another's memory, all have mapped what they are to have.
  std::vector<ParcelPtr> mapped;
  bool can = true;
  if (status = map_sources(plan.moves, placed, elements, rank, &mapped, &can); !status.ok()) return status;
  const uint8_t word = can ? 1 : 0;
  status = gather(engine, deadline, "hvd.shards.mapped", &word, sizeof(word), &all);
  if (!status.ok()) return status;
  if (all.size() != placed.size()) return unreadable("where their shards are");
  if (std::find(all.begin(), all.end(), 0) != all.end()) return {};
  *ret_done = true;

  count_moved(plan.moves, tables.own, elements, rank, result);
  // A rank whose ranges have not changed keeps its own parcel.
  const auto own = std::find(bag.begin(), bag.end(), sealed_.own);
  if (own != bag.end() && holds(**own, segments(tables.own[me], -1))) {
    next.own = *own;
    next.own->owner = rank;
  }
  for (const std::vector<ParcelPtr>* parcels : {&bag, &mapped}) {
    for (const ParcelPtr& parcel : *parcels) {
      if (parcel != next.own && has_some(*parcel, wants[me])) next.held.push_back(parcel);
    }
  }
  next.taken = true;
  for (const ShardRange& range : wants[me])
    next.for_others += static_cast<uint64_t>(range.elements()) * elements[range.key];
  for (const ShardRange& range : tables.own[me])
    next.for_others -= static_cast<uint64_t>(range.elements()) * elements[range.key];

  std::vector<ParcelPtr> sources = next.held;
  if (next.own) sources.insert(sources.begin(), next.own);
  std::vector<PieceCopy> pieces;
  for (const ShardRange& range : tables.own[me]) {
    if (next.own != nullptr && !shards_[range.key].stale) continue;
    if (!append_range(sources, range, elements[range.key], shards_[range.key].written(), &pieces))
      return does_not_fit();
  }
  copy_pieces(pieces, true);
  next.whole = true;
  next_ = std::move(next);
  const uint8_t done = 1;
  status = gather(engine, deadline, "hvd.shards.taken_over", &done, sizeof(done), &all);
  if (status.ok()) adopt_taken();
  return status;
}

/// As adopt(), but nothing new was made: what is spare stays for the next commit.
void Shards::adopt_taken() {
  std::vector<ParcelPtr> spare = std::exchange(spare_, {});
  adopt();
  spare_.insert(spare_.end(), spare.begin(), spare.end());
  spare.clear();
  std::erase_if(spare_, [](const ParcelPtr& parcel) { return parcel.use_count() > 1; });
}

}  // namespace hvd::state
