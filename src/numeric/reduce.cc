// Compiled with -O3: these loops are written for the compiler's vectoriser. On x86 they are compiled a second
// time, for AVX2 (flatten: with all that they call), and chosen at run time: the results are the same bits.
#include "numeric/reduce.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "numeric/dtype.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace hvd {
namespace {

// Integers wrap around: the arithmetic is done in an unsigned type of at least int's width.
template <class T>
using Wide = std::conditional_t<(sizeof(T) < 4), uint32_t, std::make_unsigned_t<T>>;

struct Sum {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wide<T>>(a) + static_cast<Wide<T>>(b));
    } else {
      return a + b;
    }
  }
};
struct Product {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b));
    } else {
      return a * b;
    }
  }
};
struct Min {
  template <class T>
  static T apply(T a, T b) {
    return b < a ? b : a;
  }
};
struct Max {
  template <class T>
  static T apply(T a, T b) {
    return a < b ? b : a;
  }
};

template <class Op, class T>
void loop(T* out, const T* left, const T* right, size_t count) {
  // out may be left or right itself, which is no dependence between iterations.
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) out[i] = Op::apply(left[i], right[i]);
}

template <class T>
void reduce_as(hvd_reduction reduction, void* out, const void* left, const void* right, size_t count) {
  auto* o = static_cast<T*>(out);
  const auto* a = static_cast<const T*>(left);
  const auto* b = static_cast<const T*>(right);
  switch (reduction) {
    case HVD_REDUCTION_MIN: return loop<Min>(o, a, b, count);
    case HVD_REDUCTION_MAX: return loop<Max>(o, a, b, count);
    case HVD_REDUCTION_PRODUCT: return loop<Product>(o, a, b, count);
    default: return loop<Sum>(o, a, b, count);  // HVD_REDUCTION_SUM, HVD_REDUCTION_AVERAGE
  }
}

void reduce_bool(hvd_reduction reduction, uint8_t* out, const uint8_t* left, const uint8_t* right,
                 size_t count) {
  if (reduction == HVD_REDUCTION_MIN || reduction == HVD_REDUCTION_PRODUCT) {
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i) out[i] = static_cast<uint8_t>((left[i] != 0) & (right[i] != 0));
  } else {
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i) out[i] = static_cast<uint8_t>((left[i] | right[i]) != 0);
  }
}

template <class T>
void divide_as(void* data, size_t count, int32_t divisor) {
  auto* values = static_cast<T*>(data);
  if constexpr (std::is_integral_v<T> && sizeof(T) < 4) {
    for (size_t i = 0; i < count; ++i) values[i] = static_cast<T>(static_cast<int32_t>(values[i]) / divisor);
  } else {
    const T by = static_cast<T>(divisor);
    for (size_t i = 0; i < count; ++i) values[i] /= by;
  }
}

template <class T>
void scale_as(void* data, size_t count, double factor) {
  auto* values = static_cast<T*>(data);
  if constexpr (std::is_integral_v<T>) {
    constexpr auto kLeast = static_cast<double>(std::numeric_limits<T>::min());
    constexpr auto kMost = static_cast<double>(std::numeric_limits<T>::max());
    for (size_t i = 0; i < count; ++i) {
      const double scaled = static_cast<double>(values[i]) * factor;
      // kMost of a 64-bit type is rounded up to what the type does not hold.
      values[i] = scaled >= kMost   ? std::numeric_limits<T>::max()
                  : scaled > kLeast ? static_cast<T>(scaled)
                                    : std::numeric_limits<T>::min();
    }
  } else {
    const T by = static_cast<T>(factor);
    for (size_t i = 0; i < count; ++i) values[i] *= by;
  }
}

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fffU) << 13;
  // Exponent and mantissa are in float's fields with half's bias: 2^112 sets it right, subnormals too.
  const uint32_t finite = bits_of(float_of(magnitude) * 0x1p112F);
  return float_of(sign | ((half & 0x7c00U) == 0x7c00U ? (magnitude | 0x7f800000U) : finite));
}

uint16_t float_to_half(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = bits >> 16 & 0x8000U;
  const uint32_t magnitude = bits & 0x7fffffffU;
  // Below 2^-14: adding 0.5 leaves the mantissa's rounded bits of the subnormal at the bottom.
  const uint32_t subnormal =
      bits_of(float_of(magnitude < 0x38800000U ? magnitude : 0) + 0.5F) - bits_of(0.5F);
  const uint32_t normal = (magnitude - (112U << 23) + 0xfffU + (magnitude >> 13 & 1U)) >> 13;
  const uint32_t special = magnitude > 0x7f800000U ? 0x7e00U : 0x7c00U;
  const uint32_t finite = magnitude < 0x38800000U ? subnormal : normal;
  return static_cast<uint16_t>(sign | (magnitude >= 0x47800000U ? special : finite));
}

float bfloat_to_float(uint16_t value) { return float_of(static_cast<uint32_t>(value) << 16); }

uint16_t float_to_bfloat(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
  const uint32_t nan = bits >> 16 | 0x40U;
  return static_cast<uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? nan : rounded);
}

}  // namespace

namespace {

void reduce_plain(hvd_dtype dtype, hvd_reduction reduction, void* out, const void* left, const void* right,
                  size_t count) {
  switch (dtype) {
    case HVD_DTYPE_UINT8: return reduce_as<uint8_t>(reduction, out, left, right, count);
    case HVD_DTYPE_INT8: return reduce_as<int8_t>(reduction, out, left, right, count);
    case HVD_DTYPE_UINT16: return reduce_as<uint16_t>(reduction, out, left, right, count);
    case HVD_DTYPE_INT16: return reduce_as<int16_t>(reduction, out, left, right, count);
    case HVD_DTYPE_UINT32: return reduce_as<uint32_t>(reduction, out, left, right, count);
    case HVD_DTYPE_INT32: return reduce_as<int32_t>(reduction, out, left, right, count);
    case HVD_DTYPE_UINT64: return reduce_as<uint64_t>(reduction, out, left, right, count);
    case HVD_DTYPE_INT64: return reduce_as<int64_t>(reduction, out, left, right, count);
    case HVD_DTYPE_FLOAT32: return reduce_as<float>(reduction, out, left, right, count);
    case HVD_DTYPE_FLOAT64: return reduce_as<double>(reduction, out, left, right, count);
    case HVD_DTYPE_BOOL:
      return reduce_bool(reduction, static_cast<uint8_t*>(out), static_cast<const uint8_t*>(left),
                         static_cast<const uint8_t*>(right), count);
    default: return;
  }
}

void widen_plain(hvd_dtype dtype, float* out, const uint16_t* in, size_t count) {
  if (dtype == HVD_DTYPE_FLOAT16) {
    for (size_t i = 0; i < count; ++i) out[i] = half_to_float(in[i]);
  } else {
    for (size_t i = 0; i < count; ++i) out[i] = bfloat_to_float(in[i]);
  }
}

void narrow_plain(hvd_dtype dtype, uint16_t* out, const float* in, size_t count) {
  if (dtype == HVD_DTYPE_FLOAT16) {
    for (size_t i = 0; i < count; ++i) out[i] = float_to_half(in[i]);
  } else {
    for (size_t i = 0; i < count; ++i) out[i] = float_to_bfloat(in[i]);
  }
}

#if defined(__x86_64__) && defined(__GNUC__)

__attribute__((target("avx2"), flatten)) void reduce_avx2(hvd_dtype dtype, hvd_reduction reduction, void* out,
                                                          const void* left, const void* right, size_t count) {
  reduce_plain(dtype, reduction, out, left, right, count);
}

__attribute__((target("avx2,f16c"), flatten)) void widen_avx2(hvd_dtype dtype, float* out, const uint16_t* in,
                                                              size_t count) {
  size_t i = 0;
  if (dtype == HVD_DTYPE_FLOAT16) {
    for (; i + 8 <= count; i += 8) {
      _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
    }
  }
  widen_plain(dtype, out + i, in + i, count - i);
}

__attribute__((target("avx2,f16c"), flatten)) void narrow_avx2(hvd_dtype dtype, uint16_t* out,
                                                               const float* in, size_t count) {
  size_t i = 0;
  if (dtype == HVD_DTYPE_FLOAT16) {
    for (; i + 8 <= count; i += 8) {
      _mm_storeu_si128(
          reinterpret_cast<__m128i*>(out + i),
          _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
  }
  narrow_plain(dtype, out + i, in + i, count - i);
}

// Clang's __builtin_cpu_supports does not know "f16c". That the system saves the registers follows from AVX2.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") && has_f16c();
  return has;
}

#else

constexpr bool has_avx2() { return false; }
constexpr auto* reduce_avx2 = reduce_plain;
constexpr auto* widen_avx2 = widen_plain;
constexpr auto* narrow_avx2 = narrow_plain;

#endif

}  // namespace

void reduce(hvd_dtype dtype, hvd_reduction reduction, void* out, const void* left, const void* right,
            size_t count) {
  (has_avx2() ? reduce_avx2 : reduce_plain)(dtype, reduction, out, left, right, count);
}

void divide(hvd_dtype dtype, void* data, size_t count, int32_t divisor) {
  switch (dtype) {
    case HVD_DTYPE_UINT8: return divide_as<uint8_t>(data, count, divisor);
    case HVD_DTYPE_INT8: return divide_as<int8_t>(data, count, divisor);
    case HVD_DTYPE_UINT16: return divide_as<uint16_t>(data, count, divisor);
    case HVD_DTYPE_INT16: return divide_as<int16_t>(data, count, divisor);
    case HVD_DTYPE_UINT32: return divide_as<uint32_t>(data, count, divisor);
    case HVD_DTYPE_INT32: return divide_as<int32_t>(data, count, divisor);
    case HVD_DTYPE_UINT64: return divide_as<uint64_t>(data, count, divisor);
    case HVD_DTYPE_INT64: return divide_as<int64_t>(data, count, divisor);
    case HVD_DTYPE_FLOAT32: return divide_as<float>(data, count, divisor);
    case HVD_DTYPE_FLOAT64: return divide_as<double>(data, count, divisor);
    default: return;
  }
}

void reduce_many(hvd_dtype dtype, hvd_reduction reduction, void* out, const void* const* inputs,
                 size_t input_count, size_t count, int32_t divisor, bool by_pages) {
  const size_t element = dtype_size(dtype);
  const bool narrow_float = is_narrow_float(dtype);
  // A tile of all inputs stays in the first cache. Sums are made in it: `out` may be any of the inputs.
  constexpr size_t kTile = 256;
  // Lines that other cores have written come in faster from several pages side by side, where processors
  // fetch ahead within a page.
  constexpr size_t kLanes = 4, kLeastLane = 4096;
  alignas(64) uint8_t sums[kTile * sizeof(uint64_t)];
  alignas(64) float wide[kTile];
  const hvd_dtype work = narrow_float ? HVD_DTYPE_FLOAT32 : dtype;
  const size_t lanes = by_pages && count * element >= kLanes * kLeastLane ? kLanes : 1;
  const size_t lane = (count + lanes * kTile - 1) / (lanes * kTile) * kTile;
  const auto reduce_tile = [&](size_t first, size_t n) {
    const auto part = [&](size_t input) {
      return static_cast<const uint8_t*>(inputs[input]) + first * element;
    };
    uint8_t* const to = static_cast<uint8_t*>(out) + first * element;
    if (narrow_float) {
      widen(dtype, reinterpret_cast<float*>(sums), part(0), n);
      for (size_t i = 1; i < input_count; ++i) {
        widen(dtype, wide, part(i), n);
        reduce(work, reduction, sums, sums, wide, n);
      }
    } else if (input_count > 1) {
      // The last step reads every input's tile for the last time, so that it may write to any of them.
      uint8_t* const last = reduction == HVD_REDUCTION_AVERAGE ? sums : to;
      reduce(work, reduction, input_count == 2 ? last : sums, part(0), part(1), n);
      for (size_t i = 2; i < input_count; ++i) {
        reduce(work, reduction, i + 1 == input_count ? last : sums, sums, part(i), n);
      }
      if (last == to) return;
    } else {
      std::memcpy(sums, part(0), n * element);
    }
    if (reduction == HVD_REDUCTION_AVERAGE) divide(work, sums, n, divisor);
    if (narrow_float) {
      narrow(dtype, to, reinterpret_cast<const float*>(sums), n);
    } else {
      std::memcpy(to, sums, n * element);
    }
  };
  for (size_t along = 0; along < lane; along += kTile) {
    for (size_t first = along; first < count; first += lane)
      reduce_tile(first, std::min(kTile, count - first));
  }
}

void scale(hvd_dtype dtype, void* data, size_t count, double factor) {
  switch (dtype) {
    case HVD_DTYPE_UINT8: return scale_as<uint8_t>(data, count, factor);
    case HVD_DTYPE_INT8: return scale_as<int8_t>(data, count, factor);
    case HVD_DTYPE_UINT16: return scale_as<uint16_t>(data, count, factor);
    case HVD_DTYPE_INT16: return scale_as<int16_t>(data, count, factor);
    case HVD_DTYPE_UINT32: return scale_as<uint32_t>(data, count, factor);
    case HVD_DTYPE_INT32: return scale_as<int32_t>(data, count, factor);
    case HVD_DTYPE_UINT64: return scale_as<uint64_t>(data, count, factor);
    case HVD_DTYPE_INT64: return scale_as<int64_t>(data, count, factor);
    case HVD_DTYPE_FLOAT32: return scale_as<float>(data, count, factor);
    case HVD_DTYPE_FLOAT64: return scale_as<double>(data, count, factor);
    case HVD_DTYPE_FLOAT16:
    case HVD_DTYPE_BFLOAT16: {
      auto* values = static_cast<uint16_t*>(data);
      float wide[256];
      for (size_t first = 0; first < count; first += 256) {
        const size_t n = std::min<size_t>(256, count - first);
        widen(dtype, wide, values + first, n);
        for (size_t i = 0; i < n; ++i) wide[i] *= static_cast<float>(factor);
        narrow(dtype, values + first, wide, n);
      }
      return;
    }
    default: return;
  }
}

bool is_narrow_float(hvd_dtype dtype) { return dtype == HVD_DTYPE_FLOAT16 || dtype == HVD_DTYPE_BFLOAT16; }

void widen(hvd_dtype dtype, float* out, const void* in, size_t count) {
  (has_avx2() ? widen_avx2 : widen_plain)(dtype, out, static_cast<const uint16_t*>(in), count);
}

void narrow(hvd_dtype dtype, void* out, const float* in, size_t count) {
  (has_avx2() ? narrow_avx2 : narrow_plain)(dtype, static_cast<uint16_t*>(out), in, count);
}

}  // namespace hvd
