// Fuzzes what ranks tell each other of shards: whatever is read, what follows from it lies within the keys.
#include "fuzz.h"
#include "state/shard_tables.h"

namespace hvd::fuzz {
namespace {

using namespace state;

const std::vector<int64_t> kLengths = {100, 7};
const std::vector<uint64_t> kElementBytes = {8, 4};
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

}  // namespace

void one_input(std::span<const uint8_t> data) {
  Decisions d(data);
  const bool commit = d.coin();
  const Bytes mine = commit ? part(0) : table(0, {{0, 0, 100}});
  Bytes all = mine;
  const auto rest = d.all();
  all.insert(all.end(), rest.begin(), rest.end());
  if (commit) {
    CommitTables tables;
    if (!read_commit_tables(all, kRanks, 0, mine, &tables).ok()) return;
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
  const auto takes = plan_handover(tables.has, {false, true, false}, kElementBytes);
  HVD_PROMISE(within(takes, kLengths));
  must_be_within(plan_shards(tables.has, takes, kElementBytes).moves);
}

std::vector<Bytes> seeds() {
  const auto joined = [](uint8_t kind, std::initializer_list<Bytes> parts) {
    Bytes all = {kind};
    for (const Bytes& one : parts) all.insert(all.end(), one.begin(), one.end());
    return all;
  };
  return {joined(0, {table(1, {{1, 0, 7}}), table(2, {})}),
          joined(0, {table(1, {{0, 40, 90}, {0, 50, 60}}), table(2, {})}),
          joined(0, {table(1, {{0, INT64_MIN, INT64_MAX}}), table(2, {})}), joined(1, {part(1), part(2)})};
}

}  // namespace hvd::fuzz
