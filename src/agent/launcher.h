// Starts workers where their host says: on this machine by the local launcher, elsewhere by the host's agent.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "agent/server.h"
#include "launch/launcher.h"

namespace hvd::agent {

/// `local` may be null: then every host has an agent. is_local: of hosts that have none. `server` lives
/// longer.
std::unique_ptr<launch::Launcher> make_launcher(Server& server, std::unique_ptr<launch::Launcher> local,
                                                std::function<bool(const std::string& host)> is_local);

}  // namespace hvd::agent
