// Counts what operator new gives out in this program.
#include "state/allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<size_t> g_count{0};

void* counted(void* p) {
  ++g_count;
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

namespace hvd {
size_t allocations() { return g_count; }
}  // namespace hvd

void* operator new(size_t size) { return counted(std::malloc(size == 0 ? 1 : size)); }
void* operator new(size_t size, std::align_val_t alignment) {
  const auto a = static_cast<size_t>(alignment);
  return counted(std::aligned_alloc(a, (size + a - 1) / a * a));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
