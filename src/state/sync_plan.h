// Who sends what to whom in a sync: a pure function of what the ranks told each other, so that every rank
// comes to the same plan.
#pragma once

#include <cstdint>
#include <vector>

#include "base/digest.h"
#include "state/state.h"

namespace hvd::state {

/// One variable as one rank has it.
struct Version {
  Digest digest;
  uint64_t size = 0;  // bytes
  bool operator==(const Version&) const = default;
};

/// Variables that travel together from one rank to all that lack them.
struct Transfer {
  int32_t source = 0;
  std::vector<int32_t> receivers;   // ascending, without the source
  std::vector<uint32_t> variables;  // ascending, in the order in which they are packed
  uint64_t bytes = 0;               // sum of their sizes, not 0
};

/// Variables below this size are packed with others that go to the same ranks, to at most kPackLimit.
inline constexpr uint64_t kPackBelow = 64 << 10;
inline constexpr uint64_t kPackLimit = 4 << 20;

/// Rank whose state everybody takes: among those that have state the highest revision, then the lowest
/// rank; 0 if nobody has state (contract 5).
int32_t choose_root(const std::vector<Summary>& summaries);

/// Whether all have state, and the same.
bool all_agree(const std::vector<Summary>& summaries);

/// `versions[rank][variable]`: every rank lists the same variables. A rank lacks a variable where its version
/// is not the root's; it gets it from a rank that has it, the one with the least to send so far. Variables
/// whose version at the root is of size 0 need no transfer (contract 6).
std::vector<Transfer> plan_transfers(const std::vector<std::vector<Version>>& versions, int32_t root);

}  // namespace hvd::state
