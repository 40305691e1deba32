// Ends of workers' processes, told before their connections end: by the driver itself on its own machine, by
// agents elsewhere.
#include <algorithm>

#include "driver/rendezvous_impl.h"

namespace hvd::driver {
namespace {

constexpr int kQuietTurns = 16;
constexpr Duration kLastFrames = std::chrono::milliseconds(50);

}  // namespace

/// A process tells of its end sooner than its connection, the more memory it has (base/life.h). A life that
/// can't be watched from here is left in the claim, for whoever is on the worker's host.
void RendezvousServer::watch_life(const ConnectionPtr& connection) {
  launch::ProcessClaim& claim = connection->process;
  if (claim.life < 0) return;
  const bool watched = lives_.watch(connection->worker, claim.process, claim.life, claim.life_token,
                                    [this, weak = std::weak_ptr<Connection>(connection)] {
                                      loop_.post([this, weak] {
                                        if (const ConnectionPtr dead = weak.lock())
                                          died(dead, "connection closed", 0, now() + kLastFrames);
                                      });
                                    });
  if (watched) {
    claim.life = -1;
  } else {
    logger_->debug("worker {}: nothing on this machine tells of its end but its connection",
                   connection->worker);
  }
}

void RendezvousServer::life_ended(uint64_t worker, const Digest& token, const std::string& witness) {
  const auto found = connections_.find(worker);
  if (found == connections_.end()) return;  // its connection was faster, or this is said again
  const ConnectionPtr connection = found->second;
  if (connection->process.life < 0 || connection->process.life_token != token) {
    return note(*connection, HVD_LOG_DEBUG,
                fmt::format("{} says that worker {} has died, by a life that is not its own: ignored",
                            witness, worker));
  }
  died(connection, fmt::format("its process has died, says {}", witness), 0, now() + kLastFrames);
}

std::optional<launch::ProcessClaim> RendezvousServer::process(uint64_t worker) const {
  const auto found = connections_.find(worker);
  return found == connections_.end() ? std::nullopt : std::optional(found->second->process);
}

/// What it said before is heard first: that it was done, for one.
void RendezvousServer::died(const ConnectionPtr& connection, const std::string& why, int quiet_turns,
                            Time deadline) {
  if (connection->over) return;
  if (quiet_turns >= kQuietTurns || now() >= deadline)
    return lose(connection, membership::LossKind::kConnectionClosed, why);
  const int quiet = connection->channel->pending() ? 0 : quiet_turns + 1;
  loop_.post([this, weak = std::weak_ptr<Connection>(connection), why, quiet, deadline] {
    if (const ConnectionPtr dead = weak.lock()) died(dead, why, quiet, deadline);
  });
}

}  // namespace hvd::driver
