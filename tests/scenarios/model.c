/* The model's arithmetic, the same as in reference.py. */
#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t x) { /* splitmix64 */
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/* Input `k` of `sample` of `rank` in `step`: a multiple of 1/128 in [-1, 1). */
static double input(int64_t step, int rank, int sample, int k) {
  uint64_t key = ((uint64_t)step << 32) | ((uint64_t)rank << 16) | ((uint64_t)sample << 8) | (uint64_t)k;
  return ((double)(mix(key) & 0xff) - 128.0) / 128.0;
}

void model_init(model *m, size_t pad_size) {
  memset(m, 0, sizeof *m);
  m->history = calloc(MODEL_MAX_STEPS, sizeof *m->history);
  m->pad_size = pad_size;
  m->pad = calloc(pad_size > 0 ? pad_size : 1, 1);
}

void model_free(model *m) {
  free(m->history);
  free(m->pad);
}

void model_gradients(const model *m, int rank, double *gradient, float *embedding) {
  int64_t step = m->counters.step;
  for (int k = 0; k <= MODEL_WEIGHTS; ++k) gradient[k] = 0;
  for (int sample = 0; sample < MODEL_SAMPLES; ++sample) {
    double x[MODEL_WEIGHTS];
    double target = 0.5;
    double prediction = m->bias;
    for (int k = 0; k < MODEL_WEIGHTS; ++k) {
      x[k] = input(step, rank, sample, k);
      target += x[k] * ((double)(k - 8) / 8.0);
      prediction += x[k] * m->weights[k];
    }
    double residual = prediction - target;
    for (int k = 0; k < MODEL_WEIGHTS; ++k) gradient[k] += residual * x[k];
    gradient[MODEL_WEIGHTS] += residual;
  }
  for (int k = 0; k <= MODEL_WEIGHTS; ++k) gradient[k] = floor(gradient[k] * 65536.0 + 0.5) / 65536.0;
  for (int k = 0; k < MODEL_EMBEDDING; ++k) {
    embedding[k] = (float)(floor(input(step, rank, 200, k) * 32.0) / 4.0);
  }
}

void model_apply(model *m, const double *gradient, const float *embedding, int64_t samples, int size) {
  for (int k = 0; k <= MODEL_WEIGHTS; ++k) {
    double mean = gradient[k] / (double)samples;
    m->velocity[k] = 0.5 * m->velocity[k] + mean;
    if (k < MODEL_WEIGHTS) m->weights[k] = m->weights[k] - 0.25 * m->velocity[k];
    if (k == MODEL_WEIGHTS) m->bias = m->bias - 0.25 * m->velocity[k];
  }
  for (int k = 0; k < MODEL_EMBEDDING; ++k) m->embedding[k] = m->embedding[k] * 0.5f + embedding[k];
  int64_t step = m->counters.step;
  m->history[step] = (uint16_t)size;
  m->history_length = step + 1;
  if (m->pad_size > 0) m->pad[(size_t)(step * 7919) % m->pad_size] = (uint8_t)(step * 31 + size);
  m->counters.step = step + 1;
  m->counters.samples += samples;
  m->counters.contributions += size;
}

static uint64_t fnv(uint64_t hash, const void *data, size_t size) { /* FNV-1a */
  const uint8_t *bytes = data;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3u;
  return hash;
}

static const uint64_t kOffsetBasis = 0xcbf29ce484222325u;

uint64_t model_checksum(const model *m) {
  uint64_t hash = kOffsetBasis;
  hash = fnv(hash, m->weights, sizeof m->weights);
  hash = fnv(hash, &m->bias, sizeof m->bias);
  hash = fnv(hash, m->velocity, sizeof m->velocity);
  hash = fnv(hash, m->embedding, sizeof m->embedding);
  hash = fnv(hash, &m->counters, sizeof m->counters);
  return fnv(hash, m->history, (size_t)m->history_length * sizeof *m->history);
}

uint64_t model_pad_checksum(const model *m) { return fnv(kOffsetBasis, m->pad, m->pad_size); }
