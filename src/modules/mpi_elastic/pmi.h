// A process that no launcher started is a job of its own to MPICH, and all such jobs have the same name
// there: "the same processes", which it does not join. So the module launches the process to itself: it
// offers what mpiexec would, PMI version 1 on a socket, with a name that no other process has.
#pragma once

namespace hvdmpi {

/// While it lives the environment names the socket, for MPI_Init_thread to find; children that are started
/// meanwhile see the variables, but not the socket. The thread that answers stays, asleep, for what MPI may
/// ask later: until MPI closes its end (MPI_Finalize), or the process ends.
class OwnLauncher {
 public:
  OwnLauncher();  // throws Failure(HVD_UNAVAILABLE)
  ~OwnLauncher();
  OwnLauncher(const OwnLauncher&) = delete;
  OwnLauncher& operator=(const OwnLauncher&) = delete;
};

}  // namespace hvdmpi
