/* Commits of sharded state beside memcpy of the same bytes by all ranks at once, in one run:
 *   hvdrun -np 4 -H localhost:4 shards_bench_worker [MiB a rank] [copies] [rounds]
 * Instead of copies p3 is parity of three shards, and so on. Rank 0 prints medians with their range, and
 * what it holds for others. With `lose` as fourth argument the last rank then kills itself, and the
 * recovery is printed: sync, what was moved, and how long memcpy of each survivor's new range takes, by all
 * of them at once until the last is done: into memory that nobody has touched, as the new range's is, and
 * into memory that was touched before. With `keep` instead the program makes its old range's memory longer
 * (realloc), and only what it gains was not touched. */
#include <hvd/hvd.h>
#include <hvd/shards.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 64 };
static hvd_context* context;
static hvd_state* state;
static char* shard;
static int64_t mebibytes = 256, rounds = 9, count;
static int copies = 1, parity, loses, keeps;
static int64_t done;
static int64_t count_before; /* elements, before the last change of ranks */
static double untouched_ms, touched_ms;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int by_size(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static void print(const char* what, double* times, const double* reference) {
  if (hvd_rank(context) != 0) return;
  qsort(times, (size_t)rounds, sizeof *times, by_size);
  printf("%-8s %7.1f ms (%.1f .. %.1f)", what, times[rounds / 2], times[0], times[rounds - 1]);
  if (reference != NULL) printf("  %.2f x memcpy", times[rounds / 2] / reference[rounds / 2]);
  printf("\n");
}

static int32_t reshard(void* userdata, hvd_shard* range) {
  (void)userdata;
  if (keeps) {
    char* const longer = realloc(shard, (size_t)range->elements + 1);
    if (longer == NULL) return 1;
    shard = longer;
  } else {
    free(shard);
    shard = malloc((size_t)range->elements + 1);
  }
  range->data = shard;
  count_before = count;
  count = range->elements;
  return shard == NULL;
}

/* The new range once more: into memory that nobody has touched, or only as much of it as was there before. */
static hvd_status copy_range(const char* from, char* to, const char* name, double* ret_ms) {
  const size_t all = (size_t)count;
  size_t had = keeps && count_before < count ? (size_t)count_before : 0;
  hvd_status status = hvd_barrier(context, name, NULL);
  const double began = now();
  if (to != NULL) had = all;
  char* fresh = malloc(all - had + 1);
  if (fresh == NULL) return HVD_INTERNAL;
  if (had > 0) memcpy(to != NULL ? to : shard, from, had);
  memcpy(fresh, from + had, all - had);
  if (had < all && fresh[0] != from[had]) status = HVD_INTERNAL; /* so that each copy is made */
  if (status == HVD_OK) status = hvd_barrier(context, "copied again", NULL);
  *ret_ms = now() - began;
  free(fresh);
  return status;
}

static hvd_status copy_again(void) {
  char *from = malloc((size_t)count + 1), *to = malloc((size_t)count + 1);
  hvd_status status = from == NULL || to == NULL ? HVD_INTERNAL : HVD_OK;
  if (status == HVD_OK) {
    memset(from, 1, (size_t)count + 1), memset(to, 2, (size_t)count + 1);
    status = copy_range(from, NULL, "untouched", &untouched_ms);
  }
  if (status == HVD_OK) status = copy_range(from, to, "touched", &touched_ms);
  free(from);
  free(to);
  return status;
}

static hvd_status train(void* userdata) {
  double plain[MOST], commit[MOST], hidden[MOST];
  char* copy = malloc((size_t)count);
  hvd_status status = HVD_OK;
  (void)userdata;
  if (copy == NULL) return HVD_INTERNAL;
  memset(copy, 1, (size_t)count);
  for (int64_t i = -2; i < rounds && done == 0 && status == HVD_OK;
       ++i) { /* the first two touch the memory */
    const size_t at = i < 0 ? 0 : (size_t)i;
    memset(shard, (int)(i & 63) + 1, (size_t)count);
    status = hvd_barrier(context, "copy", NULL);
    double began = now();
    memcpy(copy, shard, (size_t)count);
    if (status == HVD_OK) status = hvd_barrier(context, "copied", NULL); /* by all of them */
    plain[at] = now() - began;
    began = now();
    if (status == HVD_OK) status = hvd_state_commit(state, NULL);
    commit[at] = now() - began;
    memset(shard, (int)(i & 63) + 2, (size_t)count);
    if (status == HVD_OK) status = hvd_barrier(context, "begin", NULL);
    began = now();
    if (status == HVD_OK) status = hvd_state_commit_begin(state, NULL);
    hidden[at] = now() - began;
    if (status == HVD_OK) status = hvd_state_commit_end(state, NULL);
  }
  free(copy);
  if (status == HVD_OK && done != 0 && hvd_generation(context) > 1) return copy_again();
  if (status != HVD_OK || done != 0) return status;
  hvd_state_info kept = {0};
  kept.struct_size = sizeof kept;
  status = hvd_state_get_info(state, &kept, NULL);
  if (hvd_rank(context) == 0) {
    printf("shard    %7.1f MiB, and %.1f MiB for others\n", (double)kept.shard_bytes / 1048576,
           (double)kept.copy_bytes / 1048576);
  }
  print("memcpy", plain, NULL);
  print("commit", commit, plain);
  print("begin", hidden, plain);
  done = 1;
  status = hvd_state_commit(state, NULL);
  if (status == HVD_OK && loses) {
    if (hvd_rank(context) == hvd_size(context) - 1) raise(SIGKILL);
    status = hvd_barrier(context, "loss", NULL);
    if (status == HVD_OK) status = hvd_barrier(context, "more", NULL);
  }
  return status;
}

int main(int argc, char** argv) {
  hvd_error error = HVD_ERROR_INIT;
  if (argc > 1) mebibytes = atoll(argv[1]);
  if (argc > 2 && argv[2][0] == 'p') parity = atoi(argv[2] + 1);
  if (argc > 2) copies = atoi(argv[2]);
  if (argc > 3) rounds = atoll(argv[3]) < MOST ? atoll(argv[3]) : MOST;
  loses = argc > 4;
  keeps = loses && strcmp(argv[4], "keep") == 0;
  hvd_status status = hvd_init(NULL, &context, &error);
  int64_t global = 0, offset = 0;
  if (status == HVD_OK) {
    global = mebibytes * 1024 * 1024 * hvd_size(context);
    status = hvd_shard_range(global, hvd_rank(context), hvd_size(context), &offset, &count, &error);
  }
  hvd_tensor tensor = HVD_TENSOR_INIT;
  if (status == HVD_OK) {
    tensor.data = shard = malloc((size_t)count + 1);
    tensor.dtype = HVD_DTYPE_UINT8, tensor.ndim = 1, tensor.shape[0] = count;
    memset(shard, 7, (size_t)count);
    status = hvd_state_create(context, &state, &error);
  }
  if (status == HVD_OK) status = hvd_state_add_value(state, "done", &done, sizeof done, &error);
  if (status == HVD_OK && parity > 0) {
    status = hvd_state_add_shard_with_parity(state, "shard", &tensor, global, offset, parity, reshard, NULL,
                                             NULL, &error);
  } else if (status == HVD_OK) {
    status = hvd_state_add_shard(state, "shard", &tensor, global, offset, copies > 0 ? copies : HVD_NO_COPIES,
                                 reshard, NULL, NULL, &error);
  }
  if (status == HVD_OK) status = hvd_run(context, state, train, NULL, &error);
  size_t recoveries = 0;
  hvd_get_recovery_count(context, &recoveries, NULL);
  if (status == HVD_OK && recoveries > 0 && hvd_rank(context) == 0) {
    hvd_recovery_info r = {0};
    r.struct_size = sizeof r;
    hvd_get_recovery(context, 0, &r, NULL);
    printf("recovery %.1f ms, of which sync %.1f ms; this rank sent and received %.0f MiB\n",
           (double)r.total_ns * 1e-6, (double)r.sync_ns * 1e-6, (double)r.sync_bytes / 1048576);
    const double sync_ms = (double)r.sync_ns * 1e-6;
    printf(
        "sync     %.2f x memcpy of the new ranges into memory as it was (%.1f ms), %.2f x into touched (%.1f "
        "ms)\n",
        sync_ms / untouched_ms, untouched_ms, sync_ms / touched_ms, touched_ms);
  }
  if (status == HVD_OK) status = hvd_shutdown(context, HVD_DEFAULT_TIMEOUT, &error);
  if (status != HVD_OK) fprintf(stderr, "%s: %s\n", hvd_status_name(status), error.message);
  hvd_state_destroy(state);
  hvd_destroy(context);
  free(shard);
  return status != HVD_OK;
}
