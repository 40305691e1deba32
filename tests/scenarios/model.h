/* A small linear regression whose state after N steps is a function of how many ranks took part in each
 * step and of nothing else: gradients are rounded to multiples of 2^-16, so that their sum over ranks is
 * exact in any order, and the rest is a fixed sequence of IEEE operations. harness.py computes the same. */
#ifndef HVD_TESTS_SCENARIOS_MODEL_H
#define HVD_TESTS_SCENARIOS_MODEL_H

#include <stddef.h>
#include <stdint.h>

enum { MODEL_WEIGHTS = 16, MODEL_EMBEDDING = 8, MODEL_SAMPLES = 4, MODEL_MAX_STEPS = 100000 };

typedef struct model_counters {
  int64_t step;          /* steps done */
  int64_t samples;       /* samples seen by all ranks in all steps */
  int64_t contributions; /* sum of the sizes of all steps */
} model_counters;

typedef struct model {
  double weights[MODEL_WEIGHTS];
  double bias;
  double velocity[MODEL_WEIGHTS + 1];
  float embedding[MODEL_EMBEDDING];
  model_counters counters;
  uint16_t* history; /* size of each step: counters.step of them */
  int64_t history_length;
  uint8_t* pad; /* ballast that makes syncs take time */
  size_t pad_size;
} model;

void model_init(model* m, size_t pad_size);
void model_free(model* m);

/* This rank's part: weights' gradient and then the bias's; the embedding's. */
void model_gradients(const model* m, int rank, double* gradient, float* embedding);

/* One step with the sums over all ranks. */
void model_apply(model* m, const double* gradient, const float* embedding, int64_t samples, int size);

/* Over everything but the ballast. */
uint64_t model_checksum(const model* m);
uint64_t model_pad_checksum(const model* m);

#endif
