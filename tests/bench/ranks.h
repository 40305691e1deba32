/* One rank of a contender in collective_bench. The coordinator (collective_bench.py) sends commands by a
 * FIFO and gets the times of start and end back by another; the ranks of a group meet at a barrier in
 * shared memory, so that every contender is measured in the same way, whatever it is made of. */
#ifndef HVD_BENCH_RANKS_H
#define HVD_BENCH_RANKS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The buffer of an operation: `bytes` of page-aligned memory, touched, holding float32. The harness owns
 * it. */
typedef struct bench_buffer {
  float* data;
  size_t bytes;
  int root; /* of this call, if it has one: the ranks take turns, so that in calls back to back no root runs ahead */
  int checked; /* what this call leaves in `data` will be looked at: who works on other memory copies it there */
} bench_buffer;

/* What a contender can do. Functions return 0, or print why not on stderr and return anything else. */
typedef struct bench_operation {
  const char* name;
  /* What the harness checks in the buffer after one call: 's' a sum of all ranks' values, 'b' rank 0's
   * values, '-' nothing. */
  char check;
  int (*prepare)(void* self, const bench_buffer* buffer); /* may be NULL */
  int (*call)(void* self, const bench_buffer* buffer);
  void (*release)(void* self); /* may be NULL */
} bench_operation;

typedef struct bench_place {
  int rank, size;
  const char* directory; /* where the ranks of the group find each other */
} bench_place;

/* Serves commands until the coordinator says quit. `operations` ends with a NULL name. Returns an exit
 * status. */
int bench_serve(const bench_place* place, const bench_operation* operations, void* self);

/* An environment variable that must be there; ends the process if it is not. */
const char* bench_environment(const char* name);

#ifdef __cplusplus
}
#endif
#endif
