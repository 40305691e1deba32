/* Collectives whose results must not depend on what moves them, on data made from rank and index alone.
 * Writes a line with a hash for each to HVD_TEST_RESULTS/<rank>: results_test.py compares the files of
 * several backends. Float sums may differ: they are held here to the bound of docs/collectives.md around
 * the exact sum, so two backends to twice that. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvd/hvd.h"

static hvd_context* context;
static int32_t rank, size;
static FILE* results;
static int failures;

static void must(hvd_status status, const hvd_error* error, const char* what) {
  if (status == HVD_OK) return;
  fprintf(stderr, "rank %d: %s: %s (%s)\n", (int)rank, what, hvd_status_name(status), error->message);
  exit(1);
}

/* splitmix64 of who, where and in which operation. */
static uint64_t mixed(int32_t of_rank, int64_t index, uint64_t seed) {
  uint64_t z = ((uint64_t)index + 1) * 0x9e3779b97f4a7c15U + ((uint64_t)of_rank + 1) * 0xd1342543de82ef95U +
               seed * 77U;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9U;
  z = (z ^ z >> 27) * 0x94d049bb133111ebU;
  return z ^ z >> 31;
}

/* Of mixed signs and of magnitudes from 2^-8 to 2^8; never 0, so that no sign of a zero is compared. */
static double real(int32_t of_rank, int64_t index, uint64_t seed) {
  const uint64_t bits = mixed(of_rank, index, seed);
  const double value = ldexp((double)(bits >> 40 | 1U) / 16777216.0, (int)(bits & 15U) - 7);
  return (bits & 16U) != 0 ? -value : value;
}

static void put(hvd_dtype dtype, void* data, int64_t i, int32_t of_rank, uint64_t seed) {
  const uint64_t bits = mixed(of_rank, i, seed);
  const int64_t small = (int64_t)(bits % 31U) - 15;
  switch (dtype) {
    case HVD_DTYPE_UINT8: ((uint8_t*)data)[i] = (uint8_t)(bits % 32U); break;
    case HVD_DTYPE_INT8: ((int8_t*)data)[i] = (int8_t)small; break;
    case HVD_DTYPE_UINT16: ((uint16_t*)data)[i] = (uint16_t)(bits % 8000U); break;
    case HVD_DTYPE_INT16: ((int16_t*)data)[i] = (int16_t)(small * 100); break;
    case HVD_DTYPE_UINT32: ((uint32_t*)data)[i] = (uint32_t)(bits >> 36); break;
    case HVD_DTYPE_INT32: ((int32_t*)data)[i] = (int32_t)(small * 1000003); break;
    case HVD_DTYPE_UINT64: ((uint64_t*)data)[i] = bits >> 8; break;
    case HVD_DTYPE_INT64: ((int64_t*)data)[i] = small * 1000000000039; break;
    /* Any finite value but 0 in 16 bits: an exponent that is not all ones, a fraction that is not 0. */
    case HVD_DTYPE_FLOAT16: ((uint16_t*)data)[i] = (uint16_t)((bits & 0xbbffU) | 1U); break;
    case HVD_DTYPE_BFLOAT16: ((uint16_t*)data)[i] = (uint16_t)((bits & 0xbfffU) | 1U); break;
    case HVD_DTYPE_FLOAT32: ((float*)data)[i] = (float)real(of_rank, i, seed); break;
    case HVD_DTYPE_FLOAT64: ((double*)data)[i] = real(of_rank, i, seed); break;
    default: ((uint8_t*)data)[i] = (uint8_t)(bits & 1U);
  }
}

static hvd_tensor tensor(hvd_dtype dtype, int64_t count) {
  hvd_tensor made = HVD_TENSOR_INIT;
  made.dtype = dtype;
  made.ndim = 1;
  made.shape[0] = count;
  made.data = malloc((size_t)count * hvd_dtype_size(dtype) + 1);
  if (made.data == NULL) exit(1);
  return made;
}

static hvd_tensor input(hvd_dtype dtype, int64_t count, uint64_t seed) {
  hvd_tensor made = tensor(dtype, count);
  int64_t i;
  for (i = 0; i < count; ++i) put(dtype, made.data, i, rank, seed);
  return made;
}

/* FNV-1a, 64 bits. */
static void note(const char* what, const hvd_tensor* result) {
  uint64_t hash = 0xcbf29ce484222325U;
  const size_t bytes = (size_t)result->shape[0] * hvd_dtype_size(result->dtype);
  size_t i;
  for (i = 0; i < bytes; ++i) hash = (hash ^ ((const uint8_t*)result->data)[i]) * 0x100000001b3U;
  fprintf(results, "%s %s %lld %016llx\n", what, hvd_dtype_name(result->dtype), (long long)result->shape[0],
          (unsigned long long)hash);
}

static void reduced(hvd_dtype dtype, hvd_reduction reduction, const char* what, int64_t count,
                    uint64_t seed) {
  hvd_error error = HVD_ERROR_INIT;
  hvd_tensor in = input(dtype, count, seed), out = tensor(dtype, count), part = HVD_TENSOR_INIT;
  char name[80];
  snprintf(name, sizeof(name), "allreduce.%s.%s", what, hvd_dtype_name(dtype));
  must(hvd_allreduce(context, name, &in, &out, reduction, &error), &error, name);
  note(name, &out);
  snprintf(name, sizeof(name), "reducescatter.%s.%s", what, hvd_dtype_name(dtype));
  must(hvd_reducescatter(context, name, &in, &part, reduction, &error), &error, name);
  note(name, &part);
  hvd_free(part.data);
  free(in.data);
  free(out.data);
}

/* |computed - exact| <= (n - 1) u / (1 - (n - 1) u) * sum |x| with u the dtype's unit roundoff. */
static void float_sum(hvd_dtype dtype, int64_t count, uint64_t seed) {
  hvd_error error = HVD_ERROR_INIT;
  hvd_tensor in = input(dtype, count, seed), out = tensor(dtype, count);
  const double unit = dtype == HVD_DTYPE_FLOAT32 ? ldexp(1, -24) : ldexp(1, -53);
  const double factor = (size - 1) * unit / (1 - (size - 1) * unit);
  char name[80];
  int64_t i;
  int32_t r;
  snprintf(name, sizeof(name), "sum.%s", hvd_dtype_name(dtype));
  must(hvd_allreduce(context, name, &in, &out, HVD_REDUCTION_SUM, &error), &error, name);
  for (i = 0; i < count && failures < 5; ++i) {
    long double exact = 0, absolute = 0, got;
    for (r = 0; r < size; ++r) {
      const long double x = dtype == HVD_DTYPE_FLOAT32 ? (float)real(r, i, seed) : real(r, i, seed);
      exact += x;
      absolute += fabsl(x);
    }
    got =
        dtype == HVD_DTYPE_FLOAT32 ? (long double)((float*)out.data)[i] : (long double)((double*)out.data)[i];
    if (fabsl(got - exact) <= (long double)factor * absolute) continue;
    ++failures;
    fprintf(stderr, "rank %d: %s: element %lld of %lld is off by %Lg: expected at most %Lg\n", (int)rank,
            name, (long long)i, (long long)count, fabsl(got - exact), (long double)factor * absolute);
  }
  free(in.data);
  free(out.data);
}

static void moved(hvd_dtype dtype, int64_t count, uint64_t seed) {
  hvd_error error = HVD_ERROR_INIT;
  hvd_tensor in = input(dtype, count, seed), some = in, all = HVD_TENSOR_INIT, exchanged = HVD_TENSOR_INIT;
  const int32_t root = (int32_t)(seed % (uint64_t)size);
  some.shape[0] = count - 100 * rank; /* not as much from each */
  must(hvd_allgather(context, "allgather", &some, &all, &error), &error, "allgather");
  note("allgather", &all);
  some.shape[0] = count / size * size;
  must(hvd_alltoall(context, "alltoall", &some, NULL, &exchanged, NULL, &error), &error, "alltoall");
  note("alltoall", &exchanged);
  must(hvd_broadcast(context, "broadcast", &in, root, &error), &error, "broadcast");
  note("broadcast", &in);
  hvd_free(all.data);
  hvd_free(exchanged.data);
  free(in.data);
}

int main(void) {
  /* Beyond what travels within messages; through one way of a backend, and beyond its changes to another. */
  static const int64_t counts[] = {40007, 300011, 2500003};
  hvd_error error = HVD_ERROR_INIT;
  const char* directory = getenv("HVD_TEST_RESULTS");
  char path[4096];
  hvd_dtype dtype;
  size_t c;
  uint64_t seed = 0;
  if (directory == NULL) return 2;
  must(hvd_init(NULL, &context, &error), &error, "hvd_init");
  rank = hvd_rank(context);
  size = hvd_size(context);
  snprintf(path, sizeof(path), "%s/%d", directory, (int)rank);
  results = fopen(path, "w");
  if (results == NULL) return 2;
  for (c = 0; c < sizeof(counts) / sizeof(counts[0]); ++c) {
    for (dtype = HVD_DTYPE_UINT8; dtype <= HVD_DTYPE_BOOL; ++dtype) {
      const int whole = dtype < HVD_DTYPE_FLOAT16 || dtype == HVD_DTYPE_BOOL;
      if (c == 2 && dtype != HVD_DTYPE_FLOAT32 && dtype != HVD_DTYPE_INT64)
        continue; /* large ones are slow */
      reduced(dtype, HVD_REDUCTION_MIN, "min", counts[c], ++seed);
      reduced(dtype, HVD_REDUCTION_MAX, "max", counts[c], ++seed);
      if (whole) reduced(dtype, HVD_REDUCTION_SUM, "sum", counts[c], ++seed);
      if (whole && dtype != HVD_DTYPE_BOOL)
        reduced(dtype, HVD_REDUCTION_AVERAGE, "average", counts[c], ++seed);
      if (dtype == HVD_DTYPE_FLOAT32 || dtype == HVD_DTYPE_FLOAT64) float_sum(dtype, counts[c], ++seed);
      moved(dtype, counts[c], ++seed);
    }
  }
  if (fclose(results) != 0) return 2;
  if (failures > 0) {
    hvd_abort(context, "a sum is too far from the exact one", NULL);
  } else {
    must(hvd_shutdown(context, HVD_DEFAULT_TIMEOUT, &error), &error, "hvd_shutdown");
  }
  hvd_destroy(context);
  return failures > 0;
}
