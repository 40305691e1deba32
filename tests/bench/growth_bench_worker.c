/* A worker of growth_bench: trains with a state of some size until the job has grown, and prints how long
 * its steps took and how long it stood still when others came. With the argument "copy", N and MIB it
 * measures what the stop is compared with instead: N processes that each copy as many bytes out of one
 * memory into their own, touched before. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <hvd/hvd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TENSORS = 32, GRADIENT_FLOATS = 1 << 14, MOST_STEPS = 1 << 20 };

typedef struct job {
  hvd_context* context;
  hvd_state* state;
  float *weights[TENSORS], *gradient;
  size_t floats; /* of each tensor */
  int64_t step;
  int change; /* tensors that a step writes */
  int commit_every;
  int first_size, last_size;
  int replaced;      /* the job loses a worker and gets another one: its size stays */
  int64_t after;     /* steps at the last size */
  int64_t left_at;   /* when this worker left the generation before; 0: it did not */
  int64_t* steps;    /* durations at the first size, in ns */
  int loops;         /* of computing, in a step */
  const char* grown; /* a file that is there when others are about to come */
  char ready[512];   /* a file that is there when one of them has started, and waits for a place */
  int64_t* kinds[3]; /* durations of steps without a commit: before, while they start, while they wait */
  int64_t counts[3];
  int phase;
  int64_t taken;
} job;

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int number(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text != NULL && text[0] != 0 ? atoi(text) : otherwise;
}

static hvd_tensor floats(float* data, size_t length) {
  hvd_tensor tensor = HVD_TENSOR_INIT;
  tensor.data = data;
  tensor.dtype = HVD_DTYPE_FLOAT32;
  tensor.ndim = 1;
  tensor.shape[0] = (int64_t)length;
  return tensor;
}

/* Something to do that the state's memory has no part in. */
static float compute(float* data) {
  for (int round = 0; round < 40; ++round) {
    for (int i = 0; i < GRADIENT_FLOATS; ++i) data[i] = data[i] * 0.999f + 0.001f;
  }
  return data[0];
}

static hvd_status left(job* j, hvd_status status) {
  if (status == HVD_HOSTS_UPDATED || status == HVD_PEER_LOST) j->left_at = now_ns();
  return status;
}

static hvd_status train(void* userdata) {
  job* j = userdata;
  const int size = hvd_size(j->context);
  hvd_tensor gradient = floats(j->gradient, GRADIENT_FLOATS);
  int64_t began = now_ns();
  const int last = j->replaced ? hvd_generation(j->context) > 1 : size >= j->last_size;
  for (int64_t done = 0;; ++done) {
    if (last && done == j->after) return HVD_OK;
    for (int i = 0; i < j->loops; ++i) compute(j->gradient);
    hvd_status status =
        hvd_allreduce(j->context, "gradient", &gradient, &gradient, HVD_REDUCTION_AVERAGE, NULL);
    if (status != HVD_OK) return left(j, status);
    if (done == 0 && j->left_at != 0) {
      const int64_t now = now_ns();
      printf("{\"stop\":%lld,\"size\":%d,\"now\":%lld}\n", (long long)(now - j->left_at), size,
             (long long)now);
      j->left_at = 0;
    }
    for (int t = 0; t < j->change; ++t)
      j->weights[(j->step + t) % TENSORS][j->step % (int64_t)j->floats] += 1.0f;
    ++j->step;
    if (j->step % j->commit_every == 0) {
      status = hvd_state_commit(j->state, NULL);
      /* The next step does not wait for the rank that commits longer. */
      if (status == HVD_OK && j->loops > 1) status = hvd_barrier(j->context, "committed", NULL);
      if (status != HVD_OK) return left(j, status);
    }
    const int64_t ended = now_ns();
    if (size == j->first_size && done > 0 && j->left_at == 0 && hvd_generation(j->context) == 1 &&
        j->taken < MOST_STEPS)
      j->steps[j->taken++] = ended - began;
    if (j->loops > 1 && size == j->first_size && done > 0 && j->step % j->commit_every != 0) {
      const int kind = j->phase == 2 || access(j->ready, F_OK) == 0 ? 2 : access(j->grown, F_OK) == 0;
      /* A step that is partly before and partly after says nothing. */
      if (kind == j->phase && j->counts[kind] < MOST_STEPS) j->kinds[kind][j->counts[kind]++] = ended - began;
      j->phase = kind;
    }
    began = ended;
    if (hvd_rank(j->context) == 0 && j->step % 50 == 0) {
      printf("{\"step\":%lld,\"size\":%d}\n", (long long)j->step, size);
    }
  }
}

static int ascending(const void* a, const void* b) {
  const int64_t left = *(const int64_t*)a, right = *(const int64_t*)b;
  return left < right ? -1 : left > right;
}

static void report(job* j) {
  double sum = 0; /* of the state, the same on all ranks */
  for (int t = 0; t < TENSORS; ++t) {
    for (size_t i = 0; i < j->floats; i += 1021) sum += j->weights[t][i] * (double)(i % 97 + 1);
  }
  printf("{\"sum\":%.1f,\"at\":%lld}\n", sum, (long long)j->step);
  hvd_recovery_info r;
  memset(&r, 0, sizeof r);
  r.struct_size = sizeof r;
  if (hvd_get_recovery(j->context, 0, &r, NULL) == HVD_OK) {
    printf("{\"spares\":%d}\n", r.spares);
    printf(
        "{\"recovery\":{\"forming\":%lld,\"connecting\":%lld,\"sync\":%lld,\"total\":%lld,\"sync_bytes\":%llu}}\n",
        (long long)r.forming_ns, (long long)r.connecting_ns, (long long)r.sync_ns, (long long)r.total_ns,
        (unsigned long long)r.sync_bytes);
  }
  static const char* const names[] = {"alone", "starting", "waiting"};
  for (int kind = 0; kind < 3; ++kind) {
    const int64_t count = j->counts[kind];
    if (count == 0) continue;
    qsort(j->kinds[kind], (size_t)count, sizeof(int64_t), ascending);
    printf("{\"phase\":\"%s\",\"steps\":%lld,\"median\":%lld,\"p90\":%lld,\"longest\":%lld}\n", names[kind],
           (long long)count, (long long)j->kinds[kind][count / 2], (long long)j->kinds[kind][count * 9 / 10],
           (long long)j->kinds[kind][count - 1]);
  }
  if (j->taken == 0) return;
  qsort(j->steps, (size_t)j->taken, sizeof *j->steps, ascending);
  printf("{\"steps\":%lld,\"median\":%lld,\"p99\":%lld,\"longest\":%lld}\n", (long long)j->taken,
         (long long)j->steps[j->taken / 2], (long long)j->steps[j->taken * 99 / 100],
         (long long)j->steps[j->taken - 1]);
}

static void fill(float* data, size_t length) {
  for (size_t i = 0; i < length; i += 1024) data[i] = (float)(i % 1000);
}

/* Each of `processes` copies `mib` out of one shared memory; prints the time until the last has it. */
static int copy(int processes, size_t mib) {
  const size_t bytes = mib << 20;
  char* source = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_barrier_t* all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (source == MAP_FAILED || all == MAP_FAILED) return 1;
  memset(source, 1, bytes);
  pthread_barrierattr_t shared;
  pthread_barrierattr_init(&shared);
  pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(all, &shared, (unsigned)processes + 1);
  for (int p = 0; p < processes; ++p) {
    if (fork() != 0) continue;
    char* target = malloc(bytes);
    if (target == NULL) _exit(1);
    memset(target, 2, bytes);
    pthread_barrier_wait(all);
    memcpy(target, source, bytes);
    pthread_barrier_wait(all);
    _exit(target[bytes / 2] == 1 ? 0 : 1);
  }
  pthread_barrier_wait(all);
  const int64_t began = now_ns();
  pthread_barrier_wait(all);
  printf("{\"copy\":%lld}\n", (long long)(now_ns() - began));
  int failed = 0;
  for (int p = 0; p < processes; ++p) {
    int status = 0;
    wait(&status);
    failed |= status != 0;
  }
  return failed;
}

int main(int argc, char** argv) {
  setvbuf(stdout, NULL, _IOLBF, 4096);
  if (argc == 4 && strcmp(argv[1], "copy") == 0) return copy(atoi(argv[2]), (size_t)atoi(argv[3]));
  job j;
  hvd_error error = HVD_ERROR_INIT;
  memset(&j, 0, sizeof j);
  const size_t mib = (size_t)number("HVD_BENCH_MEMORY_MIB", 512);
  const int touch = number("HVD_BENCH_TOUCH", 1);
  j.change = number("HVD_BENCH_CHANGE", TENSORS);
  j.commit_every = number("HVD_BENCH_COMMIT_EVERY", 20);
  j.first_size = number("HVD_BENCH_FIRST_SIZE", 2);
  j.last_size = number("HVD_BENCH_LAST_SIZE", 4);
  j.replaced = number("HVD_BENCH_REPLACED", 0);
  j.after = 40;
  j.floats = (mib << 20) / sizeof(float) / TENSORS;
  if (j.floats == 0) j.floats = 256;
  j.gradient = calloc(GRADIENT_FLOATS, sizeof *j.gradient);
  j.steps = calloc(MOST_STEPS, sizeof *j.steps);
  j.kinds[0] = calloc(MOST_STEPS, sizeof *j.steps);
  j.kinds[1] = calloc(MOST_STEPS, sizeof *j.steps);
  j.kinds[2] = calloc(MOST_STEPS, sizeof *j.steps);
  j.loops = number("HVD_BENCH_LOOPS", 1);
  j.grown = getenv("HVD_BENCH_GROWN") != NULL ? getenv("HVD_BENCH_GROWN") : "";
  snprintf(j.ready, sizeof j.ready, "%s.ready", j.grown);
  /* 1: what trains is initialised before this worker announces itself; 2: after; 0: never. */
  for (int t = 0; t < TENSORS; ++t) {
    j.weights[t] = calloc(j.floats, sizeof(float));
    if (touch == 1) fill(j.weights[t], j.floats);
  }
  if (j.loops > 1 && access(j.grown, F_OK) == 0) {
    const int ready = open(j.ready, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (ready >= 0) close(ready);
  }
  hvd_status status = hvd_init(NULL, &j.context, &error);
  if (status == HVD_OK) {
    printf("{\"pid\":%d,\"rank\":%d}\n", (int)getpid(), hvd_rank(j.context));
    status = hvd_state_create(j.context, &j.state, &error);
  }
  for (int t = 0; t < TENSORS && status == HVD_OK; ++t) {
    char key[32];
    snprintf(key, sizeof key, "layer%02d", t);
    if (touch == 2) fill(j.weights[t], j.floats);
    hvd_tensor weights = floats(j.weights[t], j.floats);
    status = hvd_state_add_tensor(j.state, key, &weights, &error);
  }
  if (status == HVD_OK) status = hvd_state_add_value(j.state, "step", &j.step, sizeof j.step, &error);
  if (status == HVD_OK) status = hvd_run(j.context, j.state, train, &j, &error);
  if (status == HVD_OK) {
    report(&j);
    status = hvd_shutdown(j.context, HVD_DEFAULT_TIMEOUT, &error);
  }
  if (status != HVD_OK) printf("{\"error\":\"%s: %s\"}\n", hvd_status_name(status), error.message);
  hvd_state_destroy(j.state);
  hvd_destroy(j.context);
  for (int t = 0; t < TENSORS; ++t) free(j.weights[t]);
  free(j.gradient);
  free(j.steps);
  free(j.kinds[0]);
  free(j.kinds[1]);
  free(j.kinds[2]);
  return status == HVD_OK ? 0 : 1;
}
