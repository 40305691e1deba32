// Copies past the caches: every alignment of both sides, nothing written beside the target, seen by others.
#include "base/stream_copy.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/two_ways.h"

namespace hvd {
namespace {

std::vector<uint8_t> noise(size_t size) {
  std::mt19937 random(7);
  std::vector<uint8_t> bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

constexpr std::pair<const char*, void (*)(void*, const void*, size_t)> kCopies[] = {
    {"fetch_copy", fetch_copy},
    {"stream_copy", stream_copy},
    {"copy_pages", copy_pages},
    {"copy_past, by pages", [](void* to, const void* from, size_t size) { copy_past(to, from, size, true); }},
    {"copy_past", [](void* to, const void* from, size_t size) { copy_past(to, from, size, false); }}};

// Sizes around a line, a page, and the pages that are copied together.
TEST(StreamCopy, CopiesWhateverTheAlignmentsAndWritesNothingElse) {
  constexpr size_t kTogether = 4 * 4096;
  constexpr size_t kMost = 2 * kTogether + 4096 + 65;
  const std::vector<uint8_t> source = noise(kMost + 64);
  std::vector<uint8_t> target(kMost + 192), expected(target.size());
  for (const size_t size : {size_t{0}, size_t{1}, size_t{15}, size_t{63}, size_t{64}, size_t{65}, size_t{127},
                            size_t{128}, size_t{1000}, size_t{4096}, kTogether - 1, kTogether, kTogether + 1,
                            kTogether + 64, 2 * kTogether, kMost}) {
    for (size_t to = 0; to <= 64; to += to == 0 || to == 63 ? 1 : 31) {
      for (const size_t from : {0, 1, 8, 16, 33, 64}) {
        for (const auto& [name, copy] : kCopies) {
          std::fill(target.begin(), target.end(), 0x5a);
          expected = target;
          std::memcpy(expected.data() + 64 + to, source.data() + from, size);
          copy(target.data() + 64 + to, source.data() + from, size);
          ASSERT_EQ(target, expected) << size << " bytes from " << from << " to " << to << " by " << name;
        }
      }
    }
  }
}

// A thread is told right after each of very many small copies and looks at one of the last lines, of which it
// has the older bytes in its cache. Without the fence it sees these within a second if both threads have a
// processor each: some hundred times in a million copies on the processor of 2026 that it was tried on. Where
// processors are busy there are fewer copies: the rounds end after a while.
TEST(StreamCopy, NobodyWhoIsToldSeesOlderBytes) {
  constexpr size_t kLine = 64, kMostLines = 96, kRoom = size_t{1} << 20, kAtOnce = 2000;
  constexpr auto kWhile = std::chrono::seconds(2);
  struct alignas(4096) Word {
    std::atomic<uint64_t> value{0};
    std::atomic<uint64_t> beside{0};  // in the same line: who writes it has the line
  };
  struct alignas(kLine) Line {
    uint64_t words[kLine / sizeof(uint64_t)];
  };
  static Word told, seen;
  std::atomic<const Line*> watched{nullptr};
  std::atomic<bool> over{false};
  uint64_t copies = 0, stale = 0;
  const std::vector<Line> sources[2] = {std::vector<Line>(kMostLines, Line{{0}}),
                                        std::vector<Line>(kMostLines, Line{{1}})};
  std::vector<Line> target(kRoom / kLine);
  std::thread reader([&] {
    uint64_t last = 0;
    for (int looks = 0; !over.load(std::memory_order_relaxed);) {
      const uint64_t number = told.value.load(std::memory_order_acquire);
      if (number == last) {
        if (++looks % 1024 == 0) std::this_thread::yield();
        continue;
      }
      const Line* const line = watched.load(std::memory_order_relaxed);
      stale += *const_cast<const volatile uint64_t*>(line->words) != number % 2;
      last = number;
      seen.value.store(number, std::memory_order_release);
    }
  });
  std::mt19937 random(5);
  const auto until = std::chrono::steady_clock::now() + kWhile;
  while (std::chrono::steady_clock::now() < until) {
    const size_t lines = 16 + random() % (kMostLines - 15), first = random() % (target.size() - lines);
    watched = &target[first + lines - 1 - random() % 8];
    for (size_t i = 0; i < kAtOnce; ++i) {
      const uint64_t number = ++copies;
      told.beside.store(number, std::memory_order_relaxed);
      copy_past(&target[first], sources[number % 2].data(), lines * kLine, number % 4 < 2);
      told.value.store(number, std::memory_order_release);
      for (int looks = 0; seen.value.load(std::memory_order_acquire) != number;) {
        if (++looks % 1024 == 0) std::this_thread::yield();
      }
    }
  }
  over = true;
  reader.join();
  EXPECT_EQ(stale, 0u) << "of " << copies << " copies";
}

// More large copies than the trial takes, by several threads at once.
TEST(StreamCopy, CopiesWhileTheWayIsChosenAndAfterwards) {
  const std::vector<uint8_t> source = noise(size_t{64} << 10);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      std::vector<uint8_t> target(source.size());
      for (size_t round = 0; round < 8 * WayTrial::kTurns; ++round) {
        std::fill(target.begin(), target.end(), 0);
        (round % 2 == 0 ? fetch_copy : stream_copy)(target.data(), source.data(), source.size());
        EXPECT_EQ(target, source) << "copy " << round;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(StreamCopy, LargeCopiesArriveWhole) {
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
