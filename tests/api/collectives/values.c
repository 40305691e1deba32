/* Values that ranks bring and expect, by dtype. */
#include "job.h"

static float from_half(uint16_t bits) {
  /* Only what put writes: integers below 2048 and their negatives. */
  uint32_t exponent = bits >> 10 & 31U;
  float value;
  if (exponent == 0) return 0;
  value = (float)(1024U | (bits & 1023U));
  for (; exponent < 25; ++exponent) value /= 2;
  for (; exponent > 25; --exponent) value *= 2;
  return bits & 0x8000U ? -value : value;
}

static uint16_t to_half(float value) {
  uint32_t bits;
  uint32_t exponent;
  if (value == 0) return 0;
  memcpy(&bits, &value, sizeof(bits));
  exponent = (bits >> 23 & 255U) - 127 + 15;
  return (uint16_t)((bits >> 16 & 0x8000U) | exponent << 10 | (bits >> 13 & 1023U));
}

void put(hvd_dtype dtype, void *data, int64_t index, int64_t value) {
  float narrow = (float)value;
  uint32_t bits;
  switch (dtype) {
    case HVD_DTYPE_UINT8: ((uint8_t *)data)[index] = (uint8_t)value; break;
    case HVD_DTYPE_INT8: ((int8_t *)data)[index] = (int8_t)value; break;
    case HVD_DTYPE_UINT16: ((uint16_t *)data)[index] = (uint16_t)value; break;
    case HVD_DTYPE_INT16: ((int16_t *)data)[index] = (int16_t)value; break;
    case HVD_DTYPE_UINT32: ((uint32_t *)data)[index] = (uint32_t)value; break;
    case HVD_DTYPE_INT32: ((int32_t *)data)[index] = (int32_t)value; break;
    case HVD_DTYPE_UINT64: ((uint64_t *)data)[index] = (uint64_t)value; break;
    case HVD_DTYPE_INT64: ((int64_t *)data)[index] = value; break;
    case HVD_DTYPE_FLOAT16: ((uint16_t *)data)[index] = to_half(narrow); break;
    case HVD_DTYPE_BFLOAT16:
      memcpy(&bits, &narrow, sizeof(bits));
      ((uint16_t *)data)[index] = (uint16_t)(bits >> 16);
      break;
    case HVD_DTYPE_FLOAT32: ((float *)data)[index] = narrow; break;
    case HVD_DTYPE_FLOAT64: ((double *)data)[index] = (double)value; break;
    default: ((uint8_t *)data)[index] = value != 0;
  }
}

int64_t get(hvd_dtype dtype, const void *data, int64_t index) {
  float narrow;
  uint32_t bits;
  switch (dtype) {
    case HVD_DTYPE_UINT8: return ((const uint8_t *)data)[index];
    case HVD_DTYPE_INT8: return ((const int8_t *)data)[index];
    case HVD_DTYPE_UINT16: return ((const uint16_t *)data)[index];
    case HVD_DTYPE_INT16: return ((const int16_t *)data)[index];
    case HVD_DTYPE_UINT32: return ((const uint32_t *)data)[index];
    case HVD_DTYPE_INT32: return ((const int32_t *)data)[index];
    case HVD_DTYPE_UINT64: return (int64_t)((const uint64_t *)data)[index];
    case HVD_DTYPE_INT64: return ((const int64_t *)data)[index];
    case HVD_DTYPE_FLOAT16: return (int64_t)from_half(((const uint16_t *)data)[index]);
    case HVD_DTYPE_BFLOAT16:
      bits = (uint32_t)((const uint16_t *)data)[index] << 16;
      memcpy(&narrow, &bits, sizeof(narrow));
      return (int64_t)narrow;
    case HVD_DTYPE_FLOAT32: return (int64_t)((const float *)data)[index];
    case HVD_DTYPE_FLOAT64: return (int64_t)((const double *)data)[index];
    default: return ((const uint8_t *)data)[index];
  }
}

int is_signed(hvd_dtype dtype) {
  return dtype == HVD_DTYPE_INT8 || dtype == HVD_DTYPE_INT16 || dtype == HVD_DTYPE_INT32 ||
         dtype == HVD_DTYPE_INT64 || (dtype >= HVD_DTYPE_FLOAT16 && dtype <= HVD_DTYPE_FLOAT64);
}

int64_t some(hvd_dtype dtype, int64_t index, int32_t of_rank) {
  const int64_t value = (index * 7 + of_rank * 3 + index / 11) % 5;
  return dtype == HVD_DTYPE_BOOL ? value > 2 : value;
}

hvd_tensor matrix(hvd_dtype dtype, int64_t rows, int64_t columns) {
  hvd_tensor tensor = vector(dtype, rows * columns);
  tensor.ndim = 2;
  tensor.shape[0] = rows;
  tensor.shape[1] = columns;
  return tensor;
}

hvd_tensor vector(hvd_dtype dtype, int64_t count) {
  hvd_tensor tensor = HVD_TENSOR_INIT;
  tensor.dtype = dtype;
  tensor.ndim = 1;
  tensor.shape[0] = count;
  tensor.data = calloc((size_t)count + 1, hvd_dtype_size(dtype));
  if (tensor.data == NULL) abort();
  return tensor;
}

int64_t elements(const hvd_tensor *tensor) {
  int64_t count = 1;
  int32_t i;
  for (i = 0; i < tensor->ndim; ++i) count *= tensor->shape[i];
  return count;
}

void fill(hvd_tensor *tensor, int32_t of_rank) {
  int64_t i;
  for (i = 0; i < elements(tensor); ++i) put(tensor->dtype, tensor->data, i, some(tensor->dtype, i, of_rank));
}

int holds(const hvd_tensor *tensor, int32_t of_rank) {
  int64_t i;
  for (i = 0; i < elements(tensor); ++i) {
    if (get(tensor->dtype, tensor->data, i) != some(tensor->dtype, i, of_rank)) return 0;
  }
  return 1;
}
