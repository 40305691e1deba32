// Memory of a device that does not exist: whoever touches it but its double dies of SIGSEGV, as it would with
// a device's. The same pages are mapped twice, once without any access, which is what the library gets to
// see.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <vector>

namespace hvd::testing {

class DeviceMemory {
 public:
  explicit DeviceMemory(size_t size = size_t{64} << 20) : size_(size) {
    const int file = ::memfd_create("device-double", MFD_CLOEXEC);
    if (file < 0 || ::ftruncate(file, static_cast<off_t>(size)) != 0) throw std::runtime_error("memfd");
    device_ = static_cast<uint8_t*>(::mmap(nullptr, size, PROT_NONE, MAP_SHARED, file, 0));
    view_ = static_cast<uint8_t*>(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    ::close(file);
    if (device_ == MAP_FAILED || view_ == MAP_FAILED) throw std::runtime_error("mmap");
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() {
    ::munmap(device_, size_);
    ::munmap(view_, size_);
  }

  void* allocate(size_t bytes) {
    std::lock_guard lock(mutex_);
    uint8_t* const result = device_ + used_;
    used_ += (bytes + 255) / 256 * 256;
    if (used_ > size_) throw std::bad_alloc();
    return result;
  }
  bool holds(const void* p) const { return p >= device_ && p < device_ + size_; }
  /// What only the double may use.
  template <class T = uint8_t>
  T* view(const void* p) const {
    EXPECT_TRUE(holds(p)) << "no address of the device";
    return reinterpret_cast<T*>(view_ + (static_cast<const uint8_t*>(p) - device_));
  }

  template <class T>
  void* put(const std::vector<T>& values) {
    void* const p = allocate(values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(view(p), values.data(), values.size() * sizeof(T));
    return p;
  }
  template <class T>
  std::vector<T> get(const void* p, size_t count) const {
    return {view<T>(p), view<T>(p) + count};
  }

 private:
  const size_t size_;
  uint8_t* device_;
  uint8_t* view_;
  std::mutex mutex_;
  size_t used_ = 0;
};

}  // namespace hvd::testing
