// Reductions of arrays in memory. C++17: backend modules compile this too.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hvd/hvd.h"

namespace hvd {

/// out[i] = left[i] op right[i]. `out` may be `left` or `right`. HVD_REDUCTION_AVERAGE sums: see divide.
/// dtype is none of float16 and bfloat16, which are widened first.
void reduce(hvd_dtype dtype, hvd_reduction reduction, void* out, const void* left, const void* right,
            size_t count);

/// out[i] = inputs[0][i] op inputs[1][i] op ..., from left to right for every i: the same bits whoever
/// computes it and however the array is cut. `out` may be one of the inputs. float16 and bfloat16
/// accumulate in float32 and are rounded once. HVD_REDUCTION_AVERAGE: the sum divided by `divisor`.
/// by_pages: several pages of large inputs at a time, or one after the other. The result is the same.
void reduce_many(hvd_dtype dtype, hvd_reduction reduction, void* out, const void* const* inputs,
                 size_t input_count, size_t count, int32_t divisor, bool by_pages = true);

/// data[i] /= divisor, integers towards zero.
void divide(hvd_dtype dtype, void* data, size_t count, int32_t divisor);

/// data[i] *= factor, in float32 for the narrow floats and in float64 for integers, which round towards
/// zero and saturate.
void scale(hvd_dtype dtype, void* data, size_t count, double factor);

bool is_narrow_float(hvd_dtype dtype);  // float16, bfloat16
void widen(hvd_dtype dtype, float* out, const void* in, size_t count);
void narrow(hvd_dtype dtype, void* out, const float* in, size_t count);  // to nearest, ties to even

}  // namespace hvd
