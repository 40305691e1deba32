// Assignment as it comes by the wire, checked and made plain.
#pragma once

#include <string>

#include "session/session.h"

namespace hvd::session {

/// Members as received; throws Error(HVD_INVALID) if they make no generation with this worker in it.
Assignment to_assignment(uint64_t generation, const wire::AssignmentT& received, uint64_t worker);

}  // namespace hvd::session
