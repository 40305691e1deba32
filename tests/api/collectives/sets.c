/* Operations among some of the ranks. */
#include "job.h"

static hvd_process_set *set_of(const char *name, const int32_t *ranks, size_t count, hvd_set_rule rule) {
  hvd_process_set *set = NULL;
  CHECK_STATUS(hvd_process_set_create(context, name, ranks, count, rule, &set, &error), HVD_OK);
  return set;
}

static hvd_process_set_info info_of(hvd_process_set *set) {
  hvd_process_set_info info;
  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  CHECK_STATUS(hvd_process_set_get_info(set, &info, &error), HVD_OK);
  return info;
}

/* Sum of rank + 1 over the members, by an allreduce of `count` elements on the set. */
static void sum_over(hvd_process_set *set, const char *name, int64_t count) {
  hvd_request r = request(HVD_COLLECTIVE_ALLREDUCE, name);
  hvd_tensor t = vector(HVD_DTYPE_INT32, count);
  int32_t ranks[64];
  size_t members = 64;
  int32_t sum = 0;
  int64_t i;
  CHECK_STATUS(hvd_process_set_get_ranks(set, ranks, &members, &error), HVD_OK);
  for (i = 0; i < (int64_t)members; ++i) sum += ranks[i] + 1;
  for (i = 0; i < count; ++i) put(HVD_DTYPE_INT32, t.data, i, rank + 1);
  r.inputs = r.outputs = &t;
  r.process_set = set;
  submit_and_wait(&r, NULL);
  for (i = 0; i < count; ++i) {
    if (get(HVD_DTYPE_INT32, t.data, i) == sum) continue;
    CHECK(!"the sum over the set");
    break;
  }
  free(t.data);
}

static void evens_and_odds(void) {
  int32_t evens[64], odds[64];
  size_t even_count = 0, odd_count = 0;
  int32_t r;
  hvd_process_set *set;
  hvd_process_set *other;
  hvd_process_set_info info;
  /* In descending order: the order does not matter. */
  for (r = size - 1; r >= 0; --r) {
    if (r % 2 == 0)
      evens[even_count++] = r;
    else
      odds[odd_count++] = r;
  }
  set = rank % 2 == 0 ? set_of("team", evens, even_count, HVD_SET_RULE_RANKS)
                      : set_of("team", odds, odd_count, HVD_SET_RULE_RANKS);
  info = info_of(set);
  CHECK(info.rank == rank / 2 && info.size == (rank % 2 == 0 ? (size + 1) / 2 : size / 2));
  CHECK(info.generation == hvd_generation(context));
  sum_over(set, "sum", 3);
  sum_over(set, "sum", 200000);
  if (odd_count > 0) { /* the set of which this rank is no member */
    hvd_request q = request(HVD_COLLECTIVE_BARRIER, "not mine");
    hvd_op *op = NULL;
    other = rank % 2 == 0 ? set_of("others", odds, odd_count, 0) : set_of("others", evens, even_count, 0);
    info = info_of(other);
    CHECK(info.rank == -1 && info.local_rank == -1 && info.cross_rank == -1);
    CHECK(info.local_size == 0 && info.cross_size == 0 && info.size > 0);
    q.process_set = other;
    CHECK_STATUS(hvd_submit(context, &q, &op, &error), HVD_INVALID);
    CHECK_NAMES("others");
    CHECK(op == NULL);
    hvd_process_set_destroy(other);
  }
  hvd_process_set_destroy(set);
}

static void every_operation(hvd_process_set *set, const char *prefix) {
  const hvd_process_set_info info = info_of(set);
  hvd_tensor input = matrix(HVD_DTYPE_INT32, info.size, 2);
  hvd_tensor tensor = vector(HVD_DTYPE_INT32, 50);
  hvd_tensor result = HVD_TENSOR_INIT;
  int32_t ranks[64];
  int64_t splits[64];
  size_t count = 64;
  int32_t i;
  hvd_op *op = NULL;
  hvd_request r = request(HVD_COLLECTIVE_ALLGATHER, prefix);
  CHECK_STATUS(hvd_process_set_get_ranks(set, ranks, &count, &error), HVD_OK);
  CHECK(count == (size_t)info.size && ranks[info.rank] == rank);
  for (i = 0; i < 2 * info.size; ++i) put(HVD_DTYPE_INT32, input.data, i, rank * 100 + i);
  r.process_set = set;
  r.inputs = &input;
  submit_and_wait(&r, &op);
  CHECK_STATUS(hvd_op_get_output(op, 0, &result, &error), HVD_OK);
  CHECK(result.shape[0] == info.size * info.size);
  for (i = 0; i < info.size; ++i)
    CHECK(get(HVD_DTYPE_INT32, result.data, 2 * info.size * i + 1) == ranks[i] * 100 + 1);
  hvd_op_destroy(op);

  r.collective = HVD_COLLECTIVE_REDUCESCATTER;
  submit_and_wait(&r, &op);
  CHECK_STATUS(hvd_op_get_output(op, 0, &result, &error), HVD_OK);
  CHECK(result.shape[0] == 1);
  {
    int64_t sum = 0;
    for (i = 0; i < info.size; ++i) sum += ranks[i] * 100 + 2 * info.rank;
    CHECK(get(HVD_DTYPE_INT32, result.data, 0) == sum);
  }
  hvd_op_destroy(op);

  r.collective = HVD_COLLECTIVE_ALLTOALL;
  for (i = 0; i < info.size; ++i) splits[i] = 1;
  r.splits = splits;
  r.split_count = (size_t)info.size;
  submit_and_wait(&r, &op);
  CHECK_STATUS(hvd_op_get_output(op, 0, &result, &error), HVD_OK);
  for (i = 0; i < info.size; ++i)
    CHECK(get(HVD_DTYPE_INT32, result.data, 2 * i) == ranks[i] * 100 + 2 * info.rank);
  hvd_op_destroy(op);

  r = request(HVD_COLLECTIVE_BROADCAST, prefix);
  r.process_set = set;
  r.outputs = &tensor;
  r.root = ranks[info.size - 1]; /* a rank of the generation */
  fill(&tensor, rank);
  submit_and_wait(&r, NULL);
  CHECK(holds(&tensor, r.root));

  r = request(HVD_COLLECTIVE_BARRIER, prefix);
  r.process_set = set;
  submit_and_wait(&r, NULL);
  free(input.data);
  free(tensor.data);
}

static void hosts_and_columns(void) {
  hvd_membership_info m;
  hvd_process_set *local = set_of("my host", NULL, 0, HVD_SET_RULE_LOCAL);
  hvd_process_set *cross = set_of("my column", NULL, 0, HVD_SET_RULE_CROSS);
  hvd_process_set_info in_local = info_of(local);
  hvd_process_set_info in_cross = info_of(cross);
  memset(&m, 0, sizeof(m));
  m.struct_size = sizeof(m);
  CHECK_STATUS(hvd_get_membership(context, &m, &error), HVD_OK);
  CHECK(in_local.rank == m.local_rank && in_local.size == m.local_size);
  CHECK(in_local.local_rank == m.local_rank && in_local.cross_size == 1);
  CHECK(in_cross.rank == m.cross_rank && in_cross.size == m.cross_size);
  CHECK(in_cross.local_size == 1 && in_cross.cross_rank == m.cross_rank);
  every_operation(local, "on the host");
  every_operation(cross, "in the column");
  sum_over(local, "on the host", 100000);
  sum_over(cross, "in the column", 100000);
  hvd_process_set_destroy(local);
  hvd_process_set_destroy(cross);
}

/* Sets that overlap, with operations of one name, all under way at once; the sets are destroyed meanwhile. */
static void overlapping(void) {
  enum { SETS = 4 };
  hvd_process_set *sets[SETS] = {NULL, NULL, NULL, NULL};
  hvd_tensor tensors[SETS];
  hvd_op *ops[SETS] = {NULL, NULL, NULL, NULL};
  int32_t sums[SETS] = {0, 0, 0, 0};
  int i;
  for (i = 0; i < SETS; ++i) {
    int32_t ranks[64];
    size_t count = 0;
    char name[16];
    int32_t r;
    int mine = 0;
    for (r = 0; r < size; ++r) { /* all but one, another one in each set */
      if (size > 1 && r == i % size) continue;
      ranks[count++] = r;
      sums[i] += r + 1;
      mine = mine || r == rank;
    }
    if (!mine) continue;
    snprintf(name, sizeof(name), "set %d", i);
    sets[i] = set_of(name, ranks, count, HVD_SET_RULE_END);
  }
  for (i = 0; i < SETS; ++i) {
    const int at = (i + rank) % SETS; /* in another order on each rank */
    hvd_request r = request(HVD_COLLECTIVE_ALLREDUCE, "the same name");
    tensors[at] = vector(HVD_DTYPE_INT32, 1000 * (at + 1));
    if (sets[at] == NULL) continue;
    put(HVD_DTYPE_INT32, tensors[at].data, 999, rank + 1);
    r.inputs = r.outputs = &tensors[at];
    r.process_set = sets[at];
    CHECK_STATUS(hvd_submit(context, &r, &ops[at], &error), HVD_OK);
  }
  for (i = 0; i < SETS; ++i) hvd_process_set_destroy(sets[i]);
  for (i = 0; i < SETS; ++i) {
    if (ops[i] != NULL) {
      CHECK_STATUS(hvd_op_wait(ops[i], HVD_DEFAULT_TIMEOUT, &error), HVD_OK);
      CHECK(get(HVD_DTYPE_INT32, tensors[i].data, 999) == sums[i]);
      hvd_op_destroy(ops[i]);
    }
    free(tensors[i].data);
  }
}

/* Members that disagree about who is in: each operation checks it. */
static void disagreement(void) {
  int32_t ranks[64];
  hvd_process_set *set;
  hvd_request r = request(HVD_COLLECTIVE_BARRIER, "disagreement");
  const int all = rank == 0 || rank == size - 1;
  int32_t i;
  if (size < 3) return;
  for (i = 0; i < size; ++i) ranks[i] = i;
  /* The first and the last rank think that everybody is in, the others that the last one is not. */
  set = set_of("unclear", ranks, (size_t)(all ? size : size - 1), 0);
  r.process_set = set;
  submit_mismatch(&r);
  CHECK_NAMES("disagreement");
  hvd_process_set_destroy(set);
}

void test_sets(void) {
  evens_and_odds();
  hosts_and_columns();
  overlapping();
  disagreement();
}
