// Memory that MPI may still touch, since what it was given for was abandoned.
#pragma once

#include <memory>

#include "modules/mpi/operation.h"

namespace hvdmpi {

/// Until MPI has finished with it after all.
void keep(std::unique_ptr<Slot> slot);
/// Frees what MPI has finished with since.
void sweep_kept();

}  // namespace hvdmpi
