// Fuzzes what ranks tell each other of shards: whatever is read, what follows from it lies within the keys.
#include "fuzz.h"
#include "state/shard_tables.h"

namespace hvd::fuzz {
namespace {

using namespace state;

const std::vector<int64_t> kLengths = {100, 7};
const std::vector<uint64_t> kElementBytes = {8, 4};
const std::vector<int32_t> kHolders = {1, 2};
constexpr size_t kRanks = 3;

Bytes table(uint64_t rank, const std::vector<ShardRange>& has) {
  ShardHead head;
  head.rank = rank;
  const auto r = static_cast<int32_t>(rank);
  return write_shard_table(
      head, {even_range(0, kLengths[0], r, kRanks), even_range(1, kLengths[1], r, kRanks)}, has);
}

Bytes part(uint64_t rank) {
  CommitHead head;
  head.rank = rank;
  head.keys = kLengths.size();
  return write_commit_table(head, std::vector<CommitPart>(kLengths.size()));
}

void must_be_within(const std::vector<ShardMove>& moves) {
  for (const ShardMove& move : moves) {
    HVD_PROMISE(move.range.key < kLengths.size() && move.range.begin >= 0 &&
                move.range.begin < move.range.end);
    HVD_PROMISE(move.range.end <= kLengths[move.range.key]);
    HVD_PROMISE(move.source >= 0 && move.source < static_cast<int32_t>(kRanks) && !move.receivers.empty());
  }
}

/// Rank 0's blocks of parity, among three.
Bytes parity() {
  std::vector<std::vector<ShardRange>> members;
  for (int32_t rank = 0; rank < static_cast<int32_t>(kRanks); ++rank)
    members.push_back({even_range(0, kLengths[0], rank, kRanks), even_range(1, kLengths[1], rank, kRanks)});
  return write_parity_table({parity_block(std::move(members), 0, kElementBytes)});
}

void repair(std::span<const uint8_t> all, const Bytes& mine) {
  std::vector<std::vector<ParityBlock>> blocks;
  if (!read_parity_tables(all, kRanks, 0, mine, kLengths, kElementBytes, &blocks)) return;
  const std::vector<std::vector<ShardRange>> has = {{{0, 0, 40}, {1, 0, 7}}, {{0, 60, 100}}, {}};
  const ParityPlan plan = plan_repairs(has, blocks, {{0, 40, 60}}, kElementBytes);
  for (const ParityRepair& repair : plan.repairs) {
    HVD_PROMISE(repair.range.begin >= 40 && repair.range.begin < repair.range.end && repair.range.end <= 60);
    const ParityBlock& block = blocks[static_cast<size_t>(repair.holder)][repair.block];
    HVD_PROMISE(repair.at + repair.bytes <= block.chunk && repair.skip < kLine);
    HVD_PROMISE(repair.skip + static_cast<uint64_t>(repair.range.elements()) * 8 <= repair.bytes);
    for (const ParityInput& input : repair.inputs) {
      HVD_PROMISE(within({{input.range}}, kLengths) && input.range.begin < input.range.end);
      HVD_PROMISE(input.offset +
                      static_cast<uint64_t>(input.range.elements()) * kElementBytes[input.range.key] <=
                  repair.bytes);
    }
  }
}

const std::vector<std::vector<ShardRange>> kHas = {{{0, 0, 40}, {1, 0, 7}}, {{0, 40, 100}}, {}};

/// Of rank 1 or 0.
Bytes parcels(size_t rank, uint64_t at) {
  PlacedParcel parcel;
  parcel.memory.process = 1;
  parcel.memory.size = 512;
  for (const ShardRange& range : kHas[rank]) parcel.segments.push_back({range, at, 0, {}});
  return write_parcel_table({parcel});
}

void read_parcels(std::span<const uint8_t> all, const Bytes& mine) {
  std::vector<std::vector<PlacedParcel>> placed;
  if (!read_parcel_tables(all, 0, mine, kHas, kElementBytes, &placed)) return;
  for (const auto& of_rank : placed) {
    for (const PlacedParcel& parcel : of_rank) {
      for (const PlacedSegment& segment : parcel.segments) {
        HVD_PROMISE(within({{segment.range}}, kLengths));
        HVD_PROMISE(parcel.memory.process == 0 ||
                    (segment.at <= parcel.memory.size && segment.bytes <= parcel.memory.size - segment.at));
      }
    }
  }
}

}  // namespace

void one_input(std::span<const uint8_t> data) {
  Decisions d(data);
  const uint8_t kind = d.byte();
  const bool commit = kind % 2 != 0;
  if (kind == 3) {
    const Bytes mine = parcels(0, 0);
    Bytes all = mine;
    const auto rest = d.all();
    all.insert(all.end(), rest.begin(), rest.end());
    return read_parcels(all, mine);
  }
  if (kind >= 2) {
    const Bytes mine = parity();
    Bytes all = mine;
    const auto rest = d.all();
    all.insert(all.end(), rest.begin(), rest.end());
    return repair(all, mine);
  }
  const Bytes mine = commit ? part(0) : table(0, {{0, 0, 100}});
  Bytes all = mine;
  const auto rest = d.all();
  all.insert(all.end(), rest.begin(), rest.end());
  if (commit) {
    CommitTables tables;
    if (!read_commit_tables(all, kRanks, 0, mine, &tables).ok() || tables.odd) return;
    for (uint32_t key = 0; key < kLengths.size(); ++key) {
      std::vector<ShardRange> of_key;
      for (size_t rank = 0; rank < kRanks; ++rank)
        of_key.push_back({key, tables.parts[rank][key].begin, tables.parts[rank][key].end});
      misfit(kLengths[key], of_key);
    }
    return;
  }
  ShardTables tables;
  if (!read_shard_tables(all, kRanks, kLengths.size(), mine, &tables)) return;
  for (uint32_t key = 0; key < kLengths.size(); ++key) {
    std::vector<ShardRange> of_key;
    for (const auto& own : tables.own) of_key.push_back(own[key]);
    if (!misfit(kLengths[key], of_key).empty()) return;
  }
  if (!within(tables.has, kLengths)) return;
  must_be_within(plan_shards(tables.has, tables.own, kElementBytes).moves);
  const auto takes = plan_handover(tables.has, tables.has, {false, true, false}, kElementBytes, kHolders);
  HVD_PROMISE(within(takes, kLengths));
  must_be_within(plan_shards(tables.has, takes, kElementBytes).moves);
}

std::vector<Bytes> seeds() {
  const auto joined = [](uint8_t kind, std::initializer_list<Bytes> parts) {
    Bytes all = {kind};
    for (const Bytes& one : parts) all.insert(all.end(), one.begin(), one.end());
    return all;
  };
  return {joined(3, {parcels(1, 32), write_parcel_table({})}),
          joined(3, {parcels(1, UINT64_MAX), write_parcel_table({})}),
          joined(2, {parity(), parity()}),
          joined(2, {write_parity_table({}), parity()}),
          joined(0, {table(1, {{1, 0, 7}}), table(2, {})}),
          joined(0, {table(1, {{0, 40, 90}, {0, 50, 60}}), table(2, {})}),
          joined(0, {table(1, {{0, INT64_MIN, INT64_MAX}}), table(2, {})}),
          joined(1, {part(1), part(2)})};
}

}  // namespace hvd::fuzz
