// XXH3's accumulation of whole blocks, fused with the copy of what it reads. A block is 16 stripes of 64
// bytes; stripe i is mixed with the secret from byte 8 * i on, and the block ends with a scramble by the
// secret's last 64 bytes (xxHash's specification, XXH3, "Step 2"; Y. Collet).
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd {
inline constexpr size_t kDigestStripe = 64;
inline constexpr size_t kDigestBlock = 1024;  // (192 - 64) / 8 stripes with the default secret of 192 bytes
}  // namespace hvd

#if defined(__x86_64__) && defined(__GNUC__)
#define HVD_DIGEST_X86 1

#include <immintrin.h>

#if !defined(__clang__)
#pragma GCC diagnostic push
// GCC 12 warns of its own _mm512_undefined_epi32.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace hvd {

inline constexpr long long kDigestPrime = 0x9E3779B1;  // XXH_PRIME32_1
// How far ahead of the reads a line is asked for: the hardware's own prefetch ends at each page.
inline constexpr size_t kDigestAhead = 2048;
enum class Store { kNone, kPlain, kStream };

template <Store store>
__attribute__((target("avx512f,avx512dq"))) inline void digest_blocks_avx512_as(
    uint8_t* to, const uint8_t* from, size_t blocks, uint64_t* accumulators, const uint8_t* secret) {
  __m512i acc = _mm512_loadu_si512(accumulators);
  const __m512i scramble = _mm512_loadu_si512(secret + 128);
  const __m512i prime = _mm512_set1_epi64(kDigestPrime);
  for (size_t block = 0; block < blocks; ++block, from += kDigestBlock) {
#pragma GCC unroll 16
    for (size_t i = 0; i < kDigestBlock / kDigestStripe; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(from + kDigestStripe * i + kDigestAhead), _MM_HINT_T0);
      const __m512i data = _mm512_loadu_si512(from + kDigestStripe * i);
      if constexpr (store == Store::kPlain) _mm512_storeu_si512(to + kDigestStripe * i, data);
      if constexpr (store == Store::kStream) {
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to + kDigestStripe * i), data);
      }
      const __m512i keyed = _mm512_xor_si512(data, _mm512_loadu_si512(secret + 8 * i));
      const __m512i product = _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32));
      const __m512i swapped = _mm512_shuffle_epi32(data, static_cast<_MM_PERM_ENUM>(0x4E));
      acc = _mm512_add_epi64(acc, _mm512_add_epi64(product, swapped));
    }
    acc = _mm512_xor_si512(_mm512_xor_si512(acc, _mm512_srli_epi64(acc, 47)), scramble);
    acc = _mm512_mullo_epi64(acc, prime);
    if constexpr (store != Store::kNone) to += kDigestBlock;
  }
  if constexpr (store == Store::kStream) _mm_sfence();
  _mm512_storeu_si512(accumulators, acc);
}

template <Store store>
__attribute__((target("avx2"))) inline void digest_blocks_avx2_as(uint8_t* to, const uint8_t* from,
                                                                  size_t blocks, uint64_t* accumulators,
                                                                  const uint8_t* secret) {
  const __m256i prime = _mm256_set1_epi64x(kDigestPrime);
  auto* const out = reinterpret_cast<__m256i*>(accumulators);
  __m256i acc[2] = {_mm256_loadu_si256(out), _mm256_loadu_si256(out + 1)};
  for (size_t block = 0; block < blocks; ++block, from += kDigestBlock) {
#pragma GCC unroll 16
    for (size_t i = 0; i < kDigestBlock / kDigestStripe; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(from + kDigestStripe * i + kDigestAhead), _MM_HINT_T0);
#pragma GCC unroll 2
      for (size_t half = 0; half < 2; ++half) {
        const size_t at = kDigestStripe * i + 32 * half;
        const __m256i data = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at));
        if constexpr (store == Store::kPlain) _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + at), data);
        if constexpr (store == Store::kStream) {
          _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at), data);
        }
        const auto* const key = reinterpret_cast<const __m256i*>(secret + 8 * i + 32 * half);
        const __m256i keyed = _mm256_xor_si256(data, _mm256_loadu_si256(key));
        const __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
        const __m256i swapped = _mm256_shuffle_epi32(data, 0x4E);
        acc[half] = _mm256_add_epi64(acc[half], _mm256_add_epi64(product, swapped));
      }
    }
    for (size_t half = 0; half < 2; ++half) {
      const __m256i shifted = _mm256_xor_si256(acc[half], _mm256_srli_epi64(acc[half], 47));
      const auto* const key = reinterpret_cast<const __m256i*>(secret + 128 + 32 * half);
      const __m256i keyed = _mm256_xor_si256(shifted, _mm256_loadu_si256(key));
      const __m256i low = _mm256_mul_epu32(keyed, prime);
      const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(keyed, 32), prime);
      acc[half] = _mm256_add_epi64(low, _mm256_slli_epi64(high, 32));
    }
    if constexpr (store != Store::kNone) to += kDigestBlock;
  }
  if constexpr (store == Store::kStream) _mm_sfence();
  _mm256_storeu_si256(out, acc[0]);
  _mm256_storeu_si256(out + 1, acc[1]);
}

/// Accumulates `blocks` whole blocks and copies them to `target` unless it is NULL. stream: past the
/// caches; the target is aligned to 64 bytes then.
inline void digest_blocks_avx512(void* target, const void* source, size_t blocks, bool stream,
                                 uint64_t* accumulators, const uint8_t* secret) {
  auto* to = static_cast<uint8_t*>(target);
  const auto* from = static_cast<const uint8_t*>(source);
  if (to == nullptr) return digest_blocks_avx512_as<Store::kNone>(to, from, blocks, accumulators, secret);
  if (stream) return digest_blocks_avx512_as<Store::kStream>(to, from, blocks, accumulators, secret);
  digest_blocks_avx512_as<Store::kPlain>(to, from, blocks, accumulators, secret);
}

inline void digest_blocks_avx2(void* target, const void* source, size_t blocks, bool stream,
                               uint64_t* accumulators, const uint8_t* secret) {
  auto* to = static_cast<uint8_t*>(target);
  const auto* from = static_cast<const uint8_t*>(source);
  if (to == nullptr) return digest_blocks_avx2_as<Store::kNone>(to, from, blocks, accumulators, secret);
  if (stream) return digest_blocks_avx2_as<Store::kStream>(to, from, blocks, accumulators, secret);
  digest_blocks_avx2_as<Store::kPlain>(to, from, blocks, accumulators, secret);
}

}  // namespace hvd

#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif
