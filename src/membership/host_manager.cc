// Slots, back-off and the blocklist.
#include "membership/host_manager.h"

#include <algorithm>

namespace hvd::membership {

Duration doubled(Duration base, int32_t times, Duration limit) {
  limit = std::max(limit, base);
  Duration delay = base;
  for (int32_t i = 1; i < times && delay < limit; ++i) delay = delay > limit / 2 ? limit : delay * 2;
  return std::min(delay, limit);
}

HostManager::Change HostManager::set_hosts(const std::vector<HostSlots>& hosts,
                                           const std::function<bool(const std::string&)>& in_use) {
  ++version_;
  Change change;
  std::unordered_map<std::string, int32_t> wanted;
  for (const HostSlots& h : hosts) {
    int32_t& slots = wanted[h.name];
    slots = std::max(slots, h.slots);  // a host that is listed twice is still one host
  }
  for (Host& host : hosts_) {
    auto found = wanted.find(host.name);
    const int32_t slots = found == wanted.end() ? 0 : found->second;
    if (slots > host.slots) change.added.push_back(host.name);
    if (slots < host.slots) change.removed.push_back(host.name);
    host.slots = slots;
    if (slots == 0) host.withdrawn.clear();
  }
  for (const HostSlots& h : hosts) {
    if (wanted[h.name] <= 0 || index_.contains(h.name)) continue;
    index_[h.name] = hosts_.size();
    hosts_.emplace_back().name = h.name;
    hosts_.back().slots = wanted[h.name];
    change.added.push_back(h.name);
  }
  std::erase_if(hosts_, [&](const Host& h) {
    return h.slots == 0 && h.failures == 0 && h.blockings == 0 && h.records.empty() && !h.drained &&
           !in_use(h.name);
  });
  reindex();
  return change;
}

std::vector<KnownHost> HostManager::known(Time now) const {
  std::vector<KnownHost> result;
  result.reserve(hosts_.size());
  for (const Host& host : hosts_) {
    KnownHost& k = result.emplace_back();
    k.name = host.name;
    k.slots = host.slots;
    k.failures = host.failures;
    k.blockings = host.blockings;
    k.failed_generation = host.failed_generation;
    k.blocked = host.blocked_at(now);
    if (k.blocked && host.blocked_until) k.blocked_for = *host.blocked_until - now;
    for (const auto& [slot, record] : host.records) {
      const Duration wait = std::max<Duration>(record.usable_from - now, Duration(0));
      k.records.push_back({slot, record.failures, wait, record.abandoned});
    }
    k.drained = host.drained;
    k.withdrawn.assign(host.withdrawn.begin(), host.withdrawn.end());
  }
  return result;
}

void HostManager::restore(const std::vector<KnownHost>& known, Time now) {
  ++version_;
  for (const KnownHost& k : known) {
    Host& host = hosts_.emplace_back();
    host.name = k.name;
    host.slots = k.slots;
    host.failures = k.failures;
    host.blockings = k.blockings;
    host.failed_generation = k.failed_generation;
    host.blocked = k.blocked;
    if (k.blocked && k.blocked_for) host.blocked_until = now + *k.blocked_for;
    for (const KnownHost::Slot& r : k.records)
      host.records[r.slot] = Slot{r.failures, now + r.wait, r.abandoned};
    host.drained = k.drained;
    host.withdrawn.insert(k.withdrawn.begin(), k.withdrawn.end());
  }
  reindex();
}

bool HostManager::has_slot(const std::string& name, int32_t slot) const {
  const Host* host = find(name);
  return host != nullptr && slot < host->slots;
}

size_t HostManager::position(const std::string& name) const {
  auto found = index_.find(name);
  return found == index_.end() ? hosts_.size() : found->second;
}

void HostManager::for_each_usable(Time now, const std::function<bool(const Name&, int32_t)>& full,
                                  const std::function<bool(const Name&, int32_t)>& use) const {
  for (const Host& host : hosts_) {
    if (host.drained || host.blocked_at(now) || full(host.name, host.slots)) continue;
    for (int32_t slot = 0; slot < host.slots; ++slot) {
      if (host.withdrawn.contains(slot)) continue;
      if (!host.records.empty()) {
        auto record = host.records.find(slot);
        if (record != host.records.end() && (record->second.abandoned || now < record->second.usable_from)) {
          continue;
        }
      }
      if (!use(host.name, slot)) return;
    }
  }
}

void HostManager::record_failure(const std::string& name, int32_t slot, Time now) {
  Host* host = find(name);
  if (host == nullptr) return;
  Slot& record = host->records[slot];
  record.usable_from = now + doubled(config_.restart_delay_min, ++record.failures, config_.restart_delay_max);
  record.abandoned = !config_.restart;
}

HostManager::Failure HostManager::blame(const std::string& name, uint64_t generation, Time now) {
  Failure failure;
  Host* host = find(name);
  if (host == nullptr || host->blocked_at(now)) return failure;
  if (generation != 0 && host->failed_generation == generation) return failure;
  host->failed_generation = generation;
  if (++host->failures < config_.blocklist_after || config_.blocklist_after <= 0) return failure;
  host->failures = 0;
  host->blocked = failure.blocked = true;
  host->blocked_until.reset();
  if (config_.blocklist_cooldown_min > Duration{0}) {
    failure.cooldown =
        doubled(config_.blocklist_cooldown_min, ++host->blockings, config_.blocklist_cooldown_max);
    host->blocked_until = now + *failure.cooldown;
  } else {
    ++host->blockings;
  }
  return failure;
}

void HostManager::record_success(const std::string& name, int32_t slot) {
  Host* host = find(name);
  if (host == nullptr) return;
  host->failures = 0;
  host->records.erase(slot);
}

std::vector<std::string> HostManager::end_cooldowns(Time now) {
  std::vector<std::string> over;
  for (Host& host : hosts_) {
    if (!host.blocked || host.blocked_at(now)) continue;
    host.blocked = false;
    host.blocked_until.reset();
    if (host.slots > 0) over.push_back(host.name);
  }
  return over;
}

std::optional<Time> HostManager::next_change(Time now) const {
  std::optional<Time> next;
  const auto consider = [&](Time t) {
    if (t > now && (!next || t < *next)) next = t;
  };
  for (const Host& host : hosts_) {
    if (host.blocked && host.blocked_until) consider(*host.blocked_until);
    for (const auto& [slot, record] : host.records) {
      if (!record.abandoned && slot < host.slots) consider(record.usable_from);
    }
  }
  return next;
}

// A host may have a million slots, and these are asked for after every event: exceptions are counted.
int64_t HostManager::lasting_slots(const std::function<const Places&(const std::string&)>& places) const {
  int64_t slots = 0;
  for (const Host& host : hosts_) {
    if (host.slots == 0 || (host.blocked && !host.blocked_until)) continue;
    const Places& taken = places(host.name);
    slots += host.slots - std::distance(taken.lower_bound(0), taken.lower_bound(host.slots));
    const auto end = host.records.lower_bound(host.slots);
    slots -= std::count_if(host.records.lower_bound(0), end, [&](const auto& record) {
      return record.second.abandoned && !taken.contains(record.first);
    });
  }
  return slots;
}

int64_t HostManager::unblocked_slots(Time now) const {
  int64_t slots = 0;
  for (const Host& host : hosts_) {
    if (host.drained || host.blocked_at(now)) continue;
    const auto& shut = host.withdrawn;
    slots += host.slots - std::distance(shut.lower_bound(0), shut.lower_bound(host.slots));
  }
  return slots;
}

int32_t HostManager::blocked_hosts(Time now) const {
  return static_cast<int32_t>(std::count_if(hosts_.begin(), hosts_.end(),
                                            [&](const Host& h) { return h.slots > 0 && h.blocked_at(now); }));
}

void HostManager::drain(const std::string& name) { made(name).drained = true; }

bool HostManager::withdraw(const std::string& name, int32_t slot) {
  Host* host = find(name);
  return host != nullptr && slot < host->slots && host->withdrawn.insert(slot).second;
}

bool HostManager::undrain(const std::string& name) {
  Host* host = find(name);
  if (host == nullptr || (!host->drained && host->withdrawn.empty())) return false;
  host->drained = false;
  host->withdrawn.clear();
  return true;
}

bool HostManager::drained(const std::string& name) const {
  const Host* host = find(name);
  return host != nullptr && host->drained;
}

std::vector<std::string> HostManager::names() const {
  std::vector<std::string> listed;
  for (const Host& host : hosts_) {
    if (host.slots > 0) listed.push_back(host.name);
  }
  return listed;
}

HostManager::Host& HostManager::made(const std::string& name) {
  if (Host* host = find(name); host != nullptr) return *host;
  index_[name] = hosts_.size();
  hosts_.emplace_back().name = name;
  return hosts_.back();
}

HostManager::Host* HostManager::find(const std::string& name) {
  auto found = index_.find(name);
  return found == index_.end() ? nullptr : &hosts_[found->second];
}

const HostManager::Host* HostManager::find(const std::string& name) const {
  auto found = index_.find(name);
  return found == index_.end() ? nullptr : &hosts_[found->second];
}

void HostManager::reindex() {
  index_.clear();
  for (size_t i = 0; i < hosts_.size(); ++i) index_[hosts_[i].name] = i;
}

}  // namespace hvd::membership
