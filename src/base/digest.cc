#include "base/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

namespace hvd {

Digest digest(const void* data, size_t size) {
  const XXH128_hash_t hash = XXH3_128bits(data, size);
  return {hash.low64, hash.high64};
}

Digest copy_and_digest(void* target, const void* source, size_t size) {
  if (size != 0) std::memcpy(target, source, size);
  return digest(target, size);
}

}  // namespace hvd
