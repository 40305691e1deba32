// Every collective of a generation, against values computed here, as one of its ranks does it.
#pragma once

#include <string>

#include "backend/backend.h"

namespace hvd::backend::test {

struct Place {
  int rank = 0, size = 1;
};

/// All ranks of the generation call it. "ok", or what was wrong. sequence: of the last op before.
std::string check(Instance& instance, const Place& place, uint64_t* sequence);

}  // namespace hvd::backend::test
