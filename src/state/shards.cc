// Registry of sharded keys, and the parcels that hold their commits.
#include "state/shards.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "state/pages.h"

namespace hvd::state {
namespace {

constexpr size_t kHugePage = 2 << 20;

}  // namespace

ShardSpot find(const std::vector<ParcelPtr>& parcels, const ShardRange& range, size_t element_bytes) {
  for (const ParcelPtr& parcel : parcels) {
    for (Segment& segment : parcel->segments) {
      const ShardRange& has = segment.range;
      if (has.key != range.key || range.begin < has.begin || range.end > has.end) continue;
      return {parcel.get(), &segment,
              parcel->data(segment) + static_cast<size_t>(range.begin - has.begin) * element_bytes};
    }
  }
  return {};
}

bool holds(const Parcel& parcel, const std::vector<Segment>& segments) {
  return std::equal(parcel.segments.begin(), parcel.segments.end(), segments.begin(), segments.end(),
                    [](const Segment& a, const Segment& b) { return a.range == b.range && a.at == b.at; });
}

std::vector<ShardRange> ranges_in(const std::vector<ParcelPtr>& parcels) {
  std::vector<ShardRange> ranges;
  for (const ParcelPtr& parcel : parcels) {
    for (const Segment& segment : parcel->segments) ranges.push_back(segment.range);
  }
  return ranges;
}

bool append_range(const std::vector<ParcelPtr>& parcels, const ShardRange& range, size_t element_bytes,
                  uint8_t* to, std::vector<PieceCopy>* pieces) {
  for (int64_t at = range.begin; at < range.end;) {
    const Parcel* from = nullptr;
    const Segment* longest = nullptr;
    for (const ParcelPtr& parcel : parcels) {
      for (const Segment& segment : parcel->segments) {
        const ShardRange& has = segment.range;
        if (has.key != range.key || has.begin > at || has.end <= at) continue;
        if (longest != nullptr && longest->range.end >= has.end) continue;
        from = parcel.get();
        longest = &segment;
      }
    }
    if (longest == nullptr) return false;
    const int64_t end = std::min(range.end, longest->range.end);
    append_pieces(to + static_cast<size_t>(at - range.begin) * element_bytes,
                  from->data(*longest) + static_cast<size_t>(at - longest->range.begin) * element_bytes,
                  static_cast<size_t>(end - at) * element_bytes, nullptr, pieces);
    at = end;
  }
  return true;
}

const Digest* ShardLayout::digest_of(const ShardRange& range) const {
  for (size_t rank = 0; rank < digests.size(); ++rank) {
    if (own[rank][range.key] == range) return &digests[rank][range.key];
  }
  return nullptr;
}

void Shards::add(Shard shard, const Generation& place) {
  if (shard.begin < 0 || shard.end > shard.elements) {
    throw Error(HVD_INVALID,
                fmt::format("state key '{}': {} elements from {}: expected a range within the {} of the "
                            "whole vector",
                            shard.key, shard.end - shard.begin, shard.begin, shard.elements));
  }
  if (Status status = stage(&shard); !status.ok()) throw Error(status);
  shard.rank = place.rank;
  shard.size = place.size();
  shard.stale = true;
  // Ranges are told by number of key, which changes: parcels of before mean nothing any more.
  const auto place_of_key = where(shard.key);
  const auto index = static_cast<uint32_t>(place_of_key - shards_.begin());
  shards_.insert(place_of_key, std::move(shard));
  renumber([&](uint32_t key) { return std::optional(key + (key >= index ? 1 : 0)); });
  order_.resize(shards_.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) {
    return std::tuple(-shards_[a].copies, shards_[a].parity, a) <
           std::tuple(-shards_[b].copies, shards_[b].parity, b);
  });
}

void Shards::remove(const std::string& key) {
  const auto found = where(key);
  if (found == shards_.end() || found->key != key) return;
  const auto index = static_cast<uint32_t>(found - shards_.begin());
  shards_.erase(found);
  for (Set* set : {&sealed_, &next_}) {
    const auto drop = [&](const ParcelPtr& parcel) {
      std::erase_if(parcel->segments, [&](const Segment& segment) { return segment.range.key == index; });
    };
    if (set->own) drop(set->own);
    for (const ParcelPtr& parcel : set->held) drop(parcel);
    // A sum with bytes that nobody has any more is of no use: the next commit or sync makes another.
    std::erase_if(set->parity, [&](const Parity& parity) {
      const auto& stripe = parity.block.members[0];
      return std::any_of(stripe.begin(), stripe.end(), [&](const ShardRange& r) { return r.key == index; });
    });
  }
  renumber([&](uint32_t number) {
    return number == index ? std::nullopt : std::optional(number - (number > index ? 1 : 0));
  });
  std::erase(order_, index);
  for (uint32_t& number : order_) number -= number > index ? 1 : 0;
  if (shards_.empty()) forget();
}

std::vector<Shard>::iterator Shards::where(const std::string& key) {
  return std::lower_bound(shards_.begin(), shards_.end(), key,
                          [](const Shard& shard, const std::string& wanted) { return shard.key < wanted; });
}

void Shards::set_data(const std::string& key, void* data) {
  Shard& shard = *where(key);
  (shard.device ? shard.device->data : shard.live) = data;
  shard.stale = true;
}

void Shards::renumber(const std::function<std::optional<uint32_t>(uint32_t)>& number) {
  std::set<const Parcel*> done;  // one may be in both sets
  const auto in = [&](const ParcelPtr& parcel) {
    if (!done.insert(parcel.get()).second) return;
    for (Segment& segment : parcel->segments) segment.range.key = number(segment.range.key).value();
  };
  for (Set* set : {&sealed_, &next_}) {
    if (set->own) in(set->own);
    for (const ParcelPtr& parcel : set->held) in(parcel);
    for (Parity& parity : set->parity) {
      for (auto& stripe : parity.block.members) {
        for (ShardRange& range : stripe) range.key = number(range.key).value();
      }
    }
    if (set->layout == nullptr) continue;
    auto layout = std::make_shared<ShardLayout>(*set->layout);
    for (std::vector<ShardRange>& own : layout->own) {
      std::vector<ShardRange> before = std::move(own);
      own.clear();
      for (uint32_t key = 0; key < shards_.size(); ++key) own.push_back({key, 0, 0});  // nobody had any yet
      for (const ShardRange& range : before) {
        if (const auto key = number(range.key)) own[*key] = {*key, range.begin, range.end};
      }
    }
    for (std::vector<Digest>& digests : layout->digests) {
      std::vector<Digest> before(shards_.size());
      before.swap(digests);
      for (uint32_t key = 0; key < before.size(); ++key) {
        if (const auto now = number(key)) digests[*now] = before[key];
      }
    }
    set->layout = std::move(layout);
  }
  spare_.clear();
}

void Shards::forget() {
  sealed_ = {};
  next_ = {};
  spare_.clear();
}

uint64_t Shards::own_bytes() const {
  return std::accumulate(shards_.begin(), shards_.end(), uint64_t{0},
                         [](uint64_t sum, const Shard& shard) { return sum + shard.bytes(); });
}

uint64_t Shards::held_bytes() const {
  if (sealed_.taken) return sealed_.for_others;
  uint64_t bytes = 0;
  for (const ParcelPtr& parcel : sealed_.held) {
    for (const Segment& segment : parcel->segments) bytes += segment.bytes;
  }
  for (const Parity& parity : sealed_.parity) bytes += parity.block.chunk;
  return bytes;
}

std::vector<uint64_t> Shards::element_bytes() const {
  std::vector<uint64_t> bytes;
  for (const Shard& shard : shards_) bytes.push_back(shard.element_bytes);
  return bytes;
}

std::vector<int64_t> Shards::lengths() const {
  std::vector<int64_t> elements;
  for (const Shard& shard : shards_) elements.push_back(shard.elements);
  return elements;
}

std::vector<ShardRange> Shards::ranges() const {
  std::vector<ShardRange> mine;
  for (uint32_t key = 0; key < shards_.size(); ++key)
    mine.push_back({key, shards_[key].begin, shards_[key].end});
  return mine;
}

int32_t Shards::most_copies() const { return order_.empty() ? 0 : shards_[order_.front()].copies; }

Spec Shard::spec() const {
  return {key,
          VariableKind::kShard,
          dtype,
          {elements},
          parity > 0 ? fmt::format("the parity of {}", parity) : fmt::format("{} copies", copies)};
}

/// What all ranks have to register alike.
std::vector<uint8_t> Shards::specs() const {
  std::vector<uint8_t> bytes;
  for (const Shard& shard : shards_) encode(shard.spec(), &bytes);
  return bytes;
}

ShardLayout Shards::layout_of(Ranges own, const Generation& generation) const {
  ShardLayout layout{std::move(own), {}, place_copies(generation.hosts, most_copies()), {}, generation.hosts};
  if (sealed_.layout && sealed_.layout->own == layout.own) layout.digests = sealed_.layout->digests;
  for (const Shard& shard : shards_) {
    if (shard.parity > 0 && !layout.groups.contains(shard.parity))
      layout.groups.emplace(shard.parity, parity_groups(generation.hosts, shard.parity));
  }
  return layout;
}

std::vector<Segment> Shards::segments(const std::vector<ShardRange>& ranges, int32_t copies) const {
  std::vector<Segment> list;
  size_t at = 0;
  for (const uint32_t key : order_) {
    if (shards_[key].copies <= copies) break;
    Segment& segment = list.emplace_back();
    segment.range = ranges[key];
    segment.at = at;
    segment.bytes = static_cast<size_t>(ranges[key].elements()) * shards_[key].element_bytes;
    at += whole_lines(segment.bytes);
  }
  return list;
}

/// Kept for what is made next. What others own is not this rank's to write.
void Shards::let_go(ParcelPtr parcel) noexcept {
  try {
    if (parcel != nullptr && !parcel->memory.is_mapped()) spare_.push_back(std::move(parcel));
  } catch (const std::bad_alloc&) {}  // it is freed instead
}

/// Copies lie on this machine only where there are too few workers elsewhere: place_copies.
bool Shards::shares(const Generation& generation) const {
  if (!reads_others_ || generation.size() < 2 || own_bytes() < kReadFrom) return false;
  const auto here = std::count(generation.hosts.begin(), generation.hosts.end(),
                               generation.hosts[static_cast<size_t>(generation.rank)]);
  return here > 1 && generation.size() - here < most_copies();
}

Memory Shards::mapped(const MemoryPlace& place, const std::vector<Segment>& segments) const {
  const size_t total = segments.empty() ? 0 : segments.back().at + whole_lines(segments.back().bytes);
  if (!reads_others_ || total < kReadFrom || place.size < total) return {};
  return Memory::map(place);
}

/// Memory with another size, with the pages that it has: after a change of ranks all that was let go of is
/// somewhat shorter or longer than what is wanted. Empty if there is none.
Memory Shards::remade(size_t total, bool shared) {
  const auto fitness = [&](const ParcelPtr& parcel) {  // the shortest that is long enough, else the longest
    const size_t size = parcel->memory.size();
    return std::pair(size < total, size < total ? total - size : size - total);
  };
  auto best = spare_.end();
  for (auto parcel = spare_.begin(); parcel != spare_.end(); ++parcel) {
    const size_t size = (*parcel)->memory.size();
    if (parcel->use_count() > 1 || size / 4 > total || size < total / 4) continue;
    if ((*parcel)->memory.is_shared() != shared || (*parcel)->memory.in_use()) continue;
    if (best == spare_.end() || fitness(*parcel) < fitness(*best)) best = parcel;
  }
  if (best == spare_.end()) return {};
  Memory memory = std::move((*best)->memory);
  spare_.erase(best);
  const size_t before = memory.size();
  if (!memory.remake(total)) return {};
  if (before < total && !shared) {
    const size_t there = before / kHugePage * kHugePage;
    get_pages({{memory.data() + there, total - there}});
  }
  return memory;
}

/// Until another rank has let go of what is to be written next: it may hear a little later that a commit is
/// sealed. If that takes longer than new memory would, it is left to that rank.
void Shards::await_spare(size_t total) {
  constexpr Duration kPause = std::chrono::microseconds(200), kLeast = std::chrono::milliseconds(5);
  const Duration patience = std::max(kLeast, Duration(total * 2 / 5));  // 0.4 ns a byte
  const auto fits = [&](const ParcelPtr& parcel) {
    return parcel->memory.is_shared() && parcel->memory.size() == total;
  };
  if (std::none_of(spare_.begin(), spare_.end(), fits)) return;
  const auto idle = [&](const ParcelPtr& parcel) { return fits(parcel) && !parcel->memory.in_use(); };
  for (const Time until = now() + patience;
       std::none_of(spare_.begin(), spare_.end(), idle) && now() < until;) {
    std::this_thread::sleep_for(kPause);
  }
}

ParcelPtr Shards::parcel(std::vector<Segment> segments, int32_t owner, bool shared) {
  const size_t total = segments.empty() ? 0 : segments.back().at + whole_lines(segments.back().bytes);
  const auto fits = [&](const ParcelPtr& parcel) {
    return parcel.use_count() == 1 && parcel->memory.size() == total &&
           parcel->memory.is_shared() == shared && !parcel->memory.in_use();
  };
  auto found = std::find_if(spare_.begin(), spare_.end(),
                            [&](const ParcelPtr& parcel) { return fits(parcel) && parcel->owner == owner; });
  if (found == spare_.end()) found = std::find_if(spare_.begin(), spare_.end(), fits);
  ParcelPtr result;
  if (found != spare_.end()) {
    result = std::move(*found);
    spare_.erase(found);
    const auto same = [](const Segment& a, const Segment& b) { return a.at == b.at && a.bytes == b.bytes; };
    if (std::equal(segments.begin(), segments.end(), result->segments.begin(), result->segments.end(),
                   same)) {
      for (size_t i = 0; i < segments.size(); ++i) segments[i].pieces = std::move(result->segments[i].pieces);
    }
  } else {
    result = std::make_shared<Parcel>();
    result->memory = remade(total, shared);
    if (result->memory.size() != total && shared) result->memory = Memory::shared(total);
    if (result->memory.size() != total) {
      result->memory = Memory(total);
      get_pages({{result->memory.data(), total}});
    }
  }
  for (const Segment& segment : segments) {  // nothing of this process goes out with the gaps
    if (segment.bytes < whole_lines(segment.bytes))
      std::memset(result->memory.data() + segment.at + segment.bytes, 0,
                  whole_lines(segment.bytes) - segment.bytes);
  }
  result->owner = owner;
  result->segments = std::move(segments);
  return result;
}

void Shards::leave_restore() {
  for (Shard& shard : shards_) shard.stale = true;
}

void Shards::append_restore(std::vector<PieceCopy>* pieces, std::vector<PieceCopy>* staged) {
  leave_restore();
  if (!sealed_.own) {
    std::vector<PieceCopy> found;
    for (uint32_t key = 0; key < shards_.size(); ++key) {
      Shard& shard = shards_[key];
      if (!shard.staged()) continue;
      found.clear();
      shard.stale = !append_range(sealed_.held, {key, shard.begin, shard.end}, shard.element_bytes,
                                  static_cast<uint8_t*>(shard.live), &found);
      if (shard.stale) continue;
      shard.written();
      std::vector<PieceCopy>* const list = shard.device ? staged : pieces;
      list->insert(list->end(), found.begin(), found.end());
    }
    return;
  }
  for (const Segment& segment : sealed_.own->segments) {
    Shard& shard = shards_[segment.range.key];
    if (segment.range.begin != shard.begin || segment.range.end != shard.end || !shard.staged()) continue;
    append_pieces(shard.written(), sealed_.own->data(segment), segment.bytes, nullptr,
                  shard.device ? staged : pieces);
    shard.stale = false;
  }
}

std::string Shards::told(const ShardRange& range) const {
  return fmt::format("elements {} to {} of state key '{}'", range.begin, range.end - 1,
                     shards_[range.key].key);
}

/// "" if this rank does not know; kLater if nobody had any of the key.
std::string Shards::who_had(const ShardRange& range) const {
  const std::shared_ptr<const ShardLayout>& layout = sealed_.layout;
  if (layout == nullptr) return {};
  const auto name = [&](int32_t rank) {
    return fmt::format("rank {} (host {})", rank, layout->hosts[static_cast<size_t>(rank)]);
  };
  bool known = false;
  for (size_t rank = 0; rank < layout->own.size(); ++rank) {
    const ShardRange& own = layout->own[rank][range.key];
    known = known || own.begin < own.end;
    if (range.begin < own.begin || range.begin >= own.end) continue;
    std::string text = fmt::format("{} held them", name(static_cast<int32_t>(rank)));
    if (shards_[range.key].parity > 0) {
      std::vector<std::string> members;
      for (const auto& group : layout->groups.at(shards_[range.key].parity)) {
        if (!std::binary_search(group.begin(), group.end(), static_cast<int32_t>(rank))) continue;
        for (const int32_t member : group) {
          if (member != static_cast<int32_t>(rank)) members.push_back(name(member));
        }
      }
      if (members.empty()) return text + ", nobody their parity";
      return fmt::format("{}, {} their parity", text, fmt::join(members, " and "));
    }
    std::vector<std::string> copies;
    for (const int32_t holder : layout->holders[rank]) {
      if (copies.size() < static_cast<size_t>(shards_[range.key].copies)) copies.push_back(name(holder));
    }
    if (copies.empty()) return text + ", nobody a copy";
    return fmt::format("{}, {} {}", text, fmt::join(copies, " and "),
                       copies.size() == 1 ? "the copy" : "the copies");
  }
  return known ? "" : kLater;
}

}  // namespace hvd::state
