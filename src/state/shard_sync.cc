// Brings every range of a revision to whom it belongs in a new generation, with copies.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "state/flight.h"
#include "state/shard_check.h"
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

bool has_block(const std::vector<Digest>& blocks, const Digest& block) {
  return std::find(blocks.begin(), blocks.end(), block) != blocks.end();
}

}  // namespace

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
  if (!who.empty() && who != kLater) {
    for (const auto& [range, what] : corrupt_) {
      const bool concerned =
          range.key == lost[0].key && range.begin < lost[0].end && lost[0].begin < range.end;
      if (concerned) who += fmt::format(" ({} is not what was committed)", what);
    }
  }
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
                            who.empty()     ? "nobody is left who held them"
                            : who == kLater ? who
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

Status Shards::plan_sync(const Ranges& wants, bool own_too, uint64_t revision, int32_t rank,
                         collective::Engine& engine, Time deadline, SyncResult* result, ShardTables* tables,
                         std::vector<ParcelPtr>* bag, ShardPlan* ret_plan) {
  const auto size = static_cast<int32_t>(wants.size());
  const std::vector<uint64_t> elements = element_bytes();
  for (bool dropped = true; std::exchange(dropped, false);) {
    ShardPlan plan = plan_shards(tables->has, wants, elements);
    const bool parity = std::any_of(tables->blocks.begin(), tables->blocks.end(),
                                    [](const std::vector<Digest>& of_rank) { return !of_rank.empty(); });
    if (!plan.lost.empty() && parity) {
      std::vector<ShardRange> left = plan.lost;
      Status status = repair(rank, size, engine, deadline, result, tables, bag, &left, &dropped);
      if (!status.ok()) return status;
      if (dropped) continue;
      if (left.empty()) {
        plan = plan_shards(tables->has, wants, elements);
      } else {
        std::erase_if(plan.lost, [&](const ShardRange& lost) {
          return std::none_of(left.begin(), left.end(), [&](const ShardRange& part) {
            return part.key == lost.key && part.begin < lost.end && lost.begin < part.end;
          });
        });
      }
    }
    *ret_plan = std::move(plan);
    if (!ret_plan->lost.empty()) return tell_lost(ret_plan->lost, revision, size, engine, deadline);
    bool rebuilds = false;  // somebody has another range than before
    for (size_t r = 0; r < wants.size(); ++r) {
      const std::vector<ShardRange>& has = tables->has[r];
      rebuilds = rebuilds || std::any_of(wants[r].begin(), wants[r].end(), [&](const ShardRange& range) {
                   return range.begin < range.end && std::find(has.begin(), has.end(), range) == has.end();
                 });
    }
    if (!rebuilds) break;
    ShardCheck check;
    check.uses = uses_of(ret_plan->moves);
    check.own = own_too;
    // What stays as it is need not be read.
    const std::vector<ShardRange>& mine = wants[static_cast<size_t>(rank)];
    const std::vector<ShardRange> own(mine.begin(), mine.begin() + std::ssize(shards_));
    const bool stays = sealed_.own != nullptr && holds(*sealed_.own, segments(own, -1)) &&
                       alike(tables->has[static_cast<size_t>(rank)], mine);
    if (own_too && !stays) check.kept = mine;
    if (Status status = check_uses(&check, rank, engine, deadline, tables, bag, &dropped); !status.ok())
      return status;
  }
  return {};
}

Status Shards::exchange_tables(const Generation& generation, ShardHead mine, const Status& local,
                               const std::vector<ParcelPtr>& bag, collective::Engine& engine, Time deadline,
                               ShardTables* ret_tables) const {
  mine.rank = static_cast<uint64_t>(generation.rank);
  if (!local.ok()) mine.flags |= ShardHead::kFailed;
  std::vector<Digest> blocks;
  for (const Parity& parity : sealed_.parity) blocks.push_back(identity(parity.block));
  const std::vector<uint8_t> bytes = write_shard_table(mine, ranges(), ranges_in(bag), blocks);
  std::vector<uint8_t> all;
  if (generation.size() == 1) {
    all = bytes;
  } else if (Status status = gather(engine, deadline, "hvd.shards.tables", bytes.data(), bytes.size(), &all);
             !status.ok()) {
    return local.ok() ? status : local;
  }
  if (!local.ok()) return local;
  if (!read_shard_tables(all, static_cast<size_t>(generation.size()), shards_.size(), bytes, ret_tables))
    return unreadable("their shards");
  for (const ShardHead& head : ret_tables->heads) {
    if ((head.flags & ShardHead::kFailed) == 0) continue;
    Status status(HVD_PEER_LOST, fmt::format("state sync: rank {} has no ranges of its shards", head.rank));
    return status.at_rank(static_cast<int32_t>(head.rank));
  }
  for (uint32_t key = 0; key < shards_.size(); ++key) {
    std::vector<ShardRange> of_key;
    for (const auto& own : ret_tables->own) of_key.push_back(own[key]);
    if (const std::string what = misfit(shards_[key].elements, of_key); !what.empty()) {
      return {HVD_MISMATCH, fmt::format("state key '{}': {}; expected each of its {} elements on one rank",
                                        shards_[key].key, what, shards_[key].elements)};
    }
  }
  // Nobody's word makes room or writes beyond a key.
  return within(ret_tables->has, lengths()) ? Status() : unreadable("their shards");
}

Status Shards::fill(const Generation& generation, const ShardTables& tables, ShardPlan plan,
                    const std::vector<ParcelPtr>& bag, collective::Engine& engine, Time deadline,
                    SyncResult* result, Set* next, bool* ret_own_is_new) {
  const int32_t rank = generation.rank;
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
    next->own = provide(segments(tables.own[static_cast<size_t>(rank)], -1), rank);
    *ret_own_is_new = !fresh.empty();
    if (Status status = agree_on_moves(plan.moves, tables.has, *next, bag, rank, engine, deadline, &reads);
        !status.ok()) {
      return status;
    }
    for (int32_t owner = 0; owner < generation.size(); ++owner) {
      const std::vector<int32_t>& holders = next->layout->holders[static_cast<size_t>(owner)];
      const auto place = std::find(holders.begin(), holders.end(), rank);
      if (place == holders.end()) continue;
      std::vector<Segment> list =
          segments(tables.own[static_cast<size_t>(owner)], static_cast<int32_t>(place - holders.begin()));
      if (!reads.mapped.empty() && reads.mapped[static_cast<size_t>(owner)].size() > 0) {
        next->held.push_back(std::make_shared<Parcel>(
            Parcel{owner, std::move(list), std::move(reads.mapped[static_cast<size_t>(owner)])}));
        mapped.push_back(next->held.back());
      } else {
        next->held.push_back(provide(std::move(list), owner));
      }
    }
  } catch (const std::bad_alloc&) { return {HVD_INTERNAL, "out of memory: new ranges of shards"}; }
  if (reads.has_maps()) plan = plan_shards(tables.has, wanted(*next->layout, reads.maps), element_bytes());
  if (Status status =
          move(plan.moves, tables.has, reads, bag, fresh, rank, next->own.get(), engine, deadline, result);
      !status.ok()) {
    return status;
  }
  return reads.has_maps() ? tell_filled(next, mapped, rank, engine, deadline) : Status();
}

/// Live memory, from the parcel of what is sealed next.
void Shards::write_own(bool own_is_new) {
  std::vector<PieceCopy> pieces;
  for (const Segment& segment : next_.own->segments) {
    Shard& shard = shards_[segment.range.key];
    if (own_is_new ? !shard.stale : shard.stale)  // what was both is written already
      append_pieces(shard.written(), next_.own->data(segment), segment.bytes, nullptr, &pieces);
  }
  copy_pieces(pieces, true);
}

Status Shards::sync(const Generation& generation, collective::Engine& engine, Time deadline,
                    uint64_t revision, bool can_reload, const Status& local, SyncResult* result,
                    bool* ret_lost) {
  const int32_t rank = generation.rank, size = generation.size();
  std::vector<ParcelPtr> bag = gather_usable(revision);
  ShardHead mine;
  mine.flags = can_reload ? ShardHead::kCanReload : 0;
  mine.revision = revision;
  ShardTables tables;
  if (Status status = exchange_tables(generation, mine, local, bag, engine, deadline, &tables); !status.ok())
    return status;

  Set next;
  next.revision = revision;
  next.layout = std::make_shared<ShardLayout>(layout_of(tables.own, generation));
  const Ranges wants = wanted(*next.layout, {});
  const bool maps = may_take_over(generation);
  ShardPlan plan;
  if (Status status = plan_sync(wants, !maps, revision, rank, engine, deadline, result, &tables, &bag, &plan);
      !status.ok()) {
    const bool all_reload = std::all_of(tables.heads.begin(), tables.heads.end(), [](const ShardHead& head) {
      return (head.flags & ShardHead::kCanReload) != 0;
    });
    *ret_lost = all_reload && !plan.lost.empty();
    return status;
  }
  bool same = true, makes = false;
  for (size_t r = 0; r < wants.size(); ++r) {
    same = same && alike(tables.has[r], wants[r]);
    const std::vector<ParityBlock> due = blocks_of(*next.layout, static_cast<int32_t>(r));
    same = same && due.size() == tables.blocks[r].size();
    for (const ParityBlock& block : due) makes = makes || !has_block(tables.blocks[r], identity(block));
  }
  same = same && !makes;

  if (!same && maps) {
    bool done = false;
    Status status = take_over(tables, plan, wants, next, bag, rank, engine, deadline, result, &done);
    if (!status.ok() || done) return status;
  }
  bool own_is_new = false;
  if (Status status =
          fill(generation, tables, std::move(plan), bag, engine, deadline, result, &next, &own_is_new);
      !status.ok()) {
    return status;
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
  write_own(own_is_new);  // all have what they are to have
  adopt();
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
  auto layout = std::make_shared<ShardLayout>(*next_.layout);
  layout->digests.assign(layout->own.size(), std::vector<Digest>(shards_.size()));
  std::map<std::pair<uint64_t, uint64_t>, Digest> known;
  std::span<const uint8_t> bytes(all);
  Said said;
  while (take(&bytes, &said)) {
    if (said.owner >= layout->own.size() || said.key >= shards_.size()) return unreadable("their shards");
    const auto [found, first] = known.try_emplace({said.owner, said.key}, said.digest);
    if (first) {
      const ShardRange& range = layout->own[said.owner][said.key];
      const Digest* const committed = sealed_.layout ? sealed_.layout->digest_of(range) : nullptr;
      layout->digests[said.owner][said.key] = said.digest;
      if (committed == nullptr || *committed == said.digest || range.begin == range.end) continue;
      return {HVD_INTERNAL, fmt::format("state sync: what rank {} has got of {} is not what was committed",
                                        said.owner, told(range))};
    }
    if (found->second == said.digest) continue;
    return {HVD_INTERNAL, fmt::format("state sync: a copy of state key '{}' of rank {} of {} is not what "
                                      "that rank has",
                                      shards_[said.key].key, said.owner, size)};
  }
  next_.layout = std::move(layout);
  return {};
}

}  // namespace hvd::state
