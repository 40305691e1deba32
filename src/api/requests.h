// Reads and checks an hvd_request.
#pragma once

#include "api/calls.h"
#include "hvd/direct.h"

namespace hvd::api {

/// Throws Error(HVD_INVALID) or Error(HVD_UNSUPPORTED), naming field, value and what was expected.
Call request_call(hvd_context& context, const hvd_request* request);

/// The collective of a backend that carries this one.
hvd_collective carried_by(hvd_collective collective);

}  // namespace hvd::api
