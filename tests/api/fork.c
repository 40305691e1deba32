/* What a forked child inherits: every call is refused at once and nothing hangs or crashes, whatever the
 * parent's threads were doing; the child's own contexts work, and the parent goes on. Alone, or as a
 * worker of a job. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "hvd/connect.h"
#include "hvd/driver.h"
#include "hvd/hvd.h"
#include "hvd/sampler.h"

#ifdef SYS_fork
#define SYS_fork_or_clone SYS_fork
#else
#define SYS_fork_or_clone SYS_clone, SIGCHLD, 0, 0, 0, 0
#endif

/* ThreadSanitizer can't follow a child of a process with threads into threads of its own, nor any that is
 * made without the C library. */
#ifdef __SANITIZE_THREAD__
enum { PLAIN_CHILDREN = 1 };
#else
enum { PLAIN_CHILDREN = 0 };
#endif

static hvd_error error;
static atomic_int stop;

typedef struct handles {
  hvd_context *context, *unjoined;
  hvd_op *op;
  hvd_process_set *set;
  hvd_state *state;
  hvd_sampler *sampler;
  hvd_run_loop *loop;
  hvd_options *options;
  hvd_driver *driver;
  uint64_t listener;
  float values[4];
} handles;

static hvd_tensor tensor_of(float *values) {
  hvd_tensor tensor = HVD_TENSOR_INIT;
  tensor.data = values;
  tensor.dtype = HVD_DTYPE_FLOAT32;
  tensor.ndim = 1;
  tensor.shape[0] = 4;
  return tensor;
}

static int32_t save_nothing(void *userdata, hvd_write_fn write, void *sink) {
  (void)userdata;
  (void)write;
  (void)sink;
  return 0;
}
static int32_t load_nothing(void *userdata, const void *data, size_t size) {
  (void)userdata;
  (void)data;
  (void)size;
  return 0;
}
static int32_t reset_nothing(void *userdata) {
  (void)userdata;
  return 0;
}
static hvd_status train_nothing(void *userdata) {
  (void)userdata;
  return HVD_OK;
}
static void listen_to_nothing(void *userdata, const hvd_event *event) {
  (void)userdata;
  (void)event;
}
static void count(void *userdata) { ++*(int *)userdata; }

/* In the child: it names the fork. */
#define REFUSED(call)                \
  do {                               \
    CHECK_STATUS(call, HVD_INVALID); \
    CHECK_NAMES("after a fork");     \
  } while (0)

static void every_call_is_refused(handles *h) {
  hvd_tensor t = tensor_of(h->values);
  hvd_request request = HVD_REQUEST_INIT;
  hvd_membership_info place = {.struct_size = sizeof(place)};
  hvd_backend_info backend = {.struct_size = sizeof(backend)};
  hvd_backend_choice_info choice = {.struct_size = sizeof(choice)};
  hvd_process_set_info in_set = {.struct_size = sizeof(in_set)};
  hvd_state_info numbers = {.struct_size = sizeof(numbers)};
  hvd_sampler_options options = {sizeof(options), 10, 1, 0, 0, 0};
  hvd_sampler_info progress = {.struct_size = sizeof(progress)};
  hvd_sampler_batch batch = {.struct_size = sizeof(batch)};
  hvd_recovery_info recovery = {.struct_size = sizeof(recovery)};
  hvd_event event = {.struct_size = sizeof(event)};
  hvd_driver_status_info job = {.struct_size = sizeof(job)};
  hvd_op *op = NULL;
  hvd_process_set *set = NULL;
  hvd_state *state = NULL;
  hvd_sampler *sampler = NULL;
  hvd_run_loop *loop = NULL;
  void *object = NULL;
  uint64_t number = 0, indices[10];
  size_t size = 0;
  int32_t value = 0;
  int destroyed = 0;
  uint8_t saved[HVD_SAMPLER_SAVED_BYTES];
  const char *text = NULL;
  const char *const command[] = {"true", NULL};
  request.collective = HVD_COLLECTIVE_BARRIER;
  request.name = "b";

  REFUSED(hvd_connect(h->unjoined, 0, &error));
  REFUSED(hvd_connect_begin(h->unjoined, 0, &op, &error));
  REFUSED(hvd_abort(h->unjoined, "", &error));
  REFUSED(hvd_get_membership(h->context, &place, &error));
  CHECK(hvd_rank(h->context) == -1 && hvd_size(h->context) == -1 && hvd_generation(h->context) == 0);
  REFUSED(hvd_get_backend(h->context, &backend, &error));
  REFUSED(
      hvd_get_backend_choice(h->context, 0, HVD_DTYPE_FLOAT32, HVD_COLLECTIVE_BROADCAST, &choice, &error));
  REFUSED(hvd_allreduce(h->context, "x", &t, &t, HVD_REDUCTION_SUM, &error));
  REFUSED(hvd_broadcast(h->context, "x", &t, 0, &error));
  REFUSED(hvd_allgather(h->context, "x", &t, &t, &error));
  REFUSED(hvd_reducescatter(h->context, "x", &t, &t, HVD_REDUCTION_SUM, &error));
  REFUSED(hvd_alltoall(h->context, "x", &t, NULL, &t, NULL, &error));
  REFUSED(hvd_barrier(h->context, "x", &error));
  REFUSED(hvd_broadcast_variables(h->context, "x", &t, 1, 0, &error));
  REFUSED(hvd_grouped_allreduce(h->context, "x", &t, &t, 1, HVD_REDUCTION_SUM, &error));
  REFUSED(hvd_grouped_allgather(h->context, "x", &t, &t, 1, &error));
  REFUSED(hvd_broadcast_object(h->context, "x", &object, &size, 0, &error));
  REFUSED(hvd_join(h->context, NULL, &error));
  REFUSED(hvd_submit(h->context, &request, &op, &error));
  REFUSED(hvd_register_listener(h->context, 1, listen_to_nothing, &destroyed, count, &number, &error));
  CHECK(destroyed == 1);
  REFUSED(hvd_remove_listener(h->context, h->listener, &error));
  REFUSED(hvd_get_event_fd(h->context, &value, &error));
  REFUSED(hvd_next_event(h->context, &event, &value, &error));
  REFUSED(hvd_get_recovery_count(h->context, &size, &error));
  REFUSED(hvd_get_recovery(h->context, 0, &recovery, &error));
  REFUSED(hvd_timeline_start(h->context, "/nowhere", &error));
  REFUSED(hvd_timeline_stop(h->context, &error));
  REFUSED(hvd_process_set_create(h->context, "t", NULL, 0, HVD_SET_RULE_LOCAL, &set, &error));
  REFUSED(hvd_state_create(h->context, &state, &error));
  REFUSED(hvd_sampler_create(h->context, &options, &sampler, &error));
  REFUSED(hvd_run(h->context, NULL, train_nothing, NULL, &error));
  REFUSED(hvd_run_begin(h->context, NULL, &loop, &error));

  REFUSED(hvd_op_test(h->op, &value, &error));
  REFUSED(hvd_op_wait(h->op, 0, &error));
  REFUSED(hvd_op_get_fd(h->op, &value, &error));
  REFUSED(hvd_op_get_error(h->op, &error));
  REFUSED(hvd_op_get_output(h->op, 0, &t, &error));
  REFUSED(hvd_op_get_received_splits(h->op, NULL, &size, &error));
  REFUSED(hvd_op_get_last_joined(h->op, &value, &error));
  REFUSED(hvd_op_abandon(h->op, &destroyed, count, &error));
  CHECK(destroyed == 2);

  REFUSED(hvd_process_set_get_info(h->set, &in_set, &error));
  REFUSED(hvd_process_set_get_ranks(h->set, NULL, &size, &error));

  REFUSED(hvd_state_add_tensor(h->state, "t", &t, &error));
  REFUSED(hvd_state_add_value(h->state, "v", &number, sizeof(number), &error));
  REFUSED(hvd_state_add_object(h->state, "o", save_nothing, load_nothing, NULL, NULL, &error));
  REFUSED(hvd_state_add_sampler(h->state, "s", h->sampler, &error));
  REFUSED(hvd_state_remove(h->state, "x", &error));
  REFUSED(hvd_state_set_data(h->state, "x", &number, &error));
  REFUSED(hvd_state_on_reset(h->state, reset_nothing, NULL, NULL, &error));
  REFUSED(hvd_state_commit(h->state, &error));
  REFUSED(hvd_state_save(h->state, &error));
  REFUSED(hvd_state_check_host_updates(h->state, &error));
  REFUSED(hvd_state_restore(h->state, &error));
  REFUSED(hvd_state_sync(h->state, &error));
  CHECK(hvd_state_revision(h->state) == 0);
  REFUSED(hvd_state_get_info(h->state, &numbers, &error));

  REFUSED(hvd_sampler_next(h->sampler, NULL, indices, 10, &batch, &error));
  REFUSED(hvd_sampler_record(h->sampler, &batch, &error));
  REFUSED(hvd_sampler_set_epoch(h->sampler, 1, &error));
  REFUSED(hvd_sampler_get_info(h->sampler, &progress, &error));
  REFUSED(hvd_sampler_save(h->sampler, saved, sizeof(saved), &error));
  REFUSED(hvd_sampler_load(h->sampler, saved, sizeof(saved), &error));
  REFUSED(hvd_run_next(h->loop, HVD_OK, &value, &error));

  REFUSED(hvd_options_set(h->options, "np", "2", &error));
  REFUSED(hvd_options_get(h->options, "np", &text, &error));

  REFUSED(hvd_driver_set_command(h->driver, command, NULL, &error));
  REFUSED(hvd_driver_start(h->driver, &error));
  REFUSED(hvd_driver_wait(h->driver, 0, &error));
  REFUSED(hvd_driver_stop(h->driver, "", &error));
  REFUSED(hvd_driver_get_status(h->driver, &job, &error));
  REFUSED(hvd_driver_worker_exited(h->driver, 1, 0, &error));
  REFUSED(hvd_shutdown(h->context, 0, &error));
  REFUSED(hvd_abort(h->context, "", &error));
}

static void destroy_all(handles *h) {
  hvd_destroy(h->context);
  hvd_destroy(h->unjoined);
  hvd_op_destroy(h->op);
  hvd_process_set_destroy(h->set);
  hvd_state_destroy(h->state);
  hvd_sampler_destroy(h->sampler);
  hvd_run_end(h->loop);
  hvd_options_destroy(h->options);
  hvd_driver_destroy(h->driver);
}

/* The child is a worker of no job, whatever its parent is. */
static void own_context_works(void) {
  float values[4] = {1, 2, 3, 4};
  hvd_tensor t = tensor_of(values);
  hvd_context *context = NULL;
  unsetenv("HVD_DRIVER");
  CHECK_STATUS(hvd_init(NULL, &context, &error), HVD_OK);
  CHECK(hvd_size(context) == 1);
  CHECK_STATUS(hvd_allreduce(context, "x", &t, &t, HVD_REDUCTION_SUM, &error), HVD_OK);
  CHECK_STATUS(hvd_shutdown(context, 0, &error), HVD_OK);
  hvd_destroy(context);
}

static int child(handles *h, int with_calls, int deep) {
  alarm(60); /* what hangs is ended, and the parent sees it */
  if (with_calls) every_call_is_refused(h);
  destroy_all(h);
  if (!PLAIN_CHILDREN) own_context_works();
  if (with_calls) every_call_is_refused(h);
  if (deep) { /* a child's child */
    int status = 0;
    const pid_t grandchild = fork();
    if (grandchild == 0) _exit(child(h, with_calls, 0));
    waitpid(grandchild, &status, 0);
    CHECK(status == 0);
  }
  return failures == 0 ? 0 : 1;
}

static void make(handles *h, hvd_context *context) {
  hvd_sampler_options sampler = {sizeof(sampler), 100, 4, 1, 0, 0};
  hvd_tensor tensor;
  hvd_request request = HVD_REQUEST_INIT;
  memset(h, 0, sizeof(*h));
  h->context = context;
  tensor = tensor_of(h->values);
  request.collective = HVD_COLLECTIVE_ALLREDUCE;
  request.name = "made";
  request.inputs = &tensor;
  request.outputs = &tensor;
  CHECK_STATUS(hvd_options_create(&h->options, &error), HVD_OK);
  CHECK_STATUS(hvd_context_create(h->options, &h->unjoined, &error), HVD_OK);
  CHECK_STATUS(hvd_driver_create(h->options, &h->driver, &error), HVD_OK);
  CHECK_STATUS(hvd_submit(context, &request, &h->op, &error), HVD_OK);
  CHECK_STATUS(hvd_process_set_create(context, "here", NULL, 0, HVD_SET_RULE_LOCAL, &h->set, &error), HVD_OK);
  CHECK_STATUS(hvd_state_create(context, &h->state, &error), HVD_OK);
  CHECK_STATUS(hvd_state_add_tensor(h->state, "x", &tensor, &error), HVD_OK);
  CHECK_STATUS(hvd_sampler_create(context, &sampler, &h->sampler, &error), HVD_OK);
  CHECK_STATUS(
      hvd_register_listener(context, HVD_EVENT_ALL, listen_to_nothing, NULL, NULL, &h->listener, &error),
      HVD_OK);
  CHECK_STATUS(hvd_run_begin(context, h->state, &h->loop, &error), HVD_OK);
  CHECK_STATUS(hvd_op_wait(h->op, 0, &error), HVD_OK);
}

/* Forks come while other threads are in the middle of calls. */
static void *keep_busy(void *argument) {
  handles *h = argument;
  while (!stop) {
    float mine[4] = {0, 0, 0, 0};
    hvd_options *options = NULL;
    hvd_op *op = NULL;
    hvd_tensor tensor = tensor_of(mine);
    hvd_request request = HVD_REQUEST_INIT;
    uint8_t saved[HVD_SAMPLER_SAVED_BYTES];
    request.collective = HVD_COLLECTIVE_ALLREDUCE;
    request.name = "busy";
    request.inputs = &tensor;
    request.outputs = &tensor;
    if (hvd_size(h->context) == 1) {
      CHECK(hvd_submit(h->context, &request, &op, NULL) == HVD_OK);
      CHECK(hvd_op_wait(op, 0, NULL) == HVD_OK);
    }
    CHECK(hvd_options_create(&options, NULL) == HVD_OK);
    CHECK(hvd_sampler_save(h->sampler, saved, sizeof(saved), NULL) == HVD_OK);
    hvd_op_destroy(op);
    hvd_options_destroy(options);
  }
  return NULL;
}

int main(void) {
  handles h;
  hvd_context *context = NULL;
  pthread_t thread;
  float values[4] = {1, 1, 1, 1};
  hvd_tensor t = tensor_of(values);
  CHECK_STATUS(hvd_init(NULL, &context, &error), HVD_OK);
  if (context == NULL) return report("fork");
  const int size = hvd_size(context);
  make(&h, context);
  pthread_create(&thread, NULL, keep_busy, &h);
  for (int round = 0; round < 12; ++round) {
    int status = 0;
    /* Some languages fork without the C library. */
    const pid_t pid = round % 4 == 3 && !PLAIN_CHILDREN ? (pid_t)syscall(SYS_fork_or_clone) : fork();
    if (pid == 0) _exit(child(&h, round % 3 != 0, round == 1));
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    if (status != 0) fprintf(stderr, "round %d: the child ended with status %#x\n", round, status);
    /* Nothing of it has reached the parent or its job. */
    CHECK_STATUS(hvd_allreduce(context, "x", &t, &t, HVD_REDUCTION_AVERAGE, &error), HVD_OK);
    CHECK(values[3] == 1 && hvd_size(context) == size);
  }
  stop = 1;
  pthread_join(thread, NULL);
  hvd_run_end(h.loop); /* with a loop that is open the worker would leave without being done */
  CHECK_STATUS(hvd_shutdown(context, 0, &error), HVD_OK);
  destroy_all(&h);
  return report("fork");
}
