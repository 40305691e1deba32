// Reductions of arrays in memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hvd/hvd.h"

namespace hvdgloo {

size_t element_size(hvd_dtype dtype);  // 0 if unknown

/// out[i] = left[i] op right[i]. `out` may be `left` or `right`. HVD_AVERAGE sums: see divide. dtype is none
/// of float16 and bfloat16, which are widened first.
void reduce(hvd_dtype dtype, hvd_reduction reduction, void* out, const void* left, const void* right,
            size_t count);

/// data[i] /= divisor, integers towards zero.
void divide(hvd_dtype dtype, void* data, size_t count, int32_t divisor);

bool is_narrow_float(hvd_dtype dtype);  // float16, bfloat16
void widen(hvd_dtype dtype, float* out, const void* in, size_t count);
void narrow(hvd_dtype dtype, void* out, const float* in, size_t count);  // to nearest, ties to even

}  // namespace hvdgloo
