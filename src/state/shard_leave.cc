// Before a planned change of ranks: what only ranks that leave have goes to others.
#include <algorithm>
#include <utility>

#include "state/flight.h"
#include "state/shard_move.h"
#include "state/shard_tables.h"
#include "state/shard_wire.h"
#include "state/shards.h"

namespace hvd::state {

Status Shards::hand_over(const Generation& generation) {
  const int32_t rank = generation.rank, size = generation.size();
  if (size == 1 || !sealed_.whole) return {};
  const Time deadline = now() + generation.timeout;
  // The ranks that leave, as far as any rank has heard: one of them knows of the newest change of hosts,
  // since all have agreed on it.
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
  // Ranks that leave stay until everything has arrived.
  const uint8_t done = 1;
  return gather(*generation.engine, deadline, "hvd.shards.taken", &done, sizeof(done), &all);
}

}  // namespace hvd::state
