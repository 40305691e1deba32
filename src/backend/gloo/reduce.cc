// Compiled with -O3: these loops are written for the compiler's vectoriser.
#include "reduce.h"

#include <cstring>
#include <type_traits>

namespace hvdgloo {
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
    case HVD_MIN: return loop<Min>(o, a, b, count);
    case HVD_MAX: return loop<Max>(o, a, b, count);
    case HVD_PRODUCT: return loop<Product>(o, a, b, count);
    default: return loop<Sum>(o, a, b, count);  // HVD_SUM, HVD_AVERAGE
  }
}

void reduce_bool(hvd_reduction reduction, uint8_t* out, const uint8_t* left, const uint8_t* right,
                 size_t count) {
  if (reduction == HVD_MIN || reduction == HVD_PRODUCT) {
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

size_t element_size(hvd_dtype dtype) {
  switch (dtype) {
    case HVD_UINT8:
    case HVD_INT8:
    case HVD_BOOL: return 1;
    case HVD_UINT16:
    case HVD_INT16:
    case HVD_FLOAT16:
    case HVD_BFLOAT16: return 2;
    case HVD_UINT32:
    case HVD_INT32:
    case HVD_FLOAT32: return 4;
    case HVD_UINT64:
    case HVD_INT64:
    case HVD_FLOAT64: return 8;
    default: return 0;
  }
}

void reduce(hvd_dtype dtype, hvd_reduction reduction, void* out, const void* left, const void* right,
            size_t count) {
  switch (dtype) {
    case HVD_UINT8: return reduce_as<uint8_t>(reduction, out, left, right, count);
    case HVD_INT8: return reduce_as<int8_t>(reduction, out, left, right, count);
    case HVD_UINT16: return reduce_as<uint16_t>(reduction, out, left, right, count);
    case HVD_INT16: return reduce_as<int16_t>(reduction, out, left, right, count);
    case HVD_UINT32: return reduce_as<uint32_t>(reduction, out, left, right, count);
    case HVD_INT32: return reduce_as<int32_t>(reduction, out, left, right, count);
    case HVD_UINT64: return reduce_as<uint64_t>(reduction, out, left, right, count);
    case HVD_INT64: return reduce_as<int64_t>(reduction, out, left, right, count);
    case HVD_FLOAT32: return reduce_as<float>(reduction, out, left, right, count);
    case HVD_FLOAT64: return reduce_as<double>(reduction, out, left, right, count);
    case HVD_BOOL:
      return reduce_bool(reduction, static_cast<uint8_t*>(out), static_cast<const uint8_t*>(left),
                         static_cast<const uint8_t*>(right), count);
    default: return;
  }
}

void divide(hvd_dtype dtype, void* data, size_t count, int32_t divisor) {
  switch (dtype) {
    case HVD_UINT8: return divide_as<uint8_t>(data, count, divisor);
    case HVD_INT8: return divide_as<int8_t>(data, count, divisor);
    case HVD_UINT16: return divide_as<uint16_t>(data, count, divisor);
    case HVD_INT16: return divide_as<int16_t>(data, count, divisor);
    case HVD_UINT32: return divide_as<uint32_t>(data, count, divisor);
    case HVD_INT32: return divide_as<int32_t>(data, count, divisor);
    case HVD_UINT64: return divide_as<uint64_t>(data, count, divisor);
    case HVD_INT64: return divide_as<int64_t>(data, count, divisor);
    case HVD_FLOAT32: return divide_as<float>(data, count, divisor);
    case HVD_FLOAT64: return divide_as<double>(data, count, divisor);
    default: return;
  }
}

bool is_narrow_float(hvd_dtype dtype) { return dtype == HVD_FLOAT16 || dtype == HVD_BFLOAT16; }

void widen(hvd_dtype dtype, float* out, const void* in, size_t count) {
  const auto* values = static_cast<const uint16_t*>(in);
  if (dtype == HVD_FLOAT16) {
    for (size_t i = 0; i < count; ++i) out[i] = half_to_float(values[i]);
  } else {
    for (size_t i = 0; i < count; ++i) out[i] = bfloat_to_float(values[i]);
  }
}

void narrow(hvd_dtype dtype, void* out, const float* in, size_t count) {
  auto* values = static_cast<uint16_t*>(out);
  if (dtype == HVD_FLOAT16) {
    for (size_t i = 0; i < count; ++i) values[i] = float_to_half(in[i]);
  } else {
    for (size_t i = 0; i < count; ++i) values[i] = float_to_bfloat(in[i]);
  }
}

}  // namespace hvdgloo
