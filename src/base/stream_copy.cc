// Copies from memory and past the caches. Several pages at a time save up to a third on some processors, and
// take up to twice as long on AMD's Zen 5.
#include "base/stream_copy.h"

#include <cstdint>

#include "base/two_ways.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace hvd {

#if defined(__x86_64__)
namespace {

constexpr size_t kLine = 64;
constexpr size_t kPage = 4096;
// Many processors' prefetch follows each page by itself and ends with it. With four pages under way more
// lines are, and one core copies from memory up to a third faster.
constexpr size_t kPages = 4;
// Each page begins a quarter further on than the one before. Lines at the same place of several pages share a
// set of a core's first cache. AMD's Zen 3 took three times as long for stores past the caches to such lines.
constexpr size_t kSkew = kPage / kPages;

/// One line. past: by stores that take no line into a cache first (MOVNTDQ); `to` is aligned to 16 then.
template <bool past>
void copy_line(uint8_t* to, const uint8_t* from) {
  const auto* const in = reinterpret_cast<const __m128i*>(from);
  auto* const out = reinterpret_cast<__m128i*>(to);
  const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2),
                d = _mm_loadu_si128(in + 3);
  if constexpr (past) {
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  } else {
    _mm_storeu_si128(out, a);
    _mm_storeu_si128(out + 1, b);
    _mm_storeu_si128(out + 2, c);
    _mm_storeu_si128(out + 3, d);
  }
}

void prefetch(const uint8_t* from, size_t ahead) {  // which may lie beyond what can be read
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(from) + ahead), _MM_HINT_T0);
}

/// Whole lines; returns how many bytes that was.
template <bool past>
size_t copy_lines(uint8_t* to, const uint8_t* from, size_t size, bool by_pages) {
  constexpr size_t kGroup = kPages * kPage;
  size_t done = 0;
  for (; by_pages && size - done >= kGroup; done += kGroup) {
    for (size_t line = 0; line < kPage; line += kLine) {
      for (size_t page = 0; page < kPages; ++page) {
        const size_t at = done + page * kPage + (line + page * kSkew) % kPage;
        prefetch(from + at, kGroup);
        copy_line<past>(to + at, from + at);
      }
    }
  }
  for (; size - done >= kLine; done += kLine) {
    prefetch(from + done, kPage);
    copy_line<past>(to + done, from + done);
  }
  return done;
}

}  // namespace

void copy_pages(void* to, const void* from, size_t size) {
  auto* const target = static_cast<uint8_t*>(to);
  const auto* const source = static_cast<const uint8_t*>(from);
  const size_t lines = copy_lines<false>(target, source, size, true);
  if (lines < size) std::memcpy(target + lines, source + lines, size - lines);
}

void copy_past(void* to, const void* from, size_t size, bool by_pages) {
  auto* target = static_cast<uint8_t*>(to);
  const auto* source = static_cast<const uint8_t*>(from);
  const size_t head = -reinterpret_cast<uintptr_t>(target) % kLine;
  if (size >= head + kLine) {
    std::memcpy(target, source, head);
    const size_t lines = copy_lines<true>(target + head, source + head, size - head, by_pages);
    _mm_sfence();
    target += head + lines;
    source += head + lines;
    size -= head + lines;
  }
  if (size > 0) std::memcpy(target, source, size);
}
#else
void copy_pages(void* to, const void* from, size_t size) { std::memcpy(to, from, size); }
void copy_past(void* to, const void* from, size_t size, bool) { std::memcpy(to, from, size); }
#endif

void fetch_copy(void* to, const void* from, size_t size) {
  static TwoWays ways;
  ways.run(size, [=](size_t way) {
    if (way == 0) {
      std::memcpy(to, from, size);
    } else {
      copy_pages(to, from, size);
    }
  });
}

void stream_copy(void* to, const void* from, size_t size) {
  static TwoWays ways;
  ways.run(size, [=](size_t way) { copy_past(to, from, size, way == 0); });
}

}  // namespace hvd
