// XXH3 with 64 bits (Y. Collet's xxHash) of what crosses a data connection in the clear: TCP's own sum has 16
// bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvdkit {

uint64_t checksum(const void* data, size_t size);

/// The same of bytes that come piece by piece.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;
  void reset();
  void add(const void* data, size_t size);
  uint64_t value() const;

 private:
  void* state_;
};

}  // namespace hvdkit
