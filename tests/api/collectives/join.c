/* Ranks that run out of data before the others. */
#include "hvd/direct.h"
#include "job.h"

/* Steps of training that a rank has data for: the last rank has the most. */
static int steps_of(int32_t of_rank) { return 3 + 2 * of_rank; }

/* Ranks that still have data at a step. */
static int32_t training(int step) {
  int32_t count = 0;
  int32_t r;
  for (r = 0; r < size; ++r) count += steps_of(r) > step;
  return count;
}

/* The average is over those who still have data. */
static void train_and_join(int64_t count, int grouped) {
  hvd_tensor t = vector(HVD_DTYPE_FLOAT32, count);
  hvd_tensor pair[2];
  int32_t last = -1;
  int step;
  int64_t i;
  for (step = 0; step < steps_of(rank); ++step) {
    int64_t sum = 0;
    int32_t r;
    for (r = 0; r < size; ++r) sum += steps_of(r) > step ? (r + 1) * 12 : 0;
    for (i = 0; i < count; ++i) put(HVD_DTYPE_FLOAT32, t.data, i, (rank + 1) * 12);
    pair[0] = pair[1] = t;
    pair[0].shape[0] = count / 2;
    pair[1].data = (float *)t.data + count / 2;
    pair[1].shape[0] = count - count / 2;
    if (grouped) {
      CHECK_STATUS(hvd_grouped_allreduce(context, "gradients", pair, pair, 2, HVD_REDUCTION_AVERAGE, &error),
                   HVD_OK);
    } else {
      CHECK_STATUS(hvd_allreduce(context, "gradient", &t, &t, HVD_REDUCTION_AVERAGE, &error), HVD_OK);
    }
    for (i = 0; i < count; ++i) {
      if (((float *)t.data)[i] == (float)sum / (float)training(step)) continue;
      CHECK(!"the average over those that still train");
      break;
    }
  }
  CHECK_STATUS(hvd_join(context, &last, &error), HVD_OK);
  CHECK(last == size - 1);
  free(t.data);
}

/* Rank 0 has joined: what comes from whom is told by rank all the same. */
static void sizes_by_rank(void) {
  hvd_request all = request(HVD_COLLECTIVE_ALLGATHER, "sizes by rank");
  hvd_tensor mine = vector(HVD_DTYPE_UINT8, rank);
  hvd_op *op = NULL;
  void *data = NULL;
  size_t sizes[64], count = 64;
  int64_t rows[64];
  int32_t r;
  for (r = 0; r < 64; ++r) sizes[r] = 777;
  memset(mine.data, rank, (size_t)rank);
  CHECK_STATUS(hvd_allgather_object(context, "objects by rank", mine.data, (size_t)rank, &data, sizes,
                                    (size_t)size, &error),
               HVD_OK);
  for (r = 0; r < size; ++r) CHECK(sizes[r] == (size_t)r);
  CHECK(sizes[size] == 777 && ((unsigned char *)data)[0] == 1);
  hvd_free(data);
  all.inputs = &mine;
  submit_and_wait(&all, &op);
  CHECK_STATUS(hvd_op_get_received_splits(op, rows, &count, &error), HVD_OK);
  CHECK(count == (size_t)size);
  for (r = 0; r < size; ++r) CHECK(rows[r] == r);
  hvd_op_destroy(op);
  free(mine.data);
}

/* What the ranks that have not joined can and can't do. */
static void operations_of_the_rest(void) {
  hvd_tensor t;
  hvd_tensor result = HVD_TENSOR_INIT;
  hvd_op *op = NULL;
  int32_t last = -1;
  if (size == 1) return;
  t = matrix(HVD_DTYPE_INT32, size, 2);
  if (rank == 0) {
    CHECK_STATUS(hvd_join_async(context, &op, &error), HVD_OK);
    CHECK_STATUS(hvd_op_wait(op, HVD_DEFAULT_TIMEOUT, &error), HVD_OK);
    CHECK_STATUS(hvd_op_get_last_joined(op, &last, &error), HVD_OK);
    CHECK(last > 0 && last < size);
    hvd_op_destroy(op);
  } else {
    int64_t sum = 0;
    int32_t r;
    for (r = 1; r < size; ++r) sum += some(HVD_DTYPE_INT32, 1, r);
    fill(&t, rank);
    CHECK_STATUS(hvd_allreduce(context, "of the rest", &t, &t, HVD_REDUCTION_SUM, &error), HVD_OK);
    CHECK(get(HVD_DTYPE_INT32, t.data, 1) == sum);
    fill(&t, rank);
    CHECK_STATUS(hvd_allgather(context, "of the rest", &t, &result, &error), HVD_OK);
    CHECK(result.shape[0] == size * (size - 1));
    CHECK(get(HVD_DTYPE_INT32, result.data, 2 * size * (rank - 1) + 3) == some(HVD_DTYPE_INT32, 3, rank));
    hvd_free(result.data);
    sizes_by_rank();
    CHECK_STATUS(hvd_barrier(context, "of the rest", &error), HVD_OK);
    CHECK_STATUS(hvd_broadcast(context, "of the rest", &t, 1, &error), HVD_OK);
    CHECK(holds(&t, 1));
    CHECK_STATUS(hvd_broadcast(context, "from one who has joined", &t, 0, &error), HVD_MISMATCH);
    CHECK_NAMES("0");
    result.data = NULL;
    CHECK_STATUS(hvd_alltoall(context, "of the rest", &t, NULL, &result, NULL, &error), HVD_INVALID);
    CHECK_STATUS(hvd_reducescatter(context, "of the rest", &t, &result, HVD_REDUCTION_SUM, &error),
                 HVD_INVALID);
    CHECK_STATUS(hvd_join(context, &last, &error), HVD_OK);
    CHECK(last > 0 && last < size);
  }
  free(t.data);
}

/* Who has joined joins no second time, but may take part in what it calls all the same. */
static void called_all_the_same(void) {
  hvd_op *op = NULL;
  hvd_op *second = NULL;
  int32_t value = rank;
  hvd_tensor t = HVD_TENSOR_INIT;
  t.data = &value;
  t.dtype = HVD_DTYPE_INT32;
  if (size == 1) return;
  if (rank == 0) {
    CHECK_STATUS(hvd_join_async(context, &op, &error), HVD_OK);
    CHECK_STATUS(hvd_join_async(context, &second, &error), HVD_INVALID);
    CHECK(second == NULL);
    CHECK_STATUS(hvd_broadcast(context, "of who has joined", &t, 0, &error), HVD_OK);
    CHECK_STATUS(hvd_op_wait(op, HVD_DEFAULT_TIMEOUT, &error), HVD_OK);
    hvd_op_destroy(op);
  } else {
    /* They wait for nobody who has joined, and try again until rank 0 has called it: it must not find that
     * all have joined, and its first join complete, before it tries the second. */
    hvd_status status;
    do status = hvd_broadcast(context, "of who has joined", &t, 0, &error);
    while (status == HVD_MISMATCH);
    CHECK_STATUS(status, HVD_OK);
    CHECK(value == 0);
    CHECK_STATUS(hvd_join(context, NULL, &error), HVD_OK);
  }
}

void test_join(void) {
  int round;
  for (round = 0; round < 3; ++round) {
    train_and_join(10, round % 2);
    train_and_join(100000, round % 2);
  }
  operations_of_the_rest();
  called_all_the_same();
  CHECK_STATUS(hvd_join(context, NULL, &error), HVD_OK); /* nobody has data */
}
