/* Bad input to every function of hvd.h: a clear error, never a crash, and nothing lost. */
#include <stdlib.h>

#include "check.h"
#include "floats.h"
#include "hvd/async.h"
#include "hvd/hvd.h"

static hvd_error error;
static int destroyed;

static void count_destroy(void *userdata) {
  (void)userdata;
  ++destroyed;
}
static void on_log(void *userdata, hvd_log_level level, const char *message) {
  (void)userdata;
  (void)level;
  (void)message;
}
static void on_event(void *userdata, const hvd_event *event) {
  (void)userdata;
  (void)event;
}
static int32_t on_reset(void *userdata) {
  (void)userdata;
  return 0;
}
static int32_t on_save(void *userdata, hvd_write_fn write, void *sink) {
  const void *data[] = {"y", NULL};
  const size_t sizes[] = {1, 0}; /* of nothing there may be no memory */
  write(sink, "x", 1);
  CHECK(hvd_state_lend(sink, data, sizes, 2) == 0);
  CHECK(hvd_state_lend(NULL, data, sizes, 2) != 0);
  CHECK(hvd_state_lend_until_end(NULL, data, sizes, 2) != 0);
  return *(int32_t *)userdata;
}
static int32_t on_save_nothing(void *userdata, hvd_write_fn write, void *sink) {
  const size_t size = 1;
  (void)userdata;
  (void)write;
  CHECK(hvd_state_lend(sink, NULL, &size, 1) != 0);
  return 0;
}
static int32_t on_load(void *userdata, const void *data, size_t size) {
  (void)data;
  (void)size;
  return *(int32_t *)userdata;
}
static hvd_status on_train(void *userdata) { return *(hvd_status *)userdata; }

static void names_and_errors(void) {
  hvd_error small;
  CHECK(strcmp(hvd_status_name(HVD_PEER_LOST), "HVD_PEER_LOST") == 0);
  CHECK(strcmp(hvd_status_name(-7), "unknown status") == 0);
  CHECK(hvd_dtype_size(HVD_DTYPE_BFLOAT16) == 2 && hvd_dtype_size(0) == 0 && hvd_dtype_size(99) == 0 &&
        hvd_dtype_size(-1) == 0);
  CHECK(hvd_dtype_size(HVD_DTYPE_FLOAT8_E5M2FNUZ) == 1 && hvd_dtype_size(HVD_DTYPE_COMPLEX128) == 16);
  CHECK(strcmp(hvd_dtype_name(HVD_DTYPE_FLOAT8_E4M3FN), "float8_e4m3fn") == 0);
  CHECK(strcmp(hvd_dtype_name(HVD_DTYPE_INT64), "int64") == 0 &&
        strcmp(hvd_dtype_name(77), "unknown dtype") == 0);
  CHECK(strcmp(hvd_version(), HVD_VERSION_STRING) == 0);
  hvd_free(NULL);
  /* An error of an older, shorter layout is written no further than its size. */
  memset(&small, 0x5a, sizeof(small));
  small.struct_size = 16;
  CHECK(hvd_options_create(NULL, &small) == HVD_INVALID);
  CHECK(small.struct_size == 16 && small.status == HVD_INVALID && small.message[0] == 0x5a);
  CHECK(hvd_options_create(NULL, NULL) == HVD_INVALID);
}

static void options(void) {
  hvd_options *o = NULL;
  const char *text = NULL;
  CHECK_STATUS(hvd_options_create(NULL, &error), HVD_INVALID);
  CHECK_NAMES("ret_options");
  CHECK_STATUS(hvd_options_create(&o, &error), HVD_OK);
  CHECK_STATUS(hvd_options_set(NULL, "np", "2", &error), HVD_INVALID);
  CHECK_STATUS(hvd_options_set(o, NULL, "2", &error), HVD_INVALID);
  CHECK_STATUS(hvd_options_set(o, "np", NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_options_set(o, "nope", "2", &error), HVD_INVALID);
  CHECK_NAMES("nope");
  CHECK_STATUS(hvd_options_set(o, "np", "two", &error), HVD_INVALID);
  CHECK_NAMES("two");
  CHECK_NAMES("HVD_NP");
  CHECK_STATUS(hvd_options_set(o, "np", "-3", &error), HVD_INVALID);
  CHECK_STATUS(hvd_options_set(o, "heartbeat_timeout", "nan", &error), HVD_INVALID);
  CHECK_STATUS(hvd_options_set_int(o, "backend", 3, &error), HVD_INVALID);
  CHECK_STATUS(hvd_options_set_int(o, "np", 99999999, &error), HVD_INVALID);
  CHECK_STATUS(hvd_options_set_duration(o, "np", HVD_SECOND, &error), HVD_INVALID);
  CHECK_STATUS(hvd_options_set_duration(NULL, "connect_timeout", HVD_SECOND, &error), HVD_INVALID);
  CHECK_STATUS(hvd_options_set_duration(o, NULL, HVD_SECOND, &error), HVD_INVALID);
  CHECK_STATUS(hvd_options_set_duration(o, "connect_timeout", -1, &error), HVD_INVALID);
  CHECK_NAMES("-1ns");
  CHECK_STATUS(hvd_options_set_duration(o, "connect_timeout", 7, &error), HVD_INVALID); /* no seconds */
  CHECK_NAMES("7ns");
  CHECK_STATUS(hvd_options_set_int(o, "connect_timeout", 7, &error), HVD_INVALID);
  CHECK_NAMES("hvd_options_set_duration");
  CHECK_STATUS(hvd_options_set_bool(o, "np", 1, &error), HVD_INVALID);
  CHECK_STATUS(hvd_options_set_bool(o, "restart", 0, &error), HVD_OK);
  CHECK_STATUS(hvd_options_set(o, "connect_timeout", "250ms", &error), HVD_OK);
  CHECK_STATUS(hvd_options_get(o, "connect_timeout", &text, &error), HVD_OK);
  CHECK(text != NULL && strcmp(text, "0.25") == 0);
  CHECK_STATUS(hvd_options_set_duration(o, "connect_timeout", 7 * HVD_SECOND, &error), HVD_OK);
  CHECK_STATUS(hvd_options_get(o, "connect_timeout", &text, &error), HVD_OK);
  CHECK(text != NULL && strcmp(text, "7") == 0);
  CHECK_STATUS(hvd_options_get(o, "connect_timeout", NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_options_get(NULL, "np", &text, &error), HVD_INVALID);
  CHECK_STATUS(hvd_options_get(o, "nope", &text, &error), HVD_INVALID);
  CHECK(strstr(hvd_options_describe(), "HVD_MIN_NP") != NULL);
  destroyed = 0;
  CHECK_STATUS(hvd_options_set_log(NULL, HVD_LOG_INFO, on_log, NULL, count_destroy, &error), HVD_INVALID);
  CHECK_STATUS(hvd_options_set_log(o, 42, on_log, NULL, count_destroy, &error), HVD_INVALID);
  CHECK(destroyed == 2);
  CHECK_STATUS(hvd_options_set_log(o, HVD_LOG_INFO, on_log, NULL, count_destroy, &error), HVD_OK);
  CHECK(destroyed == 2);
  hvd_options_destroy(o);
  CHECK(destroyed == 3);
  hvd_options_destroy(NULL);
}

static void init(void) {
  hvd_options *o = NULL;
  hvd_context *c = (hvd_context *)&o;
  CHECK_STATUS(hvd_init(NULL, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_options_create(&o, &error), HVD_OK);
  CHECK_STATUS(hvd_options_set(o, "driver", "not an endpoint", &error), HVD_OK);
  CHECK_STATUS(hvd_init(o, &c, &error), HVD_INVALID);
  CHECK_NAMES("secret");
  CHECK_STATUS(hvd_options_set(o, "secret", "0123456789abcdef0123456789abcdef", &error), HVD_OK);
  CHECK_STATUS(hvd_init(o, &c, &error), HVD_INVALID);
  CHECK_NAMES("not an endpoint"); /* of whom it would ask for an identity */
  CHECK_STATUS(hvd_options_set(o, "worker", "1", &error), HVD_OK);
  CHECK_STATUS(hvd_options_set(o, "connect_timeout", "0.3", &error), HVD_OK);
  CHECK_STATUS(hvd_init(o, &c, &error), HVD_INVALID);
  CHECK_NAMES("not an endpoint");
  CHECK_STATUS(hvd_options_set(o, "driver", "127.0.0.1:1", &error), HVD_OK);
  CHECK(hvd_init(o, &c, &error) == HVD_DRIVER_LOST);
  CHECK(strstr(error.message, "127.0.0.1:1") != NULL);
  CHECK(c == (hvd_context *)&o); /* results are untouched on failure */
  hvd_options_destroy(o);
  CHECK_STATUS(hvd_options_create(&o, &error), HVD_OK);
  CHECK_STATUS(hvd_options_set(o, "rank", "3", &error), HVD_OK);
  CHECK_STATUS(hvd_options_set(o, "size", "2", &error), HVD_OK);
  CHECK_STATUS(hvd_init(o, &c, &error), HVD_INVALID);
  CHECK_NAMES("rank 3 of 2");
  CHECK_STATUS(hvd_options_set(o, "rank", "1", &error), HVD_OK);
  CHECK_STATUS(hvd_init(o, &c, &error), HVD_INVALID);
  CHECK_NAMES("secret");
  hvd_options_destroy(o);
}

static void null_context(void) {
  hvd_tensor t = floats(NULL, 0);
  hvd_op *op = NULL;
  hvd_process_set *set = NULL;
  hvd_state *state = NULL;
  hvd_run_loop *loop = NULL;
  hvd_membership_info m;
  hvd_backend_info b;
  hvd_recovery_info r;
  hvd_event event;
  void *data = NULL;
  size_t size = 0;
  uint64_t id = 0;
  int32_t number = 0;
  hvd_status train_result = HVD_OK;
  memset(&m, 0, sizeof(m));
  memset(&b, 0, sizeof(b));
  memset(&r, 0, sizeof(r));
  memset(&event, 0, sizeof(event));
  m.struct_size = sizeof(m);
  b.struct_size = sizeof(b);
  r.struct_size = sizeof(r);
  event.struct_size = sizeof(event);
  CHECK_STATUS(hvd_shutdown(NULL, 0, &error), HVD_INVALID);
  CHECK_STATUS(hvd_abort(NULL, "x", &error), HVD_INVALID);
  hvd_destroy(NULL);
  CHECK_STATUS(hvd_get_membership(NULL, &m, &error), HVD_INVALID);
  CHECK(hvd_rank(NULL) == -1 && hvd_size(NULL) == -1 && hvd_local_rank(NULL) == -1 &&
        hvd_local_size(NULL) == -1);
  CHECK(hvd_cross_rank(NULL) == -1 && hvd_cross_size(NULL) == -1 && hvd_generation(NULL) == 0);
  CHECK_STATUS(hvd_get_backend(NULL, &b, &error), HVD_INVALID);
  CHECK_STATUS(hvd_allreduce(NULL, "x", &t, &t, HVD_REDUCTION_SUM, &error), HVD_INVALID);
  CHECK_STATUS(hvd_broadcast(NULL, "x", &t, 0, &error), HVD_INVALID);
  CHECK_STATUS(hvd_allgather(NULL, "x", &t, &t, &error), HVD_INVALID);
  CHECK_STATUS(hvd_barrier(NULL, "x", &error), HVD_INVALID);
  CHECK_STATUS(hvd_broadcast_variables(NULL, "x", &t, 1, 0, &error), HVD_INVALID);
  CHECK_STATUS(hvd_broadcast_object(NULL, "x", &data, &size, 0, &error), HVD_INVALID);
  CHECK_STATUS(hvd_allreduce_async(NULL, "x", &t, &t, HVD_REDUCTION_SUM, &op, &error), HVD_INVALID);
  CHECK_STATUS(hvd_broadcast_async(NULL, "x", &t, 0, &op, &error), HVD_INVALID);
  CHECK_STATUS(hvd_allgather_async(NULL, "x", &t, &t, &op, &error), HVD_INVALID);
  CHECK_STATUS(hvd_barrier_async(NULL, "x", &op, &error), HVD_INVALID);
  CHECK_STATUS(hvd_op_test(NULL, &number, &error), HVD_INVALID);
  CHECK_STATUS(hvd_op_wait(NULL, 0, &error), HVD_INVALID);
  CHECK_STATUS(hvd_op_get_fd(NULL, &number, &error), HVD_INVALID);
  CHECK_STATUS(hvd_op_get_error(NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_op_get_output(NULL, 0, &t, &error), HVD_INVALID);
  hvd_op_destroy(NULL);
  CHECK_STATUS(hvd_op_get_output(NULL, 0, &t, &error), HVD_INVALID);
  CHECK_STATUS(hvd_op_get_received_splits(NULL, NULL, &size, &error), HVD_INVALID);
  CHECK_STATUS(hvd_op_get_last_joined(NULL, &number, &error), HVD_INVALID);
  CHECK_STATUS(hvd_reducescatter(NULL, "x", &t, &t, HVD_REDUCTION_SUM, &error), HVD_INVALID);
  CHECK_STATUS(hvd_alltoall(NULL, "x", &t, NULL, &t, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_grouped_allreduce(NULL, "x", &t, &t, 1, HVD_REDUCTION_SUM, &error), HVD_INVALID);
  CHECK_STATUS(hvd_grouped_allgather(NULL, "x", &t, &t, 1, &error), HVD_INVALID);
  CHECK_STATUS(hvd_join(NULL, &number, &error), HVD_INVALID);
  CHECK_STATUS(hvd_reducescatter_async(NULL, "x", &t, &t, HVD_REDUCTION_SUM, &op, &error), HVD_INVALID);
  CHECK_STATUS(hvd_alltoall_async(NULL, "x", &t, NULL, &t, &op, &error), HVD_INVALID);
  CHECK_STATUS(hvd_broadcast_variables_async(NULL, "x", &t, 1, 0, &op, &error), HVD_INVALID);
  CHECK_STATUS(hvd_grouped_allreduce_async(NULL, "x", &t, &t, 1, HVD_REDUCTION_SUM, &op, &error),
               HVD_INVALID);
  CHECK_STATUS(hvd_grouped_allgather_async(NULL, "x", &t, &t, 1, &op, &error), HVD_INVALID);
  CHECK_STATUS(hvd_join_async(NULL, &op, &error), HVD_INVALID);
  CHECK_STATUS(hvd_submit(NULL, NULL, &op, &error), HVD_INVALID);
  CHECK_STATUS(hvd_process_set_create(NULL, "s", &number, 1, 0, &set, &error), HVD_INVALID);
  CHECK_STATUS(hvd_process_set_get_info(NULL, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_process_set_get_ranks(NULL, &number, &size, &error), HVD_INVALID);
  hvd_process_set_destroy(NULL);
  CHECK(op == NULL && set == NULL);
  CHECK_STATUS(hvd_state_create(NULL, &state, &error), HVD_INVALID);
  hvd_state_destroy(NULL);
  CHECK_STATUS(hvd_state_add_tensor(NULL, "k", &t, &error), HVD_INVALID);
  CHECK_STATUS(hvd_state_add_value(NULL, "k", &number, sizeof(number), &error), HVD_INVALID);
  destroyed = 0;
  CHECK_STATUS(hvd_state_add_object(NULL, "k", on_save, on_load, &number, count_destroy, &error),
               HVD_INVALID);
  CHECK_STATUS(hvd_state_on_reset(NULL, on_reset, NULL, count_destroy, &error), HVD_INVALID);
  CHECK_STATUS(hvd_register_listener(NULL, HVD_EVENT_ALL, on_event, NULL, count_destroy, &id, &error),
               HVD_INVALID);
  CHECK(destroyed == 3);
  CHECK_STATUS(hvd_state_remove(NULL, "k", &error), HVD_INVALID);
  CHECK_STATUS(hvd_state_set_data(NULL, "k", &number, &error), HVD_INVALID);
  CHECK_STATUS(hvd_state_commit(NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_state_save(NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_state_check_host_updates(NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_state_restore(NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_state_sync(NULL, &error), HVD_INVALID);
  CHECK(hvd_state_revision(NULL) == 0);
  CHECK_STATUS(hvd_state_get_info(NULL, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_run(NULL, NULL, on_train, &train_result, &error), HVD_INVALID);
  CHECK_STATUS(hvd_run_begin(NULL, NULL, &loop, &error), HVD_INVALID);
  CHECK_STATUS(hvd_run_next(NULL, HVD_OK, &number, &error), HVD_INVALID);
  hvd_run_end(NULL);
  CHECK_STATUS(hvd_get_recovery_count(NULL, &size, &error), HVD_INVALID);
  CHECK_STATUS(hvd_get_recovery(NULL, 0, &r, &error), HVD_INVALID);
  CHECK_STATUS(hvd_remove_listener(NULL, 1, &error), HVD_INVALID);
  CHECK_STATUS(hvd_get_event_fd(NULL, &number, &error), HVD_INVALID);
  CHECK_STATUS(hvd_next_event(NULL, &event, &number, &error), HVD_INVALID);
}

static void collectives(hvd_context *c) {
  float a[4] = {1, 2, 3, 4};
  float b[4] = {0, 0, 0, 0};
  hvd_tensor x = floats(a, 4);
  hvd_tensor y = floats(b, 4);
  hvd_tensor bad;
  hvd_tensor pair[2];
  hvd_op *op = NULL;
  void *data = NULL;
  size_t size = 3;
  int32_t number = 0;
  char long_name[300];
  memset(long_name, 'n', sizeof(long_name) - 1);
  long_name[sizeof(long_name) - 1] = 0;

  CHECK_STATUS(hvd_allreduce(c, NULL, &x, &y, HVD_REDUCTION_SUM, &error), HVD_OK); /* it gets a number */
  CHECK_STATUS(hvd_allreduce(c, "", &x, &y, HVD_REDUCTION_SUM, &error), HVD_INVALID);
  CHECK_STATUS(hvd_allreduce(c, long_name, &x, &y, HVD_REDUCTION_SUM, &error), HVD_INVALID);
  CHECK_NAMES("299");
  CHECK_STATUS(hvd_allreduce(c, "hvd.mine", &x, &y, HVD_REDUCTION_SUM, &error), HVD_INVALID);
  CHECK_STATUS(hvd_allreduce(c, "x", NULL, &y, HVD_REDUCTION_SUM, &error), HVD_INVALID);
  CHECK_STATUS(hvd_allreduce(c, "x", &x, NULL, HVD_REDUCTION_SUM, &error), HVD_INVALID);
  CHECK_STATUS(hvd_allreduce(c, "x", &x, &y, 0, &error), HVD_INVALID);
  CHECK_STATUS(hvd_allreduce(c, "x", &x, &y, 17, &error), HVD_INVALID);
  CHECK_NAMES("17");
  bad = x;
  bad.struct_size = 0;
  CHECK_STATUS(hvd_allreduce(c, "x", &bad, &y, HVD_REDUCTION_SUM, &error), HVD_INVALID);
  CHECK_NAMES("struct_size");
  bad = x;
  bad.dtype = 55;
  CHECK_STATUS(hvd_allreduce(c, "x", &bad, &y, HVD_REDUCTION_SUM, &error), HVD_INVALID);
  CHECK_NAMES("55");
  bad = x;
  bad.ndim = 9;
  CHECK_STATUS(hvd_allreduce(c, "x", &bad, &y, HVD_REDUCTION_SUM, &error), HVD_INVALID);
  CHECK_NAMES("9");
  bad = x;
  bad.shape[0] = -1;
  CHECK_STATUS(hvd_allreduce(c, "x", &bad, &y, HVD_REDUCTION_SUM, &error), HVD_INVALID);
  CHECK_NAMES("-1");
  bad = x;
  bad.ndim = 2;
  bad.shape[0] = bad.shape[1] = INT64_MAX;
  CHECK_STATUS(hvd_allreduce(c, "x", &bad, &bad, HVD_REDUCTION_SUM, &error), HVD_INVALID);
  bad = x;
  bad.data = NULL;
  CHECK_STATUS(hvd_allreduce(c, "x", &bad, &y, HVD_REDUCTION_SUM, &error), HVD_INVALID);
  bad = x;
  bad.memory = HVD_MEMORY_CUDA;
  CHECK_STATUS(hvd_allreduce(c, "x", &bad, &y, HVD_REDUCTION_SUM, &error), HVD_UNSUPPORTED);
  CHECK_STATUS(hvd_broadcast(c, "x", &bad, 0, &error), HVD_UNSUPPORTED);
  bad.device = -1;
  CHECK_STATUS(hvd_broadcast(c, "x", &bad, 0, &error), HVD_INVALID);
  CHECK_NAMES("device is -1");
  bad.memory = 7;
  CHECK_STATUS(hvd_broadcast(c, "x", &bad, 0, &error), HVD_INVALID);
  CHECK_NAMES("memory is 7");
  bad = floats(a + 1, 3);
  y = floats(a, 3);
  CHECK_STATUS(hvd_allreduce(c, "x", &bad, &y, HVD_REDUCTION_SUM, &error), HVD_INVALID); /* they overlap */
  y = floats(b, 3);
  CHECK_STATUS(hvd_allreduce(c, "x", &x, &y, HVD_REDUCTION_SUM, &error), HVD_INVALID); /* shapes differ */
  y = floats(b, 4);
  y.dtype = HVD_DTYPE_INT32;
  CHECK_STATUS(hvd_allreduce(c, "x", &x, &y, HVD_REDUCTION_SUM, &error), HVD_INVALID); /* dtypes differ */
  y = floats(b, 4);
  CHECK_STATUS(hvd_allreduce_async(c, "x", &x, &y, HVD_REDUCTION_SUM, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_broadcast(c, "x", NULL, 0, &error), HVD_INVALID);
  CHECK_STATUS(hvd_broadcast(c, "x", &x, 1, &error), HVD_INVALID);
  CHECK_NAMES("root");
  CHECK_STATUS(hvd_broadcast(c, "x", &x, -1, &error), HVD_INVALID);
  CHECK_STATUS(hvd_broadcast_async(c, "x", &x, 7, &op, &error), HVD_INVALID);
  CHECK(op == NULL);
  bad = x;
  bad.ndim = 0;
  CHECK_STATUS(hvd_allgather(c, "x", &bad, &y, &error), HVD_INVALID);
  CHECK_STATUS(hvd_allgather(c, "x", &x, NULL, &error), HVD_INVALID);
  y = floats(b, 2);
  CHECK_STATUS(hvd_allgather(c, "x", &x, &y, &error), HVD_INVALID); /* too small a room */
  CHECK_NAMES("4");
  y = floats(b, 4);
  CHECK_STATUS(hvd_barrier(c, NULL, &error), HVD_OK);
  CHECK_STATUS(hvd_broadcast_variables(c, "x", NULL, 1, 0, &error), HVD_INVALID);
  pair[0] = x;
  pair[1] = x;
  pair[1].struct_size = 8;
  CHECK_STATUS(hvd_broadcast_variables(c, "x", pair, 2, 0, &error), HVD_INVALID);
  CHECK_NAMES("tensors[1]");
  CHECK_STATUS(hvd_broadcast_object(c, "x", NULL, &size, 0, &error), HVD_INVALID);
  CHECK_STATUS(hvd_broadcast_object(c, "x", &data, NULL, 0, &error), HVD_INVALID);
  CHECK_STATUS(hvd_broadcast_object(c, "x", &data, &size, 0, &error), HVD_INVALID); /* NULL of 3 bytes */
  CHECK_STATUS(hvd_barrier_async(c, "x", &op, &error), HVD_OK);
  CHECK_STATUS(hvd_op_test(op, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_op_get_fd(op, NULL, &error), HVD_INVALID);
  CHECK_NAMES("ret_fd");
  CHECK_STATUS(hvd_op_wait(op, -5, &error), HVD_INVALID);
  CHECK_NAMES("-5");
  CHECK_STATUS(hvd_op_wait(op, HVD_DEFAULT_TIMEOUT, &error), HVD_OK);
  CHECK_STATUS(hvd_op_test(op, &number, &error), HVD_OK);
  CHECK(number == 1);
  CHECK_STATUS(hvd_op_get_output(op, 0, &y, &error), HVD_INVALID);
  hvd_op_destroy(op);
}

static void state(hvd_context *c) {
  hvd_state *s = NULL;
  hvd_state_info stats;
  float a[2] = {1, 2};
  hvd_tensor t = floats(a, 2);
  int32_t number = 5;
  int32_t other = 0;
  int32_t result = 0;
  memset(&stats, 0, sizeof(stats));
  CHECK_STATUS(hvd_state_create(c, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_state_create(c, &s, &error), HVD_OK);
  CHECK_STATUS(hvd_state_restore(s, &error), HVD_INVALID);
  CHECK_STATUS(hvd_state_add_tensor(s, NULL, &t, &error), HVD_INVALID);
  CHECK_STATUS(hvd_state_add_tensor(s, "t", NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_state_add_tensor(s, "t", &t, &error), HVD_OK);
  t.memory = HVD_MEMORY_CUDA;
  CHECK_STATUS(hvd_state_add_tensor(s, "d", &t, &error), HVD_UNSUPPORTED);
  CHECK_NAMES("'d'");
  t.memory = HVD_MEMORY_HOST;
  CHECK_STATUS(hvd_state_add_tensor(s, "t", &t, &error), HVD_INVALID);
  CHECK_NAMES("t");
  CHECK_STATUS(hvd_state_add_value(s, "v", NULL, 4, &error), HVD_INVALID);
  CHECK_STATUS(hvd_state_add_value(s, "v", &number, 0, &error), HVD_INVALID);
  CHECK_STATUS(hvd_state_add_value(s, "v", &number, 65537, &error), HVD_INVALID);
  CHECK_NAMES("65537");
  CHECK_STATUS(hvd_state_add_value(s, "v", &number, sizeof(number), &error), HVD_OK);
  destroyed = 0;
  CHECK_STATUS(hvd_state_add_object(s, "o", NULL, on_load, &result, count_destroy, &error), HVD_INVALID);
  CHECK_STATUS(hvd_state_add_object(s, "o", on_save, NULL, &result, count_destroy, &error), HVD_INVALID);
  CHECK_STATUS(hvd_state_add_object(s, "v", on_save, on_load, &result, count_destroy, &error), HVD_INVALID);
  CHECK_STATUS(hvd_state_on_reset(s, NULL, NULL, count_destroy, &error), HVD_INVALID);
  CHECK(destroyed == 4);
  CHECK_STATUS(hvd_state_add_object(s, "n", on_save_nothing, on_load, &result, NULL, &error), HVD_OK);
  CHECK_STATUS(hvd_state_commit(s, &error), HVD_CALLBACK_FAILED);
  CHECK_NAMES("'n' gave NULL");
  CHECK_STATUS(hvd_state_remove(s, "n", &error), HVD_OK);
  CHECK_STATUS(hvd_state_add_object(s, "o", on_save, on_load, &result, count_destroy, &error), HVD_OK);
  CHECK_STATUS(hvd_state_commit(s, &error), HVD_OK);
  CHECK(hvd_state_revision(s) == 1);
  /* A commit that fails leaves the last one as it was. */
  a[0] = 7;
  number = 6;
  result = 1;
  CHECK_STATUS(hvd_state_commit(s, &error), HVD_CALLBACK_FAILED);
  CHECK_NAMES("o");
  result = 0;
  CHECK(hvd_state_revision(s) == 1);
  CHECK_STATUS(hvd_state_restore(s, &error), HVD_OK);
  CHECK(a[0] == 1 && number == 5);
  CHECK_STATUS(hvd_state_sync(s, &error), HVD_OK);
  CHECK_STATUS(hvd_state_check_host_updates(s, &error), HVD_OK);
  CHECK_STATUS(hvd_state_get_info(s, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_state_get_info(s, &stats, &error), HVD_INVALID);
  stats.struct_size = sizeof(stats);
  CHECK_STATUS(hvd_state_get_info(s, &stats, &error), HVD_OK);
  CHECK(stats.revision == 1 && stats.commits == 1);
  CHECK_STATUS(hvd_state_set_data(s, NULL, &number, &error), HVD_INVALID);
  CHECK_STATUS(hvd_state_set_data(s, "nope", &number, &error), HVD_INVALID);
  CHECK_NAMES("nope");
  CHECK_STATUS(hvd_state_set_data(s, "v", NULL, &error), HVD_INVALID);
  CHECK_NAMES("'v'");
  CHECK_STATUS(hvd_state_set_data(s, "o", &number, &error), HVD_INVALID);
  CHECK_NAMES("'o' (object)");
  CHECK_STATUS(hvd_state_set_data(s, "v", &other, &error), HVD_OK);
  CHECK_STATUS(hvd_state_restore(s, &error), HVD_OK);
  CHECK(other == 5);
  CHECK_STATUS(hvd_state_remove(s, "nope", &error), HVD_INVALID);
  CHECK_NAMES("nope");
  destroyed = 0;
  CHECK_STATUS(hvd_state_remove(s, "o", &error), HVD_OK);
  CHECK(destroyed == 1);
  hvd_state_destroy(s);
}

static void run(hvd_context *c) {
  hvd_run_loop *loop = NULL;
  hvd_run_loop *second = NULL;
  hvd_status result = HVD_OK;
  int32_t again = 0;
  CHECK_STATUS(hvd_run(c, NULL, NULL, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_run_begin(c, NULL, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_run_begin(c, NULL, &loop, &error), HVD_OK);
  CHECK_STATUS(hvd_run_begin(c, NULL, &second, &error), HVD_INVALID);
  CHECK_STATUS(hvd_run(c, NULL, on_train, &result, &error), HVD_INVALID);
  CHECK_STATUS(hvd_run_next(loop, HVD_OK, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_run_next(loop, HVD_OK, &again, &error), HVD_OK);
  CHECK(again == 1);
  CHECK_STATUS(hvd_run_next(loop, HVD_OK, &again, &error), HVD_OK);
  CHECK(again == 0);
  CHECK_STATUS(hvd_run_next(loop, HVD_OK, &again, &error), HVD_INVALID);
  hvd_run_end(loop);
  result = HVD_MISMATCH;
  CHECK_STATUS(hvd_run(c, NULL, on_train, &result, &error), HVD_MISMATCH);
  result = HVD_OK;
  CHECK_STATUS(hvd_run(c, NULL, on_train, &result, &error), HVD_OK);
}

static void notifications(hvd_context *c) {
  uint64_t id = 0;
  int32_t fd = -1;
  int32_t available = 7;
  hvd_event event;
  memset(&event, 0, sizeof(event));
  destroyed = 0;
  CHECK_STATUS(hvd_register_listener(c, HVD_EVENT_ALL, NULL, NULL, count_destroy, &id, &error), HVD_INVALID);
  CHECK_STATUS(hvd_register_listener(c, 0, on_event, NULL, count_destroy, &id, &error), HVD_INVALID);
  CHECK_STATUS(hvd_register_listener(c, HVD_EVENT_ALL, on_event, NULL, count_destroy, NULL, &error),
               HVD_INVALID);
  CHECK(destroyed == 3);
  CHECK_STATUS(hvd_register_listener(c, HVD_EVENT_ALL, on_event, NULL, count_destroy, &id, &error), HVD_OK);
  CHECK(id != 0);
  CHECK_STATUS(hvd_remove_listener(c, id + 100, &error), HVD_INVALID);
  CHECK_STATUS(hvd_remove_listener(c, id, &error), HVD_OK);
  CHECK(destroyed == 4);
  event.struct_size = sizeof(event);
  CHECK_STATUS(hvd_next_event(c, &event, &available, &error), HVD_INVALID);
  CHECK_STATUS(hvd_get_event_fd(c, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_get_event_fd(c, &fd, &error), HVD_OK);
  CHECK(fd >= 0);
  CHECK_STATUS(hvd_next_event(c, NULL, &available, &error), HVD_INVALID);
  CHECK_STATUS(hvd_next_event(c, &event, &available, &error), HVD_OK);
  CHECK(available == 0);
}

static void after_shutdown(hvd_context *c) {
  float a[1] = {1};
  hvd_tensor t = floats(a, 1);
  hvd_state *s = NULL;
  hvd_op *op = NULL;
  hvd_status result = HVD_OK;
  hvd_membership_info m;
  hvd_request r = HVD_REQUEST_INIT;
  hvd_process_set *kept = NULL;
  hvd_process_set *set = NULL;
  hvd_process_set_info info;
  int32_t number = 0;
  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  r.collective = HVD_COLLECTIVE_BARRIER;
  r.name = "x";
  CHECK_STATUS(hvd_process_set_create(c, "kept", NULL, 0, HVD_SET_RULE_LOCAL, &kept, &error), HVD_OK);
  memset(&m, 0, sizeof(m));
  m.struct_size = sizeof(m);
  CHECK_STATUS(hvd_shutdown(c, -2, &error), HVD_INVALID);
  CHECK_NAMES("timeout_ns is -2");
  CHECK_STATUS(hvd_shutdown(c, INT64_MAX, &error), HVD_INVALID);
  CHECK_NAMES("365 days");
  CHECK_STATUS(hvd_shutdown(c, HVD_SECOND, &error), HVD_OK);
  CHECK_STATUS(hvd_shutdown(c, HVD_SECOND, &error), HVD_OK);
  CHECK_STATUS(hvd_allreduce(c, "x", &t, &t, HVD_REDUCTION_SUM, &error), HVD_CLOSED);
  CHECK_STATUS(hvd_barrier_async(c, "x", &op, &error), HVD_CLOSED);
  CHECK_STATUS(hvd_submit(c, &r, &op, &error), HVD_CLOSED);
  CHECK_STATUS(hvd_join(c, NULL, &error), HVD_CLOSED);
  CHECK_STATUS(hvd_process_set_create(c, "s", &number, 1, 0, &set, &error), HVD_CLOSED);
  CHECK_STATUS(hvd_process_set_get_info(kept, &info, &error), HVD_CLOSED);
  hvd_process_set_destroy(kept);
  CHECK_STATUS(hvd_state_create(c, &s, &error), HVD_CLOSED);
  CHECK_STATUS(hvd_run(c, NULL, on_train, &result, &error), HVD_CLOSED);
  CHECK_STATUS(hvd_get_membership(c, &m, &error), HVD_CLOSED);
  CHECK(hvd_rank(c) == -1);
  CHECK_STATUS(hvd_abort(c, NULL, &error), HVD_OK);
}

int main(void) {
  hvd_context *c = NULL;
  hvd_membership_info m;
  hvd_backend_info info;
  hvd_recovery_info recovery;
  size_t count = 1;
  names_and_errors();
  options();
  init();
  null_context();
  CHECK_STATUS(hvd_init(NULL, &c, &error), HVD_OK);
  if (c == NULL) return report("bad_input");
  memset(&m, 0, sizeof(m));
  CHECK_STATUS(hvd_get_membership(c, &m, &error), HVD_INVALID);
  CHECK_NAMES("struct_size");
  CHECK_STATUS(hvd_get_membership(c, NULL, &error), HVD_INVALID);
  /* A program of an older header gets no more than it knows. */
  memset(&m, 0x5a, sizeof(m));
  m.struct_size = 16;
  CHECK_STATUS(hvd_get_membership(c, &m, &error), HVD_OK);
  CHECK(m.rank == 0 && m.size == 1 && m.local_rank == 0x5a5a5a5a && m.struct_size == 16);
  CHECK_STATUS(hvd_get_backend(c, NULL, &error), HVD_INVALID);
  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  CHECK_STATUS(hvd_get_backend(c, &info, &error), HVD_OK);
  CHECK(strcmp(info.name, "self") == 0);
  CHECK_STATUS(hvd_get_recovery_count(c, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_get_recovery_count(c, &count, &error), HVD_OK);
  CHECK(count == 0);
  memset(&recovery, 0, sizeof(recovery));
  recovery.struct_size = sizeof(recovery);
  CHECK_STATUS(hvd_get_recovery(c, 0, &recovery, &error), HVD_INVALID);
  collectives(c);
  state(c);
  run(c);
  notifications(c);
  after_shutdown(c);
  hvd_destroy(c);
  return report("bad_input");
}
