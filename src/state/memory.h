// Memory for copies of tensors: aligned for the digest's streaming copy, and for huge pages where it is
// large; or, for copies of a device's, memory that the device reads and writes at full speed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "state/device_copies.h"

namespace hvd::state {

class Memory {
 public:
  Memory() = default;
  /// Uninitialised, and without pages: see get_pages. Throws std::bad_alloc.
  explicit Memory(size_t size);

  /// For copies of `memory`.
  static Status allocate(const std::shared_ptr<DeviceCopies>& copies, hvd_memory memory, size_t size,
                         Memory* ret_memory) {
    Memory result;
    if (size > 0) {
      void* data = nullptr;
      if (Status status = copies->allocate(memory, size, &data); !status.ok()) return status;
      result.data_ = Pointer(static_cast<uint8_t*>(data), Delete{0, copies, memory});
      result.size_ = size;
    }
    *ret_memory = std::move(result);
    return {};
  }

  uint8_t* data() const { return data_.get(); }
  size_t size() const { return size_; }
  /// Memory of another size from this, where both are large, with the pages that are there: only what it gains
  /// has none. It may move, and what it holds is undefined. False: it can't be, and this may be empty.
  bool remake(size_t size);
  /// Nobody frees it any more.
  void leak() noexcept {
    static_cast<void>(data_.release());
    size_ = 0;
  }

 private:
  struct Delete {
    size_t mapped;                         // bytes of a mapping of its own; 0: from the heap
    std::shared_ptr<DeviceCopies> copies;  // whose memory it is; none: this program's
    hvd_memory memory;
    void operator()(uint8_t* p) const;
  };
  using Pointer = std::unique_ptr<uint8_t, Delete>;
  Pointer data_{nullptr, Delete{0, nullptr, HVD_MEMORY_HOST}};
  size_t size_ = 0;
};

}  // namespace hvd::state
