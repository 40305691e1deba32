/* Bad input to what leaves a job, commits in two halves and keeps shards. */
#include "check.h"
#include "hvd/hvd.h"
#include "hvd/shards.h"

static hvd_error error;
static int destroyed;

static void count_destroy(void *userdata) {
  (void)userdata;
  ++destroyed;
}
static int32_t on_reshard(void *userdata, hvd_shard *shard) {
  (void)userdata;
  (void)shard;
  return 0;
}
static int32_t on_lost(void *userdata, const char *sentence) {
  (void)userdata;
  (void)sentence;
  return 0;
}

static void leaving(hvd_context *c) {
  int32_t fd = -7;
  CHECK_STATUS(hvd_leave(NULL, 0, &error), HVD_INVALID);
  CHECK_NAMES("context");
  CHECK_STATUS(hvd_leave((hvd_context *)&fd, 0, &error), HVD_INVALID);
  CHECK_STATUS(hvd_leave(c, -1, &error), HVD_INVALID);
  CHECK_NAMES("timeout_ns is -1");
  CHECK_STATUS(hvd_leave(c, INT64_MAX, &error), HVD_INVALID);
  CHECK_NAMES("365 days");
  CHECK(hvd_has_left(NULL) == 0);
  CHECK(hvd_has_left((hvd_context *)&fd) == 0);
  CHECK(hvd_has_left(c) == 0);
  CHECK_STATUS(hvd_get_leave_fd(NULL, &fd, &error), HVD_INVALID);
  CHECK_NAMES("context");
  CHECK_STATUS(hvd_get_leave_fd(c, NULL, &error), HVD_INVALID);
  CHECK_NAMES("ret_fd");
  CHECK(fd == -7);
  CHECK_STATUS(hvd_get_leave_fd(c, &fd, &error), HVD_OK);
  CHECK(fd >= 0);
}

static void halves(hvd_context *c) {
  hvd_state *s = NULL;
  int32_t number = 3;
  CHECK_STATUS(hvd_state_commit_begin(NULL, &error), HVD_INVALID);
  CHECK_NAMES("state");
  CHECK_STATUS(hvd_state_commit_end(NULL, &error), HVD_INVALID);
  CHECK_NAMES("state");
  CHECK_STATUS(hvd_state_create(c, &s, &error), HVD_OK);
  CHECK_STATUS(hvd_state_add_value(s, "n", &number, sizeof(number), &error), HVD_OK);
  CHECK_STATUS(hvd_state_commit_end(s, &error), HVD_INVALID); /* none was begun */
  CHECK_STATUS(hvd_state_commit_begin(s, &error), HVD_OK);
  CHECK_STATUS(hvd_state_commit_end(s, &error), HVD_OK);
  CHECK_STATUS(hvd_state_commit_end(s, &error), HVD_INVALID); /* nor since */
  hvd_state_destroy(s);
  CHECK_STATUS(hvd_state_commit_begin(s, &error), HVD_CLOSED);
  CHECK_STATUS(hvd_state_commit_end(s, &error), HVD_CLOSED);
}

static void ranges(void) {
  int64_t offset = -7, elements = -7;
  CHECK_STATUS(hvd_shard_range(10, 0, 2, NULL, &elements, &error), HVD_INVALID);
  CHECK_NAMES("ret_offset");
  CHECK_STATUS(hvd_shard_range(10, 0, 2, &offset, NULL, &error), HVD_INVALID);
  CHECK_NAMES("ret_elements");
  CHECK_STATUS(hvd_shard_range(-3, 0, 2, &offset, &elements, &error), HVD_INVALID);
  CHECK_NAMES("global_elements is -3");
  CHECK_STATUS(hvd_shard_range(10, 0, 0, &offset, &elements, &error), HVD_INVALID);
  CHECK_NAMES("rank is 0 of 0");
  CHECK_STATUS(hvd_shard_range(10, 2, 2, &offset, &elements, &error), HVD_INVALID);
  CHECK_NAMES("rank is 2 of 2");
  CHECK_STATUS(hvd_shard_range(10, -1, 2, &offset, &elements, &error), HVD_INVALID);
  CHECK_NAMES("rank is -1 of 2");
  CHECK(offset == -7 && elements == -7);
  CHECK_STATUS(hvd_shard_range(11, 1, 2, &offset, &elements, &error), HVD_OK);
  CHECK(offset == 6 && elements == 5);
}

/* Either kind of shard, whose argument `many` has no use for 0 < many < 2, or more than `most`. */
typedef hvd_status (*add_fn)(hvd_state *, const char *, const hvd_tensor *, int64_t, int64_t, int32_t,
                             hvd_reshard_fn, void *, hvd_destroy_fn, hvd_error *);

static void refused(add_fn add, hvd_state *s, const char *key, const hvd_tensor *t, int64_t global_elements,
                    int64_t offset, int32_t many, hvd_status status, const char *names) {
  destroyed = 0;
  CHECK_STATUS(add(s, key, t, global_elements, offset, many, on_reshard, NULL, count_destroy, &error),
               status);
  CHECK_NAMES(names);
  CHECK(destroyed == 1);
}

static void shards(hvd_context *c, add_fn add) {
  float values[4] = {1, 2, 3, 4};
  hvd_state *s = NULL;
  hvd_tensor t = HVD_TENSOR_INIT;
  hvd_tensor bad;
  t.data = values;
  t.dtype = HVD_DTYPE_FLOAT32;
  t.ndim = 1;
  t.shape[0] = 4;
  refused(add, NULL, "k", &t, 4, 0, 2, HVD_INVALID, "state");
  CHECK_STATUS(hvd_state_create(c, &s, &error), HVD_OK);
  refused(add, s, NULL, &t, 4, 0, 2, HVD_INVALID, "key is NULL");
  refused(add, s, "", &t, 4, 0, 2, HVD_INVALID, "key is empty");
  refused(add, s, "k", NULL, 4, 0, 2, HVD_INVALID, "tensor is NULL");
  bad = t, bad.struct_size = 0;
  refused(add, s, "k", &bad, 4, 0, 2, HVD_INVALID, "struct_size");
  bad = t, bad.dtype = 99;
  refused(add, s, "k", &bad, 4, 0, 2, HVD_INVALID, "99");
  bad = t, bad.ndim = 2, bad.shape[1] = 1;
  refused(add, s, "k", &bad, 4, 0, 2, HVD_INVALID, "2 dimensions");
  bad = t, bad.shape[0] = -4;
  refused(add, s, "k", &bad, 4, 0, 2, HVD_INVALID, "-4");
  bad = t, bad.data = NULL;
  refused(add, s, "k", &bad, 4, 0, 2, HVD_INVALID, "NULL");
  bad = t, bad.memory = HVD_MEMORY_CUDA;
  refused(add, s, "k", &bad, 4, 0, 2, HVD_UNSUPPORTED, "'k'");
  refused(add, s, "k", &t, 3, 0, 2, HVD_INVALID, "4 elements from 0");
  refused(add, s, "k", &t, 4, -1, 2, HVD_INVALID, "4 elements from -1");
  refused(add, s, "k", &t, 4, 1, 2, HVD_INVALID, "4 elements from 1");
  refused(add, s, "k", &t, INT64_MAX, INT64_MAX - 1, 2, HVD_INVALID, "9223372036854775807");
  refused(add, s, "k", &t, -4, 0, 2, HVD_INVALID, "-4");
  refused(add, s, "k", &t, 4, 0, -2, HVD_INVALID, "is -2");
  refused(add, s, "k", &t, 4, 0, 65, HVD_INVALID, "is 65");
  destroyed = 0;
  CHECK_STATUS(add(s, "k", &t, 4, 0, 2, on_reshard, NULL, count_destroy, &error), HVD_OK);
  CHECK(destroyed == 0);
  refused(add, s, "k", &t, 4, 0, 2, HVD_INVALID, "'k'"); /* it is there */
  destroyed = 0;
  hvd_state_destroy(s);
  CHECK(destroyed == 1);
  refused(add, s, "k", &t, 4, 0, 2, HVD_CLOSED, "state");
}

static void loss(hvd_context *c) {
  hvd_state *s = NULL;
  destroyed = 0;
  CHECK_STATUS(hvd_state_on_lost(NULL, on_lost, NULL, count_destroy, &error), HVD_INVALID);
  CHECK_NAMES("state");
  CHECK(destroyed == 1);
  CHECK_STATUS(hvd_state_create(c, &s, &error), HVD_OK);
  CHECK_STATUS(hvd_state_on_lost(s, on_lost, NULL, count_destroy, &error), HVD_OK);
  CHECK(destroyed == 1);
  CHECK_STATUS(hvd_state_on_lost(s, NULL, NULL, NULL, &error), HVD_OK); /* removes it */
  CHECK(destroyed == 2);
  hvd_state_destroy(s);
  CHECK_STATUS(hvd_state_on_lost(s, on_lost, NULL, count_destroy, &error), HVD_CLOSED);
  CHECK(destroyed == 3);
}

int main(void) {
  hvd_context *c = NULL;
  int32_t fd = -7;
  CHECK_STATUS(hvd_init(NULL, &c, &error), HVD_OK);
  if (c == NULL) return report("bad_elastic");
  leaving(c);
  halves(c);
  ranges();
  shards(c, hvd_state_add_shard);
  shards(c, hvd_state_add_shard_with_parity);
  loss(c);
  CHECK_STATUS(hvd_shutdown(c, HVD_SECOND, &error), HVD_OK);
  CHECK_STATUS(hvd_leave(c, 0, &error), HVD_CLOSED);
  CHECK_STATUS(hvd_get_leave_fd(c, &fd, &error), HVD_CLOSED);
  CHECK(hvd_has_left(c) == 0);
  hvd_destroy(c);
  CHECK(hvd_has_left(c) == 0);
  return report("bad_elastic");
}
