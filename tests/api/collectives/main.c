/* Runs the checks of this folder in one job. */
#include <pthread.h>

#include "job.h"

hvd_context *context;
int32_t rank, size;
hvd_error error;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int checks, failures;

void check(int good, const char *file, int line, const char *what, const char *detail) {
  pthread_mutex_lock(&mutex);
  ++checks;
  if (!good && ++failures <= 20) {
    fprintf(stderr, "rank %d of %d: %s:%d: %s %s\n", (int)rank, (int)size, file, line, what, detail);
  }
  pthread_mutex_unlock(&mutex);
}

hvd_request request(hvd_collective collective, const char *name) {
  hvd_request r = HVD_REQUEST_INIT;
  r.collective = collective;
  r.name = name;
  return r;
}

void submit_and_wait(const hvd_request *request, hvd_op **ret_op) {
  hvd_op *op = NULL;
  CHECK_STATUS(hvd_submit(context, request, &op, &error), HVD_OK);
  if (op == NULL) return;
  CHECK_STATUS(hvd_op_wait(op, HVD_DEFAULT_TIMEOUT, &error), HVD_OK);
  if (ret_op != NULL) {
    *ret_op = op;
  } else {
    hvd_op_destroy(op);
  }
}

void submit_mismatch(const hvd_request *request) {
  hvd_op *op = NULL;
  hvd_status status;
  memset(&error, 0, sizeof(error));
  error.struct_size = sizeof(error);
  status = hvd_submit(context, request, &op, &error);
  if (status == HVD_OK) {
    CHECK_STATUS(hvd_op_wait(op, HVD_DEFAULT_TIMEOUT, &error), HVD_MISMATCH);
  } else {
    check(status == HVD_MISMATCH && op == NULL, __FILE__, __LINE__, request->name, error.message);
  }
  hvd_op_destroy(op);
}

void check_same_message(const char *name) {
  char mine[sizeof(error.message)];
  void *data = mine;
  size_t length;
  memcpy(mine, error.message, sizeof(mine));
  length = strlen(mine) + 1;
  CHECK_STATUS(hvd_broadcast_object(context, name, &data, &length, 0, &error), HVD_OK);
  check(data != NULL && strcmp(mine, data) == 0, __FILE__, __LINE__, "the same message on every rank", mine);
  if (data != mine) hvd_free(data);
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*run)(void);
  } tests[] = {{"dtypes", test_dtypes},         {"gathering", test_gathering},
               {"groups", test_groups},         {"sets", test_sets},
               {"mismatches", test_mismatches}, {"traffic", test_traffic},
               {"direct", test_direct},         {"join", test_join}};
  size_t i;
  CHECK_STATUS(hvd_init(NULL, &context, &error), HVD_OK);
  if (context == NULL) return 1;
  rank = hvd_rank(context);
  size = hvd_size(context);
  for (i = 0; i < sizeof(tests) / sizeof(tests[0]); ++i) {
    if (argc > 1 && strcmp(argv[1], tests[i].name) != 0) continue;
    tests[i].run();
    CHECK_STATUS(hvd_barrier(context, "test is over", &error), HVD_OK);
    if (failures > 0) break; /* ranks may be out of step now */
  }
  printf("rank %d of %d: %d checks, %d failed%s%s\n", (int)rank, (int)size, checks, failures,
         failures > 0 ? " in " : "", failures > 0 ? tests[i].name : "");
  fflush(stdout);
  if (failures > 0) {
    hvd_abort(context, "checks failed", NULL); /* no success */
  } else {
    CHECK_STATUS(hvd_shutdown(context, HVD_DEFAULT_TIMEOUT, &error), HVD_OK);
  }
  hvd_destroy(context);
  return failures > 0;
}
