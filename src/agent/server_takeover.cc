// Agents of an earlier driver of the job, and agents that a later one has.
#include <csignal>
#include <vector>

#include "agent/server_impl.h"
#include "launch/keeper.h"

namespace hvd::agent {

/// The programs by which the driver before this one has started agents: they are the agents' connection to
/// this machine.
void Server::inherit_programs() {
  if (!config_.keeper) return;
  for (const launch::InheritedWorker& kept : config_.keeper->take_agents()) {
    auto program = std::make_shared<Program>();
    program->command = fmt::format("what has started it (process {})", kept.pid);
    try {
      program->process = launch::Process::inherit(loop_, {kept.pid, kept.out, kept.err, kept.exit_status},
                                                  handlers_of(kept.host, program), options_of(kept.host));
    } catch (const Error& error) {
      logger_->warning("the agent of host {} can't be watched any more: {}", kept.host, error.what());
      continue;
    }
    programs_[kept.host] = std::move(program);
    fleet_.expect(kept.host, 0, true, clock_.now());
  }
  apply({});
}

bool Server::expect(const std::string& host, int32_t slots) {
  const bool changed = fleet_.expect(host, slots, false, clock_.now());
  if (changed && hosts_changed_) later(hosts_changed_);
  apply({});
  return changed;
}

void Server::expect(uint64_t worker, const std::string& host, int32_t slot) {
  fleet_.expect(worker, host, slot, clock_.now());
  add_worker(worker, host, slot);
  apply({});
}

void Server::hurry(Duration patience) {
  fleet_.hurry(patience, clock_.now());
  apply({});
}

void Server::forget(uint64_t worker) {
  fleet_.forget(worker);
  workers_.erase(worker);
}

void Server::add_worker(uint64_t id, const std::string& host, int32_t slot) {
  if (workers_.contains(id)) return;
  auto worker = std::make_unique<Worker>();
  worker->host = host;
  try {
    worker->output =
        std::make_unique<launch::WorkerOutput>(output_, config_.output_directory, host, slot, id);
  } catch (const Error& error) {
    logger_->warning("{}", error.what());
    worker->output = std::make_unique<launch::WorkerOutput>(output_, "", host, slot, id);
  }
  workers_[id] = std::move(worker);
}

void Server::perform(WorkerFound& action) {
  add_worker(action.worker, action.host, action.slot);
  later([this, a = action] {
    if (found_) found_(a.worker, a.host, a.slot);
  });
}

void Server::retire() {
  if (std::exchange(retired_, true)) return;
  tick_.cancel();
  silence_.cancel();
  for (const auto& [host, connection] : std::exchange(connections_, {})) {
    connection->over = true;
    connection->channel->close(kLinger);
  }
  std::vector<std::string> hosts;
  for (const auto& [host, slots] : fleet_.hosts()) {
    if (!programs_.contains(host)) hosts.push_back(host);
  }
  for (const std::string& host : hosts) let_go_of(host);
}

/// Its workers, if there are any left, are not this driver's to watch.
void Server::let_go_of(const std::string& host) {
  for (auto it = workers_.begin(); it != workers_.end();) {
    if (it->second->host != host) {
      ++it;
      continue;
    }
    later([this, id = it->first] { events_.gone(id); });
    it = workers_.erase(it);
  }
}

}  // namespace hvd::agent
