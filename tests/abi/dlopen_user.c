/* Uses the library through dlopen with nothing but the header: dlopen_user LIBRARY */
#include <dlfcn.h>
#include <hvd/hvd.h>
#include <stdio.h>
#include <string.h>

static void *library;
static const char *missing;

static void *symbol(const char *name) {
  void *found = dlsym(library, name);
  if (found == NULL) missing = name;
  return found;
}

/* `name` with the type of the function of that name. */
#define FUNCTION(name) __typeof__(&hvd_##name) name = (__typeof__(&hvd_##name))symbol("hvd_" #name)

int main(int argc, char **argv) {
  hvd_error error = HVD_ERROR_INIT;
  hvd_context *context = NULL;
  float values[3] = {1, 2, 3}, sums[3] = {0, 0, 0};
  hvd_tensor input = HVD_TENSOR_INIT, output = HVD_TENSOR_INIT;
  hvd_status status;
  int ranks = 1, wrong = 0;
  if (argc != 2) return 2;
  library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  FUNCTION(init);
  FUNCTION(rank);
  FUNCTION(size);
  FUNCTION(version);
  FUNCTION(allreduce);
  FUNCTION(shutdown);
  FUNCTION(destroy);
  FUNCTION(status_name);
  if (missing != NULL) {
    fprintf(stderr, "no %s in %s\n", missing, argv[1]);
    return 1;
  }
  if (strcmp(version(), HVD_VERSION_STRING) != 0) return 1;
  input.data = values;
  output.data = sums;
  input.dtype = output.dtype = HVD_DTYPE_FLOAT32;
  input.ndim = output.ndim = 1;
  input.shape[0] = output.shape[0] = 3;
  status = init(NULL, &context, &error);
  if (status == HVD_OK) status = allreduce(context, "sum", &input, &output, HVD_REDUCTION_SUM, &error);
  if (status == HVD_OK) ranks = size(context);
  for (int i = 0; i < 3; i++) wrong += sums[i] != (float)ranks * values[i];
  if (status == HVD_OK) printf("rank %d of %d\n", rank(context), ranks);
  if (status == HVD_OK) status = shutdown(context, HVD_DEFAULT_TIMEOUT, &error);
  destroy(context);
  if (status != HVD_OK) fprintf(stderr, "%s: %s\n", status_name(status), error.message);
  return status != HVD_OK || wrong != 0;
}
