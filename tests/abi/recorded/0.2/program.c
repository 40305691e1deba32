/* A program that uses the API's core: built against recorded headers (tests/abi/recorded/<version>, of
 * which this file becomes a part), it must run on every later library of the same ABI. */
#include <hvd/driver.h>
#include <hvd/hvd.h>
#include <stdio.h>
#include <string.h>

static int failed(const char *what, const hvd_error *error) {
  fprintf(stderr, "%s: %s: %s\n", what, hvd_status_name(error->status), error->message);
  return 1;
}

static int32_t save(void *userdata, hvd_write_fn write, void *sink) {
  write(sink, userdata, 4);
  return 0;
}
static int32_t load(void *userdata, const void *data, size_t size) {
  if (size != 4) return 1;
  memcpy(userdata, data, size);
  return 0;
}

int main(void) {
  hvd_error e = HVD_ERROR_INIT;
  hvd_context *context = NULL;
  hvd_options *options = NULL;
  hvd_state *state = NULL;
  hvd_op *op = NULL;
  hvd_membership_info membership = {0};
  hvd_state_info info = {0};
  hvd_request request = HVD_REQUEST_INIT;
  hvd_tensor tensor = HVD_TENSOR_INIT;
  double values[2] = {1.5, -2};
  char object[4] = "abc";
  membership.struct_size = sizeof membership;
  info.struct_size = sizeof info;
  tensor.data = values;
  tensor.dtype = HVD_DTYPE_FLOAT64;
  tensor.ndim = 1;
  tensor.shape[0] = 2;
  if (hvd_options_create(&options, &e) != HVD_OK) return failed("options", &e);
  if (hvd_options_set_duration(options, "operation_timeout", 7 * HVD_SECOND, &e) != HVD_OK)
    return failed("set", &e);
  if (hvd_init(options, &context, &e) != HVD_OK) return failed("init", &e);
  hvd_options_destroy(options);
  if (hvd_get_membership(context, &membership, &e) != HVD_OK) return failed("membership", &e);
  if (membership.rank != 0 || membership.size != 1) return 1;
  request.collective = HVD_COLLECTIVE_ALLREDUCE;
  request.name = "sum";
  request.inputs = request.outputs = &tensor;
  request.prescale = 2;
  request.timeout_ns = 5 * HVD_SECOND;
  if (hvd_submit(context, &request, &op, &e) != HVD_OK) return failed("submit", &e);
  if (hvd_op_wait(op, HVD_DEFAULT_TIMEOUT, &e) != HVD_OK) return failed("wait", &e);
  hvd_op_destroy(op);
  if (values[0] != 3 || values[1] != -4) return 1;
  if (hvd_state_create(context, &state, &e) != HVD_OK) return failed("state", &e);
  if (hvd_state_add_tensor(state, "values", &tensor, &e) != HVD_OK) return failed("add tensor", &e);
  if (hvd_state_add_object(state, "object", save, load, object, NULL, &e) != HVD_OK)
    return failed("add object", &e);
  if (hvd_state_commit(state, &e) != HVD_OK) return failed("commit", &e);
  values[0] = 0;
  object[0] = 'x';
  if (hvd_state_restore(state, &e) != HVD_OK) return failed("restore", &e);
  if (values[0] != 3 || strcmp(object, "abc") != 0) return 1;
  if (hvd_state_get_info(state, &info, &e) != HVD_OK || info.commits != 1) return failed("state info", &e);
  /* What is wrong is told in the fields that this program knows. */
  tensor.dtype = 99;
  if (hvd_allreduce(context, "wrong", &tensor, &tensor, HVD_REDUCTION_SUM, &e) != HVD_INVALID) return 1;
  if (e.status != HVD_INVALID || strstr(e.message, "99") == NULL) return 1;
  hvd_state_destroy(state);
  if (hvd_shutdown(context, HVD_DEFAULT_TIMEOUT, &e) != HVD_OK) return failed("shutdown", &e);
  hvd_destroy(context);
  puts("still understood");
  return 0;
}
