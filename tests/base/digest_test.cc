// Digests: equal to XXH3's, also while copying.
#include "base/digest.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

namespace hvd {
namespace {

Digest reference(const void* data, size_t size) {
  const XXH128_hash_t hash = XXH3_128bits(data, size);
  return {hash.low64, hash.high64};
}

std::vector<uint8_t> noise(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

class DigestKernels : public ::testing::TestWithParam<DigestKernel> {
 protected:
  void SetUp() override {
    if (!available(GetParam())) GTEST_SKIP() << "this machine does not have the instruction set";
  }
};

// Around the places where XXH3 changes its way: 16, 128, 240, 1024 and multiples.
std::vector<size_t> sizes() {
  std::vector<size_t> all;
  for (size_t size = 0; size <= 300; ++size) all.push_back(size);
  for (size_t around : {512, 1024, 2048, 3072, 4096, 8192, 65536, 262144, 1 << 20}) {
    for (int off : {-65, -64, -63, -1, 0, 1, 63, 64, 65}) all.push_back(around + static_cast<size_t>(off));
  }
  return all;
}

TEST_P(DigestKernels, DigestIsXxh3OfTheBytes) {
  const std::vector<uint8_t> bytes = noise((1 << 20) + 200, 1);
  for (size_t size : sizes()) {
    for (size_t offset : {0, 1, 7, 33}) {
      ASSERT_EQ(digest(GetParam(), bytes.data() + offset, size), reference(bytes.data() + offset, size))
          << size << " bytes at offset " << offset;
    }
  }
}

TEST_P(DigestKernels, CopyIsExactAndStaysWithinItsBounds) {
  const std::vector<uint8_t> bytes = noise((1 << 20) + 200, 2);
  constexpr size_t kGuard = 128;
  std::unique_ptr<uint8_t, decltype(&std::free)> memory(
      static_cast<uint8_t*>(std::aligned_alloc(64, (1 << 20) + 1024)), &std::free);
  for (size_t size : sizes()) {
    for (size_t from : {0, 3}) {
      for (size_t to : {0, 5}) {
        uint8_t* target = memory.get() + kGuard + to;
        std::memset(memory.get(), 0xA5, size + 2 * kGuard + to);
        ASSERT_EQ(copy_and_digest(GetParam(), target, bytes.data() + from, size),
                  reference(bytes.data() + from, size))
            << size << " bytes from offset " << from << " to offset " << to;
        ASSERT_TRUE(size == 0 || std::memcmp(target, bytes.data() + from, size) == 0) << size;
        for (size_t i = 0; i < kGuard; ++i) {
          ASSERT_EQ(target[-1 - static_cast<ptrdiff_t>(i)], 0xA5) << "before the target, size " << size;
          ASSERT_EQ(target[size + i], 0xA5) << "behind the target, size " << size;
        }
      }
    }
  }
}

TEST_P(DigestKernels, ExtentsAreAsOne) {
  const std::vector<uint8_t> bytes = noise((1 << 20) + 200, 4);
  std::vector<uint8_t> target(bytes.size() + 64);
  auto* const aligned = target.data() + (64 - reinterpret_cast<uintptr_t>(target.data()) % 64);
  std::mt19937 random(5);
  for (size_t size : sizes()) {
    for (const size_t most : {size_t{3}, size_t{700}, size_t{5000}, size_t{300000}}) {
      if (size / most > 5000) continue;
      // Each a copy of its own, of exactly its size: what is read besides is seen by the sanitizers.
      std::vector<std::vector<uint8_t>> parts;
      std::vector<Extent> extents;
      for (size_t at = 0; at < size;) {
        const size_t some = std::min<size_t>(random() % (most + 1), size - at);  // some are empty
        parts.emplace_back(bytes.begin() + static_cast<ptrdiff_t>(at),
                           bytes.begin() + static_cast<ptrdiff_t>(at + some));
        at += some;
      }
      for (const auto& part : parts) extents.push_back({part.data(), part.size()});
      std::fill(target.begin(), target.end(), 0);
      ASSERT_EQ(copy_and_digest(GetParam(), aligned, extents), reference(bytes.data(), size))
          << size << " bytes in " << extents.size();
      ASSERT_TRUE(size == 0 || std::memcmp(aligned, bytes.data(), size) == 0) << size;
      ASSERT_EQ(copy_and_digest(GetParam(), nullptr, extents), reference(bytes.data(), size));
      ASSERT_EQ(aligned[size], 0) << "behind the target, size " << size;
    }
  }
  EXPECT_EQ(digest(std::span<const Extent>()), reference("", 0));
}

INSTANTIATE_TEST_SUITE_P(All, DigestKernels,
                         ::testing::Values(DigestKernel::kPortable, DigestKernel::kAvx2,
                                           DigestKernel::kAvx512),
                         [](const auto& test) {
                           return test.param == DigestKernel::kPortable ? "Portable"
                                  : test.param == DigestKernel::kAvx2   ? "Avx2"
                                                                        : "Avx512";
                         });

TEST(Digest, NothingHasADigestOfItsOwn) {
  EXPECT_EQ(digest(nullptr, 0), reference("", 0));
  EXPECT_EQ(copy_and_digest(nullptr, nullptr, 0), reference("", 0));
  EXPECT_NE(digest(nullptr, 0), Digest{});
}

// Known to all versions: XXH3-128 of the empty input, as xxHash publishes it.
TEST(Digest, IsTheSameOnEveryMachine) {
  EXPECT_EQ(digest(nullptr, 0).high, 0x99AA06D3014798D8U);
  EXPECT_EQ(digest(nullptr, 0).low, 0x6001C324468D497FU);
}

TEST(Digest, EveryBitCounts) {
  std::vector<uint8_t> bytes = noise(5000, 3);
  const Digest before = digest(bytes.data(), bytes.size());
  for (size_t bit = 0; bit < bytes.size() * 8; bit += 13) {
    bytes[bit / 8] ^= static_cast<uint8_t>(1U << (bit % 8));
    EXPECT_NE(digest(bytes.data(), bytes.size()), before) << "bit " << bit;
    bytes[bit / 8] ^= static_cast<uint8_t>(1U << (bit % 8));
  }
  EXPECT_EQ(digest(bytes.data(), bytes.size()), before);
}

}  // namespace
}  // namespace hvd
