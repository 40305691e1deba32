// Assignment as it comes by the wire, checked and made plain.
#pragma once

#include <string>

#include "session/session.h"
#include "wire/names.h"
#include "wire/roster.h"

namespace hvd::session {

/// Members as received; known: the generation that this worker was assigned last, or null. Throws
/// Error(HVD_INVALID) if they make no generation with this worker in it.
Assignment to_assignment(uint64_t generation, const wire::AssignmentT& received, uint64_t worker,
                         const wire::Known* known);

}  // namespace hvd::session
