// 128-bit digest of bytes (XXH3-128): tells whether two copies of a variable are equal.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>

namespace hvd {

struct Digest {
  uint64_t low = 0;
  uint64_t high = 0;
  auto operator<=>(const Digest&) const = default;
};

/// XXH3-128 (seed 0) of the bytes: the same on every machine, whatever its instruction set. `data` may be
/// NULL if size is 0.
Digest digest(const void* data, size_t size);

/// Copies size bytes from source to target (disjoint) and gives the digest of what was copied; equal to
/// digest(target, size). One pass over memory. A large copy to a target that is aligned to 64 bytes does
/// not go through the caches: fastest where the target is not read soon, as a commit's.
Digest copy_and_digest(void* target, const void* source, size_t size);

/// Borrowed memory.
struct Extent {
  const void* data;
  size_t size;
};
/// The same of extents, one after the other, as if they were one: digest(target) of what stands there then.
Digest digest(std::span<const Extent> extents);
Digest copy_and_digest(void* target, std::span<const Extent> extents);

/// The loops by instruction set. The functions above take the best that the machine has.
enum class DigestKernel { kPortable, kAvx2, kAvx512 };
bool available(DigestKernel kernel);
Digest digest(DigestKernel kernel, const void* data, size_t size);
Digest copy_and_digest(DigestKernel kernel, void* target, const void* source, size_t size);
Digest copy_and_digest(DigestKernel kernel, void* target, std::span<const Extent> extents);

}  // namespace hvd
