// What a job whose workers use Open MPI needs: which server they meet through, and which variables go to the
// workers and to that server. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hvdmpi::helper {

using Strings = std::vector<std::string>;

/// What the driver says of the job, and what is there for it.
struct Place {
  std::string uri;       // of the server, as it reports it; empty: somebody else's is used
  std::string sessions;  // private directory for session directories
  std::string shared;    // private directory for segments of shared memory; empty: the workers are elsewhere
  bool loopback = true;  // all of the job is on this machine: MPI stays on its loopback
  bool pmix = false;     // the server is hvd-pmix-server: Open MPI has its own ompi-server up to version 4
};

/// Whether the driver that listens at `listen` ("address:port") is reached by this machine alone.
bool on_loopback(std::string_view listen);

/// Where hvd-pmix-server is to listen if the driver listens at `listen`: an address, or "any"; "" for the
/// loopback.
std::string pmix_address(std::string_view listen);

/// The variable in which a worker finds the server's address.
const char* server_variable(bool pmix);

/// Whether an environment, as without_launcher gives it, names a server that is there already. A worker of
/// another job, which the driver may be, has that job's PMIx server, where it is known by its number: the
/// workers of this job would be taken for others of that one.
bool names_server(const Strings& environment, bool pmix);

/// Lines for the driver, about the workers' environment: "set NAME=value", "default NAME=value".
Strings worker_variables(const Place& place, const Strings& environment);

/// An environment without what an MPI launcher around the driver has left there: processes that inherited it
/// would look for a group that they are not in. The same where no launcher was.
Strings without_launcher(const Strings& environment);

/// The names of what it leaves out.
Strings left_by_launcher(const Strings& environment);

/// The server's environment, out of the driver's: without a launcher's variables, addresses of other servers
/// and the job's secret, with the private directory.
Strings server_environment(const Place& place, const Strings& environment);

/// "1067384832.0;tcp://127.0.0.1:54007": the address in a line of ompi-server's output;
/// "PMIX_NAMESPACE=hvd7|...": of hvd-pmix-server's, after "hvd-pmix: ".
std::optional<std::string> uri_of(std::string_view line);

}  // namespace hvdmpi::helper
