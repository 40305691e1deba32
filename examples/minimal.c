/* Fits y = 2x + 1, each worker on its own points. Any worker may die or join at any time. */
#include <hvd/hvd.h>
#include <stdio.h>

typedef struct {
  hvd_context *ctx;
  hvd_state *state;
  float w[2];
  int64_t step;
} job;

static hvd_tensor floats(float *data, int64_t n) {
  hvd_tensor t = HVD_TENSOR_INIT;
  t.data = data, t.dtype = HVD_DTYPE_FLOAT32, t.ndim = 1, t.shape[0] = n;
  return t;
}

static hvd_status train(void *userdata) {
  job *j = userdata;
  hvd_status s;
  while (j->step < 2000) {
    float x = (float)((j->step * hvd_size(j->ctx) + hvd_rank(j->ctx)) % 17) / 17;
    float wrong = j->w[0] * x + j->w[1] - (2 * x + 1), gradient[2] = {wrong * x, wrong};
    hvd_tensor g = floats(gradient, 2);
    if ((s = hvd_allreduce(j->ctx, "gradient", &g, &g, HVD_REDUCTION_AVERAGE, NULL)) != HVD_OK) return s;
    for (int i = 0; i < 2; i++) j->w[i] -= 0.5f * gradient[i];
    if (++j->step % 10 == 0 && (s = hvd_state_commit(j->state, NULL)) != HVD_OK) return s;
  }
  return HVD_OK; /* a loss or a change of hosts was passed on above: hvd_run calls train again */
}

int main(void) {
  job j = {NULL, NULL, {0, 0}, 0};
  hvd_error e = HVD_ERROR_INIT;
  hvd_tensor w = floats(j.w, 2);
  hvd_status s = hvd_init(NULL, &j.ctx, &e);
  if (s == HVD_OK) s = hvd_state_create(j.ctx, &j.state, &e);
  if (s == HVD_OK) s = hvd_state_add_tensor(j.state, "w", &w, &e);
  if (s == HVD_OK) s = hvd_state_add_value(j.state, "step", &j.step, sizeof j.step, &e);
  if (s == HVD_OK) s = hvd_run(j.ctx, j.state, train, &j, &e);
  if (s == HVD_OK)
    printf("rank %d of %d: y = %.2fx + %.2f\n", hvd_rank(j.ctx), hvd_size(j.ctx), j.w[0], j.w[1]);
  if (s == HVD_OK) s = hvd_shutdown(j.ctx, HVD_DEFAULT_TIMEOUT, &e);
  if (s != HVD_OK) fprintf(stderr, "%s: %s\n", hvd_status_name(s), e.message);
  hvd_state_destroy(j.state);
  hvd_destroy(j.ctx);
  return s != HVD_OK;
}
