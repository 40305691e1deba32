/* Elements: their sizes, and how two arrays become one. See plain.h. */
#include <string.h>

#include "plain.h"

/* X(dtype, type): those that C can compute with. */
#define DTYPES(X)               \
  X(HVD_DTYPE_UINT8, uint8_t)   \
  X(HVD_DTYPE_INT8, int8_t)     \
  X(HVD_DTYPE_UINT16, uint16_t) \
  X(HVD_DTYPE_INT16, int16_t)   \
  X(HVD_DTYPE_UINT32, uint32_t) \
  X(HVD_DTYPE_INT32, int32_t)   \
  X(HVD_DTYPE_UINT64, uint64_t) \
  X(HVD_DTYPE_INT64, int64_t)   \
  X(HVD_DTYPE_FLOAT32, float)   \
  X(HVD_DTYPE_FLOAT64, double)

size_t plain_element(hvd_dtype dtype) {
  switch (dtype) {
#define SIZE(name, type) \
  case name: return sizeof(type);
    DTYPES(SIZE)
    case HVD_DTYPE_FLOAT16:
    case HVD_DTYPE_BFLOAT16: return 2;
    case HVD_DTYPE_BOOL: return 1;
    default: return 0;
  }
}

/* Integers wrap around: computed unsigned, in the widest type. */
#define IS_INTEGER(type) ((type)0.5 == 0)
#define SUM(type, a, b) (IS_INTEGER(type) ? (type)((uint64_t)(a) + (uint64_t)(b)) : (type)((a) + (b)))
#define PRODUCT(type, a, b) (IS_INTEGER(type) ? (type)((uint64_t)(a) * (uint64_t)(b)) : (type)((a) * (b)))

#define COMBINE(name, type)                                                  \
  case name: {                                                               \
    type* x = (type*)into;                                                   \
    const type* y = (const type*)from;                                       \
    for (i = 0; i < count; ++i) {                                            \
      switch (reduction) {                                                   \
        case HVD_REDUCTION_MIN: x[i] = y[i] < x[i] ? y[i] : x[i]; break;     \
        case HVD_REDUCTION_MAX: x[i] = y[i] > x[i] ? y[i] : x[i]; break;     \
        case HVD_REDUCTION_PRODUCT: x[i] = PRODUCT(type, x[i], y[i]); break; \
        default: x[i] = SUM(type, x[i], y[i]); break;                        \
      }                                                                      \
    }                                                                        \
    break;                                                                   \
  }
void plain_combine(hvd_dtype dtype, hvd_reduction reduction, void* into, const void* from, size_t count) {
  size_t i;
  switch (dtype) {
    DTYPES(COMBINE)
    case HVD_DTYPE_BOOL: { /* sum and maximum: any; product and minimum: all */
      unsigned char* x = (unsigned char*)into;
      const unsigned char* y = (const unsigned char*)from;
      const int all = reduction == HVD_REDUCTION_MIN || reduction == HVD_REDUCTION_PRODUCT;
      for (i = 0; i < count; ++i) x[i] = all ? x[i] && y[i] : x[i] || y[i];
      break;
    }
    default: break;
  }
}

#define DIVIDE(name, type)                                         \
  case name: {                                                     \
    type* x = (type*)into;                                         \
    for (i = 0; i < count; ++i) x[i] = (type)(x[i] / (type)ranks); \
    break;                                                         \
  }
void plain_divide(hvd_dtype dtype, void* into, size_t count, int32_t ranks) {
  size_t i;
  switch (dtype) {
    DTYPES(DIVIDE)
    default: break;
  }
}

/* ---- 16-bit floats: computed as float32, and rounded once at the end ---- */

static float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

static uint32_t to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

static float widen_half(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000U) << 16, exponent = half >> 10 & 31U,
                 fraction = half & 1023U;
  if (exponent == 31) return from_bits(sign | 0x7f800000U | fraction << 13);
  if (exponent > 0) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
  return (sign != 0 ? -1.0F : 1.0F) * (float)fraction * 5.9604644775390625e-08F; /* 2^-24 */
}

/* To the nearest, ties to even. */
static uint16_t narrow_half(float value) {
  const uint32_t bits = to_bits(value), sign = bits >> 16 & 0x8000U;
  uint32_t rest = bits & 0x7fffffffU;
  if (rest > 0x7f800000U) return (uint16_t)(sign | 0x7e00U);
  if (rest >= 0x477ff000U) return (uint16_t)(sign | 0x7c00U); /* rounds beyond the largest */
  if (rest < 0x38800000U) return (uint16_t)(sign | (to_bits(from_bits(rest) + 0.5F) - to_bits(0.5F)));
  rest += 0xfffU + (rest >> 13 & 1U);
  return (uint16_t)(sign | ((rest >> 13) - (112U << 10)));
}

static uint16_t narrow_bfloat(float value) {
  const uint32_t bits = to_bits(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return (uint16_t)(bits >> 16 | 0x40U);
  return (uint16_t)((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

void plain_widen(hvd_dtype dtype, float* into, const void* from, size_t count) {
  const uint16_t* x = (const uint16_t*)from;
  size_t i;
  for (i = 0; i < count; ++i)
    into[i] = dtype == HVD_DTYPE_FLOAT16 ? widen_half(x[i]) : from_bits((uint32_t)x[i] << 16);
}

void plain_narrow(hvd_dtype dtype, void* into, const float* from, size_t count) {
  uint16_t* x = (uint16_t*)into;
  size_t i;
  for (i = 0; i < count; ++i)
    x[i] = dtype == HVD_DTYPE_FLOAT16 ? narrow_half(from[i]) : narrow_bfloat(from[i]);
}
