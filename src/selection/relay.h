// Between several backends of one worker and the core that hears them.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "backend/backend.h"

namespace hvd::selection {

/// What the backends of one composite say to the core. Made before they are opened.
class Relay {
 public:
  explicit Relay(backend::HostHandlers handlers) : handlers_(std::move(handlers)) {}
  /// For the backend of this name: keys of the store are its own, a failure is told once a generation.
  /// messages: whether its messages are the core's.
  static backend::HostHandlers handlers(const std::shared_ptr<Relay>& relay, const std::string& name,
                                        bool messages);

 private:
  void failure(uint64_t generation, int32_t peer, const std::string& text);

  const backend::HostHandlers handlers_;
  std::mutex mutex_;
  bool told_ = false;
  uint64_t told_generation_ = 0;
};

}  // namespace hvd::selection
