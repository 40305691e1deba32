// What is about to be taken of ranks' commits, and is held against the digests of the commit first.
#pragma once

#include <cstdint>
#include <vector>

#include "base/digest.h"
#include "state/shard_plan.h"

namespace hvd::state {

struct ShardCheck {
  /// Of the first segment of the source's that has the range; its bytes' digest, if the sources tell them.
  struct Use {
    ShardRange range;
    int32_t source = 0;
    Digest digest;
  };
  /// A block of parity, and what is made again of it first.
  struct Sum {
    int32_t holder = 0;
    size_t block = 0;  // of the holder's
    ShardRange range;
  };
  std::vector<Use> uses;
  std::vector<Sum> sums;
  std::vector<ShardRange> kept;  // what this rank makes of what it has itself, as far as it has that
  bool own = true;               // also a rank's own parcel, not copies alone
  bool tells = false;            // sources tell what receivers are to get
};

inline std::vector<ShardCheck::Use> uses_of(const std::vector<ShardMove>& moves) {
  std::vector<ShardCheck::Use> uses;
  for (const ShardMove& move : moves) uses.push_back({move.range, move.source, {}});
  return uses;
}

}  // namespace hvd::state
