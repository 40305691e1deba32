// Shared by the benchmarks of commits, restores and copies: memory, plain copies to compare with, and rows.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace hvd::bench {

double seconds_of(auto call) {
  const auto began = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// The same bytes by so many threads, each a part of its own.
inline void copy_by(size_t threads, uint8_t* to, const uint8_t* from, size_t bytes) {
  const size_t part = bytes / threads;
  std::vector<std::thread> others;
  for (size_t i = 1; i < threads; ++i) {
    others.emplace_back(
        [=] { std::memcpy(to + i * part, from + i * part, i + 1 == threads ? bytes - i * part : part); });
  }
  std::memcpy(to, from, threads == 1 ? bytes : part);
  for (std::thread& thread : others) thread.join();
}

/// As malloc's of that size: what follows the first page's border is the program's.
struct Mapping {
  explicit Mapping(size_t bytes) : size(bytes + 4096) {
    void* const all = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) std::exit(1);
    begin = static_cast<uint8_t*>(all);
    data = begin + 16;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { munmap(begin, size); }
  /// It has no pages any more.
  void drop() const { madvise(begin, size, MADV_DONTNEED); }
  size_t size;
  uint8_t *begin, *data;
};

struct Series {
  const char* name;
  const char* reference = "memcpy";
  std::vector<double> ratios = {};  // of its time to the reference's
};

inline void print(const Series& series, size_t bytes) {
  const auto [low, high] = std::minmax_element(series.ratios.begin(), series.ratios.end());
  std::printf("| %s | %zu MiB | %.2f x %s (%.2f to %.2f) | %zu rounds |\n", series.name, bytes >> 20,
              median(series.ratios), series.reference, *low, *high, series.ratios.size());
  std::printf(
      "{\"%s_%zuMiB\": {\"x_memcpy_median\": %.4f, \"x_memcpy_min\": %.4f, \"x_memcpy_max\": %.4f}}\n",
      series.name, bytes >> 20, median(series.ratios), *low, *high);
}

}  // namespace hvd::bench
