// What a commit of 256 MiB costs against copying the same bytes with memcpy: in turns, in one thread, in the
// same run. Prints a row of a table and one JSON object. Arguments: [rounds, 21 by default] [MiB, 256].
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

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

}  // namespace

int main(int argc, char** argv) {
  const int rounds = std::max(argc > 1 ? std::atoi(argv[1]) : 21, 1);
  const size_t bytes = static_cast<size_t>(std::max(argc > 2 ? std::atoi(argv[2]) : 256, 1)) << 20;
  // Both copies start from the same pages; all memory is touched before the first measurement.
  std::vector<uint64_t> source(bytes / sizeof(uint64_t));
  std::mt19937_64 random(1);
  for (uint64_t& word : source) word = random();
  std::vector<uint8_t> target(bytes, 1);

  hvd::state::State state(nullptr);
  state.add_tensor("tensor", {source.data(), HVD_DTYPE_UINT64, {static_cast<int64_t>(source.size())}});
  if (!state.save().ok()) return 1;

  std::vector<double> copies, commits, ratios;
  for (int round = 0; round < rounds; ++round) {
    source[static_cast<size_t>(round)] ^= 1;
    bool saved = false;
    const double copy = seconds_of([&] { std::memcpy(target.data(), source.data(), bytes); });
    const double commit = seconds_of([&] { saved = state.save().ok(); });
    if (!saved || target[0] != reinterpret_cast<uint8_t*>(source.data())[0]) return 1;
    copies.push_back(static_cast<double>(bytes) / copy / 1e9);
    commits.push_back(static_cast<double>(bytes) / commit / 1e9);
    ratios.push_back(copy / commit);
  }
  const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
  std::printf(
      "| commit | %zu MiB | memcpy %.2f GB/s | commit with digest %.2f GB/s | ratio %.2f (%.2f to %.2f) | %d rounds |\n",
      bytes >> 20, median(copies), median(commits), median(ratios), *low, *high, rounds);
  std::printf(
      "{\"commit_%zuMiB\": {\"memcpy_GBps\": %.3f, \"commit_GBps\": %.3f, \"ratio_median\": %.3f, "
      "\"ratio_min\": %.3f, \"ratio_max\": %.3f}}\n",
      bytes >> 20, median(copies), median(commits), median(ratios), *low, *high);
  return 0;
}
