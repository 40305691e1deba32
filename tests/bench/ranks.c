/* Commands, clocks and barriers that all contenders' ranks share. */
#define _GNU_SOURCE
#include "ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MOST_SAMPLES = 20000, BARRIER_SECONDS = 60 };

/* In a file that the ranks of a group map. Only the two counters are used. */
typedef struct meeting {
  uint32_t arrived;
  char apart[60]; /* a cache line each */
  uint32_t round;
} meeting;

typedef struct command {
  char operation[64];
  size_t bytes;
  int samples, batch, warm, check;
} command;

typedef struct rank_state {
  const bench_place *place;
  const bench_operation *operations;
  void *self;
  meeting *hall;
  const bench_operation *prepared;
  bench_buffer buffer;
  size_t mapped;
  int64_t *times; /* start and end of each sample */
} rank_state;

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

const char *bench_environment(const char *name) {
  const char *value = getenv(name);
  if (value == NULL) {
    fprintf(stderr, "%s is not set: collective_bench starts this program\n", name);
    exit(2);
  }
  return value;
}

/* Yields while it waits: with more ranks than cores nobody may be kept from arriving. */
static int meet(const rank_state *state) {
  meeting *hall = state->hall;
  uint32_t round = __atomic_load_n(&hall->round, __ATOMIC_ACQUIRE);
  if (__atomic_add_fetch(&hall->arrived, 1, __ATOMIC_ACQ_REL) == (uint32_t)state->place->size) {
    __atomic_store_n(&hall->arrived, 0, __ATOMIC_RELAXED);
    __atomic_add_fetch(&hall->round, 1, __ATOMIC_RELEASE);
    return 0;
  }
  int64_t deadline = now_ns() + (int64_t)BARRIER_SECONDS * 1000000000;
  while (__atomic_load_n(&hall->round, __ATOMIC_ACQUIRE) == round) {
    sched_yield();
    if (now_ns() > deadline) {
      fprintf(stderr, "rank %d: the other ranks did not come to the barrier\n", state->place->rank);
      return -1;
    }
  }
  return 0;
}

/* Small whole numbers: sums of eight are exact in float32. */
static float value_of(size_t index, int rank) { return (float)(index % 13 + (size_t)rank * 3); }

static void fill(const bench_buffer *buffer, int rank) {
  for (size_t i = 0; i < buffer->bytes / sizeof(float); i++) buffer->data[i] = value_of(i, rank);
}

static int right(const rank_state *state, char check) {
  int size = state->place->size;
  for (size_t i = 0; i < state->buffer.bytes / sizeof(float); i++) {
    float want = value_of(i, 0);
    if (check == 's') want = (float)size * want + 3.0f * (float)(size * (size - 1) / 2);
    if (state->buffer.data[i] != want) {
      fprintf(stderr, "rank %d: element %zu is %g: expected %g\n", state->place->rank, i,
              state->buffer.data[i], want);
      return 0;
    }
  }
  return 1;
}

static void release(rank_state *state) {
  if (state->prepared != NULL && state->prepared->release != NULL) state->prepared->release(state->self);
  state->prepared = NULL;
  if (state->buffer.data != NULL) munmap(state->buffer.data, state->mapped);
  state->buffer.data = NULL;
}

static int prepare(rank_state *state, const bench_operation *operation, size_t bytes) {
  if (state->prepared == operation && state->buffer.bytes == bytes) return 0;
  release(state);
  state->mapped = (bytes + 4095) / 4096 * 4096;
  if (state->mapped == 0) state->mapped = 4096;
  void *memory = mmap(NULL, state->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    fprintf(stderr, "rank %d: %zu bytes: %s\n", state->place->rank, bytes, strerror(errno));
    return -1;
  }
  memset(memory, 1, state->mapped);
  memset(memory, 0, state->mapped);
  state->buffer = (bench_buffer){memory, bytes, 0, 0};
  state->prepared = operation;
  return operation->prepare != NULL ? operation->prepare(state->self, &state->buffer) : 0;
}

static int measure(rank_state *state, const command *wanted) {
  const bench_operation *operation = state->operations;
  while (operation->name != NULL && strcmp(operation->name, wanted->operation) != 0) operation++;
  if (operation->name == NULL) {
    fprintf(stderr, "no operation %s\n", wanted->operation);
    return -1;
  }
  if (prepare(state, operation, wanted->bytes) != 0) return -1;
  state->buffer.root = 0;
  if (wanted->check && (operation->check == 's' || operation->check == 'b')) {
    fill(&state->buffer, state->place->rank);
    state->buffer.checked = 1;
    if (operation->call(state->self, &state->buffer) != 0 || !right(state, operation->check)) return -1;
    memset(state->buffer.data, 0, state->buffer.bytes);
  }
  state->buffer.checked = 0;
  for (int i = 0; i < wanted->warm; i++) {
    if (operation->call(state->self, &state->buffer) != 0) return -1;
  }
  for (int sample = 0; sample < wanted->samples; sample++) {
    if (meet(state) != 0) return -1;
    state->times[2 * sample] = now_ns();
    for (int i = 0; i < wanted->batch; i++) {
      state->buffer.root = i % state->place->size;
      if (operation->call(state->self, &state->buffer) != 0) return -1;
    }
    state->times[2 * sample + 1] = now_ns();
  }
  return 0;
}

static int serve(rank_state *state, FILE *commands, FILE *replies) {
  char line[256];
  while (fgets(line, sizeof line, commands) != NULL) {
    command wanted;
    if (strcmp(line, "quit\n") == 0) return 0;
    if (strcmp(line, "release\n") == 0) {
      release(state);
      fputs("ok\n", replies);
    } else if (sscanf(line, "run %63s %zu %d %d %d %d", wanted.operation, &wanted.bytes, &wanted.samples,
                      &wanted.batch, &wanted.warm, &wanted.check) == 6 &&
               wanted.samples <= MOST_SAMPLES) {
      if (measure(state, &wanted) != 0) return 1;
      fputs("ok", replies);
      for (int i = 0; i < 2 * wanted.samples; i++) fprintf(replies, " %" PRId64, state->times[i]);
      fputs("\n", replies);
    } else {
      fprintf(stderr, "unknown command %s", line);
      return 1;
    }
    if (fflush(replies) != 0) return 1;
  }
  return 1;
}

static FILE *channel(const bench_place *place, const char *kind, const char *mode) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s.%d", place->directory, kind, place->rank);
  FILE *file = fopen(path, mode);
  if (file == NULL) fprintf(stderr, "%s: %s\n", path, strerror(errno));
  return file;
}

int bench_serve(const bench_place *place, const bench_operation *operations, void *self) {
  rank_state state = {.place = place, .operations = operations, .self = self};
  char path[4096];
  snprintf(path, sizeof path, "%s/barrier", place->directory);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  void *hall = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(meeting), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (hall == MAP_FAILED) {
    fprintf(stderr, "%s: %s\n", path, strerror(errno));
    return 1;
  }
  close(fd);
  state.hall = hall;
  state.times = malloc(2 * MOST_SAMPLES * sizeof *state.times);
  FILE *commands = channel(place, "commands", "r");
  FILE *replies = channel(place, "replies", "w");
  int status = 1;
  if (state.times != NULL && commands != NULL && replies != NULL) {
    fputs("ready\n", replies);
    fflush(replies);
    status = serve(&state, commands, replies);
  }
  release(&state);
  if (commands != NULL) fclose(commands);
  if (replies != NULL) fclose(replies);
  free(state.times);
  munmap(hall, sizeof(meeting));
  return status;
}
