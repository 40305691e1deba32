// 128-bit digest of bytes (XXH3-128): tells whether two copies of a variable are equal.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

namespace hvd {

struct Digest {
  uint64_t low = 0;
  uint64_t high = 0;
  auto operator<=>(const Digest&) const = default;
};

Digest digest(const void* data, size_t size);

/// Copies size bytes from source to target (disjoint) and gives the digest of what was copied; equal to
/// digest(target, size). One pass over memory.
Digest copy_and_digest(void* target, const void* source, size_t size);

}  // namespace hvd
