/* hvd.h: the worker's API of libhvd, elastic distributed training for any language.
 *
 * A worker opens a context with hvd_init, registers what it trains as a state, and gives its training
 * function to hvd_run. When a peer dies, hvd_run restores the last commit, joins the next generation
 * and calls the function again; when hosts are added or removed it does the same with live values.
 *
 * Rules that hold for every function
 *  - Handles are opaque. A NULL handle or a NULL required pointer gives HVD_INVALID, never a crash.
 *  - The last parameter `error` may be NULL. If it is not, set error->struct_size to sizeof(hvd_error)
 *    (HVD_ERROR_INIT does). It is written on failure only; the caller owns it.
 *  - Results (`ret_...`) are untouched on failure.
 *  - Functions may be called from any thread unless they say otherwise. No function installs a signal
 *    handler, ends the process, or prints: the library's messages go to the log callback. The library's
 *    threads have signals blocked, in callbacks too unless they say otherwise.
 *  - Structs begin with struct_size, set by the caller: the library reads and writes no further than
 *    that. A zero field means the default. Functions are added in later versions and never changed.
 *  - Times and durations are int64_t nanoseconds, in fields and parameters whose names end in _ns: write
 *    5 * HVD_SECOND. A time-out of 0 (HVD_DEFAULT_TIMEOUT) is the default that the function names. A negative
 *    one, or one of more than 365 days, is HVD_INVALID: there is no way to wait for ever.
 */
#ifndef HVD_HVD_H
#define HVD_HVD_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) || defined(__clang__)
#define HVD_API __attribute__((visibility("default")))
#else
#define HVD_API
#endif

#define HVD_VERSION_MAJOR 0
#define HVD_VERSION_MINOR 2
#define HVD_VERSION_PATCH 0
#define HVD_VERSION_STRING "0.2.0"
/* Number in the SONAME (libhvd.so.<ABI>) and in the directory of the backend modules. */
#define HVD_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status and error ----------------------------------------------------------------------- */

/* What to do next. Values are stable. */
typedef int32_t hvd_status;
enum {
  HVD_OK = 0,
  HVD_PEER_LOST = 1,       /* a worker of this generation is gone: restore the last commit, rejoin */
  HVD_HOSTS_UPDATED = 2,   /* hosts were added or removed: keep live values, rejoin */
  HVD_MISMATCH = 3,        /* ranks disagree about an operation: a bug in the program */
  HVD_INVALID = 4,         /* bad argument or bad order of calls: a bug in the program */
  HVD_TIMEOUT = 5,         /* the deadline passed; the message says who and what was waited for */
  HVD_CLOSED = 6,          /* the context was shut down or aborted */
  HVD_REMOVED = 7,         /* this worker has no place in the job any more; the message says why */
  HVD_DRIVER_LOST = 8,     /* the driver can't be reached or is gone */
  HVD_REFUSED = 9,         /* the driver refused this worker (secret, job, version, stale) */
  HVD_UNAVAILABLE = 10,    /* a backend, file or system resource is not available */
  HVD_UNSUPPORTED = 11,    /* no backend in use supports this dtype, memory or operation */
  HVD_CALLBACK_FAILED = 12,/* a callback of the program reported failure */
  HVD_JOB_FAILED = 13,     /* the job ended in failure; the message is the driver's sentence */
  HVD_INTERNAL = 14        /* a defect in this library or out of memory */
};

/* "HVD_PEER_LOST" for HVD_PEER_LOST, and so on; "unknown status" otherwise. Never NULL. Static. */
HVD_API const char *hvd_status_name(hvd_status status);

/* Details of a failure. Owned by the caller, fixed size, no pointers. */
typedef struct hvd_error {
  size_t struct_size;
  hvd_status status;
  int32_t rank;          /* rank that caused it, or -1 */
  uint64_t generation;   /* generation in which it happened, or 0 */
  int64_t vendor_code;   /* errno, MPI or NCCL code, or 0 */
  char backend[16];      /* backend that reported it, or "" */
  char message[512];     /* what, where, which value, what was expected. UTF-8, NUL-terminated */
} hvd_error;
#define HVD_ERROR_INIT {sizeof(hvd_error), 0, -1, 0, 0, {0}, {0}}

/* "major.minor.patch" of the library that is loaded. Static. */
HVD_API const char *hvd_version(void);

/* Frees memory that the library allocated for the caller. NULL is allowed. */
HVD_API void hvd_free(void *memory);

/* Called once, when the library no longer needs a callback's userdata. Also called when a registration
 * fails. */
typedef void (*hvd_destroy_fn)(void *userdata);

/* ---- Time ------------------------------------------------------------------------------------ */

/* Names that end in _ns count nanoseconds. */
#define HVD_MILLISECOND ((int64_t)1000000)
#define HVD_SECOND ((int64_t)1000000000)

/* As a time-out: the function's default, most often an option's value. */
#define HVD_DEFAULT_TIMEOUT ((int64_t)0)

/* ---- Log ------------------------------------------------------------------------------------- */

typedef int32_t hvd_log_level;
enum { HVD_LOG_DEFAULT = 0, HVD_LOG_TRACE = 1, HVD_LOG_DEBUG = 2, HVD_LOG_INFO = 3, HVD_LOG_WARNING = 4,
       HVD_LOG_ERROR = 5, HVD_LOG_OFF = 6 };

/* Called from any of the library's threads, one call at a time per context. `message` is one line,
 * without a newline, valid during the call. It must not call back into the context. */
typedef void (*hvd_log_fn)(void *userdata, hvd_log_level level, const char *message);

/* ---- Options --------------------------------------------------------------------------------- */

/* Typed options by key, for workers (hvd_init) and drivers (hvd_driver_create). Each key can also be
 * given in the environment as HVD_<KEY IN CAPITALS>; a value that was set wins over the environment.
 * The keys are listed in docs/options.md and by hvd_options_describe. Not thread-safe. */
typedef struct hvd_options hvd_options;

HVD_API hvd_status hvd_options_create(hvd_options **ret_options, hvd_error *error);
HVD_API void hvd_options_destroy(hvd_options *options);

/* Sets an option from text, which is parsed as the option's type, or from a value of exactly that type.
 * An unknown key, a wrong type or a value out of range gives HVD_INVALID; the message names the key, the
 * value and what was expected. A duration's text is a number of seconds, or a number with a unit: ns, us,
 * ms, s, m, h or d ("250ms", "1.5s", "2m"). */
HVD_API hvd_status hvd_options_set(hvd_options *options, const char *key, const char *text, hvd_error *error);
HVD_API hvd_status hvd_options_set_int(hvd_options *options, const char *key, int64_t value,
                                       hvd_error *error);
HVD_API hvd_status hvd_options_set_duration(hvd_options *options, const char *key, int64_t value_ns,
                                            hvd_error *error);
HVD_API hvd_status hvd_options_set_bool(hvd_options *options, const char *key, int32_t value,
                                        hvd_error *error);

/* Returns the value in force (set, else environment, else default) as text; a duration as a number of
 * seconds. The text belongs to the options and is valid until the next call on them. HVD_INVALID if the
 * key is unknown or the environment's value is invalid. */
HVD_API hvd_status hvd_options_get(hvd_options *options, const char *key, const char **ret_text,
                                   hvd_error *error);

/* One line for each option: key, type, default, environment variable, meaning. Static. */
HVD_API const char *hvd_options_describe(void);

/* Sends log lines of at least `level` to `log` (HVD_LOG_DEFAULT: the level of option log_level). Without
 * a callback, lines are dropped. The options keep the callback; contexts made from them share it.
 * `destroy` (optional) runs when the options and everything made from them are gone, or at once on
 * failure. */
HVD_API hvd_status hvd_options_set_log(hvd_options *options, hvd_log_level level, hvd_log_fn log,
                                       void *userdata, hvd_destroy_fn destroy, hvd_error *error);

/* ---- Context --------------------------------------------------------------------------------- */

/* One worker. Several may live in one process. */
typedef struct hvd_context hvd_context;

/* Joins the job and waits until this worker is a member of a generation, at most option init_timeout.
 * `options` may be NULL (environment only); it is read during the call and not kept.
 *
 * With option `driver` (hvdrun sets it) the driver assigns ranks. A worker that no driver started sets that
 * option itself, and secret_file to the file with the job's secret. The driver admits it with an identity, or
 * keeps it waiting as a spare (docs/deploy.md). Without `driver`, rank and size come from HVD_RANK and
 * HVD_SIZE, else from the variables of torchrun, Open MPI, PMI or Slurm. Rank 0 then serves the others at
 * option `rendezvous`. Without any of these the worker is alone: rank 0 of 1.
 *
 * Errors: HVD_INVALID, HVD_TIMEOUT, HVD_REFUSED, HVD_DRIVER_LOST, HVD_UNAVAILABLE, HVD_REMOVED,
 * HVD_JOB_FAILED. */
HVD_API hvd_status hvd_init(const hvd_options *options, hvd_context **ret_context, hvd_error *error);

/* Reports that this worker has finished successfully, and leaves the job. It first waits until every member
 * of the generation is done, so that nobody loses a peer that it still needs. The wait lasts at most
 * timeout_ns (0: option shutdown_timeout). Then it closes the context: later calls on it give HVD_CLOSED. If
 * the last hvd_run ended in anything but HVD_OK, the worker leaves without reporting success. HVD_TIMEOUT:
 * the context is closed, but not every member was done. A second call gives HVD_OK. */
HVD_API hvd_status hvd_shutdown(hvd_context *context, int64_t timeout_ns, hvd_error *error);

/* Asks to leave the job. May be called from any thread; returns at once. At the next commit or check all
 * ranks get HVD_HOSTS_UPDATED, as on any change of hosts: the ranks that stay go on with live values, and
 * no step is repeated. On this worker hvd_run then returns HVD_OK and hvd_has_left returns 1. Calls on
 * the context give HVD_CLOSED, as after hvd_shutdown; calls on its states still work. The slot gets no
 * other worker until its host is undrained.
 *
 * The worker stays for as long as fewer than min_np would remain without it. If it is still there after
 * timeout_ns (0: option leave_timeout), it is lost, as if it had died. If hvd_leave is called again, the
 * earlier deadline holds. The workers of a drained host leave in the same way (hvd_driver_drain).
 *
 * HVD_UNSUPPORTED: this worker is the rank 0 that serves a job without a driver. HVD_CLOSED; HVD_INVALID. */
HVD_API hvd_status hvd_leave(hvd_context *context, int64_t timeout_ns, hvd_error *error);

/* Returns 1 if this worker has left by hvd_leave, also after hvd_shutdown; else 0, also if the context is
 * NULL. A program that stores a model after hvd_run learns by it whether training is complete. Never
 * blocks. */
HVD_API int32_t hvd_has_left(hvd_context *context);

/* Returns a descriptor for signal handlers, which may not call hvd_leave. Writing any byte to it does
 * what hvd_leave(context, 0) does; the write does not block. The descriptor belongs to the context until
 * hvd_destroy: don't close it. The library installs no handler. With this one, SIGTERM makes a worker
 * leave:
 *   static int leave_fd;
 *   static void on_term(int number) { (void)!write(leave_fd, "", 1); }
 *   hvd_get_leave_fd(context, &leave_fd, NULL);  signal(SIGTERM, on_term); */
HVD_API hvd_status hvd_get_leave_fd(hvd_context *context, int32_t *ret_fd, hvd_error *error);

/* Closes the context at once, from any thread: every pending and later call returns HVD_CLOSED. The job
 * sees a worker lost. hvd_abort does not wait for pending calls to return. */
HVD_API hvd_status hvd_abort(hvd_context *context, const char *reason, hvd_error *error);

/* Frees the context, after hvd_abort if it was not shut down. Calls under way return HVD_CLOSED. Ends
 * every thread of the context, within a few seconds at most. Called from a listener it does nothing but
 * log an error; connect.h has the rules for other threads and callbacks. NULL is allowed. */
HVD_API void hvd_destroy(hvd_context *context);

/* The place of this worker in the current generation. hvd_get_membership never blocks; after shutdown it
 * gives HVD_CLOSED. */
typedef struct hvd_membership_info {
  size_t struct_size;
  int32_t rank, size;               /* among all workers */
  int32_t local_rank, local_size;   /* among the workers of this host */
  int32_t cross_rank, cross_size;   /* among the workers with the same local rank on all hosts */
  uint64_t generation;              /* counts from 1; 0 for a worker that is alone without a driver */
  uint64_t membership_epoch;        /* changes of hosts that this generation takes into account */
  uint64_t worker;                  /* identity of this worker, kept through all generations */
  uint64_t term;                    /* the driver's, from 1: grows when another driver takes over; 0: none
                                       can take over */
} hvd_membership_info;
HVD_API hvd_status hvd_get_membership(hvd_context *context, hvd_membership_info *ret_membership,
                                      hvd_error *error);

/* Shorthands for the above; -1 if the context is NULL or closed. */
HVD_API int32_t hvd_rank(hvd_context *context);
HVD_API int32_t hvd_size(hvd_context *context);
HVD_API int32_t hvd_local_rank(hvd_context *context);
HVD_API int32_t hvd_local_size(hvd_context *context);
HVD_API int32_t hvd_cross_rank(hvd_context *context);
HVD_API int32_t hvd_cross_size(hvd_context *context);
HVD_API uint64_t hvd_generation(hvd_context *context); /* 0 if NULL or closed */

/* The backend in use for host memory; hvd_get_backend_choice reports the one that serves an operation.
 * Strings are NUL-terminated; a longer one is cut. */
typedef struct hvd_backend_info {
  size_t struct_size;
  char name[16];        /* "gloo"; "self" for a worker that is alone */
  char version[64];     /* of the library underneath */
  char path[512];       /* file of the module */
  char detail[256];     /* interface, address */
  uint64_t dtypes;      /* bit 1 << dtype for each supported one */
  uint64_t collectives; /* bit 1 << hvd_collective for each supported one */
} hvd_backend_info;
HVD_API hvd_status hvd_get_backend(hvd_context *context, hvd_backend_info *ret_info, hvd_error *error);

/* ---- Tensors --------------------------------------------------------------------------------- */

/* Element types. Values are stable. */
typedef int32_t hvd_dtype;
enum { HVD_DTYPE_UINT8 = 1, HVD_DTYPE_INT8 = 2, HVD_DTYPE_UINT16 = 3, HVD_DTYPE_INT16 = 4,
       HVD_DTYPE_UINT32 = 5, HVD_DTYPE_INT32 = 6, HVD_DTYPE_UINT64 = 7, HVD_DTYPE_INT64 = 8,
       HVD_DTYPE_FLOAT16 = 9, HVD_DTYPE_BFLOAT16 = 10, HVD_DTYPE_FLOAT32 = 11, HVD_DTYPE_FLOAT64 = 12,
       HVD_DTYPE_BOOL = 13,
       /* 8 bits: sign, exponent, mantissa. FN: no infinities; UZ: one zero, as in ml_dtypes and PyTorch. */
       HVD_DTYPE_FLOAT8_E4M3FN = 14, HVD_DTYPE_FLOAT8_E5M2 = 15, HVD_DTYPE_FLOAT8_E4M3FNUZ = 16,
       HVD_DTYPE_FLOAT8_E5M2FNUZ = 17,
       /* Pairs of floats. */
       HVD_DTYPE_COMPLEX64 = 18, HVD_DTYPE_COMPLEX128 = 19 };

/* Bytes of one element, or 0 if the dtype is unknown. */
HVD_API size_t hvd_dtype_size(hvd_dtype dtype);
/* "float32" and so on, or "unknown dtype". Static. */
HVD_API const char *hvd_dtype_name(hvd_dtype dtype);

typedef int32_t hvd_memory;
enum { HVD_MEMORY_HOST = 0, HVD_MEMORY_CUDA = 1 };

#define HVD_MAX_DIMS 8

/* A dense, row-major tensor in borrowed memory: the library never frees `data`. The memory must stay
 * valid, and an output's unread, until the operation has completed. Zero elements are allowed; `data` may
 * then be NULL.
 *
 * Tensors in device memory need a backend that serves it (else HVD_UNSUPPORTED). The library works on
 * `stream` of `device`: after the work that the stream holds already, and before work that is queued on
 * it later. The host never waits for the device. Collectives and hvd_state_add_tensor say more. */
typedef struct hvd_tensor {
  size_t struct_size;
  void *data;
  hvd_dtype dtype;
  int32_t ndim;                  /* 0 (a scalar) .. HVD_MAX_DIMS */
  int64_t shape[HVD_MAX_DIMS];   /* elements per dimension, each >= 0 */
  hvd_memory memory;
  int32_t device;                /* device memory: its number, as this process sees it */
  void *stream;                  /* device memory: a CUstream or cudaStream_t; NULL: the default stream */
} hvd_tensor;
#define HVD_TENSOR_INIT {sizeof(hvd_tensor), NULL, 0, 0, {0, 0, 0, 0, 0, 0, 0, 0}, 0, 0, NULL}

/* ---- Process sets ---------------------------------------------------------------------------- */

/* A subset of the ranks, for collectives among them. Each rank makes the set on its own, without
 * communication. Its name (1 to 255 bytes of UTF-8, not beginning with "hvd.") and its members must be the
 * same on all members; every operation on the set checks that (HVD_MISMATCH). Ranks that are not members may
 * make the set too: they can ask about it, and get HVD_INVALID for an operation on it. Sets may overlap. Two
 * sets with one name at the same time must have different lowest ranks ("my host" on each host).
 *
 * A set outlives generations. When ranks have changed, its rule says who is a member from then on. The
 * set looks that up at its next use, and may then have no members left. */
typedef struct hvd_process_set hvd_process_set;

typedef int32_t hvd_set_rule;
enum {
  HVD_SET_RULE_WORKERS = 1, /* the same workers, whatever their ranks; workers that have gone are out */
  HVD_SET_RULE_RANKS = 2,   /* the same rank numbers; ranks beyond the new size are out until it grows
                               again */
  HVD_SET_RULE_LOCAL = 3,   /* all ranks of this worker's host; `ranks` must be NULL */
  HVD_SET_RULE_CROSS = 4,   /* all ranks with this worker's local rank, on all hosts; `ranks` must be NULL */
  HVD_SET_RULE_END = 5      /* none: in a later generation every call on it gives HVD_INVALID */
};

/* ranks: `count` different ranks of the current generation, in any order; copied. rule: 0 means
 * HVD_SET_RULE_WORKERS. Never blocks. HVD_INVALID; HVD_CLOSED. */
HVD_API hvd_status hvd_process_set_create(hvd_context *context, const char *name, const int32_t *ranks,
                                          size_t count, hvd_set_rule rule, hvd_process_set **ret_set,
                                          hvd_error *error);
/* Frees the handle at any time, without blocking; operations under way go on. NULL is allowed. */
HVD_API void hvd_process_set_destroy(hvd_process_set *set);

/* The place of this worker in the set, in the current generation. Never blocks. */
typedef struct hvd_process_set_info {
  size_t struct_size;
  int32_t rank, size;               /* among the members, by ascending rank; rank is -1 if not a member */
  int32_t local_rank, local_size;   /* among the members on this host */
  int32_t cross_rank, cross_size;   /* among the members with the same local_rank on all hosts */
  uint64_t generation;              /* the generation in which this holds */
} hvd_process_set_info;      /* not a member: local_rank and cross_rank -1, their sizes 0 */
HVD_API hvd_status hvd_process_set_get_info(hvd_process_set *set, hvd_process_set_info *ret_info,
                                        hvd_error *error);

/* The members' ranks in the current generation, ascending. *count is the room of `ret_ranks` in entries;
 * the call sets it to their number. With ret_ranks NULL it sets the number alone. Too little room:
 * HVD_INVALID. */
HVD_API hvd_status hvd_process_set_get_ranks(hvd_process_set *set, int32_t *ret_ranks, size_t *count,
                                         hvd_error *error);

/* ---- Collectives ----------------------------------------------------------------------------- */

/* Every rank of the generation (or of the process set) calls each operation once, under the same name. Ranks
 * may submit their operations in different orders, from any threads. An operation starts as soon as all ranks
 * have called it. A name (1 to 255 bytes of UTF-8, not beginning with "hvd.") may be used again when its
 * operation has completed on this rank; twice at once in one process set is HVD_INVALID. A name of NULL is
 * automatic: the library numbers the operations without one, for each process set, anew in each generation.
 * All ranks must submit these in the same order, so each of them from one thread. A rank may have 65,536
 * operations under way, with 512 MiB of descriptions and small data. The next one gives HVD_INVALID, and
 * nothing of it was sent.
 *
 * Ranks must agree on collective, number of tensors, dtypes, shapes, reduction, factors, root and the set's
 * members. The first dimension may differ where a collective says so. If they don't, every rank gets
 * HVD_MISMATCH with the same message, and the context stays usable. A bad argument that shows on this rank
 * alone gives HVD_INVALID at once. The others then wait until this rank calls the operation correctly.
 *
 * A blocking form returns when this rank's output is complete. Option operation_timeout bounds the wait
 * for ranks that do not call: every rank that did gets HVD_TIMEOUT, naming those that did not. As soon as
 * any member is lost, every operation of the generation gives HVD_PEER_LOST, and outputs are undefined. A
 * call whose data has not arrived 30 s after that time-out loses the generation, and gives HVD_PEER_LOST.
 * HVD_CLOSED after hvd_shutdown or hvd_abort. HVD_UNSUPPORTED: the backend in use does not serve it.
 *
 * The library may allocate some outputs. If output->data is NULL, it allocates the memory (free with
 * hvd_free) and fills in data, dtype and shape. Otherwise dtype must be the input's, and output->shape gives
 * the room, which must hold the result. output->shape[0] is then set to the rows written. Too little room
 * gives HVD_INVALID on this rank alone, naming the rows needed.
 *
 * Device memory: all tensors of a call lie in the same kind of memory, on the same device, for the same
 * stream (HVD_INVALID). The kind must agree between ranks (HVD_MISMATCH); device and stream are each rank's
 * own. The operation is complete, and a blocking form returns, when it is queued on the stream, like a kernel
 * that the program launches. A later failure on the device loses the generation: from then on every operation
 * and commit gives HVD_PEER_LOST, and outputs are undefined. The library neither allocates device memory for
 * outputs nor scales in it (prescale and postscale): HVD_UNSUPPORTED. If rows depend on other ranks, too
 * little room gives HVD_INVALID on every rank. */

/* What an operation does. Values are stable. */
typedef int32_t hvd_collective;
enum { HVD_COLLECTIVE_BROADCAST = 1, HVD_COLLECTIVE_ALLREDUCE = 2, HVD_COLLECTIVE_ALLGATHER = 3,
       HVD_COLLECTIVE_BARRIER = 4, HVD_COLLECTIVE_REDUCESCATTER = 5, HVD_COLLECTIVE_ALLTOALL = 6,
       HVD_COLLECTIVE_JOIN = 7 };

typedef int32_t hvd_reduction;
enum { HVD_REDUCTION_SUM = 1, HVD_REDUCTION_AVERAGE = 2, HVD_REDUCTION_MIN = 3, HVD_REDUCTION_MAX = 4,
       HVD_REDUCTION_PRODUCT = 5 };

/* output[i] = reduction over ranks of input[i]. input and output have the same dtype and shape, and are
 * either the same memory or disjoint. float16 and bfloat16 are summed in float32. How often a partial sum
 * is rounded on its way between ranks is up to the backend (in device memory, NCCL).
 * HVD_REDUCTION_AVERAGE of an integer type rounds towards zero. Every rank gets the same bits. */
HVD_API hvd_status hvd_allreduce(hvd_context *context, const char *name, const hvd_tensor *input,
                                 hvd_tensor *output, hvd_reduction reduction, hvd_error *error);

/* Copies root's tensor into every other rank's. */
HVD_API hvd_status hvd_broadcast(hvd_context *context, const char *name, hvd_tensor *tensor, int32_t root,
                                 hvd_error *error);

/* Concatenates all ranks' inputs along the first dimension, in rank order. First dimensions may differ;
 * the other dimensions and the dtype must not; ndim >= 1. The library may allocate the output. */
HVD_API hvd_status hvd_allgather(hvd_context *context, const char *name, const hvd_tensor *input,
                                 hvd_tensor *output, hvd_error *error);

/* Reduces like hvd_allreduce and gives each rank its share of the result's rows (first dimension, ndim >=
 * 1), in rank order. Each rank gets rows / size of them; the first rows % size ranks get one more. The
 * library may allocate the output, which must not overlap the input. */
HVD_API hvd_status hvd_reducescatter(hvd_context *context, const char *name, const hvd_tensor *input,
                                     hvd_tensor *output, hvd_reduction reduction, hvd_error *error);

/* Sends splits[i] rows (first dimension, ndim >= 1) of the input to rank i, the first rows to rank 0 and so
 * on. Concatenates the rows that this rank receives, in rank order. splits: one entry per rank, each >= 0;
 * their sum is the input's rows. NULL splits evenly, and size must divide the rows. First dimensions may
 * differ between ranks. ret_received_splits: NULL, or room for one entry per rank: the rows received from it.
 * The library may allocate the output, which must not overlap the input. */
HVD_API hvd_status hvd_alltoall(hvd_context *context, const char *name, const hvd_tensor *input,
                                const int64_t *splits, hvd_tensor *output, int64_t *ret_received_splits,
                                hvd_error *error);

/* Returns when every rank has called it. */
HVD_API hvd_status hvd_barrier(hvd_context *context, const char *name, hvd_error *error);

/* Groups: `count` tensors under one name are one operation; they become ready and complete together.
 * dtypes may differ among them; shapes and dtypes must agree pairwise between ranks. An array's stride is
 * the struct_size of its first entry, and all entries have the same. A count of 0 is an empty group: its
 * arrays are not looked at, and it is a barrier of that name. */
HVD_API hvd_status hvd_broadcast_variables(hvd_context *context, const char *name, hvd_tensor *tensors,
                                           size_t count, int32_t root, hvd_error *error);
HVD_API hvd_status hvd_grouped_allreduce(hvd_context *context, const char *name, const hvd_tensor *inputs,
                                         hvd_tensor *outputs, size_t count, hvd_reduction reduction,
                                         hvd_error *error);
/* The library may allocate each output, independently of the others. */
HVD_API hvd_status hvd_grouped_allgather(hvd_context *context, const char *name, const hvd_tensor *inputs,
                                         hvd_tensor *outputs, size_t count, hvd_error *error);

/* Broadcasts bytes whose length only the root knows. On the root *data and *size are the input, and are
 * not changed. On other ranks *data is set to memory of *size bytes (hvd_free), or to NULL if *size is 0. */
HVD_API hvd_status hvd_broadcast_object(hvd_context *context, const char *name, void **data, size_t *size,
                                        int32_t root, hvd_error *error);

/* For a rank that runs out of data before the others: until every rank has joined, the others' operations
 * go on without this rank. Averages divide by the number of ranks that take part. A joined rank
 * contributes nothing to an allgather, and barriers do not wait for it. Operations that this rank called
 * before it joined go on.
 *
 * Returns HVD_OK when every rank has joined, with the rank that joined last, whose values are the newest
 * (ret_last_rank may be NULL). Returns HVD_HOSTS_UPDATED when the others leave for a new generation: pass
 * it on as they do. HVD_INVALID: this rank has joined already. The others may have much data left, so the
 * wait is bounded by a day (hvd_request.timeout_ns sets another bound).
 *
 * While a rank has joined, a broadcast from it gives HVD_MISMATCH on all ranks, and reducescatter and
 * alltoall give HVD_INVALID on all ranks. */
HVD_API hvd_status hvd_join(hvd_context *context, int32_t *ret_last_rank, hvd_error *error);

/* An operation under way. */
typedef struct hvd_op hvd_op;

/* Any operation in one form; the functions above are shorthands for it. It adds a process set, factors, a
 * priority and a time-out for this operation. Zero is the default of every field. A field that the
 * collective does not use must be zero (root, counts) or NULL; anything else is HVD_INVALID, naming field
 * and value. hvd/async.h has shorthands that return at once. */
typedef struct hvd_request {
  size_t struct_size;
  hvd_collective collective;
  int32_t root;                  /* broadcast: rank in the generation, also with a process set */
  const char *name;              /* all but join; NULL: automatic */
  const hvd_tensor *inputs;      /* allreduce, allgather, reducescatter, alltoall */
  const hvd_tensor *outputs;     /* as many as inputs; broadcast: the tensors. Where the library may allocate
                                    the output: NULL, or an entry whose data is NULL */
  size_t count;                  /* tensors: a group for broadcast, allreduce, allgather; 0: one */
  hvd_reduction reduction;       /* allreduce, reducescatter; 0: HVD_REDUCTION_SUM */
  int32_t priority;              /* among operations that are ready, the highest runs first; may be < 0 */
  double prescale, postscale;    /* allreduce, reducescatter: factor of the inputs before, of the result
                                    after the reduction; finite; 0: 1. Integers round towards zero
                                    and saturate */
  const int64_t *splits;         /* alltoall: rows to each member; reducescatter: rows that each member
                                    gets, the same on every rank. NULL: evenly, as above */
  size_t split_count;            /* members of the set if splits is given */
  hvd_process_set *process_set;  /* the ranks that take part; NULL: all. Not for join. May be destroyed
                                    while the operation runs */
  int64_t timeout_ns;            /* wait for ranks that do not call; 0: option operation_timeout */
} hvd_request;
#define HVD_REQUEST_INIT {sizeof(hvd_request), 0, 0, NULL, NULL, NULL, 0, 0, 0, 0, 0, NULL, 0, NULL, 0}

/* Submits the operation and returns at once. The request, tensors' descriptors, splits and names are
 * copied. Tensors' memory is borrowed until the operation has completed. Errors that show at once are
 * returned, and there is no op then. Descriptors are not written to: hvd_op_get_output returns an
 * output's data and shape. */
HVD_API hvd_status hvd_submit(hvd_context *context, const hvd_request *request, hvd_op **ret_op,
                              hvd_error *error);

/* hvd_submit and hvd_op_wait in one, for a caller that would wait at once. Small operations that the
 * ranks repeat take the shortest way (docs/architecture.md), and there is no handle to free. Waits until
 * the operation has completed, at most timeout_ns (0: until it completes, like a blocking form), and
 * returns its status.
 *
 * With HVD_OK it sets *ret_op. NULL: the operation has completed, and all results are where the request says.
 * Else *ret_op is an operation that has results to ask for (hvd_op_get_output and the like), or that has not
 * completed (hvd_op_test tells). */
HVD_API hvd_status hvd_submit_and_wait(hvd_context *context, const hvd_request *request, int64_t timeout_ns,
                                       hvd_op **ret_op, hvd_error *error);

/* Sets *ret_done to 1 if the operation has completed, in success or failure; else to 0. Never blocks. */
HVD_API hvd_status hvd_op_test(hvd_op *op, int32_t *ret_done, hvd_error *error);

/* Waits until the operation has completed and returns its status, at most timeout_ns (0: until it
 * completes, like a blocking form; hvd_op_test asks without waiting). HVD_TIMEOUT: it has not completed
 * and goes on; the message names the ranks that have not called it, where known. May be called again, and
 * by several threads. */
HVD_API hvd_status hvd_op_wait(hvd_op *op, int64_t timeout_ns, hvd_error *error);

/* Returns a descriptor that polls readable once the operation has completed, for event loops (epoll,
 * libuv, asyncio). It belongs to the op until hvd_op_destroy: don't read, write or close it; a dup of it
 * lives on. HVD_UNAVAILABLE: the process has no descriptor left. Never blocks. While nobody is in
 * hvd_op_wait, the library's threads alone drive the operation, which costs a small one some
 * microseconds. */
HVD_API hvd_status hvd_op_get_fd(hvd_op *op, int32_t *ret_fd, hvd_error *error);

/* Returns status and details of a completed operation without waiting; HVD_INVALID while it is pending. */
HVD_API hvd_status hvd_op_get_error(hvd_op *op, hvd_error *error);

/* Results of a completed operation. HVD_INVALID while it is pending, or if it has no such result; its own
 * status if it failed.
 *
 * hvd_op_get_output: the output, the index-th one of a group. It is the tensor as it was given, with the
 * dtype and the shape of the result. Memory that the library allocated belongs to the op and is valid
 * until hvd_op_destroy. */
HVD_API hvd_status hvd_op_get_output(hvd_op *op, size_t index, hvd_tensor *ret_output, hvd_error *error);
/* alltoall, and allgather of one tensor: rows received from each member, 0 from one that has joined.
 * *count is the room of `ret_splits` in entries; the call sets it to their number. With ret_splits NULL it
 * sets the number alone. Too little room: HVD_INVALID. */
HVD_API hvd_status hvd_op_get_received_splits(hvd_op *op, int64_t *ret_splits, size_t *count,
                                              hvd_error *error);
/* join: the rank that joined last. */
HVD_API hvd_status hvd_op_get_last_joined(hvd_op *op, int32_t *ret_rank, hvd_error *error);

/* Frees the handle at any time, without blocking. A pending operation goes on, and its memory stays
 * borrowed until it completes: wait first, or shut the context down. NULL is allowed. */
HVD_API void hvd_op_destroy(hvd_op *op);

/* ---- State ----------------------------------------------------------------------------------- */

/* The data that must survive: tensors and values in the caller's memory, and objects by callbacks. Every
 * rank registers the same keys with the same kinds, dtypes and shapes. One thread at a time uses a state.
 * It may outlive its context's handle (connect.h). */
typedef struct hvd_state hvd_state;

HVD_API hvd_status hvd_state_create(hvd_context *context, hvd_state **ret_state, hvd_error *error);

/* Waits for calls of other threads on the state, and for a commit that is being copied. When it returns,
 * registered memory is no longer borrowed, even while a run loop has the state. Within a callback of the
 * state the memory is released when the call that runs the callback returns. NULL is allowed. */
HVD_API void hvd_state_destroy(hvd_state *state);

/* Registers caller-owned memory under a key (1 to 255 bytes). The memory stays borrowed until the key is
 * removed, has other memory (hvd_state_set_data), or the state is destroyed. The stream of a tensor in
 * device memory stays borrowed until the key is removed or the state is destroyed. A key used twice is
 * HVD_INVALID. A value is a small blob of plain data (a counter, a struct without pointers) of 1 to 65536
 * bytes. Ranks may hold one tensor in different kinds of memory. */
HVD_API hvd_status hvd_state_add_tensor(hvd_state *state, const char *key, const hvd_tensor *tensor,
                                        hvd_error *error);
HVD_API hvd_status hvd_state_add_value(hvd_state *state, const char *key, void *value, size_t size,
                                       hvd_error *error);

/* An object: bytes that the program writes and reads back. save calls `write(sink, data, size)` any
 * number of times; load gets what a save wrote, on this rank or another. Both return 0 for success.
 * Anything else fails the calling commit, restore or sync with HVD_CALLBACK_FAILED, and the last commit
 * stays. A load must be able to undo an earlier partial load. Both are called in the thread that calls
 * commit, restore, sync or hvd_run, with no lock held. `write` returns 0, or nonzero if it can't take the
 * bytes (no memory, data is NULL). save may return then, and the call fails whatever save returns. */
typedef int32_t (*hvd_write_fn)(void *sink, const void *data, size_t size);
typedef int32_t (*hvd_save_fn)(void *userdata, hvd_write_fn write, void *sink);
typedef int32_t (*hvd_load_fn)(void *userdata, const void *data, size_t size);
HVD_API hvd_status hvd_state_add_object(hvd_state *state, const char *key, hvd_save_fn save,
                                        hvd_load_fn load, void *userdata, hvd_destroy_fn destroy,
                                        hvd_error *error);

/* For a save callback, instead of `write`, for memory that stays in place. The `count` pieces come next in
 * the object. They are not copied now but with the state's tensors, by all copying threads; parts that have
 * not changed since the last commit are not written again. `sink` is the callback's. The pieces must stay
 * unchanged until the library calls any function of the program other than a save callback. They may also
 * change once the call that wanted the save returns (commit, commit_begin, save, sync). write and
 * hvd_state_lend may take turns. Returns 0, or nonzero as `write` does. */
HVD_API int32_t hvd_state_lend(void *sink, const void *const *data, const size_t *sizes, size_t count);

/* hvd_state_lend for memory that the program treats as the state's tensors. What hvd_state_commit_begin
 * copies later must be neither written nor freed before that commit's end. (In any other call it is
 * hvd_state_lend.) If a save also uses hvd_state_lend, the whole object is copied at once. Option
 * check_commits compares what was lent at the end, too. */
HVD_API int32_t hvd_state_lend_until_end(void *sink, const void *const *data, const size_t *sizes,
                                         size_t count);

HVD_API hvd_status hvd_state_remove(hvd_state *state, const char *key, hvd_error *error);

/* Says that the memory of a tensor, a value or a shard is at `data` now: as many bytes, with the dtype, shape
 * and range that it has, and in the same kind of memory, on the same device. For programs that make their
 * tensors anew, for example in each generation. `data` is borrowed from here on, and the old memory no
 * longer: the call waits for a commit that is being copied. Nothing is copied by this call. The next commit
 * takes what `data` holds then; restore and sync write there. What was committed stays. In a reset callback
 * that runs before a sync, `data` must hold what the old memory held. NULL is allowed for a range without
 * elements. HVD_INVALID: no such key, or an object. HVD_TIMEOUT: the commit is still being copied, and the
 * memory is the old one. */
HVD_API hvd_status hvd_state_set_data(hvd_state *state, const char *key, void *data, hvd_error *error);

/* Runs when a new generation has been formed and synced, before the training function is called again, in
 * order of registration. It does not run before the function's first call. Nonzero: hvd_run ends with
 * HVD_CALLBACK_FAILED. A worker that is new in that generation runs none. So a reset callback may call
 * collectives only if newcomers call them too, at the beginning of their training function. */
typedef int32_t (*hvd_reset_fn)(void *userdata);
HVD_API hvd_status hvd_state_on_reset(hvd_state *state, hvd_reset_fn reset, void *userdata,
                                      hvd_destroy_fn destroy, hvd_error *error);

/* Copies everything to host memory as revision + 1, then checks for host updates. All ranks call it at
 * the same point. HVD_HOSTS_UPDATED and HVD_PEER_LOST mean that the copy was made and the function must
 * return that status. HVD_CALLBACK_FAILED, HVD_INTERNAL (memory): nothing changed.
 *
 * With tensors in device memory it returns when the copy is queued on their streams. The copy takes the
 * values as earlier work of the streams leaves them, and work that is queued later runs after the copy.
 * The new commit replaces the previous one when the copy has arrived; the next commit, restore and sync
 * wait for that. Until then the previous commit is in force. It stays in force if the copy fails, which
 * the next commit or restore reports (HVD_INTERNAL), or if the generation is lost meanwhile. So host
 * memory is needed for two commits. HVD_PEER_LOST may then also mean that no copy was begun. */
HVD_API hvd_status hvd_state_commit(hvd_state *state, hvd_error *error);

/* hvd_state_commit in two halves, for a program that computes while the commit is copied. begin saves
 * objects, copies values and returns; a thread copies tensors. end waits for the rest of the copy, and
 * then does what hvd_state_commit does after its copy. All ranks call both at the same points. Between
 * the two the program may read registered tensors but must not write them; option check_commits checks
 * that.
 *
 * The commit replaces the previous one when all of it is copied. After a loss one or the other is in
 * force, the same on all ranks. The next begin, commit, save, restore and sync also wait for the copy, so
 * end may be left out where hosts need not be checked. Host memory is needed for two commits. end gives
 * HVD_INVALID if no commit was begun, or if check_commits found that a tensor was written; the message
 * names it. */
HVD_API hvd_status hvd_state_commit_begin(hvd_state *state, hvd_error *error);
HVD_API hvd_status hvd_state_commit_end(hvd_state *state, hvd_error *error);

/* hvd_state_commit without the check, and without any communication. */
HVD_API hvd_status hvd_state_save(hvd_state *state, hvd_error *error);

/* Asks whether hosts have changed; all ranks call it at the same point. Every rank gets the same answer:
 * HVD_OK or HVD_HOSTS_UPDATED (or HVD_PEER_LOST). */
HVD_API hvd_status hvd_state_check_host_updates(hvd_state *state, hvd_error *error);

/* Restores the last commit, bit for bit; returns when it is in device memory, too. HVD_INVALID: there is no
 * commit. HVD_INTERNAL: the copy of a later commit had failed, as the message says, and the one before it was
 * restored; or device memory can't be written. */
HVD_API hvd_status hvd_state_restore(hvd_state *state, hvd_error *error);

/* Makes all ranks' state equal to the root's. The root is the survivor with the highest revision, lowest
 * rank first. Live values are saved first. Only variables that differ are sent, to the ranks where they
 * differ. hvd_run calls it for each generation. HVD_MISMATCH if the registered keys differ. */
HVD_API hvd_status hvd_state_sync(hvd_state *state, hvd_error *error);

/* Number of the last commit, counting one whose copy is still under way; 0 before the first commit, or if
 * the state is NULL. Never blocks. */
HVD_API uint64_t hvd_state_revision(hvd_state *state);

typedef struct hvd_state_info {
  size_t struct_size;
  uint64_t revision;
  uint64_t commits, restores, syncs;
  uint64_t bytes;                 /* of one commit */
  uint64_t sync_sent_bytes;       /* payload that this rank sent in all syncs */
  uint64_t sync_received_bytes;   /* payload that this rank received in all syncs */
  int64_t last_commit_ns;         /* duration of the copy of the last commit */
  uint64_t written_bytes;         /* of host tensors, values and lent memory that all commits wrote because
                                     they had changed, in pieces of 1 MiB */
  uint64_t shard_bytes;           /* of this rank's ranges of sharded keys, in one commit; part of `bytes` */
  uint64_t copy_bytes;            /* of the copies of other ranks' ranges, and the parity, that this rank
                                     holds */
  uint64_t fed_bytes;             /* that this worker got before it joined, and that its first sync did not
                                     move */
} hvd_state_info;
HVD_API hvd_status hvd_state_get_info(hvd_state *state, hvd_state_info *ret_info, hvd_error *error);

/* ---- Elastic run ----------------------------------------------------------------------------- */

/* The training function. It returns HVD_OK when training is complete. It passes on HVD_PEER_LOST and
 * HVD_HOSTS_UPDATED as it got them. Any other status ends hvd_run with that status. */
typedef hvd_status (*hvd_train_fn)(void *userdata);

/* Calls `train` until training is complete: sync, train. On HVD_PEER_LOST it restores, rejoins, syncs,
 * runs the reset callbacks and trains again; on HVD_HOSTS_UPDATED it does the same without restore.
 * Blocks the calling thread. `state` may be NULL (nothing to keep). Returns HVD_OK (complete, or this
 * worker has left: hvd_has_left), the function's own status, or why the job can't go on: HVD_REMOVED,
 * HVD_DRIVER_LOST, HVD_JOB_FAILED, HVD_TIMEOUT, HVD_CALLBACK_FAILED, HVD_MISMATCH, HVD_CLOSED. The state
 * keeps its last commit in any case. One hvd_run at a time per context. */
HVD_API hvd_status hvd_run(hvd_context *context, hvd_state *state, hvd_train_fn train, void *userdata,
                           hvd_error *error);

/* The same loop for languages without callbacks into C:
 *   hvd_run_begin(ctx, state, &loop, &e);  s = HVD_OK; int32_t again;
 *   while ((r = hvd_run_next(loop, s, &again, &e)) == HVD_OK && again) s = train();
 *   hvd_run_end(loop);
 * hvd_run_next does everything between two calls of the training function. The first call ignores `last`.
 * *ret_again = 1: call the function; 0: training is complete, or this worker has left. Any status but
 * HVD_OK ends the loop. */
typedef struct hvd_run_loop hvd_run_loop;
HVD_API hvd_status hvd_run_begin(hvd_context *context, hvd_state *state, hvd_run_loop **ret_loop,
                                 hvd_error *error);
HVD_API hvd_status hvd_run_next(hvd_run_loop *loop, hvd_status last, int32_t *ret_again, hvd_error *error);
HVD_API void hvd_run_end(hvd_run_loop *loop);

/* One recovery or planned reset of this worker. Phases that did not happen are 0. */
typedef struct hvd_recovery_info {
  size_t struct_size;
  uint64_t from_generation, to_generation;
  hvd_status cause;        /* HVD_PEER_LOST or HVD_HOSTS_UPDATED */
  int32_t from_size, to_size;
  int32_t attempts;        /* generations tried; more than 1 if another failure came in between */
  uint64_t revision;       /* after the sync */
  int64_t began_at_ns;     /* CLOCK_MONOTONIC when this worker learnt of it */
  int64_t detection_ns;    /* silence of the lost worker until it was given up; 0 if its connection closed */
  int64_t abort_ns;        /* from learning of it until the training function had returned */
  int64_t restore_ns;
  int64_t forming_ns;      /* from registering until the new assignment */
  int64_t connecting_ns;
  int64_t sync_ns;
  int64_t total_ns;        /* from began_at_ns until the training function is called again */
  uint64_t sync_bytes;     /* payload received and sent by this rank */
  char reason[256];        /* "rank 2 on host b lost: connection closed" */
  int32_t spares;          /* members of the new generation that had waited as spares (option spares) */
} hvd_recovery_info;

/* The number of recoveries, and the index-th of them (0 = oldest; the last 1024 are kept). */
HVD_API hvd_status hvd_get_recovery_count(hvd_context *context, size_t *ret_count, hvd_error *error);
HVD_API hvd_status hvd_get_recovery(hvd_context *context, size_t index, hvd_recovery_info *ret_recovery,
                                    hvd_error *error);

/* ---- Notifications --------------------------------------------------------------------------- */

typedef uint32_t hvd_event_kind;
enum {
  HVD_EVENT_HOSTS_UPDATED = 1 << 0,     /* the driver saw hosts change; agreed on at the next commit */
  HVD_EVENT_PEER_LOST = 1 << 1,         /* the generation is lost */
  HVD_EVENT_GENERATION = 1 << 2,        /* a new generation is formed and connected */
  HVD_EVENT_JOB_ENDED = 1 << 3,         /* the driver ended the job */
  HVD_EVENT_DRIVER_LOST = 1 << 4,       /* no driver: training goes on, and the worker looks for one for
                                           option driver_timeout */
  HVD_EVENT_RECOVERED = 1 << 5,         /* a recovery was recorded */
  HVD_EVENT_STALLED = 1 << 6,           /* rank 0: an operation waits for ranks that the message names */
  HVD_EVENT_DIVERGED = 1 << 7,          /* `rank` committed different bytes from most (option
                                           divergence_every); the message names key and revision */
  HVD_EVENT_DRIVER_BACK = 1 << 8        /* there is a driver again: the same one, or one that took over */
};
#define HVD_EVENT_ALL ((hvd_event_kind)0xffffffffu)

typedef struct hvd_event {
  size_t struct_size;
  hvd_event_kind kind;       /* one bit */
  uint32_t lost;             /* events dropped before this one because nobody took them (queue of 256) */
  uint64_t sequence;         /* grows by one with each event of the context */
  uint64_t generation;
  uint64_t membership_epoch;
  int32_t rank;              /* rank lost, or -1 */
  int32_t size;              /* size of the generation, where it matters */
  char message[256];         /* for example hosts added and removed */
} hvd_event;

/* Called from a thread of the library that does nothing else, one call at a time, with no lock held. It
 * may call any function of the context except hvd_shutdown (HVD_INVALID) and hvd_destroy. A blocking call
 * holds up later events. */
typedef void (*hvd_listener_fn)(void *userdata, const hvd_event *event);

/* kinds: HVD_EVENT_... or-ed. *ret_listener is a number to remove the listener by, never 0. */
HVD_API hvd_status hvd_register_listener(hvd_context *context, hvd_event_kind kinds, hvd_listener_fn listener,
                                         void *userdata, hvd_destroy_fn destroy, uint64_t *ret_listener,
                                         hvd_error *error);
/* Waits for a call of the listener in flight to return, unless called from within it; then runs destroy. */
HVD_API hvd_status hvd_remove_listener(hvd_context *context, uint64_t listener, hvd_error *error);

/* Returns a descriptor that polls readable while hvd_next_event has an event. Events are queued from this
 * call on. The descriptor belongs to the context: don't read, write or close it. */
HVD_API hvd_status hvd_get_event_fd(hvd_context *context, int32_t *ret_fd, hvd_error *error);
/* Takes the next event; *ret_available = 0 if there is none. Never blocks. */
HVD_API hvd_status hvd_next_event(hvd_context *context, hvd_event *ret_event, int32_t *ret_available,
                                  hvd_error *error);

/* ---- Timeline -------------------------------------------------------------------------------- */

/* Records what this worker does (operations and their phases, commits, restores, syncs, recoveries) in a
 * trace for ui.perfetto.dev and chrome://tracing. Option `timeline` does so from hvd_init on;
 * docs/timeline.md says more. In `path`, %w, %h and %p stand for worker, host and process; without %w and
 * %p, ".<worker>.json" is added. An existing file is replaced. HVD_INVALID: a timeline is on already, or
 * the path is invalid. HVD_UNAVAILABLE: the file can't be opened. If a later write fails (a full disk),
 * the library logs a warning and training goes on. */
HVD_API hvd_status hvd_timeline_start(hvd_context *context, const char *path, hvd_error *error);
/* Writes the rest and closes the file; HVD_OK if there is none. HVD_UNAVAILABLE: the trace is incomplete.
 * hvd_shutdown and hvd_destroy do so as well. */
HVD_API hvd_status hvd_timeline_stop(hvd_context *context, hvd_error *error);

/* ---- Backends -------------------------------------------------------------------------------- */

/* The backends to choose from, without a context: the built-in one, and every module beside the library,
 * where it was installed, or in option plugin_path (docs/backends.md). Strings are NUL-terminated; a
 * longer one is cut. */
typedef struct hvd_available_backend_info {
  size_t struct_size;
  char name[16];          /* as the module says; if it can't be loaded, from its file's name:
                             libhvd_<name>.so */
  char version[64];       /* of the library underneath */
  char path[512];         /* file of the module; "" if built in */
  int32_t usable;         /* 1: it loads and says that it can serve here */
  uint32_t abi_version;   /* of hvd/backend.h, on which it and this library agree; 0 if they don't */
  uint64_t memories;      /* bit 1 << hvd_memory for each supported one */
  uint64_t dtypes;        /* bit 1 << hvd_dtype */
  uint64_t collectives;   /* bit 1 << hvd_collective */
  int32_t local;          /* 1: fast inside a host on its own; else ranks of a host share memory first */
  int32_t max_instances;  /* contexts in one process that can use it; 0: any number */
  char reason[512];       /* why it is not usable */
} hvd_available_backend_info;

/* The number of backends, and the index-th of them, in the order in which they are searched. `options` may be
 * NULL. The calls load the modules, which stay loaded. A process that mpirun or srun has started does not
 * load modules that serve only elastic jobs: they are reported as not usable, with that reason. */
HVD_API hvd_status hvd_get_available_backend_count(const hvd_options *options, size_t *ret_count,
                                                   hvd_error *error);
HVD_API hvd_status hvd_get_available_backend(const hvd_options *options, size_t index,
                                             hvd_available_backend_info *ret_info, hvd_error *error);

/* Which backend of this context serves an operation in the current generation. */
typedef struct hvd_backend_choice_info {
  size_t struct_size;
  char name[16];
  char reason[512];       /* why this one: "auto: tcp, since no launcher started this process" */
} hvd_backend_choice_info;

/* HVD_UNSUPPORTED: no backend serves it; the message says why. HVD_PEER_LOST or HVD_HOSTS_UPDATED between
 * two generations. Never blocks. The dtype of a barrier is ignored. */
HVD_API hvd_status hvd_get_backend_choice(hvd_context *context, hvd_memory memory, hvd_dtype dtype,
                                      hvd_collective collective, hvd_backend_choice_info *ret_choice,
                                      hvd_error *error);

#ifdef __cplusplus
}
#endif
#endif
