/* direct.h: operations between two ranks, to one rank or from one, and objects of all ranks. The rules of
 * hvd.h hold here too, with those of its collectives: names, process sets, device memory, errors. A name
 * of NULL is automatic; sends and receives are numbered for each pair of ranks and direction.
 *
 * All of them may also be submitted as an hvd_request: asynchronously, on a process set, with a time-out of
 * their own. `root` is then the rank that the collective names below. If only the root has `inputs` or
 * `outputs`, they are given only there. `outputs` may be NULL if the library allocates. */
#ifndef HVD_DIRECT_H
#define HVD_DIRECT_H

#include "hvd/hvd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Further values of hvd_collective. */
enum {
  HVD_COLLECTIVE_BROADCAST_OBJECT = 8, /* hvd_broadcast_object: inputs on the root, its bytes as one
                                          dimension of uint8. hvd_op_get_output gives them on every rank */
  HVD_COLLECTIVE_SEND = 9,             /* root: the receiver */
  HVD_COLLECTIVE_RECEIVE = 10,         /* root: the sender */
  HVD_COLLECTIVE_REDUCE = 11,
  HVD_COLLECTIVE_GATHER = 12,          /* hvd_op_get_received_splits: on the root, the rows received from
                                          each rank */
  HVD_COLLECTIVE_SCATTER = 13          /* splits on the root, as many as members */
};

/* Gathers every rank's bytes, of any length each, in rank order: on all ranks, or on the root alone.
 * *ret_data is set to memory of all of them, one after the other (hvd_free), or to NULL if there are none.
 * ret_sizes has room for `count` entries, one per rank (HVD_INVALID if that is too few). It gets the number
 * of bytes from each rank, 0 from one that has joined. On ranks other than the root of a gather, *ret_data is
 * NULL and ret_sizes is all 0. */
HVD_API hvd_status hvd_allgather_object(hvd_context *context, const char *name, const void *data, size_t size,
                                        void **ret_data, size_t *ret_sizes, size_t count, hvd_error *error);
HVD_API hvd_status hvd_gather_object(hvd_context *context, const char *name, const void *data, size_t size,
                                     void **ret_data, size_t *ret_sizes, size_t count, int32_t root,
                                     hvd_error *error);

/* Sends a tensor to one rank, which receives it under the same name. Only these two match: other pairs,
 * and the other direction, may use the same name at the same time. dtype and shape must agree
 * (HVD_MISMATCH). Both calls return when the tensor has arrived. HVD_INVALID: the other rank is this rank
 * itself, or does not exist. */
HVD_API hvd_status hvd_send(hvd_context *context, const char *name, const hvd_tensor *tensor, int32_t to,
                            hvd_error *error);
HVD_API hvd_status hvd_receive(hvd_context *context, const char *name, hvd_tensor *tensor, int32_t from,
                               hvd_error *error);

/* hvd_allreduce with the result on the root alone. On other ranks `output` is ignored and may be NULL. Host
 * memory. */
HVD_API hvd_status hvd_reduce(hvd_context *context, const char *name, const hvd_tensor *input,
                              hvd_tensor *output, hvd_reduction reduction, int32_t root, hvd_error *error);

/* hvd_allgather with the result on the root alone. On other ranks `output` is ignored and may be NULL. On
 * the root the library may allocate it; it must not overlap the input. Host memory. */
HVD_API hvd_status hvd_gather(hvd_context *context, const char *name, const hvd_tensor *input,
                              hvd_tensor *output, int32_t root, hvd_error *error);

/* Deals out the rows of the root's input (first dimension, ndim >= 1) to all ranks, in rank order: splits[i]
 * rows to rank i. NULL: rows / size each, and one more to the first rows % size ranks. On other ranks input
 * and splits are ignored and may be NULL. `output` gives dtype and the other dimensions on every rank. Its
 * data may be NULL: the library then allocates it and ignores its first dimension. Host memory. */
HVD_API hvd_status hvd_scatter(hvd_context *context, const char *name, const hvd_tensor *input,
                               const int64_t *splits, hvd_tensor *output, int32_t root, hvd_error *error);

#ifdef __cplusplus
}
#endif
#endif
