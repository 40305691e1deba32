/* Loops of calls for python_call_bench.py, in the same process and on the same context as Python's; and
 * copies for torch_commit_bench.py. */
#include <hvd/hvd.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { MOST = 1024 };

static int failed(hvd_status status, const hvd_error *error) {
  if (status == HVD_OK) return 0;
  fprintf(stderr, "%s: %s\n", hvd_status_name(status), error->message);
  return 1;
}

/* `times` sums in place of `count` tensors of `sizes` float32, as one operation where they are several.
 * Returns 0, or 1 after a line on standard error. */
int allreduce_loop(hvd_context *context, const char *name, float *const *data, const int64_t *sizes,
                   int count, int times) {
  hvd_tensor tensors[MOST];
  hvd_error error = HVD_ERROR_INIT;
  if (count < 1 || count > MOST) return 1;
  for (int i = 0; i < count; i++) {
    tensors[i] = (hvd_tensor)HVD_TENSOR_INIT;
    tensors[i].data = data[i];
    tensors[i].dtype = HVD_DTYPE_FLOAT32;
    tensors[i].ndim = 1;
    tensors[i].shape[0] = sizes[i];
  }
  for (int i = 0; i < times; i++) {
    const hvd_status status = count == 1
                                  ? hvd_allreduce(context, name, tensors, tensors, HVD_REDUCTION_SUM, &error)
                                  : hvd_grouped_allreduce(context, name, tensors, tensors, (size_t)count,
                                                          HVD_REDUCTION_SUM, &error);
    if (failed(status, &error)) return 1;
  }
  return 0;
}

/* `times` sums in place of each of `names` arrays of `size` float32, each by a name of its own. Returns 0, or
 * 1 after a line on standard error. */
int names_loop(hvd_context *context, float *data, int64_t size, int names, int times) {
  hvd_error error = HVD_ERROR_INIT;
  hvd_tensor tensor = HVD_TENSOR_INIT;
  tensor.dtype = HVD_DTYPE_FLOAT32;
  tensor.ndim = 1;
  tensor.shape[0] = size;
  for (int i = 0; i < times * names; i++) {
    char name[32];
    snprintf(name, sizeof name, "%d", i % names);
    tensor.data = data + size * (i % names);
    if (failed(hvd_allreduce(context, name, &tensor, &tensor, HVD_REDUCTION_SUM, &error), &error)) return 1;
  }
  return 0;
}

/* `times` checks for host updates. */
int check_loop(hvd_state *state, int times) {
  hvd_error error = HVD_ERROR_INIT;
  for (int i = 0; i < times; i++) {
    if (failed(hvd_state_check_host_updates(state, &error), &error)) return 1;
  }
  return 0;
}

typedef struct share {
  void *const *to;
  const void *const *from;
  const size_t *sizes;
  size_t count, begin, end; /* of all bytes in a row */
} share;

static void *copy_share(void *of) {
  const share *mine = of;
  size_t at = 0;
  for (size_t i = 0; i < mine->count && at < mine->end; at += mine->sizes[i++]) {
    const size_t begin = mine->begin > at ? mine->begin - at : 0;
    const size_t end = mine->end - at < mine->sizes[i] ? mine->end - at : mine->sizes[i];
    if (begin < end) memcpy((char *)mine->to[i] + begin, (const char *)mine->from[i] + begin, end - begin);
  }
  return NULL;
}

/* memcpy of `count` blocks by so many threads, each an equal share of all bytes. Returns 0, or 1 if a thread
 * can't be started. */
int copy_all(void *const *to, const void *const *from, const size_t *sizes, size_t count, size_t threads) {
  pthread_t started[64];
  share shares[64];
  size_t all = 0, running = 0;
  int failure = threads < 1 || threads > 64;
  for (size_t i = 0; i < count; i++) all += sizes[i];
  for (size_t t = 0; t < threads && !failure; t++) {
    const size_t end = t + 1 == threads ? all : all / threads * (t + 1);
    shares[t] = (share){to, from, sizes, count, all / threads * t, end};
    if (t + 1 == threads) {
      copy_share(&shares[t]);
    } else if (pthread_create(&started[running], NULL, copy_share, &shares[t]) == 0) {
      running++;
    } else {
      failure = 1;
    }
  }
  for (size_t t = 0; t < running; t++) pthread_join(started[t], NULL);
  return failure;
}
