/* A tensor of more than 4 GiB: broadcast, and allreduced in place, by two workers. Exit status 77: too little
 * memory. Started by hvdrun. */
#include <hvd/hvd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t kBytes = ((int64_t)4 << 30) + (3 << 20) + 17;

static long long available_kib(void) {
  char line[256];
  long long kib = 0;
  FILE* info = fopen("/proc/meminfo", "r");
  if (info == NULL) return 0;
  while (fgets(line, sizeof line, info) != NULL) {
    if (sscanf(line, "MemAvailable: %lld kB", &kib) == 1) break;
  }
  fclose(info);
  return kib;
}

/* Differs from page to page and from one 4 GiB to the next. */
static unsigned char value_at(int64_t i) { return (unsigned char)(i % 251 + i / 4096 % 3); }

static int64_t first_wrong(const unsigned char* data, int factor) {
  for (int64_t i = 0; i < kBytes; i += i % 4099 == 0 ? 1 : 4099 - i % 4099) {
    if (data[i] != (unsigned char)(value_at(i) * factor)) return i;
  }
  return data[kBytes - 1] == (unsigned char)(value_at(kBytes - 1) * factor) ? -1 : kBytes - 1;
}

int main(void) {
  hvd_context* context = NULL;
  hvd_error error = HVD_ERROR_INIT;
  if (hvd_init(NULL, &context, &error) != HVD_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  /* All ranks decide alike: the least that any of them sees. */
  long long wanted = 2 * (kBytes >> 10) + (2 << 20);
#if defined(__SANITIZE_THREAD__)
  wanted *= 3; /* twice the memory of the program is its shadow */
#endif
  long long available = available_kib();
  hvd_tensor number = HVD_TENSOR_INIT;
  number.data = &available;
  number.dtype = HVD_DTYPE_INT64;
  hvd_status status = hvd_allreduce(context, "memory", &number, &number, HVD_REDUCTION_MIN, &error);
  int result = 1;
  if (status == HVD_OK && available < wanted) {
    printf("skipped: %lld MiB of memory are available, %lld are needed\n", available >> 10, wanted >> 10);
    result = 77;
  } else if (status == HVD_OK) {
    unsigned char* data = malloc((size_t)kBytes);
    hvd_tensor tensor = HVD_TENSOR_INIT;
    tensor.data = data;
    tensor.dtype = HVD_DTYPE_UINT8;
    tensor.ndim = 1;
    tensor.shape[0] = kBytes;
    if (hvd_rank(context) == 1) {
      for (int64_t i = 0; i < kBytes; ++i) data[i] = value_at(i);
    }
    int64_t wrong = -1;
    status = hvd_broadcast(context, "large", &tensor, 1, &error);
    if (status == HVD_OK) wrong = first_wrong(data, 1);
    if (status == HVD_OK && wrong < 0) {
      status = hvd_allreduce(context, "large", &tensor, &tensor, HVD_REDUCTION_SUM, &error);
      if (status == HVD_OK) wrong = first_wrong(data, 2);
    }
    if (wrong >= 0) fprintf(stderr, "rank %d: byte %lld is wrong\n", hvd_rank(context), (long long)wrong);
    result = status != HVD_OK || wrong >= 0;
    free(data);
  }
  if (status != HVD_OK) fprintf(stderr, "%s: %s\n", hvd_status_name(status), error.message);
  hvd_shutdown(context, HVD_DEFAULT_TIMEOUT, NULL);
  hvd_destroy(context);
  return result;
}
