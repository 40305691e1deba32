// Copies between host and device memory: pinned memory, and copies under way. Apart from generations: they go
// on after an abort.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "hvd/backend.h"
#include "modules/nccl/device.h"

namespace hvdnccl {

class Copies {
 public:
  /// All throw Failure.
  void* alloc(const std::shared_ptr<Device>& device, size_t size);
  void free(void* memory);
  /// aside: `stream` does not wait for them.
  void* start(const std::shared_ptr<Device>& device, CuStream stream, bool to_device, bool aside,
              const hvd_backend_copy* copies, size_t count);
  /// False: not done within the time, and the ticket stays.
  bool wait(void* ticket, int64_t timeout_ns);
  /// Frees everything, unless a copy that is under way does not end: then its memory is left alone, and
  /// false.
  bool close();

 private:
  struct Ticket {
    std::shared_ptr<Device> device;
    Device::Event after;
  };

  std::mutex mutex_;
  std::map<void*, std::shared_ptr<Device>> memory_;
  std::map<void*, std::shared_ptr<Ticket>> tickets_;
};

}  // namespace hvdnccl
