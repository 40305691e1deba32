// Keeps a generation's values within bounds and answers those who wait for one.
#include "driver/kv_store.h"

#include <fmt/format.h>

#include <utility>

namespace hvd::driver {
namespace {

const KvStore::Value kNothing = std::make_shared<const std::vector<uint8_t>>();

}  // namespace

void MemberMemory::begin(size_t members) {
  part_ = members == 0 ? 0 : most_ / 2 / members;
  used_ = common_ = 0;
  by_member_.clear();
}

bool MemberMemory::take(uint64_t member, size_t bytes) {
  if (bytes > most_ - used_) return false;
  size_t& held = by_member_[member];
  const size_t common = common_ - beyond(held) + beyond(held + bytes);
  if (common > most_ - most_ / 2) return false;
  common_ = common;
  held += bytes;
  used_ += bytes;
  return true;
}

void MemberMemory::give_back(uint64_t member, size_t bytes) {
  size_t& held = by_member_[member];
  common_ = common_ - beyond(held) + beyond(held - bytes);
  held -= bytes;
  used_ -= bytes;
}

size_t MemberMemory::used_by(uint64_t member) const {
  const auto found = by_member_.find(member);
  return found == by_member_.end() ? 0 : found->second;
}

std::optional<KvStore::Answer> KvStore::answer_waiting(const std::string& key, hvd_status status,
                                                       Value value) {
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) return std::nullopt;
  Answer answer{{found->second.begin(), found->second.end()}, key, status, std::move(value)};
  for (const uint64_t worker : answer.workers) {
    const auto asked = asked_.find(worker);
    asked->second.erase(key);
    if (asked->second.empty()) asked_.erase(asked);
    waiting_memory_.give_back(worker, place(key));
  }
  waiting_.erase(found);
  return answer;
}

std::vector<KvStore::Answer> KvStore::begin(uint64_t generation, size_t members) {
  if (generation == generation_) return {};
  std::vector<Answer> answers;
  for (const auto& [key, workers] : waiting_)
    answers.push_back({{workers.begin(), workers.end()}, key, HVD_PEER_LOST, kNothing});
  waiting_.clear();
  asked_.clear();
  values_.clear();
  memory_.begin(members);
  waiting_memory_.begin(members);
  generation_ = generation;
  return answers;
}

Status KvStore::set(uint64_t worker, uint64_t generation, const std::string& key, std::vector<uint8_t> value,
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
  if (!memory_.take(worker, place(key) + value.size())) {
    *ret_answer = answer_waiting(key, HVD_UNAVAILABLE, kNothing);
    return Status(HVD_UNAVAILABLE,
                  fmt::format("the store is full: key '{}' with {} bytes, {} of {} in use, {} by this worker",
                              key, value.size(), memory_.used(), memory_.most(), memory_.used_by(worker)));
  }
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
      !waiting_memory_.take(worker, place(key)))
    return Answer{{worker}, key, HVD_UNAVAILABLE, kNothing};
  waiting_[key].insert(worker);
  asked_[worker].insert(key);
  return std::nullopt;
}

void KvStore::forget(uint64_t worker) {
  const auto asked = asked_.find(worker);
  if (asked == asked_.end()) return;
  for (const std::string& key : asked->second) {
    const auto found = waiting_.find(key);
    found->second.erase(worker);
    if (found->second.empty()) waiting_.erase(found);
    waiting_memory_.give_back(worker, place(key));
  }
  asked_.erase(asked);
}

}  // namespace hvd::driver
