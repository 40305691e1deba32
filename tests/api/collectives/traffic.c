/* Many operations under way at once: in another order on every rank, from several threads, with
 * priorities. */
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "job.h"

enum { OPS = 60, THREADS = 4, ROUNDS = 40 };

/* A small generator of its own: rand is not the same everywhere, and has a lock. */
static uint32_t next_number(uint32_t *seed) {
  *seed = *seed * 1664525U + 1013904223U;
  return *seed >> 8;
}

typedef struct item {
  hvd_tensor tensor;
  hvd_op *op;
  char name[40];
} item;

/* The i-th operation of a batch: allreduces of several dtypes and sizes, broadcasts, gathers, barriers. */
static void prepare(item *it, int i, int round) {
  static const hvd_dtype dtypes[] = {HVD_DTYPE_FLOAT32, HVD_DTYPE_FLOAT32, HVD_DTYPE_INT64,
                                     HVD_DTYPE_BFLOAT16, HVD_DTYPE_UINT8};
  static const int64_t counts[] = {1, 100, 3000, 40, 70000};
  /* The same names again; from the third round on other shapes under them. */
  it->tensor = vector(dtypes[i % 5], counts[(i / 5) % 5] + (round >= 2 ? 1 : 0));
  it->op = NULL;
  snprintf(it->name, sizeof(it->name), "op %d", i);
  fill(&it->tensor, rank);
}

static void submit(item *it, int i, int round) {
  static const hvd_collective kinds[] = {HVD_COLLECTIVE_ALLREDUCE, HVD_COLLECTIVE_ALLREDUCE,
                                         HVD_COLLECTIVE_BROADCAST, HVD_COLLECTIVE_ALLREDUCE,
                                         HVD_COLLECTIVE_ALLGATHER, HVD_COLLECTIVE_BARRIER};
  hvd_request r = request(kinds[i % 6], it->name);
  hvd_error mine = HVD_ERROR_INIT;
  hvd_status status;
  switch (r.collective) {
    case HVD_COLLECTIVE_ALLREDUCE: r.inputs = r.outputs = &it->tensor; break;
    case HVD_COLLECTIVE_ALLGATHER: r.inputs = &it->tensor; break;
    case HVD_COLLECTIVE_BROADCAST:
      r.outputs = &it->tensor;
      r.root = i % size;
      break;
    default: break;
  }
  r.priority = (i * 7 + round) % 5 - 2;
  status = hvd_submit(context, &r, &it->op, &mine);
  check(status == HVD_OK, __FILE__, __LINE__, it->name, mine.message);
}

static void finish(item *it, int i) {
  hvd_error mine = HVD_ERROR_INIT;
  hvd_tensor result = HVD_TENSOR_INIT;
  hvd_status status;
  int64_t j;
  int64_t wrong = -1;
  int32_t r;
  if (it->op == NULL) return;
  status = hvd_op_wait(it->op, HVD_DEFAULT_TIMEOUT, &mine);
  check(status == HVD_OK, __FILE__, __LINE__, it->name, mine.message);
  switch (i % 6) {
    case 2: wrong = holds(&it->tensor, i % size) ? -1 : 0; break;
    case 4:
      status = hvd_op_get_output(it->op, 0, &result, &mine);
      check(status == HVD_OK, __FILE__, __LINE__, it->name, mine.message);
      for (r = 0; r < size && status == HVD_OK; ++r) {
        hvd_tensor part = it->tensor;
        part.data = (char *)result.data + (size_t)r * (size_t)elements(&part) * hvd_dtype_size(part.dtype);
        if (!holds(&part, r)) wrong = r;
      }
      break;
    case 5: break;
    default:
      for (j = 0; j < elements(&it->tensor); ++j) {
        int64_t sum = 0;
        for (r = 0; r < size; ++r) sum += some(it->tensor.dtype, j, r);
        if (get(it->tensor.dtype, it->tensor.data, j) != sum) wrong = j;
      }
  }
  check(wrong == -1, __FILE__, __LINE__, it->name, "has a wrong value");
  hvd_op_destroy(it->op);
  free(it->tensor.data);
}

static void in_any_order(void) {
  static item items[OPS];
  int round;
  for (round = 0; round < 4; ++round) {
    int order[OPS];
    uint32_t seed = (uint32_t)(rank * 977 + round);
    int i;
    for (i = 0; i < OPS; ++i) {
      prepare(&items[i], i, round);
      order[i] = i;
    }
    for (i = OPS - 1; i > 0; --i) {
      const int other = (int)(next_number(&seed) % (uint32_t)(i + 1));
      const int kept = order[i];
      order[i] = order[other];
      order[other] = kept;
    }
    for (i = 0; i < OPS; ++i) submit(&items[order[i]], order[i], round);
    for (i = 0; i < OPS; ++i) finish(&items[i], i);
  }
}

static void *work(void *argument) {
  const int thread = *(int *)argument;
  hvd_tensor t = vector(HVD_DTYPE_INT32, thread % 2 ? 50 : 60000);
  char name[40];
  int i;
  snprintf(name, sizeof(name), "thread %d", thread);
  for (i = 0; i < ROUNDS; ++i) {
    hvd_error mine = HVD_ERROR_INIT;
    hvd_status status;
    put(HVD_DTYPE_INT32, t.data, 49, rank + i);
    status = hvd_allreduce(context, name, &t, &t, HVD_REDUCTION_SUM, &mine);
    check(status == HVD_OK, __FILE__, __LINE__, name, mine.message);
    check(get(HVD_DTYPE_INT32, t.data, 49) == size * (size - 1) / 2 + i * size, __FILE__, __LINE__, name,
          "has a wrong sum");
    if (i % 8 == thread) {
      status = hvd_barrier(context, name, &mine);
      check(status == HVD_OK, __FILE__, __LINE__, name, mine.message);
    }
  }
  free(t.data);
  return NULL;
}

static void from_several_threads(void) {
  pthread_t threads[THREADS];
  int numbers[THREADS];
  int i;
  for (i = 0; i < THREADS; ++i) {
    numbers[i] = i;
    if (pthread_create(&threads[i], NULL, work, &numbers[i]) != 0) abort();
  }
  for (i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
}

/* A name is taken until its operation has completed on this rank, in its set. */
static void names_in_use(void) {
  hvd_op *op = NULL;
  hvd_op *second = NULL;
  int32_t done = 7;
  if (rank == 0) {
    CHECK_STATUS(hvd_barrier_async(context, "in use", &op, &error), HVD_OK);
    if (size > 1) {
      CHECK_STATUS(hvd_op_test(op, &done, &error), HVD_OK);
      CHECK(done == 0);
      CHECK_STATUS(hvd_op_get_error(op, &error), HVD_INVALID);
      CHECK_STATUS(hvd_op_wait(op, HVD_MILLISECOND, &error), HVD_TIMEOUT);
      CHECK_STATUS(hvd_barrier_async(context, "in use", &second, &error), HVD_INVALID);
      CHECK_NAMES("in use");
      CHECK(second == NULL);
    }
  }
  CHECK_STATUS(hvd_barrier(context, "now", &error), HVD_OK);
  if (rank != 0) CHECK_STATUS(hvd_barrier_async(context, "in use", &op, &error), HVD_OK);
  CHECK_STATUS(hvd_op_wait(op, HVD_DEFAULT_TIMEOUT, &error), HVD_OK);
  CHECK_STATUS(hvd_op_test(op, &done, &error), HVD_OK);
  CHECK(done == 1);
  CHECK_STATUS(hvd_op_get_error(op, &error), HVD_OK);
  hvd_op_destroy(op);
}

static int readable(int32_t fd, int timeout_ms) {
  struct pollfd what;
  what.fd = fd;
  what.events = POLLIN;
  what.revents = 0;
  return poll(&what, 1, timeout_ms) == 1 && (what.revents & POLLIN) != 0;
}

/* An event loop needs no thread to wait for an operation, small or large. */
static void descriptors(void) {
  static const int64_t counts[] = {2, 1000000};
  int i;
  for (i = 0; i < 2; ++i) {
    hvd_tensor t = vector(HVD_DTYPE_FLOAT32, counts[i]);
    hvd_op *op = NULL;
    int32_t fd = -1;
    int32_t again = -1;
    int copy;
    if (rank == 0) {
      CHECK_STATUS(hvd_allreduce_async(context, "by descriptor", &t, &t, HVD_REDUCTION_SUM, &op, &error),
                   HVD_OK);
      CHECK_STATUS(hvd_op_get_fd(op, &fd, &error), HVD_OK);
      CHECK(size == 1 || !readable(fd, 0));
    }
    CHECK_STATUS(hvd_barrier(context, "it has been looked at", &error), HVD_OK);
    if (rank != 0) {
      CHECK_STATUS(hvd_allreduce_async(context, "by descriptor", &t, &t, HVD_REDUCTION_SUM, &op, &error),
                   HVD_OK);
      CHECK_STATUS(hvd_op_get_fd(op, &fd, &error), HVD_OK);
    }
    copy = dup(fd);
    CHECK(readable(fd, 60000));
    CHECK_STATUS(hvd_op_get_error(op, &error), HVD_OK);
    CHECK_STATUS(hvd_op_get_fd(op, &again, &error), HVD_OK);
    CHECK(again == fd);
    hvd_op_destroy(op);
    CHECK(readable(copy, 0));
    close(copy);
    free(t.data);

    t = vector(HVD_DTYPE_FLOAT32, counts[i]);
    CHECK_STATUS(hvd_allreduce_async(context, "by descriptor", &t, &t, HVD_REDUCTION_SUM, &op, &error),
                 HVD_OK);
    CHECK_STATUS(hvd_op_wait(op, HVD_DEFAULT_TIMEOUT, &error), HVD_OK);
    CHECK_STATUS(hvd_op_get_fd(op, &fd, &error), HVD_OK); /* asked for when all is over */
    CHECK(readable(fd, 0));
    hvd_op_destroy(op);
    free(t.data);
  }
}

/* A handle may be dropped while the operation goes on. */
static void dropped_handles(void) {
  hvd_tensor t = vector(HVD_DTYPE_FLOAT32, 100000);
  int i;
  for (i = 0; i < 10; ++i) {
    hvd_op *op = NULL;
    CHECK_STATUS(hvd_allreduce_async(context, "dropped", &t, &t, HVD_REDUCTION_SUM, &op, &error), HVD_OK);
    hvd_op_destroy(op);
    /* Its end shows when the name is free again: after all ranks have come, nothing of it is pending. */
    CHECK_STATUS(hvd_barrier(context, "after the dropped", &error), HVD_OK);
    do { op = NULL; } while (hvd_barrier_async(context, "dropped", &op, NULL) == HVD_INVALID);
    CHECK_STATUS(hvd_op_wait(op, HVD_DEFAULT_TIMEOUT, &error), HVD_OK);
    hvd_op_destroy(op);
  }
  free(t.data);
}

void test_traffic(void) {
  in_any_order();
  from_several_threads();
  names_in_use();
  descriptors();
  dropped_handles();
}
