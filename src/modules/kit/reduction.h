// What the ways of an allreduce have in common.
#pragma once

#include "modules/kit/collectives.h"
#include "numeric/dtype.h"

namespace hvdkit {

struct Work {
  hvd_dtype dtype;
  hvd_reduction reduction;
  size_t element;
  size_t count;

  static Work of(hvd_dtype dtype, hvd_reduction reduction, size_t count) {
    return {dtype, reduction, hvd::dtype_size(dtype), count};
  }
};

/// Each rank reduces a part of the array and sends it to all.
void allreduce_direct(Party& party, const Work& work, const void* input, void* output);

}  // namespace hvdkit
