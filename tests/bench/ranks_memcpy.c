/* memcpy of a buffer to another of the same size: by one thread, and by as many as there are processors,
 * each a part. The threads are there before the clock starts and meet by spinning: what is measured is the
 * copy. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ranks.h"

enum { MOST_THREADS = 256 };

typedef struct copier copier;
typedef struct part {
  copier *whole;
  int index;
  pthread_t thread;
} part;
struct copier {
  char *target;
  const bench_buffer *source;
  int threads;    /* this one among them */
  unsigned begun; /* counts calls; all ones: end */
  int left;       /* parts still being copied */
  part parts[MOST_THREADS];
};

static void copy_part(const copier *whole, int index) {
  size_t bytes = whole->source->bytes;
  size_t begin = bytes * (size_t)index / (size_t)whole->threads;
  size_t end = bytes * ((size_t)index + 1) / (size_t)whole->threads;
  memcpy(whole->target + begin, (const char *)whole->source->data + begin, end - begin);
}

static void *run_part(void *argument) {
  part *mine = argument;
  unsigned seen = 0;
  while (1) {
    unsigned begun;
    while ((begun = __atomic_load_n(&mine->whole->begun, __ATOMIC_ACQUIRE)) == seen) sched_yield();
    if (begun == ~0u) return NULL;
    seen = begun;
    copy_part(mine->whole, mine->index);
    __atomic_sub_fetch(&mine->whole->left, 1, __ATOMIC_RELEASE);
  }
}

static int prepare_threads(copier *whole, const bench_buffer *buffer, int threads) {
  whole->target = mmap(NULL, buffer->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (whole->target == MAP_FAILED) return 1;
  memset(whole->target, 1, buffer->bytes);
  whole->source = buffer;
  whole->threads = threads < MOST_THREADS ? threads : MOST_THREADS;
  whole->begun = 0;
  whole->left = 0;
  for (int i = 1; i < whole->threads; i++) {
    whole->parts[i] = (part){.whole = whole, .index = i};
    if (pthread_create(&whole->parts[i].thread, NULL, run_part, &whole->parts[i]) != 0) abort();
  }
  return 0;
}

static int prepare_one(void *self, const bench_buffer *buffer) { return prepare_threads(self, buffer, 1); }

static int prepare_all(void *self, const bench_buffer *buffer) {
  return prepare_threads(self, buffer, (int)sysconf(_SC_NPROCESSORS_ONLN));
}

static int copy(void *self, const bench_buffer *buffer) {
  copier *whole = self;
  (void)buffer;
  if (whole->threads > 1) {
    __atomic_store_n(&whole->left, whole->threads - 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&whole->begun, 1, __ATOMIC_RELEASE);
  }
  copy_part(whole, 0);
  while (__atomic_load_n(&whole->left, __ATOMIC_ACQUIRE) > 0) sched_yield();
  return 0;
}

static void release(void *self) {
  copier *whole = self;
  __atomic_store_n(&whole->begun, ~0u, __ATOMIC_RELEASE);
  for (int i = 1; i < whole->threads; i++) pthread_join(whole->parts[i].thread, NULL);
  munmap(whole->target, whole->source->bytes);
}

int main(void) {
  static copier whole;
  static const bench_operation operations[] = {{"memcpy", '-', prepare_one, copy, release},
                                               {"memcpy_all_cores", '-', prepare_all, copy, release},
                                               {NULL, 0, NULL, NULL, NULL}};
  bench_place place = {0, 1, bench_environment("HVD_BENCH_DIRECTORY")};
  return bench_serve(&place, operations, &whole);
}
