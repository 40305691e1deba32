/* A worker of a job of real processes: counts how often each sample is dealt, over all ranks. Workers 1
 * and 2 end themselves by SIGKILL on the way, others take their places; at the end each sample must have
 * been counted once an epoch, on every rank.
 *
 *   hvdrun -np 4 --min-np 2 -H localhost:4 -- sampler_worker */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "hvd/sampler.h"

enum { SAMPLES = 611, BATCH = 8, EPOCHS = 40, COMMIT_EVERY = 3 };

typedef struct {
  hvd_context *context;
  hvd_state *state;
  hvd_sampler *sampler;
  uint64_t worker;
  uint64_t round;
  int32_t counts[SAMPLES];
} job;

static hvd_tensor tensor_of(int32_t *data) {
  hvd_tensor tensor = HVD_TENSOR_INIT;
  tensor.data = data;
  tensor.dtype = HVD_DTYPE_INT32;
  tensor.ndim = 1;
  tensor.shape[0] = SAMPLES;
  return tensor;
}

static hvd_status train(void *userdata) {
  job *j = userdata;
  hvd_error error = HVD_ERROR_INIT;
  hvd_sampler_batch batch;
  uint64_t indices[BATCH];
  memset(&batch, 0, sizeof(batch));
  batch.struct_size = sizeof(batch);
  for (;;) {
    int32_t seen[SAMPLES] = {0};
    hvd_tensor tensor = tensor_of(seen);
    hvd_status status = hvd_sampler_next(j->sampler, NULL, indices, BATCH, &batch, &error);
    if (status != HVD_OK) {
      fprintf(stderr, "worker %d: next: %s\n", (int)j->worker, error.message);
      return status;
    }
    if (batch.total == 0) {
      if (batch.epoch + 1 == EPOCHS) return HVD_OK;
      if ((status = hvd_sampler_set_epoch(j->sampler, batch.epoch + 1, &error)) != HVD_OK) return status;
      continue;
    }
    for (uint64_t i = 0; i < batch.count; ++i) ++seen[indices[i]];
    /* In the middle of a round, two rounds after a commit. */
    if (j->worker == 2 && j->round == 11) kill(getpid(), SIGKILL);
    if (j->worker == 1 && j->round == 101) kill(getpid(), SIGKILL);
    if ((status = hvd_allreduce(j->context, "seen", &tensor, &tensor, HVD_REDUCTION_SUM, &error)) != HVD_OK)
      return status;
    for (int i = 0; i < SAMPLES; ++i) j->counts[i] += seen[i];
    if ((status = hvd_sampler_record(j->sampler, &batch, &error)) != HVD_OK) {
      fprintf(stderr, "worker %d: record: %s\n", (int)j->worker, error.message);
      return status;
    }
    if (++j->round % COMMIT_EVERY != 0) continue;
    if ((status = hvd_state_commit(j->state, &error)) != HVD_OK) return status;
  }
}

static int check(const job *j) {
  size_t recoveries = 0;
  int lost = 0;
  for (int i = 0; i < SAMPLES; ++i) {
    if (j->counts[i] == EPOCHS) continue;
    fprintf(stderr, "worker %d: sample %d was counted %d times: expected %d\n", (int)j->worker, i,
            j->counts[i], EPOCHS);
    return 1;
  }
  if (j->worker != 3) return 0;
  /* One that was there from the beginning to the end. */
  if (hvd_get_recovery_count(j->context, &recoveries, NULL) != HVD_OK) return 1;
  for (size_t i = 0; i < recoveries; ++i) {
    hvd_recovery_info recovery;
    memset(&recovery, 0, sizeof(recovery));
    recovery.struct_size = sizeof(recovery);
    if (hvd_get_recovery(j->context, i, &recovery, NULL) == HVD_OK && recovery.cause == HVD_PEER_LOST) ++lost;
  }
  printf("%d workers were lost on the way\n", lost);
  return lost == 2 ? 0 : 1;
}

int main(void) {
  static job j;
  hvd_error error = HVD_ERROR_INIT;
  hvd_membership_info place;
  hvd_sampler_options options;
  hvd_tensor counts = tensor_of(j.counts);
  hvd_status status = hvd_init(NULL, &j.context, &error);
  int failed = 0;
  memset(&place, 0, sizeof(place));
  place.struct_size = sizeof(place);
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.samples = SAMPLES;
  options.batch_size = BATCH;
  options.seed = 17;
  if (status == HVD_OK) status = hvd_get_membership(j.context, &place, &error);
  j.worker = place.worker;
  if (status == HVD_OK) status = hvd_state_create(j.context, &j.state, &error);
  if (status == HVD_OK) status = hvd_sampler_create(j.context, &options, &j.sampler, &error);
  if (status == HVD_OK) status = hvd_state_add_sampler(j.state, "sampler", j.sampler, &error);
  if (status == HVD_OK) status = hvd_state_add_tensor(j.state, "counts", &counts, &error);
  if (status == HVD_OK) status = hvd_state_add_value(j.state, "round", &j.round, sizeof(j.round), &error);
  if (status == HVD_OK) status = hvd_run(j.context, j.state, train, &j, &error);
  if (status == HVD_OK) failed = check(&j);
  if (status == HVD_OK && !failed) status = hvd_shutdown(j.context, HVD_DEFAULT_TIMEOUT, &error);
  if (status != HVD_OK)
    fprintf(stderr, "worker %d: %s: %s\n", (int)j.worker, hvd_status_name(status), error.message);
  hvd_sampler_destroy(j.sampler);
  hvd_state_destroy(j.state);
  hvd_destroy(j.context);
  return failed || status != HVD_OK;
}
