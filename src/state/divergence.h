// Whose copy of a variable is not what it is elsewhere: a pure function of what the ranks told each other.
#pragma once

#include <cstdint>
#include <vector>

#include "state/sync_plan.h"

namespace hvd::state {

struct Divergence {
  uint32_t variable = 0;  // index in the order of keys
  /// Positions in the list of versions, ascending: those that differ from what more than half of all have;
  /// all of them if no version has more than half.
  std::vector<size_t> odd;
  bool majority = false;
};

/// `versions[i][variable]`: everybody lists the same variables. In the order of variables; none where all
/// agree.
std::vector<Divergence> find_divergence(const std::vector<std::vector<Version>>& versions);

}  // namespace hvd::state
