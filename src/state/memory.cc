// Large memory is mapped by itself, so that it can change its size without a copy and without new pages.
#include "state/memory.h"

#include <sys/mman.h>

namespace hvd::state {
namespace {

constexpr size_t kHugePage = 2 << 20;
constexpr size_t kPage = 4096;
constexpr std::align_val_t kLine{64};  // of a core's cache

constexpr bool is_large(size_t size) { return size >= 2 * kHugePage; }
constexpr size_t whole_pages(size_t size) { return (size + kHugePage - 1) / kHugePage * kHugePage; }

/// Address space from a huge page's border on. NULL: there is none.
uint8_t* map(size_t length) {
  const size_t more = length + kHugePage - kPage;
  void* const all = mmap(nullptr, more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<uint8_t*>(all);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (before > 0) munmap(begin, before);
  if (before + length < more) munmap(begin + before + length, more - before - length);
  return begin + before;
}

}  // namespace

Memory::Memory(size_t size) : size_(size) {
  if (size == 0) return;
  if (!is_large(size)) {
    data_.reset(static_cast<uint8_t*>(::operator new(size, kLine)));
    return;
  }
  if (size > SIZE_MAX / 2) throw std::bad_alloc();
  const size_t length = whole_pages(size);
  uint8_t* const data = map(length);
  if (data == nullptr) throw std::bad_alloc();
  data_ = Pointer(data, Delete{length, nullptr, HVD_MEMORY_HOST});
}

bool Memory::remake(size_t size) {
  size_t& mapped = data_.get_deleter().mapped;
  if (mapped == 0 || !is_large(size) || size > SIZE_MAX / 2) return false;
  const size_t length = whole_pages(size);
  if (length < mapped) {
    munmap(data_.get() + length, mapped - length);
  } else if (length > mapped) {
    uint8_t* const place = map(length);
    if (place == nullptr) return false;
    // The kernel moves only what has one and the same advice, which may change at each huge page's border.
    for (size_t at = 0; at < mapped; at += kHugePage) {
      uint8_t* const from = data_.get() + at;
      if (mremap(from, kHugePage, kHugePage, MREMAP_MAYMOVE | MREMAP_FIXED, place + at) != MAP_FAILED)
        continue;
      munmap(from, mapped - at);
      munmap(place, length);
      leak();  // all of it is gone
      mapped = 0;
      return false;
    }
    static_cast<void>(data_.release());
    data_.reset(place);
  }
  mapped = length;
  size_ = size;
  return true;
}

void Memory::Delete::operator()(uint8_t* p) const {
  if (copies != nullptr) {
    copies->free(memory, p);
  } else if (mapped > 0) {
    munmap(p, mapped);
  } else {
    ::operator delete(p, kLine);
  }
}

}  // namespace hvd::state
