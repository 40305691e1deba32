// A fuzzer without libFuzzer, for any compiler: the seeds, their beginnings, and mutations from a seed of
// chance.
//   fuzz_X [--mutations N] [--seed S]   what ctest runs
//   fuzz_X FILE...                      inputs that a fuzzer has found
#include <fstream>
#include <iterator>
#include <random>

#include "fuzz.h"

namespace {

using hvd::fuzz::Bytes;

void mutate(Bytes& input, const std::vector<Bytes>& seeds, std::mt19937& random) {
  const auto below = [&](size_t n) { return static_cast<size_t>(random()) % std::max<size_t>(n, 1); };
  for (size_t rounds = below(6) + 1; rounds > 0; --rounds) {
    const size_t at = below(input.size());
    const auto place = [&](size_t where) { return input.begin() + static_cast<ptrdiff_t>(where); };
    switch (input.empty() ? 2 : below(7)) {
      case 0: input[at] ^= static_cast<uint8_t>(1U << below(8)); break;
      case 1: input[at] = static_cast<uint8_t>(below(2) == 0 ? random() : 0xff * below(2)); break;
      case 2: input.insert(place(at), below(8) + 1, static_cast<uint8_t>(random())); break;
      case 3: input.erase(place(at), place(at + below(input.size() - at) % 9)); break;
      case 4: input.resize(at); break;
      case 5: {  // a number of four bytes
        const auto value = static_cast<uint32_t>(below(2) == 0 ? below(300) : random());
        std::memcpy(input.data() + at, &value, std::min<size_t>(4, input.size() - at));
        break;
      }
      default: {  // the end of another
        const Bytes& other = seeds[below(seeds.size())];
        const size_t from = below(other.size());
        input.resize(at);
        input.insert(input.end(), other.begin() + static_cast<ptrdiff_t>(from), other.end());
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  size_t mutations = 2000;
  uint32_t seed = 1;
  bool files = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--mutations" && i + 1 < argc) {
      mutations = std::strtoul(argv[++i], nullptr, 10);
    } else if (argument == "--seed" && i + 1 < argc) {
      seed = static_cast<uint32_t>(std::strtoul(argv[++i], nullptr, 10));
    } else {
      std::ifstream file(argument, std::ios::binary);
      if (!file) return std::fprintf(stderr, "can't read %s\n", argv[i]), 2;
      hvd::fuzz::one_input(Bytes(std::istreambuf_iterator<char>(file), {}));
      files = true;
    }
  }
  if (files) return 0;

  const std::vector<Bytes> seeds = hvd::fuzz::seeds();
  HVD_PROMISE(!seeds.empty());
  for (const Bytes& input : seeds) {
    const size_t step = input.size() / 200 + 1;
    for (size_t size = 0; size < input.size(); size += step)
      hvd::fuzz::one_input(std::span(input).first(size));
    hvd::fuzz::one_input(input);
  }
  std::mt19937 random(seed);
  for (size_t i = 0; i < mutations; ++i) {
    Bytes input = seeds[random() % seeds.size()];
    mutate(input, seeds, random);
    hvd::fuzz::one_input(input);
  }
  std::printf("%zu seeds, %zu mutations\n", seeds.size(), mutations);
  return 0;
}
