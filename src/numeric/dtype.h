// Dtypes: sizes, names, and which of them are floating-point.
#pragma once

#include "hvd/hvd.h"

namespace hvd {
inline constexpr hvd_dtype kLastDtype = HVD_DTYPE_COMPLEX128;
size_t dtype_size(hvd_dtype dtype);       // 0 if unknown
const char* dtype_name(hvd_dtype dtype);  // "unknown dtype" if unknown
inline constexpr uint64_t dtype_bit(hvd_dtype dtype) { return uint64_t{1} << static_cast<unsigned>(dtype); }
}  // namespace hvd
