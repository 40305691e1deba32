// Dtypes: sizes and names.
#include "numeric/dtype.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace hvd {
namespace {

TEST(Dtype, EachHasItsSizeAndAName) {
  const struct {
    hvd_dtype dtype;
    size_t size;
    const char* name;
  } expected[] = {
      {HVD_DTYPE_UINT8, 1, "uint8"},
      {HVD_DTYPE_INT8, 1, "int8"},
      {HVD_DTYPE_UINT16, 2, "uint16"},
      {HVD_DTYPE_INT16, 2, "int16"},
      {HVD_DTYPE_UINT32, 4, "uint32"},
      {HVD_DTYPE_INT32, 4, "int32"},
      {HVD_DTYPE_UINT64, 8, "uint64"},
      {HVD_DTYPE_INT64, 8, "int64"},
      {HVD_DTYPE_FLOAT16, 2, "float16"},
      {HVD_DTYPE_BFLOAT16, 2, "bfloat16"},
      {HVD_DTYPE_FLOAT32, 4, "float32"},
      {HVD_DTYPE_FLOAT64, 8, "float64"},
      {HVD_DTYPE_BOOL, 1, "bool"},
      {HVD_DTYPE_FLOAT8_E4M3FN, 1, "float8_e4m3fn"},
      {HVD_DTYPE_FLOAT8_E5M2, 1, "float8_e5m2"},
      {HVD_DTYPE_FLOAT8_E4M3FNUZ, 1, "float8_e4m3fnuz"},
      {HVD_DTYPE_FLOAT8_E5M2FNUZ, 1, "float8_e5m2fnuz"},
      {HVD_DTYPE_COMPLEX64, 8, "complex64"},
      {HVD_DTYPE_COMPLEX128, 16, "complex128"},
  };
  std::set<uint64_t> bits;
  for (const auto& e : expected) {
    EXPECT_EQ(dtype_size(e.dtype), e.size) << e.name;
    EXPECT_STREQ(dtype_name(e.dtype), e.name);
    EXPECT_TRUE(bits.insert(dtype_bit(e.dtype)).second) << e.name;
  }
}

TEST(Dtype, OthersAreUnknown) {
  for (hvd_dtype dtype : {0, -1, HVD_DTYPE_COMPLEX128 + 1, 1 << 30}) {
    EXPECT_EQ(dtype_size(dtype), 0U) << dtype;
    EXPECT_STREQ(dtype_name(dtype), "unknown dtype") << dtype;
  }
}

}  // namespace
}  // namespace hvd
