// Replaces operator new of this program.
#include "starved.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace hvd::test {
namespace {

thread_local bool t_counts = false;
std::atomic<bool> g_all{false}, g_failed{false};
std::atomic<long> g_left{0};

/// Whether this is the allocation that fails.
bool fails() {
  if (!t_counts && !g_all) return false;
  if (g_left-- != 0) return false;
  g_failed = true;
  return true;
}

void* allocated(size_t size) noexcept { return fails() ? nullptr : std::malloc(size == 0 ? 1 : size); }
void* allocated(size_t size, std::align_val_t alignment) noexcept {
  const auto a = static_cast<size_t>(alignment);
  return fails() ? nullptr : std::aligned_alloc(a, (size + a - 1) / a * a);
}

void* checked(void* p) {
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

Starved::Starved(size_t at, Whose whose) {
  g_failed = false;
  g_left = static_cast<long>(at);
  if (whose == Whose::kMine) {
    t_counts = true;
  } else {
    g_all = true;
  }
}

Starved::~Starved() {
  t_counts = false;
  g_all = false;
}

bool Starved::has_failed() { return g_failed; }

}  // namespace hvd::test

// All forms: a sanitizer has each of its own, none of which calls another.
using hvd::test::allocated;
using hvd::test::checked;
void* operator new(size_t size) { return checked(allocated(size)); }
void* operator new[](size_t size) { return checked(allocated(size)); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return allocated(size); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return allocated(size); }
void* operator new(size_t size, std::align_val_t a) { return checked(allocated(size, a)); }
void* operator new[](size_t size, std::align_val_t a) { return checked(allocated(size, a)); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { std::free(p); }
