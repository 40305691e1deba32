/* Bad input to every function of direct.h, and to blocking and unconnected calls. */
#include "check.h"
#include "floats.h"
#include "hvd/async.h"
#include "hvd/connect.h"
#include "hvd/direct.h"
#include "hvd/hvd.h"

static hvd_error error;

static void pairs(hvd_context *c) {
  float a[4] = {1, 2, 3, 4};
  hvd_tensor t = floats(a, 4);
  hvd_tensor bad = t;
  bad.dtype = 77;
  CHECK_STATUS(hvd_send(NULL, "x", &t, 1, &error), HVD_INVALID);
  CHECK_NAMES("context");
  CHECK_STATUS(hvd_receive(NULL, "x", &t, 1, &error), HVD_INVALID);
  CHECK_NAMES("context");
  CHECK_STATUS(hvd_send(c, "x", NULL, 1, &error), HVD_INVALID);
  CHECK_NAMES("tensor");
  CHECK_STATUS(hvd_receive(c, "x", NULL, 1, &error), HVD_INVALID);
  CHECK_NAMES("tensor");
  CHECK_STATUS(hvd_send(c, "", &t, 1, &error), HVD_INVALID);
  CHECK_NAMES("name");
  CHECK_STATUS(hvd_receive(c, "hvd.mine", &t, 1, &error), HVD_INVALID);
  CHECK_NAMES("hvd.mine");
  CHECK_STATUS(hvd_send(c, "x", &bad, 1, &error), HVD_INVALID);
  CHECK_NAMES("77");
  CHECK_STATUS(hvd_send(c, "x", &t, 0, &error), HVD_INVALID); /* to itself */
  CHECK_NAMES("the other rank is 0");
  CHECK_STATUS(hvd_send(c, "x", &t, 1, &error), HVD_INVALID); /* there is none */
  CHECK_NAMES("the other rank is 1");
  CHECK_STATUS(hvd_receive(c, "x", &t, -1, &error), HVD_INVALID);
  CHECK_NAMES("the other rank is -1");
}

static void rooted(hvd_context *c) {
  float a[4] = {1, 2, 3, 4};
  float b[4];
  int64_t splits[1] = {3};
  hvd_tensor x = floats(a, 4);
  hvd_tensor y = floats(b, 4);
  hvd_tensor scalar = x;
  scalar.ndim = 0;
  CHECK_STATUS(hvd_reduce(NULL, "x", &x, &y, HVD_REDUCTION_SUM, 0, &error), HVD_INVALID);
  CHECK_NAMES("context");
  CHECK_STATUS(hvd_reduce(c, "x", NULL, &y, HVD_REDUCTION_SUM, 0, &error), HVD_INVALID);
  CHECK_NAMES("input");
  CHECK_STATUS(hvd_reduce(c, "x", &x, NULL, HVD_REDUCTION_SUM, 0, &error), HVD_INVALID);
  CHECK_NAMES("output");
  CHECK_STATUS(hvd_reduce(c, "x", &x, &y, 17, 0, &error), HVD_INVALID);
  CHECK_NAMES("17");
  CHECK_STATUS(hvd_reduce(c, "x", &x, &y, HVD_REDUCTION_SUM, 1, &error), HVD_INVALID);
  CHECK_NAMES("root is 1");
  CHECK_STATUS(hvd_gather(NULL, "x", &x, &y, 0, &error), HVD_INVALID);
  CHECK_NAMES("context");
  CHECK_STATUS(hvd_gather(c, "x", NULL, &y, 0, &error), HVD_INVALID);
  CHECK_NAMES("input");
  CHECK_STATUS(hvd_gather(c, "x", &x, NULL, 0, &error), HVD_INVALID);
  CHECK_NAMES("output");
  CHECK_STATUS(hvd_gather(c, "x", &scalar, &y, 0, &error), HVD_INVALID);
  CHECK_NAMES("scalar");
  CHECK_STATUS(hvd_gather(c, "x", &x, &x, 0, &error), HVD_INVALID);
  CHECK_NAMES("overlap");
  CHECK_STATUS(hvd_gather(c, "x", &x, &y, -1, &error), HVD_INVALID);
  CHECK_NAMES("root is -1");
  CHECK_STATUS(hvd_scatter(NULL, "x", &x, NULL, &y, 0, &error), HVD_INVALID);
  CHECK_NAMES("context");
  CHECK_STATUS(hvd_scatter(c, "x", NULL, NULL, &y, 0, &error), HVD_INVALID);
  CHECK_NAMES("input");
  CHECK_STATUS(hvd_scatter(c, "x", &x, NULL, NULL, 0, &error), HVD_INVALID);
  CHECK_NAMES("output");
  CHECK_STATUS(hvd_scatter(c, "x", &x, splits, &y, 0, &error), HVD_INVALID);
  CHECK_NAMES("splits");
  CHECK_NAMES("3");
  CHECK_STATUS(hvd_scatter(c, "x", &scalar, NULL, &y, 0, &error), HVD_INVALID);
  CHECK_NAMES("scalar");
  CHECK_STATUS(hvd_scatter(c, "x", &x, NULL, &y, 2, &error), HVD_INVALID);
  CHECK_NAMES("root is 2");
}

static void objects(hvd_context *c) {
  char text[] = "abc";
  void *data = text; /* results are untouched on failure */
  size_t sizes[1] = {7};
  CHECK_STATUS(hvd_allgather_object(NULL, "x", text, 3, &data, sizes, 1, &error), HVD_INVALID);
  CHECK_NAMES("context");
  CHECK_STATUS(hvd_allgather_object(c, "x", NULL, 3, &data, sizes, 1, &error), HVD_INVALID);
  CHECK_NAMES("data is NULL, but size is 3");
  CHECK_STATUS(hvd_allgather_object(c, "x", text, 3, NULL, sizes, 1, &error), HVD_INVALID);
  CHECK_NAMES("ret_data");
  CHECK_STATUS(hvd_allgather_object(c, "x", text, 3, &data, NULL, 1, &error), HVD_INVALID);
  CHECK_NAMES("ret_sizes");
  CHECK_STATUS(hvd_allgather_object(c, "x", text, 3, &data, sizes, 0, &error), HVD_INVALID);
  CHECK_NAMES("count is 0");
  CHECK_STATUS(hvd_gather_object(NULL, "x", text, 3, &data, sizes, 1, 0, &error), HVD_INVALID);
  CHECK_NAMES("context");
  CHECK_STATUS(hvd_gather_object(c, "x", NULL, 3, &data, sizes, 1, 0, &error), HVD_INVALID);
  CHECK_NAMES("data is NULL, but size is 3");
  CHECK_STATUS(hvd_gather_object(c, "x", text, 3, NULL, sizes, 1, 0, &error), HVD_INVALID);
  CHECK_NAMES("ret_data");
  CHECK_STATUS(hvd_gather_object(c, "x", text, 3, &data, NULL, 1, 0, &error), HVD_INVALID);
  CHECK_NAMES("ret_sizes");
  CHECK_STATUS(hvd_gather_object(c, "x", text, 3, &data, sizes, 0, 0, &error), HVD_INVALID);
  CHECK_NAMES("count is 0");
  CHECK_STATUS(hvd_gather_object(c, "x", text, 3, &data, sizes, 1, 1, &error), HVD_INVALID);
  CHECK_NAMES("root is 1");
  CHECK(data == text && sizes[0] == 7);
}

static void blocking(hvd_context *c) {
  hvd_request r = HVD_REQUEST_INIT;
  hvd_op *op = NULL;
  r.collective = HVD_COLLECTIVE_BARRIER;
  r.name = "x";
  CHECK_STATUS(hvd_submit_and_wait(NULL, &r, 0, &op, &error), HVD_INVALID);
  CHECK_NAMES("context");
  CHECK_STATUS(hvd_submit_and_wait(c, NULL, 0, &op, &error), HVD_INVALID);
  CHECK_NAMES("request");
  CHECK_STATUS(hvd_submit_and_wait(c, &r, 0, NULL, &error), HVD_INVALID);
  CHECK_NAMES("ret_op");
  CHECK_STATUS(hvd_submit_and_wait(c, &r, -1, &op, &error), HVD_INVALID);
  CHECK_NAMES("timeout_ns is -1");
  r.root = 3;
  CHECK_STATUS(hvd_submit_and_wait(c, &r, 0, &op, &error), HVD_INVALID);
  CHECK_NAMES("root is 3");
  CHECK(op == NULL);
}

/* A context that has not joined its job. */
static void unconnected(void) {
  hvd_context *c = NULL;
  hvd_op *op = NULL;
  hvd_request r = HVD_REQUEST_INIT;
  r.collective = HVD_COLLECTIVE_BARRIER;
  r.name = "x";
  CHECK_STATUS(hvd_context_create(NULL, NULL, &error), HVD_INVALID);
  CHECK_NAMES("ret_context");
  CHECK_STATUS(hvd_connect(NULL, 0, &error), HVD_INVALID);
  CHECK_NAMES("context");
  CHECK_STATUS(hvd_connect_begin(NULL, 0, &op, &error), HVD_INVALID);
  CHECK_NAMES("context");
  CHECK_STATUS(hvd_context_create(NULL, &c, &error), HVD_OK);
  CHECK_STATUS(hvd_connect(c, -1, &error), HVD_INVALID);
  CHECK_NAMES("timeout_ns is -1");
  CHECK_STATUS(hvd_connect_begin(c, -1, &op, &error), HVD_INVALID);
  CHECK_NAMES("timeout_ns is -1");
  CHECK_STATUS(hvd_connect_begin(c, 0, NULL, &error), HVD_INVALID);
  CHECK_NAMES("ret_op");
  CHECK_STATUS(hvd_submit_and_wait(c, &r, 0, &op, &error), HVD_INVALID);
  CHECK_STATUS(hvd_timeline_start(c, "/tmp/t", &error), HVD_INVALID);
  CHECK_STATUS(hvd_timeline_stop(c, &error), HVD_INVALID);
  CHECK_STATUS(hvd_timeline_stop(NULL, &error), HVD_INVALID);
  CHECK_NAMES("context");
  CHECK(op == NULL);
  hvd_destroy(c);
}

int main(void) {
  hvd_context *c = NULL;
  unconnected();
  CHECK_STATUS(hvd_init(NULL, &c, &error), HVD_OK);
  if (c == NULL) return report("bad_direct");
  pairs(c);
  rooted(c);
  objects(c);
  blocking(c);
  CHECK_STATUS(hvd_shutdown(c, HVD_SECOND, &error), HVD_OK);
  hvd_destroy(c);
  return report("bad_direct");
}
