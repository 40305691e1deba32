// A Feistel network with cycle walking; its keys follow from seed and epoch.
#include "elastic/permutation.h"

#include <bit>

namespace hvd::elastic {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15U;

// The output function of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
// 2014).
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

}  // namespace

Permutation::Permutation(uint64_t n, uint64_t seed, uint64_t epoch) : n_(n) {
  const auto bits = static_cast<unsigned>(std::bit_width(n - 1));
  low_bits_ = bits / 2;
  rounds_ = bits <= kSmallBits ? kRoundsOfSmall : kRounds;
  low_mask_ = (uint64_t{1} << low_bits_) - 1;
  high_mask_ = (uint64_t{1} << (bits - low_bits_)) - 1;
  // SplitMix64, begun where seed and epoch say.
  uint64_t state = mix(mix(seed + kGolden) + epoch + kGolden);
  for (unsigned i = 0; i < rounds_; ++i) keys_[i] = mix(state += kGolden);
}

uint64_t Permutation::operator[](uint64_t i) const {
  do {
    uint64_t low = i & low_mask_, high = i >> low_bits_;
    for (unsigned round = 0; round < rounds_; round += 2) {
      low ^= (mix(high ^ keys_[round]) >> 32U) & low_mask_;
      high ^= (mix(low ^ keys_[round + 1]) >> 32U) & high_mask_;
    }
    i = high << low_bits_ | low;
  } while (i >= n_);
  return i;
}

}  // namespace hvd::elastic
