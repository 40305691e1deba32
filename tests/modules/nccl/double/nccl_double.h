// What tests tell libnccl_double.so.
#pragma once

#include "modules/nccl/double/double.h"

namespace hvddouble {

HVD_DOUBLE void set_nccl_version(int version);
/// What ncclCommGetAsyncError says of communicators that are not in progress; 0: all is well.
HVD_DOUBLE void set_async_error(int result);
/// ncclCommAbort does not return before this is false again.
HVD_DOUBLE void hang_aborts(bool hang);

}  // namespace hvddouble
