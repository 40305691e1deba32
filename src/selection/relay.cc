// Passes on what backends say, once for all of them.
#include "selection/relay.h"

namespace hvd::selection {

backend::HostHandlers Relay::handlers(const std::shared_ptr<Relay>& relay, const std::string& name,
                                      bool messages) {
  backend::HostHandlers handlers;
  if (messages) handlers.message = relay->handlers_.message;
  handlers.failure = [relay](uint64_t generation, int32_t peer, const std::string& text) {
    relay->failure(generation, peer, text);
  };
  if (relay->handlers_.kv_set) {
    handlers.kv_set = [relay, name](uint64_t generation, const std::string& key,
                                    std::span<const uint8_t> value) {
      return relay->handlers_.kv_set(generation, name + "/" + key, value);
    };
  }
  if (relay->handlers_.kv_get) {
    handlers.kv_get = [relay, name](uint64_t generation, const std::string& key, Duration timeout,
                                    std::vector<uint8_t>* value) {
      return relay->handlers_.kv_get(generation, name + "/" + key, timeout, value);
    };
  }
  return handlers;
}

void Relay::failure(uint64_t generation, int32_t peer, const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    if (told_ && generation <= told_generation_) return;
    told_ = true;
    told_generation_ = generation;
  }
  if (handlers_.failure) handlers_.failure(generation, peer, text);
}

}  // namespace hvd::selection
