/* A program that knows only the header and runs alone: every collective, state, run loop. Built twice:
 * linked with the library, and (HVD_TEST_DLOPEN) loading it by dlopen with the header's facts alone. */
#include "check.h"
#include "hvd/hvd.h"

#ifdef HVD_TEST_DLOPEN
#include "loaded.h"
#endif
/* Its inline functions call what is linked or loaded. */
#include <stdlib.h>

#include "hvd/async.h"

static hvd_error error;

typedef struct history {
  char text[64];
  size_t length;
} history;

typedef struct job {
  hvd_context *context;
  hvd_state *state;
  float weights[8];
  int64_t step;
  history past;
  int calls;
} job;

static int32_t save_history(void *userdata, hvd_write_fn write, void *sink) {
  history *h = userdata;
  write(sink, h->text, h->length / 2);
  write(sink, h->text + h->length / 2, h->length - h->length / 2);
  return 0;
}

static int32_t load_history(void *userdata, const void *data, size_t size) {
  history *h = userdata;
  if (size > sizeof(h->text)) return 1;
  memcpy(h->text, data, size);
  h->length = size;
  return 0;
}

static hvd_status train(void *userdata) {
  job *j = userdata;
  hvd_tensor gradient = HVD_TENSOR_INIT;
  float g[8];
  int i;
  ++j->calls;
  gradient.data = g;
  gradient.dtype = HVD_DTYPE_FLOAT32;
  gradient.ndim = 2;
  gradient.shape[0] = 2;
  gradient.shape[1] = 4;
  while (j->step < 5) {
    hvd_status status;
    for (i = 0; i < 8; ++i) g[i] = (float)i;
    status = hvd_allreduce(j->context, "gradient", &gradient, &gradient, HVD_REDUCTION_AVERAGE, &error);
    if (status != HVD_OK) return status;
    for (i = 0; i < 8; ++i) j->weights[i] += g[i];
    ++j->step;
    j->past.text[j->past.length++] = (char)('a' + j->step);
    status = hvd_state_commit(j->state, &error);
    if (status != HVD_OK) return status;
  }
  return HVD_OK;
}

static void collectives(hvd_context *c) {
  int32_t in[3] = {5, -6, 7};
  int32_t out[3] = {0, 0, 0};
  hvd_tensor a = HVD_TENSOR_INIT;
  hvd_tensor b = HVD_TENSOR_INIT;
  hvd_tensor gathered = HVD_TENSOR_INIT;
  hvd_op *op = NULL;
  void *object = "object";
  size_t size = 6;
  a.data = in;
  a.dtype = HVD_DTYPE_INT32;
  a.ndim = 1;
  a.shape[0] = 3;
  b = a;
  b.data = out;
  CHECK_STATUS(hvd_allreduce(c, "sum", &a, &b, HVD_REDUCTION_SUM, &error), HVD_OK);
  CHECK(memcmp(in, out, sizeof(in)) == 0);
  CHECK_STATUS(hvd_broadcast(c, "broadcast", &a, 0, &error), HVD_OK);
  CHECK(in[1] == -6);
  CHECK_STATUS(hvd_allgather(c, "gather", &a, &gathered, &error), HVD_OK);
  CHECK(gathered.ndim == 1 && gathered.shape[0] == 3 && gathered.dtype == HVD_DTYPE_INT32);
  CHECK(gathered.data != NULL && memcmp(gathered.data, in, sizeof(in)) == 0);
  hvd_free(gathered.data);
  memset(out, 0, sizeof(out));
  CHECK_STATUS(hvd_allgather(c, "gather", &a, &b, &error), HVD_OK);
  CHECK(memcmp(in, out, sizeof(in)) == 0 && b.data == out);
  gathered.data = NULL;
  CHECK_STATUS(hvd_allgather_async(c, "gather", &a, &gathered, &op, &error), HVD_OK);
  CHECK_STATUS(hvd_op_wait(op, 10 * HVD_SECOND, &error), HVD_OK);
  CHECK_STATUS(hvd_op_get_output(op, 0, &gathered, &error), HVD_OK);
  CHECK(gathered.data != NULL && memcmp(gathered.data, in, sizeof(in)) == 0);
  hvd_op_destroy(op);
  CHECK_STATUS(hvd_barrier(c, "barrier", &error), HVD_OK);
  CHECK_STATUS(hvd_broadcast_variables(c, "variables", &a, 1, 0, &error), HVD_OK);
  CHECK_STATUS(hvd_broadcast_variables(c, "variables", NULL, 0, 0, &error), HVD_OK);
  CHECK_STATUS(hvd_broadcast_object(c, "object", &object, &size, 0, &error), HVD_OK);
  CHECK(size == 6);
  a.shape[0] = 0;
  a.data = NULL;
  CHECK_STATUS(hvd_allreduce(c, "empty", &a, &a, HVD_REDUCTION_MAX, &error), HVD_OK);
}

/* The operations of several tensors, of rows and of some ranks, for a rank that has only itself. */
static void more_collectives(hvd_context *c) {
  int32_t in[4] = {1, -2, 3, -4};
  int32_t out[4] = {0, 0, 0, 0};
  int64_t splits[1] = {4};
  int64_t received[1] = {-1};
  int32_t last = -1;
  int32_t member = -1;
  size_t count = 1;
  hvd_tensor a = HVD_TENSOR_INIT;
  hvd_tensor b = HVD_TENSOR_INIT;
  hvd_tensor pair[2];
  hvd_tensor none = HVD_TENSOR_INIT;
  hvd_request r = HVD_REQUEST_INIT;
  hvd_process_set *set = NULL;
  hvd_op *op = NULL;
  a.data = in;
  a.dtype = HVD_DTYPE_INT32;
  a.ndim = 1;
  a.shape[0] = 4;
  b = a;
  b.data = out;
  CHECK_STATUS(hvd_reducescatter(c, "scatter", &a, &b, HVD_REDUCTION_AVERAGE, &error), HVD_OK);
  CHECK(memcmp(in, out, sizeof(in)) == 0);
  memset(out, 0, sizeof(out));
  CHECK_STATUS(hvd_alltoall(c, "exchange", &a, splits, &b, received, &error), HVD_OK);
  CHECK(memcmp(in, out, sizeof(in)) == 0 && received[0] == 4);
  CHECK_STATUS(hvd_alltoall(c, "exchange", &a, NULL, &none, NULL, &error), HVD_OK);
  CHECK(none.data != NULL && none.shape[0] == 4 && memcmp(in, none.data, sizeof(in)) == 0);
  hvd_free(none.data);
  pair[0] = a;
  pair[1] = a;
  pair[1].shape[0] = 2;
  CHECK_STATUS(hvd_grouped_allreduce(c, "group", pair, pair, 2, HVD_REDUCTION_SUM, &error), HVD_OK);
  CHECK_STATUS(hvd_grouped_allreduce(c, "group", NULL, NULL, 0, HVD_REDUCTION_SUM, &error), HVD_OK);
  CHECK_STATUS(hvd_broadcast_variables_async(c, "group", pair, 2, 0, &op, &error), HVD_OK);
  CHECK_STATUS(hvd_op_wait(op, 10 * HVD_SECOND, &error), HVD_OK);
  hvd_op_destroy(op);
  CHECK_STATUS(hvd_process_set_create(c, "me", NULL, 0, HVD_SET_RULE_LOCAL, &set, &error), HVD_OK);
  CHECK_STATUS(hvd_process_set_get_ranks(set, &member, &count, &error), HVD_OK);
  CHECK(member == 0 && count == 1);
  r.collective = HVD_COLLECTIVE_ALLREDUCE;
  r.name = "request";
  r.inputs = &a;
  r.outputs = &b;
  r.prescale = 3;
  r.postscale = -1;
  r.process_set = set;
  r.priority = 5;
  CHECK_STATUS(hvd_submit(c, &r, &op, &error), HVD_OK);
  hvd_process_set_destroy(set);
  CHECK_STATUS(hvd_op_wait(op, 10 * HVD_SECOND, &error), HVD_OK);
  CHECK(out[0] == -3 && out[1] == 6 && out[2] == -9 && out[3] == 12);
  hvd_op_destroy(op);
  CHECK_STATUS(hvd_join(c, &last, &error), HVD_OK);
  CHECK(last == 0);
  CHECK_STATUS(hvd_join(c, NULL, &error), HVD_OK);
}

int main(int argc, char **argv) {
  job j;
  hvd_tensor weights = HVD_TENSOR_INIT;
  int i;
  memset(&j, 0, sizeof(j));
#ifdef HVD_TEST_DLOPEN
  if (argc != 2 || load_hvd(argv[1]) != 0) return 1;
#else
  (void)argc;
  (void)argv;
#endif
  CHECK_STATUS(hvd_init(NULL, &j.context, &error), HVD_OK);
  if (j.context == NULL) return report("alone");
  CHECK(hvd_rank(j.context) == 0 && hvd_size(j.context) == 1 && hvd_generation(j.context) == 0);
  CHECK(hvd_local_rank(j.context) == 0 && hvd_local_size(j.context) == 1);
  CHECK(hvd_cross_rank(j.context) == 0 && hvd_cross_size(j.context) == 1);
  hvd_backend_info backend;
  memset(&backend, 0, sizeof(backend));
  backend.struct_size = sizeof(backend);
  CHECK_STATUS(hvd_get_backend(j.context, &backend, &error), HVD_OK);
  CHECK(strcmp(backend.name, "self") == 0);
  collectives(j.context);
  more_collectives(j.context);
  CHECK_STATUS(hvd_state_create(j.context, &j.state, &error), HVD_OK);
  weights.data = j.weights;
  weights.dtype = HVD_DTYPE_FLOAT32;
  weights.ndim = 1;
  weights.shape[0] = 8;
  CHECK_STATUS(hvd_state_add_tensor(j.state, "weights", &weights, &error), HVD_OK);
  CHECK_STATUS(hvd_state_add_value(j.state, "step", &j.step, sizeof(j.step), &error), HVD_OK);
  CHECK_STATUS(hvd_state_add_object(j.state, "past", save_history, load_history, &j.past, NULL, &error),
               HVD_OK);
  CHECK_STATUS(hvd_run(j.context, j.state, train, &j, &error), HVD_OK);
  CHECK(j.calls == 1 && j.step == 5 && hvd_state_revision(j.state) == 5);
  for (i = 0; i < 8; ++i) CHECK(j.weights[i] == 5.0F * (float)i);
  j.step = 99;
  j.weights[3] = -1;
  j.past.length = 1;
  CHECK_STATUS(hvd_state_restore(j.state, &error), HVD_OK);
  CHECK(j.step == 5 && j.weights[3] == 15 && j.past.length == 5 && memcmp(j.past.text, "bcdef", 5) == 0);
  hvd_state_destroy(j.state);
  CHECK_STATUS(hvd_shutdown(j.context, HVD_DEFAULT_TIMEOUT, &error), HVD_OK);
  hvd_destroy(j.context);
  return report("alone");
}
