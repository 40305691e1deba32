/* The worker of all scenarios: real training steps on model.h over the public API only, with events on
 * stdout (trace.h) and faults at named points (faults.h). Arguments are key=value:
 *   steps=N           steps of the job
 *   until=NAME        ends before that, once rank 0 has seen the file NAME in HVD_TEST_DIR
 *   commit=K          commit after each K-th step (0: never)
 *   check=K           check_host_updates after each K-th step that does not commit
 *   gate=S            before step S, rank 0 waits for gate step.S and the others wait for rank 0 (repeatable)
 *   pad=BYTES         ballast in the state
 *   memory=MIB        beside it
 *   pace=MS           computing time of a step
 *   save=R@S          after step S, rank R alone saves (no check): it then holds the newest commit
 *   shards=N:C        a sharded key of N elements with C copies, or with parity of M shards for N:pM;
 *                     done tells whether each is what its steps give
 *   mismatch=KIND@S   before step S the last rank's operation differs in shape, dtype, op or root
 *   first=1           commit before the first step
 *   noterm=1          ignore SIGTERM
 *   term=1            leave when SIGTERM comes
 *   log=LEVEL         print the library's log from this level (3 info, 4 warning ...)
 * / */
#define _GNU_SOURCE
#include <hvd/async.h>
#include <hvd/hvd.h>
#include <hvd/shards.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "faults.h"
#include "model.h"
#include "trace.h"

enum { MAX_GATES = 256 };

typedef struct worker {
  identity who;
  hvd_context *context;
  hvd_state *state;
  model model;
  double *shard; /* this rank's elements */
  int64_t shard_elements, shard_offset, shard_count;
  int shard_copies, shard_parity;
  int64_t steps, commit, check, pace;
  const char *until;
  int64_t gates[MAX_GATES];
  int gate_count;
  int64_t save_step, mismatch_step;
  int save_rank;
  char mismatch_kind[16];
  int commit_first;
  int leaves_on_term;
  int log_level;
  int rank;
  pthread_mutex_t mutex; /* of last */
  position last;
  int training;  /* within the training function: a save or load belongs to commit */
  int restoring; /* PEER_LOST was returned: the next load belongs to restore */
} worker;

/* On the training thread. */
static position here(worker *w) {
  position at = {w->rank, w->state != NULL ? hvd_state_revision(w->state) : 0, w->model.counters.step};
  pthread_mutex_lock(&w->mutex);
  w->last = at;
  pthread_mutex_unlock(&w->mutex);
  return at;
}

/* Where the training thread was last, for the library's threads. */
static position elsewhere(worker *w) {
  pthread_mutex_lock(&w->mutex);
  position at = w->last;
  pthread_mutex_unlock(&w->mutex);
  return at;
}

static int at_point(worker *w, const char *point) { return fault(&w->who, point, here(w)); }

/* ---- What the library calls --------------------------------------------------------------------- */

static int32_t save_history(void *userdata, hvd_write_fn write, void *sink) {
  worker *w = userdata;
  int what = at_point(w, w->training ? "save" : "sync_save");
  write(sink, &w->model.history_length, sizeof w->model.history_length);
  const void *history = w->model.history;
  const size_t size = (size_t)w->model.history_length * sizeof *w->model.history;
  return what != FAULT_NONE || hvd_state_lend(sink, &history, &size, 1) != 0;
}

static int32_t load_history(void *userdata, const void *data, size_t size) {
  worker *w = userdata;
  const char *phase = w->restoring ? "restore" : "sync_load";
  int64_t length = 0;
  w->restoring = 0;
  if (size < sizeof length) return 1;
  memcpy(&length, data, sizeof length);
  if (length < 0 || length > MODEL_MAX_STEPS ||
      size != sizeof length + (size_t)length * sizeof *w->model.history) {
    return 1;
  }
  trace(&w->who, "load", "\"phase\":\"%s\",\"length\":%lld", phase, (long long)length);
  if (at_point(w, phase) != FAULT_NONE) return 1;
  memcpy(w->model.history, (const char *)data + sizeof length, size - sizeof length);
  w->model.history_length = length;
  return 0;
}

static int32_t on_reset(void *userdata) {
  worker *w = userdata;
  w->rank = hvd_rank(w->context);
  trace(&w->who, "reset", "\"rank\":%d,\"size\":%d,\"gen\":%llu", hvd_rank(w->context), hvd_size(w->context),
        (unsigned long long)hvd_generation(w->context));
  return at_point(w, "reset") != FAULT_NONE;
}

/* What one step makes of an element. */
static double shard_step(double value, int64_t element, int64_t step) {
  return value * 0.5 + (double)((element * 7 + step * 13) % 1000);
}

static int32_t take_range(worker *w, int64_t offset, int64_t count) {
  free(w->shard);
  w->shard = calloc((size_t)count + 1, sizeof *w->shard);
  w->shard_offset = offset;
  w->shard_count = count;
  return w->shard == NULL;
}

static int32_t on_reshard(void *userdata, hvd_shard *shard) {
  worker *w = userdata;
  trace(&w->who, "reshard", "\"rank\":%d,\"size\":%d,\"offset\":%lld,\"count\":%lld", shard->rank,
        shard->size, (long long)shard->offset, (long long)shard->elements);
  if (at_point(w, "reshard") != FAULT_NONE) return 1;
  if (take_range(w, shard->offset, shard->elements) != 0) return 1;
  shard->data = w->shard;
  return 0;
}

/* Elements that are not what so many steps give. */
static int64_t wrong_elements(const worker *w) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < w->shard_count; ++i) {
    double value = 0;
    for (int64_t step = 0; step < w->model.counters.step; ++step)
      value = shard_step(value, w->shard_offset + i, step);
    wrong += value != w->shard[i];
  }
  return wrong;
}

static const char *event_name(hvd_event_kind kind) {
  switch (kind) {
    case HVD_EVENT_HOSTS_UPDATED: return "event_hosts_updated";
    case HVD_EVENT_PEER_LOST: return "event_peer_lost";
    case HVD_EVENT_GENERATION: return "event_generation";
    case HVD_EVENT_JOB_ENDED: return "event_job_ended";
    case HVD_EVENT_DRIVER_LOST: return "event_driver_lost";
    case HVD_EVENT_DRIVER_BACK: return "event_driver_back";
    case HVD_EVENT_RECOVERED: return "event_recovered";
    default: return "event_unknown";
  }
}

static void on_event(void *userdata, const hvd_event *event) {
  worker *w = userdata;
  char text[600];
  trace(&w->who, event_name(event->kind),
        "\"gen\":%llu,\"epoch\":%llu,\"rank\":%d,\"size\":%d,\"msg\":\"%s\"",
        (unsigned long long)event->generation, (unsigned long long)event->membership_epoch, event->rank,
        event->size, json_text(event->message, text, sizeof text));
  fault(&w->who, event_name(event->kind), elsewhere(w));
}

static int leave_fd = -1;
static void on_term(int number) {
  (void)number;
  if (write(leave_fd, "", 1) != 1) _exit(70);
}

static void on_log(void *userdata, hvd_log_level level, const char *message) {
  worker *w = userdata;
  char text[1200];
  if (level >= w->log_level) {
    trace(&w->who, "log", "\"level\":%d,\"msg\":\"%s\"", level, json_text(message, text, sizeof text));
  }
  fault_on_log(&w->who, message, elsewhere(w));
}

/* ---- Training ----------------------------------------------------------------------------------- */

static void trace_step(const worker *w, const char *event) {
  trace(&w->who, event, "\"rank\":%d,\"size\":%d,\"gen\":%llu,\"rev\":%llu,\"step\":%lld,\"sum\":\"%016llx\"",
        hvd_rank(w->context), hvd_size(w->context), (unsigned long long)hvd_generation(w->context),
        (unsigned long long)hvd_state_revision(w->state), (long long)w->model.counters.step,
        (unsigned long long)model_checksum(&w->model));
}

static void trace_status(const worker *w, const char *event, hvd_status status, const hvd_error *error) {
  char text[1200];
  trace(&w->who, event,
        "\"status\":\"%s\",\"rank\":%d,\"blamed\":%d,\"gen\":%llu,\"rev\":%llu,\"step\":%lld,\"msg\":\"%s\"",
        hvd_status_name(status), w->rank, error->rank, (unsigned long long)error->generation,
        (unsigned long long)hvd_state_revision(w->state), (long long)w->model.counters.step,
        status == HVD_OK ? "" : json_text(error->message, text, sizeof text));
}

static hvd_tensor vector(void *data, hvd_dtype dtype, int64_t length) {
  hvd_tensor tensor = HVD_TENSOR_INIT;
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.ndim = 1;
  tensor.shape[0] = length;
  return tensor;
}

/* The last rank's operation differs; everybody has to get the same answer and to be able to go on. */
static hvd_status provoke_mismatch(worker *w) {
  hvd_error error = HVD_ERROR_INIT;
  double data[8] = {0};
  int odd = hvd_rank(w->context) == hvd_size(w->context) - 1;
  hvd_tensor tensor = vector(data, HVD_DTYPE_FLOAT64, 4);
  hvd_reduction reduction = HVD_REDUCTION_SUM;
  hvd_status status;
  if (odd && strcmp(w->mismatch_kind, "shape") == 0) tensor.shape[0] = 8;
  if (odd && strcmp(w->mismatch_kind, "dtype") == 0) tensor.dtype = HVD_DTYPE_INT64;
  if (odd && strcmp(w->mismatch_kind, "op") == 0) reduction = HVD_REDUCTION_MAX;
  if (strcmp(w->mismatch_kind, "root") == 0) {
    status = hvd_broadcast(w->context, "odd", &tensor, odd ? 1 : 0, &error);
  } else {
    status = hvd_allreduce(w->context, "odd", &tensor, &tensor, reduction, &error);
  }
  w->mismatch_step = -1;
  trace_status(w, "mismatch", status, &error);
  return status == HVD_MISMATCH ? HVD_OK : status;
}

static hvd_status one_step(worker *w, hvd_error *error) {
  double gradient[MODEL_WEIGHTS + 1];
  float embedding[MODEL_EMBEDDING];
  int64_t counts[2] = {MODEL_SAMPLES, 1};
  struct timespec pace = {(time_t)(w->pace / 1000), (long)(w->pace % 1000) * 1000000};
  if (w->pace > 0) nanosleep(&pace, NULL); /* what the example computes takes no time */
  model_gradients(&w->model, hvd_rank(w->context), gradient, embedding);
  if (at_point(w, "before_allreduce") != FAULT_NONE) return HVD_INTERNAL;

  /* Half of the ranks submit in the other order. */
  hvd_tensor tensors[2] = {vector(gradient, HVD_DTYPE_FLOAT64, MODEL_WEIGHTS + 1),
                           vector(embedding, HVD_DTYPE_FLOAT32, MODEL_EMBEDDING)};
  const char *names[2] = {"gradient", "embedding"};
  hvd_op *ops[2] = {NULL, NULL};
  hvd_status status = HVD_OK;
  for (int i = 0; i < 2 && status == HVD_OK; ++i) {
    int k = (i + hvd_rank(w->context)) & 1;
    status = hvd_allreduce_async(w->context, names[k], &tensors[k], &tensors[k], HVD_REDUCTION_SUM, &ops[k],
                                 error);
  }
  if (status == HVD_OK && at_point(w, "in_collective") != FAULT_NONE) status = HVD_INTERNAL;
  for (int i = 0; i < 2; ++i) {
    if (ops[i] == NULL) continue;
    hvd_error waited = HVD_ERROR_INIT;
    hvd_status of_op =
        hvd_op_wait(ops[i], HVD_DEFAULT_TIMEOUT, &waited); /* borrowed memory: wait in any case */
    hvd_op_destroy(ops[i]);
    if (status == HVD_OK && of_op != HVD_OK) {
      status = of_op;
      *error = waited;
    }
  }
  if (status != HVD_OK) return status;
  if (at_point(w, "between_collectives") != FAULT_NONE) return HVD_INTERNAL;

  hvd_tensor count = vector(counts, HVD_DTYPE_INT64, 2);
  status = hvd_allreduce(w->context, "count", &count, &count, HVD_REDUCTION_SUM, error);
  if (status != HVD_OK) return status;
  if (counts[1] != hvd_size(w->context)) {
    snprintf(error->message, sizeof error->message, "sum of ones is %lld, size is %d", (long long)counts[1],
             hvd_size(w->context));
    return HVD_INTERNAL;
  }
  if (at_point(w, "after_allreduce") != FAULT_NONE) return HVD_INTERNAL;
  for (int64_t i = 0; i < w->shard_count; ++i)
    w->shard[i] = shard_step(w->shard[i], w->shard_offset + i, w->model.counters.step);
  model_apply(&w->model, gradient, embedding, counts[0], (int)counts[1]);
  trace_step(w, "step");
  return HVD_OK;
}

static hvd_status pass_gates(worker *w, hvd_error *error) {
  int64_t step = w->model.counters.step;
  char name[64];
  for (int i = 0; i < w->gate_count; ++i) {
    if (w->gates[i] != step) continue;
    if (hvd_rank(w->context) == 0) {
      trace_step(w, "gate");
      snprintf(name, sizeof name, "step.%lld", (long long)step);
      if (gate_wait(&w->who, name) != 0) {
        snprintf(error->message, sizeof error->message, "nobody opened gate %s", name);
        return HVD_INTERNAL;
      }
    }
    hvd_status status = hvd_barrier(w->context, "gate", error);
    if (status != HVD_OK) return status;
  }
  return HVD_OK;
}

static hvd_status commit(worker *w, hvd_error *error) {
  if (at_point(w, "before_commit") != FAULT_NONE) return HVD_INTERNAL;
  uint64_t before = hvd_state_revision(w->state);
  hvd_status status = hvd_state_commit(w->state, error);
  if (hvd_state_revision(w->state) > before) trace_step(w, "commit");
  if (status != HVD_OK) return status;
  return at_point(w, "after_commit") != FAULT_NONE ? HVD_INTERNAL : HVD_OK;
}

/* Whether there is a step to come: the same on every rank. */
static hvd_status look_for_end(worker *w, int *goes_on, hvd_error *error) {
  *goes_on = w->model.counters.step < w->steps;
  if (w->until == NULL || !*goes_on) return HVD_OK;
  char path[512];
  snprintf(path, sizeof path, "%s/%s", getenv("HVD_TEST_DIR"), w->until);
  int64_t seen = hvd_rank(w->context) == 0 && access(path, F_OK) == 0;
  hvd_tensor tensor = vector(&seen, HVD_DTYPE_INT64, 1);
  const hvd_status status = hvd_broadcast(w->context, "until", &tensor, 0, error);
  *goes_on = seen == 0;
  return status;
}

static hvd_status train_steps(worker *w, hvd_error *error) {
  hvd_status status = HVD_OK;
  if (w->commit_first && hvd_state_revision(w->state) == 0) status = commit(w, error);
  while (status == HVD_OK) {
    int goes_on = 0;
    status = look_for_end(w, &goes_on, error);
    if (status != HVD_OK || !goes_on) break;
    status = pass_gates(w, error);
    if (status != HVD_OK) break;
    if (w->mismatch_step == w->model.counters.step) {
      status = provoke_mismatch(w);
      if (status != HVD_OK) break;
    }
    int what = at_point(w, "step_begin");
    if (what != FAULT_NONE) return what == FAULT_LEAVE ? HVD_CLOSED : HVD_INTERNAL;
    status = one_step(w, error);
    if (status != HVD_OK) break;
    int64_t step = w->model.counters.step;
    if (w->save_step == step && w->save_rank == hvd_rank(w->context)) {
      status = hvd_state_save(w->state, error);
      if (status == HVD_OK) trace_step(w, "commit");
    } else if (w->commit > 0 && step % w->commit == 0) {
      status = commit(w, error);
    } else if (w->check > 0 && step % w->check == 0) {
      status = hvd_state_check_host_updates(w->state, error);
    }
  }
  return status;
}

static hvd_status train(void *userdata) {
  worker *w = userdata;
  hvd_error error = HVD_ERROR_INIT;
  w->rank = hvd_rank(w->context);
  w->restoring = 0;
  trace_step(w, "train");
  w->training = 1;
  hvd_status status = train_steps(w, &error);
  w->training = 0;
  w->restoring = status == HVD_PEER_LOST;
  if (status == HVD_OK) {
    trace_step(w, "trained");
  } else {
    trace_status(w, "interrupted", status, &error);
    at_point(w, "interrupted");
  }
  return status;
}

static void trace_recoveries(const worker *w) {
  size_t count = 0;
  char text[600];
  if (hvd_get_recovery_count(w->context, &count, NULL) != HVD_OK) return;
  for (size_t i = 0; i < count; ++i) {
    hvd_recovery_info r;
    memset(&r, 0, sizeof r);
    r.struct_size = sizeof r;
    if (hvd_get_recovery(w->context, i, &r, NULL) != HVD_OK) continue;
    trace(
        &w->who, "recovery",
        "\"from\":%llu,\"to\":%llu,\"cause\":\"%s\",\"from_size\":%d,\"to_size\":%d,\"attempts\":%d,"
        "\"rev\":%llu,"
        "\"total\":%lld,\"detection\":%lld,\"abort\":%lld,\"restore\":%lld,\"forming\":%lld,\"connecting\":%lld,"
        "\"sync\":%lld,\"sync_bytes\":%llu,\"spares\":%d,\"reason\":\"%s\"",
        (unsigned long long)r.from_generation, (unsigned long long)r.to_generation, hvd_status_name(r.cause),
        r.from_size, r.to_size, r.attempts, (unsigned long long)r.revision, (long long)r.total_ns,
        (long long)r.detection_ns, (long long)r.abort_ns, (long long)r.restore_ns, (long long)r.forming_ns,
        (long long)r.connecting_ns, (long long)r.sync_ns, (unsigned long long)r.sync_bytes, r.spares,
        json_text(r.reason, text, sizeof text));
  }
}

/* ---- Setting up --------------------------------------------------------------------------------- */

static char *volatile kept_memory;

static int parse(worker *w, int argc, char **argv) {
  size_t pad = 0;
  w->log_level = HVD_LOG_WARNING;
  w->rank = w->save_rank = -1;
  w->save_step = w->mismatch_step = -1;
  for (int i = 1; i < argc; ++i) {
    char *value = strchr(argv[i], '=');
    if (value == NULL) return -1;
    *value++ = '\0';
    if (strcmp(argv[i], "steps") == 0) {
      w->steps = atoll(value);
    } else if (strcmp(argv[i], "until") == 0) {
      w->until = value;
    } else if (strcmp(argv[i], "commit") == 0) {
      w->commit = atoll(value);
    } else if (strcmp(argv[i], "check") == 0) {
      w->check = atoll(value);
    } else if (strcmp(argv[i], "pace") == 0) {
      w->pace = atoll(value);
    } else if (strcmp(argv[i], "gate") == 0 && w->gate_count < MAX_GATES) {
      w->gates[w->gate_count++] = atoll(value);
    } else if (strcmp(argv[i], "pad") == 0) {
      pad = (size_t)atoll(value);
    } else if (strcmp(argv[i], "memory") == 0) {
      const size_t bytes = (size_t)atoll(value) << 20;
      char *memory = malloc(bytes);
      if (memory == NULL) return -1;
      memset(memory, 1, bytes);
      kept_memory = memory;
    } else if (strcmp(argv[i], "first") == 0) {
      w->commit_first = atoi(value);
    } else if (strcmp(argv[i], "save") == 0) {
      w->save_rank = atoi(value);
      w->save_step = strchr(value, '@') != NULL ? atoll(strchr(value, '@') + 1) : -1;
    } else if (strcmp(argv[i], "mismatch") == 0) {
      snprintf(w->mismatch_kind, sizeof w->mismatch_kind, "%.*s", (int)strcspn(value, "@"), value);
      w->mismatch_step = strchr(value, '@') != NULL ? atoll(strchr(value, '@') + 1) : -1;
    } else if (strcmp(argv[i], "shards") == 0) {
      w->shard_elements = atoll(value);
      w->shard_copies = strchr(value, ':') != NULL ? atoi(strchr(value, ':') + 1) : 1;
      w->shard_parity = strstr(value, ":p") != NULL ? atoi(strstr(value, ":p") + 2) : 0;
    } else if (strcmp(argv[i], "noterm") == 0) {
      if (atoi(value)) signal(SIGTERM, SIG_IGN);
    } else if (strcmp(argv[i], "term") == 0) { /* SIGTERM makes this worker leave */
      w->leaves_on_term = atoi(value);
    } else if (strcmp(argv[i], "log") == 0) {
      w->log_level = atoi(value);
    } else {
      return -1;
    }
  }
  model_init(&w->model, pad);
  return 0;
}

static hvd_status register_state(worker *w, hvd_error *error) {
  model *m = &w->model;
  hvd_tensor bias = HVD_TENSOR_INIT; /* a scalar */
  bias.data = &m->bias;
  bias.dtype = HVD_DTYPE_FLOAT64;
  struct {
    const char *key;
    hvd_tensor tensor;
  } tensors[] = {
      {"weights", vector(m->weights, HVD_DTYPE_FLOAT64, MODEL_WEIGHTS)},
      {"bias", bias},
      {"velocity", vector(m->velocity, HVD_DTYPE_FLOAT64, MODEL_WEIGHTS + 1)},
      {"embedding", vector(m->embedding, HVD_DTYPE_FLOAT32, MODEL_EMBEDDING)},
      {"pad", vector(m->pad, HVD_DTYPE_UINT8, (int64_t)m->pad_size)},
  };
  hvd_status status = hvd_state_create(w->context, &w->state, error);
  for (size_t i = 0; i < sizeof tensors / sizeof *tensors && status == HVD_OK; ++i) {
    status = hvd_state_add_tensor(w->state, tensors[i].key, &tensors[i].tensor, error);
  }
  if (status == HVD_OK)
    status = hvd_state_add_value(w->state, "counters", &m->counters, sizeof m->counters, error);
  if (status == HVD_OK) {
    status = hvd_state_add_object(w->state, "history", save_history, load_history, w, NULL, error);
  }
  if (status == HVD_OK && w->shard_elements > 0) {
    int64_t offset = 0, count = 0;
    status = hvd_shard_range(w->shard_elements, hvd_rank(w->context), hvd_size(w->context), &offset, &count,
                             error);
    if (status == HVD_OK && take_range(w, offset, count) != 0) status = HVD_INTERNAL;
    hvd_tensor shard = vector(w->shard, HVD_DTYPE_FLOAT64, count);
    if (status == HVD_OK && w->shard_parity > 0) {
      status = hvd_state_add_shard_with_parity(w->state, "moments", &shard, w->shard_elements, offset,
                                               w->shard_parity, on_reshard, w, NULL, error);
    } else if (status == HVD_OK) {
      status = hvd_state_add_shard(w->state, "moments", &shard, w->shard_elements, offset, w->shard_copies,
                                   on_reshard, w, NULL, error);
    }
  }
  if (status == HVD_OK) status = hvd_state_on_reset(w->state, on_reset, w, NULL, error);
  return status;
}

static hvd_status run(worker *w, hvd_error *error) {
  uint64_t listener = 0;
  hvd_status status = hvd_register_listener(w->context, HVD_EVENT_ALL, on_event, w, NULL, &listener, error);
  if (status == HVD_OK) status = register_state(w, error);
  if (status == HVD_OK && w->leaves_on_term) {
    status = hvd_get_leave_fd(w->context, &leave_fd, error);
    if (status == HVD_OK) signal(SIGTERM, on_term);
  }
  if (status == HVD_OK) status = hvd_run(w->context, w->state, train, w, error);
  return status;
}

/* What is left after the job has gone: the last commit can still be put back. */
static void trace_kept(worker *w) {
  hvd_error error = HVD_ERROR_INIT;
  if (w->state == NULL || hvd_state_revision(w->state) == 0) return;
  w->restoring = 1;
  hvd_status status = hvd_state_restore(w->state, &error);
  trace(&w->who, "kept", "\"status\":\"%s\",\"rev\":%llu,\"step\":%lld,\"sum\":\"%016llx\"",
        hvd_status_name(status), (unsigned long long)hvd_state_revision(w->state),
        (long long)w->model.counters.step, (unsigned long long)model_checksum(&w->model));
}

int main(int argc, char **argv) {
  worker w;
  hvd_error error = HVD_ERROR_INIT;
  hvd_options *options = NULL;
  struct rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none); /* a SIGSEGV on purpose leaves no core file */
  memset(&w, 0, sizeof w);
  pthread_mutex_init(&w.mutex, NULL);
  w.last.rank = -1;
  identity_read(&w.who);
  if (parse(&w, argc, argv) != 0) {
    fprintf(stderr, "bad argument\n");
    return 64;
  }
  trace(&w.who, "start", "\"driver\":\"%s\"", getenv("HVD_DRIVER") != NULL ? getenv("HVD_DRIVER") : "");
  at_point(&w, "start");

  int by_log = getenv("HVD_TEST_FAULTS") != NULL && strstr(getenv("HVD_TEST_FAULTS"), "log(") != NULL;
  hvd_options_create(&options, NULL);
  hvd_options_set_log(options, by_log ? HVD_LOG_DEBUG : w.log_level, on_log, &w, NULL, NULL);
  at_point(&w, "before_init");
  hvd_status status = hvd_init(options, &w.context, &error);
  hvd_options_destroy(options);
  if (status != HVD_OK) {
    trace_status(&w, "end", status, &error);
    model_free(&w.model);
    return status == HVD_REMOVED ? 0 : 1;
  }
  w.rank = hvd_rank(w.context);
  hvd_backend_info backend;
  memset(&backend, 0, sizeof(backend));
  backend.struct_size = sizeof(backend);
  hvd_get_backend(w.context, &backend, NULL);
  trace(&w.who, "init", "\"rank\":%d,\"size\":%d,\"gen\":%llu,\"local_rank\":%d,\"backend\":\"%s\"", w.rank,
        hvd_size(w.context), (unsigned long long)hvd_generation(w.context), hvd_local_rank(w.context),
        backend.name);
  at_point(&w, "after_init");

  status = run(&w, &error);
  trace_recoveries(&w);
  trace_status(&w, "end", status, &error);
  if (status == HVD_OK && hvd_has_left(w.context)) {
    trace(&w.who, "left", "\"step\":%lld,\"sum\":\"%016llx\",\"rank\":%d", (long long)w.model.counters.step,
          (unsigned long long)model_checksum(&w.model), hvd_rank(w.context));
  } else if (status == HVD_OK) {
    hvd_state_info kept = {.struct_size = sizeof(kept)};
    hvd_state_get_info(w.state, &kept, NULL);
    trace(&w.who, "memory", "\"bytes\":%llu,\"shards\":%llu,\"copies\":%llu,\"fed\":%llu",
          (unsigned long long)kept.bytes, (unsigned long long)kept.shard_bytes,
          (unsigned long long)kept.copy_bytes, (unsigned long long)kept.fed_bytes);
    trace(&w.who, "done",
          "\"step\":%lld,\"sum\":\"%016llx\",\"pad\":\"%016llx\",\"contributions\":%lld,\"wrong\":%lld,"
          "\"offset\":%lld,\"count\":%lld",
          (long long)w.model.counters.step, (unsigned long long)model_checksum(&w.model),
          (unsigned long long)model_pad_checksum(&w.model), (long long)w.model.counters.contributions,
          (long long)wrong_elements(&w), (long long)w.shard_offset, (long long)w.shard_count);
    at_point(&w, "before_shutdown");
  } else {
    trace_kept(&w);
  }
  hvd_error closing = HVD_ERROR_INIT;
  if (status == HVD_CLOSED) { /* fault `leave`: goes without a word */
    hvd_abort(w.context, "the test says so", NULL);
  } else {
    hvd_status closed = hvd_shutdown(w.context, HVD_DEFAULT_TIMEOUT, &closing);
    trace_status(&w, "shutdown", closed, &closing);
    if (status == HVD_OK) at_point(&w, "after_shutdown");
  }
  hvd_state_destroy(w.state);
  hvd_destroy(w.context);
  trace(&w.who, "exit", "\"status\":\"%s\"", hvd_status_name(status));
  model_free(&w.model);
  free(w.shard);
  return status == HVD_OK || status == HVD_REMOVED ? 0 : 1;
}
