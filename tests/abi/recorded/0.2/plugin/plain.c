/* The module's table: instances, generations, abort. See plain.h. */
#define _POSIX_C_SOURCE 200809L
#include "plain.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

hvd_status plain_fail(hvd_error* error, hvd_status status, int32_t rank, uint64_t generation,
                      const char* format, ...) {
  hvd_error full;
  va_list arguments;
  if (error == NULL || error->struct_size < sizeof(size_t)) return status;
  memset(&full, 0, sizeof(full));
  full.struct_size = error->struct_size;
  full.status = status;
  full.rank = rank;
  full.generation = generation;
  strcpy(full.backend, "plain");
  va_start(arguments, format);
  vsnprintf(full.message, sizeof(full.message), format, arguments);
  va_end(arguments);
  memcpy(error, &full, error->struct_size < sizeof(full) ? error->struct_size : sizeof(full));
  return status;
}

static hvd_status plain_open(const hvd_backend_host* host, const hvd_backend_option* options,
                             size_t option_count, void** ret_instance, hvd_error* error) {
  size_t i;
  struct in_addr unused;
  instance* self = (instance*)calloc(1, sizeof(instance));
  if (self == NULL) return plain_fail(error, HVD_INTERNAL, -1, 0, "out of memory");
  /* A later library's table may be longer, an earlier one's shorter. */
  memcpy(&self->host, host, host->struct_size < sizeof(self->host) ? host->struct_size : sizeof(self->host));
  strcpy(self->ip, "127.0.0.1");
  for (i = 0; i < option_count; ++i) {
    /* An interface's address, given as such, wins over the one on the route to the driver. */
    const int wins = strcmp(options[i].key, "interface") == 0;
    if (!wins && (strcmp(options[i].key, "route") != 0 || strcmp(self->ip, "127.0.0.1") != 0)) continue;
    if (strlen(options[i].value) < sizeof(self->ip) && inet_pton(AF_INET, options[i].value, &unused) == 1) {
      strcpy(self->ip, options[i].value);
    }
  }
  self->listener = -1;
  pthread_mutex_init(&self->mutex, NULL);
  pthread_cond_init(&self->changed, NULL);
  *ret_instance = self;
  return HVD_OK;
}

static hvd_status get_address(void* instance_, void* data, size_t* size, hvd_error* error) {
  return plain_address((instance*)instance_, data, size, error);
}

/* ---- Generations ---- */

static void free_group(group* g) {
  int32_t i;
  for (i = 0; g->peers != NULL && i < g->size; ++i) {
    peer* l = &g->peers[i];
    if (l->fd >= 0) close(l->fd);
    plain_clear(&l->in);
    plain_clear(&l->out);
    free(l->reading);
  }
  if (g->wake[0] >= 0) close(g->wake[0]);
  if (g->wake[1] >= 0) close(g->wake[1]);
  free(g->peers);
  free(g);
}

/* Takes the group out of use: by force, or in peace. Its threads end by themselves and are waited for. */
static void end_group(instance* self, int in_peace) {
  group* g;
  int32_t i;
  pthread_mutex_lock(&self->mutex);
  g = self->current;
  if (g != NULL) {
    if (in_peace && !g->over) {
      for (i = 0; i < g->size; ++i) {
        frame* bye = g->peers[i].fd >= 0 ? plain_frame(PLAIN_BYE, 0, NULL, 0) : NULL;
        if (bye != NULL) plain_push(&g->peers[i].out, bye);
      }
      g->leaving = 1;
    } else {
      g->over = 1;
    }
    self->current = NULL; /* nobody else finds it any more */
    plain_wake(g);
    pthread_cond_broadcast(&self->changed);
  }
  pthread_mutex_unlock(&self->mutex);
  if (g == NULL) return;
  if (g->threads > 0) pthread_join(g->carrier, NULL);
  if (g->threads > 1) pthread_join(g->executor, NULL);
  free_group(g);
}

static group* new_group(instance* self, const hvd_backend_group* wanted) {
  int32_t i;
  group* g = (group*)calloc(1, sizeof(group));
  if (g == NULL) return NULL;
  g->owner = self;
  g->generation = wanted->generation;
  g->rank = wanted->rank;
  g->size = wanted->size;
  g->wake[0] = g->wake[1] = -1;
  g->peers = (peer*)calloc((size_t)wanted->size, sizeof(peer));
  for (i = 0; g->peers != NULL && i < g->size; ++i) g->peers[i].fd = -1;
  if (g->peers == NULL || pipe(g->wake) != 0) {
    free_group(g);
    return NULL;
  }
  for (i = 0; i < 2; ++i) {
    fcntl(g->wake[i], F_SETFD, FD_CLOEXEC);
    fcntl(g->wake[i], F_SETFL, O_NONBLOCK);
  }
  return g;
}

/* The threads take none of the process's signals. */
static int start_threads(group* g) {
  sigset_t all, before;
  int failed;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  failed = pthread_create(&g->carrier, NULL, plain_carry, g);
  if (!failed) {
    g->threads = 1;
    failed = pthread_create(&g->executor, NULL, plain_execute, g);
    if (!failed) g->threads = 2;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return failed;
}

static hvd_status given_up(uint64_t generation, hvd_error* error) {
  return plain_fail(error, HVD_PEER_LOST, -1, generation, "generation %llu was given up",
                    (unsigned long long)generation);
}

static hvd_status join(void* instance_, const hvd_backend_group* wanted, hvd_error* error) {
  instance* self = (instance*)instance_;
  hvd_status status;
  group* g;
  int over;
  end_group(self, 0);
  if (wanted->size < 1 || wanted->rank < 0 || wanted->rank >= wanted->size) {
    return plain_fail(error, HVD_INVALID, -1, wanted->generation, "rank %d of %d", (int)wanted->rank,
                      (int)wanted->size);
  }
  g = new_group(self, wanted);
  if (g == NULL) return plain_fail(error, HVD_UNAVAILABLE, -1, wanted->generation, "no memory or no pipe");
  pthread_mutex_lock(&self->mutex);
  over = self->any_aborted && wanted->generation <= self->aborted;
  if (!over) self->current = g; /* from here on abort reaches it */
  pthread_mutex_unlock(&self->mutex);
  if (over) {
    free_group(g);
    return given_up(wanted->generation, error);
  }
  status = plain_connect_links(self, g, wanted, error);
  if (status == HVD_OK && start_threads(g) != 0) {
    status = plain_fail(error, HVD_UNAVAILABLE, -1, wanted->generation, "a thread can't be started");
  }
  if (status == HVD_OK) {
    pthread_mutex_lock(&self->mutex);
    over = g->over;
    pthread_mutex_unlock(&self->mutex);
    if (over) status = given_up(wanted->generation, error);
  }
  if (status != HVD_OK) end_group(self, 0);
  return status;
}

static void give_up(void* instance_, uint64_t generation) {
  instance* self = (instance*)instance_;
  pthread_mutex_lock(&self->mutex);
  if (!self->any_aborted || self->aborted < generation) self->aborted = generation;
  self->any_aborted = 1;
  if (self->current != NULL && self->current->generation == generation) {
    self->current->over = 1;
    plain_wake(self->current);
    pthread_cond_broadcast(&self->changed);
  }
  pthread_mutex_unlock(&self->mutex);
}

static void leave(void* instance_) { end_group((instance*)instance_, 1); }

static void close_instance(void* instance_) {
  instance* self = (instance*)instance_;
  end_group(self, 0);
  if (self->listener >= 0) close(self->listener);
  pthread_cond_destroy(&self->changed);
  pthread_mutex_destroy(&self->mutex);
  free(self);
}

/* ---- What is asked for ---- */

static hvd_status send_message(void* instance_, int32_t destination, const void* data, size_t size,
                               hvd_error* error) {
  instance* self = (instance*)instance_;
  hvd_status status = HVD_OK;
  group* g;
  frame* f;
  if (size > PLAIN_MOST_MESSAGE) {
    return plain_fail(error, HVD_INVALID, -1, 0, "a message of %zu bytes, expected at most %zu", size,
                      PLAIN_MOST_MESSAGE);
  }
  f = plain_frame(PLAIN_MESSAGE, 0, data, size);
  if (f == NULL) return plain_fail(error, HVD_INTERNAL, -1, 0, "no memory for a message of %zu bytes", size);
  pthread_mutex_lock(&self->mutex);
  g = self->current;
  if (g == NULL || g->over) {
    status = plain_fail(error, HVD_PEER_LOST, -1, 0, "no generation is connected");
  } else if (destination < 0 || destination >= g->size || destination == g->rank) {
    status = plain_fail(error, HVD_INVALID, -1, g->generation, "a message to rank %d from rank %d of %d",
                        (int)destination, (int)g->rank, (int)g->size);
  } else if (g->peers[destination].fd < 0) {
    status = plain_fail(error, HVD_PEER_LOST, destination, g->generation, "the link to rank %d is broken",
                        (int)destination);
  } else {
    plain_push(&g->peers[destination].out, f);
    f = NULL;
    plain_wake(g);
  }
  pthread_mutex_unlock(&self->mutex);
  free(f);
  return status;
}

static int takes_counts(hvd_collective collective) {
  return collective == HVD_COLLECTIVE_ALLGATHER || collective == HVD_COLLECTIVE_REDUCESCATTER ||
         collective == HVD_COLLECTIVE_ALLTOALL;
}

static void free_task(task* t) {
  if (t == NULL) return;
  free(t->ranks);
  free(t->counts);
  free(t);
}

/* A copy of what is borrowed for the call alone. */
static task* new_task(const hvd_backend_op* op, int32_t size) {
  task* t = (task*)calloc(1, sizeof(task));
  size_t ranks, counts;
  int32_t i;
  if (t == NULL) return NULL;
  memcpy(&t->op, op, op->struct_size < sizeof(t->op) ? op->struct_size : sizeof(t->op));
  ranks = (size_t)(op->ranks != NULL ? op->rank_count : size);
  counts = takes_counts(op->collective) ? ranks * (op->collective == HVD_COLLECTIVE_ALLTOALL ? 2 : 1) : 0;
  t->ranks = (int32_t*)calloc(ranks + 1, sizeof(int32_t));
  t->counts = (size_t*)calloc(counts + 1, sizeof(size_t));
  if (t->ranks == NULL || t->counts == NULL) {
    free_task(t);
    return NULL;
  }
  for (i = 0; i < (int32_t)ranks; ++i) t->ranks[i] = op->ranks != NULL ? op->ranks[i] : i;
  if (counts > 0) memcpy(t->counts, op->counts, counts * sizeof(size_t));
  t->op.ranks = t->ranks;
  t->op.rank_count = (int32_t)ranks;
  t->op.counts = t->counts;
  return t;
}

static hvd_status submit(void* instance_, const hvd_backend_op* op, hvd_error* error) {
  instance* self = (instance*)instance_;
  hvd_status status = HVD_OK;
  task* t = NULL;
  group* g;
  if (op->memory != HVD_MEMORY_HOST) {
    return plain_fail(error, HVD_UNSUPPORTED, -1, 0, "memory of kind %d is not supported", (int)op->memory);
  }
  if (op->collective != HVD_COLLECTIVE_BARRIER && plain_element(op->dtype) == 0) {
    return plain_fail(error, HVD_UNSUPPORTED, -1, 0, "dtype %d is not supported", (int)op->dtype);
  }
  if (op->done == NULL || (takes_counts(op->collective) && op->counts == NULL)) {
    return plain_fail(error, HVD_INVALID, -1, 0, "done or counts is NULL");
  }
  pthread_mutex_lock(&self->mutex);
  g = self->current;
  if (g == NULL || g->over || g->leaving) {
    status = plain_fail(error, HVD_PEER_LOST, -1, 0, "no generation is connected");
  } else if ((t = new_task(op, g->size)) == NULL) {
    status = plain_fail(error, HVD_INTERNAL, -1, g->generation, "out of memory");
  } else {
    if (g->last_task != NULL) {
      g->last_task->next = t;
    } else {
      g->tasks = t;
    }
    g->last_task = t;
    pthread_cond_broadcast(&self->changed);
  }
  pthread_mutex_unlock(&self->mutex);
  return status;
}

static void detail(void* instance_, char* text, size_t size) {
  snprintf(text, size, "plain TCP at %s", ((instance*)instance_)->ip);
}

__attribute__((visibility("default"))) hvd_status hvd_backend_init(uint32_t abi_version,
                                                                   hvd_backend_table* table,
                                                                   hvd_error* error) {
  hvd_backend_table full;
  hvd_dtype dtype;
  hvd_collective collective;
  if (abi_version != HVD_BACKEND_ABI_VERSION) {
    return plain_fail(error, HVD_UNSUPPORTED, -1, 0, "this module speaks backend ABI version %d, not %u",
                      HVD_BACKEND_ABI_VERSION, (unsigned)abi_version);
  }
  memset(&full, 0, sizeof(full));
  full.struct_size = table->struct_size < sizeof(full) ? table->struct_size : sizeof(full);
  full.description.struct_size = sizeof(full.description);
  full.description.name = "plain";
  full.description.version = "1.0";
  full.description.memories = (uint64_t)1 << HVD_MEMORY_HOST;
  for (dtype = HVD_DTYPE_UINT8; dtype <= HVD_DTYPE_BOOL; ++dtype) {
    if (plain_element(dtype) > 0) full.description.dtypes |= (uint64_t)1 << dtype;
  }
  for (collective = HVD_COLLECTIVE_BROADCAST; collective <= HVD_COLLECTIVE_ALLTOALL; ++collective) {
    full.description.collectives |= (uint64_t)1 << collective;
  }
  full.description.messages = 1;
  full.open = plain_open;
  full.address = get_address;
  full.connect = join;
  full.submit = submit;
  full.send_message = send_message;
  full.abort = give_up;
  full.disconnect = leave;
  full.close = close_instance;
  full.detail = detail;
  memcpy(table, &full, full.struct_size);
  return HVD_OK;
}
