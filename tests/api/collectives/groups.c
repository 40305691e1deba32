/* Groups: tensors of several dtypes and sizes as one operation. */
#include "job.h"

enum { TENSORS = 30 };

static const hvd_dtype kDtypes[] = {HVD_DTYPE_FLOAT32, HVD_DTYPE_INT32,   HVD_DTYPE_FLOAT16,
                                    HVD_DTYPE_UINT8,   HVD_DTYPE_FLOAT64, HVD_DTYPE_FLOAT32};

static void make(hvd_tensor *tensors, int64_t step) {
  int i;
  for (i = 0; i < TENSORS; ++i) {
    tensors[i] = vector(kDtypes[i % 6], i % 7 == 3 ? 0 : i * step + 1);
    fill(&tensors[i], rank);
  }
}

static void drop(hvd_tensor *tensors) {
  int i;
  for (i = 0; i < TENSORS; ++i) free(tensors[i].data);
}

static int summed(const hvd_tensor *tensor) {
  int64_t i;
  int32_t r;
  for (i = 0; i < elements(tensor); ++i) {
    int64_t sum = 0;
    for (r = 0; r < size; ++r) sum += some(tensor->dtype, i, r);
    if (get(tensor->dtype, tensor->data, i) != sum) return 0;
  }
  return 1;
}

static void allreduce(int64_t step) {
  hvd_tensor inputs[TENSORS], outputs[TENSORS];
  hvd_tensor one = HVD_TENSOR_INIT;
  hvd_op *op = NULL;
  int i;
  make(inputs, step);
  make(outputs, step);
  CHECK_STATUS(hvd_grouped_allreduce(context, "group", inputs, outputs, TENSORS, HVD_REDUCTION_SUM, &error),
               HVD_OK);
  for (i = 0; i < TENSORS; ++i) CHECK(summed(&outputs[i]) && holds(&inputs[i], rank));
  CHECK_STATUS(
      hvd_grouped_allreduce_async(context, "group", inputs, inputs, TENSORS, HVD_REDUCTION_SUM, &op, &error),
      HVD_OK);
  CHECK_STATUS(hvd_op_wait(op, HVD_DEFAULT_TIMEOUT, &error), HVD_OK);
  for (i = 0; i < TENSORS; ++i) CHECK(summed(&inputs[i]));
  CHECK_STATUS(hvd_op_get_output(op, TENSORS - 1, &one, &error), HVD_OK);
  CHECK(one.data == inputs[TENSORS - 1].data && one.dtype == inputs[TENSORS - 1].dtype);
  CHECK_STATUS(hvd_op_get_output(op, TENSORS, &one, &error), HVD_INVALID);
  CHECK_NAMES("30");
  hvd_op_destroy(op);
  drop(inputs);
  drop(outputs);
}

static void broadcast(int64_t step, int32_t root) {
  hvd_tensor tensors[TENSORS];
  hvd_op *op = NULL;
  int i;
  make(tensors, step);
  CHECK_STATUS(hvd_broadcast_variables(context, "variables", tensors, TENSORS, root, &error), HVD_OK);
  for (i = 0; i < TENSORS; ++i) CHECK(holds(&tensors[i], root));
  for (i = 0; i < TENSORS; ++i) fill(&tensors[i], rank);
  CHECK_STATUS(hvd_broadcast_variables_async(context, "variables", tensors, TENSORS, root, &op, &error),
               HVD_OK);
  CHECK_STATUS(hvd_op_wait(op, HVD_DEFAULT_TIMEOUT, &error), HVD_OK);
  hvd_op_destroy(op);
  for (i = 0; i < TENSORS; ++i) CHECK(holds(&tensors[i], root));
  drop(tensors);
}

/* Some outputs are the caller's, the others the library's. */
static void allgather(int64_t step) {
  hvd_tensor inputs[TENSORS], outputs[TENSORS];
  hvd_request r = request(HVD_COLLECTIVE_ALLGATHER, "gathered group");
  hvd_op *op = NULL;
  int i;
  make(inputs, step);
  for (i = 0; i < TENSORS; ++i) {
    const hvd_tensor none = HVD_TENSOR_INIT;
    outputs[i] = i % 2 ? none : vector(inputs[i].dtype, inputs[i].shape[0] * size);
  }
  CHECK_STATUS(hvd_grouped_allgather(context, "gathered group", inputs, outputs, TENSORS, &error), HVD_OK);
  for (i = 0; i < TENSORS; ++i) {
    const int64_t rows = inputs[i].shape[0];
    int64_t j;
    CHECK(outputs[i].shape[0] == rows * size && outputs[i].dtype == inputs[i].dtype);
    for (j = 0; j < rows * size; ++j) {
      if (get(outputs[i].dtype, outputs[i].data, j) == some(outputs[i].dtype, j % rows, (int32_t)(j / rows)))
        continue;
      CHECK(!"the gathered value");
      break;
    }
    if (i % 2)
      hvd_free(outputs[i].data);
    else
      free(outputs[i].data);
  }
  r.inputs = inputs;
  r.count = TENSORS;
  submit_and_wait(&r, &op);
  for (i = 0; i < TENSORS; ++i) {
    CHECK_STATUS(hvd_op_get_output(op, (size_t)i, &outputs[i], &error), HVD_OK);
    CHECK(outputs[i].shape[0] == inputs[i].shape[0] * size);
  }
  hvd_op_destroy(op);
  drop(inputs);
}

static void nothing(void) {
  CHECK_STATUS(hvd_broadcast_variables(context, "nothing", NULL, 0, 0, &error), HVD_OK);
  CHECK_STATUS(hvd_grouped_allreduce(context, "nothing", NULL, NULL, 0, HVD_REDUCTION_SUM, &error), HVD_OK);
  CHECK_STATUS(hvd_grouped_allgather(context, "nothing", NULL, NULL, 0, &error), HVD_OK);
}

/* The forms that return at once take the same for nothing, whatever tensors there are, and meet the blocking
 * ones. */
static void nothing_at_once(void) {
  float value = 3;
  hvd_tensor t = HVD_TENSOR_INIT;
  hvd_tensor *given[] = {NULL, &t};
  int i;
  t.data = &value;
  t.dtype = HVD_DTYPE_FLOAT32;
  for (i = 0; i < 2; ++i) {
    hvd_op *ops[3] = {NULL, NULL, NULL};
    int j;
    if (rank == 1) {
      CHECK_STATUS(hvd_grouped_allreduce(context, "no sum", given[i], given[i], 0, HVD_REDUCTION_SUM, &error),
                   HVD_OK);
      CHECK_STATUS(hvd_broadcast_variables(context, "no copy", given[i], 0, 0, &error), HVD_OK);
      CHECK_STATUS(hvd_grouped_allgather(context, "no rows", given[i], given[i], 0, &error), HVD_OK);
      continue;
    }
    CHECK_STATUS(hvd_grouped_allreduce_async(context, "no sum", given[i], given[i], 0, HVD_REDUCTION_SUM,
                                             &ops[0], &error),
                 HVD_OK);
    CHECK_STATUS(hvd_broadcast_variables_async(context, "no copy", given[i], 0, 0, &ops[1], &error), HVD_OK);
    CHECK_STATUS(hvd_grouped_allgather_async(context, "no rows", given[i], given[i], 0, &ops[2], &error),
                 HVD_OK);
    for (j = 0; j < 3; ++j) {
      CHECK_STATUS(hvd_op_wait(ops[j], HVD_DEFAULT_TIMEOUT, &error), HVD_OK);
      hvd_op_destroy(ops[j]);
    }
  }
  CHECK(value == 3);
}

static void objects(void) {
  static const size_t lengths[] = {0, 1, 1000, 3000000};
  size_t i;
  for (i = 0; i < 4; ++i) {
    const int32_t root = (int32_t)(i % (size_t)size);
    char *mine = malloc(lengths[i] + 1);
    void *data = rank == root ? mine : NULL;
    size_t length = rank == root ? lengths[i] : 0;
    if (mine == NULL) abort();
    memset(mine, 'a' + (int)i, lengths[i]);
    CHECK_STATUS(hvd_broadcast_object(context, "object", &data, &length, root, &error), HVD_OK);
    CHECK(length == lengths[i] && (length == 0 || memcmp(data, mine, length) == 0));
    if (data != mine) hvd_free(data);
    free(mine);
  }
}

void test_groups(void) {
  int32_t root;
  allreduce(3);
  allreduce(3000);
  allgather(3);
  allgather(1000);
  for (root = 0; root < size; ++root) {
    broadcast(3, root);
    broadcast(3000, root);
  }
  nothing();
  nothing_at_once();
  objects();
}
