/* A tensor of the programs that give wrong arguments. */
#ifndef HVD_TESTS_FLOATS_H
#define HVD_TESTS_FLOATS_H

#include "hvd/hvd.h"

static hvd_tensor floats(float *data, int64_t count) {
  hvd_tensor tensor = HVD_TENSOR_INIT;
  tensor.data = data;
  tensor.dtype = HVD_DTYPE_FLOAT32;
  tensor.ndim = 1;
  tensor.shape[0] = count;
  return tensor;
}

#endif
