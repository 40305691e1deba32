// The library's copies of large data against memcpy, in turns: by one thread, in memory that processes share,
// in blocks as the collectives copy them. Prints a row of a table and a JSON object for each.
// Arguments: [rounds, 21 by default] [MiB, 64].
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/stream_copy.h"
#include "copies.h"

using namespace hvd::bench;

namespace {

constexpr size_t kBlock = size_t{256} << 10;
using Copy = void (*)(void*, const void*, size_t);

void plain(void* to, const void* from, size_t size) { std::memcpy(to, from, size); }

void past_by_pages(void* to, const void* from, size_t size) { hvd::copy_past(to, from, size, true); }
void past(void* to, const void* from, size_t size) { hvd::copy_past(to, from, size, false); }

uint8_t* shared(size_t bytes) {
  void* const all = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) std::exit(1);
  return static_cast<uint8_t*>(all);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = std::max(argc > 1 ? std::atoi(argv[1]) : 21, 1);
  const size_t bytes = static_cast<size_t>(std::max(argc > 2 ? std::atoi(argv[2]) : 64, 1)) << 20;
  uint8_t* const source = shared(bytes);
  uint8_t* const target = shared(bytes);
  std::memset(source, 1, bytes);
  std::memset(target, 2, bytes);
  const auto seconds_by = [&](Copy copy) {
    return seconds_of([&] {
      for (size_t at = 0; at < bytes; at += kBlock)
        copy(target + at, source + at, std::min(kBlock, bytes - at));
    });
  };
  constexpr size_t kKinds = 4;
  constexpr Copy kCopies[kKinds] = {plain, past_by_pages, past, hvd::copy_pages};
  std::vector<double> took[kKinds];
  for (int round = 0; round < rounds; ++round) {
    for (size_t turn = 0; turn < kKinds; ++turn) {
      const size_t kind = (static_cast<size_t>(round) + turn) % kKinds;
      took[kind].push_back(seconds_by(kCopies[kind]));
    }
  }
  if (std::memcmp(target, source, bytes) != 0) return 1;
  Series series[] = {{"copy_past_the_caches"}, {"copy_past_the_caches_in_order"}, {"copy_of_several_pages"}};
  for (size_t round = 0; round < took[0].size(); ++round) {
    for (size_t kind = 1; kind < kKinds; ++kind)
      series[kind - 1].ratios.push_back(took[kind][round] / took[0][round]);
  }
  std::printf(
      "%zu MiB by one thread: memcpy %.1f ms, past the caches several pages at a time %.1f, page after "
      "page %.1f, several pages %.1f (medians)\n",
      bytes >> 20, median(took[0]) * 1e3, median(took[1]) * 1e3, median(took[2]) * 1e3,
      median(took[3]) * 1e3);
  for (const Series& one : series) print(one, bytes);
  return 0;
}
