// Reads the tables of shards. Lengths and ranges are checked against what is there before anything follows
// from them.
#include "state/shard_tables.h"

#include <fmt/format.h>

#include <algorithm>

#include "state/shard_wire.h"

namespace hvd::state {
namespace {

struct Row {
  uint64_t key = 0;
  int64_t begin = 0, end = 0;
};
struct BlockHead {
  uint64_t slot = 0, members = 0, keys = 0;
};
struct SegmentPlace {
  uint64_t at = 0;
  Digest digest;
};
constexpr uint64_t kLongest = uint64_t{1} << 60;  // stripe: nothing that is added to it overflows
static_assert(sizeof(ShardHead) == 48 && sizeof(Row) == 24, "no padding on the wire");
static_assert(sizeof(ParcelPlace) == 88 && sizeof(CommitHead) == 136 && sizeof(CommitPart) == 32 &&
                  sizeof(SegmentPlace) == 24,
              "no padding on the wire");

bool read_rows(std::span<const uint8_t>* bytes, uint64_t count, size_t keys, std::vector<ShardRange>* rows) {
  if (count > bytes->size() / sizeof(Row)) return false;
  for (uint64_t i = 0; i < count; ++i) {
    Row row;
    if (!take(bytes, &row) || row.key >= keys) return false;
    rows->push_back({static_cast<uint32_t>(row.key), row.begin, row.end});
  }
  return true;
}

void put_rows(const std::vector<ShardRange>& ranges, std::vector<uint8_t>* bytes) {
  for (const ShardRange& range : ranges) put(bytes, Row{range.key, range.begin, range.end});
}

bool same(std::span<const uint8_t> a, std::span<const uint8_t> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

}  // namespace

std::vector<uint8_t> write_shard_table(ShardHead head, const std::vector<ShardRange>& own,
                                       const std::vector<ShardRange>& has,
                                       const std::vector<Digest>& blocks) {
  head.keys = own.size();
  head.has = has.size();
  head.blocks = blocks.size();
  std::vector<uint8_t> bytes;
  put(&bytes, head);
  put_rows(own, &bytes);
  put_rows(has, &bytes);
  for (const Digest& block : blocks) put(&bytes, block);
  return bytes;
}

bool read_shard_tables(std::span<const uint8_t> bytes, size_t size, size_t keys,
                       std::span<const uint8_t> mine, ShardTables* ret_tables) {
  ShardHead me;
  if (std::span<const uint8_t> rest = mine; !take(&rest, &me) || me.rank >= size) return false;
  for (size_t rank = 0; rank < size; ++rank) {
    const std::span<const uint8_t> from = bytes;
    ShardHead head;
    if (!take(&bytes, &head) || head.rank != rank || head.keys != keys) return false;
    ret_tables->heads.push_back(head);
    std::vector<ShardRange>& own = ret_tables->own.emplace_back();
    if (!read_rows(&bytes, head.keys, keys, &own)) return false;
    for (size_t key = 0; key < own.size(); ++key) {
      if (own[key].key != key) return false;
    }
    if (!read_rows(&bytes, head.has, keys, &ret_tables->has.emplace_back())) return false;
    if (head.blocks > bytes.size() / sizeof(Digest)) return false;
    for (Digest& block : ret_tables->blocks.emplace_back(head.blocks)) take(&bytes, &block);
    if (rank == me.rank && !same(from.first(from.size() - bytes.size()), mine)) return false;
  }
  return bytes.empty();
}

std::vector<uint8_t> write_parity_table(const std::vector<ParityBlock>& blocks) {
  std::vector<uint8_t> bytes;
  put(&bytes, uint64_t{blocks.size()});
  for (const ParityBlock& block : blocks) {
    put(&bytes, BlockHead{block.slot, block.members.size(), block.members[0].size()});
    for (const auto& stripe : block.members) put_rows(stripe, &bytes);
  }
  return bytes;
}

bool read_parity_tables(std::span<const uint8_t> bytes, size_t size, size_t rank,
                        std::span<const uint8_t> mine, const std::vector<int64_t>& lengths,
                        const std::vector<uint64_t>& element_bytes,
                        std::vector<std::vector<ParityBlock>>* ret_blocks) {
  for (size_t r = 0; r < size; ++r) {
    const std::span<const uint8_t> from = bytes;
    std::vector<ParityBlock>& blocks = ret_blocks->emplace_back();
    uint64_t count = 0;
    if (!take(&bytes, &count) || count > bytes.size() / sizeof(BlockHead)) return false;
    for (uint64_t i = 0; i < count; ++i) {
      BlockHead head;
      if (!take(&bytes, &head) || head.keys == 0 || head.members < 2 || head.slot >= head.members)
        return false;
      if (head.members > bytes.size() / sizeof(Row)) return false;
      std::vector<std::vector<ShardRange>> members(head.members);
      for (auto& stripe : members) {
        if (!read_rows(&bytes, head.keys, lengths.size(), &stripe)) return false;
      }
      if (!within(members, lengths)) return false;
      for (const auto& stripe : members) {
        uint64_t sum = 0;
        for (const ShardRange& range : stripe) {
          const uint64_t length =
              whole_lines(static_cast<uint64_t>(range.elements()) * element_bytes[range.key]);
          if (__builtin_add_overflow(sum, length, &sum) || sum > kLongest) return false;
        }
      }
      blocks.push_back(parity_block(std::move(members), head.slot, element_bytes));
    }
    if (r == rank && !same(from.first(from.size() - bytes.size()), mine)) return false;
  }
  return bytes.empty();
}

bool within(const std::vector<std::vector<ShardRange>>& ranges, const std::vector<int64_t>& elements) {
  for (const std::vector<ShardRange>& of_rank : ranges) {
    for (const ShardRange& range : of_rank) {
      if (range.begin < 0 || range.end < range.begin || range.end > elements[range.key]) return false;
    }
  }
  return true;
}

std::vector<uint8_t> write_commit_table(const CommitHead& head, const std::vector<CommitPart>& parts) {
  std::vector<uint8_t> bytes;
  put(&bytes, head);
  for (const CommitPart& part : parts) put(&bytes, part);
  return bytes;
}

Status read_commit_tables(std::span<const uint8_t> bytes, size_t size, size_t rank,
                          std::span<const uint8_t> mine, CommitTables* ret_tables) {
  bool echoed = false;
  while (!bytes.empty()) {
    const std::span<const uint8_t> from = bytes;
    CommitHead head;
    if (!take(&bytes, &head) || head.keys > bytes.size() / sizeof(CommitPart))
      return unreadable("a commit of shards");
    std::vector<CommitPart>& parts = ret_tables->parts.emplace_back(head.keys);
    for (CommitPart& part : parts) {
      if (!take(&bytes, &part)) return unreadable("a commit of shards");
    }
    ret_tables->heads.push_back(head);
    echoed = echoed ||
             (ret_tables->heads.size() == rank + 1 && same(from.first(from.size() - bytes.size()), mine));
  }
  for (size_t r = 0; r < size; ++r) {
    if (r < ret_tables->heads.size() && ret_tables->heads[r].rank == r) continue;
    Status status(HVD_MISMATCH, fmt::format("rank {} takes no part in a commit of shards, since it has "
                                            "joined: expected every rank to commit",
                                            r));
    return status.at_rank(static_cast<int32_t>(r));
  }
  if (!echoed) return unreadable("a commit of shards");
  for (const CommitHead& head : ret_tables->heads) {
    if (head.failure == 0) continue;
    // A code that does not exist is none of its failures' (0 in 32 bits would be success).
    const auto code = head.failure <= HVD_INTERNAL ? static_cast<hvd_status>(head.failure) : HVD_INTERNAL;
    Status status(code,
                  fmt::format("state: rank {} could not commit its part, so that no rank did", head.rank));
    return status.at_rank(static_cast<int32_t>(head.rank));
  }
  const CommitHead& first = ret_tables->heads[0];
  for (const CommitHead& head : ret_tables->heads) {
    if (head.revision != first.revision) {
      Status status(HVD_MISMATCH, fmt::format("rank 0 commits revision {} and rank {} revision {}: expected "
                                              "the same commit on every rank",
                                              first.revision, head.rank, head.revision));
      return status.at_rank(static_cast<int32_t>(head.rank));
    }
    if (head.keys != first.keys || head.specs != first.specs) {
      ret_tables->odd = head.rank;
      break;
    }
  }
  return {};
}

std::vector<uint8_t> write_parcel_table(const std::vector<PlacedParcel>& parcels) {
  std::vector<uint8_t> bytes;
  put(&bytes, uint64_t{parcels.size()});
  for (const PlacedParcel& parcel : parcels) {
    put(&bytes, parcel.memory);
    put(&bytes, uint64_t{parcel.segments.size()});
    for (const PlacedSegment& segment : parcel.segments)
      put(&bytes, SegmentPlace{segment.at, segment.digest});
  }
  return bytes;
}

bool read_parcel_tables(std::span<const uint8_t> bytes, size_t rank, std::span<const uint8_t> mine,
                        const std::vector<std::vector<ShardRange>>& has,
                        const std::vector<uint64_t>& element_bytes,
                        std::vector<std::vector<PlacedParcel>>* ret_parcels) {
  for (size_t r = 0; r < has.size(); ++r) {
    const std::span<const uint8_t> from = bytes;
    std::vector<PlacedParcel>& parcels = ret_parcels->emplace_back();
    uint64_t parcel_count = 0, segment_count = 0;
    if (!take(&bytes, &parcel_count) || parcel_count > bytes.size() / sizeof(MemoryPlace)) return false;
    size_t next = 0;  // of what the rank has
    for (uint64_t i = 0; i < parcel_count; ++i) {
      PlacedParcel& parcel = parcels.emplace_back();
      if (!take(&bytes, &parcel.memory) || !take(&bytes, &segment_count)) return false;
      if (segment_count > has[r].size() - next) return false;
      for (uint64_t k = 0; k < segment_count; ++k) {
        SegmentPlace place;
        if (!take(&bytes, &place)) return false;
        const ShardRange& range = has[r][next++];
        uint64_t length = 0;
        if (__builtin_mul_overflow(static_cast<uint64_t>(range.elements()), element_bytes[range.key],
                                   &length))
          return false;
        // Nobody looks into a parcel that can't be mapped, so its segments may be anywhere.
        if (parcel.memory.process != 0 &&
            (length > parcel.memory.size || place.at > parcel.memory.size - length)) {
          return false;
        }
        parcel.segments.push_back({range, place.at, length, place.digest});
      }
    }
    if (next != has[r].size()) return false;
    if (r == rank && !same(from.first(from.size() - bytes.size()), mine)) return false;
  }
  return bytes.empty();
}

}  // namespace hvd::state
