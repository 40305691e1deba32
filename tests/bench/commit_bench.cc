// What commits cost against copying the same bytes with memcpy by all cores, in turns, in the same run: one
// that waits, what is left to see of a hidden one beside a computation that is longer than the copy, one of
// which nothing has changed, and a restore; and a restore into memory that nobody has touched against memcpy
// into such memory. Prints a row of a table and a JSON object for each. Arguments:
// [rounds, 21 by default] [MiB, 256].
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "copies.h"
#include "state/pieces.h"
#include "state/state.h"

using namespace hvd::bench;

namespace {

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
  const size_t cores = hvd::state::usable_cores();
  const auto copy_by_all = [&] {
    copy_by(cores, target.data, reinterpret_cast<uint8_t*>(source.data()), bytes);
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
    const double copy = seconds_of(copy_by_all);
    change();
    blocking.ratios.push_back(seconds_of([&] { must(state.save()); }) / copy);
    must(state.save());
    unchanged.ratios.push_back(seconds_of([&] { must(state.save()); }) / copy);
    restore.ratios.push_back(seconds_of([&] { must(state.restore()); }) / copy);
    target.drop();
    const double fresh = seconds_of(copy_by_all);
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
