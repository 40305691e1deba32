/* A worker of recovery_bench: commits, runs allreduces without end until a peer is lost, and prints when
 * the first collective of the next generation has completed, with the phases of its recovery. */
#define _GNU_SOURCE
#include <hvd/hvd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The gradient is more than what travels within messages: the first collective goes through the backend. */
enum { GRADIENT_FLOATS = 1 << 14, REPORT_EVERY = 50 };

typedef struct job {
  hvd_context* context;
  hvd_state* state;
  float *weights, *gradient;
  size_t floats;        /* of weights */
  int64_t commit_every; /* steps */
  int64_t step;
} job;

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static hvd_tensor floats(float* data, int64_t length) {
  hvd_tensor tensor = HVD_TENSOR_INIT;
  tensor.data = data;
  tensor.dtype = HVD_DTYPE_FLOAT32;
  tensor.ndim = 1;
  tensor.shape[0] = length;
  return tensor;
}

/* Tells which commit this survivor holds: those that hold the same have nothing to send to each other. */
static hvd_status lost(const job* j, hvd_status status) {
  printf("{\"holds\":%llu}\n", (unsigned long long)hvd_state_revision(j->state));
  return status;
}

static hvd_status train(void* userdata) {
  job* j = userdata;
  uint64_t generation = hvd_generation(j->context);
  hvd_tensor gradient = floats(j->gradient, GRADIENT_FLOATS);
  for (int64_t done = 0;; ++done) {
    if (generation > 1 && done == j->commit_every) return HVD_OK;
    hvd_status status =
        hvd_allreduce(j->context, "gradient", &gradient, &gradient, HVD_REDUCTION_AVERAGE, NULL);
    if (status != HVD_OK) return lost(j, status);
    if (generation > 1 && done == 0) {
      printf("{\"first\":%lld,\"generation\":%llu}\n", (long long)now_ns(), (unsigned long long)generation);
    }
    for (int i = 0; i < GRADIENT_FLOATS; ++i) j->weights[i] += 0.01f * j->gradient[i];
    ++j->step;
    if (hvd_rank(j->context) == 0 && j->step % REPORT_EVERY == 0) {
      printf("{\"step\":%lld,\"generation\":%llu}\n", (long long)j->step, (unsigned long long)generation);
    }
    if (j->step % j->commit_every == 0) {
      status = hvd_state_commit(j->state, NULL);
      if (status != HVD_OK) return lost(j, status);
    }
  }
}

static void print_recovery(const job* j) {
  hvd_recovery_info r;
  memset(&r, 0, sizeof r);
  r.struct_size = sizeof r;
  if (hvd_get_recovery(j->context, 0, &r, NULL) != HVD_OK) return;
  printf(
      "{\"recovery\":{\"began_at\":%lld,\"abort\":%lld,\"restore\":%lld,\"forming\":%lld,\"connecting\":%lld,"
      "\"sync\":%lld,\"total\":%lld,\"sync_bytes\":%llu,\"attempts\":%d}}\n",
      (long long)r.began_at_ns, (long long)r.abort_ns, (long long)r.restore_ns, (long long)r.forming_ns,
      (long long)r.connecting_ns, (long long)r.sync_ns, (long long)r.total_ns,
      (unsigned long long)r.sync_bytes, r.attempts);
}

/* Memory beside the state, as a trainer holds it, in the worker that is to be killed. */
static void hold_memory(int rank) {
  const char *mib = getenv("HVD_BENCH_MEMORY_MIB"), *owner = getenv("HVD_BENCH_MEMORY_RANK");
  if (mib == NULL || owner == NULL || atoi(owner) != rank) return;
  const size_t bytes = (size_t)strtoull(mib, NULL, 10) << 20;
  char* memory = bytes > 0 ? malloc(bytes) : NULL;
  if (memory != NULL) memset(memory, 1, bytes);
}

int main(void) {
  job j;
  hvd_error error = HVD_ERROR_INIT;
  memset(&j, 0, sizeof j);
  setvbuf(stdout, NULL, _IOLBF, 4096);
  const char* state = getenv("HVD_BENCH_STATE_MIB");
  const char* every = getenv("HVD_BENCH_COMMIT_EVERY");
  j.floats = (size_t)(state != NULL ? strtoull(state, NULL, 10) : 4) << 18;
  if (j.floats < GRADIENT_FLOATS) j.floats = GRADIENT_FLOATS;
  j.commit_every = every != NULL ? atoi(every) : 20;
  j.weights = calloc(j.floats, sizeof *j.weights);
  j.gradient = calloc(GRADIENT_FLOATS, sizeof *j.gradient);
  for (size_t i = 0; i < j.floats; ++i) j.weights[i] = 1.0f; /* pages that training has touched */
  hvd_status status = hvd_init(NULL, &j.context, &error);
  if (status == HVD_OK) {
    hold_memory(hvd_rank(j.context));
    printf("{\"pid\":%d,\"rank\":%d}\n", (int)getpid(), hvd_rank(j.context));
    hvd_tensor weights = floats(j.weights, (int64_t)j.floats);
    status = hvd_state_create(j.context, &j.state, &error);
    if (status == HVD_OK) status = hvd_state_add_tensor(j.state, "weights", &weights, &error);
    if (status == HVD_OK) status = hvd_state_add_value(j.state, "step", &j.step, sizeof j.step, &error);
    if (status == HVD_OK) status = hvd_run(j.context, j.state, train, &j, &error);
    if (status == HVD_OK) {
      print_recovery(&j);
      status = hvd_shutdown(j.context, HVD_DEFAULT_TIMEOUT, &error);
    }
  }
  if (status != HVD_OK) printf("{\"error\":\"%s\"}\n", hvd_status_name(status));
  hvd_state_destroy(j.state);
  hvd_destroy(j.context);
  free(j.weights);
  free(j.gradient);
  return status == HVD_OK ? 0 : 1;
}
