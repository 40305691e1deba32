// Brings every range of a revision to whom it belongs in a new generation, with copies, and hands over what
// leaves.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "state/flight.h"
#include "state/pages.h"
#include "state/shard_move.h"
#include "state/shard_tables.h"
#include "state/shard_wire.h"
#include "state/shards.h"

namespace hvd::state {
namespace {

/// The same ranges, in whatever order and however often.
bool alike(std::vector<ShardRange> a, std::vector<ShardRange> b) {
  for (auto* ranges : {&a, &b}) {
    std::erase_if(*ranges, [](const ShardRange& range) { return range.begin >= range.end; });
    std::sort(ranges->begin(), ranges->end(), [](const ShardRange& x, const ShardRange& y) {
      return std::tie(x.key, x.begin, x.end) < std::tie(y.key, y.begin, y.end);
    });
    ranges->erase(std::unique(ranges->begin(), ranges->end()), ranges->end());
  }
  return a == b;
}

std::vector<ShardRange> ranges_in(const std::vector<ParcelPtr>& parcels) {
  std::vector<ShardRange> ranges;
  for (const ParcelPtr& parcel : parcels) {
    for (const Segment& segment : parcel->segments) ranges.push_back(segment.range);
  }
  return ranges;
}

bool has_block(const std::vector<Digest>& blocks, const Digest& block) {
  return std::find(blocks.begin(), blocks.end(), block) != blocks.end();
}

}  // namespace

Status Shards::fit(const Generation& generation) {
  const int32_t rank = generation.rank, size = generation.size();
  for (uint32_t key = 0; key < shards_.size(); ++key) {
    Shard& shard = shards_[key];
    if (shard.rank == rank && shard.size == size) continue;
    const ShardRange even = even_range(key, shard.elements, rank, size);
    if (!shard.reshard) {
      if (even.begin != shard.begin || even.end != shard.end) {
        return {HVD_INVALID,
                fmt::format("state key '{}' has elements {} to {} and no reshard callback: rank {} of {} "
                            "needs {} to {}",
                            shard.key, shard.begin, shard.end - 1, rank, size, even.begin, even.end - 1)};
      }
      shard.rank = rank;
      shard.size = size;
      continue;
    }
    hvd_shard asked{};
    asked.struct_size = sizeof(asked);
    asked.key = shard.key.c_str();
    asked.dtype = shard.dtype;
    asked.rank = rank;
    asked.size = size;
    asked.global_elements = shard.elements;
    asked.offset = even.begin;
    asked.elements = even.elements();
    asked.data = shard.live;
    const int32_t code = shard.reshard(&asked);
    if (code != 0) {
      Status status(HVD_CALLBACK_FAILED, fmt::format("reshard callback of state key '{}' returned {}: "
                                                     "expected 0",
                                                     shard.key, code));
      status.vendor_code = code;
      return status;
    }
    const bool within = asked.offset >= 0 && asked.elements >= 0 && asked.elements <= shard.elements &&
                        asked.offset <= shard.elements - asked.elements;
    if (!within || (asked.elements > 0 && asked.data == nullptr)) {
      return {HVD_CALLBACK_FAILED,
              fmt::format("reshard callback of state key '{}' gave {} elements from {}{}: expected memory "
                          "for a range within the {} of the whole vector",
                          shard.key, asked.elements, asked.offset,
                          asked.data == nullptr ? " without memory" : "", shard.elements)};
    }
    shard.live = asked.data;
    shard.begin = asked.offset;
    shard.end = asked.offset + asked.elements;
    shard.rank = rank;
    shard.size = size;
    shard.stale = true;
  }
  return {};
}

Status Shards::take_live(const Generation& generation, uint64_t revision) {
  std::vector<PieceCopy> pieces;
  if (Status status = begin(generation, &pieces); !status.ok()) return status;
  copy_pieces(pieces, true);
  for (Segment& segment : next_.own->segments) segment.digest = segment.pieces.content();
  sealed_.own = std::move(next_.own);
  sealed_.revision = revision;
  sealed_.whole = true;
  next_ = {};
  for (Shard& shard : shards_) shard.stale = false;
  return {};
}

/// What everyone is to have: its own, and what it holds for others, unless it has mapped it (`maps`: by rank,
/// whose; empty: nobody has).
Shards::Ranges Shards::wanted(const ShardLayout& layout,
                              const std::vector<std::vector<uint8_t>>& maps) const {
  Ranges wants = layout.own;
  for (size_t owner = 0; owner < layout.own.size(); ++owner) {
    const std::vector<int32_t>& holders = layout.holders[owner];
    for (size_t copy = 0; copy < holders.size(); ++copy) {
      const auto holder = static_cast<size_t>(holders[copy]);
      if (!maps.empty() && maps[holder][owner] != 0) continue;
      for (const ShardRange& range : layout.own[owner]) {
        if (static_cast<size_t>(std::max(shards_[range.key].copies, 0)) > copy)
          wants[holder].push_back(range);
      }
    }
  }
  return wants;
}

/// More are lost than there are copies: the same sentence on every rank.
Status Shards::tell_lost(const std::vector<ShardRange>& lost, uint64_t revision, int32_t size,
                         collective::Engine& engine, Time deadline) {
  std::string who = who_had(lost[0]);
  if (who.size() > 400) who.resize(400);
  if (size > 1) {
    std::vector<uint8_t> mine, all;
    put(&mine, static_cast<uint64_t>(who.size()));
    mine.insert(mine.end(), who.begin(), who.end());
    if (Status status = gather(engine, deadline, "hvd.shards.lost", mine.data(), mine.size(), &all);
        !status.ok()) {
      return status;
    }
    who.clear();
    std::span<const uint8_t> bytes(all);
    uint64_t length = 0;
    while (who.empty() && take(&bytes, &length) && length <= bytes.size()) {
      who = printable({reinterpret_cast<const char*>(bytes.data()), length}, 400);
      bytes = bytes.subspan(length);
    }
  }
  const bool parity = shards_[lost[0].key].parity > 0;
  std::string more;
  if (lost.size() > 1) more = fmt::format(" and {} more ranges", lost.size() - 1);
  Status status(HVD_JOB_FAILED,
                fmt::format("state revision {}: {}{} are lost: {}", revision, told(lost[0]), more,
                            who.empty() ? "nobody is left who held them"
                                        : who + (parity ? ", and more than one of these is lost"
                                                        : ", and none of it is left")));
  if (size > 1) {
    // Who stops leaves, and to a slower rank that would look like a loss: all know before anybody acts on it.
    const uint8_t known = 1;
    std::vector<uint8_t> all;
    static_cast<void>(gather(engine, deadline, "hvd.shards.known", &known, sizeof(known), &all));
  }
  return status;
}

/// What is let go of, for what is made next. Who is kept elsewhere too is no spare.
void Shards::spare(Set* set) {
  for (ParcelPtr& parcel : set->held) let_go(std::move(parcel));
  let_go(std::move(set->own));
  *set = {};
  std::erase_if(spare_, [](const ParcelPtr& parcel) { return parcel.use_count() > 1; });
}

/// Everything of `revision` that this rank has, by whatever way it came, becomes what is sealed.
std::vector<ParcelPtr> Shards::gather_usable(uint64_t revision) {
  if (!sealed_.whole || sealed_.revision != revision) spare(&sealed_);
  sealed_.revision = revision;
  const auto keep = [&](const ParcelPtr& parcel) {
    if (parcel == nullptr) return;
    const auto same = [&](const ParcelPtr& other) { return other && holds(*other, parcel->segments); };
    if (!same(sealed_.own) && std::none_of(sealed_.held.begin(), sealed_.held.end(), same))
      sealed_.held.push_back(parcel);
  };
  if (next_.whole && next_.revision == revision) {
    keep(next_.own);
    for (const ParcelPtr& parcel : next_.held) keep(parcel);
    std::vector<Digest> known;
    for (const Parity& parity : sealed_.parity) known.push_back(identity(parity.block));
    for (Parity& parity : next_.parity) {
      if (!has_block(known, identity(parity.block))) sealed_.parity.push_back(std::move(parity));
    }
    if (sealed_.layout == nullptr) sealed_.layout = next_.layout;
    sealed_.whole = true;
  }
  spare(&next_);
  std::vector<ParcelPtr> all = sealed_.held;
  if (sealed_.own) all.insert(all.begin(), sealed_.own);
  return all;
}

Status Shards::sync(const Generation& generation, collective::Engine& engine, Time deadline,
                    uint64_t revision, bool can_reload, const Status& local, SyncResult* result,
                    bool* ret_lost) {
  const int32_t rank = generation.rank, size = generation.size();
  std::vector<ParcelPtr> bag = gather_usable(revision);
  std::vector<Digest> blocks;
  for (const Parity& parity : sealed_.parity) blocks.push_back(identity(parity.block));
  ShardHead mine;
  mine.rank = static_cast<uint64_t>(rank);
  mine.flags = (local.ok() ? 0 : ShardHead::kFailed) | (can_reload ? ShardHead::kCanReload : 0);
  mine.revision = revision;
  const std::vector<uint8_t> bytes = write_shard_table(mine, ranges(), ranges_in(bag), blocks);
  std::vector<uint8_t> all;
  if (size == 1) {
    all = bytes;
  } else if (Status status = gather(engine, deadline, "hvd.shards.tables", bytes.data(), bytes.size(), &all);
             !status.ok()) {
    return local.ok() ? status : local;
  }
  if (!local.ok()) return local;
  ShardTables tables;
  if (!read_shard_tables(all, static_cast<size_t>(size), shards_.size(), bytes, &tables))
    return unreadable("their shards");
  bool all_reload = true;
  for (const ShardHead& head : tables.heads) {
    all_reload = all_reload && (head.flags & ShardHead::kCanReload) != 0;
    if ((head.flags & ShardHead::kFailed) == 0) continue;
    Status status(HVD_PEER_LOST, fmt::format("state sync: rank {} has no ranges of its shards", head.rank));
    return status.at_rank(static_cast<int32_t>(head.rank));
  }
  for (uint32_t key = 0; key < shards_.size(); ++key) {
    std::vector<ShardRange> of_key;
    for (const auto& own : tables.own) of_key.push_back(own[key]);
    if (const std::string what = misfit(shards_[key].elements, of_key); !what.empty()) {
      return {HVD_MISMATCH, fmt::format("state key '{}': {}; expected each of its {} elements on one rank",
                                        shards_[key].key, what, shards_[key].elements)};
    }
  }
  // Nobody's word makes room or writes beyond a key.
  if (!within(tables.has, lengths())) return unreadable("their shards");

  Set next;
  next.revision = revision;
  next.layout = std::make_shared<ShardLayout>(layout_of(tables.own, generation));
  const Ranges wants = wanted(*next.layout, {});
  const std::vector<uint64_t> elements = element_bytes();
  ShardPlan plan = plan_shards(tables.has, wants, elements);
  bool parity = false;  // that somebody has a block of
  for (const auto& of_rank : tables.blocks) parity = parity || !of_rank.empty();
  if (!plan.lost.empty() && parity) {
    std::vector<ShardRange> left = plan.lost;
    if (Status status = repair(rank, size, engine, deadline, result, &tables.has, &bag, &left); !status.ok())
      return status;
    if (left.empty()) {
      plan = plan_shards(tables.has, wants, elements);
    } else {
      std::erase_if(plan.lost, [&](const ShardRange& lost) {
        return std::none_of(left.begin(), left.end(), [&](const ShardRange& part) {
          return part.key == lost.key && part.begin < lost.end && lost.begin < part.end;
        });
      });
    }
  }
  if (!plan.lost.empty()) {
    *ret_lost = all_reload;
    return tell_lost(plan.lost, revision, size, engine, deadline);
  }
  bool same = true, makes = false;
  for (size_t r = 0; r < wants.size(); ++r) {
    same = same && alike(tables.has[r], wants[r]);
    const std::vector<ParityBlock> due = blocks_of(*next.layout, static_cast<int32_t>(r));
    same = same && due.size() == tables.blocks[r].size();
    for (const ParityBlock& block : due) makes = makes || !has_block(tables.blocks[r], identity(block));
  }
  same = same && !makes;

  if (!same && may_take_over(generation)) {
    bool done = false;
    Status status = take_over(tables, wants, next, bag, rank, engine, deadline, result, &done);
    if (!status.ok() || done) return status;
  }
  std::vector<ParcelPtr> fresh, mapped;
  const auto provide = [&](std::vector<Segment> list, int32_t owner) {
    for (const ParcelPtr& parcel : bag) {
      if (!holds(*parcel, list)) continue;
      parcel->owner = owner;
      return parcel;
    }
    return fresh.emplace_back(parcel(std::move(list), owner, owner == rank && shares(generation)));
  };
  ShardReads reads;
  try {
    next.own = provide(segments(tables.own[static_cast<size_t>(rank)], -1), rank);
    if (Status status = agree_on_moves(plan.moves, tables.has, next, bag, rank, engine, deadline, &reads);
        !status.ok()) {
      return status;
    }
    for (int32_t owner = 0; owner < size; ++owner) {
      const std::vector<int32_t>& holders = next.layout->holders[static_cast<size_t>(owner)];
      const auto place = std::find(holders.begin(), holders.end(), rank);
      if (place == holders.end()) continue;
      std::vector<Segment> list =
          segments(tables.own[static_cast<size_t>(owner)], static_cast<int32_t>(place - holders.begin()));
      if (!reads.mapped.empty() && reads.mapped[static_cast<size_t>(owner)].size() > 0) {
        next.held.push_back(std::make_shared<Parcel>(
            Parcel{owner, std::move(list), std::move(reads.mapped[static_cast<size_t>(owner)])}));
        mapped.push_back(next.held.back());
      } else {
        next.held.push_back(provide(std::move(list), owner));
      }
    }
  } catch (const std::bad_alloc&) { return {HVD_INTERNAL, "out of memory: new ranges of shards"}; }
  if (reads.has_maps()) plan = plan_shards(tables.has, wanted(*next.layout, reads.maps), elements);
  if (Status status =
          move(plan.moves, tables.has, reads, bag, fresh, rank, next.own.get(), engine, deadline, result);
      !status.ok()) {
    return status;
  }
  if (reads.has_maps()) {
    if (Status status = tell_filled(&next, mapped, rank, engine, deadline); !status.ok()) return status;
  }
  for (const ParityBlock& block : blocks_of(*next.layout, rank)) {
    for (const Parity& has : sealed_.parity) {
      if (identity(has.block) == identity(block)) next.parity.push_back(has);
    }
  }
  if (makes) {
    Status status = tell_places(next, rank, engine, deadline);
    if (status.ok()) status = make_parity(&next, rank, &tables.blocks, engine, deadline, result);
    if (!status.ok()) return status;
  }
  next.whole = true;
  next_ = std::move(next);
  if (!same && size > 1) {
    if (Status status = seal(engine, deadline, size); !status.ok()) return status;
  }
  // All have what they are to have.
  std::vector<PieceCopy> pieces;
  const bool moved = std::find(fresh.begin(), fresh.end(), next_.own) != fresh.end();
  for (const Segment& segment : next_.own->segments) {
    const Shard& shard = shards_[segment.range.key];
    if (moved ? !shard.stale : shard.stale)  // what was both is written already
      append_pieces(shard.live, next_.own->data(segment), segment.bytes, nullptr, &pieces);
  }
  copy_pieces(pieces, true);
  adopt();
  return {};
}

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
      const Shard& shard = shards_[segment.range.key];
      uint8_t* const data = parcel.get() == own && shard.stale ? static_cast<uint8_t*>(shard.live) : nullptr;
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
  return check_copies(bag, moves, rank);
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

/// Copies that this rank has sent are what their owners committed.
Status Shards::check_copies(const std::vector<ParcelPtr>& bag, const std::vector<ShardMove>& moves,
                            int32_t rank) const {
  std::vector<std::pair<const Segment*, Pieces>> checked;
  for (const ShardMove& move : moves) {
    if (move.source != rank) continue;
    const ShardSpot spot = find(bag, move.range, shards_[move.range.key].element_bytes);
    if (spot.segment == nullptr || spot.parcel == sealed_.own.get()) continue;
    const auto same = [&](const auto& entry) { return entry.first == spot.segment; };
    if (std::any_of(checked.begin(), checked.end(), same)) continue;
    Pieces& found = checked.emplace_back(spot.segment, Pieces()).second;
    found.fit(spot.segment->bytes);
  }
  std::vector<PieceCopy> pieces;
  for (auto& [segment, found] : checked) {
    const auto parcel = std::find_if(bag.begin(), bag.end(), [&, wanted = segment](const ParcelPtr& p) {
      return wanted >= p->segments.data() && wanted < p->segments.data() + p->segments.size();
    });
    append_pieces(nullptr, (*parcel)->data(*segment), segment->bytes, &found, &pieces);
  }
  copy_pieces(pieces, true);
  for (const auto& [segment, found] : checked) {
    if (found.content() == segment->digest) continue;
    return {HVD_INTERNAL, fmt::format("state: the copy of {} on rank {} is not what was committed",
                                      told(segment->range), rank)};
  }
  return {};
}

/// All have the new parcels, and each copy is what its owner has.
Status Shards::seal(collective::Engine& engine, Time deadline, int32_t size) {
  struct Said {
    uint64_t owner = 0, key = 0;
    Digest digest;
  };
  static_assert(sizeof(Said) == 32, "no padding on the wire");
  std::vector<uint8_t> mine, all;
  const auto say = [&](const Parcel& parcel) {
    for (const Segment& segment : parcel.segments)
      put(&mine, Said{static_cast<uint64_t>(parcel.owner), segment.range.key, segment.digest});
  };
  say(*next_.own);
  for (const ParcelPtr& parcel : next_.held) say(*parcel);
  if (Status status = gather(engine, deadline, "hvd.shards.seal", mine.data(), mine.size(), &all);
      !status.ok()) {
    return status;
  }
  std::map<std::pair<uint64_t, uint64_t>, Digest> known;
  std::span<const uint8_t> bytes(all);
  Said said;
  while (take(&bytes, &said)) {
    const auto [found, first] = known.try_emplace({said.owner, said.key}, said.digest);
    if (first || found->second == said.digest) continue;
    return {HVD_INTERNAL,
            fmt::format("state sync: a copy of state key '{}' of rank {} of {} is not what "
                        "that rank has",
                        said.key < shards_.size() ? shards_[said.key].key : "?", said.owner, size)};
  }
  return {};
}

Status Shards::hand_over(const Generation& generation) {
  const int32_t rank = generation.rank, size = generation.size();
  if (size == 1 || !sealed_.whole) return {};
  const Time deadline = now() + generation.timeout;
  // Who leaves, as anybody has heard: somebody knows of the newest change of hosts, since all have agreed on
  // it.
  std::vector<uint8_t> bytes, all;
  put(&bytes, static_cast<uint64_t>(generation.leaving.size()));
  for (const int32_t leaver : generation.leaving) put(&bytes, static_cast<uint64_t>(leaver));
  Status status =
      gather(*generation.engine, deadline, "hvd.shards.leaving", bytes.data(), bytes.size(), &all);
  if (!status.ok()) return status;
  std::vector<bool> leaves(static_cast<size_t>(size), false);
  uint64_t count = 0, leaver = 0;
  for (std::span<const uint8_t> rest(all); take(&rest, &count);) {
    for (uint64_t i = 0; i < count && take(&rest, &leaver); ++i) {
      if (leaver < leaves.size()) leaves[leaver] = true;
    }
  }
  if (std::find(leaves.begin(), leaves.end(), true) == leaves.end()) return {};
  std::vector<ParcelPtr> bag = sealed_.held;
  if (sealed_.own) bag.push_back(sealed_.own);
  const std::vector<ShardRange> has = ranges_in(bag);
  ShardHead mine;
  mine.rank = static_cast<uint64_t>(rank);
  mine.revision = sealed_.revision;
  bytes = write_shard_table(mine, ranges(), has);
  status = gather(*generation.engine, deadline, "hvd.shards.held", bytes.data(), bytes.size(), &all);
  if (!status.ok()) return status;
  ShardTables tables;
  if (!read_shard_tables(all, static_cast<size_t>(size), shards_.size(), bytes, &tables))
    return unreadable("their shards");
  if (!within(tables.has, lengths())) return unreadable("their shards");
  for (const ShardHead& head : tables.heads) {
    if (head.revision != sealed_.revision) return {};  // the next sync sees to it
  }
  const std::vector<uint64_t> elements = element_bytes();
  const Ranges takes = plan_handover(tables.has, leaves, elements);
  const ShardPlan plan = plan_shards(tables.has, takes, elements);
  if (plan.moves.empty()) return {};
  std::vector<Segment> list;
  size_t at = 0;
  for (const ShardRange& range : takes[static_cast<size_t>(rank)]) {
    Segment& segment = list.emplace_back();
    segment.range = range;
    segment.at = at;
    segment.bytes = static_cast<size_t>(range.elements()) * elements[range.key];
    at += whole_lines(segment.bytes);
  }
  std::vector<ParcelPtr> taken;
  try {
    if (!list.empty()) taken.push_back(parcel(std::move(list), -1));
  } catch (const std::bad_alloc&) { return {HVD_INTERNAL, "out of memory: shards of those that leave"}; }
  Carriage carriage(*generation.engine, deadline, rank, elements, bag, taken);
  status = carriage.start(plan.moves);
  if (Status landed = carriage.land(); status.ok()) status = landed;
  if (!status.ok()) return status;
  for (const ParcelPtr& parcel : taken) {
    for (Segment& segment : parcel->segments)
      segment.digest = content_digest(parcel->data(segment), segment.bytes);
    sealed_.held.push_back(parcel);
  }
  // Who leaves stays until everything has arrived.
  const uint8_t done = 1;
  return gather(*generation.engine, deadline, "hvd.shards.taken", &done, sizeof(done), &all);
}

}  // namespace hvd::state
