// Chooses the checksum's kernel for this processor.
#include "modules/kit/checksum.h"

#include <new>
#include <utility>

#include "modules/kit/checksum_kernel.h"

namespace hvdkit {
namespace {

const ChecksumKernel& kernel() {
#if defined(__x86_64__)
  static const ChecksumKernel& chosen =
      __builtin_cpu_supports("avx2") != 0 ? kChecksumAvx2 : kChecksumPortable;
  return chosen;
#else
  return kChecksumPortable;
#endif
}

}  // namespace

uint64_t checksum(const void* data, size_t size) { return kernel().whole(data, size); }

Checksum::Checksum() : state_(kernel().create()) {
  if (state_ == nullptr) throw std::bad_alloc();
}
Checksum::~Checksum() { kernel().destroy(state_); }
Checksum::Checksum(Checksum&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
Checksum& Checksum::operator=(Checksum&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
void Checksum::reset() { kernel().reset(state_); }
void Checksum::add(const void* data, size_t size) { kernel().add(state_, data, size); }
uint64_t Checksum::value() const { return kernel().value(state_); }

}  // namespace hvdkit
