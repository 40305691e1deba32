/* What goes between two ranks, to one rank or from one; objects; operations without a name. */
#include "hvd/direct.h"

#include "job.h"

/* Every pair in both directions, under one name at the same time. */
static void everybody_to_everybody(int64_t count) {
  hvd_tensor out[64], in[64];
  hvd_op *ops[128];
  int32_t r;
  size_t n = 0;
  for (r = 0; r < size; ++r) {
    out[r] = vector(HVD_DTYPE_INT32, count);
    in[r] = vector(HVD_DTYPE_INT32, count);
    fill(&out[r], 100 * rank + r);
    if (r == rank) continue;
    hvd_request send = request(HVD_COLLECTIVE_SEND, "letter"),
                receive = request(HVD_COLLECTIVE_RECEIVE, "letter");
    send.root = receive.root = r;
    send.inputs = &out[r];
    receive.outputs = &in[r];
    CHECK_STATUS(hvd_submit(context, &send, &ops[n++], &error), HVD_OK);
    CHECK_STATUS(hvd_submit(context, &receive, &ops[n++], &error), HVD_OK);
  }
  for (size_t i = 0; i < n; ++i) {
    CHECK_STATUS(hvd_op_wait(ops[i], 0, &error), HVD_OK);
    hvd_op_destroy(ops[i]);
  }
  for (r = 0; r < size; ++r) {
    if (r != rank) CHECK(holds(&in[r], 100 * r + rank));
    free(out[r].data);
    free(in[r].data);
  }
}

static void ring(void) {
  hvd_tensor mine = vector(HVD_DTYPE_FLOAT64, 200), theirs = vector(HVD_DTYPE_FLOAT64, 200);
  const int32_t next = (rank + 1) % size, last = (rank + size - 1) % size;
  memset(mine.data, rank + 1, 1600);
  if (rank % 2 == 0) CHECK_STATUS(hvd_send(context, NULL, &mine, next, &error), HVD_OK);
  CHECK_STATUS(hvd_receive(context, NULL, &theirs, last, &error), HVD_OK);
  if (rank % 2 != 0) CHECK_STATUS(hvd_send(context, NULL, &mine, next, &error), HVD_OK);
  CHECK(((unsigned char *)theirs.data)[1599] == last + 1);
  free(mine.data);
  free(theirs.data);
}

/* hvd_submit_and_wait: over and over, so that the ranks come to meet without messages; and with results to
 * ask for. */
static void submitted_and_awaited(void) {
  hvd_tensor t = vector(HVD_DTYPE_INT32, 5), rows = HVD_TENSOR_INIT;
  hvd_request sum = request(HVD_COLLECTIVE_ALLREDUCE, "at once"),
              all = request(HVD_COLLECTIVE_ALLGATHER, "all rows");
  hvd_op *const unset = (hvd_op *)&t;
  hvd_op *op;
  int i;
  sum.inputs = sum.outputs = all.inputs = &t;
  for (i = 0; i < 20; ++i) {
    op = unset;
    ((int32_t *)t.data)[4] = rank + i;
    CHECK_STATUS(hvd_submit_and_wait(context, &sum, HVD_DEFAULT_TIMEOUT, &op, &error), HVD_OK);
    CHECK(op == NULL && ((int32_t *)t.data)[4] == size * i + size * (size - 1) / 2);
  }
  op = unset;
  CHECK_STATUS(hvd_submit_and_wait(context, &all, HVD_DEFAULT_TIMEOUT, &op, &error), HVD_OK);
  CHECK(op != NULL && op != unset);
  CHECK_STATUS(hvd_op_get_output(op, 0, &rows, &error), HVD_OK);
  CHECK(rows.shape[0] == 5 * size);
  hvd_op_destroy(op);
  /* Rank 0 alone: it goes on, and is the same operation. */
  op = unset;
  if (rank == 0) {
    CHECK_STATUS(hvd_submit_and_wait(context, &sum, HVD_MILLISECOND, &op, &error), HVD_OK);
    CHECK(op != unset && (op != NULL || size == 1));
    CHECK_STATUS(hvd_barrier(context, "rank 0 has called", &error), HVD_OK);
    if (op != NULL) CHECK_STATUS(hvd_op_wait(op, HVD_DEFAULT_TIMEOUT, &error), HVD_OK);
    hvd_op_destroy(op);
  } else {
    CHECK_STATUS(hvd_barrier(context, "rank 0 has called", &error), HVD_OK);
    CHECK_STATUS(hvd_submit_and_wait(context, &sum, HVD_DEFAULT_TIMEOUT, &op, &error), HVD_OK);
  }
  op = unset;
  sum.timeout_ns = -1;
  CHECK_STATUS(hvd_submit_and_wait(context, &sum, HVD_DEFAULT_TIMEOUT, &op, &error), HVD_INVALID);
  CHECK(op == unset);
  CHECK_STATUS(hvd_submit_and_wait(context, &sum, HVD_DEFAULT_TIMEOUT, NULL, &error), HVD_INVALID);
  free(t.data);
}

static void bad_partners(void) {
  hvd_tensor t = vector(HVD_DTYPE_FLOAT32, 3), odd = vector(HVD_DTYPE_FLOAT32, 3 + rank);
  hvd_process_set *set = NULL;
  hvd_request r = request(HVD_COLLECTIVE_SEND, "m");
  hvd_op *op = NULL;
  int32_t ranks[2] = {0, 1};
  CHECK_STATUS(hvd_send(context, "x", &t, rank, &error), HVD_INVALID);
  CHECK_NAMES("the other rank is");
  CHECK_STATUS(hvd_receive(context, "x", &t, size, &error), HVD_INVALID);
  CHECK_STATUS(hvd_receive(context, "x", &t, -1, &error), HVD_INVALID);
  CHECK_NAMES("-1");
  CHECK_STATUS(hvd_send(context, "x", NULL, (rank + 1) % size, &error), HVD_INVALID);
  CHECK_NAMES("tensor");
  CHECK_STATUS(hvd_reduce(context, "x", &t, &t, HVD_REDUCTION_SUM, size, &error), HVD_INVALID);
  CHECK_NAMES("root is");
  CHECK_STATUS(hvd_gather(context, "x", &t, &t, -1, &error), HVD_INVALID);
  CHECK_NAMES("root is -1");
  CHECK_STATUS(hvd_scatter(context, "x", &t, NULL, NULL, 0, &error), HVD_INVALID);
  CHECK_NAMES("output");
  if (size > 1 && rank < 2) { /* 3 elements, and 4: both are told */
    const hvd_status status =
        rank == 0 ? hvd_send(context, "odd", &odd, 1, &error) : hvd_receive(context, "odd", &odd, 0, &error);
    CHECK(status == HVD_MISMATCH);
    CHECK_NAMES("send 'odd': shape");
  }
  if (size > 2) { /* both have to be members of the set */
    CHECK_STATUS(hvd_process_set_create(context, "pair", ranks, 2, 0, &set, &error), HVD_OK);
    r.process_set = set;
    r.inputs = &t;
    r.root = rank == 2 ? 0 : 2;
    CHECK_STATUS(hvd_submit(context, &r, &op, &error), HVD_INVALID);
    if (rank == 0) CHECK_NAMES("rank 2 is no member of process set 'pair'");
    if (rank < 2) {
      r = request(rank == 0 ? HVD_COLLECTIVE_SEND : HVD_COLLECTIVE_RECEIVE, "m");
      r.process_set = set;
      r.root = 1 - rank;
      if (rank == 0) r.inputs = &t;
      if (rank == 1) r.outputs = &t;
      if (rank == 0) fill(&t, 7);
      submit_and_wait(&r, NULL);
      CHECK(holds(&t, 7));
    }
    hvd_process_set_destroy(set);
  }
  free(t.data);
  free(odd.data);
}

static void to_one(int64_t count, int32_t root) {
  hvd_tensor in = vector(HVD_DTYPE_FLOAT64, count), out = vector(HVD_DTYPE_FLOAT64, count),
             none = HVD_TENSOR_INIT;
  hvd_tensor rows = matrix(HVD_DTYPE_INT32, rank + 1, count), all = HVD_TENSOR_INIT, mine = HVD_TENSOR_INIT;
  hvd_request r = request(HVD_COLLECTIVE_GATHER, "op");
  hvd_op *op = NULL;
  int64_t from[64];
  size_t members = 64;
  int64_t i, at = 0;
  for (i = 0; i < count; ++i) ((double *)in.data)[i] = (double)(rank + 1);
  CHECK_STATUS(
      hvd_reduce(context, "sum", &in, rank == root ? &out : NULL, HVD_REDUCTION_AVERAGE, root, &error),
      HVD_OK);
  if (rank == root) CHECK(count == 0 || ((double *)out.data)[count - 1] == (size + 1) / 2.0);
  CHECK(((double *)in.data)[0] == rank + 1);

  for (i = 0; i < (rank + 1) * count; ++i) ((int32_t *)rows.data)[i] = rank;
  CHECK_STATUS(hvd_gather(context, "rows", &rows, rank == root ? &all : NULL, root, &error), HVD_OK);
  if (rank == root) {
    CHECK(all.ndim == 2 && all.shape[0] == (int64_t)size * (size + 1) / 2 && all.shape[1] == count);
    for (int32_t k = 0; k < size; ++k) {
      at += k + 1;
      CHECK(((int32_t *)all.data)[at * count - 1] == k);
    }
  }
  r.inputs = &rows;
  r.root = root;
  submit_and_wait(&r, &op);
  if (rank == root) {
    CHECK_STATUS(hvd_op_get_received_splits(op, from, &members, &error), HVD_OK);
    CHECK(members == (size_t)size && from[size - 1] == size);
  }
  CHECK_STATUS(hvd_op_get_output(op, 0, &none, &error), HVD_OK);
  CHECK(none.shape[0] == (rank == root ? (int64_t)size * (size + 1) / 2 : 0));
  hvd_op_destroy(op);

  /* Back again, in the pieces in which they came. */
  for (int32_t k = 0; k < size; ++k) from[k] = k + 1;
  mine.dtype = HVD_DTYPE_INT32;
  mine.ndim = 2;
  mine.shape[1] = count;
  CHECK_STATUS(hvd_scatter(context, "pieces", rank == root ? &all : NULL, rank == root ? from : NULL, &mine,
                           root, &error),
               HVD_OK);
  CHECK(mine.shape[0] == rank + 1 && memcmp(mine.data, rows.data, (size_t)((rank + 1) * count) * 4) == 0);
  hvd_free(mine.data);
  /* Evenly, into room of the caller's that is larger than needed. */
  mine = matrix(HVD_DTYPE_INT32, 100, count);
  CHECK_STATUS(hvd_scatter(context, "even", rank == root ? &all : NULL, NULL, &mine, root, &error), HVD_OK);
  at = (int64_t)size * (size + 1) / 2;
  CHECK(mine.shape[0] == at / size + (rank < at % size ? 1 : 0));
  free(mine.data);
  hvd_free(all.data);
  free(in.data);
  free(out.data);
  free(rows.data);
}

static void objects(void) {
  char text[300];
  const size_t length = 3 * (size_t)rank;
  void *all = NULL;
  size_t sizes[64], at = 0;
  hvd_request r = request(HVD_COLLECTIVE_BROADCAST_OBJECT, "op");
  hvd_tensor bytes = HVD_TENSOR_INIT, got = HVD_TENSOR_INIT;
  hvd_op *op = NULL;
  memset(text, 'a' + rank % 26, sizeof(text));
  CHECK_STATUS(hvd_allgather_object(context, "all", text, length, &all, sizes, (size_t)size - 1, &error),
               HVD_INVALID);
  CHECK_NAMES("count is");
  CHECK_STATUS(hvd_allgather_object(context, "all", NULL, 3, &all, sizes, 64, &error), HVD_INVALID);
  CHECK_NAMES("data is NULL, but size is 3");
  CHECK_STATUS(hvd_allgather_object(context, "all", text, length, &all, sizes, 64, &error), HVD_OK);
  for (int32_t k = 0; k < size; ++k) {
    CHECK(sizes[k] == 3 * (size_t)k && (k == 0 || ((char *)all)[at] == 'a' + k % 26));
    at += sizes[k];
  }
  CHECK((all == NULL) == (at == 0));
  hvd_free(all);
  CHECK_STATUS(hvd_gather_object(context, "one", text, length, &all, sizes, 64, size - 1, &error), HVD_OK);
  CHECK(sizes[size - 1] == (rank == size - 1 ? 3 * (size_t)(size - 1) : 0));
  CHECK((all != NULL) == (rank == size - 1 && size > 1));
  hvd_free(all);

  bytes.data = text;
  bytes.dtype = HVD_DTYPE_UINT8;
  bytes.ndim = 1;
  bytes.shape[0] = 300;
  r.root = size - 1;
  if (rank == r.root) r.inputs = &bytes;
  submit_and_wait(&r, &op);
  CHECK_STATUS(hvd_op_get_output(op, 0, &got, &error), HVD_OK);
  CHECK(got.dtype == HVD_DTYPE_UINT8 && got.ndim == 1 && got.shape[0] == 300);
  CHECK(((char *)got.data)[299] == 'a' + (size - 1) % 26);
  hvd_op_destroy(op);
  bytes.dtype = HVD_DTYPE_INT8;
  if (rank == r.root) {
    CHECK_STATUS(hvd_submit(context, &r, &op, &error), HVD_INVALID);
    CHECK_NAMES("expected uint8");
  }
}

/* Numbers are spent on what every rank sees: what fails on one rank alone does not put it out of step. */
static void without_names(void) {
  hvd_tensor t = vector(HVD_DTYPE_INT32, 8), odd = vector(HVD_DTYPE_INT32, 8);
  hvd_process_set *set = NULL;
  for (int i = 0; i < 20; ++i) {
    hvd_request r = request(HVD_COLLECTIVE_BARRIER, NULL);
    if (i % 3 == rank % 3) {
      odd.shape[0] = 7;
      CHECK_STATUS(hvd_allreduce(context, NULL, &t, &odd, HVD_REDUCTION_SUM, &error), HVD_INVALID);
    }
    memset(t.data, 0, 32);
    ((int32_t *)t.data)[7] = 1;
    CHECK_STATUS(hvd_allreduce(context, NULL, &t, &t, HVD_REDUCTION_SUM, &error), HVD_OK);
    CHECK(((int32_t *)t.data)[7] == size);
    if (i == 10)
      CHECK_STATUS(hvd_process_set_create(context, "us", NULL, 0, HVD_SET_RULE_LOCAL, &set, &error), HVD_OK);
    r.process_set = set; /* it has numbers of its own */
    submit_and_wait(&r, NULL);
  }
  hvd_process_set_destroy(set);
  free(t.data);
  free(odd.data);
}

void test_direct(void) {
  submitted_and_awaited();
  everybody_to_everybody(5);
  everybody_to_everybody(100000);
  if (size > 1 && size % 2 == 0) ring();
  if (size > 1) bad_partners();
  to_one(2, 0);
  to_one(20000, size - 1);
  objects();
  without_names();
}
