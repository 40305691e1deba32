// The driver's decisions about agents.
#include "agent/fleet.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace hvd::agent {
namespace {

constexpr int32_t kUnknownStatus = -1;
constexpr Duration kLastReports = std::chrono::seconds(5);

uint64_t started_by(const Order& order) {
  const auto* start = std::get_if<wire::AgentStartT>(&order);
  return start == nullptr ? 0 : start->worker;
}

}  // namespace

bool Fleet::connected(const std::string& host) const {
  const auto found = hosts_.find(host);
  return found != hosts_.end() && found->second.phase == Phase::kConnected;
}

std::optional<std::string> Fleet::host_of(uint64_t worker) const {
  const auto found = workers_.find(worker);
  return found == workers_.end() ? std::nullopt : std::optional(found->second.host);
}

uint64_t Fleet::received(const std::string& host) const {
  const auto found = hosts_.find(host);
  return found == hosts_.end() ? 0 : found->second.reports.received();
}

std::vector<std::pair<std::string, int32_t>> Fleet::hosts() const {
  std::vector<std::pair<std::string, int32_t>> result;
  for (const auto& [name, host] : hosts_) {
    if (host.came) result.emplace_back(name, host.slots);
  }
  return result;
}

size_t Fleet::agents() const {
  return static_cast<size_t>(std::count_if(
      hosts_.begin(), hosts_.end(), [](const auto& h) { return h.second.phase == Phase::kConnected; }));
}

bool Fleet::quiet() const {
  return std::none_of(hosts_.begin(), hosts_.end(),
                      [](const auto& h) { return h.second.program || h.second.phase == Phase::kConnected; });
}

void Fleet::order(const std::string& name, Host* host, Order order, FleetActions* actions) {
  const Order& kept = host->orders.push(std::move(order));
  if (host->phase != Phase::kConnected) return;
  host->orders.mark_sent();
  if (const uint64_t worker = started_by(kept); worker != 0) workers_.at(worker).sent = true;
  actions->push_back(SendOrder{name, kept});
}

void Fleet::start_program(const std::string& name, Host* host, Time now, FleetActions* actions) {
  host->program = true;
  host->deadline = std::max(host->deadline, now + config_.start_timeout);
  actions->push_back(StartAgent{name});
}

FleetActions Fleet::start(const std::string& name, wire::AgentStartT start, Time now) {
  FleetActions actions;
  const uint64_t worker = start.worker;
  const auto found = hosts_.find(name);
  if (end_ || (found == hosts_.end() && !config_.starts_agents)) {
    actions.push_back(
        WorkerFailed{worker, end_ ? "the job is ending" : fmt::format("host {} has no agent", name)});
    return actions;
  }
  Host& host = hosts_[name];
  workers_[worker].host = name;
  host.workers.insert(worker);
  order(name, &host, std::move(start), &actions);
  if (host.phase != Phase::kConnected && !host.program && config_.starts_agents)
    start_program(name, &host, now, &actions);
  return actions;
}

FleetActions Fleet::stop(uint64_t worker, Duration grace, Time now) {
  FleetActions actions;
  const auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.exited) return actions;
  const std::string name = found->second.host;
  Host& host = hosts_.at(name);
  if (!found->second.sent) {
    // It was never started: the order is taken back.
    forget(worker);
    host.orders.remove([worker](const Order& o) { return started_by(o) == worker; });
    actions.push_back(WorkerGone{worker});
    return actions;
  }
  wire::AgentStopT stop;
  stop.worker = worker;
  stop.grace_ms = std::chrono::duration_cast<std::chrono::milliseconds>(grace).count();
  order(name, &host, stop, &actions);
  found->second.stopping = true;
  // A worker that must end anyway gets no more time than its end would take.
  const bool all = std::all_of(host.workers.begin(), host.workers.end(),
                               [this](uint64_t id) { return workers_.at(id).stopping; });
  if (host.phase == Phase::kLost && all) host.deadline = std::min(host.deadline, now + grace + kLastReports);
  return actions;
}

FleetActions Fleet::watch(uint64_t worker, const launch::ProcessClaim& claim) {
  FleetActions actions;
  const auto found = workers_.find(worker);
  if (found == workers_.end() || !found->second.sent) return actions;
  wire::AgentWatchT watch;
  watch.worker = worker;
  watch.process = claim.process;
  if (claim.life >= 0) {
    watch.life = claim.life;
    watch.life_token = std::make_unique<wire::Digest>(claim.life_token.low, claim.life_token.high);
  }
  order(found->second.host, &hosts_.at(found->second.host), watch, &actions);
  return actions;
}

FleetActions Fleet::end(bool success, bool try_again, const std::string& reason) {
  FleetActions actions;
  if (end_) return actions;
  end_.emplace();
  end_->success = success;
  end_->try_again = try_again;
  end_->reason = reason;
  for (auto& [name, host] : hosts_) {
    if (host.phase == Phase::kConnected) order(name, &host, *end_, &actions);
    if (host.phase != Phase::kConnected && host.program) actions.push_back(StopAgent{name});
  }
  return actions;
}

std::optional<std::string> Fleet::objection(const AgentHello& hello) const {
  const auto found = hosts_.find(hello.host);
  if (found == hosts_.end()) {
    if (hosts_.size() < config_.max_hosts) return std::nullopt;
    return fmt::format("there are {} hosts already", hosts_.size());
  }
  const Host& host = found->second;
  if (host.phase != Phase::kConnected || host.instance == hello.instance) return std::nullopt;
  return fmt::format("host {} has another agent, which is connected", hello.host);
}

AgentWelcome Fleet::hello(const AgentHello& hello, Time now, FleetActions* actions) {
  static_cast<void>(now);
  Host& host = hosts_[hello.host];
  bool adopted = false;
  AgentWelcome welcome;
  welcome.resumed = host.came && host.instance == hello.instance;
  if (welcome.resumed) {
    host.orders.acknowledge(hello.received);
  } else if (adopts(host, hello)) {
    welcome.resumed = adopted = true;
    adopt(&host, hello, actions);
  } else {
    lose(&host, actions);
    host.reports.restart();
    host.orders.remove(
        [this](const Order& o) { return started_by(o) == 0 || !workers_.contains(started_by(o)); });
    host.orders.restart();
  }
  welcome.received = host.reports.received();
  const bool changed = !host.came || host.awaited || host.slots != hello.slots;
  host.came = true;
  host.awaited = false;
  host.slots = hello.slots;
  host.instance = hello.instance;
  host.phase = Phase::kConnected;
  host.deadline = Time{};
  host.orders.for_each([&](const Order& o) {
    if (const auto worker = workers_.find(started_by(o)); worker != workers_.end())
      worker->second.sent = true;
    actions->push_back(SendOrder{hello.host, o});
  });
  host.orders.mark_sent();
  if (end_ && (adopted || !welcome.resumed)) order(hello.host, &host, *end_, actions);
  if (changed) actions->push_back(HostsChanged{});
  return welcome;
}

FleetActions Fleet::closed(const std::string& name, uint64_t instance, Time now) {
  FleetActions actions;
  const auto found = hosts_.find(name);
  if (found == hosts_.end() || found->second.phase != Phase::kConnected || found->second.instance != instance)
    return actions;
  found->second.phase = Phase::kLost;
  found->second.deadline = now + (end_ ? Duration(0) : config_.patience);
  return actions;
}

FleetActions Fleet::left(const std::string& name, uint64_t instance) {
  FleetActions actions;
  const auto found = hosts_.find(name);
  if (found == hosts_.end() || found->second.instance != instance) return actions;
  Host& host = found->second;
  lose(&host, &actions);
  fail(&host, fmt::format("the agent of host {} has left", name), &actions);
  if (host.program) actions.push_back(StopAgent{name});
  actions.push_back(HostsChanged{});
  hosts_.erase(found);
  return actions;
}

FleetActions Fleet::reported(const std::string& name, Report report) {
  FleetActions actions;
  const auto found = hosts_.find(name);
  if (found == hosts_.end() || !found->second.reports.take(number_of(report))) return actions;
  const uint64_t id = std::visit([](const auto& r) { return r.worker; }, report);
  const auto worker = workers_.find(id);
  // One that was given up may be reported still; another host's may not.
  if (worker == workers_.end()) return actions;
  if (worker->second.host != name || !worker->second.sent) {
    throw Error(HVD_INVALID,
                fmt::format("the agent of host {} reports worker {}, which it was not given", name, id));
  }
  if (auto* failed = std::get_if<wire::AgentFailedT>(&report)) {
    forget(id);
    actions.push_back(WorkerFailed{id, fmt::format("host {}: {}", name, printable(failed->message))});
  } else if (const auto* exited = std::get_if<wire::AgentExitedT>(&report)) {
    if (std::exchange(worker->second.exited, true)) return actions;
    const bool sane = exited->exit_status >= kUnknownStatus && exited->exit_status < 512;
    actions.push_back(WorkerExited{id, sane ? exited->exit_status : kUnknownStatus});
  } else if (auto* output = std::get_if<wire::AgentOutputT>(&report)) {
    actions.push_back(WorkerOutput{id, output->is_stderr, std::move(output->bytes)});
  } else {
    if (!worker->second.exited) actions.push_back(WorkerExited{id, kUnknownStatus});
    forget(id);
    actions.push_back(WorkerGone{id});
  }
  return actions;
}

void Fleet::acknowledged(const std::string& name, uint64_t received) {
  if (const auto found = hosts_.find(name); found != hosts_.end()) found->second.orders.acknowledge(received);
}

void Fleet::forget(uint64_t worker) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return;
  hosts_.at(found->second.host).workers.erase(worker);
  workers_.erase(found);
}

/// Workers that its agent had are nobody's any more.
void Fleet::lose(Host* host, FleetActions* actions) {
  for (const uint64_t id : std::set<uint64_t>(host->workers)) {
    if (workers_.at(id).sent) lose(id, actions);
  }
}

void Fleet::lose(uint64_t id, FleetActions* actions) {
  const bool exited = workers_.at(id).exited;
  forget(id);
  if (!exited) actions->push_back(WorkerExited{id, kUnknownStatus});
  actions->push_back(WorkerGone{id});
}

/// Workers that wait for an agent wait in vain.
void Fleet::fail(Host* host, const std::string& why, FleetActions* actions) {
  std::set<uint64_t> waiting;
  for (const uint64_t id : host->workers) {
    if (!workers_.at(id).sent) waiting.insert(id);
  }
  for (const uint64_t id : waiting) {
    forget(id);
    actions->push_back(WorkerFailed{id, why});
  }
  host->orders.remove([&](const Order& o) { return waiting.contains(started_by(o)); });
}

FleetActions Fleet::agent_ended(const std::string& name, const std::string& why, Time now) {
  static_cast<void>(now);
  FleetActions actions;
  const auto found = hosts_.find(name);
  if (found == hosts_.end()) return actions;
  Host& host = found->second;
  host.program = false;
  if (host.phase == Phase::kConnected) return actions;
  fail(&host, why, &actions);
  if (host.phase == Phase::kStarting) hosts_.erase(found);
  return actions;
}

FleetActions Fleet::tick(Time now) {
  FleetActions actions;
  for (auto it = hosts_.begin(); it != hosts_.end();) {
    auto& [name, host] = *it;
    if (host.phase == Phase::kConnected || now < host.deadline) {
      ++it;
      continue;
    }
    const bool lost = host.phase == Phase::kLost;
    const std::string why =
        host.hurried ? fmt::format("the agent of host {} did not come back before the end of the job", name)
        : lost       ? fmt::format("the agent of host {} was away for {} s (agent_timeout)", name,
                                   seconds_text(config_.patience))
                     : fmt::format("the agent of host {} did not connect within {} s (connect_timeout)", name,
                                   seconds_text(config_.start_timeout));
    if (!end_) actions.push_back(FleetLog{true, why});
    lose(&host, &actions);
    fail(&host, why, &actions);
    if (host.program) actions.push_back(StopAgent{name});
    if (host.came) actions.push_back(HostsChanged{});
    it = hosts_.erase(it);
  }
  return actions;
}

std::optional<Time> Fleet::next_tick() const {
  std::optional<Time> next;
  for (const auto& [name, host] : hosts_) {
    if (host.phase == Phase::kConnected) continue;
    if (!next || host.deadline < *next) next = host.deadline;
  }
  return next;
}

}  // namespace hvd::agent
