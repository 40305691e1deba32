// MPI datatypes and operators, with our own for half precision.
#include "modules/mpi/reduction.h"

#include <array>
#include <mutex>
#include <utility>

#include "modules/mpi/runtime.h"
#include "numeric/reduce.h"

namespace hvdmpi {
namespace {

constexpr int kDtypes = HVD_DTYPE_BOOL + 1;
constexpr int kReductions = HVD_REDUCTION_PRODUCT + 1;

// MPI tells an operator its type, which says nothing about dtype and reduction: one function for each pair.
template <int kPair>
void reduce_pair(void* in, void* inout, int* length, MPI_Datatype*) {
  const void* const inputs[] = {in, inout};
  constexpr auto kDtype = static_cast<hvd_dtype>(kPair / kReductions);
  constexpr auto kReduction = static_cast<hvd_reduction>(kPair % kReductions);
  hvd::reduce_many(kDtype, kReduction == HVD_REDUCTION_AVERAGE ? HVD_REDUCTION_SUM : kReduction, inout,
                   inputs, 2, static_cast<size_t>(*length), 1);
}

template <size_t... kPairs>
constexpr std::array<MPI_User_function*, sizeof...(kPairs)> functions_of(std::index_sequence<kPairs...>) {
  return {&reduce_pair<static_cast<int>(kPairs)>...};
}
constexpr auto kFunctions = functions_of(std::make_index_sequence<size_t{kDtypes} * kReductions>());

std::mutex guard;
MPI_Datatype half = MPI_DATATYPE_NULL;
std::array<MPI_Op, kFunctions.size()> operators;
std::array<bool, kFunctions.size()> made{};

// Whether `ours` has to do it: minimum and maximum of floats treat NaN as base/reduce.h does, the same on
// every backend.
bool ours(hvd_dtype dtype, hvd_reduction reduction) {
  if (hvd::is_narrow_float(dtype) || dtype == HVD_DTYPE_BOOL) return true;
  return (dtype == HVD_DTYPE_FLOAT32 || dtype == HVD_DTYPE_FLOAT64) &&
         (reduction == HVD_REDUCTION_MIN || reduction == HVD_REDUCTION_MAX);
}

}  // namespace

MPI_Datatype type_of(hvd_dtype dtype) {
  switch (dtype) {
    case HVD_DTYPE_UINT8:
    case HVD_DTYPE_BOOL: return MPI_UINT8_T;
    case HVD_DTYPE_INT8: return MPI_INT8_T;
    case HVD_DTYPE_UINT16: return MPI_UINT16_T;
    case HVD_DTYPE_INT16: return MPI_INT16_T;
    case HVD_DTYPE_UINT32: return MPI_UINT32_T;
    case HVD_DTYPE_INT32: return MPI_INT32_T;
    case HVD_DTYPE_UINT64: return MPI_UINT64_T;
    case HVD_DTYPE_INT64: return MPI_INT64_T;
    case HVD_DTYPE_FLOAT32: return MPI_FLOAT;
    case HVD_DTYPE_FLOAT64: return MPI_DOUBLE;
    default: break;
  }
  std::lock_guard<std::mutex> lock(guard);
  if (half == MPI_DATATYPE_NULL) {
    MPI_Datatype made_type = MPI_DATATYPE_NULL;
    check(MPI_Type_contiguous(2, MPI_BYTE, &made_type), "MPI_Type_contiguous");
    check(MPI_Type_commit(&made_type), "MPI_Type_commit");
    half = made_type;
  }
  return half;
}

MPI_Op operator_of(hvd_dtype dtype, hvd_reduction reduction) {
  if (!ours(dtype, reduction)) {
    switch (reduction) {
      case HVD_REDUCTION_MIN: return MPI_MIN;
      case HVD_REDUCTION_MAX: return MPI_MAX;
      case HVD_REDUCTION_PRODUCT: return MPI_PROD;
      default: return MPI_SUM;
    }
  }
  const size_t pair = static_cast<size_t>(dtype) * kReductions + static_cast<size_t>(reduction);
  std::lock_guard<std::mutex> lock(guard);
  if (!made[pair]) {
    check(MPI_Op_create(kFunctions[pair], 1, &operators[pair]), "MPI_Op_create");
    made[pair] = true;
  }
  return operators[pair];
}

}  // namespace hvdmpi
