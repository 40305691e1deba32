// What commits cost against copying the same bytes with memcpy by all cores, in turns, in the same run: one
// that waits, what is left to see of a hidden one beside a computation that is longer than the copy, one of
// which nothing has changed, and a restore; and a restore into memory that nobody has touched against memcpy
// into such memory. Prints a row of a table and a JSON object for each. Arguments:
// [rounds, 21 by default] [MiB, 256].
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "state/pieces.h"
#include "state/state.h"

namespace {

double seconds_of(auto call) {
  const auto began = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The same bytes by all cores, each a part of its own.
void copy_by_all(uint8_t* to, const uint8_t* from, size_t bytes) {
  const size_t cores = hvd::state::usable_cores(), part = bytes / cores;
  std::vector<std::thread> threads;
  for (size_t i = 1; i < cores; ++i) {
    threads.emplace_back(
        [=] { std::memcpy(to + i * part, from + i * part, i + 1 == cores ? bytes - i * part : part); });
  }
  std::memcpy(to, from, cores == 1 ? bytes : part);
  for (std::thread& thread : threads) thread.join();
}

// As malloc's of that size: what follows the first page's border is the program's.
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
  // It has no pages any more.
  void drop() const { madvise(begin, size, MADV_DONTNEED); }
  size_t size;
  uint8_t *begin, *data;
};

// Computes on a little memory for so long, and says how much it got done.
double compute(double seconds) {
  static float values[2048];
  const auto began = std::chrono::steady_clock::now();
  double done = 0;
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() < seconds) {
    for (float& value : values) value = value * 0.999F + 0.5F;
    done += 1;
  }
  return done;
}

struct Series {
  const char* name;
  const char* reference = "memcpy";
  std::vector<double> ratios = {};  // of its time to the reference's
};

void print(const Series& series, size_t bytes) {
  const auto [low, high] = std::minmax_element(series.ratios.begin(), series.ratios.end());
  std::printf("| %s | %zu MiB | %.2f x %s (%.2f to %.2f) | %zu rounds |\n", series.name, bytes >> 20,
              median(series.ratios), series.reference, *low, *high, series.ratios.size());
  std::printf(
      "{\"%s_%zuMiB\": {\"x_memcpy_median\": %.4f, \"x_memcpy_min\": %.4f, \"x_memcpy_max\": %.4f}}\n",
      series.name, bytes >> 20, median(series.ratios), *low, *high);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = std::max(argc > 1 ? std::atoi(argv[1]) : 21, 1);
  const size_t bytes = static_cast<size_t>(std::max(argc > 2 ? std::atoi(argv[2]) : 256, 1)) << 20;
  // All copies start from the same pages; all memory is touched before the first measurement.
  const Mapping live(bytes), target(bytes);
  const std::span source(reinterpret_cast<uint64_t*>(live.data), bytes / sizeof(uint64_t));
  std::mt19937_64 random(1);
  for (uint64_t& word : source) word = random();
  std::memset(target.data, 1, bytes);
  hvd::state::State state(nullptr);
  state.add_tensor("tensor", {source.data(), HVD_DTYPE_UINT64, {static_cast<int64_t>(source.size())}});
  const auto change = [&] {  // every piece
    for (size_t i = 0; i < source.size(); i += 1024) source[i] += 1;
  };
  const auto must = [](const hvd::Status& status) {
    if (!status.ok()) std::exit(1);
  };
  must(state.save());
  must(state.begin());
  must(state.end());

  Series blocking{"commit"}, visible{"hidden_commit"}, unchanged{"unchanged_commit"}, restore{"restore"},
      untouched{"restore_untouched", "memcpy into untouched memory"};
  for (int round = 0; round < rounds; ++round) {
    const double copy =
        seconds_of([&] { copy_by_all(target.data, reinterpret_cast<uint8_t*>(source.data()), bytes); });
    change();
    blocking.ratios.push_back(seconds_of([&] { must(state.save()); }) / copy);
    must(state.save());
    unchanged.ratios.push_back(seconds_of([&] { must(state.save()); }) / copy);
    restore.ratios.push_back(seconds_of([&] { must(state.restore()); }) / copy);
    target.drop();
    const double fresh =
        seconds_of([&] { copy_by_all(target.data, reinterpret_cast<uint8_t*>(source.data()), bytes); });
    live.drop();
    untouched.ratios.push_back(seconds_of([&] { must(state.restore()); }) / fresh);
    // What the program sees: both calls, and how much less it gets done than in the same time by itself.
    change();
    const double span = 4 * copy, alone = compute(span);
    double done = 0;
    const double calls = seconds_of([&] { must(state.begin()); });
    done = compute(span);
    const double rest = seconds_of([&] { must(state.end()); });
    visible.ratios.push_back((calls + rest + std::max(0.0, span * (1 - done / alone))) / copy);
    if (target.data[0] == 1 && target.data[bytes - 1] == 1 && target.data[bytes / 2] == 1) return 1;
  }
  for (const Series* series : {&blocking, &visible, &unchanged, &restore, &untouched}) print(*series, bytes);
  return 0;
}
