/* Go's side of the C interface: callbacks of the library, and calls with structs that hold pointers. */
#include "bridge.h"

#include "_cgo_export.h"

/* An array of negative size where the layouts differ. */
#define SAME(field) \
  typedef char same_##field[offsetof(hvdgo_tensor, field) == offsetof(hvd_tensor, field) ? 1 : -1] __attribute__((unused))
SAME(data);
SAME(dtype);
SAME(ndim);
SAME(shape);
SAME(memory);
SAME(device);
SAME(stream);
typedef char same_size[sizeof(hvdgo_tensor) == sizeof(hvd_tensor) ? 1 : -1] __attribute__((unused));

hvd_status hvdgo_submit(hvd_context *context, hvdgo_call *call, const char *name, const hvdgo_tensor *inputs,
                        const hvdgo_tensor *outputs, size_t count, const int64_t *splits, size_t split_count,
                        hvd_process_set *set, hvd_op **ret_op, hvd_error *error) {
  hvd_request request = HVD_REQUEST_INIT;
  hvd_status status;
  request.collective = call->collective;
  request.root = call->root;
  request.name = name;
  request.inputs = (const hvd_tensor *)inputs;
  request.outputs = (const hvd_tensor *)outputs;
  request.count = count;
  request.reduction = call->reduction;
  request.priority = call->priority;
  request.prescale = call->prescale;
  request.postscale = call->postscale;
  request.splits = splits;
  request.split_count = split_count;
  request.process_set = set;
  request.timeout_ns = call->timeout_ns;
  status = hvd_submit(context, &request, ret_op, error);
  if (status != HVD_OK || !call->wait) return status;
  status = hvd_op_wait(*ret_op, call->wait_ns, error);
  /* HVD_TIMEOUT is the wait's or the operation's. */
  call->done = 1;
  if (status == HVD_TIMEOUT) {
    hvd_op_test(*ret_op, &call->done, NULL);
    /* It may have completed between the two: then it has a status of its own. */
    if (call->done) status = hvd_op_wait(*ret_op, call->wait_ns, error);
  }
  if (!call->done) return HVD_OK;
  if (call->discard) {
    hvd_op_destroy(*ret_op);
    *ret_op = NULL;
  }
  return status;
}

static void destroy(void *userdata) { hvdgoDestroy((uintptr_t)userdata); }

static void on_log(void *userdata, hvd_log_level level, const char *message) {
  hvdgoLog((uintptr_t)userdata, level, (char *)message);
}
hvd_status hvdgo_set_log(hvd_options *options, hvd_log_level level, uintptr_t handle, hvd_error *error) {
  return hvd_options_set_log(options, level, on_log, (void *)handle, destroy, error);
}

static int32_t on_save(void *userdata, hvd_write_fn write, void *sink) {
  return hvdgoSave((uintptr_t)userdata, write, sink);
}
static int32_t on_load(void *userdata, const void *data, size_t size) {
  return hvdgoLoad((uintptr_t)userdata, (void *)data, size);
}
hvd_status hvdgo_add_object(hvd_state *state, const char *key, uintptr_t handle, hvd_error *error) {
  return hvd_state_add_object(state, key, on_save, on_load, (void *)handle, destroy, error);
}

static int32_t on_reshard(void *userdata, hvd_shard *shard) { return hvdgoReshard((uintptr_t)userdata, shard); }
hvd_status hvdgo_add_shard(hvd_state *state, const char *key, const hvdgo_tensor *tensor, int64_t elements,
                           int64_t offset, int32_t copies, uintptr_t handle, hvd_error *error) {
  return hvd_state_add_shard(state, key, (const hvd_tensor *)tensor, elements, offset, copies, on_reshard,
                             (void *)handle, destroy, error);
}
hvd_status hvdgo_add_shard_with_parity(hvd_state *state, const char *key, const hvdgo_tensor *tensor,
                                       int64_t elements, int64_t offset, int32_t parity, uintptr_t handle,
                                       hvd_error *error) {
  return hvd_state_add_shard_with_parity(state, key, (const hvd_tensor *)tensor, elements, offset, parity,
                                         on_reshard, (void *)handle, destroy, error);
}
void hvdgo_set_shard_data(hvd_shard *shard, uintptr_t data) { shard->data = (void *)data; }
static int32_t on_lost(void *userdata, const char *sentence) {
  return hvdgoLost((uintptr_t)userdata, (char *)sentence);
}
hvd_status hvdgo_on_lost(hvd_state *state, uintptr_t handle, hvd_error *error) {
  return hvd_state_on_lost(state, on_lost, (void *)handle, destroy, error);
}

static void on_event(void *userdata, const hvd_event *event) { hvdgoEvent((uintptr_t)userdata, (hvd_event *)event); }
hvd_status hvdgo_register_listener(hvd_context *context, hvd_event_kind kinds, uintptr_t handle,
                                   uint64_t *ret_listener, hvd_error *error) {
  return hvd_register_listener(context, kinds, on_event, (void *)handle, destroy, ret_listener, error);
}

static int32_t on_discover(void *userdata, hvd_add_host_fn add, void *sink) {
  return hvdgoDiscover((uintptr_t)userdata, add, sink);
}
hvd_status hvdgo_set_discovery(hvd_driver *driver, uintptr_t handle, hvd_error *error) {
  return hvd_driver_set_discovery(driver, on_discover, (void *)handle, destroy, error);
}

static int32_t on_start(void *userdata, const hvd_launch *launch) {
  return hvdgoStart((uintptr_t)userdata, (hvd_launch *)launch);
}
static void on_stop(void *userdata, uint64_t worker, int32_t force) {
  hvdgoStop((uintptr_t)userdata, worker, force);
}
hvd_status hvdgo_set_launcher(hvd_driver *driver, uintptr_t handle, hvd_error *error) {
  return hvd_driver_set_launcher(driver, on_start, on_stop, (void *)handle, destroy, error);
}

static void on_line(void *userdata, int32_t rank, const char *host, int32_t slot, int32_t is_stderr,
                    const char *line) {
  hvdgoLine((uintptr_t)userdata, rank, (char *)host, slot, is_stderr, (char *)line);
}
hvd_status hvdgo_set_output(hvd_driver *driver, uintptr_t handle, hvd_error *error) {
  return hvd_driver_set_output(driver, on_line, (void *)handle, destroy, error);
}

hvd_status hvdgo_output(hvd_op *op, size_t index, hvdgo_tensor *ret_output, hvd_error *error) {
  return hvd_op_get_output(op, index, (hvd_tensor *)ret_output, error);
}
hvd_status hvdgo_add_tensor(hvd_state *state, const char *key, const hvdgo_tensor *tensor, hvd_error *error) {
  return hvd_state_add_tensor(state, key, (const hvd_tensor *)tensor, error);
}
void *hvdgo_pointer(uintptr_t number) { return (void *)number; }
hvd_status hvdgo_add_value(hvd_state *state, const char *key, uintptr_t value, size_t size, hvd_error *error) {
  return hvd_state_add_value(state, key, (void *)value, size, error);
}
hvd_status hvdgo_set_data(hvd_state *state, const char *key, uintptr_t data, hvd_error *error) {
  return hvd_state_set_data(state, key, (void *)data, error);
}
int32_t hvdgo_write(hvd_write_fn write, void *sink, uintptr_t data, size_t size) {
  return write(sink, (const void *)data, size);
}
int32_t hvdgo_add_host(hvd_add_host_fn add, void *sink, const char *name, int32_t slots) {
  return add(sink, name, slots);
}
