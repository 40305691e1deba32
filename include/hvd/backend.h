/* backend.h: how to write a backend module for libhvd.
 *
 * A module is a shared object lib<anything>.so that exports one symbol, hvd_backend_init. It includes this
 * header alone and does not link libhvd. libhvd loads it with RTLD_NOW | RTLD_LOCAL and never unloads it.
 *
 * An instance begins with open and ends with close. In each generation it goes through address, connect,
 * any number of submit and send_message, and at last abort (after a failure) or disconnect (otherwise).
 *
 * The core calls open, address, connect, disconnect and close one at a time. submit and send_message may
 * come from several threads at once; the core keeps ops in the same order on every rank of an instance.
 * abort may come at any moment from any thread, also during connect. Time-outs are in nanoseconds and
 * greater than 0. */
#ifndef HVD_BACKEND_H
#define HVD_BACKEND_H

#include "hvd/hvd.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HVD_BACKEND_ABI_VERSION 2

/* The functions that the core offers to a module. Any thread may call them, with no lock of the module
 * held. None of them blocks for long except kv_get. `message` and an op's `done` may call send_message,
 * submit and abort of the same instance. Valid until close returns. */
typedef struct hvd_backend_host {
  size_t struct_size;
  void *context; /* first argument of each call */
  void (*log)(void *context, hvd_log_level level, const char *message);
  /* A message that `source` sent by send_message has arrived. Messages of one source arrive in order.
   * `data` is borrowed for the call. The first message may come shortly before connect returns. Must not
   * be called from within send_message or submit. */
  void (*message)(void *context, uint64_t generation, int32_t source, const void *data, size_t size);
  /* The link to `peer` (rank, or -1: unknown) broke in this generation. May be called more than once; the
   * core then aborts the instance. */
  void (*failure)(void *context, uint64_t generation, int32_t peer, const char *text);
  /* A store that the workers of the generation being connected share. kv_set: a key keeps its first value
   * (setting the same value again is HVD_OK, another one HVD_INVALID). kv_get waits for the key. *size is
   * the room, and then the length; HVD_TIMEOUT if the key does not come, HVD_PEER_LOST on abort. */
  hvd_status (*kv_set)(void *context, uint64_t generation, const char *key, const void *data, size_t size,
                       hvd_error *error);
  hvd_status (*kv_get)(void *context, uint64_t generation, const char *key, int64_t timeout_ns, void *data,
                       size_t *size, hvd_error *error);
} hvd_backend_host;

typedef struct hvd_backend_option { const char *key; const char *value; } hvd_backend_option;

/* Describes the module. Strings are static. */
typedef struct hvd_backend_description {
  size_t struct_size;
  const char *name;         /* "gloo" */
  const char *version;      /* of the library underneath */
  uint64_t memories;        /* bit 1 << hvd_memory */
  uint64_t dtypes;          /* bit 1 << hvd_dtype */
  uint64_t collectives;     /* bit 1 << hvd_collective */
  int32_t messages;         /* 1: send_message works; a module that serves host memory must */
  int32_t local;            /* 1: fast inside a host on its own */
  int32_t max_instances;    /* per process; 0: any number */
} hvd_backend_description;

typedef struct hvd_backend_member {
  uint64_t worker;          /* identity that is kept through generations */
  const char *host;
  const void *address;      /* blob of this member's `address` */
  size_t address_size;
} hvd_backend_member;

/* The generation to connect. Borrowed for the call of connect. */
typedef struct hvd_backend_group {
  size_t struct_size;
  uint64_t generation;
  int32_t rank, size;
  const hvd_backend_member *members; /* `size` of them, by rank */
  int64_t timeout_ns;
} hvd_backend_group;

/* One of several tensors that travel as one op. */
typedef struct hvd_backend_part {
  const void *input;
  void *output;
  size_t count; /* elements */
} hvd_backend_part;

/* One collective. Everything is borrowed until `done` has been called, except `ranks`, `counts` and
 * `parts`, which are borrowed for the call of submit. */
typedef struct hvd_backend_op {
  size_t struct_size;
  hvd_collective collective; /* HVD_COLLECTIVE_JOIN never comes here */
  hvd_dtype dtype;
  hvd_reduction reduction;
  int32_t root;              /* broadcast: rank (in the generation) */
  const void *input;         /* allgather: this rank's part; allreduce may have input == output */
  void *output;              /* broadcast: the tensor, on every rank; reducescatter: may be this rank's
                                part of input */
  size_t count;              /* elements of the input (broadcast, allreduce: of the output as well) */
  /* Elements of the parts, in the order of `ranks`; any of them may be 0. One entry per rank: allgather
   * (count is this rank's entry) and reducescatter (what each rank gets; the sum is count; the output has
   * this rank's). Two entries per rank: alltoall. First what goes to each rank, whose sum is count, then what
   * comes from each, which is the output; parts follow one another. Other collectives do not use it. */
  const size_t *counts;
  const int32_t *ranks;      /* members that take part, ascending; NULL: all */
  int32_t rank_count;
  /* Device memory: the op runs after the work that `stream` of `device` holds when submit is called.
   * `done` means that the op is queued there, before any later work of `stream`. The host never waits for
   * the device. `failure` reports a failure that comes later. */
  hvd_memory memory;
  int32_t device;
  void *stream;
  uint64_t sequence;         /* the same on every rank; grows with each op of the generation; below 2^63 */
  /* Called exactly once, from any thread, also after abort. The error is borrowed for the call and NULL
   * on success. After it the module touches neither the op nor its buffers. submit may call it before it
   * returns HVD_OK, for an op that needs no other rank: the caller then holds no lock that its `done`
   * takes. */
  void (*done)(void *done_context, hvd_status status, const hvd_error *error);
  void *done_context;
  /* Broadcast and allreduce in device memory: tensors of the op's dtype that travel together, with the
   * same counts on every rank. input and output are then unused, and count is the sum. part_count 0: the
   * op's own tensor. */
  const hvd_backend_part *parts;
  size_t part_count;
} hvd_backend_op;

/* One of several copies between host and device memory. */
typedef struct hvd_backend_copy {
  void *target;
  const void *source;
  size_t size; /* bytes; may be 0 */
} hvd_backend_copy;

/* The module's functions. `instance` is what open returned. None may throw, exit or print. */
typedef struct hvd_backend_table {
  size_t struct_size;
  hvd_backend_description description;
  hvd_status (*open)(const hvd_backend_host *host, const hvd_backend_option *options, size_t option_count,
                     void **ret_instance, hvd_error *error);
  /* Writes the blob by which peers reach this instance in the next generation. The previous generation
   * may still be connected and is left alone, since some of its members may not be out yet. *size: room,
   * then length; HVD_INVALID with *size set if the room is too small (4096 is always offered). */
  hvd_status (*address)(void *instance, void *data, size_t *size, hvd_error *error);
  /* Joins the generation, after abort or disconnect of the previous one. Blocks at most
   * group->timeout_ns: HVD_TIMEOUT; HVD_PEER_LOST if a peer can't be reached or abort was called. After a
   * failure the instance can connect again, after `address`. */
  hvd_status (*connect)(void *instance, const hvd_backend_group *group, hvd_error *error);
  /* Queues the op and returns. On failure `done` is not called. HVD_PEER_LOST after abort. Ops begin in
   * the order of their submission, may overlap, and end in any order. Ops under way never share memory
   * that one of them writes. */
  hvd_status (*submit)(void *instance, const hvd_backend_op *op, hvd_error *error);
  /* Sends up to 1 MiB to another rank, in order per destination. Copies `data` and returns at once. */
  hvd_status (*send_message)(void *instance, int32_t destination, const void *data, size_t size,
                             hvd_error *error);
  /* Abandons the generation. Returns within 100 ms, and every pending op completes with HVD_PEER_LOST within
   * another 100 ms. Never frees a buffer under an operation. Idempotent. A later generation may connect. */
  void (*abort)(void *instance, uint64_t generation);
  /* Leaves the generation. Nothing is pending then, and all members are known to be out. */
  void (*disconnect)(void *instance);
  /* Aborts, and frees everything, within a second. */
  void (*close)(void *instance);
  /* One line for humans (interface, address), NUL-terminated, cut to `size`. */
  void (*detail)(void *instance, char *text, size_t size);

  /* All functions below may be NULL.
   *
   * world: the group in which a launcher of the module's own library (mpirun, srun) has started this
   * process. Needs no instance and may come before open. HVD_UNAVAILABLE if no such launcher started the
   * process. */
  hvd_status (*world)(int64_t timeout_ns, int32_t *rank, int32_t *size, hvd_error *error);
  /* Gives every rank of that group the `size` bytes that its rank 0 has in `data`. Collective over the
   * group, after world; one call at a time. */
  hvd_status (*world_broadcast)(void *data, size_t size, int64_t timeout_ns, hvd_error *error);

  /* For modules that serve device memory: host memory that the device reads and writes at full speed.
   * Freed by host_free, also after abort; close frees the rest. */
  hvd_status (*host_alloc)(void *instance, size_t size, void **ret_memory, hvd_error *error);
  void (*host_free)(void *instance, void *memory);
  /* Starts copies from the device to the host (to_device 0) or back (1). They run after the work that
   * `stream` holds, and before work that is queued on it later; the host is not blocked. On one side all
   * sources or targets are memory of `device`, on the other host memory. The list is borrowed for the
   * call. */
  hvd_status (*copy)(void *instance, int32_t device, void *stream, int32_t to_device,
                     const hvd_backend_copy *copies, size_t count, void **ret_ticket, hvd_error *error);
  /* Waits until the copies are done and frees the ticket. HVD_TIMEOUT: they may still run, and the ticket
   * stays. */
  hvd_status (*copy_wait)(void *instance, void *ticket, int64_t timeout_ns, hvd_error *error);
  /* Like copy to the host, but later work of `stream` does not wait for it. Nobody writes the sources
   * before copy_wait has returned HVD_OK. NULL: copy is called instead. */
  hvd_status (*copy_aside)(void *instance, int32_t device, void *stream, const hvd_backend_copy *copies,
                           size_t count, void **ret_ticket, hvd_error *error);
} hvd_backend_table;

/* Fills in at most table->struct_size bytes and returns HVD_OK, or reports why it can't serve
 * (HVD_UNAVAILABLE: a library or device is missing; HVD_UNSUPPORTED: abi_version). */
typedef hvd_status (*hvd_backend_init_fn)(uint32_t abi_version, hvd_backend_table *table, hvd_error *error);
#define HVD_BACKEND_INIT_SYMBOL "hvd_backend_init"

#ifdef __cplusplus
}
#endif
#endif
