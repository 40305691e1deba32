/* shards.h: sharded state. A flat global vector (what ZeRO and FSDP2 flatten parameters and moments to) of
 * which each rank holds one range, and of which others keep copies or parity, so that the loss of workers
 * loses none of it. docs/shards.md has the whole story; the rules of hvd.h hold here too. */
#ifndef HVD_SHARDS_H
#define HVD_SHARDS_H

#include "hvd/hvd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A rank's range of one sharded key: `elements` from `offset` on, of a vector of `global_elements`. */
typedef struct hvd_shard {
  size_t struct_size;
  const char *key;         /* valid during the call */
  hvd_dtype dtype;
  int32_t rank, size;      /* of this worker in the new generation */
  int32_t reserved;
  int64_t global_elements;
  int64_t offset;          /* in: of an even split (hvd_shard_range); the program may write another */
  int64_t elements;        /* the same */
  void *data;              /* in: the memory that the old range has; out: that of the new range, host
                              memory of `elements` */
} hvd_shard;

/* Tells the program its new range, and asks for memory for it, in a sync after which this worker's rank or
 * the number of workers is another than when it got its range. What is in `data` afterwards counts only if
 * nothing was ever synced (then it holds the program's initial values); else the sync fills it. The old
 * memory is not used any more, and may be freed or given again. It is called in the thread that calls
 * hvd_run or sync, with no lock held, and maybe several times until a sync succeeds. Nonzero: the sync
 * fails with HVD_CALLBACK_FAILED on this rank. */
typedef int32_t (*hvd_reshard_fn)(void *userdata, hvd_shard *shard);

/* As number of copies: none. */
#define HVD_NO_COPIES (-1)

/* Registers this rank's range of a sharded key: `tensor`, of one dimension and in host memory, borrowed as
 * in hvd_state_add_tensor, is elements `offset` and following of a vector of `global_elements`. All ranks
 * register the same keys with the same dtype, length and number of copies, and ranges that cover the
 * vector, each element once (checked by sync and commit: HVD_MISMATCH, which names what overlaps or is
 * missing). A range may be empty.
 *
 * copies: a commit also places the shard in the commit memory of that many other workers, on other hosts
 * wherever there are any; 0 is one copy, HVD_NO_COPIES none, at most 16. As many workers may be lost at
 * once without loss of data.
 *
 * reshard: see above; NULL where the split never changes (a sync that needs another is HVD_INVALID then,
 * unless the range of an even split is the one that it has). `destroy` runs when the key is removed or the
 * state destroyed, and on failure.
 *
 * With shards every commit is collective: hvd_state_commit, hvd_state_save and the thread of
 * hvd_state_commit_begin place the copies and agree that all have done so, and fail on all ranks or on
 * none but for the loss of a worker: HVD_PEER_LOST means that this commit or the one before it is
 * restored, the same on all ranks. Host memory is needed for 2 x (1 + copies) times this rank's shards.
 * hvd_state_sync takes the last commit, if there is one, and not the live values. A rank that has joined
 * (hvd_join) can't commit: HVD_MISMATCH. HVD_UNSUPPORTED: tensor in device memory. */
HVD_API hvd_status hvd_state_add_shard(hvd_state *state, const char *key, const hvd_tensor *tensor,
                                       int64_t global_elements, int64_t offset, int32_t copies,
                                       hvd_reshard_fn reshard, void *userdata, hvd_destroy_fn destroy,
                                       hvd_error *error);

/* The same with parity instead of copies, for less memory. Workers are put into groups of `parity` + 1,
 * larger ones by a few where that does not come out even, and a single one if they are fewer. Each keeps a
 * block of the others' parity (exclusive or) beside its own shard, at most 1 / `parity` of the longest
 * shard of its group. One worker of each group may be lost at once without loss of data: its block and its
 * shard are made again from the others'. The workers of one host are in different groups wherever there
 * are enough of these, so that a host may be lost if none has more workers than there are groups.
 *
 * parity: 2 to 64, the same on all ranks. Host memory is needed for 2 x (1 + 1 / `parity`) times this
 * rank's shards, and while a lost one is made again for as much as was lost. Everything else as above.
 * Taking one key away leaves others with the same parity without it until the next commit. */
HVD_API hvd_status hvd_state_add_shard_with_parity(hvd_state *state, const char *key,
                                                   const hvd_tensor *tensor, int64_t global_elements,
                                                   int64_t offset, int32_t parity, hvd_reshard_fn reshard,
                                                   void *userdata, hvd_destroy_fn destroy, hvd_error *error);

/* Range of `rank` in an even split over `size` ranks: the first ones have one element more if it does not
 * come out even. HVD_INVALID. Never blocks. */
HVD_API hvd_status hvd_shard_range(int64_t global_elements, int32_t rank, int32_t size, int64_t *ret_offset,
                                   int64_t *ret_elements, hvd_error *error);

/* What to do if more workers were lost than there are copies. Without it hvd_run ends with HVD_JOB_FAILED
 * and a sentence on every rank that names a key, the elements that are lost and who held them. With it on
 * all ranks, each rank is given that sentence instead, and loads everything that is registered, shards in
 * their new ranges, from where the program keeps it (its own checkpoint), the same step on all ranks. Then
 * training goes on as after a sync. Nonzero: HVD_CALLBACK_FAILED. NULL takes it back. */
typedef int32_t (*hvd_lost_fn)(void *userdata, const char *sentence);
HVD_API hvd_status hvd_state_on_lost(hvd_state *state, hvd_lost_fn lost, void *userdata,
                                     hvd_destroy_fn destroy, hvd_error *error);

#ifdef __cplusplus
}
#endif
#endif
