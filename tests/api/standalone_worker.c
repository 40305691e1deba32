/* One worker of a job without a driver: prints its place and the sum of all ranks' numbers. */
#include <stdio.h>

#include "hvd/hvd.h"

int main(void) {
  hvd_error error = HVD_ERROR_INIT;
  hvd_context* context = NULL;
  hvd_tensor tensor = HVD_TENSOR_INIT;
  hvd_backend_selection selection;
  hvd_backend_information backend;
  int64_t number;
  if (hvd_init(NULL, &context, &error) != HVD_OK) {
    fprintf(stderr, "%s: %s\n", hvd_status_name(error.status), error.message);
    return 1;
  }
  selection.struct_size = sizeof selection;
  if (hvd_backend_choice(context, HVD_MEMORY_HOST, HVD_INT64, HVD_COLLECTIVE_ALLREDUCE, &selection, &error) !=
      HVD_OK) {
    fprintf(stderr, "%s: %s\n", hvd_status_name(error.status), error.message);
    return 1;
  }
  fprintf(stderr, "%s (%s)\n", selection.name, selection.reason);
  backend.struct_size = sizeof backend;
  if (hvd_backend_info(context, &backend, &error) == HVD_OK) fprintf(stderr, "through %s\n", backend.detail);
  number = 1 + hvd_rank(context);
  tensor.data = &number;
  tensor.dtype = HVD_INT64;
  if (hvd_allreduce(context, "sum", &tensor, &tensor, HVD_SUM, &error) != HVD_OK) {
    fprintf(stderr, "%s: %s\n", hvd_status_name(error.status), error.message);
    return 1;
  }
  printf("%d %d %d %d %lld\n", (int)hvd_rank(context), (int)hvd_size(context), (int)hvd_local_rank(context),
         (int)hvd_local_size(context), (long long)number);
  if (hvd_shutdown(context, HVD_DEFAULT_TIMEOUT, &error) != HVD_OK) {
    fprintf(stderr, "%s: %s\n", hvd_status_name(error.status), error.message);
    return 1;
  }
  hvd_destroy(context);
  return 0;
}
