// XXH3-128 of bytes, also while they are copied.
#include "base/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "base/digest_x86.h"

namespace hvd {
namespace {

// The copy of a piece is still in the first-level cache when it is hashed.
constexpr size_t kPiece = 8 << 10;
// From here on, targets are not worth keeping in the caches.
constexpr size_t kStreamFrom = 256 << 10;
// XXH3 treats up to 240 bytes differently, and its last block as well: these bytes are left to xxHash itself.
constexpr size_t kTail = 2 * kDigestBlock;

Digest finish(const XXH3_state_t& state) {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state);
  return {hash.low64, hash.high64};
}

void portable(XXH3_state_t& state, void* target, const void* source, size_t size) {
  const auto* from = static_cast<const uint8_t*>(source);
  auto* to = static_cast<uint8_t*>(target);
  for (size_t done = 0; done < size; done += kPiece) {
    const size_t piece = std::min(kPiece, size - done);
    if (to != nullptr) std::memcpy(to + done, from + done, piece);
    XXH3_128bits_update(&state, from + done, piece);
  }
}

/// Walks over extents.
class Reader {
 public:
  explicit Reader(std::span<const Extent> extents) : extents_(extents) { skip_empty(); }
  /// The next bytes that lie together; none behind the last extent.
  Extent next() const {
    if (extents_.empty()) return {nullptr, 0};
    return {static_cast<const uint8_t*>(extents_[0].data) + at_, extents_[0].size - at_};
  }
  void advance(size_t size) {
    at_ += size;
    skip_empty();
  }

 private:
  void skip_empty() {
    while (!extents_.empty() && at_ == extents_[0].size) {
      extents_ = extents_.subspan(1);
      at_ = 0;
    }
  }
  std::span<const Extent> extents_;
  size_t at_ = 0;
};

#ifdef HVD_DIGEST_X86
// Whole blocks go straight into XXH3's accumulators (doc/xxhash_spec.md, XXH3, step 2); the state then stands
// as if it had been fed with them.
size_t take_blocks(XXH3_state_t& state, DigestKernel kernel, uint8_t* target, Reader* reader, size_t size) {
  static_assert(XXH_VERSION_NUMBER >= 800, "XXH3 has its final form since 0.8.0");
  static_assert(sizeof(state.acc) == 8 * sizeof(uint64_t));
  const size_t end = (size - kTail) / kDigestBlock * kDigestBlock;
  const bool stream = size >= kStreamFrom && reinterpret_cast<uintptr_t>(target) % 64 == 0;
  auto* const accumulators = reinterpret_cast<uint64_t*>(state.acc);
  const auto loop = kernel == DigestKernel::kAvx512 ? digest_blocks_avx512 : digest_blocks_avx2;
  uint8_t room[kDigestBlock];
  for (size_t done = 0; done < end;) {
    uint8_t* const to = target == nullptr ? nullptr : target + done;
    const Extent next = reader->next();
    if (const size_t blocks = std::min(next.size, end - done) / kDigestBlock; blocks > 0) {
      loop(to, next.data, blocks, stream, accumulators, state.extSecret);
      reader->advance(blocks * kDigestBlock);
      done += blocks * kDigestBlock;
      continue;
    }
    // A block of several extents is put together first, where it goes if it goes anywhere.
    uint8_t* const block = to == nullptr ? room : to;
    for (size_t filled = 0; filled < kDigestBlock;) {
      const Extent part = reader->next();
      const size_t some = std::min(part.size, kDigestBlock - filled);
      std::memcpy(block + filled, part.data, some);
      reader->advance(some);
      filled += some;
    }
    loop(nullptr, block, 1, false, accumulators, state.extSecret);
    done += kDigestBlock;
  }
  state.totalLen += end;
  return end;
}
#endif

// target NULL: digest only.
Digest run(DigestKernel kernel, void* target, std::span<const Extent> extents) {
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_128bits_reset(&state);
  Reader reader(extents);
  auto* to = static_cast<uint8_t*>(target);
#ifdef HVD_DIGEST_X86
  size_t size = 0;
  for (const Extent& extent : extents) size += extent.size;
  if (kernel != DigestKernel::kPortable && size > kTail) {
    const size_t done = take_blocks(state, kernel, to, &reader, size);
    if (to != nullptr) to += done;
  }
#else
  static_cast<void>(kernel);
#endif
  for (Extent next = reader.next(); next.size > 0; next = reader.next()) {
    portable(state, to, next.data, next.size);
    if (to != nullptr) to += next.size;
    reader.advance(next.size);
  }
  return finish(state);
}

Digest run(DigestKernel kernel, void* target, const void* source, size_t size) {
  const Extent one{source, size};
  return run(kernel, target, {&one, 1});
}

DigestKernel best() {
  static const DigestKernel kernel = available(DigestKernel::kAvx512) ? DigestKernel::kAvx512
                                     : available(DigestKernel::kAvx2) ? DigestKernel::kAvx2
                                                                      : DigestKernel::kPortable;
  return kernel;
}

}  // namespace

bool available(DigestKernel kernel) {
#ifdef HVD_DIGEST_X86
  if (kernel == DigestKernel::kAvx512) {
    return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0;
  }
  if (kernel == DigestKernel::kAvx2) return __builtin_cpu_supports("avx2") != 0;
#endif
  return kernel == DigestKernel::kPortable;
}

Digest digest(DigestKernel kernel, const void* data, size_t size) { return run(kernel, nullptr, data, size); }

Digest copy_and_digest(DigestKernel kernel, void* target, const void* source, size_t size) {
  return run(kernel, target, source, size);
}

Digest copy_and_digest(DigestKernel kernel, void* target, std::span<const Extent> extents) {
  return run(kernel, target, extents);
}

Digest digest(const void* data, size_t size) { return run(best(), nullptr, data, size); }

Digest digest(std::span<const Extent> extents) { return run(best(), nullptr, extents); }

Digest copy_and_digest(void* target, std::span<const Extent> extents) { return run(best(), target, extents); }

Digest copy_and_digest(void* target, const void* source, size_t size) {
  return run(best(), target, source, size);
}

}  // namespace hvd
