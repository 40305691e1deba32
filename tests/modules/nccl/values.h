// What ranks bring to a collective and what must come out, for the tests of module nccl.
#pragma once

#include <numeric>

#include "modules/cluster.h"
#include "modules/host/values.h"
#include "numeric/dtype.h"

namespace hvd::backend::test {

inline void fill(hvd_dtype dtype, uint8_t* at, int rank, size_t first, size_t count) {
  for (size_t i = 0; i < count; ++i)
    store(dtype, at + i * dtype_size(dtype), value_at(dtype, rank, first + i));
}

inline std::vector<int> range(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

inline std::vector<uint8_t> expected(hvd_dtype dtype, hvd_reduction reduction, const std::vector<int>& ranks,
                                     size_t first, size_t count) {
  std::vector<uint8_t> result(count * dtype_size(dtype));
  for (size_t i = 0; i < count; ++i) {
    store(dtype, result.data() + i * dtype_size(dtype), expected_at(dtype, reduction, ranks, first + i));
  }
  return result;
}

inline bool same(const uint8_t* data, const std::vector<uint8_t>& wanted) {
  return wanted.empty() || std::memcmp(data, wanted.data(), wanted.size()) == 0;
}

inline void expect_ok(const Status& status) {
  EXPECT_TRUE(status.ok()) << status_name(status.code) << ": " << status.message;
}

}  // namespace hvd::backend::test
