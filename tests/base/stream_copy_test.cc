// Copies past the caches: every alignment of both sides, nothing written beside the target, seen by others.
#include "base/stream_copy.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

namespace hvd {
namespace {

std::vector<uint8_t> noise(size_t size) {
  std::mt19937 random(7);
  std::vector<uint8_t> bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

TEST(StreamCopy, CopiesWhateverTheAlignmentsAndWritesNothingElse) {
  constexpr size_t kMost = 3 * 4096;
  const std::vector<uint8_t> source = noise(kMost + 64);
  std::vector<uint8_t> target(kMost + 192), expected(target.size());
  for (const size_t size : {size_t{0}, size_t{1}, size_t{15}, size_t{63}, size_t{64}, size_t{65}, size_t{127},
                            size_t{128}, size_t{1000}, size_t{4096}, kMost}) {
    for (size_t to = 0; to <= 64; to += to == 0 || to == 63 ? 1 : 31) {
      for (const size_t from : {0, 1, 8, 16, 33, 64}) {
        std::fill(target.begin(), target.end(), 0x5a);
        expected = target;
        std::memcpy(expected.data() + 64 + to, source.data() + from, size);
        stream_copy(target.data() + 64 + to, source.data() + from, size);
        ASSERT_EQ(target, expected) << size << " bytes from " << from << " to " << to;
      }
    }
  }
}

// Without its fence stale bytes are seen once in a million copies on the processor of 2026 that it was tried
// on: what this holds is that large copies arrive whole.
TEST(StreamCopy, WhatItWroteIsSeenByWhoeverIsToldAfterwards) {
  const std::vector<uint8_t> source = noise(size_t{1} << 20);
  std::vector<uint8_t> target(source.size());
  std::atomic<int> told{0};
  std::thread reader([&] {
    for (int round = 1; round <= 20; ++round) {
      while (told.load(std::memory_order_acquire) != round) std::this_thread::yield();
      EXPECT_EQ(target, source) << "round " << round;
      told.store(-round, std::memory_order_release);
    }
  });
  for (int round = 1; round <= 20; ++round) {
    std::fill(target.begin(), target.end(), 0);
    copy_to(target.data(), source.data(), source.size(), true);
    told.store(round, std::memory_order_release);
    while (told.load(std::memory_order_acquire) != -round) std::this_thread::yield();
  }
  reader.join();
}

}  // namespace
}  // namespace hvd
