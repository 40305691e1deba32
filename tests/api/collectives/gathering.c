/* Allgather, reducescatter, alltoall: rows that differ between ranks, memory of the caller and of the
 * library. */
#include "job.h"

/* Rows that `of_rank` gives to an allgather. */
static int64_t rows_of(int32_t of_rank, int64_t most) {
  return most == 0 ? 0 : (of_rank * 5 + 2) % (most + 1);
}

static int gathered(const hvd_tensor *result, int64_t most, int64_t columns) {
  int64_t row = 0;
  int32_t r;
  int64_t i;
  for (r = 0; r < size; ++r) {
    for (i = 0; i < rows_of(r, most) * columns; ++i) {
      if (get(result->dtype, result->data, row * columns + i) != some(result->dtype, i, r)) return 0;
    }
    row += rows_of(r, most);
  }
  return result->ndim == 2 && result->shape[0] == row && result->shape[1] == columns;
}

static void allgather(hvd_dtype dtype, int64_t most, int64_t columns) {
  hvd_tensor input = matrix(dtype, rows_of(rank, most), columns);
  hvd_tensor room = matrix(dtype, (most + 1) * size, columns);
  hvd_tensor result = HVD_TENSOR_INIT;
  char name[80];
  snprintf(name, sizeof(name), "allgather.%s", hvd_dtype_name(dtype));
  fill(&input, rank);
  CHECK_STATUS(hvd_allgather(context, name, &input, &result, &error), HVD_OK);
  CHECK(result.dtype == dtype && gathered(&result, most, columns));
  hvd_free(result.data);
  CHECK_STATUS(hvd_allgather(context, name, &input, &room, &error), HVD_OK);
  CHECK(gathered(&room, most, columns));
  free(input.data);
  free(room.data);
}

/* Of `rows` rows, those of `of_rank`: evenly, the first ranks one more. */
static int64_t share(int64_t rows, int32_t of_rank) { return rows / size + (of_rank < rows % size ? 1 : 0); }

static int scattered(const hvd_tensor *result, int64_t first, int64_t rows, int64_t columns) {
  int64_t i;
  int32_t r;
  for (i = 0; i < rows * columns; ++i) {
    int64_t sum = 0;
    for (r = 0; r < size; ++r) sum += some(result->dtype, first * columns + i, r);
    if (result->dtype == HVD_DTYPE_BOOL) sum = sum != 0;
    if (get(result->dtype, result->data, i) != sum) return 0;
  }
  return result->ndim == 2 && result->shape[0] == rows && result->shape[1] == columns;
}

static void reducescatter(hvd_dtype dtype, int64_t rows, int64_t columns) {
  hvd_tensor input = matrix(dtype, rows, columns);
  hvd_tensor result = HVD_TENSOR_INIT;
  hvd_tensor room;
  int64_t first = 0;
  int32_t r;
  char name[80];
  for (r = 0; r < rank; ++r) first += share(rows, r);
  room = matrix(dtype, share(rows, rank), columns);
  snprintf(name, sizeof(name), "reducescatter.%s", hvd_dtype_name(dtype));
  fill(&input, rank);
  CHECK_STATUS(hvd_reducescatter(context, name, &input, &result, HVD_REDUCTION_SUM, &error), HVD_OK);
  CHECK(result.dtype == dtype && scattered(&result, first, share(rows, rank), columns));
  hvd_free(result.data);
  CHECK_STATUS(hvd_reducescatter(context, name, &input, &room, HVD_REDUCTION_SUM, &error), HVD_OK);
  CHECK(scattered(&room, first, share(rows, rank), columns));
  CHECK(holds(&input, rank));
  free(input.data);
  free(room.data);
}

/* Rank r gets r + 1 rows, by splits; the average, with a factor. */
static void reducescatter_by_splits(void) {
  const int64_t rows = size * (size + 1) / 2;
  const int64_t first = rank * (rank + 1) / 2;
  hvd_tensor input = matrix(HVD_DTYPE_FLOAT32, rows, 3);
  hvd_request r = request(HVD_COLLECTIVE_REDUCESCATTER, "by splits");
  hvd_tensor result = HVD_TENSOR_INIT;
  hvd_op *op = NULL;
  int64_t splits[64];
  int64_t i;
  for (i = 0; i < size; ++i) splits[i] = i + 1;
  for (i = 0; i < rows * 3; ++i) put(HVD_DTYPE_FLOAT32, input.data, i, i * size);
  r.inputs = &input;
  r.reduction = HVD_REDUCTION_AVERAGE;
  r.postscale = 2;
  r.splits = splits;
  r.split_count = (size_t)size;
  submit_and_wait(&r, &op);
  CHECK_STATUS(hvd_op_get_output(op, 0, &result, &error), HVD_OK);
  CHECK(result.ndim == 2 && result.shape[0] == rank + 1 && result.shape[1] == 3);
  for (i = 0; i < (rank + 1) * 3; ++i)
    CHECK(get(HVD_DTYPE_FLOAT32, result.data, i) == 2 * size * (first * 3 + i));
  hvd_op_destroy(op);
  free(input.data);
}

/* Rows that `from` sends to `to`. */
static int64_t sent(int32_t from, int32_t to, int64_t most) {
  return most == 0 ? 0 : (from * 3 + to * 2 + 1) % (most + 1);
}

static int exchanged(const hvd_tensor *result, const int64_t *received, int64_t most, int64_t columns) {
  int64_t at = 0;
  int32_t r;
  for (r = 0; r < size; ++r) {
    int64_t before = 0;
    int32_t to;
    int64_t i;
    for (to = 0; to < rank; ++to) before += sent(r, to, most);
    if (received[r] != sent(r, rank, most)) return 0;
    for (i = 0; i < received[r] * columns; ++i) {
      if (get(result->dtype, result->data, at * columns + i) != some(result->dtype, before * columns + i, r))
        return 0;
    }
    at += received[r];
  }
  return result->ndim == 2 && result->shape[0] == at && result->shape[1] == columns;
}

static void alltoall(hvd_dtype dtype, int64_t most, int64_t columns) {
  int64_t splits[64], received[64];
  int64_t rows = 0;
  int32_t r;
  hvd_tensor input, room;
  hvd_tensor result = HVD_TENSOR_INIT;
  hvd_op *op = NULL;
  size_t count = 1000;
  char name[80];
  for (r = 0; r < size; ++r) rows += splits[r] = sent(rank, r, most);
  input = matrix(dtype, rows, columns);
  room = matrix(dtype, (most + 1) * size, columns);
  fill(&input, rank);
  snprintf(name, sizeof(name), "alltoall.%s", hvd_dtype_name(dtype));
  memset(received, 0x5a, sizeof(received));
  CHECK_STATUS(hvd_alltoall(context, name, &input, splits, &result, received, &error), HVD_OK);
  CHECK(result.dtype == dtype && exchanged(&result, received, most, columns));
  hvd_free(result.data);
  CHECK_STATUS(hvd_alltoall(context, name, &input, splits, &room, NULL, &error), HVD_OK);
  CHECK(exchanged(&room, received, most, columns));
  room.shape[0] = (most + 1) * size;
  CHECK_STATUS(hvd_alltoall_async(context, name, &input, splits, &room, &op, &error), HVD_OK);
  memset(splits, 0, sizeof(splits)); /* they were copied */
  CHECK_STATUS(hvd_op_wait(op, HVD_DEFAULT_TIMEOUT, &error), HVD_OK);
  CHECK_STATUS(hvd_op_get_received_splits(op, NULL, &count, &error), HVD_OK);
  CHECK(count == (size_t)size);
  count = (size_t)size - 1;
  CHECK_STATUS(hvd_op_get_received_splits(op, received, &count, &error), HVD_INVALID);
  count = 64;
  CHECK_STATUS(hvd_op_get_received_splits(op, received, &count, &error), HVD_OK);
  CHECK(count == (size_t)size);
  CHECK_STATUS(hvd_op_get_output(op, 0, &result, &error), HVD_OK);
  CHECK(result.data == room.data && exchanged(&result, received, most, columns));
  hvd_op_destroy(op);
  free(input.data);
  free(room.data);
}

static void even_alltoall(void) {
  hvd_tensor input = matrix(HVD_DTYPE_INT32, 2 * size, 2);
  hvd_tensor result = HVD_TENSOR_INIT;
  int32_t r;
  int64_t i;
  for (i = 0; i < 4 * size; ++i) put(HVD_DTYPE_INT32, input.data, i, rank * 1000 + i);
  CHECK_STATUS(hvd_alltoall(context, "even", &input, NULL, &result, NULL, &error), HVD_OK);
  for (r = 0; r < size; ++r) {
    for (i = 0; i < 4; ++i) CHECK(get(HVD_DTYPE_INT32, result.data, r * 4 + i) == r * 1000 + rank * 4 + i);
  }
  hvd_free(result.data);
  free(input.data);
  if (size > 1) {
    input = matrix(HVD_DTYPE_INT32, 2 * size + 1, 2);
    CHECK_STATUS(hvd_alltoall(context, "odd", &input, NULL, &result, NULL, &error), HVD_INVALID);
    free(input.data);
  }
}

/* Too small a room is this rank's own affair: it is told what it needs, the others have their result. */
static void small_rooms(void) {
  hvd_tensor input = matrix(HVD_DTYPE_FLOAT32, 4, 2);
  hvd_tensor output = matrix(HVD_DTYPE_FLOAT32, 4 * size, 2);
  const hvd_status expected = rank == size - 1 ? HVD_INVALID : HVD_OK;
  int64_t splits[64];
  char needed[16];
  int32_t r;
  snprintf(needed, sizeof(needed), "%d", (int)(4 * size));
  if (rank == size - 1) output.shape[0] = 4 * size - 1;
  CHECK_STATUS(hvd_allgather(context, "small room", &input, &output, &error), expected);
  if (expected == HVD_INVALID) CHECK_NAMES(needed);
  output.shape[0] = rank == size - 1 ? 4 * size - 1 : 4 * size;
  for (r = 0; r < size; ++r) splits[r] = r == size - 1 ? 4 : 0; /* the last one gets all */
  CHECK_STATUS(hvd_alltoall(context, "small room", &input, splits, &output, NULL, &error), expected);
  if (expected == HVD_INVALID) CHECK_NAMES(needed);
  free(input.data);
  input = matrix(HVD_DTYPE_FLOAT32, 3 * size, 2);
  output.shape[0] = rank == size - 1 ? 2 : 3;
  CHECK_STATUS(hvd_reducescatter(context, "small room", &input, &output, HVD_REDUCTION_SUM, &error),
               expected);
  if (expected == HVD_INVALID) CHECK_NAMES("3");
  free(input.data);
  free(output.data);
}

/* An op that failed has no output; one that succeeded keeps it until it is destroyed. */
static void outputs_of_ops(void) {
  hvd_tensor input = matrix(HVD_DTYPE_INT64, 2, 2);
  hvd_tensor none = HVD_TENSOR_INIT;
  hvd_tensor a = HVD_TENSOR_INIT;
  hvd_tensor b = HVD_TENSOR_INIT;
  hvd_op *op = NULL;
  int32_t last = 0;
  size_t count = 0;
  fill(&input, rank);
  CHECK_STATUS(hvd_allgather_async(context, "output", &input, &none, &op, &error), HVD_OK);
  CHECK_STATUS(hvd_op_wait(op, HVD_DEFAULT_TIMEOUT, &error), HVD_OK);
  CHECK_STATUS(hvd_op_get_output(op, 0, &a, &error), HVD_OK);
  CHECK_STATUS(hvd_op_get_output(op, 0, &b, &error), HVD_OK);
  CHECK(a.data != NULL && a.data == b.data && a.shape[0] == 2 * size && none.data == NULL);
  CHECK_STATUS(hvd_op_get_output(op, 1, &b, &error), HVD_INVALID);
  CHECK_STATUS(hvd_op_get_received_splits(op, NULL, &count, &error), HVD_OK);
  CHECK(count == (size_t)size);
  CHECK_STATUS(hvd_op_get_last_joined(op, &last, &error), HVD_INVALID);
  hvd_op_destroy(op);
  CHECK_STATUS(hvd_allreduce_async(context, "output", &input, &input, HVD_REDUCTION_SUM, &op, &error),
               HVD_OK);
  CHECK_STATUS(hvd_op_wait(op, HVD_DEFAULT_TIMEOUT, &error), HVD_OK);
  CHECK_STATUS(hvd_op_get_output(op, 0, &a, &error), HVD_OK);
  CHECK(a.data == input.data && a.ndim == 2 && a.shape[1] == 2);
  CHECK_STATUS(hvd_op_get_received_splits(op, NULL, &count, &error), HVD_INVALID);
  hvd_op_destroy(op);
  free(input.data);
}

void test_gathering(void) {
  hvd_dtype dtype;
  for (dtype = HVD_DTYPE_UINT8; dtype <= HVD_DTYPE_BOOL; ++dtype) {
    allgather(dtype, 0, 3);
    allgather(dtype, 4, 3);
    allgather(dtype, 40, 1000);
    reducescatter(dtype, 0, 2);
    reducescatter(dtype, 2, 2);
    reducescatter(dtype, 4 * size + 1, 3);
    reducescatter(dtype, 31, 5000);
    alltoall(dtype, 0, 2);
    alltoall(dtype, 3, 2);
    alltoall(dtype, 30, 2000);
  }
  reducescatter_by_splits();
  even_alltoall();
  small_rooms();
  outputs_of_ops();
}
