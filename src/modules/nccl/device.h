// A device of this process: its primary context, which the CUDA runtime and frameworks use as well, two
// streams of the module's own, and events that are used again. The host program's current context is left as
// it was.
#pragma once

#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "modules/nccl/libraries.h"

namespace hvdnccl {

class Device : public std::enable_shared_from_this<Device> {
 public:
  /// Throws Failure.
  Device(std::shared_ptr<Libraries> libraries, int ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int ordinal() const { return ordinal_; }
  Libraries& libraries() const { return *libraries_; }
  CuStream work_stream() const { return work_stream_; }
  CuStream copy_stream() const { return copy_stream_; }

  /// Makes the context current in this thread while it lives.
  class Current {
   public:
    explicit Current(const Device& device);
    /// For what frees: goes on without, if the context can't be made current any more.
    Current(const Device& device, std::nothrow_t);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const Device& device_;
    bool pushed_ = true;
  };

  /// An event, back in the device's store when it is dropped: what waits for it has noted its state by then.
  class Event {
   public:
    Event() = default;
    Event(std::shared_ptr<Device> device, CuEvent event) : device_(std::move(device)), event_(event) {}
    Event(Event&& other) noexcept : device_(std::move(other.device_)), event_(other.event_) {
      other.device_ = nullptr;
    }
    Event& operator=(Event&& other) noexcept {
      std::swap(device_, other.device_);
      std::swap(event_, other.event_);
      return *this;
    }
    ~Event() {
      if (device_ != nullptr) device_->give(event_);
    }
    CuEvent get() const { return event_; }

   private:
    std::shared_ptr<Device> device_;
    CuEvent event_ = nullptr;
  };

  // The following need the context to be current. They throw Failure.

  /// An event that `stream` reaches when it has done what it has been given so far.
  Event record(CuStream stream);
  /// What `stream` is given from now on runs after the event.
  void wait(CuStream stream, const Event& event);
  bool reached(const Event& event);
  /// Whether `stream` can be used at all: HVD_INVALID for a handle that means another stream in each thread,
  /// and for one that is being captured.
  void check_stream(CuStream stream);
  /// HVD_INVALID if the memory is not this device's: a kernel that touched it would lose the context.
  void check_memory(const void* data, const char* what);

 private:
  void give(CuEvent event);

  const std::shared_ptr<Libraries> libraries_;
  const int ordinal_;
  CuDevice device_ = 0;
  CuContext context_ = nullptr;
  CuStream work_stream_ = nullptr, copy_stream_ = nullptr;
  std::mutex mutex_;
  std::vector<CuEvent> events_;  // unused
};

}  // namespace hvdnccl
