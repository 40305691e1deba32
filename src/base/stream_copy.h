// Copies of what is too large for the caches: past the caches where the result would not stay there until it
// is read, and each by the way that is the faster one on this machine.
#pragma once

#include <cstddef>
#include <cstring>

namespace hvd {

/// As memcpy, for bytes that come from memory, into a buffer that stays in this core's caches. From any
/// thread, as the functions below.
void fetch_copy(void* to, const void* from, size_t size);

/// As memcpy, past the caches, which saves a read of all that is written; what is written is visible to other
/// threads as after plain stores.
void stream_copy(void* to, const void* from, size_t size);

/// The ways that they choose from beside memcpy: by_pages: several pages at a time.
void copy_pages(void* to, const void* from, size_t size);
void copy_past(void* to, const void* from, size_t size, bool by_pages);

inline void copy_from(void* to, const void* from, size_t size, bool fetch) {
  if (fetch) return fetch_copy(to, from, size);
  std::memcpy(to, from, size);
}

inline void copy_to(void* to, const void* from, size_t size, bool stream) {
  if (stream) return stream_copy(to, from, size);
  std::memcpy(to, from, size);
}

}  // namespace hvd
