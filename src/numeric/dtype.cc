// Sizes and names of dtypes.
#include "numeric/dtype.h"

namespace hvd {

namespace {
struct Entry {
  size_t size;
  const char* name;
};
constexpr Entry kEntries[] = {
    {0, "unknown dtype"},
    {1, "uint8"},
    {1, "int8"},
    {2, "uint16"},
    {2, "int16"},
    {4, "uint32"},
    {4, "int32"},
    {8, "uint64"},
    {8, "int64"},
    {2, "float16"},
    {2, "bfloat16"},
    {4, "float32"},
    {8, "float64"},
    {1, "bool"},
    {1, "float8_e4m3fn"},
    {1, "float8_e5m2"},
    {1, "float8_e4m3fnuz"},
    {1, "float8_e5m2fnuz"},
    {8, "complex64"},
    {16, "complex128"},
};
const Entry& entry(hvd_dtype dtype) {
  return kEntries[dtype >= HVD_DTYPE_UINT8 && dtype <= kLastDtype ? dtype : 0];
}
}  // namespace

size_t dtype_size(hvd_dtype dtype) { return entry(dtype).size; }
const char* dtype_name(hvd_dtype dtype) { return entry(dtype).name; }

}  // namespace hvd
