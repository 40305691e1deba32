// Keeps a generation's values within bounds and answers those who wait for one.
#include "driver/kv_store.h"

#include <fmt/format.h>

namespace hvd::driver {

void KvStore::drop(std::multimap<std::string, uint64_t>::iterator entry) {
  waiting_bytes_ -= kNode + entry->first.size();
  if (const auto places = places_.find(entry->second); --places->second == 0) places_.erase(places);
  waiting_.erase(entry);
}

void KvStore::answer_waiting(const std::string& key, hvd_status status, const std::vector<uint8_t>& value,
                             std::vector<Answer>* ret_answers) {
  const auto [first, last] = waiting_.equal_range(key);
  for (auto it = first; it != last;) {
    ret_answers->push_back({it->second, key, status, value});
    drop(it++);
  }
}

std::vector<KvStore::Answer> KvStore::begin(uint64_t generation) {
  if (generation == generation_) return {};
  std::vector<Answer> answers;
  for (const auto& [key, worker] : waiting_) answers.push_back({worker, key, HVD_PEER_LOST, {}});
  waiting_.clear();
  places_.clear();
  values_.clear();
  bytes_ = waiting_bytes_ = 0;
  generation_ = generation;
  return answers;
}

Status KvStore::set(uint64_t generation, const std::string& key, std::vector<uint8_t> value,
                    std::vector<Answer>* ret_answers) {
  if (generation == 0 || generation != generation_) {
    return Status(HVD_PEER_LOST, fmt::format("key '{}' is of generation {}, but the current one is {}", key,
                                             generation, generation_));
  }
  if (const auto found = values_.find(key); found != values_.end()) {
    if (found->second == value) return {};  // a repeated request counts once (contract 11)
    return Status(HVD_INVALID, fmt::format("key '{}' has another value already ({} bytes, now {})", key,
                                           found->second.size(), value.size()));
  }
  const size_t size = kNode + key.size() + value.size();
  if (size > max_bytes_ - bytes_) {
    answer_waiting(key, HVD_UNAVAILABLE, {}, ret_answers);
    return Status(HVD_UNAVAILABLE, fmt::format("the store is full: key '{}' with {} bytes, {} of {} in use",
                                               key, value.size(), bytes_, max_bytes_));
  }
  bytes_ += size;
  const auto& kept = values_.emplace(key, std::move(value)).first->second;
  answer_waiting(key, HVD_OK, kept, ret_answers);
  return {};
}

std::optional<KvStore::Answer> KvStore::get(uint64_t worker, uint64_t generation, const std::string& key) {
  if (generation == 0 || generation != generation_) return Answer{worker, key, HVD_PEER_LOST, {}};
  if (const auto found = values_.find(key); found != values_.end()) {
    return Answer{worker, key, HVD_OK, found->second};
  }
  const auto [first, last] = waiting_.equal_range(key);
  for (auto it = first; it != last; ++it) {
    if (it->second == worker) return std::nullopt;  // waits already
  }
  const size_t size = kNode + key.size();
  const auto places = places_.find(worker);
  if ((places != places_.end() && places->second >= max_waiting_) || size > max_bytes_ - waiting_bytes_)
    return Answer{worker, key, HVD_UNAVAILABLE, {}};
  waiting_.emplace(key, worker);
  waiting_bytes_ += size;
  ++places_[worker];
  return std::nullopt;
}

void KvStore::forget(uint64_t worker) {
  if (!places_.contains(worker)) return;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const auto entry = it++;
    if (entry->second == worker) drop(entry);
  }
}

}  // namespace hvd::driver
