// A fuzzer is a source that defines these two functions: bytes as a stranger would send them, and bytes to
// begin with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace hvd::fuzz {

using Bytes = std::vector<uint8_t>;

/// Takes the bytes and returns, whatever they are. A promise that does not hold ends the process
/// (HVD_PROMISE).
void one_input(std::span<const uint8_t> data);

/// Well-formed inputs and those that once broke something: few, and made by the encoders where there are any.
std::vector<Bytes> seeds();

#define HVD_PROMISE(condition)                                                             \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      std::fprintf(stderr, "%s:%d: broken promise: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                        \
    }                                                                                      \
  } while (0)

inline Bytes bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

/// Reads decisions from an input; at its end all of them are 0.
class Decisions {
 public:
  explicit Decisions(std::span<const uint8_t> data) : data_(data) {}
  bool over() const { return data_.empty(); }
  uint8_t byte() {
    if (data_.empty()) return 0;
    const uint8_t b = data_.front();
    data_ = data_.subspan(1);
    return b;
  }
  /// 0 to most.
  uint32_t upto(uint32_t most) {
    uint32_t value = byte();
    if (most > 0xff) value |= static_cast<uint32_t>(byte()) << 8U;
    if (most > 0xffff) value |= static_cast<uint32_t>(byte()) << 16U;
    return most == UINT32_MAX ? value : value % (most + 1);
  }
  bool coin() { return (byte() & 1U) != 0; }
  /// Mostly small numbers, and those at which arithmetic breaks.
  uint64_t number() {
    const uint8_t kind = byte();
    if (kind < 200) return kind % 16;
    if (kind < 240) return uint64_t{1} << (kind % 64U);
    if (kind < 250) return ~uint64_t{0} - kind % 4U;
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8U | byte();
    return value;
  }
  std::span<const uint8_t> some(uint32_t most) {
    const size_t wanted = upto(most);
    const size_t size = std::min(wanted, data_.size());
    const auto result = data_.first(size);
    data_ = data_.subspan(size);
    return result;
  }
  std::string text(uint32_t most) {
    const auto bytes = some(most);
    return {bytes.begin(), bytes.end()};
  }
  std::span<const uint8_t> all() const { return data_; }

 private:
  std::span<const uint8_t> data_;
};

}  // namespace hvd::fuzz
