/* A worker of scale_bench: says when it has its first place and when each generation's first allreduce has
 * completed; ends after `HVD_BENCH_GENERATIONS` generations. It holds nothing but one number of state. */
#define _GNU_SOURCE
#include <hvd/hvd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct job {
  hvd_context* context;
  hvd_state* state;
  int64_t step;
  uint64_t generations;
} job;

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static hvd_status train(void* userdata) {
  job* j = userdata;
  const uint64_t generation = hvd_generation(j->context);
  enum { kSteps = 5, kStepNs = 20000000 };
  for (int done = 0;; ++done) {
    float value = 1;
    hvd_tensor tensor = HVD_TENSOR_INIT;
    tensor.data = &value;
    tensor.dtype = HVD_DTYPE_FLOAT32;
    tensor.ndim = 1;
    tensor.shape[0] = 1;
    hvd_status status = hvd_allreduce(j->context, "value", &tensor, &tensor, HVD_REDUCTION_SUM, NULL);
    if (status != HVD_OK) return status;
    if (done == 0) {
      printf("{\"generation\":%llu,\"rank\":%d,\"pid\":%d,\"sum\":%d,\"at\":%lld}\n",
             (unsigned long long)generation, hvd_rank(j->context), (int)getpid(), (int)value,
             (long long)now_ns());
    }
    ++j->step;
    if (done == 0 && (status = hvd_state_commit(j->state, NULL)) != HVD_OK) return status;
    if (generation >= j->generations && done == kSteps) return HVD_OK;
    const struct timespec pause = {0, kStepNs};
    nanosleep(&pause, NULL);
  }
}

int main(void) {
  job j;
  hvd_error error = HVD_ERROR_INIT;
  const char* generations = getenv("HVD_BENCH_GENERATIONS");
  memset(&j, 0, sizeof j);
  setvbuf(stdout, NULL, _IOLBF, 4096);
  j.generations = generations != NULL ? strtoull(generations, NULL, 10) : 1;
  hvd_status status = hvd_init(NULL, &j.context, &error);
  if (status == HVD_OK) {
    if (hvd_rank(j.context) == 0) printf("{\"placed\":%lld}\n", (long long)now_ns());
    status = hvd_state_create(j.context, &j.state, &error);
    if (status == HVD_OK) status = hvd_state_add_value(j.state, "step", &j.step, sizeof j.step, &error);
    if (status == HVD_OK) status = hvd_run(j.context, j.state, train, &j, &error);
    if (status == HVD_OK) status = hvd_shutdown(j.context, HVD_DEFAULT_TIMEOUT, &error);
  }
  if (status != HVD_OK) printf("{\"error\":\"%s: %s\"}\n", hvd_status_name(status), error.message);
  hvd_state_destroy(j.state);
  hvd_destroy(j.context);
  return status == HVD_OK ? 0 : 1;
}
