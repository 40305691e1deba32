// Before a planned change of ranks: what those that leave have goes to others. As many of these may then be
// lost, before copies are made anew, as at any other time (contract 15, 18).
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "state/flight.h"
#include "state/shard_check.h"
#include "state/shard_move.h"
#include "state/shard_tables.h"
#include "state/shard_wire.h"
#include "state/shards.h"

namespace hvd::state {
namespace {

// Of what has parity: the group is not whole without those that leave, and one of its members may be lost.
constexpr int32_t kParityHolders = 2;

/// The ranks that leave, as far as any rank has heard: one of them knows of the newest change of hosts, since
/// all have agreed on it.
Status gather_leavers(const Generation& generation, Time deadline, std::vector<bool>* ret_leaves) {
  std::vector<uint8_t> bytes, all;
  put(&bytes, static_cast<uint64_t>(generation.leaving.size()));
  for (const int32_t leaver : generation.leaving) put(&bytes, static_cast<uint64_t>(leaver));
  Status status =
      gather(*generation.engine, deadline, "hvd.shards.leaving", bytes.data(), bytes.size(), &all);
  if (!status.ok()) return status;
  ret_leaves->assign(static_cast<size_t>(generation.size()), false);
  uint64_t count = 0, leaver = 0;
  for (std::span<const uint8_t> rest(all); take(&rest, &count);) {
    for (uint64_t i = 0; i < count && take(&rest, &leaver); ++i) {
      if (leaver < ret_leaves->size()) (*ret_leaves)[leaver] = true;
    }
  }
  return {};
}

/// Whether all ranks have room for what they are to take; if not, who has none.
Status gather_room(const Generation& generation, Time deadline, bool mine, int32_t* ret_without) {
  const uint8_t word = mine ? 1 : 0;
  std::vector<uint8_t> all;
  Status status = gather(*generation.engine, deadline, "hvd.shards.room", &word, sizeof(word), &all);
  if (!status.ok()) return status;
  const auto none = std::find(all.begin(), all.end(), 0);
  *ret_without = none == all.end() ? -1 : static_cast<int32_t>(none - all.begin());
  return {};
}

/// Ranks that leave stay until everything has arrived as it was sent.
Status tell_altered(const Generation& generation, Time deadline, int32_t altered) {
  std::vector<uint8_t> all;
  Status status = gather(*generation.engine, deadline, "hvd.shards.taken", &altered, sizeof(altered), &all);
  if (!status.ok()) return status;
  std::span<const uint8_t> words(all);
  for (int32_t receiver = 0; take(&words, &altered); ++receiver) {
    if (altered < 0) continue;
    Status lost(HVD_PEER_LOST,
                fmt::format("state: what rank {} handed over to rank {} did not arrive as it was "
                            "committed",
                            altered, receiver));
    return lost.at_rank(altered);
  }
  return {};
}

}  // namespace

/// Before ranks leave.
struct Shards::Handover {
  std::vector<bool> leaves;    // by rank
  std::vector<ParcelPtr> bag;  // what this rank has
  ShardTables tables;
  ShardPlan plan;
  ShardCheck check;
  ParcelPtr taken;  // what it is to get; NULL: nothing
};

ParcelPtr Shards::room_for(const std::vector<ShardRange>& ranges) {
  std::vector<Segment> list;
  size_t at = 0;
  for (const ShardRange& range : ranges) {
    Segment& segment = list.emplace_back();
    segment.range = range;
    segment.at = at;
    segment.bytes = static_cast<size_t>(range.elements()) * shards_[range.key].element_bytes;
    at += whole_lines(segment.bytes);
  }
  return list.empty() ? nullptr : parcel(std::move(list), -1);
}

Status Shards::hand_over(const Generation& generation) {
  if (generation.size() == 1 || !sealed_.whole) return {};
  const Time deadline = now() + generation.timeout;
  Handover handover;
  Status status = gather_leavers(generation, deadline, &handover.leaves);
  if (!status.ok()) return status;
  if (std::find(handover.leaves.begin(), handover.leaves.end(), true) == handover.leaves.end()) return {};
  handover.bag = sealed_.held;
  if (sealed_.own) handover.bag.push_back(sealed_.own);
  ShardHead mine;
  mine.rank = static_cast<uint64_t>(generation.rank);
  mine.revision = sealed_.revision;
  const std::vector<uint8_t> bytes = write_shard_table(mine, ranges(), ranges_in(handover.bag));
  std::vector<uint8_t> all;
  status = gather(*generation.engine, deadline, "hvd.shards.held", bytes.data(), bytes.size(), &all);
  if (!status.ok()) return status;
  if (!read_shard_tables(all, handover.leaves.size(), shards_.size(), bytes, &handover.tables) ||
      !within(handover.tables.has, lengths())) {
    return unreadable("their shards");
  }
  for (const ShardHead& head : handover.tables.heads) {
    if (head.revision != sealed_.revision) return {};  // the next sync sees to it
  }
  if (status = plan_taking(generation, deadline, &handover); !status.ok()) return status;
  int32_t altered = -1;  // from whom something came otherwise than that rank has it
  if (!handover.plan.moves.empty()) {
    status = take_held(generation, deadline, handover, &altered);
    if (!status.ok()) return status;
  }
  if (status = hand_over_parity(generation, handover.leaves, deadline); !status.ok()) return status;
  return tell_altered(generation, deadline, altered);
}

/// Until all sources are known to be good, and all ranks have room for what they are to take.
Status Shards::plan_taking(const Generation& generation, Time deadline, Handover* handover) {
  auto& [leaves, bag, tables, plan, check, taken] = *handover;
  const std::vector<uint64_t> elements = element_bytes();
  std::vector<int32_t> holders;
  for (const Shard& shard : shards_)
    holders.push_back(shard.parity > 0 ? kParityHolders : std::max(shard.copies, 0) + 1);
  check.tells = true;
  const Ranges had = tables.has;
  while (true) {
    const Ranges takes = plan_handover(tables.has, had, leaves, elements, holders);
    plan = plan_shards(tables.has, takes, elements);
    if (plan.moves.empty()) return {};
    check.uses = uses_of(plan.moves);
    bool dropped = false;
    Status status =
        check_uses(&check, generation.rank, *generation.engine, deadline, &tables, &bag, &dropped);
    if (!status.ok()) return status;
    if (dropped) continue;
    int32_t without = -1;
    bool room = true;
    try {
      taken = room_for(takes[static_cast<size_t>(generation.rank)]);
    } catch (const std::bad_alloc&) { room = false; }
    if (status = gather_room(generation, deadline, room, &without); !status.ok()) return status;
    if (without < 0) return {};
    taken = nullptr;
    if (std::all_of(holders.begin(), holders.end(), [](int32_t count) { return count == 1; })) {
      Status none(HVD_INTERNAL,
                  fmt::format("out of memory: rank {} has no room for shards of those that leave", without));
      return none.at_rank(without);
    }
    holders.assign(holders.size(), 1);  // one that stays is better than none
  }
}

/// Keeps what this rank gets, if it is what its source has; *altered: the source, if not.
Status Shards::take_held(const Generation& generation, Time deadline, const Handover& handover,
                         int32_t* altered) {
  std::vector<ParcelPtr> to;
  if (handover.taken != nullptr) to.push_back(handover.taken);
  const std::vector<uint64_t> elements = element_bytes();
  Carriage carriage(*generation.engine, deadline, generation.rank, elements, handover.bag, to);
  Status status = carriage.start(handover.plan.moves);
  if (Status landed = carriage.land(); status.ok()) status = landed;
  if (!status.ok()) return status;
  const std::vector<ShardCheck::Use>& uses = handover.check.uses;
  for (const ParcelPtr& parcel : to) {
    std::erase_if(parcel->segments, [&](Segment& segment) {
      const auto use =
          std::find_if(uses.begin(), uses.end(), [&](const auto& one) { return one.range == segment.range; });
      segment.digest = content_digest(parcel->data(segment), segment.bytes);
      if (use != uses.end() && use->digest == segment.digest) return false;
      *altered = use == uses.end() ? generation.rank : use->source;
      note(segment.range,
           fmt::format("what rank {} got from rank {} of {}", generation.rank, *altered, told(segment.range)),
           true);
      return true;
    });
    sealed_.held.push_back(parcel);
  }
  return {};
}

/// Without the blocks of those that leave a member of their group that is lost could not be made again.
Status Shards::hand_over_parity(const Generation& generation, const std::vector<bool>& leaves,
                                Time deadline) {
  if (std::none_of(shards_.begin(), shards_.end(), [](const Shard& shard) { return shard.parity > 0; }))
    return {};
  const auto me = static_cast<size_t>(generation.rank);
  std::vector<ParityBlock> mine;
  std::vector<Digest> sums;
  const auto is_good = [](const ParcelPtr& sum) {
    return content_digest(sum->memory.data(), sum->segments[0].bytes) == sum->segments[0].digest;
  };
  std::erase_if(sealed_.parity, [&](const Parity& parity) {
    if (!leaves[me] || is_good(parity.sum)) return false;
    const ShardRange& range = parity.block.members[0][0];
    note(range, fmt::format("the parity on rank {} of {} and others", me, told(range)), true);
    return true;
  });
  for (const Parity& parity : sealed_.parity) {
    if (!leaves[me]) break;
    mine.push_back(parity.block);
    sums.push_back(parity.sum->segments[0].digest);
  }
  std::vector<std::vector<ParityBlock>> blocks;
  Status status =
      gather_parity(mine, generation.rank, generation.size(), *generation.engine, deadline, &blocks);
  if (!status.ok()) return status;
  std::vector<uint8_t> all;
  status = gather(*generation.engine, deadline, "hvd.shards.sums", sums.data(), sums.size() * sizeof(Digest),
                  &all);
  if (!status.ok()) return status;
  std::vector<uint64_t> load(leaves.size(), 0);
  std::vector<int32_t> staying;
  for (size_t r = 0; r < leaves.size(); ++r) {
    if (!leaves[r]) staying.push_back(static_cast<int32_t>(r));
  }
  std::span<const uint8_t> told(all);
  std::vector<Parity> taken;
  Flight flight(*generation.engine, deadline);
  for (size_t leaver = 0; leaver < leaves.size(); ++leaver) {
    for (size_t number = 0; number < blocks[leaver].size(); ++number) {
      const ParityBlock& block = blocks[leaver][number];
      Digest sum;
      if (!leaves[leaver] || !take(&told, &sum)) return unreadable("parity");
      std::sort(staying.begin(), staying.end(), [&](int32_t a, int32_t b) {
        return std::pair(load[static_cast<size_t>(a)], a) < std::pair(load[static_cast<size_t>(b)], b);
      });
      const size_t count = std::min<size_t>(staying.size(), kParityHolders);
      std::vector<int32_t> members(staying.begin(), staying.begin() + static_cast<ptrdiff_t>(count));
      for (const int32_t member : members) load[static_cast<size_t>(member)] += block.chunk;
      const bool receives = std::find(members.begin(), members.end(), generation.rank) != members.end();
      if (count == 0 || (!receives && leaver != me)) continue;
      ParcelPtr at = leaver == me ? sealed_.parity[number].sum : nullptr;
      if (receives) {
        Segment whole;
        whole.bytes = block.chunk;
        whole.digest = sum;
        at = parcel({whole}, kNobody);
        taken.push_back({block, at});
      }
      flight.keep(at);
      members.push_back(static_cast<int32_t>(leaver));
      std::sort(members.begin(), members.end());
      flight.submit(one_to_some(fmt::format("hvd.parity.leaving.{}.{}", leaver, number),
                                static_cast<int32_t>(leaver), std::move(members), at->memory.data(),
                                block.chunk));
    }
  }
  if (status = flight.land(); !status.ok()) return status;
  for (Parity& parity : taken) {
    if (is_good(parity.sum)) {
      sealed_.parity.push_back(std::move(parity));
    } else if (logger_ != nullptr) {
      logger_->warning("state: a block of parity did not arrive at rank {} as it was sent", me);
    }
  }
  return {};
}

}  // namespace hvd::state
