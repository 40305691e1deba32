// A collective on its way to the device, and what NCCL makes of it.
#pragma once

#include <optional>
#include <vector>

#include "hvd/backend.h"
#include "modules/kit/task.h"
#include "modules/nccl/api.h"
#include "modules/nccl/device.h"

namespace hvdnccl {

struct Task : hvdkit::Task {
  Device::Event before;  // what the caller's stream had been given at submit
};

/// Throws Failure: HVD_INVALID, or HVD_UNSUPPORTED where all ranks are refused alike, with what is wrong.
Task checked(const hvd_backend_op& given, int rank, int size);

/// NCCL's type for arithmetic, none for what it can't add: uint16 and int16. bool goes as uint8.
std::optional<NcclType> type_of(hvd_dtype dtype);
NcclReduction reduction_of(hvd_dtype dtype, hvd_reduction reduction);

/// Whether anything is to be moved at all, between more than one rank.
bool needs_communicator(const Task& task);

/// Gives the task's calls, in one group, to a communicator of its ranks. A rank that is alone copies.
/// Throws Failure. kNcclInProgress: they are being queued in the background.
NcclResult launch(Device& device, const Task& task, NcclComm communicator, CuPointer scratch,
                  CuStream stream);

/// A failure of NCCL: HVD_PEER_LOST for what the loss of a peer looks like.
[[noreturn]] void throw_nccl(const Libraries& libraries, NcclResult result, const char* what);

}  // namespace hvdnccl
