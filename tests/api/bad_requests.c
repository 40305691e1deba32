/* Bad requests, rows and process sets: the answer names field, value and what was expected. */
#include "check.h"
#include "floats.h"
#include "hvd/async.h"
#include "hvd/hvd.h"

static hvd_error error;

/* Operations that move rows. */
static void rows(hvd_context *c) {
  float a[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  float b[8];
  hvd_tensor x = floats(a, 4);
  hvd_tensor y = floats(b, 4);
  hvd_tensor scalar = floats(a, 4);
  hvd_tensor pair[2];
  hvd_op *op = NULL;
  int64_t splits[1] = {3};
  scalar.ndim = 0;
  CHECK_STATUS(hvd_alltoall(c, "x", NULL, NULL, &y, NULL, &error), HVD_INVALID);
  CHECK_NAMES("input");
  CHECK_STATUS(hvd_alltoall(c, "x", &x, NULL, NULL, NULL, &error), HVD_INVALID);
  CHECK_NAMES("output");
  CHECK_STATUS(hvd_alltoall(c, "x", &x, splits, &y, NULL, &error), HVD_INVALID);
  CHECK_NAMES("splits are 3: expected 4 in all");
  splits[0] = -4;
  CHECK_STATUS(hvd_alltoall(c, "x", &x, splits, &y, NULL, &error), HVD_INVALID);
  CHECK_NAMES("splits[0] is -4");
  splits[0] = INT64_MAX;
  CHECK_STATUS(hvd_alltoall_async(c, "x", &x, splits, &y, &op, &error), HVD_INVALID);
  splits[0] = 4;
  CHECK_STATUS(hvd_alltoall_async(c, "x", &x, splits, &y, NULL, &error), HVD_INVALID);
  CHECK_NAMES("ret_op");
  CHECK_STATUS(hvd_alltoall(c, "x", &scalar, NULL, &y, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_alltoall(c, "x", &scalar, splits, &y, NULL, &error), HVD_INVALID);
  y = floats(b, 3);
  CHECK_STATUS(hvd_alltoall(c, "x", &x, splits, &y, NULL, &error), HVD_INVALID); /* too small a room */
  CHECK_NAMES("4");
  y = floats(a + 2, 4);
  CHECK_STATUS(hvd_alltoall(c, "x", &x, splits, &y, NULL, &error), HVD_INVALID); /* they overlap */
  CHECK_STATUS(hvd_reducescatter(c, "x", &x, &y, HVD_REDUCTION_SUM, &error), HVD_INVALID);
  y = floats(b, 4);
  y.dtype = HVD_DTYPE_INT32;
  CHECK_STATUS(hvd_reducescatter(c, "x", &x, &y, HVD_REDUCTION_SUM, &error), HVD_INVALID);
  y = floats(b, 4);
  CHECK_STATUS(hvd_reducescatter(c, "x", &x, &y, 0, &error), HVD_INVALID);
  CHECK_NAMES("reduction is 0");
  CHECK_STATUS(hvd_reducescatter(c, "x", &scalar, &y, HVD_REDUCTION_SUM, &error), HVD_INVALID);
  CHECK_STATUS(hvd_reducescatter(c, "x", &x, NULL, HVD_REDUCTION_SUM, &error), HVD_INVALID);
  y = floats(b, 2);
  CHECK_STATUS(hvd_reducescatter(c, "x", &x, &y, HVD_REDUCTION_SUM, &error),
               HVD_INVALID); /* too small a room */
  CHECK_NAMES("4");
  y = floats(NULL, 0);
  y.memory = HVD_MEMORY_CUDA; /* the library allocates no device memory */
  CHECK_STATUS(hvd_allgather(c, "x", &x, &y, &error), HVD_UNSUPPORTED);
  CHECK_STATUS(hvd_alltoall(c, "x", &x, NULL, &y, NULL, &error), HVD_UNSUPPORTED);

  pair[0] = floats(a, 4);
  pair[1] = floats(a + 4, 4);
  CHECK_STATUS(hvd_grouped_allreduce(c, "x", NULL, pair, 2, HVD_REDUCTION_SUM, &error), HVD_INVALID);
  CHECK_NAMES("inputs");
  CHECK_STATUS(hvd_grouped_allreduce(c, "x", pair, NULL, 2, HVD_REDUCTION_SUM, &error), HVD_INVALID);
  CHECK_NAMES("outputs");
  CHECK_STATUS(hvd_grouped_allreduce(c, "x", pair, pair, 2, 9, &error), HVD_INVALID);
  CHECK_NAMES("9");
  CHECK_STATUS(hvd_grouped_allgather(c, "x", pair, NULL, 2, &error), HVD_INVALID);
  CHECK_NAMES("outputs");
  pair[1].dtype = 99;
  CHECK_STATUS(hvd_grouped_allreduce(c, "x", pair, pair, 2, HVD_REDUCTION_SUM, &error), HVD_INVALID);
  CHECK_NAMES("inputs[1].dtype is 99");
  pair[0].dtype = pair[1].dtype = HVD_DTYPE_FLOAT8_E4M3FN; /* states take it, no backend does */
  CHECK_STATUS(hvd_grouped_allreduce(c, "x", pair, pair, 2, HVD_REDUCTION_SUM, &error), HVD_UNSUPPORTED);
  CHECK_NAMES("float8_e4m3fn");
  pair[0].dtype = pair[1].dtype = HVD_DTYPE_FLOAT32;
  pair[1].struct_size = 16;
  CHECK_STATUS(hvd_grouped_allgather(c, "x", pair, pair, 2, &error), HVD_INVALID);
  CHECK_NAMES("inputs[1].struct_size is 16");
  CHECK_STATUS(hvd_broadcast_variables_async(c, "x", pair, 2, 0, &op, &error), HVD_INVALID);
  CHECK_NAMES("outputs[1]");
  CHECK(op == NULL);
}

/* r is right but for one field: the refusal names it. */
static void refused(hvd_context *c, const hvd_request *r, const char *names) {
  hvd_op *op = NULL;
  CHECK_STATUS(hvd_submit(c, r, &op, &error), HVD_INVALID);
  CHECK_NAMES(names);
  CHECK(op == NULL);
}

static void requests(hvd_context *c) {
  float a[4] = {1, 2, 3, 4};
  float b[4];
  const double zero = 0;
  hvd_tensor x = floats(a, 4);
  hvd_tensor y = floats(b, 4);
  int64_t splits[2] = {4, 0};
  hvd_op *op = NULL;
  hvd_context *other = NULL;
  hvd_process_set *set = NULL;
  const hvd_request empty = HVD_REQUEST_INIT;
  hvd_request good = HVD_REQUEST_INIT;
  hvd_request r;
  CHECK_STATUS(hvd_submit(c, NULL, &op, &error), HVD_INVALID);
  CHECK_NAMES("request");
  r = empty;
  r.struct_size = 0;
  refused(c, &r, "struct_size");
  refused(c, &empty, "collective is 0");
  r.struct_size = sizeof(r);
  r.collective = 14;
  refused(c, &r, "collective is 14");
  good.collective = HVD_COLLECTIVE_ALLREDUCE;
  good.name = "x";
  good.inputs = &x;
  good.outputs = &y;
  CHECK_STATUS(hvd_submit(c, &good, NULL, &error), HVD_INVALID);
  CHECK_NAMES("ret_op");
  CHECK_STATUS(hvd_submit(c, &good, &op, &error), HVD_OK);
  CHECK_STATUS(hvd_op_wait(op, 10 * HVD_SECOND, &error), HVD_OK);
  CHECK(b[3] == 4); /* the default is the sum */
  hvd_op_destroy(op);
  r = good, r.name = "";
  refused(c, &r, "name");
  r = good, r.inputs = NULL;
  refused(c, &r, "inputs");
  r = good, r.outputs = NULL;
  refused(c, &r, "outputs");
  r = good, r.root = 1;
  refused(c, &r, "root is 1");
  r = good, r.reduction = 6;
  refused(c, &r, "reduction is 6");
  r = good, r.reduction = -1;
  refused(c, &r, "reduction is -1");
  r = good, r.prescale = zero / zero;
  refused(c, &r, "prescale is");
  r = good, r.postscale = 1 / zero;
  refused(c, &r, "postscale is inf");
  r = good, r.splits = splits;
  refused(c, &r, "splits");
  r = good, r.split_count = 1;
  refused(c, &r, "split_count is 1");
  r = good, r.timeout_ns = -1;
  refused(c, &r, "timeout_ns is -1");
  r = good, r.timeout_ns = INT64_MAX;
  refused(c, &r, "timeout_ns");

  r = good, r.collective = HVD_COLLECTIVE_BROADCAST;
  refused(c, &r, "inputs");
  r.inputs = NULL, r.root = 1;
  refused(c, &r, "root is 1");
  r.root = 0, r.reduction = HVD_REDUCTION_SUM;
  refused(c, &r, "reduction is 1");
  r.reduction = 0, r.prescale = 1;
  refused(c, &r, "prescale is 1");
  r.prescale = 0, r.outputs = NULL;
  refused(c, &r, "outputs");

  r = good, r.collective = HVD_COLLECTIVE_ALLGATHER, r.postscale = 2;
  refused(c, &r, "postscale is 2");
  r = good, r.collective = HVD_COLLECTIVE_ALLTOALL, r.count = 2;
  refused(c, &r, "count is 2");
  r.count = 0, r.splits = splits;
  refused(c, &r, "split_count is 0: expected 1");
  r.split_count = 2;
  refused(c, &r, "split_count is 2: expected 1");
  r.splits = NULL;
  refused(c, &r, "splits");
  splits[0] = 5, r.splits = splits, r.split_count = 1;
  refused(c, &r, "splits are 5: expected 4");
  r.collective = HVD_COLLECTIVE_REDUCESCATTER;
  refused(c, &r, "splits are 5: expected 4");
  r.count = 3;
  refused(c, &r, "count is 3");

  r = empty, r.collective = HVD_COLLECTIVE_BARRIER, r.name = "x", r.count = 1;
  refused(c, &r, "count is 1");
  r.count = 0, r.outputs = &y;
  refused(c, &r, "outputs");
  r = empty, r.collective = HVD_COLLECTIVE_JOIN, r.name = "x";
  refused(c, &r, "name");
  r.name = NULL, r.inputs = &x;
  refused(c, &r, "inputs");

  /* Sets of another context, and of this one where they have no place. */
  CHECK_STATUS(hvd_init(NULL, &other, &error), HVD_OK);
  CHECK_STATUS(hvd_process_set_create(other, "elsewhere", NULL, 0, HVD_SET_RULE_LOCAL, &set, &error), HVD_OK);
  r = good, r.process_set = set;
  refused(c, &r, "elsewhere");
  CHECK_NAMES("another context");
  hvd_destroy(other);
  hvd_process_set_destroy(set); /* also after its context */
  CHECK_STATUS(hvd_process_set_create(c, "here", NULL, 0, HVD_SET_RULE_LOCAL, &set, &error), HVD_OK);
  r = empty, r.collective = HVD_COLLECTIVE_JOIN, r.process_set = set;
  refused(c, &r, "process_set");
  hvd_process_set_destroy(set);
  /* A request of an older header gets the defaults of what it does not know. */
  r = good, r.prescale = 1000, r.struct_size = offsetof(hvd_request, prescale);
  CHECK_STATUS(hvd_submit(c, &r, &op, &error), HVD_OK);
  CHECK_STATUS(hvd_op_wait(op, 10 * HVD_SECOND, &error), HVD_OK);
  CHECK(b[3] == 4);
  hvd_op_destroy(op);
}

static void process_sets(hvd_context *c) {
  const int32_t ranks[3] = {0, 1, 0};
  int32_t found[2] = {7, 7};
  size_t count = 0;
  hvd_process_set *set = NULL;
  hvd_process_set_info info;
  CHECK_STATUS(hvd_process_set_create(c, NULL, ranks, 1, 0, &set, &error), HVD_INVALID);
  CHECK_STATUS(hvd_process_set_create(c, "", ranks, 1, 0, &set, &error), HVD_INVALID);
  CHECK_STATUS(hvd_process_set_create(c, "hvd.mine", ranks, 1, 0, &set, &error), HVD_INVALID);
  CHECK_STATUS(hvd_process_set_create(c, "s", NULL, 1, 0, &set, &error), HVD_INVALID);
  CHECK_NAMES("ranks");
  CHECK_STATUS(hvd_process_set_create(c, "s", NULL, 0, 0, &set, &error), HVD_INVALID);
  CHECK_NAMES("'s'");
  CHECK_STATUS(hvd_process_set_create(c, "s", ranks, 0, 0, &set, &error), HVD_INVALID);
  CHECK_STATUS(hvd_process_set_create(c, "s", ranks, 2, 0, &set, &error), HVD_INVALID);
  CHECK_NAMES("rank 1: expected 0 to 0");
  CHECK_STATUS(hvd_process_set_create(c, "s", ranks, 1, 6, &set, &error), HVD_INVALID);
  CHECK_NAMES("6");
  CHECK_STATUS(hvd_process_set_create(c, "s", ranks, 1, HVD_SET_RULE_CROSS, &set, &error), HVD_INVALID);
  CHECK_NAMES("HVD_SET_RULE_CROSS");
  CHECK_STATUS(hvd_process_set_create(c, "s", ranks, 1, 0, NULL, &error), HVD_INVALID);
  CHECK(set == NULL);
  CHECK_STATUS(hvd_process_set_create(c, "s", ranks, 1, 0, &set, &error), HVD_OK);
  memset(&info, 0, sizeof(info));
  CHECK_STATUS(hvd_process_set_get_info(set, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_process_set_get_info(set, &info, &error), HVD_INVALID);
  CHECK_NAMES("struct_size");
  info.struct_size = sizeof(info);
  CHECK_STATUS(hvd_process_set_get_info(set, &info, &error), HVD_OK);
  CHECK(info.rank == 0 && info.size == 1 && info.local_size == 1 && info.cross_size == 1 &&
        info.generation == 0);
  CHECK_STATUS(hvd_process_set_get_ranks(set, found, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_process_set_get_ranks(set, found, &count, &error), HVD_INVALID);
  CHECK_NAMES("1");
  CHECK(count == 0 && found[0] == 7);
  CHECK_STATUS(hvd_process_set_get_ranks(set, NULL, &count, &error), HVD_OK);
  CHECK(count == 1);
  count = 2;
  CHECK_STATUS(hvd_process_set_get_ranks(set, found, &count, &error), HVD_OK);
  CHECK(count == 1 && found[0] == 0 && found[1] == 7);
  hvd_process_set_destroy(set);
}

int main(void) {
  hvd_context *c = NULL;
  CHECK_STATUS(hvd_init(NULL, &c, &error), HVD_OK);
  if (c == NULL) return report("bad_requests");
  rows(c);
  requests(c);
  process_sets(c);
  CHECK_STATUS(hvd_shutdown(c, HVD_SECOND, &error), HVD_OK);
  hvd_destroy(c);
  return report("bad_requests");
}
