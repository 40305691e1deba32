/* shards.h: sharded state. Each rank holds one range of a flat global vector (ZeRO and FSDP2 flatten
 * parameters and moments to such vectors). Other ranks keep copies or parity of the range, so that no data is
 * lost with a worker. docs/shards.md tells the rest; the rules of hvd.h hold here too. */
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
  int64_t offset;          /* in: of an even split (hvd_shard_range); the program may set another */
  int64_t elements;        /* likewise */
  void *data;              /* in: memory of the old range; out: memory of the new range, with room for
                              `elements`, where the tensor was: in host memory, or on its device */
} hvd_shard;

/* Tells the program its new range and asks for memory for it. A sync calls it if this worker's rank or the
 * number of workers has changed since the worker got its range. The sync fills `data`, unless nothing was
 * ever synced: then `data` holds the program's initial values. The old memory is no longer used, and may be
 * freed or returned again. It is called in the thread that calls hvd_run or sync, with no lock held, possibly
 * several times until a sync succeeds. Its time does not count as the sync's; others wait for it as for a
 * rank that does not call (option operation_timeout). Nonzero: the sync fails with HVD_CALLBACK_FAILED on
 * this rank. */
typedef int32_t (*hvd_reshard_fn)(void *userdata, hvd_shard *shard);

/* As a number of copies: none. */
#define HVD_NO_COPIES (-1)

/* Registers this rank's range of a sharded key. `tensor` has one dimension and is borrowed as in
 * hvd_state_add_tensor; it may be in device memory, too. It holds the elements from `offset` on of a vector
 * of `global_elements`. All ranks register the same keys with the same dtype, length and number of copies.
 * Their ranges cover the vector, each element once; sync and commit check that (HVD_MISMATCH, naming the
 * elements that overlap or are missing). A range may be empty.
 *
 * copies: a commit also places the shard in the commit memory of that many other workers, on other hosts
 * where there are any. 0 means one copy, HVD_NO_COPIES none; at most 16. As many workers may be lost at
 * once without loss of data.
 *
 * reshard: see above; NULL where the split never changes. A sync that needs another split then gives
 * HVD_INVALID, unless the even split gives this rank the range that it has. `destroy` runs when the key
 * is removed or the state destroyed, and on failure.
 *
 * With shards every commit is collective. hvd_state_commit, hvd_state_save and the thread of
 * hvd_state_commit_begin place the copies, and agree that all ranks have done so. They fail on all ranks or
 * on none, except when a worker is lost: after HVD_PEER_LOST all ranks restore this commit, or all the one
 * before it. Host memory is needed for 2 x (1 + copies) times this rank's shards, and once more, pinned, for
 * those in device memory. hvd_state_sync takes the last commit, if there is one, instead of the live values.
 * A rank that has joined (hvd_join) can't commit: HVD_MISMATCH. HVD_UNSUPPORTED: no backend copies the
 * tensor's memory. HVD_INTERNAL: it has no host memory. */
HVD_API hvd_status hvd_state_add_shard(hvd_state *state, const char *key, const hvd_tensor *tensor,
                                       int64_t global_elements, int64_t offset, int32_t copies,
                                       hvd_reshard_fn reshard, void *userdata, hvd_destroy_fn destroy,
                                       hvd_error *error);

/* hvd_state_add_shard with parity instead of copies, for less memory. Workers are put into groups of `parity`
 * + 1; some groups are larger if the numbers do not divide, and there is one group if there are fewer
 * workers. Each worker keeps a block of the others' parity (exclusive or) beside its own shard. It has at
 * most 1 / `parity` of the longest shard of the group. One worker of each group may be lost at once without
 * loss of data: its block and its shard are rebuilt from the others'. Workers of one host are in different
 * groups where there are enough groups. So a host may be lost if it has no more workers than there are
 * groups.
 *
 * parity: 2 to 64, the same on all ranks. Host memory is needed for 2 x (1 + 1 / `parity`) times this
 * rank's shards; rebuilding a lost shard takes its size in addition. Everything else is as above. When a
 * key is removed, others with the same parity have none until the next commit. */
HVD_API hvd_status hvd_state_add_shard_with_parity(hvd_state *state, const char *key,
                                                   const hvd_tensor *tensor, int64_t global_elements,
                                                   int64_t offset, int32_t parity, hvd_reshard_fn reshard,
                                                   void *userdata, hvd_destroy_fn destroy, hvd_error *error);

/* Returns the range of `rank` in an even split over `size` ranks. The first global_elements % size ranks
 * have one element more. HVD_INVALID. Never blocks. */
HVD_API hvd_status hvd_shard_range(int64_t global_elements, int32_t rank, int32_t size, int64_t *ret_offset,
                                   int64_t *ret_elements, hvd_error *error);

/* Sets what to do if more workers were lost than there are copies. Without it hvd_run ends with
 * HVD_JOB_FAILED on every rank; the sentence names a key, the elements that are lost and who held them. If it
 * is set on all ranks, it is called on each with that sentence instead. It loads everything that is
 * registered, with shards in their new ranges, from the program's own checkpoint: the same step on all ranks.
 * Then training goes on as after a sync. Loading may take any time, as long as no rank is done later than
 * another by more than operation_timeout. Nonzero: HVD_CALLBACK_FAILED. NULL removes it. */
typedef int32_t (*hvd_lost_fn)(void *userdata, const char *sentence);
HVD_API hvd_status hvd_state_on_lost(hvd_state *state, hvd_lost_fn lost, void *userdata,
                                     hvd_destroy_fn destroy, hvd_error *error);

#ifdef __cplusplus
}
#endif
#endif
