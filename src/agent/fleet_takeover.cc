// Adoption: a driver that takes a job over decides about agents it has never seen that run workers of this
// job.
#include <fmt/format.h>

#include <algorithm>

#include "agent/fleet.h"
#include "base/status.h"

namespace hvd::agent {
namespace {

constexpr uint64_t kMostNumber = uint64_t{1} << 62;  // of orders and reports

}  // namespace

bool Fleet::expect(const std::string& name, int32_t slots, bool program, Time now) {
  const auto [found, is_new] = hosts_.try_emplace(name);
  Host& host = found->second;
  if (is_new) {
    host.phase = Phase::kLost;
    host.came = host.awaited = true;
    host.deadline = now + config_.patience;
  }
  host.program = host.program || program;
  if (!host.awaited || slots <= host.slots) return is_new;
  host.slots = slots;
  return true;
}

void Fleet::expect(uint64_t id, const std::string& name, int32_t slot, Time now) {
  if (workers_.contains(id)) return;
  if (!hosts_.contains(name)) expect(name, slot + 1, false, now);
  Worker& worker = workers_[id];
  worker.host = name;
  worker.sent = true;
  hosts_.at(name).workers.insert(id);
}

void Fleet::hurry(Duration patience, Time now) {
  for (auto& [name, host] : hosts_) {
    if (!host.awaited) continue;
    host.deadline = std::min(host.deadline, now + patience);
    host.hurried = true;
  }
}

bool Fleet::awaits() const {
  return std::any_of(hosts_.begin(), hosts_.end(), [](const auto& h) { return h.second.awaited; });
}

bool Fleet::adopts(const Host& host, const AgentHello& hello) const {
  return config_.takes_over && hello.of_this_job && (!host.came || host.awaited);
}

/// Both ends go on counting where the agent and its earlier driver were.
void Fleet::adopt(Host* host, const AgentHello& hello, FleetActions* actions) {
  if (hello.received > kMostNumber || hello.reported > kMostNumber || hello.kept.size() > kMostKept) {
    throw Error(HVD_INVALID,
                fmt::format("the agent of host {} has got {} orders, reported {} times and has {} workers",
                            hello.host, hello.received, hello.reported, hello.kept.size()));
  }
  std::set<uint64_t> kept;
  for (const auto& [id, slot] : hello.kept) kept.insert(id);
  for (const uint64_t id : std::set<uint64_t>(host->workers)) {
    if (workers_.at(id).sent && !kept.contains(id)) lose(id, actions);
  }
  host->reports.restart(hello.reported);
  host->orders.remove([this](const Order& o) {
    const auto* start = std::get_if<wire::AgentStartT>(&o);
    return start != nullptr && !workers_.contains(start->worker);
  });
  host->orders.restart(hello.received);
  for (const auto& [id, slot] : hello.kept) {
    const auto [found, is_new] = workers_.try_emplace(id);
    if (!is_new && found->second.host != hello.host) continue;  // not this agent's
    found->second.host = hello.host;
    found->second.sent = true;
    host->workers.insert(id);
    actions->push_back(WorkerFound{id, hello.host, slot});
  }
}

}  // namespace hvd::agent
