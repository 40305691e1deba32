/* Allreduce, broadcast and reducescatter: every dtype, every reduction, sizes around every path. */
#include "job.h"

static int64_t reduced(hvd_dtype dtype, hvd_reduction reduction, int64_t index,
                       int64_t (*value)(hvd_dtype, int64_t, int32_t)) {
  int64_t result = value(dtype, index, 0);
  int32_t r;
  for (r = 1; r < size; ++r) {
    const int64_t next = value(dtype, index, r);
    switch (reduction) {
      case HVD_REDUCTION_MIN: result = next < result ? next : result; break;
      case HVD_REDUCTION_MAX: result = next > result ? next : result; break;
      case HVD_REDUCTION_PRODUCT: result *= next; break;
      default: result += next;
    }
  }
  if (reduction == HVD_REDUCTION_AVERAGE) result /= size;
  if (dtype == HVD_DTYPE_BOOL) result = result != 0;
  return result;
}

/* Small enough for a product of four in int8, and with signs. */
static int64_t signed_value(hvd_dtype dtype, int64_t index, int32_t of_rank) {
  const int64_t value = some(dtype, index, of_rank) % 3 + (dtype == HVD_DTYPE_BOOL ? 0 : 1);
  return is_signed(dtype) && (index + of_rank) % 3 == 0 ? -value : value;
}

/* A multiple of the size, so that the average is exact in every dtype. */
static int64_t even_value(hvd_dtype dtype, int64_t index, int32_t of_rank) {
  return some(dtype, index, of_rank) * size;
}

static void allreduce(hvd_dtype dtype, hvd_reduction reduction, int64_t count, int in_place) {
  int64_t (*value)(hvd_dtype, int64_t, int32_t) =
      reduction == HVD_REDUCTION_AVERAGE ? even_value : signed_value;
  hvd_tensor input = vector(dtype, count);
  hvd_tensor output = in_place ? input : vector(dtype, count);
  int64_t wrong = -1;
  int64_t i;
  char name[80];
  snprintf(name, sizeof(name), "allreduce.%s.%d", hvd_dtype_name(dtype), (int)reduction);
  for (i = 0; i < count; ++i) put(dtype, input.data, i, value(dtype, i, rank));
  CHECK_STATUS(hvd_allreduce(context, name, &input, &output, reduction, &error), HVD_OK);
  for (i = 0; i < count && wrong < 0; ++i) {
    if (get(dtype, output.data, i) != reduced(dtype, reduction, i, value)) wrong = i;
    if (!in_place && get(dtype, input.data, i) != value(dtype, i, rank)) wrong = i;
  }
  if (wrong >= 0) {
    char detail[200];
    snprintf(detail, sizeof(detail), "element %lld of %lld is %lld, expected %lld", (long long)wrong,
             (long long)count, (long long)get(dtype, output.data, wrong),
             (long long)reduced(dtype, reduction, wrong, value));
    check(0, __FILE__, __LINE__, name, detail);
  }
  free(input.data);
  if (!in_place) free(output.data);
}

static void broadcast(hvd_dtype dtype, int64_t count, int32_t root) {
  hvd_tensor tensor = vector(dtype, count);
  char name[80];
  snprintf(name, sizeof(name), "broadcast.%s", hvd_dtype_name(dtype));
  fill(&tensor, rank);
  CHECK_STATUS(hvd_broadcast(context, name, &tensor, root, &error), HVD_OK);
  CHECK(holds(&tensor, root));
  free(tensor.data);
}

static void scalars(void) {
  float value = (float)(rank + 1);
  hvd_tensor scalar = HVD_TENSOR_INIT;
  scalar.data = &value;
  scalar.dtype = HVD_DTYPE_FLOAT32;
  CHECK_STATUS(hvd_allreduce(context, "scalar", &scalar, &scalar, HVD_REDUCTION_SUM, &error), HVD_OK);
  CHECK(value == (float)(size * (size + 1) / 2));
  value = (float)rank;
  CHECK_STATUS(hvd_broadcast(context, "scalar", &scalar, size - 1, &error), HVD_OK);
  CHECK(value == (float)(size - 1));
}

/* Integer averages round towards zero; bytes of a bool that are not 0 are true. */
static void rounding(void) {
  hvd_tensor t = vector(HVD_DTYPE_INT32, 3);
  int32_t *values = t.data;
  int32_t sum = 0;
  int32_t r;
  for (r = 0; r < size; ++r) sum += r + 1;
  values[0] = rank + 1;
  values[1] = -(rank + 1);
  values[2] = 0;
  CHECK_STATUS(hvd_allreduce(context, "rounding", &t, &t, HVD_REDUCTION_AVERAGE, &error), HVD_OK);
  CHECK(values[0] == sum / size && values[1] == -(sum / size) && values[2] == 0);
  free(t.data);
  t = vector(HVD_DTYPE_BOOL, 2);
  CHECK_STATUS(hvd_allreduce(context, "average of bool", &t, &t, HVD_REDUCTION_AVERAGE, &error),
               HVD_UNSUPPORTED);
  free(t.data);
}

static void factors(void) {
  hvd_request r = request(HVD_COLLECTIVE_ALLREDUCE, "factors");
  hvd_tensor floats = vector(HVD_DTYPE_FLOAT64, 1000);
  hvd_tensor bytes = vector(HVD_DTYPE_INT8, 100);
  int64_t i;
  double *values = floats.data;
  for (i = 0; i < 1000; ++i) values[i] = (double)(i + rank);
  r.inputs = r.outputs = &floats;
  r.prescale = 0.5;
  r.postscale = -4;
  submit_and_wait(&r, NULL);
  for (i = 0; i < 1000; ++i) { CHECK(values[i] == -2.0 * (double)(i * size + size * (size - 1) / 2)); }
  /* Integers: towards zero, and no further than the type goes. */
  for (i = 0; i < 100; ++i) put(HVD_DTYPE_INT8, bytes.data, i, i % 2 ? 7 : -7);
  r.inputs = r.outputs = &bytes;
  r.name = "factors of integers";
  r.prescale = 0.5;
  r.postscale = 100;
  submit_and_wait(&r, NULL);
  for (i = 0; i < 100; ++i) CHECK(get(HVD_DTYPE_INT8, bytes.data, i) == (i % 2 ? 127 : -128));
  r.reduction = HVD_REDUCTION_MAX;
  r.prescale = r.postscale = 0;
  submit_and_wait(&r, NULL);
  CHECK(get(HVD_DTYPE_INT8, bytes.data, 1) == 127);
  free(floats.data);
  free(bytes.data);
}

/* Every rank has the same bits, also of sums that depend on the order. */
static void same_bits(void) {
  const int64_t counts[] = {9, 5000, 300000};
  size_t c;
  for (c = 0; c < 3; ++c) {
    hvd_tensor t = vector(HVD_DTYPE_FLOAT32, counts[c]);
    hvd_tensor first = vector(HVD_DTYPE_FLOAT32, counts[c]);
    float *values = t.data;
    int64_t i;
    for (i = 0; i < counts[c]; ++i) values[i] = 1.0F / (float)(1 + (i * 31 + rank * 17) % 97);
    CHECK_STATUS(hvd_allreduce(context, "bits", &t, &t, HVD_REDUCTION_SUM, &error), HVD_OK);
    memcpy(first.data, t.data, (size_t)counts[c] * sizeof(float));
    CHECK_STATUS(hvd_broadcast(context, "bits of rank 0", &first, 0, &error), HVD_OK);
    CHECK(memcmp(first.data, t.data, (size_t)counts[c] * sizeof(float)) == 0);
    free(t.data);
    free(first.data);
  }
}

void test_dtypes(void) {
  static const int64_t counts[] = {0, 1, 33, 5000};
  hvd_dtype dtype;
  hvd_reduction reduction;
  size_t c;
  int32_t root;
  for (dtype = HVD_DTYPE_UINT8; dtype <= HVD_DTYPE_BOOL; ++dtype) {
    for (reduction = HVD_REDUCTION_SUM; reduction <= HVD_REDUCTION_PRODUCT; ++reduction) {
      if (dtype == HVD_DTYPE_BOOL && reduction == HVD_REDUCTION_AVERAGE) continue;
      for (c = 0; c < 4; ++c) allreduce(dtype, reduction, counts[c], (int)(c + (size_t)reduction) % 2);
    }
    allreduce(dtype, HVD_REDUCTION_SUM, 150001, 1);
    allreduce(dtype, dtype != HVD_DTYPE_BOOL ? HVD_REDUCTION_AVERAGE : HVD_REDUCTION_MAX, 70000, 0);
    for (root = 0; root < size; ++root) {
      for (c = 0; c < 4; ++c) broadcast(dtype, counts[c], root);
      broadcast(dtype, 150001, root);
    }
  }
  scalars();
  rounding();
  factors();
  same_bits();
}
