// The host's table with an end: after close returns nobody calls it any more, also not a thread that a
// library holds.
#pragma once

#include <fmt/format.h>

#include <shared_mutex>

#include "hvd/backend.h"
#include "modules/nccl/failure.h"

namespace hvdnccl {

class Host {
 public:
  explicit Host(const hvd_backend_host& table) : table_(table) {}

  /// Waits for calls under way.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }

  template <class... Args>
  void log(hvd_log_level level, fmt::format_string<Args...> text, Args&&... args) {
    const std::shared_lock lock(mutex_);
    if (!closed_) table_.log(table_.context, level, fmt::format(text, std::forward<Args>(args)...).c_str());
  }
  void failure(uint64_t generation, const std::string& text) {
    const std::shared_lock lock(mutex_);
    if (!closed_) table_.failure(table_.context, generation, -1, text.c_str());
  }
  hvd_status kv_set(uint64_t generation, const char* key, const void* data, size_t size, hvd_error* error) {
    const std::shared_lock lock(mutex_);
    return closed_ ? HVD_CLOSED : table_.kv_set(table_.context, generation, key, data, size, error);
  }
  hvd_status kv_get(uint64_t generation, const char* key, int64_t timeout_ns, void* data, size_t* size,
                    hvd_error* error) {
    const std::shared_lock lock(mutex_);
    return closed_ ? HVD_CLOSED
                   : table_.kv_get(table_.context, generation, key, timeout_ns, data, size, error);
  }

 private:
  const hvd_backend_host table_;
  std::shared_mutex mutex_;
  bool closed_ = false;
};

}  // namespace hvdnccl
