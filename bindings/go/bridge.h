/* What Go can't say itself: callbacks of the library into Go, and calls with structs that hold pointers. */
#ifndef HVD_GO_BRIDGE_H
#define HVD_GO_BRIDGE_H

#include <hvd/connect.h>
#include <hvd/direct.h>
#include <hvd/sampler.h>
#include <hvd/shards.h>
#include <hvd/driver.h>
#include <hvd/hvd.h>
#include <stdint.h>

/* The fields of hvd_request that are not pointers. */
typedef struct hvdgo_call {
  int32_t collective, root, reduction, priority;
  double prescale, postscale;
  int64_t timeout_ns;
  int64_t wait_ns;
  int32_t wait;    /* hvd_op_wait for wait_ns; 0: not at all */
  int32_t discard; /* nothing but the status is wanted: the op of a completed operation is destroyed */
  int32_t done;    /* result: it has completed, and its status was returned */
} hvdgo_call;

/* hvd_tensor with numbers for its pointers. cgo checks all pointers of every object that an argument
 * points to, and C must not write a pointer of Go's into Go's memory: Go pins the memory, keeps its
 * pointer, and passes a number. */
typedef struct hvdgo_tensor {
  size_t struct_size;
  uintptr_t data;
  hvd_dtype dtype;
  int32_t ndim;
  int64_t shape[HVD_MAX_DIMS];
  hvd_memory memory;
  int32_t device;
  uintptr_t stream;
} hvdgo_tensor;

/* hvd_submit, then hvd_op_wait. */
hvd_status hvdgo_submit(hvd_context *context, hvdgo_call *call, const char *name, const hvdgo_tensor *inputs,
                        const hvdgo_tensor *outputs, size_t count, const int64_t *splits, size_t split_count,
                        hvd_process_set *set, hvd_op **ret_op, hvd_error *error);

/* In these, userdata is a runtime/cgo handle, which the library's destroy callback deletes. */
hvd_status hvdgo_set_log(hvd_options *options, hvd_log_level level, uintptr_t handle, hvd_error *error);
hvd_status hvdgo_add_shard(hvd_state *state, const char *key, const hvdgo_tensor *tensor, int64_t elements,
                           int64_t offset, int32_t copies, uintptr_t handle, hvd_error *error);
hvd_status hvdgo_add_shard_with_parity(hvd_state *state, const char *key, const hvdgo_tensor *tensor,
                                       int64_t elements, int64_t offset, int32_t parity, uintptr_t handle,
                                       hvd_error *error);
hvd_status hvdgo_on_lost(hvd_state *state, uintptr_t handle, hvd_error *error);
void hvdgo_set_shard_data(hvd_shard *shard, uintptr_t data);
hvd_status hvdgo_add_object(hvd_state *state, const char *key, uintptr_t handle, hvd_error *error);
hvd_status hvdgo_register_listener(hvd_context *context, hvd_event_kind kinds, uintptr_t handle,
                                   uint64_t *ret_listener, hvd_error *error);
hvd_status hvdgo_set_discovery(hvd_driver *driver, uintptr_t handle, hvd_error *error);
hvd_status hvdgo_set_launcher(hvd_driver *driver, uintptr_t handle, hvd_error *error);
hvd_status hvdgo_set_output(hvd_driver *driver, uintptr_t handle, hvd_error *error);

hvd_status hvdgo_output(hvd_op *op, size_t index, hvdgo_tensor *ret_output, hvd_error *error);
hvd_status hvdgo_add_tensor(hvd_state *state, const char *key, const hvdgo_tensor *tensor, hvd_error *error);
void *hvdgo_pointer(uintptr_t number);
hvd_status hvdgo_set_data(hvd_state *state, const char *key, uintptr_t data, hvd_error *error);
hvd_status hvdgo_add_value(hvd_state *state, const char *key, uintptr_t value, size_t size, hvd_error *error);
int32_t hvdgo_write(hvd_write_fn write, void *sink, uintptr_t data, size_t size);
int32_t hvdgo_add_host(hvd_add_host_fn add, void *sink, const char *name, int32_t slots);

#endif
