// A copy that writes past the caches: for results so large that they would not stay there until they are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace hvd {

/// As memcpy. On x86 with stores that take no line into a cache first (MOVNTDQ), which saves a read of all
/// that is written; what is written is visible to other threads as after plain stores.
inline void stream_copy(void* to, const void* from, size_t size) {
#if defined(__x86_64__)
  constexpr size_t kLine = 64;
  constexpr size_t kAhead = 4096;  // the hardware's own prefetch ends at each page
  auto* target = static_cast<uint8_t*>(to);
  const auto* source = static_cast<const uint8_t*>(from);
  const size_t head = -reinterpret_cast<uintptr_t>(target) % kLine;
  if (size >= head + kLine) {
    std::memcpy(target, source, head);
    target += head;
    source += head;
    size -= head;
    for (; size >= kLine; target += kLine, source += kLine, size -= kLine) {
      _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(source) + kAhead), _MM_HINT_T0);
      const auto* const in = reinterpret_cast<const __m128i*>(source);
      auto* const out = reinterpret_cast<__m128i*>(target);
      const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2),
                    d = _mm_loadu_si128(in + 3);
      _mm_stream_si128(out, a);
      _mm_stream_si128(out + 1, b);
      _mm_stream_si128(out + 2, c);
      _mm_stream_si128(out + 3, d);
    }
    _mm_sfence();
  }
  if (size > 0) std::memcpy(target, source, size);
#else
  std::memcpy(to, from, size);
#endif
}

inline void copy_to(void* to, const void* from, size_t size, bool stream) {
  if (stream) return stream_copy(to, from, size);
  std::memcpy(to, from, size);
}

}  // namespace hvd
