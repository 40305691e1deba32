/* sampler.h: which rank trains on which samples of a data set, through every change of ranks. The rules of
 * hvd.h hold here too. */
#ifndef HVD_SAMPLER_H
#define HVD_SAMPLER_H

#include "hvd/hvd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Deals out the samples of a data set, 0 .. samples-1, to the ranks. Each sample is dealt exactly once in an
 * * epoch, even when the number of ranks changes during it. Progress survives commit, restore and a change of
 * size.
 *
 * An epoch is an order of the samples, shuffled by (seed, epoch), the same on every platform; it takes no
 * memory. All ranks take samples from its front, a round at a time: the next batch_size * size samples, dealt
 * one by one to ranks 0 .. size-1. Every rank goes through the same rounds, so progress is one number that is
 * the same everywhere: nothing is communicated, and its commit costs nothing.
 *
 *   while ((s = hvd_sampler_next(sampler, NULL, indices, room, &batch, &e)) == HVD_OK && batch.total > 0) {
 *     ... train on batch.count indices; sum gradients over all ranks, divide by batch.total ...
 *     if ((s = hvd_sampler_record(sampler, &batch, &e)) != HVD_OK) ...
 *     if ((s = hvd_state_commit(state, &e)) != HVD_OK) return s;
 *   }
 *   hvd_sampler_set_epoch(sampler, batch.epoch + 1, &e);
 *
 * The sampler asks the context for rank and size at each call, so a change of ranks needs no action. */
typedef struct hvd_sampler hvd_sampler;

/* How to deal a last round that the ranks can't share evenly. */
typedef int32_t hvd_padding;
enum {
  HVD_PADDING_NONE = 0,    /* as it is: each sample exactly once. Some ranks have one sample less than
                              others. With fewer samples than ranks some have none (count 0, total > 0):
                              such a rank contributes zeros to the round's collectives, or records the
                              round and calls hvd_join */
  HVD_PADDING_REPEAT = 1,  /* filled up with the epoch's first samples: every rank has the same number */
  HVD_PADDING_DROP = 2     /* the last samples, fewer than there are ranks, are left out of this epoch */
};

typedef struct hvd_sampler_options {
  size_t struct_size;
  uint64_t samples;     /* of the data set: 1 .. 2^62 */
  uint64_t batch_size;  /* of one rank: 1 .. 2^31-1 */
  uint64_t seed;
  int32_t in_order;     /* 1: not shuffled, every epoch is 0, 1, 2 ... */
  hvd_padding padding;
} hvd_sampler_options;

/* All ranks give the same options. The sampler may outlive its context's handle (connect.h), and a state
 * keeps what it needs of the sampler. */
HVD_API hvd_status hvd_sampler_create(hvd_context *context, const hvd_sampler_options *options,
                                      hvd_sampler **ret_sampler, hvd_error *error);
HVD_API void hvd_sampler_destroy(hvd_sampler *sampler);

/* Makes the sampler part of a state, as an object of 64 bytes: committed, restored and synced with it. A
 * sync gives HVD_MISMATCH if the ranks' options differ. */
HVD_API hvd_status hvd_state_add_sampler(hvd_state *state, const char *key, hvd_sampler *sampler,
                                         hvd_error *error);

/* One rank's part of a round. */
typedef struct hvd_sampler_batch {
  size_t struct_size;
  uint64_t generation;  /* in which it was dealt: it is of no use in another one */
  uint64_t epoch;
  uint64_t position;    /* where in the epoch's order the round begins */
  uint64_t count;       /* samples of this rank, at most batch_size */
  uint64_t total;       /* samples of all ranks together; 0: the epoch is over */
} hvd_sampler_batch;

/* Returns the first round that is not recorded, and writes the indices of this rank's samples. It returns
 * the same round until that is recorded. With `after` it returns the round that follows that one, so that
 * a program can load data ahead. HVD_INVALID: `after` is of another generation or epoch, or was recorded
 * long ago (begin again with NULL); or `room`, in indices, is too small. A room of batch_size always
 * suffices. */
HVD_API hvd_status hvd_sampler_next(hvd_sampler *sampler, const hvd_sampler_batch *after, uint64_t *indices,
                                    size_t room, hvd_sampler_batch *ret_batch, hvd_error *error);

/* Records that the round of `batch` was processed. Every rank calls it at the same point, also with count
 * 0. HVD_INVALID, and nothing changes, if the round is not the first one that is not recorded, or was
 * dealt in another generation. */
HVD_API hvd_status hvd_sampler_record(hvd_sampler *sampler, const hvd_sampler_batch *batch, hvd_error *error);

/* Begins another epoch (the first is 0), with nothing of it processed. Setting the current epoch changes
 * nothing, so a training function may set the epoch whenever it is called. */
HVD_API hvd_status hvd_sampler_set_epoch(hvd_sampler *sampler, uint64_t epoch, hvd_error *error);

typedef struct hvd_sampler_info {
  size_t struct_size;
  uint64_t epoch;
  uint64_t samples, batch_size;  /* as in the options */
  uint64_t processed;            /* samples of this epoch, by all ranks */
  uint64_t remaining;            /* samples - processed */
  uint64_t rounds;               /* left in this epoch with the present size; the same on every rank */
} hvd_sampler_info;
HVD_API hvd_status hvd_sampler_get_info(hvd_sampler *sampler, hvd_sampler_info *ret_info, hvd_error *error);

/* For the program's own checkpoint. hvd_sampler_save writes HVD_SAMPLER_SAVED_BYTES bytes, the same on every
 * rank and every platform. All ranks load the same bytes, with any number of ranks, batch size and padding.
 * HVD_INVALID: samples, seed or in_order differ from those at the save, or the bytes are damaged. Both
 * functions also work after hvd_shutdown. */
#define HVD_SAMPLER_SAVED_BYTES 64
HVD_API hvd_status hvd_sampler_save(hvd_sampler *sampler, void *data, size_t room, hvd_error *error);
HVD_API hvd_status hvd_sampler_load(hvd_sampler *sampler, const void *data, size_t size, hvd_error *error);

#ifdef __cplusplus
}
#endif
#endif
