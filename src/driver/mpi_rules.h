// What a job whose workers use Open MPI needs of the driver: whether it needs anything, and which MCA parameters
// go to the workers and to the server through which they meet. Pure: what is set already comes in as a question.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hvd::driver {

/// The backend that workers will use: HVD_BACKEND among their own variables, else the option.
std::string backend_of_workers(const std::string& option, const std::vector<std::string>& environment);

/// Does that backend meet its peers through ompi-server? "auto" does not: it takes MPI only under mpirun or srun.
bool meets_through_ompi_server(std::string_view backend);

/// Whether processes of this MPI (as its module has it, "Open MPI 5.0.11") meet through hvd-pmix-server: Open MPI has its own
/// ompi-server up to version 4.
bool meets_through_pmix_server(std::string_view version);

struct MpiPlace {
  std::string uri;       // of the server, as it reports it; empty: somebody else's is used
  std::string sessions;  // private directory for session directories
  std::string shared;    // private directory for segments of shared memory; empty: the workers are elsewhere
  bool loopback = true;  // all of the job is on this machine: MPI stays on its loopback
  bool pmix = false;     // the server is hvd-pmix-server
};

/// Variables for the workers ("NAME=value"). What `is_set` says to be set already stays as the user has it, but for
/// the address of the server.
std::vector<std::string> mpi_worker_environment(const MpiPlace& place,
                                                const std::function<bool(const std::string& name)>& is_set);

/// An environment without what an MPI launcher around the driver has left there: processes that inherited it would
/// look for a group that they are not in. The same where no launcher was.
std::vector<std::string> without_launcher(const std::vector<std::string>& environment);

/// The server's environment, out of the driver's: without a launcher's variables and addresses of other servers, with
/// the private directory.
std::vector<std::string> ompi_server_environment(const MpiPlace& place,
                                                 const std::vector<std::string>& environment);

/// Where hvd-pmix-server is to listen if the driver listens at `listen` ("address:port"): an address, or "any"; "" for the
/// loopback.
std::string pmix_address(std::string_view listen);

/// The variable in which a worker finds the server's address.
const char* server_variable(bool pmix);

/// "1067384832.0;tcp://127.0.0.1:54007": the address in a line of ompi-server's output; "PMIX_NAMESPACE=hvd7|...": of
/// hvd-pmix-server's, after "hvd-pmix: ".
std::optional<std::string> uri_of(std::string_view line);

}  // namespace hvd::driver
