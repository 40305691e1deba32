// madvise, in chunks that are timed.
#include "state/pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <ctime>

#include "base/clock.h"
#include "state/pieces.h"

namespace hvd::state {
namespace {

#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;  // Linux 5.14
#endif
constexpr size_t kHugePage = 2 << 20;
constexpr size_t kChunk = 8 << 20;
// Huge pages at hand come at 1 GB/s and more, small ones at half of that.
constexpr Duration kSlow = std::chrono::milliseconds(24);
constexpr int kStrikes = 2;  // a thread may have been put aside once
// By one huge page, of a core's time: compaction that takes its time is 2 to 15 ms each, which adds up to
// seconds. One that takes so many times as long counts as so many.
constexpr Duration kSlowPage = std::chrono::microseconds(2500);
constexpr int kPageStrikes = 4;

/// Of this thread: others may have had its core meanwhile.
Duration core_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

void populate(uintptr_t first, uintptr_t last, int before) {
  auto* const start = reinterpret_cast<void*>(first);  // NOLINT: whole pages
  if (before != 0) madvise(start, last - first, before);
  madvise(start, last - first, MADV_POPULATE_WRITE);
}

/// Whole huge pages within [first, last) as such, unless the kernel was slow with some before; the rest as
/// small ones.
void populate_large(uintptr_t first, uintptr_t last) {
  static std::atomic<int> slow{0};  // of this process
  const uintptr_t begin = (first + kHugePage - 1) / kHugePage * kHugePage, end = last / kHugePage * kHugePage;
  if (first < begin) populate(first, begin, 0);
  uintptr_t at = begin;
  for (; at < end && slow.load(std::memory_order_relaxed) < kPageStrikes; at += kHugePage) {
    const Duration began = core_time();
    populate(at, at + kHugePage, MADV_HUGEPAGE);
    slow += static_cast<int>((core_time() - began) / kSlowPage);
  }
  if (at < last) populate(at, last, 0);
}

}  // namespace

void touch(void* data, size_t size) {
  constexpr uintptr_t kPage = 4096;
  constexpr size_t kMost = 4096;  // pages looked at
  const uintptr_t first = (reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage * kPage;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(data) + size) / kPage * kPage;
  if (last <= first) return;
  // Asking for pages that are there costs a fifth of a copy; looking for them costs next to nothing.
  std::array<unsigned char, kMost> there{};
  const size_t pages = std::min((last - first) / kPage, kMost);
  auto* const start = reinterpret_cast<void*>(first);  // NOLINT: whole pages
  if (mincore(start, pages * kPage, there.data()) != 0) return;
  const auto absent = std::count_if(there.begin(), there.begin() + static_cast<ptrdiff_t>(pages),
                                    [](unsigned char page) { return (page & 1U) == 0; });
  // An older kernel refuses; then the pages come one by one, at their first use.
  if (static_cast<size_t>(absent) * 2 <= pages) return;
  if (last - first < 2 * kHugePage) {
    madvise(start, last - first, MADV_POPULATE_WRITE);
  } else {
    populate_large(first, last);
  }
}

void get_pages(const std::vector<std::span<uint8_t>>& fresh, bool parallel) {
  std::vector<std::span<uint8_t>> chunks;
  uint64_t bytes = 0;
  for (const std::span<uint8_t> range : fresh) {
    if (range.size() < 2 * kHugePage) continue;  // not worth a call
    bytes += range.size();
    for (size_t at = 0; at < range.size(); at += kChunk) {
      chunks.push_back(range.subspan(at, std::min(kChunk, range.size() - at)));
    }
  }
  std::atomic<int> slow{0};
  in_parallel(chunks.size(), parallel ? bytes : 0, [&](size_t i) {
    const std::span<uint8_t> chunk = chunks[i];
    const bool huge = slow.load(std::memory_order_relaxed) < kStrikes && chunk.size() >= kHugePage;
    if (huge) madvise(chunk.data(), chunk.size() / kHugePage * kHugePage, MADV_HUGEPAGE);
    const Time began = now();
    touch(chunk.data(), chunk.size());
    if (huge && now() - began > kSlow) ++slow;
  });
}

bool get_file_pages(std::span<uint8_t> data, int descriptor, size_t offset) {
  std::atomic<bool> all{true};
  in_parallel((data.size() + kChunk - 1) / kChunk, data.size(), [&](size_t i) {
    const std::span<uint8_t> chunk = data.subspan(i * kChunk, std::min(kChunk, data.size() - i * kChunk));
    if (madvise(chunk.data(), chunk.size(), MADV_POPULATE_WRITE) == 0) return;
    if (errno != EINVAL ||  // of an older kernel
        fallocate(descriptor, 0, static_cast<off_t>(offset + i * kChunk), static_cast<off_t>(chunk.size())) !=
            0) {
      all = false;
    }
  });
  return all;
}

uint64_t memory_of_machine() {
  static const uint64_t bytes =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace hvd::state
