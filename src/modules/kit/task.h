// A collective of host memory that was submitted, checked, with copies of what is borrowed for submit alone.
#pragma once

#include <vector>

#include "hvd/backend.h"

namespace hvdkit {

struct Task {
  hvd_backend_op op{};
  std::vector<int> ranks;
  int me = 0;
  int root = 0;  // index into ranks
  std::vector<size_t> counts;
};

/// Throws Failure: HVD_INVALID or HVD_UNSUPPORTED with what is wrong.
Task checked(const hvd_backend_op& given, int rank, int size);

}  // namespace hvdkit
