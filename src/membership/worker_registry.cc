// Keeps workers by identity and by slot, and remembers how each one ended.
#include "membership/worker_registry.h"

#include <fmt/format.h>

namespace hvd::membership {
namespace {

constexpr size_t kRemembered = 4096;  // workers whose end has a reason

}  // namespace

void Worker::take(ReadyEvent newest) {
  event = std::move(newest);
  in_roster = false;
  at_home = event.host.empty() || event.host == host.str();
  address_bytes = 0;
  for (const Offer& offer : event.offers) address_bytes += offer.address.size();
}

Worker& WorkerStateRegistry::start(const Name& host, int32_t slot, Time now) {
  Worker& worker = living_[next_];
  by_id_[next_] = &worker;
  ++version_;
  worker.id = next_++;
  worker.host = host;
  worker.slot = slot;
  worker.started = now;
  places_[host][slot] = worker.id;
  return worker;
}

bool WorkerStateRegistry::adopt(uint64_t id, const Name& host, int32_t slot, Time now) {
  if (id == 0 || living_.contains(id) || ended_.contains(id) || occupied(host, slot)) return false;
  Worker& worker = living_[id];
  by_id_[id] = &worker;
  ++version_;
  worker.id = id;
  worker.host = host;
  worker.slot = slot;
  worker.started = now;
  places_[host][slot] = id;
  next_ = std::max(next_, id + 1);
  return true;
}

uint64_t WorkerStateRegistry::in_slot(const std::string& host, int32_t slot) const {
  const auto found = places_.find(host);
  if (found == places_.end()) return 0;
  const auto place = found->second.find(slot);
  return place == found->second.end() ? 0 : place->second;
}

Worker* WorkerStateRegistry::find(uint64_t id) {
  auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

const Worker* WorkerStateRegistry::find(uint64_t id) const {
  auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

bool WorkerStateRegistry::occupied(const std::string& host, int32_t slot) const {
  return in_slot(host, slot) != 0;
}

bool WorkerStateRegistry::full(const std::string& host, int32_t slots) const {
  if (slots <= 0) return true;
  const auto found = places_.find(host);
  if (found == places_.end() || std::ssize(found->second) < slots) return false;
  return std::ssize(found->second) == slots
             ? found->second.begin()->first >= 0 && found->second.rbegin()->first < slots
             : std::distance(found->second.lower_bound(0), found->second.lower_bound(slots)) == slots;
}

const std::map<int32_t, uint64_t>& WorkerStateRegistry::places(const std::string& host) const {
  static const std::map<int32_t, uint64_t> none;
  const auto found = places_.find(host);
  return found == places_.end() ? none : found->second;
}

bool WorkerStateRegistry::lives_on(const std::string& host) const { return places_.contains(host); }

void WorkerStateRegistry::end(uint64_t id, Ending ending, const std::string& why) {
  auto found = living_.find(id);
  if (found == living_.end()) return;
  const auto place = places_.find(found->second.host);
  place->second.erase(found->second.slot);
  if (place->second.empty()) places_.erase(place);
  by_id_.erase(id);
  living_.erase(found);
  ++version_;
  if (ending == Ending::kDone) return remember_done(id);
  ended_[id] = End{ending, why};
  oldest_.push_back(id);
  if (oldest_.size() <= kRemembered) return;
  ended_.erase(oldest_.front());
  oldest_.pop_front();
}

void WorkerStateRegistry::remember_done(uint64_t id) {
  ended_[id] = End{Ending::kDone, ""};
  done_.insert(id);
}

std::optional<Ending> WorkerStateRegistry::ending(uint64_t id) const {
  auto found = ended_.find(id);
  if (found == ended_.end()) return std::nullopt;
  return found->second.ending;
}

std::string WorkerStateRegistry::objection(uint64_t id) const {
  if (living_.contains(id)) return "";
  auto found = ended_.find(id);
  if (found == ended_.end()) return fmt::format("worker {} is unknown to this job", id);
  switch (found->second.ending) {
    case Ending::kLost: return fmt::format("worker {} was given up: {}", id, found->second.why);
    case Ending::kStopped: return fmt::format("worker {} was stopped: {}", id, found->second.why);
    case Ending::kDone: break;
  }
  return fmt::format("worker {} has said that it is done", id);
}

}  // namespace hvd::membership
