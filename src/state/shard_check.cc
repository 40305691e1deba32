// Before a range goes to another rank its source holds it against the digest that its owner committed. A bit
// that has flipped since is named, and another copy or parity is taken instead.
#include "state/shard_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "state/flight.h"
#include "state/shard_tables.h"
#include "state/shard_wire.h"
#include "state/shards.h"

namespace hvd::state {
namespace {

/// What a rank says of itself: numbers of segments and of blocks that are not as they were committed.
bool take_numbers(std::span<const uint8_t>* bytes, size_t below, std::vector<uint64_t>* numbers) {
  uint64_t count = 0;
  if (!take(bytes, &count) || count > below) return false;
  numbers->resize(count);
  for (uint64_t& number : *numbers) {
    if (!take(bytes, &number) || number >= below) return false;
  }
  return std::is_sorted(numbers->begin(), numbers->end());
}

void put_numbers(const std::vector<uint64_t>& numbers, std::vector<uint8_t>* bytes) {
  put(bytes, uint64_t{numbers.size()});
  for (const uint64_t number : numbers) put(bytes, number);
}

template <class List>
void erase_numbers(List* list, const std::vector<uint64_t>& numbers, uint64_t* at) {
  std::erase_if(*list,
                [&](const auto&) { return std::binary_search(numbers.begin(), numbers.end(), (*at)++); });
}

template <class List>
void erase_numbers(List* list, const std::vector<uint64_t>& numbers) {
  uint64_t at = 0;
  erase_numbers(list, numbers, &at);
}

}  // namespace

void Shards::note(ShardRange range, const std::string& what, bool log) {
  if (log && logger_ != nullptr) logger_->warning("state: {} is not what was committed", what);
  corrupt_.emplace_back(range, what);
}

/// This rank's part of a check.
std::vector<uint8_t> Shards::checked(const ShardCheck& check, int32_t rank,
                                     const std::vector<ParcelPtr>& bag) const {
  std::vector<std::pair<const Parcel*, const Segment*>> segments;
  for (const ParcelPtr& parcel : bag) {
    for (const Segment& segment : parcel->segments) segments.emplace_back(parcel.get(), &segment);
  }
  std::vector<Pieces> whole(segments.size()), parts(check.uses.size()), sums(sealed_.parity.size());
  std::vector<size_t> places(check.uses.size());
  std::vector<PieceCopy> first, second;
  const auto add = [](const uint8_t* data, size_t bytes, Pieces* pieces, std::vector<PieceCopy>* list) {
    if (!pieces->digests.empty()) return;
    pieces->fit(bytes);
    append_pieces(nullptr, data, bytes, pieces, list);
  };
  for (size_t i = 0; i < check.uses.size(); ++i) {
    const auto& [range, source, digest] = check.uses[i];
    if (source != rank) continue;
    const uint64_t element = shards_[range.key].element_bytes;
    const ShardSpot spot = find(bag, range, element);
    const auto found = std::find(
        segments.begin(), segments.end(),
        std::pair(static_cast<const Parcel*>(spot.parcel), static_cast<const Segment*>(spot.segment)));
    places[i] = static_cast<size_t>(found - segments.begin());
    if (found == segments.end() || (!check.own && spot.parcel == sealed_.own.get())) continue;
    if (check.tells && range != spot.segment->range)
      add(spot.data, static_cast<size_t>(range.elements()) * element, &parts[i], &first);
    add(spot.parcel->data(*spot.segment), spot.segment->bytes, &whole[places[i]], &second);
  }
  for (const ShardCheck::Sum& sum : check.sums) {
    if (sum.holder != rank || sum.block >= sums.size()) continue;
    const ParcelPtr& parcel = sealed_.parity[sum.block].sum;
    add(parcel->memory.data(), parcel->segments[0].bytes, &sums[sum.block], &second);
  }
  for (const ShardRange& range : check.kept) {
    const auto [key, begin, end] = range;
    for (size_t i = 0; i < segments.size(); ++i) {
      const Segment& segment = *segments[i].second;
      if (segment.range.key != key ||
          std::max(begin, segment.range.begin) >= std::min(end, segment.range.end))
        continue;
      add(segments[i].first->data(segment), segment.bytes, &whole[i], &second);
    }
  }
  // Parts first: if bits flip between the two, receivers find it.
  copy_pieces(first, true);
  copy_pieces(second, true);

  std::vector<uint64_t> bad_segments, bad_sums;
  for (size_t i = 0; i < segments.size(); ++i) {
    if (!whole[i].digests.empty() && whole[i].content() != segments[i].second->digest)
      bad_segments.push_back(i);
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    if (!sums[i].digests.empty() && sums[i].content() != sealed_.parity[i].sum->segments[0].digest)
      bad_sums.push_back(i);
  }
  std::vector<uint8_t> mine;
  put_numbers(bad_segments, &mine);
  put_numbers(bad_sums, &mine);
  for (size_t i = 0; i < check.uses.size() && check.tells; ++i) {
    if (check.uses[i].source != rank) continue;
    const bool part = !parts[i].digests.empty();
    put(&mine, part || places[i] < whole.size() ? (part ? parts[i] : whole[places[i]]).content() : Digest());
  }
  return mine;
}

Status Shards::check_uses(ShardCheck* check, int32_t rank, collective::Engine& engine, Time deadline,
                          ShardTables* tables, std::vector<ParcelPtr>* bag, bool* ret_dropped) {
  const size_t size = tables->has.size(), me = static_cast<size_t>(rank);
  const std::vector<uint8_t> mine = checked(*check, rank, *bag);
  std::vector<uint8_t> all = mine;
  if (size > 1) {
    Status status = gather(engine, deadline, "hvd.shards.checked", mine.data(), mine.size(), &all);
    if (!status.ok()) return status;
  }
  *ret_dropped = false;
  std::span<const uint8_t> rest(all);
  for (size_t r = 0; r < size; ++r) {
    const std::span<const uint8_t> from = rest;
    std::vector<uint64_t> segments, sums;
    const size_t blocks = r < tables->blocks.size() ? tables->blocks[r].size() : 0;
    if (!take_numbers(&rest, tables->has[r].size(), &segments) || !take_numbers(&rest, blocks, &sums))
      return unreadable("their shards");
    for (ShardCheck::Use& use : check->uses) {
      if (check->tells && use.source == static_cast<int32_t>(r) && !take(&rest, &use.digest))
        return unreadable("their shards");
    }
    const std::span<const uint8_t> said = from.first(from.size() - rest.size());
    if (r == me && !std::equal(said.begin(), said.end(), mine.begin(), mine.end()))
      return unreadable("their shards");
    const bool log = r == me || rank == 0;
    for (const uint64_t number : segments) {
      const ShardRange& range = tables->has[r][number];
      note(range, fmt::format("what rank {} now has of {}", r, told(range)), log);
    }
    for (const uint64_t number : sums) {
      for (const ShardCheck::Sum& sum : check->sums) {
        if (sum.holder == static_cast<int32_t>(r) && sum.block == number)
          note(sum.range, fmt::format("the parity on rank {} of {}", r, told(sum.range)), log);
      }
    }
    if (segments.empty() && sums.empty()) continue;
    *ret_dropped = true;
    erase_numbers(&tables->has[r], segments);
    if (blocks > 0) erase_numbers(&tables->blocks[r], sums);
    if (r != me) continue;
    uint64_t at = 0;
    for (const ParcelPtr& parcel : *bag) erase_numbers(&parcel->segments, segments, &at);
    erase_numbers(&sealed_.parity, sums);
  }
  return rest.empty() ? Status() : unreadable("their shards");
}

}  // namespace hvd::state
