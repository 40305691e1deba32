/* libhvd through its public API, every operation by name. hvdrun starts the ranks. */
#include <hvd/async.h>
#include <hvd/hvd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

enum { VARIABLES = 200, SMALL = 1000, MOST = 1000 };

/* A piece of the buffer, with a name of its own. */
typedef struct variable {
  char name[32];
  hvd_tensor tensor;
} variable;

typedef struct rank {
  hvd_context *context;
  hvd_state *state;
  int number;
  hvd_tensor whole; /* the buffer as one tensor */
  int count;        /* pieces, of which `group` holds the tensors alone */
  variable variables[MOST];
  hvd_tensor group[MOST];
  int order[MOST]; /* in which this rank submits them */
  hvd_op *ops[MOST];
} rank;

static int failed(hvd_status status, const hvd_error *error) {
  if (status == HVD_OK) return 0;
  fprintf(stderr, "%s: %s\n", hvd_status_name(status), error->message);
  return 1;
}

static hvd_tensor floats(float *data, size_t count) {
  hvd_tensor tensor = HVD_TENSOR_INIT;
  tensor.data = data;
  tensor.dtype = HVD_DTYPE_FLOAT32;
  tensor.ndim = 1;
  tensor.shape[0] = (int64_t)count;
  return tensor;
}

static int prepare_whole(void *self, const bench_buffer *buffer) {
  ((rank *)self)->whole = floats(buffer->data, buffer->bytes / sizeof(float));
  return 0;
}

/* Cuts the buffer into pieces of `sizes` floats. */
static int cut(rank *self, const bench_buffer *buffer, int count, const size_t *sizes) {
  size_t at = 0;
  self->count = count;
  for (int i = 0; i < count; i++) {
    if (at + sizes[i] > buffer->bytes / sizeof(float)) break;
    snprintf(self->variables[i].name, sizeof self->variables[i].name, "layer%d.weight", i);
    self->variables[i].tensor = self->group[i] = floats(buffer->data + at, sizes[i]);
    self->order[i] = i;
    at += sizes[i];
  }
  if (at * sizeof(float) == buffer->bytes) return 0;
  fprintf(stderr, "%d pieces do not make up %zu bytes\n", count, buffer->bytes);
  return 1;
}

/* 200 tensors of sizes as uneven as a network's, the last one taking what is left. */
static int prepare_variables(void *self, const bench_buffer *buffer) {
  static const size_t weights[] = {1, 256, 4, 1024, 16, 64, 1, 512, 2, 128};
  enum { KINDS = sizeof weights / sizeof *weights };
  size_t sizes[VARIABLES], total = 0, used = 0, floats_in_all = buffer->bytes / sizeof(float);
  for (int i = 0; i < VARIABLES; i++) total += weights[i % KINDS];
  for (int i = 0; i < VARIABLES; i++) {
    sizes[i] = i == VARIABLES - 1 ? floats_in_all - used : floats_in_all * weights[i % KINDS] / total;
    used += sizes[i];
  }
  return cut(self, buffer, VARIABLES, sizes);
}

/* 1,000 tensors of 64 B to 4 KiB. */
static int prepare_small(void *self, const bench_buffer *buffer) {
  size_t sizes[SMALL];
  for (int i = 0; i < SMALL; i++) sizes[i] = ((size_t)64 << i % 7) / sizeof(float);
  return cut(self, buffer, SMALL, sizes);
}

/* The same, submitted in another order on each rank. */
static int prepare_shuffled(void *self, const bench_buffer *buffer) {
  rank *mine = self;
  uint32_t random = 12345u + (uint32_t)mine->number * 7919u;
  if (prepare_small(self, buffer) != 0) return 1;
  for (int i = mine->count - 1; i > 0; i--) {
    random = random * 1664525u + 1013904223u;
    int other = (int)((random >> 8) % (uint32_t)(i + 1)), kept = mine->order[i];
    mine->order[i] = mine->order[other];
    mine->order[other] = kept;
  }
  return 0;
}

static int broadcast(void *self, const bench_buffer *buffer) {
  static const char *const names[] = {"weights0", "weights1", "weights2", "weights3",
                                      "weights4", "weights5", "weights6", "weights7"}; /* one a root */
  rank *mine = self;
  hvd_error error = HVD_ERROR_INIT;
  return failed(hvd_broadcast(mine->context, names[buffer->root % 8], &mine->whole, buffer->root, &error),
                &error);
}

static int allreduce(void *self, const bench_buffer *buffer) {
  rank *mine = self;
  hvd_error error = HVD_ERROR_INIT;
  (void)buffer;
  return failed(
      hvd_allreduce(mine->context, "gradients", &mine->whole, &mine->whole, HVD_REDUCTION_SUM, &error),
      &error);
}

static int check(void *self, const bench_buffer *buffer) {
  rank *mine = self;
  hvd_error error = HVD_ERROR_INIT;
  (void)buffer;
  return failed(hvd_state_check_host_updates(mine->state, &error), &error);
}

static int step_with_check(void *self, const bench_buffer *buffer) {
  return allreduce(self, buffer) != 0 || check(self, buffer) != 0;
}

static int broadcast_variables(void *self, const bench_buffer *buffer) {
  rank *mine = self;
  hvd_error error = HVD_ERROR_INIT;
  (void)buffer;
  return failed(hvd_broadcast_variables(mine->context, "model", mine->group, (size_t)mine->count, 0, &error),
                &error);
}

static int wait_for_all(rank *self) {
  int wrong = 0;
  for (int i = 0; i < self->count; i++) {
    hvd_error error = HVD_ERROR_INIT;
    wrong |= failed(hvd_op_wait(self->ops[i], HVD_DEFAULT_TIMEOUT, &error), &error);
    hvd_op_destroy(self->ops[i]);
  }
  return wrong;
}

static int broadcast_each(void *self, const bench_buffer *buffer) {
  rank *mine = self;
  hvd_error error = HVD_ERROR_INIT;
  (void)buffer;
  for (int i = 0; i < mine->count; i++) {
    variable *it = &mine->variables[i];
    if (failed(hvd_broadcast_async(mine->context, it->name, &it->tensor, 0, &mine->ops[i], &error), &error)) {
      return 1;
    }
  }
  return wait_for_all(mine);
}

static int allreduce_each_async(void *self, const bench_buffer *buffer) {
  rank *mine = self;
  hvd_error error = HVD_ERROR_INIT;
  (void)buffer;
  for (int i = 0; i < mine->count; i++) {
    variable *it = &mine->variables[mine->order[i]];
    if (failed(hvd_allreduce_async(mine->context, it->name, &it->tensor, &it->tensor, HVD_REDUCTION_SUM,
                                   &mine->ops[i], &error),
               &error)) {
      return 1;
    }
  }
  return wait_for_all(mine);
}

static int allreduce_each(void *self, const bench_buffer *buffer) {
  rank *mine = self;
  hvd_error error = HVD_ERROR_INIT;
  (void)buffer;
  for (int i = 0; i < mine->count; i++) {
    variable *it = &mine->variables[i];
    if (failed(hvd_allreduce(mine->context, it->name, &it->tensor, &it->tensor, HVD_REDUCTION_SUM, &error),
               &error))
      return 1;
  }
  return 0;
}

static const bench_operation operations[] = {
    {"broadcast", 'b', prepare_whole, broadcast, NULL},
    {"allreduce", 's', prepare_whole, allreduce, NULL},
    {"check_host_updates", '-', prepare_whole, check, NULL},
    {"step", 's', prepare_whole, allreduce, NULL},
    {"step_with_check", 's', prepare_whole, step_with_check, NULL},
    {"broadcast_variables", 'b', prepare_variables, broadcast_variables, NULL},
    {"broadcast_each", 'b', prepare_variables, broadcast_each, NULL},
    {"small_shuffled", 's', prepare_shuffled, allreduce_each_async, NULL},
    {"small_one_by_one", 's', prepare_small, allreduce_each, NULL},
    {NULL, 0, NULL, NULL, NULL},
};

int main(void) {
  static rank self;
  hvd_error error = HVD_ERROR_INIT;
  int wrong = failed(hvd_init(NULL, &self.context, &error), &error) ||
              failed(hvd_state_create(self.context, &self.state, &error), &error);
  if (!wrong) {
    self.number = hvd_rank(self.context);
    bench_place place = {self.number, hvd_size(self.context), bench_environment("HVD_BENCH_DIRECTORY")};
    wrong = bench_serve(&place, operations, &self) != 0 ||
            failed(hvd_shutdown(self.context, HVD_DEFAULT_TIMEOUT, &error), &error);
  }
  hvd_state_destroy(self.state);
  hvd_destroy(self.context);
  return wrong;
}
