/* Ranks that disagree: the same message on every rank, and nothing is broken. */
#include "job.h"

/* The last rank does it otherwise. */
static int odd(void) { return rank == size - 1; }

static void expect_mismatch(const hvd_request *r, const char *names) {
  submit_mismatch(r);
  CHECK_NAMES(r->name);
  CHECK_NAMES(names);
  check_same_message("mismatch");
}

static void shapes_and_dtypes(int64_t count) {
  hvd_tensor t = vector(HVD_DTYPE_FLOAT32, odd() ? count + 1 : count);
  hvd_request r = request(HVD_COLLECTIVE_ALLREDUCE, "shape");
  r.inputs = r.outputs = &t;
  expect_mismatch(&r, "shape");
  t.shape[0] = count;
  t.dtype = odd() ? HVD_DTYPE_INT32 : HVD_DTYPE_FLOAT32;
  r.name = "dtype";
  expect_mismatch(&r, "int32");
  t.dtype = HVD_DTYPE_FLOAT32;
  r.name = "reduction";
  r.reduction = odd() ? HVD_REDUCTION_MIN : HVD_REDUCTION_SUM;
  expect_mismatch(&r, "reduction");
  r.reduction = 0;
  r.name = "prescale";
  r.prescale = odd() ? 2 : 1;
  expect_mismatch(&r, "scale");
  r.prescale = 0;
  r.name = "postscale";
  r.postscale = odd() ? 2 : 1;
  expect_mismatch(&r, "scale");
  r.postscale = 0;
  r.name = "collective";
  r.inputs = &t;
  if (odd()) {
    r = request(HVD_COLLECTIVE_BROADCAST, "collective");
    r.outputs = &t;
  }
  expect_mismatch(&r, "broadcast");
  r = request(HVD_COLLECTIVE_BROADCAST, "root");
  r.outputs = &t;
  r.root = odd() ? size - 1 : 0;
  expect_mismatch(&r, "root");
  r.root = 0;
  r.name = "broadcast shape";
  t.shape[0] = odd() ? count - 1 : count;
  expect_mismatch(&r, "shape");
  free(t.data);
}

static void rows(int64_t columns) {
  hvd_tensor t = matrix(HVD_DTYPE_FLOAT32, 2 * size, odd() ? columns + 1 : columns);
  int64_t splits[64];
  int32_t i;
  hvd_request r = request(HVD_COLLECTIVE_ALLGATHER, "columns of allgather");
  r.inputs = &t;
  expect_mismatch(&r, "shape");
  r.collective = HVD_COLLECTIVE_ALLTOALL;
  r.name = "columns of alltoall";
  expect_mismatch(&r, "shape");
  r.collective = HVD_COLLECTIVE_REDUCESCATTER;
  r.name = "columns of reducescatter";
  expect_mismatch(&r, "shape");
  t.shape[1] = columns;
  for (i = 0; i < size; ++i) splits[i] = 2;
  if (odd()) {
    splits[0] = 1;
    splits[size - 1] = 3;
  }
  r.name = "splits of reducescatter";
  r.splits = splits;
  r.split_count = (size_t)size;
  expect_mismatch(&r, "split");
  free(t.data);
}

static void groups(void) {
  hvd_tensor pair[3];
  hvd_request r = request(HVD_COLLECTIVE_ALLREDUCE, "number of tensors");
  pair[0] = vector(HVD_DTYPE_FLOAT32, 3);
  pair[1] = vector(HVD_DTYPE_FLOAT32, 3);
  pair[2] = vector(HVD_DTYPE_FLOAT32, 3);
  r.inputs = r.outputs = pair;
  r.count = odd() ? 3 : 2;
  expect_mismatch(&r, "");
  r.count = 2;
  r.name = "second tensor";
  pair[1].shape[0] = odd() ? 2 : 3;
  expect_mismatch(&r, "shape");
  free(pair[0].data);
  free(pair[1].data);
  free(pair[2].data);
}

/* A shape that was right a hundred times, and then is another one: on all ranks, and on one. */
static void after_many(void) {
  hvd_tensor t = vector(HVD_DTYPE_INT32, 20);
  hvd_request r = request(HVD_COLLECTIVE_ALLREDUCE, "many");
  int i;
  r.inputs = r.outputs = &t;
  for (i = 0; i < 100; ++i) {
    t.shape[0] = i < 50 ? 20 : 15;
    put(HVD_DTYPE_INT32, t.data, 14, rank + i);
    submit_and_wait(&r, NULL);
    CHECK(get(HVD_DTYPE_INT32, t.data, 14) == size * (size - 1) / 2 + i * size);
  }
  t.shape[0] = odd() ? 20 : 15;
  if (size > 1) expect_mismatch(&r, "shape");
  t.shape[0] = 20;
  put(HVD_DTYPE_INT32, t.data, 14, rank);
  submit_and_wait(&r, NULL);
  CHECK(get(HVD_DTYPE_INT32, t.data, 14) == size * (size - 1) / 2);
  free(t.data);
}

void test_mismatches(void) {
  if (size > 1) {
    shapes_and_dtypes(5);
    shapes_and_dtypes(100000);
    rows(3);
    rows(20000);
    groups();
  }
  after_many();
}
