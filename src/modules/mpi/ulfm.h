// What a fault-tolerant MPI (ULFM) adds, where the headers have it and the run has it switched on: deaths are
// errors that MPI gives, and what waits for others can be ended.
#pragma once

#include <mpi.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include "hvd/backend.hpp"

namespace hvdmpi {

#if defined(MPIX_ERR_REVOKED) && defined(MPIX_FT) && defined(OMPI_HAVE_MPIX_COMM_GET_FAILED)

/// Whether this run has it (`mpirun --with-ft ulfm`): MPI says so in an attribute of the world. Once MPI has
/// begun.
inline bool fault_tolerant() {
  int* on = nullptr;
  int known = 0;
  return MPI_Comm_get_attr(MPI_COMM_WORLD, MPIX_FT, &on, &known) == MPI_SUCCESS && known != 0 && *on != 0;
}

/// Everybody's calls on `comm` end, now and from here on. Any thread.
inline void revoke(MPI_Comm comm) { MPIX_Comm_revoke(comm); }

/// The failure with the rank that MPI knows to be dead, the lowest if there are several.
inline hvdkit::Failure blamed(const hvdkit::Failure& failure, MPI_Comm comm) {
  int kind = 0;
  if (failure.rank >= 0 || failure.vendor_code == 0 ||
      MPI_Error_class(static_cast<int>(failure.vendor_code), &kind) != MPI_SUCCESS)
    return failure;
  if (kind != MPIX_ERR_PROC_FAILED && kind != MPIX_ERR_PROC_FAILED_PENDING && kind != MPIX_ERR_REVOKED)
    return failure;
  MPI_Group dead = MPI_GROUP_NULL, all = MPI_GROUP_NULL;
  int size = 0, rank = -1;
  const int first = 0;
  if (MPIX_Comm_get_failed(comm, &dead) == MPI_SUCCESS && MPI_Group_size(dead, &size) == MPI_SUCCESS &&
      size > 0 && MPI_Comm_group(comm, &all) == MPI_SUCCESS) {
    MPI_Group_translate_ranks(dead, 1, &first, all, &rank);
    MPI_Group_free(&all);
  }
  if (dead != MPI_GROUP_NULL && dead != MPI_GROUP_EMPTY) MPI_Group_free(&dead);
  if (rank < 0) return failure;
  return {failure.status, std::string(failure.what()) + ": MPI has lost rank " + std::to_string(rank), rank,
          failure.vendor_code};
}

#else

inline bool fault_tolerant() { return false; }
inline void revoke(MPI_Comm) {}
inline hvdkit::Failure blamed(const hvdkit::Failure& failure, MPI_Comm) { return failure; }

#endif

}  // namespace hvdmpi
