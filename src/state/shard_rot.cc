// Compares what every rank keeps of the last commit's shards with the digests of that commit: memory that has
// changed since, or a copy that arrived otherwise, is named before anybody needs it.
#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "state/flight.h"
#include "state/shard_wire.h"
#include "state/shards.h"

namespace hvd::state {
namespace {

/// A part that a rank keeps, on the wire: of its own, for its `owner`, or as parity of the owner's group.
struct KeptPart {
  uint64_t owner = 0, key = 0, parity = 0;
  auto operator<=>(const KeptPart&) const = default;
};
static_assert(sizeof(KeptPart) == 24, "no padding on the wire");

bool is_in(const std::vector<int32_t>& ranks, int32_t wanted) {
  return std::find(ranks.begin(), ranks.end(), wanted) != ranks.end();
}

/// Whether `rank` keeps such a part at all, of a key with so many copies.
bool keeps(const ShardLayout& layout, int32_t copies, int32_t rank, const KeptPart& part) {
  const auto owner = static_cast<int32_t>(part.owner);
  const std::vector<int32_t>& holders = layout.holders[part.owner];
  if (part.parity == 0) {
    const auto at = std::find(holders.begin(), holders.end(), rank) - holders.begin();
    return owner == rank || at < std::min<ptrdiff_t>(copies, std::ssize(holders));
  }
  for (const auto& [parity, groups] : layout.groups) {
    for (const std::vector<int32_t>& group : groups) {
      if (is_in(group, rank) && is_in(group, owner)) return true;
    }
  }
  return false;
}

}  // namespace

/// The parts that this rank keeps and that differ from what was committed.
std::vector<Shards::Rotten> Shards::read_again(const ShardLayout& layout) const {
  struct Reading {
    Rotten part;
    const uint8_t* data;
    const Segment* segment;
    bool good = true;
  };
  std::vector<Reading> readings;
  uint64_t bytes = 0;
  const auto add = [&](const Rotten& part, const uint8_t* data, const Segment& segment) {
    if (segment.bytes > 0) readings.push_back({part, data, &segment});
    bytes += segment.bytes;
  };
  const auto add_parcel = [&](const Parcel& parcel) {
    for (const Segment& segment : parcel.segments)
      add({parcel.owner, segment.range.key, {}}, parcel.data(segment), segment);
  };
  if (sealed_.own != nullptr) add_parcel(*sealed_.own);
  for (const ParcelPtr& parcel : sealed_.held) {
    if (!parcel->memory.is_mapped()) add_parcel(*parcel);  // else its owner reads the same pages
  }
  for (size_t i = 0; i < sealed_.parity.size(); ++i) {
    const Parity& parity = sealed_.parity[i];
    std::optional<Rotten> part;  // named after the first of its members that has anything
    for (const std::vector<ShardRange>& member : parity.block.members) {
      for (const ShardRange& range : member) {
        const auto has = [&](const auto& own) { return own[range.key] == range; };
        const auto owner = std::find_if(layout.own.begin(), layout.own.end(), has);
        if (!part && range.begin < range.end && owner != layout.own.end())
          part = Rotten{static_cast<int32_t>(owner - layout.own.begin()), range.key, i};
      }
    }
    if (part) add(*part, parity.sum->memory.data(), parity.sum->segments[0]);
  }
  in_parallel(readings.size(), bytes, [&](size_t i) {
    Reading& reading = readings[i];
    reading.good = content_digest(reading.data, reading.segment->bytes) == reading.segment->digest;
  });
  std::vector<Rotten> rotten;
  for (const Reading& reading : readings) {
    if (!reading.good) rotten.push_back(reading.part);
  }
  return rotten;
}

Status Shards::find_rot(const Generation& generation, Time deadline, std::vector<Rot>* ret_rot) {
  const std::shared_ptr<const ShardLayout> layout = sealed_.layout;
  const auto size = static_cast<size_t>(generation.size());
  // A sync may have left it as it lies since: then it is the next commit's turn.
  const bool stands = sealed_.whole && layout != nullptr && layout->own.size() == size;
  rotten_ = stands ? read_again(*layout) : std::vector<Rotten>();
  std::vector<uint8_t> mine, all;
  for (const Rotten& part : rotten_)
    put(&mine, KeptPart{static_cast<uint64_t>(part.owner), part.key, part.block ? uint64_t{1} : 0});
  std::vector<Brought> parts;
  Status status =
      gather(*generation.engine, deadline, "hvd.shards.rot", mine.data(), mine.size(), &all, &parts);
  if (!status.ok() || all.empty()) return status;
  std::span<const uint8_t> rest(all);
  for (const Brought& from : parts) {
    std::span<const uint8_t> said = rest.first(from.size);
    rest = rest.subspan(from.size);
    if (from.rank == generation.rank && !std::equal(said.begin(), said.end(), mine.begin(), mine.end()))
      return unreadable("their shards");
    KeptPart part;
    std::set<KeptPart> named;  // nobody fills logs by saying the same again and again
    while (!said.empty()) {
      const bool known = stands && take(&said, &part) && part.owner < layout->own.size() &&
                         part.key < shards_.size() && part.parity <= 1;
      if (!known || !keeps(*layout, shards_[part.key].copies, from.rank, part))
        return unreadable("their shards");
      if (!named.insert(part).second) continue;
      const std::string range = told(layout->own[part.owner][part.key]);
      ret_rot->push_back({from.rank, part.parity != 0
                                         ? fmt::format("the parity on rank {} of {}", from.rank, range)
                                         : fmt::format("what rank {} now has of {}", from.rank, range)});
    }
  }
  return {};
}

void Shards::mend_rot() {
  std::vector<size_t> blocks;
  for (const Rotten& part : std::exchange(rotten_, {})) {
    if (part.block) {
      blocks.push_back(*part.block);
      continue;
    }
    const auto is_it = [&](const Segment& segment) { return segment.range.key == part.key; };
    if (sealed_.own == nullptr || sealed_.own->owner != part.owner) {
      for (const ParcelPtr& parcel : sealed_.held) {
        if (parcel->owner == part.owner) std::erase_if(parcel->segments, is_it);
      }
      continue;
    }
    // Holders that map these pages see the right bytes, too.
    const Shard& shard = shards_[part.key];
    std::vector<Segment>& segments = sealed_.own->segments;
    const auto segment = std::find_if(segments.begin(), segments.end(), is_it);
    if (segment == segments.end()) continue;
    segment->pieces = {};
    const bool live = !shard.stale && segment->range == ShardRange{part.key, shard.begin, shard.end} &&
                      content_digest(shard.live, segment->bytes) == segment->digest;
    if (live) {
      std::memcpy(sealed_.own->data(*segment), shard.live, segment->bytes);
    } else {
      segments.erase(segment);
    }
  }
  size_t at = 0;
  std::erase_if(sealed_.parity,
                [&](const Parity&) { return std::find(blocks.begin(), blocks.end(), at++) != blocks.end(); });
}

}  // namespace hvd::state
