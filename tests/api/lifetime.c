/* Handles end in any order, from any thread, in the middle of calls and callbacks, and before the job is
 * joined. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* pthread_setattr_default_np */
#endif
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "hvd/connect.h"
#include "hvd/driver.h"
#include "hvd/hvd.h"
#include "hvd/sampler.h"

static hvd_error error;

enum { CONTEXT, OP, SET, STATE, SAMPLER, LOOP, OPTIONS, KINDS };

typedef struct handles {
  hvd_context *context;
  hvd_op *op;
  hvd_process_set *set;
  hvd_state *state;
  hvd_sampler *sampler;
  hvd_run_loop *loop;
  hvd_options *options;
  float values[4];
  int gone[KINDS];
} handles;

static hvd_tensor tensor_of(float *values) {
  hvd_tensor tensor = HVD_TENSOR_INIT;
  tensor.data = values;
  tensor.dtype = HVD_DTYPE_FLOAT32;
  tensor.ndim = 1;
  tensor.shape[0] = 4;
  return tensor;
}

static void make(handles *h) {
  const int32_t ranks[] = {0};
  hvd_sampler_options sampler = {sizeof(sampler), 100, 4, 1, 0, 0};
  hvd_tensor tensor;
  memset(h, 0, sizeof(*h));
  tensor = tensor_of(h->values);
  hvd_request request = HVD_REQUEST_INIT;
  request.collective = HVD_COLLECTIVE_ALLREDUCE;
  request.name = "x";
  request.inputs = &tensor;
  request.outputs = &tensor;
  CHECK_STATUS(hvd_options_create(&h->options, &error), HVD_OK);
  CHECK_STATUS(hvd_init(h->options, &h->context, &error), HVD_OK);
  CHECK_STATUS(hvd_submit(h->context, &request, &h->op, &error), HVD_OK);
  CHECK_STATUS(hvd_process_set_create(h->context, "s", ranks, 1, 0, &h->set, &error), HVD_OK);
  CHECK_STATUS(hvd_state_create(h->context, &h->state, &error), HVD_OK);
  CHECK_STATUS(hvd_state_add_tensor(h->state, "x", &tensor, &error), HVD_OK);
  CHECK_STATUS(hvd_sampler_create(h->context, &sampler, &h->sampler, &error), HVD_OK);
  CHECK_STATUS(hvd_state_add_sampler(h->state, "sampler", h->sampler, &error), HVD_OK);
  CHECK_STATUS(hvd_run_begin(h->context, h->state, &h->loop, &error), HVD_OK);
}

static void destroy(handles *h, int kind) {
  h->gone[kind] = 1;
  switch (kind) {
    case CONTEXT: hvd_destroy(h->context); break;
    case OP: hvd_op_destroy(h->op); break;
    case SET: hvd_process_set_destroy(h->set); break;
    case STATE: hvd_state_destroy(h->state); break;
    case SAMPLER: hvd_sampler_destroy(h->sampler); break;
    case LOOP: hvd_run_end(h->loop); break;
    case OPTIONS: hvd_options_destroy(h->options); break;
  }
}

/* What a call on a handle gives: `needs` the context, or is the object's alone. */
static hvd_status expected(const handles *h, int kind, int needs) {
  return h->gone[kind] || (needs && h->gone[CONTEXT]) ? HVD_CLOSED : HVD_OK;
}

static void call_all(handles *h) {
  hvd_tensor tensor = tensor_of(h->values);
  hvd_membership_info place = {.struct_size = sizeof(place)};
  hvd_process_set_info in_set = {.struct_size = sizeof(in_set)};
  hvd_sampler_info progress = {.struct_size = sizeof(progress)};
  const char *text = NULL;
  int32_t done = 0, again = 0;
  uint8_t saved[HVD_SAMPLER_SAVED_BYTES];
  hvd_op *op = NULL;
  hvd_request request = HVD_REQUEST_INIT;
  request.collective = HVD_COLLECTIVE_ALLREDUCE;
  request.name = "y";
  request.inputs = &tensor;
  request.outputs = &tensor;
  request.process_set = h->set;
  CHECK_STATUS(hvd_get_membership(h->context, &place, &error), expected(h, CONTEXT, 1));
  CHECK(hvd_rank(h->context) == (h->gone[CONTEXT] ? -1 : 0));
  CHECK_STATUS(hvd_allreduce(h->context, "z", &tensor, &tensor, HVD_REDUCTION_SUM, &error),
               expected(h, CONTEXT, 1));
  CHECK_STATUS(hvd_submit(h->context, &request, &op, &error), expected(h, SET, 1));
  hvd_op_destroy(op);
  CHECK_STATUS(hvd_op_test(h->op, &done, &error), expected(h, OP, 0));
  CHECK_STATUS(hvd_op_wait(h->op, 0, &error), expected(h, OP, 0));
  CHECK_STATUS(hvd_process_set_get_info(h->set, &in_set, &error), expected(h, SET, 1));
  CHECK_STATUS(hvd_state_commit(h->state, &error), expected(h, STATE, 1));
  CHECK_STATUS(hvd_state_restore(h->state, &error), expected(h, STATE, 0));
  CHECK_STATUS(hvd_sampler_get_info(h->sampler, &progress, &error), expected(h, SAMPLER, 1));
  CHECK_STATUS(hvd_sampler_save(h->sampler, saved, sizeof(saved), &error), expected(h, SAMPLER, 0));
  if (h->gone[LOOP]) CHECK_STATUS(hvd_run_next(h->loop, HVD_OK, &again, &error), HVD_CLOSED);
  CHECK_STATUS(hvd_options_get(h->options, "np", &text, &error), expected(h, OPTIONS, 0));
}

static void in_every_order(void) {
  unsigned seed = 7;
  for (int round = 0; round < 60; ++round) {
    handles h;
    int order[KINDS];
    make(&h);
    for (int i = 0; i < KINDS; ++i) order[i] = i;
    for (int i = KINDS - 1; i > 0; --i) {
      seed = seed * 1664525u + 1013904223u;
      const int other = (int)((seed >> 16) % (unsigned)(i + 1)), mine = order[i];
      order[i] = order[other];
      order[other] = mine;
    }
    call_all(&h);
    for (int i = 0; i < KINDS; ++i) {
      destroy(&h, order[i]);
      call_all(&h);
      destroy(&h, order[i]); /* twice does nothing */
    }
    if (failures > 0) return;
  }
}

/* Threads that use everything while it is destroyed under them. */
static int allowed(hvd_status status) {
  /* HVD_INVALID: another thread is in a call on the state or the loop; or the name is in use. */
  return status == HVD_OK || status == HVD_CLOSED || status == HVD_INVALID;
}

typedef struct hammer {
  handles *h;
  int kind;
  int bad;
  unsigned calls;
} hammer;

static void *use_until_closed(void *argument) {
  hammer *me = argument;
  handles *h = me->h;
  hvd_status status = HVD_OK;
  for (me->calls = 0; status != HVD_CLOSED; ++me->calls) {
    float mine[4] = {0, 0, 0, 0};
    hvd_tensor tensor = tensor_of(mine);
    int32_t value = 0;
    const char *text = NULL;
    char name[32];
    hvd_process_set_info info = {.struct_size = sizeof(info)};
    uint8_t saved[HVD_SAMPLER_SAVED_BYTES];
    snprintf(name, sizeof(name), "t%p", (void *)me);
    switch (me->kind) {
      case CONTEXT:
        status = hvd_allreduce(h->context, name, &tensor, &tensor, HVD_REDUCTION_SUM, NULL);
        break;
      case OP: status = hvd_op_test(h->op, &value, NULL); break;
      case SET: status = hvd_process_set_get_info(h->set, &info, NULL); break;
      case STATE: status = hvd_state_commit(h->state, NULL); break;
      case SAMPLER: status = hvd_sampler_save(h->sampler, saved, sizeof(saved), NULL); break;
      case LOOP: status = hvd_run_next(h->loop, HVD_OK, &value, NULL); break;
      case OPTIONS: /* not thread-safe, but its end is */
        status = me->calls == 0 ? hvd_options_get(h->options, "np", &text, NULL) : HVD_CLOSED;
        break;
    }
    if (!allowed(status)) me->bad = status;
  }
  return NULL;
}

static void under_threads(void) {
  for (int round = 0; round < 20; ++round) {
    handles h;
    hammer hammers[2 * KINDS];
    pthread_t threads[2 * KINDS];
    make(&h);
    for (int i = 0; i < 2 * KINDS; ++i) {
      hammers[i] = (hammer){&h, i % KINDS, 0, 0};
      if (i >= KINDS && i % KINDS == OPTIONS) hammers[i].kind = OP;
      pthread_create(&threads[i], NULL, use_until_closed, &hammers[i]);
    }
    for (int i = 0; i < KINDS; ++i) {
      const int kind = (i + round) % KINDS;
      switch (kind) { /* gone is for the other tests: no thread looks at it */
        case CONTEXT: hvd_destroy(h.context); break;
        case OP: hvd_op_destroy(h.op); break;
        case SET: hvd_process_set_destroy(h.set); break;
        case STATE: hvd_state_destroy(h.state); break;
        case SAMPLER: hvd_sampler_destroy(h.sampler); break;
        case LOOP: hvd_run_end(h.loop); break;
        case OPTIONS: hvd_options_destroy(h.options); break;
      }
    }
    for (int i = 0; i < 2 * KINDS; ++i) {
      pthread_join(threads[i], NULL);
      CHECK(hammers[i].bad == 0);
    }
  }
}

/* Destroyed from within its own callbacks. */
static handles *current;
static int calls;

static hvd_status train_destroys(void *userdata) {
  float values[4] = {0, 0, 0, 0};
  hvd_tensor tensor = tensor_of(values);
  (void)userdata;
  ++calls;
  hvd_state_destroy(current->state);
  hvd_destroy(current->context);
  CHECK_STATUS(hvd_allreduce(current->context, "after", &tensor, &tensor, HVD_REDUCTION_SUM, &error),
               HVD_CLOSED);
  return HVD_OK;
}

static int32_t save_destroys(void *userdata, hvd_write_fn write, void *sink) {
  (void)userdata;
  (void)write;
  (void)sink;
  if (++calls > 1) return 0;
  CHECK_STATUS(hvd_shutdown(current->context, 0, &error), HVD_INVALID);
  CHECK_NAMES("callback");
  hvd_destroy(current->context);
  hvd_state_destroy(current->state);
  return 0;
}
static int32_t load_nothing(void *userdata, const void *data, size_t size) {
  (void)userdata;
  (void)data;
  (void)size;
  return 0;
}

static void count_destroyed(void *userdata) { ++*(int *)userdata; }

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int heard;

/* A commit that was begun reads the memory until the state is destroyed, whoever has the state besides. */
static void while_a_commit_is_copied(void) {
  const size_t size = (size_t)64 << 20;
  void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  hvd_context *context = NULL;
  hvd_state *state = NULL;
  hvd_run_loop *loop = NULL;
  hvd_tensor tensor = HVD_TENSOR_INIT;
  int32_t again = 0;
  CHECK(memory != MAP_FAILED);
  memset(memory, 1, size);
  tensor.data = memory;
  tensor.dtype = HVD_DTYPE_UINT8;
  tensor.ndim = 1;
  tensor.shape[0] = (int64_t)size;
  CHECK_STATUS(hvd_init(NULL, &context, &error), HVD_OK);
  CHECK_STATUS(hvd_state_create(context, &state, &error), HVD_OK);
  CHECK_STATUS(hvd_state_add_tensor(state, "x", &tensor, &error), HVD_OK);
  CHECK_STATUS(hvd_run_begin(context, state, &loop, &error), HVD_OK);
  CHECK_STATUS(hvd_run_next(loop, HVD_OK, &again, &error), HVD_OK);
  memset(memory, 2, size);
  CHECK_STATUS(hvd_state_commit_begin(state, &error), HVD_OK);
  hvd_state_destroy(state);
  munmap(memory, size); /* a thread that still reads it ends this process */
  CHECK_STATUS(hvd_run_next(loop, HVD_OK, &again, &error), HVD_CLOSED);
  hvd_run_end(loop); /* ends that thread */
  hvd_destroy(context);
}

/* In a call of another thread until the handle is closed, and a little longer. */
typedef struct in_call {
  hvd_state *state;
  sem_t begun;
  atomic_int over;
} in_call;

static int32_t save_outlives_handle(void *userdata, hvd_write_fn write, void *sink) {
  in_call *call = userdata;
  hvd_state_info info = {.struct_size = sizeof(info)};
  (void)write;
  (void)sink;
  sem_post(&call->begun);
  while (hvd_state_get_info(call->state, &info, NULL) == HVD_OK) sched_yield();
  for (int i = 0; i < 1000; ++i) sched_yield();
  atomic_store(&call->over, 1);
  return 0;
}

static void *commit_once(void *argument) {
  in_call *call = argument;
  const hvd_status status = hvd_state_commit(call->state, NULL);
  CHECK(allowed(status));
  return NULL;
}

static void while_another_thread_commits(void) {
  hvd_context *context = NULL;
  in_call call;
  pthread_t thread;
  memset(&call, 0, sizeof(call));
  sem_init(&call.begun, 0, 0);
  CHECK_STATUS(hvd_init(NULL, &context, &error), HVD_OK);
  CHECK_STATUS(hvd_state_create(context, &call.state, &error), HVD_OK);
  CHECK_STATUS(hvd_state_add_object(call.state, "o", save_outlives_handle, load_nothing, &call, NULL, &error),
               HVD_OK);
  pthread_create(&thread, NULL, commit_once, &call);
  while (sem_wait(&call.begun) != 0) {}
  hvd_state_destroy(call.state);
  CHECK(atomic_load(&call.over) == 1);
  pthread_join(thread, NULL);
  hvd_destroy(context);
  sem_destroy(&call.begun);
}

static void listener_destroys(void *userdata, const hvd_event *event) {
  (void)event;
  hvd_destroy(*(hvd_context **)userdata); /* refused: it does nothing */
  pthread_mutex_lock(&mutex);
  heard = 1;
  pthread_cond_signal(&changed);
  pthread_mutex_unlock(&mutex);
}

static void from_callbacks(void) {
  handles h;
  int destroyed = 0;
  hvd_context *context = NULL;
  hvd_options *options = NULL;
  uint64_t listener = 0;
  make(&h);
  hvd_run_end(h.loop);
  current = &h;
  calls = 0;
  CHECK_STATUS(hvd_run(h.context, h.state, train_destroys, NULL, &error), HVD_CLOSED);
  CHECK(calls == 1);
  CHECK_STATUS(hvd_shutdown(h.context, 0, &error), HVD_CLOSED);
  destroy(&h, OP), destroy(&h, SET), destroy(&h, SAMPLER), destroy(&h, OPTIONS);

  make(&h);
  calls = 0;
  CHECK_STATUS(
      hvd_state_add_object(h.state, "o", save_destroys, load_nothing, &destroyed, count_destroyed, &error),
      HVD_OK);
  CHECK(hvd_state_commit(h.state, &error) == HVD_CLOSED);
  CHECK(calls == 1 && destroyed == 0); /* the loop has the state still */
  hvd_run_end(h.loop);
  CHECK(destroyed == 1);
  destroy(&h, OP), destroy(&h, SET), destroy(&h, SAMPLER), destroy(&h, OPTIONS);

  /* Listeners may be there before the job is joined: this one hears of its first generation. */
  CHECK_STATUS(hvd_options_create(&options, &error), HVD_OK);
  CHECK_STATUS(hvd_context_create(options, &context, &error), HVD_OK);
  CHECK_STATUS(
      hvd_register_listener(context, HVD_EVENT_ALL, listener_destroys, &context, NULL, &listener, &error),
      HVD_OK);
  CHECK_STATUS(hvd_connect(context, 0, &error), HVD_OK);
  pthread_mutex_lock(&mutex);
  while (!heard) pthread_cond_wait(&changed, &mutex);
  pthread_mutex_unlock(&mutex);
  CHECK(hvd_size(context) == 1);
  hvd_destroy(context);
  CHECK(hvd_size(context) == -1);
  hvd_options_destroy(options);
}

static void foreign_handles(void) {
  handles h;
  int here = 0;
  hvd_membership_info place = {.struct_size = sizeof(place)};
  int32_t done = 0;
  make(&h);
  CHECK_STATUS(hvd_get_membership((hvd_context *)&here, &place, &error), HVD_INVALID);
  CHECK_NAMES("no handle");
  CHECK_STATUS(hvd_get_membership((hvd_context *)(uintptr_t)5, &place, &error), HVD_INVALID);
  CHECK_STATUS(hvd_get_membership((hvd_context *)h.op, &place, &error), HVD_INVALID);
  CHECK_NAMES("context is a hvd_op: expected a hvd_context");
  CHECK_STATUS(hvd_op_test((hvd_op *)h.state, &done, &error), HVD_INVALID);
  hvd_destroy((hvd_context *)h.state);
  hvd_destroy((hvd_context *)&here);
  hvd_op_destroy((hvd_op *)h.context);
  hvd_op_destroy(NULL);
  call_all(&h);
  for (int i = 0; i < KINDS; ++i) destroy(&h, i);
}

/* A driver that accepts, and never says a word. */
static int deaf_driver(int *ret_port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof(address);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(bind(fd, (struct sockaddr *)&address, size) == 0 && listen(fd, 16) == 0);
  getsockname(fd, (struct sockaddr *)&address, &size);
  *ret_port = ntohs(address.sin_port);
  return fd;
}

static void *connect_it(void *context) {
  hvd_error why = HVD_ERROR_INIT;
  const hvd_status status = hvd_connect(context, 0, &why);
  return status == HVD_CLOSED && strstr(why.message, "enough of it") != NULL ? context : NULL;
}

static void while_connecting(void) {
  int port = 0, peer = -1, destroyed = 0;
  char endpoint[32];
  hvd_options *options = NULL;
  hvd_context *context = NULL;
  hvd_op *op = NULL;
  int32_t done = 1, fd = -1;
  void *result = NULL;
  pthread_t thread;
  float values[4] = {1, 2, 3, 4};
  hvd_tensor tensor = tensor_of(values);
  const int driver = deaf_driver(&port);
  struct pollfd arrival = {.fd = driver, .events = POLLIN};
  snprintf(endpoint, sizeof(endpoint), "127.0.0.1:%d", port);
  CHECK_STATUS(hvd_options_create(&options, &error), HVD_OK);
  CHECK_STATUS(hvd_options_set(options, "driver", endpoint, &error), HVD_OK);
  CHECK_STATUS(hvd_options_set(options, "secret", "0123456789abcdef0123456789abcdef", &error), HVD_OK);
  CHECK_STATUS(hvd_options_set(options, "worker", "1", &error), HVD_OK);

  /* Abort before there is anything to abort. */
  CHECK_STATUS(hvd_context_create(options, &context, &error), HVD_OK);
  CHECK_STATUS(hvd_allreduce(context, "x", &tensor, &tensor, HVD_REDUCTION_SUM, &error), HVD_INVALID);
  CHECK_NAMES("hvd_connect");
  CHECK(hvd_rank(context) == -1);
  CHECK_STATUS(hvd_abort(context, "enough of it", &error), HVD_OK);
  CHECK_STATUS(hvd_connect(context, 0, &error), HVD_CLOSED);
  CHECK_NAMES("enough of it");
  CHECK_STATUS(hvd_connect(context, 0, &error), HVD_INVALID);
  hvd_destroy(context);

  /* And while the blocking form waits. */
  CHECK_STATUS(hvd_context_create(options, &context, &error), HVD_OK);
  CHECK_STATUS(hvd_connect(context, -1, &error), HVD_INVALID);
  CHECK_NAMES("-1");
  pthread_create(&thread, NULL, connect_it, context);
  CHECK(poll(&arrival, 1, 20000) == 1);
  peer = accept(driver, NULL, NULL);
  CHECK_STATUS(hvd_abort(context, "enough of it", &error), HVD_OK);
  pthread_join(thread, &result);
  CHECK(result == context);
  hvd_destroy(context);
  close(peer);

  /* Without a thread of the program. */
  CHECK_STATUS(hvd_context_create(options, &context, &error), HVD_OK);
  CHECK_STATUS(hvd_connect_begin(context, 0, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_connect_begin(context, 0, &op, &error), HVD_OK);
  CHECK_STATUS(hvd_connect(context, 0, &error), HVD_INVALID);
  CHECK_NAMES("already");
  CHECK(poll(&arrival, 1, 20000) == 1);
  CHECK_STATUS(hvd_op_test(op, &done, &error), HVD_OK);
  CHECK(done == 0);
  CHECK_STATUS(hvd_op_wait(op, HVD_MILLISECOND, &error), HVD_TIMEOUT);
  CHECK_STATUS(hvd_op_get_fd(op, &fd, &error), HVD_OK);
  CHECK_STATUS(hvd_abort(context, "enough of it", &error), HVD_OK);
  {
    struct pollfd completion = {.fd = fd, .events = POLLIN};
    CHECK(poll(&completion, 1, 20000) == 1);
  }
  CHECK_STATUS(hvd_op_wait(op, 0, &error), HVD_CLOSED);
  CHECK_NAMES("enough of it");
  hvd_op_destroy(op);
  hvd_destroy(context);

  /* Memory of an operation that is given up stays until that has completed. */
  CHECK_STATUS(hvd_context_create(options, &context, &error), HVD_OK);
  CHECK_STATUS(hvd_connect_begin(context, 0, &op, &error), HVD_OK);
  CHECK_STATUS(hvd_op_abandon(NULL, &destroyed, count_destroyed, &error), HVD_INVALID);
  CHECK(destroyed == 1);
  CHECK_STATUS(hvd_op_abandon(op, &destroyed, count_destroyed, &error), HVD_OK);
  CHECK_STATUS(hvd_op_abandon(op, NULL, NULL, &error), HVD_CLOSED);
  CHECK(destroyed == 1);
  hvd_destroy(context);
  CHECK(destroyed == 2);
  hvd_options_destroy(options);
  close(driver);
}

static void after_connect_begin(void) {
  hvd_context *context = NULL;
  hvd_op *op = NULL;
  CHECK_STATUS(hvd_context_create(NULL, &context, &error), HVD_OK);
  CHECK_STATUS(hvd_connect_begin(context, 20 * HVD_SECOND, &op, &error), HVD_OK);
  CHECK_STATUS(hvd_op_wait(op, 0, &error), HVD_OK);
  CHECK(hvd_rank(context) == 0 && hvd_size(context) == 1);
  CHECK_STATUS(hvd_connect(context, 0, &error), HVD_INVALID);
  CHECK_NAMES("has joined");
  hvd_op_destroy(op);
  CHECK_STATUS(hvd_shutdown(context, 0, &error), HVD_OK);
  hvd_destroy(context);
}

/* No thread is to be had for a moment: it may be tried again. */
static void without_a_thread(void) {
  hvd_context *context = NULL;
  hvd_op *op = NULL;
  pthread_attr_t normal, huge;
  CHECK_STATUS(hvd_context_create(NULL, &context, &error), HVD_OK);
  pthread_getattr_default_np(&normal);
  pthread_attr_init(&huge);
  pthread_attr_setstacksize(&huge, (size_t)1 << (sizeof(size_t) == 8 ? 47 : 31)); /* more than there is */
  CHECK(pthread_setattr_default_np(&huge) == 0);
  const hvd_status status = hvd_connect_begin(context, 20 * HVD_SECOND, &op, &error);
  pthread_setattr_default_np(&normal);
  CHECK(status != HVD_OK && op == NULL);
  CHECK_STATUS(hvd_connect_begin(context, 20 * HVD_SECOND, &op, &error), HVD_OK);
  CHECK_STATUS(hvd_op_wait(op, 0, &error), HVD_OK);
  hvd_op_destroy(op);
  hvd_destroy(context);
  pthread_attr_destroy(&huge);
  pthread_attr_destroy(&normal);
}

/* A driver is destroyed while others wait for its job. */
static int32_t start_nothing(void *userdata, const hvd_launch *launch) {
  hvd_driver_destroy(*(hvd_driver **)userdata); /* refused: it does nothing */
  (void)launch;
  return 0;
}
static void stop_nothing(void *userdata, uint64_t worker, int32_t force) {
  (void)force;
  hvd_driver_worker_exited(*(hvd_driver **)userdata, worker, 0, NULL);
}
static void *wait_for_driver(void *driver) {
  hvd_driver_wait(driver, 60 * HVD_SECOND, NULL);
  return NULL;
}

static void drivers(void) {
  hvd_options *options = NULL;
  hvd_driver *driver = NULL;
  hvd_driver_status_info info = {.struct_size = sizeof(info)};
  pthread_t thread;
  CHECK_STATUS(hvd_options_create(&options, &error), HVD_OK);
  CHECK_STATUS(hvd_options_set(options, "hosts", "here:1", &error), HVD_OK);
  CHECK_STATUS(hvd_options_set(options, "local_hosts", "1", &error), HVD_OK);
  CHECK_STATUS(hvd_options_set(options, "listen", "127.0.0.1:0", &error), HVD_OK);
  CHECK_STATUS(hvd_driver_create(options, &driver, &error), HVD_OK);
  CHECK_STATUS(hvd_driver_set_launcher(driver, start_nothing, stop_nothing, &driver, NULL, &error), HVD_OK);
  CHECK_STATUS(hvd_driver_start(driver, &error), HVD_OK);
  CHECK_STATUS(hvd_driver_get_status(driver, &info, &error), HVD_OK);
  pthread_create(&thread, NULL, wait_for_driver, driver);
  hvd_driver_destroy(driver);
  pthread_join(thread, NULL);
  CHECK_STATUS(hvd_driver_get_status(driver, &info, &error), HVD_CLOSED);
  hvd_driver_destroy(driver);
  hvd_options_destroy(options);
}

/* Processes that a program starts in its discovery or as a launcher can be ended by a signal. */
static sigset_t in_discovery, in_start;
static int32_t discover_here(void *userdata, hvd_add_host_fn add, void *sink) {
  (void)userdata;
  pthread_sigmask(SIG_SETMASK, NULL, &in_discovery);
  return add(sink, "here", 1);
}
static int32_t start_told(void *userdata, const hvd_launch *launch) {
  (void)launch;
  pthread_sigmask(SIG_SETMASK, NULL, &in_start);
  return write(*(int *)userdata, "s", 1) != 1;
}
static void stop_told(void *userdata, uint64_t worker, int32_t force) {
  (void)userdata, (void)worker, (void)force;
}

static void signals_of_callbacks(void) {
  hvd_options *options = NULL;
  hvd_driver *driver = NULL;
  sigset_t usual, some;
  int told[2];
  char byte;
  CHECK(pipe(told) == 0);
  sigemptyset(&some);
  sigaddset(&some, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &some, &usual);
  CHECK_STATUS(hvd_options_create(&options, &error), HVD_OK);
  CHECK_STATUS(hvd_options_set(options, "local_hosts", "1", &error), HVD_OK);
  CHECK_STATUS(hvd_options_set(options, "listen", "127.0.0.1:0", &error), HVD_OK);
  CHECK_STATUS(hvd_driver_create(options, &driver, &error), HVD_OK);
  CHECK_STATUS(hvd_driver_set_discovery(driver, discover_here, NULL, NULL, &error), HVD_OK);
  CHECK_STATUS(hvd_driver_set_launcher(driver, start_told, stop_told, &told[1], NULL, &error), HVD_OK);
  pthread_sigmask(SIG_SETMASK, &usual, NULL);
  CHECK_STATUS(hvd_driver_start(driver, &error), HVD_OK);
  struct pollfd start = {.fd = told[0], .events = POLLIN};
  CHECK(poll(&start, 1, 60000) == 1 && read(told[0], &byte, 1) == 1);
  CHECK(!sigismember(&in_discovery, SIGTERM) && sigismember(&in_discovery, SIGUSR2));
  CHECK(!sigismember(&in_start, SIGTERM) && sigismember(&in_start, SIGUSR2));
  hvd_driver_destroy(driver);
  hvd_options_destroy(options);
  close(told[0]);
  close(told[1]);
}

int main(void) {
  in_every_order();
  under_threads();
  from_callbacks();
  foreign_handles();
  while_connecting();
  while_a_commit_is_copied();
  while_another_thread_commits();
  after_connect_begin();
  without_a_thread();
  drivers();
  signals_of_callbacks();
  return report("lifetime");
}
