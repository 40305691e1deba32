// The order of an epoch: a permutation, the same for ever, and as good as a shuffled one.
#include "elastic/permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

namespace hvd::elastic {
namespace {

std::vector<uint64_t> order(uint64_t n, uint64_t seed, uint64_t epoch) {
  const Permutation permutation(n, seed, epoch);
  std::vector<uint64_t> all;
  for (uint64_t i = 0; i < n; ++i) all.push_back(permutation[i]);
  return all;
}

TEST(Permutation, HasEveryNumberOnce) {
  std::vector<uint64_t> sizes = {1000, 1023, 1024, 1025, 4096, 60000, 65536, 65537, 1000003};
  for (uint64_t n = 1; n <= 300; ++n) sizes.push_back(n);
  for (const uint64_t n : sizes) {
    std::vector<uint64_t> all = order(n, n * 31, n % 5);
    std::sort(all.begin(), all.end());
    for (uint64_t i = 0; i < n; ++i) ASSERT_EQ(all[i], i) << "of " << n;
  }
}

// Saved progress is of use only as long as these stay (docs/sampler.md).
TEST(Permutation, NeverChanges) {
  using Order = std::vector<uint64_t>;
  EXPECT_EQ(order(10, 0, 0), (Order{8, 2, 5, 4, 1, 9, 6, 7, 0, 3}));
  EXPECT_EQ(order(10, 0, 1), (Order{5, 1, 3, 9, 6, 2, 7, 0, 4, 8}));
  EXPECT_EQ(order(10, 1, 0), (Order{6, 4, 1, 5, 7, 8, 9, 0, 3, 2}));
  const Permutation large(60000, 42, 7), huge(uint64_t{1} << 62U, ~uint64_t{0}, ~uint64_t{0});
  EXPECT_EQ((Order{large[0], large[1], large[2], large[59999]}), (Order{33794, 51562, 5514, 40523}));
  EXPECT_EQ((Order{huge[0], huge[1], huge[(uint64_t{1} << 62U) - 1]}),
            (Order{2795830931452264979U, 483147033341887808U, 2170764582240788204U}));
}

TEST(Permutation, ABillionSamplesTakeNoMemory) {
  const Permutation permutation(1000000000, 5, 0);
  for (uint64_t i = 0; i < 1000; ++i) ASSERT_LT(permutation[i * 999999], 1000000000U);
}

/// How far counts that should be `expected` on average are from chance: a sum of `freedom` squares, as the
/// number of standard deviations from its mean. Chance stays within a few; the seeds are fixed.
double deviation(const std::vector<int>& counts, double expected, double freedom) {
  double sum = 0;
  for (const int count : counts) sum += (count - expected) * (count - expected) / expected;
  return (sum - freedom) / std::sqrt(2 * freedom);
}

TEST(Permutation, AllOrdersOfAFewAreEquallyFrequent) {
  for (uint64_t n = 2; n <= 6; ++n) {
    std::vector<uint64_t> one(n);
    for (uint64_t i = 0; i < n; ++i) one[i] = i;
    std::map<std::vector<uint64_t>, size_t> number;
    do number.emplace(one, number.size());
    while (std::next_permutation(one.begin(), one.end()));
    std::vector<int> counts(number.size());
    const uint64_t trials = 100000;
    for (uint64_t trial = 0; trial < trials; ++trial) ++counts[number.at(order(n, trial / 10, trial % 10))];
    const auto orders = static_cast<double>(counts.size());
    EXPECT_LT(deviation(counts, static_cast<double>(trials) / orders, orders - 1), 4) << n;
  }
}

// Over seeds and over epochs, each sample is as often at each position, and after each other sample.
TEST(Permutation, PositionsAndNeighboursAreUniform) {
  for (const uint64_t n : {7U, 16U, 60U, 257U}) {
    for (const bool by_epoch : {false, true}) {
      std::vector<int> at(n * n), after(n * n);
      const uint64_t trials = n > 100 ? 4000 : 20000;
      for (uint64_t trial = 0; trial < trials; ++trial) {
        const std::vector<uint64_t> all = by_epoch ? order(n, 3, trial) : order(n, trial, 3);
        for (uint64_t i = 0; i < n; ++i) {
          ++at[i * n + all[i]];
          if (i > 0) ++after[all[i - 1] * n + all[i]];
        }
      }
      const auto size = static_cast<double>(n), count = static_cast<double>(trials);
      EXPECT_LT(deviation(at, count / size, (size - 1) * (size - 1)), 4) << n;
      std::vector<int> pairs;
      for (uint64_t i = 0; i < n * n; ++i) {
        if (i / n != i % n) pairs.push_back(after[i]);
      }
      EXPECT_LT(deviation(pairs, count / size, size * (size - 1)), 4) << n;
    }
  }
}

}  // namespace
}  // namespace hvd::elastic
