/* async.h: hvd.h's collectives in forms that return at once, as inline shorthands for hvd_submit. The
 * library exports none of them: a language that can't include C submits an hvd_request.
 *
 * Tensors' descriptors, splits and names are copied; tensors' memory is borrowed until the operation has
 * completed. Errors that show at once are returned, and there is no op then. Descriptors are not written
 * to: hvd_op_get_output returns an output's data and shape. If an output or its data is NULL, the library
 * allocates the memory, which belongs to the op. */
#ifndef HVD_ASYNC_H
#define HVD_ASYNC_H

#include "hvd/hvd.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline hvd_status hvd_barrier_async(hvd_context *context, const char *name, hvd_op **ret_op,
                                           hvd_error *error) {
  hvd_request request = HVD_REQUEST_INIT;
  request.collective = HVD_COLLECTIVE_BARRIER;
  request.name = name;
  return hvd_submit(context, &request, ret_op, error);
}

/* Groups: a count of 0 is an empty group, as in hvd.h. */
static inline hvd_status hvd_grouped_allreduce_async(hvd_context *context, const char *name,
                                                     const hvd_tensor *inputs, const hvd_tensor *outputs,
                                                     size_t count, hvd_reduction reduction, hvd_op **ret_op,
                                                     hvd_error *error) {
  hvd_request request = HVD_REQUEST_INIT;
  if (count == 0) return hvd_barrier_async(context, name, ret_op, error);
  request.collective = HVD_COLLECTIVE_ALLREDUCE;
  request.name = name;
  request.inputs = inputs;
  request.outputs = outputs;
  request.count = count;
  request.reduction = reduction;
  return hvd_submit(context, &request, ret_op, error);
}

static inline hvd_status hvd_allreduce_async(hvd_context *context, const char *name, const hvd_tensor *input,
                                             const hvd_tensor *output, hvd_reduction reduction,
                                             hvd_op **ret_op, hvd_error *error) {
  return hvd_grouped_allreduce_async(context, name, input, output, 1, reduction, ret_op, error);
}

static inline hvd_status hvd_broadcast_variables_async(hvd_context *context, const char *name,
                                                       hvd_tensor *tensors, size_t count, int32_t root,
                                                       hvd_op **ret_op, hvd_error *error) {
  hvd_request request = HVD_REQUEST_INIT;
  if (count == 0) return hvd_barrier_async(context, name, ret_op, error);
  request.collective = HVD_COLLECTIVE_BROADCAST;
  request.root = root;
  request.name = name;
  request.outputs = tensors;
  request.count = count;
  return hvd_submit(context, &request, ret_op, error);
}

static inline hvd_status hvd_broadcast_async(hvd_context *context, const char *name, hvd_tensor *tensor,
                                             int32_t root, hvd_op **ret_op, hvd_error *error) {
  return hvd_broadcast_variables_async(context, name, tensor, 1, root, ret_op, error);
}

static inline hvd_status hvd_grouped_allgather_async(hvd_context *context, const char *name,
                                                     const hvd_tensor *inputs, const hvd_tensor *outputs,
                                                     size_t count, hvd_op **ret_op, hvd_error *error) {
  hvd_request request = HVD_REQUEST_INIT;
  if (count == 0) return hvd_barrier_async(context, name, ret_op, error);
  request.collective = HVD_COLLECTIVE_ALLGATHER;
  request.name = name;
  request.inputs = inputs;
  request.outputs = outputs;
  request.count = count;
  return hvd_submit(context, &request, ret_op, error);
}

static inline hvd_status hvd_allgather_async(hvd_context *context, const char *name, const hvd_tensor *input,
                                             const hvd_tensor *output, hvd_op **ret_op, hvd_error *error) {
  return hvd_grouped_allgather_async(context, name, input, output, 1, ret_op, error);
}

static inline hvd_status hvd_reducescatter_async(hvd_context *context, const char *name,
                                                 const hvd_tensor *input, const hvd_tensor *output,
                                                 hvd_reduction reduction, hvd_op **ret_op, hvd_error *error) {
  hvd_request request = HVD_REQUEST_INIT;
  request.collective = HVD_COLLECTIVE_REDUCESCATTER;
  request.name = name;
  request.inputs = input;
  request.outputs = output;
  request.reduction = reduction;
  return hvd_submit(context, &request, ret_op, error);
}

/* splits: NULL, or hvd_size(context) entries. */
static inline hvd_status hvd_alltoall_async(hvd_context *context, const char *name, const hvd_tensor *input,
                                            const int64_t *splits, const hvd_tensor *output, hvd_op **ret_op,
                                            hvd_error *error) {
  hvd_request request = HVD_REQUEST_INIT;
  request.collective = HVD_COLLECTIVE_ALLTOALL;
  request.name = name;
  request.inputs = input;
  request.outputs = output;
  request.splits = splits;
  if (splits != NULL) {
    const int32_t size = hvd_size(context);
    request.split_count = size > 0 ? (size_t)size : 0;
  }
  return hvd_submit(context, &request, ret_op, error);
}

static inline hvd_status hvd_join_async(hvd_context *context, hvd_op **ret_op, hvd_error *error) {
  hvd_request request = HVD_REQUEST_INIT;
  request.collective = HVD_COLLECTIVE_JOIN;
  return hvd_submit(context, &request, ret_op, error);
}

#ifdef __cplusplus
}
#endif
#endif
