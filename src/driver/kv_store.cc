// Keeps a generation's values within bounds and answers those who wait for one.
#include "driver/kv_store.h"

#include <fmt/format.h>

#include <utility>

namespace hvd::driver {
namespace {

const KvStore::Value kNothing = std::make_shared<const std::vector<uint8_t>>();

}  // namespace

std::optional<KvStore::Answer> KvStore::answer_waiting(const std::string& key, hvd_status status,
                                                       Value value) {
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) return std::nullopt;
  Answer answer{{found->second.begin(), found->second.end()}, key, status, std::move(value)};
  for (const uint64_t worker : answer.workers) {
    const auto asked = asked_.find(worker);
    asked->second.erase(key);
    if (asked->second.empty()) asked_.erase(asked);
  }
  waiting_bytes_ -= answer.workers.size() * place(key);
  waiting_.erase(found);
  return answer;
}

std::vector<KvStore::Answer> KvStore::begin(uint64_t generation) {
  if (generation == generation_) return {};
  std::vector<Answer> answers;
  for (const auto& [key, workers] : waiting_)
    answers.push_back({{workers.begin(), workers.end()}, key, HVD_PEER_LOST, kNothing});
  waiting_.clear();
  asked_.clear();
  values_.clear();
  bytes_ = waiting_bytes_ = 0;
  generation_ = generation;
  return answers;
}

Status KvStore::set(uint64_t generation, const std::string& key, std::vector<uint8_t> value,
                    std::optional<Answer>* ret_answer) {
  if (generation == 0 || generation != generation_) {
    return Status(HVD_PEER_LOST, fmt::format("key '{}' is of generation {}, but the current one is {}", key,
                                             generation, generation_));
  }
  if (const auto found = values_.find(key); found != values_.end()) {
    if (*found->second == value) return {};  // a repeated request counts once (contract 11)
    return Status(HVD_INVALID, fmt::format("key '{}' has another value already ({} bytes, now {})", key,
                                           found->second->size(), value.size()));
  }
  const size_t size = place(key) + value.size();
  if (size > max_bytes_ - bytes_) {
    *ret_answer = answer_waiting(key, HVD_UNAVAILABLE, kNothing);
    return Status(HVD_UNAVAILABLE, fmt::format("the store is full: key '{}' with {} bytes, {} of {} in use",
                                               key, value.size(), bytes_, max_bytes_));
  }
  bytes_ += size;
  const Value& kept =
      values_.emplace(key, std::make_shared<const std::vector<uint8_t>>(std::move(value))).first->second;
  *ret_answer = answer_waiting(key, HVD_OK, kept);
  return {};
}

std::optional<KvStore::Answer> KvStore::get(uint64_t worker, uint64_t generation, const std::string& key) {
  if (generation == 0 || generation != generation_) return Answer{{worker}, key, HVD_PEER_LOST, kNothing};
  if (const auto found = values_.find(key); found != values_.end())
    return Answer{{worker}, key, HVD_OK, found->second};
  const auto asked = asked_.find(worker);
  if (asked != asked_.end() && asked->second.contains(key)) return std::nullopt;  // waits already
  if ((asked != asked_.end() && asked->second.size() >= max_waiting_) ||
      place(key) > max_bytes_ - waiting_bytes_)
    return Answer{{worker}, key, HVD_UNAVAILABLE, kNothing};
  waiting_[key].insert(worker);
  asked_[worker].insert(key);
  waiting_bytes_ += place(key);
  return std::nullopt;
}

void KvStore::forget(uint64_t worker) {
  const auto asked = asked_.find(worker);
  if (asked == asked_.end()) return;
  for (const std::string& key : asked->second) {
    const auto found = waiting_.find(key);
    found->second.erase(worker);
    if (found->second.empty()) waiting_.erase(found);
    waiting_bytes_ -= place(key);
  }
  asked_.erase(asked);
}

}  // namespace hvd::driver
