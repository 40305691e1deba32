// The members of a generation.
#pragma once

#include <cstdint>
#include <vector>

#include "base/member.h"

namespace hvd {

struct Roster {
  uint64_t generation = 0;
  std::vector<Member> members;  // by rank
};

}  // namespace hvd
