// Values that are exact in every dtype, for the tests of the collectives.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "hvd/hvd.h"

namespace hvd::backend::test {

// float16 and bfloat16 of small integers: exact, and simple enough to be right.
inline uint16_t to_bfloat(float value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16); }
inline uint16_t to_half(float value) {
  if (value == 0) return 0;
  int exponent = 0;
  const float fraction = std::frexp(std::fabs(value), &exponent);  // 0.5 <= fraction < 1
  const auto mantissa = static_cast<uint16_t>((fraction * 2 - 1) * 1024);
  return static_cast<uint16_t>((value < 0 ? 0x8000 : 0) | (exponent - 1 + 15) << 10 | mantissa);
}

inline void store(hvd_dtype dtype, uint8_t* at, double value) {
  const auto put = [&](auto v) { std::memcpy(at, &v, sizeof(v)); };
  switch (dtype) {
    case HVD_DTYPE_UINT8: return put(static_cast<uint8_t>(value));
    case HVD_DTYPE_INT8: return put(static_cast<int8_t>(value));
    case HVD_DTYPE_UINT16: return put(static_cast<uint16_t>(value));
    case HVD_DTYPE_INT16: return put(static_cast<int16_t>(value));
    case HVD_DTYPE_UINT32: return put(static_cast<uint32_t>(value));
    case HVD_DTYPE_INT32: return put(static_cast<int32_t>(value));
    case HVD_DTYPE_UINT64: return put(static_cast<uint64_t>(value));
    case HVD_DTYPE_INT64: return put(static_cast<int64_t>(value));
    case HVD_DTYPE_FLOAT16: return put(to_half(static_cast<float>(value)));
    case HVD_DTYPE_BFLOAT16: return put(to_bfloat(static_cast<float>(value)));
    case HVD_DTYPE_FLOAT32: return put(static_cast<float>(value));
    case HVD_DTYPE_FLOAT64: return put(value);
    default: return put(static_cast<uint8_t>(value != 0));
  }
}

inline bool is_signed(hvd_dtype dtype) {
  return dtype != HVD_DTYPE_UINT8 && dtype != HVD_DTYPE_UINT16 && dtype != HVD_DTYPE_UINT32 &&
         dtype != HVD_DTYPE_UINT64 && dtype != HVD_DTYPE_BOOL;
}

// Small, so that sums and products of five ranks are exact in every dtype.
inline double value_at(hvd_dtype dtype, int rank, size_t i) {
  if (dtype == HVD_DTYPE_BOOL) return static_cast<double>((i + static_cast<size_t>(rank)) % 3 == 0);
  const int sign = is_signed(dtype) && i % 2 == 1 ? -1 : 1;
  return sign * static_cast<double>(1 + (i + static_cast<size_t>(rank)) % 2);
}

inline double expected_at(hvd_dtype dtype, hvd_reduction reduction, const std::vector<int>& ranks, size_t i) {
  double result = value_at(dtype, ranks[0], i);
  for (size_t r = 1; r < ranks.size(); ++r) {
    const double v = value_at(dtype, ranks[r], i);
    const bool flag = dtype == HVD_DTYPE_BOOL;
    switch (reduction) {
      case HVD_REDUCTION_MIN: result = std::min(result, v); break;
      case HVD_REDUCTION_MAX: result = std::max(result, v); break;
      case HVD_REDUCTION_PRODUCT: result = flag ? std::min(result, v) : result * v; break;
      default: result = flag ? std::max(result, v) : result + v; break;
    }
  }
  if (reduction != HVD_REDUCTION_AVERAGE) return result;
  result /= static_cast<double>(ranks.size());
  const bool whole = dtype < HVD_DTYPE_FLOAT16;
  return whole ? std::trunc(result) : result;
}

}  // namespace hvd::backend::test
