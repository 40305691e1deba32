// Copies between host and device memory for states. The backend instance that makes them may be closed while
// a state still lives: whoever uses it, or host memory that came from it, does so through here.
#pragma once

#include <atomic>
#include <cstdint>
#include <shared_mutex>
#include <span>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/status.h"

namespace hvd::state {

/// Of memory on a device and host memory that stands for it.
struct DeviceRange {
  hvd_memory memory = HVD_MEMORY_HOST;
  int32_t device = 0;
  void* stream = nullptr;  // borrowed
  void* there = nullptr;   // on the device: borrowed
  void* here = nullptr;
  size_t bytes = 0;
};

/// Thread-safe.
class DeviceCopies {
 public:
  /// timeout: how long anybody waits for copies.
  explicit DeviceCopies(Duration timeout) : timeout(timeout) {}

  /// `instance` (not owned) must stay until close() has returned.
  void open(backend::Instance& instance);
  /// Every wait ends, and every later call gives HVD_CLOSED. Never blocks.
  void stop() noexcept { stopped_ = true; }
  /// stop(), and waits for calls that are under way. The instance's memory goes with it.
  void close();

  /// What devices hold counts for nothing from here on: collectives under way are about to be cut off. Called
  /// before the backend is aborted.
  void lost() noexcept;
  /// A new generation: what comes now counts again.
  void renewed() noexcept;
  /// Changes with lost() and renewed(): what was begun and arrived at the same one, and not a lost one, is
  /// genuine.
  uint64_t epoch() const { return epoch_; }
  static bool is_lost(uint64_t epoch) { return epoch % 2 == 1; }

  /// While one lives the instance stays, and memory that came from it. Not to be held while something is
  /// waited for.
  class Use {
   public:
    explicit Use(DeviceCopies& copies);
    explicit operator bool() const { return instance_ != nullptr; }

   private:
    friend class DeviceCopies;
    std::shared_lock<std::shared_mutex> lock_;
    backend::Instance* instance_ = nullptr;
  };

  /// HVD_OK, or HVD_UNSUPPORTED: no backend copies this kind of memory.
  Status serves(hvd_memory memory);
  Status allocate(hvd_memory memory, size_t size, void** ret_memory);
  void free(hvd_memory memory, void* data) noexcept;

  struct Ticket {
    hvd_memory memory = 0;
    void* ticket = nullptr;
  };
  /// kToHostAside: to the host, and what the stream is given later does not wait: nobody writes the sources
  /// meanwhile.
  enum class Way { kToHost, kToHostAside, kToDevice };
  /// See hvd_backend_table.copy and copy_aside.
  Status start(hvd_memory memory, int32_t device, void* stream, Way way,
               std::span<const hvd_backend_copy> copies, Ticket* ret_ticket);
  /// Waits as long as it takes, or until stop() or `give_up`: then HVD_CLOSED, and the copies may still run.
  Status wait(const Ticket& ticket, const std::atomic<bool>& give_up);

  const Duration timeout;

 private:
  std::atomic<bool> stopped_{false};
  std::atomic<uint64_t> epoch_{0};
  std::shared_mutex mutex_;
  backend::Instance* instance_ = nullptr;  // once open and until it is closed; guarded by mutex_
};

}  // namespace hvd::state
