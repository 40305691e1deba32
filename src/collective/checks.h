// What can be said about a submission without asking other ranks.
#pragma once

#include "backend/backend.h"
#include "collective/engine.h"
#include "collective/messages.h"

namespace hvd::collective {

/// HVD_OK, HVD_INVALID (a bug in the program) or HVD_UNSUPPORTED (no backend in use can).
Status check(const Submission& submission, int32_t rank, int32_t size, const backend::Instance& backend);

/// Fills in what was left out of a submission that passed the check: outputs, splits.
void complete_submission(Submission* submission, int32_t size);

}  // namespace hvd::collective
