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

void count() {
  if (!t_counts && !g_all) return;
  if (g_left-- != 0) return;
  g_failed = true;
  throw std::bad_alloc();
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

void* operator new(size_t size) {
  hvd::test::count();
  return hvd::test::checked(std::malloc(size == 0 ? 1 : size));
}
void* operator new(size_t size, std::align_val_t alignment) {
  hvd::test::count();
  const auto a = static_cast<size_t>(alignment);
  return hvd::test::checked(std::aligned_alloc(a, (size + a - 1) / a * a));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
