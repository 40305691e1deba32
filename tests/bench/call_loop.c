/* Loops of calls for python_call_bench.py, in the same process and on the same context as Python's. */
#include <hvd/hvd.h>
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
int allreduce_loop(hvd_context *context, const char *name, float *const *data, const int64_t *sizes, int count,
                   int times) {
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
    const hvd_status status =
        count == 1 ? hvd_allreduce(context, name, tensors, tensors, HVD_REDUCTION_SUM, &error)
                   : hvd_grouped_allreduce(context, name, tensors, tensors, (size_t)count, HVD_REDUCTION_SUM, &error);
    if (failed(status, &error)) return 1;
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
