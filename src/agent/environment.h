// The environment of a worker that an agent starts. Pure.
#pragma once

#include <string>
#include <vector>

namespace hvd::agent {

/// The part of a driver's environment that agents get: neither its secret nor a shell's functions.
std::vector<std::string> sendable(const std::vector<std::string>& environment);

/// Variables that tell of a host or a login rather than of the job: HOME, HOSTNAME, TMPDIR, SSH_*, SLURM_*,
/// ...
bool is_of_host(const std::string& name);

/// base: the driver's. own: the agent's. A worker gets the driver's, but of the host's variables the agent's;
/// or the agent's alone (own_only). Over both: request, and HVD_DRIVER as the agent reaches it.
std::vector<std::string> worker_environment(const std::vector<std::string>& base,
                                            const std::vector<std::string>& own, bool own_only,
                                            const std::vector<std::string>& request,
                                            const std::string& driver);

/// The value of PATH in an environment, or a usual one.
std::string path_of(const std::vector<std::string>& environment);

}  // namespace hvd::agent
