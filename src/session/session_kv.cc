// The session's part in a generation's key-value store: questions that wait for the driver's answer.
#include <fmt/format.h>

#include "session/session_core.h"

namespace hvd::session {

SessionCore::Actions SessionCore::kv_set(uint64_t generation, const std::string& key,
                                         std::span<const uint8_t> value, Time) {
  if (phase_ != Phase::kWelcomed || !is_live(generation)) return take();
  if (outlives_driver()) set_.emplace_back(key, std::vector<uint8_t>(value.begin(), value.end()));
  wire::KvSetT set;
  set.key = key;
  set.value.assign(value.begin(), value.end());
  send(generation, std::move(set));
  return take();
}

SessionCore::Actions SessionCore::kv_get(uint64_t id, uint64_t generation, const std::string& key, Time) {
  if (phase_ != Phase::kWelcomed) return take();
  if (generation > generation_ || generation == 0) {
    const Status why(HVD_INVALID, fmt::format("key \"{}\" asked for in generation {}, the newest is {}", key,
                                              generation, generation_));
    actions_.emplace_back(AnswerKv{id, why, {}});
  } else if (!is_live(generation)) {
    Status why(HVD_PEER_LOST, fmt::format("waiting for key \"{}\": generation {} is lost", key, generation));
    actions_.emplace_back(AnswerKv{id, why.in_generation(generation), {}});
  } else {
    gets_.push_back({id, generation, key});
    wire::KvGetT get;
    get.key = key;
    send(generation, std::move(get));
  }
  return take();
}

void SessionCore::kv_forget(uint64_t id) {
  std::erase_if(gets_, [id](const PendingGet& get) { return get.id == id; });
}

void SessionCore::on_kv_value(uint64_t generation, const wire::KvValueT& received) {
  const bool known = received.status >= HVD_OK && received.status <= HVD_INTERNAL;
  Status status(known ? received.status : HVD_INTERNAL, "");
  if (!status.ok()) {
    status.message = fmt::format("key \"{}\" of generation {}: {} from the driver", received.key, generation,
                                 status_name(status.code));
    status.generation = generation;
  }
  std::erase_if(gets_, [&](const PendingGet& get) {
    if (get.generation != generation || get.key != received.key) return false;
    actions_.emplace_back(AnswerKv{get.id, status, received.value});
    return true;
  });
}

void SessionCore::fail_gets(uint64_t below, const std::string& why) {
  std::erase_if(gets_, [&](const PendingGet& get) {
    if (get.generation >= below) return false;
    Status status(HVD_PEER_LOST, fmt::format("waiting for key \"{}\": generation {} is lost: {}", get.key,
                                             get.generation, why));
    actions_.emplace_back(AnswerKv{get.id, status.in_generation(get.generation), {}});
    return true;
  });
}

}  // namespace hvd::session
