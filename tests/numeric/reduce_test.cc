// Reductions: every dtype and operator, with and without AVX2.
#include "numeric/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "numeric/dtype.h"

namespace hvd {
namespace {

template <class T>
std::vector<std::vector<T>> random_inputs(size_t inputs, size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<T>> all(inputs, std::vector<T>(count));
  for (auto& values : all) {
    for (auto& value : values) {
      if constexpr (std::is_floating_point_v<T>) {
        value = std::uniform_real_distribution<T>(-3, 3)(random);
      } else {
        value = static_cast<T>(random());
      }
    }
  }
  return all;
}

template <class T>
std::vector<const void*> pointers(const std::vector<std::vector<T>>& inputs) {
  std::vector<const void*> all;
  for (const auto& values : inputs) all.push_back(values.data());
  return all;
}

template <class T>
void expect_left_to_right(hvd_dtype dtype) {
  for (const size_t inputs : {1, 2, 3, 8}) {
    for (const size_t count : {0, 1, 1023, 1024, 1025, 5000, 20000}) {
      const auto all = random_inputs<T>(inputs, count, 7);
      for (const hvd_reduction reduction : {HVD_REDUCTION_SUM, HVD_REDUCTION_MIN, HVD_REDUCTION_MAX,
                                            HVD_REDUCTION_PRODUCT, HVD_REDUCTION_AVERAGE}) {
        std::vector<T> expected = all[0];
        for (size_t i = 1; i < inputs; ++i)
          reduce(dtype, reduction, expected.data(), expected.data(), all[i].data(), count);
        if (reduction == HVD_REDUCTION_AVERAGE) divide(dtype, expected.data(), count, 3);
        for (const bool by_pages : {true, false}) {
          std::vector<T> out(count, T(1));
          reduce_many(dtype, reduction, out.data(), pointers(all).data(), inputs, count, 3, by_pages);
          ASSERT_TRUE(out == expected) << dtype_name(dtype) << " reduction " << reduction << " of " << inputs
                                       << " x " << count << (by_pages ? " by pages" : "");
        }
      }
    }
  }
}

TEST(Reduce, ManyInputsFromLeftToRight) {
  expect_left_to_right<uint8_t>(HVD_DTYPE_UINT8);
  expect_left_to_right<int8_t>(HVD_DTYPE_INT8);
  expect_left_to_right<uint16_t>(HVD_DTYPE_UINT16);
  expect_left_to_right<int16_t>(HVD_DTYPE_INT16);
  expect_left_to_right<uint32_t>(HVD_DTYPE_UINT32);
  expect_left_to_right<int32_t>(HVD_DTYPE_INT32);
  expect_left_to_right<uint64_t>(HVD_DTYPE_UINT64);
  expect_left_to_right<int64_t>(HVD_DTYPE_INT64);
  expect_left_to_right<float>(HVD_DTYPE_FLOAT32);
  expect_left_to_right<double>(HVD_DTYPE_FLOAT64);
}

TEST(Reduce, TheResultMayLieInAnyInput) {
  for (const size_t target : {0, 1, 2}) {
    auto all = random_inputs<float>(3, 3000, 3);
    std::vector<float> expected(3000);
    reduce_many(HVD_DTYPE_FLOAT32, HVD_REDUCTION_SUM, expected.data(), pointers(all).data(), 3, 3000, 1);
    reduce_many(HVD_DTYPE_FLOAT32, HVD_REDUCTION_SUM, all[target].data(), pointers(all).data(), 3, 3000, 1);
    EXPECT_EQ(all[target], expected) << "in input " << target;
  }
}

// 2048 + 1 + 1: float16 has no 2049, so that a sum rounded at each step would stay at 2048.
TEST(Reduce, NarrowFloatsAreRoundedOnce) {
  for (const hvd_dtype dtype : {HVD_DTYPE_FLOAT16, HVD_DTYPE_BFLOAT16}) {
    const float large = dtype == HVD_DTYPE_FLOAT16 ? 2048.0F : 256.0F;
    std::vector<std::vector<uint16_t>> inputs(3, std::vector<uint16_t>(2000));
    const float one = 1;
    for (size_t i = 0; i < 2000; ++i) {
      narrow(dtype, &inputs[0][i], &large, 1);
      narrow(dtype, &inputs[1][i], &one, 1);
      narrow(dtype, &inputs[2][i], &one, 1);
    }
    std::vector<uint16_t> out(2000);
    reduce_many(dtype, HVD_REDUCTION_SUM, out.data(), pointers(inputs).data(), 3, 2000, 1);
    for (const uint16_t bits : out) {
      float value = 0;
      widen(dtype, &value, &bits, 1);
      ASSERT_EQ(value, large + 2) << dtype_name(dtype);
    }
  }
}

TEST(Reduce, ScaleOfFloats) {
  std::vector<float> values = {1, -2, 0.5F};
  scale(HVD_DTYPE_FLOAT32, values.data(), 3, 0.5);
  EXPECT_EQ(values, (std::vector<float>{0.5F, -1, 0.25F}));
  for (const hvd_dtype dtype : {HVD_DTYPE_FLOAT16, HVD_DTYPE_BFLOAT16}) {
    std::vector<float> wide(700, 3), back(700);
    std::vector<uint16_t> half(700);
    narrow(dtype, half.data(), wide.data(), 700);
    scale(dtype, half.data(), 700, 2);
    widen(dtype, back.data(), half.data(), 700);
    EXPECT_EQ(back, std::vector<float>(700, 6));
  }
}

TEST(Reduce, ScaleOfIntegersTruncatesAndSaturates) {
  std::vector<int32_t> values = {7, -7, std::numeric_limits<int32_t>::max(),
                                 std::numeric_limits<int32_t>::min()};
  scale(HVD_DTYPE_INT32, values.data(), 4, 0.5);
  EXPECT_EQ(values, (std::vector<int32_t>{3, -3, 1073741823, -1073741824}));
  scale(HVD_DTYPE_INT32, values.data(), 4, 4);
  EXPECT_EQ(values[2], std::numeric_limits<int32_t>::max());
  EXPECT_EQ(values[3], std::numeric_limits<int32_t>::min());
  std::vector<int64_t> large = {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()};
  scale(HVD_DTYPE_INT64, large.data(), 2, 1);
  EXPECT_EQ(large[0], std::numeric_limits<int64_t>::max());
  EXPECT_EQ(large[1], std::numeric_limits<int64_t>::min());
  std::vector<uint8_t> bytes = {200, 3};
  scale(HVD_DTYPE_UINT8, bytes.data(), 2, 2);
  EXPECT_EQ(bytes, (std::vector<uint8_t>{255, 6}));
  scale(HVD_DTYPE_UINT8, bytes.data(), 2, -1);
  EXPECT_EQ(bytes, (std::vector<uint8_t>{0, 0}));
}

}  // namespace
}  // namespace hvd
