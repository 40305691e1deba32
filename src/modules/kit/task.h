// A collective that was submitted, checked, with copies of what is borrowed for submit alone.
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
  std::vector<hvd_backend_part>
      parts;  // broadcast and allreduce: at least one; of host memory just one, the op's own
};

/// memory: the one that the module serves. Throws Failure: HVD_INVALID or HVD_UNSUPPORTED with what is wrong.
Task checked(const hvd_backend_op& given, hvd_memory memory, int rank, int size);
inline Task checked(const hvd_backend_op& given, int rank, int size) {
  return checked(given, HVD_MEMORY_HOST, rank, size);
}

}  // namespace hvdkit
