// Who holds which range of a sharded vector, and what has to move where: pure functions of what the ranks
// told each other, so that every rank comes to the same plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hvd::state {

/// Elements [begin, end) of one sharded key. Keys are numbered in the order of their names.
struct ShardRange {
  uint32_t key = 0;
  int64_t begin = 0, end = 0;
  int64_t elements() const { return end - begin; }
  bool operator==(const ShardRange&) const = default;
};

/// Ranges lie in memory each from a line on: what the digest's streaming copy wants its target aligned to.
inline constexpr uint64_t kLine = 64;
constexpr uint64_t whole_lines(uint64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

/// This rank's part of an even split: the first `elements` % `size` ranks have one more.
ShardRange even_range(uint32_t key, int64_t elements, int32_t rank, int32_t size);

/// For each rank the `copies` others that hold copies of its shards, fewer if there are no more ranks. The
/// first ones are on other hosts, each on a host of its own, wherever there are any; each rank holds about as
/// much as the others.
std::vector<std::vector<int32_t>> place_copies(const std::vector<std::string>& hosts, int32_t copies);

/// What is wrong with the ranges of one key, by rank: "" if they are each within 0 .. elements, and all of
/// them together the whole vector, each element once.
std::string misfit(int64_t elements, const std::vector<ShardRange>& ranges);

/// A range that goes from one rank to those that want it and have it not. It lies within one range that the
/// source has, and within one that each receiver wants.
struct ShardMove {
  ShardRange range;
  int32_t source = 0;
  std::vector<int32_t> receivers;  // ascending
  bool operator==(const ShardMove&) const = default;
};

struct ShardPlan {
  std::vector<ShardMove> moves;  // by key and element
  std::vector<ShardRange> lost;  // wanted, and had by nobody
};

/// `has` and `wants` by rank; what one rank has may overlap, what it wants may not. `element_bytes` by key.
/// Of several that have a range the one with the least to send so far sends it.
ShardPlan plan_shards(const std::vector<std::vector<ShardRange>>& has,
                      const std::vector<std::vector<ShardRange>>& wants,
                      const std::vector<uint64_t>& element_bytes);

/// Ranges for the ranks that stay to take, by rank, so that each range that one that leaves holds is held by
/// so many that stay (`holders`, by key, at least 1) or by all of them: to be wanted besides what they have.
/// `had`: what the ranks held before it was found that some of it is wrong; that counts as held by one that
/// leaves. Empty if all leave.
std::vector<std::vector<ShardRange>> plan_handover(const std::vector<std::vector<ShardRange>>& has,
                                                   const std::vector<std::vector<ShardRange>>& had,
                                                   const std::vector<bool>& leaves,
                                                   const std::vector<uint64_t>& element_bytes,
                                                   const std::vector<int32_t>& holders);

}  // namespace hvd::state
