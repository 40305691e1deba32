// Memory for copies of tensors: aligned for the digest's streaming copy, in huge pages where it is large.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace hvd::state {

class Memory {
 public:
  Memory() = default;
  /// Uninitialised. Throws std::bad_alloc.
  explicit Memory(size_t size) : size_(size) {
    if (size == 0) return;
    const size_t alignment = size >= 2 * kHugePage ? kHugePage : kSmall;
    data_ =
        Pointer(static_cast<uint8_t*>(::operator new(size, std::align_val_t(alignment))), Delete{alignment});
    // Only a hint: a refusal costs speed.
    if (alignment == kHugePage) madvise(data_.get(), size / kHugePage * kHugePage, MADV_HUGEPAGE);
  }

  uint8_t* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  static constexpr size_t kHugePage = 2 << 20;
  static constexpr size_t kSmall = 64;  // a cache line
  struct Delete {
    size_t alignment;
    void operator()(uint8_t* p) const { ::operator delete(p, std::align_val_t(alignment)); }
  };
  using Pointer = std::unique_ptr<uint8_t, Delete>;
  Pointer data_{nullptr, Delete{kSmall}};
  size_t size_ = 0;
};

}  // namespace hvd::state
