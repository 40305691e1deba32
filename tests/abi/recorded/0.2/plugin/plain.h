/* plain: a backend over plain TCP, as small as one can be that keeps every promise of hvd/backend.h. It
 * needs that header and POSIX, nothing else. It is made to be read: collectives are naive, data is copied,
 * one op runs at a time.
 *
 * Each generation is a group with a socket to each peer and two threads. The carrier moves bytes: it hands
 * messages to the core and keeps what other ranks send for ops until it is wanted. The executor runs the
 * ops one after the other. / */
#ifndef PLAIN_H
#define PLAIN_H

#include <pthread.h>

#include "hvd/backend.h"

#define PLAIN_TOKEN 16
#define PLAIN_MOST_MESSAGE ((size_t)1 << 20) /* as send_message promises */
#define PLAIN_MOST_PIECE \
  ((size_t)256 << 10)   /* of an op's data: so no peer's word alone makes us ask for more memory */
#define PLAIN_HEADER 17 /* kind, number, size */

enum { PLAIN_MESSAGE = 1, PLAIN_PIECE = 2, PLAIN_BYE = 3 };

/* Something that travels: a message, a piece of an op's data, or the last word of a peer that leaves in
 * peace. */
typedef struct frame {
  struct frame* next;
  int kind;
  uint64_t number; /* piece: the op's sequence */
  size_t size;     /* bytes of `data`, without the header */
  size_t done;     /* bytes of header and data that have been sent or received */
  unsigned char header[PLAIN_HEADER];
  unsigned char data[];
} frame;

typedef struct queue {
  frame *first, *last;
  size_t bytes;
} queue;

typedef struct peer {
  int fd;        /* -1: this rank itself, or broken */
  int left;      /* the peer has said goodbye */
  queue in, out; /* pieces that wait for their op; frames that wait to be sent */
  unsigned char header[PLAIN_HEADER];
  size_t have; /* bytes of `header` */
  frame* reading;
} peer;

typedef struct task {
  struct task* next;
  hvd_backend_op op;
  int32_t* ranks;
  size_t* counts;
} task;

struct instance;

typedef struct group {
  struct instance* owner;
  uint64_t generation;
  int32_t rank, size;
  peer* peers; /* by rank */
  int wake[2]; /* a byte in this pipe wakes the carrier, or connect */
  int over;    /* aborted: everything ends */
  int leaving; /* disconnect: what is queued is sent, then the threads end */
  int threads; /* that were started */
  pthread_t carrier, executor;
  task *tasks, *last_task;
} group;

typedef struct instance {
  hvd_backend_host host;
  char ip[64];
  pthread_mutex_t mutex; /* of everything below and in the group; no call into the core is made under it */
  pthread_cond_t changed;
  group* current;
  int any_aborted;
  uint64_t aborted; /* an abort may come before the connect that it is for */
  int listener;     /* for the next generation: its address was given away */
  unsigned char token[PLAIN_TOKEN];
} instance;

/* Fills in the error, as far as the caller's struct goes, and returns the status. */
hvd_status plain_fail(hvd_error* error, hvd_status status, int32_t rank, uint64_t generation,
                      const char* format, ...) __attribute__((format(printf, 5, 6)));

/* sockets.c */
hvd_status plain_address(instance* self, void* data, size_t* size, hvd_error* error);
hvd_status plain_connect_links(instance* self, group* g, const hvd_backend_group* wanted, hvd_error* error);
void plain_wake(group* g);
void plain_clear(queue* q);
void plain_push(queue* q, frame* f);
frame* plain_frame(int kind, uint64_t number, const void* data, size_t size); /* a copy; NULL: no memory */
void* plain_carry(void* g);                                                   /* the carrier */

/* collectives.c */
void* plain_execute(void* g); /* the executor */

/* elements.c */
size_t plain_element(hvd_dtype dtype); /* bytes; 0: not supported */
void plain_combine(hvd_dtype dtype, hvd_reduction reduction, void* into, const void* from, size_t count);
void plain_divide(hvd_dtype dtype, void* into, size_t count, int32_t ranks);
void plain_widen(hvd_dtype dtype, float* into, const void* from, size_t count); /* 16-bit floats */
void plain_narrow(hvd_dtype dtype, void* into, const float* from, size_t count);

#endif
