// The members of a generation.
#pragma once

#include <cstdint>
#include <vector>

#include "base/member.h"

namespace hvd {

/// Commits of one generation, and saves before the first sync: at one a millisecond it takes decades to come
/// to more. Whoever says more lies.
inline constexpr uint64_t kMostCommits = uint64_t{1} << 40;

struct Roster {
  uint64_t generation = 0;
  std::vector<Member> members;  // by rank
};

}  // namespace hvd
