// What ranks tell each other of their shards, read as from ranks that may lie: what is read fits what is
// registered here.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/status.h"
#include "state/memory.h"
#include "state/parity.h"
#include "state/reach.h"
#include "state/shard_plan.h"

namespace hvd::state {

/// Of a sync: what each rank says first. Its ranges (one a key, in order), what it has, and which blocks of
/// parity follow.
struct ShardHead {
  static constexpr uint64_t kFailed = 1, kCanReload = 2;
  uint64_t rank = 0, flags = 0, revision = 0, keys = 0, has = 0, blocks = 0;
};
struct ShardTables {
  std::vector<ShardHead> heads;  // by rank
  std::vector<std::vector<ShardRange>> own, has;
  std::vector<std::vector<Digest>> blocks;  // identities
};

/// This rank's part.
std::vector<uint8_t> write_shard_table(ShardHead head, const std::vector<ShardRange>& own,
                                       const std::vector<ShardRange>& has,
                                       const std::vector<Digest>& blocks = {});
/// All ranks' parts. False unless each rank has a range of its own for each of so many keys, and this rank's
/// part is what it said (rank 0 may have handed round another). Where the ranges lie, misfit and within
/// check.
bool read_shard_tables(std::span<const uint8_t> bytes, size_t size, size_t keys,
                       std::span<const uint8_t> mine, ShardTables* ret_tables);
/// What each rank's blocks of parity are the sums of, once that is asked for. False unless all ranges lie
/// within the keys, and this rank's part is what it said. `rank`: this one; `lengths` and `element_bytes` by
/// key.
std::vector<uint8_t> write_parity_table(const std::vector<ParityBlock>& blocks);
bool read_parity_tables(std::span<const uint8_t> bytes, size_t size, size_t rank,
                        std::span<const uint8_t> mine, const std::vector<int64_t>& lengths,
                        const std::vector<uint64_t>& element_bytes,
                        std::vector<std::vector<ParityBlock>>* ret_blocks);
/// Whether all ranges lie within their keys, whose lengths are given.
bool within(const std::vector<std::vector<ShardRange>>& ranges, const std::vector<int64_t>& elements);

/// Where a rank's parcel can be read, and where it can be mapped. Plain words: it travels between ranks.
struct ParcelPlace {
  Reach reach;
  uint64_t address = 0;
  MemoryPlace memory;
};

/// Of a commit: range and digest of each key follow.
struct CommitHead {
  uint64_t rank = 0, failure = 0, revision = 0, keys = 0;
  Digest specs;
  ParcelPlace place;
};
struct CommitPart {
  int64_t begin = 0, end = 0;
  Digest digest;
};
struct CommitTables {
  std::vector<CommitHead> heads;  // by rank
  std::vector<std::vector<CommitPart>> parts;
  std::optional<size_t> odd;  // a rank whose shards are registered otherwise than those of rank 0
};

std::vector<uint8_t> write_commit_table(const CommitHead& head, const std::vector<CommitPart>& parts);
/// Everyone reads the same, and comes to the same end. HVD_OK: either `odd` is set, or each rank has a part
/// for each key that `mine` has, of the same commit, and this rank's is what it said.
Status read_commit_tables(std::span<const uint8_t> bytes, size_t size, size_t rank,
                          std::span<const uint8_t> mine, CommitTables* ret_tables);

/// Of a sync on one machine: a parcel that others may map, and what lies in it. Segments are of the ranges
/// that the rank has, in the same order.
struct PlacedSegment {
  ShardRange range;
  size_t at = 0, bytes = 0;
  Digest digest;
};
struct PlacedParcel {
  MemoryPlace memory;
  std::vector<PlacedSegment> segments;
};

std::vector<uint8_t> write_parcel_table(const std::vector<PlacedParcel>& parcels);
/// All ranks' parts. `has`: by rank, within the keys. False unless each segment lies within its parcel, and
/// this rank's part is what it said.
bool read_parcel_tables(std::span<const uint8_t> bytes, size_t rank, std::span<const uint8_t> mine,
                        const std::vector<std::vector<ShardRange>>& has,
                        const std::vector<uint64_t>& element_bytes,
                        std::vector<std::vector<PlacedParcel>>* ret_parcels);

}  // namespace hvd::state
