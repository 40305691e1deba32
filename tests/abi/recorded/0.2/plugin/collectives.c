/* The collectives, run by a thread of their own one after the other. See plain.h.
 *
 * All ranks run the ops of a group in one order, and a link keeps the order of what is sent: the next
 * piece from a rank is always the one that is wanted next from it. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>

#include "plain.h"

#define ROOM ((size_t)4 << 20) /* bytes on their way to one rank, before more are added */

/* ---- Moving bytes ---- */

/* An op that runs. Each step is skipped once one has failed. */
typedef struct run {
  group* g;
  const hvd_backend_op* op;
  hvd_status status;
  hvd_error error;
} run;

static void fail_run(run* r, hvd_status status, int32_t rank, const char* what) {
  if (r->status != HVD_OK) return;
  r->status = plain_fail(&r->error, status, rank, r->g->generation, "op %llu: %s",
                         (unsigned long long)r->op->sequence, what);
}

static void give(run* r, int32_t rank, const void* data, size_t size) {
  group* g = r->g;
  peer* l = &g->peers[rank];
  const unsigned char* at = (const unsigned char*)data;
  while (size > 0 && r->status == HVD_OK) {
    const size_t piece = size < PLAIN_MOST_PIECE ? size : PLAIN_MOST_PIECE;
    frame* f = plain_frame(PLAIN_PIECE, r->op->sequence, at, piece);
    if (f == NULL) {
      fail_run(r, HVD_INTERNAL, -1, "out of memory");
      return;
    }
    pthread_mutex_lock(&g->owner->mutex);
    while (!g->over && l->fd >= 0 && l->out.bytes > ROOM)
      pthread_cond_wait(&g->owner->changed, &g->owner->mutex);
    if (!g->over && l->fd >= 0) {
      plain_push(&l->out, f);
      f = NULL;
      plain_wake(g);
    }
    pthread_mutex_unlock(&g->owner->mutex);
    if (f != NULL) {
      free(f);
      fail_run(r, HVD_PEER_LOST, rank, "a peer that takes part in it is lost");
      return;
    }
    at += piece;
    size -= piece;
  }
}

static void take(run* r, int32_t rank, void* data, size_t size) {
  group* g = r->g;
  peer* l = &g->peers[rank];
  unsigned char* at = (unsigned char*)data;
  while (size > 0 && r->status == HVD_OK) {
    frame* f = NULL;
    pthread_mutex_lock(&g->owner->mutex);
    while (!g->over && l->in.first == NULL && l->fd >= 0) {
      pthread_cond_wait(&g->owner->changed, &g->owner->mutex);
    }
    if (!g->over && l->in.first != NULL) {
      f = l->in.first;
      l->in.first = f->next;
      if (l->in.first == NULL) l->in.last = NULL;
      l->in.bytes -= f->size;
    }
    pthread_mutex_unlock(&g->owner->mutex);
    if (f == NULL) {
      fail_run(r, HVD_PEER_LOST, rank, "a peer that takes part in it is lost");
    } else if (f->number != r->op->sequence || f->size == 0 || f->size > size) {
      fail_run(r, HVD_PEER_LOST, rank, "a peer has sent something else");
    } else {
      memcpy(at, f->data, f->size);
      at += f->size;
      size -= f->size;
    }
    free(f);
  }
}

/* ---- Collectives ---- */

static int32_t index_of(const run* r) {
  int32_t i = 0;
  while (i < r->op->rank_count - 1 && r->op->ranks[i] != r->g->rank) ++i;
  return i;
}

static void broadcast(run* r) {
  const size_t bytes = r->op->count * plain_element(r->op->dtype);
  int32_t i;
  if (r->op->root != r->g->rank) {
    take(r, r->op->root, r->op->output, bytes);
    return;
  }
  for (i = 0; i < r->op->rank_count; ++i) {
    if (r->op->ranks[i] != r->g->rank) give(r, r->op->ranks[i], r->op->output, bytes);
  }
}

/* `own` is this rank's part; the others' are taken in rank order, so that the bits depend on nothing else. */
static void reduce_into(run* r, void* into, const void* own, size_t count) {
  const hvd_dtype dtype = r->op->dtype;
  const int half = dtype == HVD_DTYPE_FLOAT16 || dtype == HVD_DTYPE_BFLOAT16;
  const size_t bytes = count * plain_element(dtype);
  void* part = malloc(bytes + 1);
  float* sum = (float*)malloc(half ? count * sizeof(float) + 1 : 1);
  float* next = (float*)malloc(half ? count * sizeof(float) + 1 : 1);
  int32_t i;
  if (part == NULL || sum == NULL || next == NULL) fail_run(r, HVD_INTERNAL, -1, "out of memory");
  for (i = 0; i < r->op->rank_count && r->status == HVD_OK; ++i) {
    const int mine = r->op->ranks[i] == r->g->rank;
    if (!mine) take(r, r->op->ranks[i], part, bytes);
    if (r->status != HVD_OK || count == 0) continue;
    if (half) plain_widen(dtype, i == 0 ? sum : next, mine ? own : part, count);
    if (half && i > 0) plain_combine(HVD_DTYPE_FLOAT32, r->op->reduction, sum, next, count);
    if (!half && i == 0) memcpy(into, mine ? own : part, bytes);
    if (!half && i > 0) plain_combine(dtype, r->op->reduction, into, mine ? own : part, count);
  }
  if (r->status == HVD_OK && r->op->reduction == HVD_REDUCTION_AVERAGE) {
    plain_divide(half ? HVD_DTYPE_FLOAT32 : dtype, half ? (void*)sum : into, count, r->op->rank_count);
  }
  if (r->status == HVD_OK && half) plain_narrow(dtype, into, sum, count);
  free(part);
  free(sum);
  free(next);
}

/* The first rank reduces, and sends the result to all. */
static void allreduce(run* r) {
  const size_t bytes = r->op->count * plain_element(r->op->dtype);
  int32_t i;
  void* own;
  if (r->op->ranks[0] != r->g->rank) {
    give(r, r->op->ranks[0], r->op->input, bytes);
    take(r, r->op->ranks[0], r->op->output, bytes);
    return;
  }
  own = malloc(bytes + 1); /* input and output may be the same */
  if (own == NULL) {
    fail_run(r, HVD_INTERNAL, -1, "out of memory");
    return;
  }
  if (bytes > 0) memcpy(own, r->op->input, bytes);
  reduce_into(r, r->op->output, own, r->op->count);
  free(own);
  for (i = 1; i < r->op->rank_count; ++i) give(r, r->op->ranks[i], r->op->output, bytes);
}

/* Everybody sends to everybody: what differs is only which part goes to whom. */
static void exchange(run* r) {
  const hvd_backend_op* op = r->op;
  const size_t element = plain_element(op->dtype);
  const unsigned char* input = (const unsigned char*)op->input;
  unsigned char* output = (unsigned char*)op->output;
  const int32_t n = op->rank_count;
  const int32_t me = index_of(r);
  size_t at = 0, own = 0;
  int32_t i;
  for (i = 0; i < n; ++i) {
    const size_t bytes =
        (op->collective == HVD_COLLECTIVE_ALLGATHER ? op->counts[me] : op->counts[i]) * element;
    if (i == me) own = at;
    if (i != me) give(r, op->ranks[i], input != NULL ? input + at : NULL, bytes);
    if (op->collective != HVD_COLLECTIVE_ALLGATHER) at += bytes;
  }
  if (op->collective == HVD_COLLECTIVE_REDUCESCATTER) {
    const size_t bytes = op->counts[me] * element;
    void* part = malloc(bytes + 1); /* the output may be this rank's part of the input */
    if (part == NULL) {
      fail_run(r, HVD_INTERNAL, -1, "out of memory");
      return;
    }
    if (bytes > 0) memcpy(part, input + own, bytes);
    reduce_into(r, op->output, part, op->counts[me]);
    free(part);
    return;
  }
  for (at = 0, i = 0; i < n; ++i) {
    const size_t bytes = op->counts[op->collective == HVD_COLLECTIVE_ALLTOALL ? n + i : i] * element;
    if (i != me) {
      take(r, op->ranks[i], output != NULL ? output + at : NULL, bytes);
    } else if (bytes > 0) {
      memmove(output + at, input + own, bytes);
    }
    at += bytes;
  }
}

/* Nobody gets the first rank's byte before all have sent theirs. */
static void barrier(run* r) {
  unsigned char byte = 1;
  int32_t i;
  if (r->op->ranks[0] != r->g->rank) {
    give(r, r->op->ranks[0], &byte, 1);
    take(r, r->op->ranks[0], &byte, 1);
    return;
  }
  for (i = 1; i < r->op->rank_count; ++i) take(r, r->op->ranks[i], &byte, 1);
  for (i = 1; i < r->op->rank_count; ++i) give(r, r->op->ranks[i], &byte, 1);
}

static void perform(group* g, task* t, int over) {
  run r;
  memset(&r, 0, sizeof(r));
  r.g = g;
  r.op = &t->op;
  r.error.struct_size = sizeof(r.error);
  if (over) {
    fail_run(&r, HVD_PEER_LOST, -1, "the generation was given up");
  } else {
    switch (t->op.collective) {
      case HVD_COLLECTIVE_BROADCAST: broadcast(&r); break;
      case HVD_COLLECTIVE_ALLREDUCE: allreduce(&r); break;
      case HVD_COLLECTIVE_ALLGATHER:
      case HVD_COLLECTIVE_REDUCESCATTER:
      case HVD_COLLECTIVE_ALLTOALL: exchange(&r); break;
      case HVD_COLLECTIVE_BARRIER: barrier(&r); break;
      default: fail_run(&r, HVD_UNSUPPORTED, -1, "this collective is not known"); break;
    }
  }
  t->op.done(t->op.done_context, r.status, r.status == HVD_OK ? NULL : &r.error);
  free(t->ranks);
  free(t->counts);
  free(t);
}

void* plain_execute(void* group_) {
  group* g = (group*)group_;
  instance* self = g->owner;
  pthread_mutex_lock(&self->mutex);
  for (;;) {
    task* t = g->tasks;
    if (t != NULL) {
      const int over = g->over;
      g->tasks = t->next;
      if (g->tasks == NULL) g->last_task = NULL;
      pthread_mutex_unlock(&self->mutex);
      perform(g, t, over);
      pthread_mutex_lock(&self->mutex);
    } else if (g->over || g->leaving) {
      break;
    } else {
      pthread_cond_wait(&self->changed, &self->mutex);
    }
  }
  pthread_mutex_unlock(&self->mutex);
  return NULL;
}
