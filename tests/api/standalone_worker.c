/* One worker of a job without a driver: prints its place and the sum of all ranks' numbers. With argument
 * lost=N rank N then kills itself, and the others go on until they learn of it and print the status. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvd/hvd.h"

static int until_lost(hvd_context* context, int lost) {
  hvd_error error = HVD_ERROR_INIT;
  hvd_tensor tensor = HVD_TENSOR_INIT;
  int64_t number = 1;
  tensor.data = &number;
  tensor.dtype = HVD_DTYPE_INT64;
  while (hvd_allreduce(context, "again", &tensor, &tensor, HVD_REDUCTION_MAX, &error) == HVD_OK) {
    if ((int)hvd_rank(context) == lost)
      raise(SIGKILL); /* the others have come this far: they have their sum */
  }
  printf("%d: %s: %s\n", (int)hvd_rank(context), hvd_status_name(error.status), error.message);
  fflush(stdout);
  hvd_destroy(context);
  return 3;
}

int main(int argc, char** argv) {
  hvd_error error = HVD_ERROR_INIT;
  hvd_context* context = NULL;
  hvd_tensor tensor = HVD_TENSOR_INIT;
  hvd_backend_choice_info selection;
  hvd_backend_info backend;
  int64_t number;
  if (hvd_init(NULL, &context, &error) != HVD_OK) {
    fprintf(stderr, "%s: %s\n", hvd_status_name(error.status), error.message);
    return 1;
  }
  selection.struct_size = sizeof selection;
  if (hvd_get_backend_choice(context, HVD_MEMORY_HOST, HVD_DTYPE_INT64, HVD_COLLECTIVE_ALLREDUCE, &selection,
                             &error) != HVD_OK) {
    fprintf(stderr, "%s: %s\n", hvd_status_name(error.status), error.message);
    return 1;
  }
  fprintf(stderr, "%s (%s)\n", selection.name, selection.reason);
  backend.struct_size = sizeof backend;
  if (hvd_get_backend(context, &backend, &error) == HVD_OK) fprintf(stderr, "through %s\n", backend.detail);
  number = 1 + hvd_rank(context);
  tensor.data = &number;
  tensor.dtype = HVD_DTYPE_INT64;
  if (hvd_allreduce(context, "sum", &tensor, &tensor, HVD_REDUCTION_SUM, &error) != HVD_OK) {
    fprintf(stderr, "%s: %s\n", hvd_status_name(error.status), error.message);
    return 1;
  }
  printf("%d %d %d %d %lld\n", (int)hvd_rank(context), (int)hvd_size(context), (int)hvd_local_rank(context),
         (int)hvd_local_size(context), (long long)number);
  if (argc > 1 && strncmp(argv[1], "lost=", 5) == 0) return until_lost(context, atoi(argv[1] + 5));
  if (hvd_shutdown(context, HVD_DEFAULT_TIMEOUT, &error) != HVD_OK) {
    fprintf(stderr, "%s: %s\n", hvd_status_name(error.status), error.message);
    return 1;
  }
  hvd_destroy(context);
  return 0;
}
