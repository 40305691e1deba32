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

// target NULL: digest only.
Digest run(DigestKernel kernel, void* target, const void* source, size_t size) {
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_128bits_reset(&state);
  if (size == 0) return finish(state);
  size_t done = 0;
#ifdef HVD_DIGEST_X86
  if (kernel != DigestKernel::kPortable && size > kTail) {
    // Whole blocks go straight into XXH3's accumulators (doc/xxhash_spec.md, XXH3, step 2); the state then
    // stands as if it had been fed with them.
    static_assert(sizeof(state.acc) == 8 * sizeof(uint64_t));
    const size_t blocks = (size - kTail) / kDigestBlock;
    const bool stream = size >= kStreamFrom && reinterpret_cast<uintptr_t>(target) % 64 == 0;
    auto* const accumulators = reinterpret_cast<uint64_t*>(state.acc);
    const auto loop = kernel == DigestKernel::kAvx512 ? digest_blocks_avx512 : digest_blocks_avx2;
    loop(target, source, blocks, stream, accumulators, state.extSecret);
    done = blocks * kDigestBlock;
    state.totalLen += done;
  }
#else
  static_cast<void>(kernel);
#endif
  portable(state, target == nullptr ? nullptr : static_cast<uint8_t*>(target) + done,
           static_cast<const uint8_t*>(source) + done, size - done);
  return finish(state);
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

Digest digest(const void* data, size_t size) { return run(best(), nullptr, data, size); }

Digest copy_and_digest(void* target, const void* source, size_t size) {
  return run(best(), target, source, size);
}

}  // namespace hvd
