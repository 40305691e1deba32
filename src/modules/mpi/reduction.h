// MPI's types and operators for what hvd.h knows.
#pragma once

#include <mpi.h>

#include "hvd/backend.h"

namespace hvdmpi {

/// Of a dtype that check_op let pass. For float16 and bfloat16, which MPI doesn't know, a type of our own.
MPI_Datatype type_of(hvd_dtype dtype);

/// MPI's operator where it does what base/reduce.h says, else one of our own. HVD_REDUCTION_AVERAGE: the sum.
MPI_Op operator_of(hvd_dtype dtype, hvd_reduction reduction);

}  // namespace hvdmpi
