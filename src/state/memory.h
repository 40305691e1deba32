// Memory for copies of tensors: aligned for the digest's streaming copy, and for huge pages where it is
// large; or such that other processes of the machine may map it, and it outlives this one while one of them
// does; or, for copies of a device's, memory that the device reads and writes at full speed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "base/digest.h"
#include "state/device_copies.h"

namespace hvd::state {

/// Where other processes of the machine find shared memory. Plain words: it travels between ranks.
struct MemoryPlace {
  uint64_t process = 0;  // 0: nowhere
  uint64_t descriptor = 0, inode = 0, size = 0;
  Digest token;  // at random: whoever finds it there has the right memory of the right machine
};
static_assert(sizeof(MemoryPlace) == 48, "no padding on the wire");

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

  /// Memory that others may map, with all its pages. Empty: the kernel gives none.
  static Memory shared(size_t size);
  /// What another process shares, to be read alone: `place.size` bytes. Empty: it can't be mapped, or is not
  /// what `place` says. Its pages stay when that process goes.
  static Memory map(const MemoryPlace& place);

  uint8_t* data() const { return data_.get(); }
  size_t size() const { return data_ == nullptr ? 0 : size_; }  // it may have been moved from
  /// Where others find it; nowhere, unless it is shared or mapped.
  MemoryPlace place() const;
  bool is_shared() const { return sharing() == Sharing::kOwn; }
  bool is_mapped() const { return sharing() == Sharing::kForeign; }
  /// Whether somebody maps this shared memory. Processes that are gone do not.
  bool in_use() const;
  /// Memory of another size from this, where both are large, with the pages that are there: only what it
  /// gains has none. It may move, and what it holds is undefined. False: it can't be, and this may be empty.
  bool remake(size_t size);
  /// Nobody frees it any more.
  void leak() noexcept {
    static_cast<void>(data_.release());
    size_ = 0;
  }

 private:
  enum class Sharing : uint8_t { kNone, kOwn, kForeign };
  struct Delete {
    size_t mapped;                         // bytes of a mapping of its own; 0: from the heap
    std::shared_ptr<DeviceCopies> copies;  // whose memory it is; none: this program's
    hvd_memory memory;
    Sharing sharing = Sharing::kNone;
    int descriptor = -1;  // of what is shared
    void operator()(uint8_t* p) const;
  };
  Sharing sharing() const { return data_.get_deleter().sharing; }
  bool remake_shared(size_t size);
  using Pointer = std::unique_ptr<uint8_t, Delete>;
  Pointer data_{nullptr, Delete{0, nullptr, HVD_MEMORY_HOST}};
  size_t size_ = 0;
};

/// Bytes in host memory, of a number that changes: as a std::vector, but they lie as Memory does, and what is
/// new has no value.
class Bytes {
 public:
  Bytes() = default;
  Bytes(Memory memory, size_t size) : memory_(std::move(memory)), size_(size) {}
  Bytes(Bytes&&) = default;
  Bytes& operator=(Bytes&&) = default;
  Bytes(const Bytes& other) { append(other.data(), other.size_); }
  Bytes& operator=(const Bytes& other) = delete;
  ~Bytes() = default;

  uint8_t* data() { return memory_.data(); }
  const uint8_t* data() const { return memory_.data(); }
  size_t size() const { return size_; }
  size_t capacity() const { return memory_.size(); }
  bool empty() const { return size_ == 0; }
  /// Keeps what is there. Throws std::bad_alloc if it is more than capacity().
  void resize(size_t size);
  void append(const void* data, size_t size);
  void clear() { size_ = 0; }
  void swap(Bytes& other) noexcept { std::swap(*this, other); }

 private:
  Memory memory_;
  size_t size_ = 0;
};

}  // namespace hvd::state
