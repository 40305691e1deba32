// What agents see of their workers' processes: whether they run, and the moment at which one dies.
#include <fmt/format.h>

#include "agent/server_impl.h"
#include "base/digest.h"

namespace hvd::agent {

void Server::set_process(uint64_t worker, const launch::ProcessClaim& claim) {
  apply(fleet_.watch(worker, claim));
}

launch::Life Server::life(uint64_t worker) const {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return launch::Life::kEnded;
  // An agent that fell silent told nothing about the present.
  const bool fresh = clock_.now() - found->second->seen < 3 * config_.heartbeat_interval;
  return fresh ? found->second->life : launch::Life::kUnknown;
}

/// The owner of the worker's connection knows whether that is its present life.
void Server::died(const ConnectionPtr& connection, const wire::AgentDiedT& said) {
  const auto ignore = [&](hvd_log_level level, const char* why) {
    if (!notes_.pass(now())) return;
    logger_->write(level, fmt::format("the agent of host {} says that worker {} has died, {}: ignored",
                                      connection->host, said.worker, why));
  };
  const std::optional<std::string> host = fleet_.host_of(said.worker);
  if (!host) return ignore(HVD_LOG_DEBUG, "of which nothing is left");
  if (*host != connection->host) return ignore(HVD_LOG_WARNING, "which is another host's");
  if (said.life_token == nullptr) return ignore(HVD_LOG_WARNING, "and names no life of it");
  if (!events_.died) return;
  later([this, worker = said.worker, token = wire::to_digest(said.life_token.get())] {
    events_.died(worker, token);
  });
}

}  // namespace hvd::agent
