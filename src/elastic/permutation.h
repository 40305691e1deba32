// A shuffled order that needs no memory: element i of a permutation of 0 .. n-1 that follows from a seed and
// an epoch, computed when it is asked for. The same on every platform and in every version; docs/sampler.md
// defines it, and the tests hold its values.
//
// A Feistel network over the smallest power of two that holds n permutes that range; a value beyond n is
// permuted again until it is not (cycle walking: Black and Rogaway, Ciphers with Arbitrary Finite Domains,
// CT-RSA 2002). At most half of the range lies beyond n, so that two turns are needed on average at worst.
#pragma once

#include <array>
#include <cstdint>

namespace hvd::elastic {

class Permutation {
 public:
  static constexpr uint64_t kMaxSize = uint64_t{1} << 62;

  /// 1 <= n <= kMaxSize.
  Permutation(uint64_t n, uint64_t seed, uint64_t epoch);
  /// i < n. Some 40 ns.
  uint64_t operator[](uint64_t i) const;

 private:
  // A small range has too few bits for twelve rounds to mix: with 32, all orders of 8 are equally frequent.
  static constexpr unsigned kRounds = 12, kRoundsOfSmall = 32, kSmallBits = 8;

  uint64_t n_;
  unsigned low_bits_, rounds_;
  uint64_t low_mask_, high_mask_;
  std::array<uint64_t, kRoundsOfSmall> keys_{};
};

}  // namespace hvd::elastic
