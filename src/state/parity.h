// Parity of shards instead of whole copies: who is in which group, what each member keeps, and how a lost
// range is made again. Pure functions of what all ranks know alike.
//
// Each member of a group of s keeps one block. Its own stripe (all of its bytes, in one row) is cut into s -
// 1 chunks, and the block of member p is the sum (exclusive or) of one chunk of each of the others: RAID 5
// over the memory of a group, as in W. Gropp, R. Ross, N. Miller, "Providing efficient I/O redundancy in MPI
// environments", EuroPVM/MPI 2004, and A. Moody et al., "Design, modeling, and evaluation of a scalable
// multi-level checkpointing system", SC 2010 (SCR's XOR scheme). So one member may be lost, and all take the
// same part in making it again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/digest.h"
#include "state/shard_plan.h"

namespace hvd::state {

/// The block of one member, and of what it is the sum.
struct ParityBlock {
  uint64_t slot = 0;   // whose it is, among the members
  uint64_t chunk = 0;  // its bytes
  /// By slot: what lies in the stripe, in its order and each from a line on; the same keys for each member.
  std::vector<std::vector<ShardRange>> members;
};

/// Groups of `parity` + 1 ranks, larger ones where that does not come out even (none has more than 2 x
/// `parity` + 1), a single one if there are fewer ranks: so a block is at most 1 / `parity` of a stripe. The
/// ranks of one host are in as many groups as there are.
std::vector<std::vector<int32_t>> parity_groups(const std::vector<std::string>& hosts, int32_t parity);

/// `members` as in the block. `element_bytes` by key.
ParityBlock parity_block(std::vector<std::vector<ShardRange>> members, uint64_t slot,
                         const std::vector<uint64_t>& element_bytes);
uint64_t stripe_bytes(const std::vector<ShardRange>& stripe, const std::vector<uint64_t>& element_bytes);

/// Which of the chunks of `member` is in the block of `slot`, another one.
constexpr uint64_t chunk_of(uint64_t member, uint64_t slot) { return slot < member ? slot : slot - 1; }

/// Equal for blocks of the same slot, members and ranges.
Digest identity(const ParityBlock& block);

/// Bytes that are added to a block, from a rank that has them.
struct ParityInput {
  ShardRange range;
  int32_t source = 0;   // may be the holder itself
  uint64_t offset = 0;  // of its first byte, from the repair's `at` on
  bool operator==(const ParityInput&) const = default;
};

/// A lost range that the holder of a block makes again: what is in the block from `at` on, plus all inputs.
struct ParityRepair {
  int32_t holder = 0;
  size_t block = 0;            // of the holder's
  uint64_t at = 0, bytes = 0;  // within the block, whole lines
  uint64_t skip = 0;           // of these bytes before the range's first one
  ShardRange range;
  std::vector<ParityInput> inputs;
};

struct ParityPlan {
  std::vector<ParityRepair> repairs;
  std::vector<ShardRange> left;  // what nobody can make again
};

/// `has` and `blocks` by rank.
ParityPlan plan_repairs(const std::vector<std::vector<ShardRange>>& has,
                        const std::vector<std::vector<ParityBlock>>& blocks,
                        const std::vector<ShardRange>& lost, const std::vector<uint64_t>& element_bytes);

}  // namespace hvd::state
