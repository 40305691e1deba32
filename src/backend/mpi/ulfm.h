// What a fault-tolerant MPI (ULFM) adds, where the headers have it and the run has it switched on.
#pragma once

#include <mpi.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

namespace hvdmpi {

/// Peers that wait on `comm` see at once that this rank has given it up.
inline void revoke(MPI_Comm comm) {
#if defined(MPIX_ERR_REVOKED) && defined(OMPI_HAVE_MPI_EXT_FTMPI)
  if (comm != MPI_COMM_NULL) MPIX_Comm_revoke(comm);  // an error where fault tolerance is off
#else
  static_cast<void>(comm);
#endif
}

}  // namespace hvdmpi
