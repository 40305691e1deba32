// xxHash compiled for one instruction set each: checksum_portable.cc and checksum_avx2.cc include this after
// they have said which.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvdkit {

struct ChecksumKernel {
  uint64_t (*whole)(const void* data, size_t size);
  void* (*create)();
  void (*destroy)(void* state);
  void (*reset)(void* state);
  void (*add)(void* state, const void* data, size_t size);
  uint64_t (*value)(const void* state);
};

extern const ChecksumKernel kChecksumPortable, kChecksumAvx2;

}  // namespace hvdkit

#ifdef HVDKIT_CHECKSUM_KERNEL
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace hvdkit {
// NOLINTNEXTLINE(misc-definitions-in-headers): each file that includes it names its own
const ChecksumKernel HVDKIT_CHECKSUM_KERNEL = {
    [](const void* data, size_t size) -> uint64_t { return XXH3_64bits(data, size); },
    []() -> void* {
      XXH3_state_t* const state = XXH3_createState();
      if (state != nullptr) XXH3_64bits_reset(state);
      return state;
    },
    [](void* state) { XXH3_freeState(static_cast<XXH3_state_t*>(state)); },
    [](void* state) { XXH3_64bits_reset(static_cast<XXH3_state_t*>(state)); },
    [](void* state, const void* data, size_t size) {
      XXH3_64bits_update(static_cast<XXH3_state_t*>(state), data, size);
    },
    [](const void* state) -> uint64_t { return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state)); },
};
}  // namespace hvdkit
#endif
