// Who has started this process, as far as MPI is concerned.
#pragma once

namespace hvdmpi {

/// True if an MPI launcher has started it in a group. A worker that a driver has started is in none, though the driver
/// may itself use srun or mpirun to start it.
bool launched_in_group();

/// Takes from the environment of a driver's worker what would make MPI look for a group that the worker isn't in.
void forget_launcher();

}  // namespace hvdmpi
