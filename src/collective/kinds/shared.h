// What the row of one collective takes from the file of another, which it resembles.
#pragma once

#include <vector>

#include "collective/decision.h"
#include "collective/plan.h"
#include "collective/validation.h"

namespace hvd::collective {

// broadcast.cc, also of a send
namespace broadcast {
Status validate(const Validation&);
const char* inspect(const Signature&, size_t members);
void decide(Decision&);
Fit misfit(const Answer&);
void parts(const Operation&, std::vector<backend::Part>* ret_parts);
}  // namespace broadcast

// allreduce.cc, also of a reduce
namespace allreduce {
Status validate(const Validation&);
const char* inspect(const Signature& call, size_t members);
void decide(Decision&);
Fit misfit(const Answer&);
void parts(const Operation&, std::vector<backend::Part>* ret_parts);
}  // namespace allreduce

// alltoall.cc, also of a gather and a scatter: alltoalls in which the root alone gets, or has, any rows
namespace alltoall {
Status validate_on_host(const Validation&);
void decide(Decision&);
Fit misfit(const Answer&);
Status place(Answer&, bool discard);
Status plan(Plan&, Answer&);
}  // namespace alltoall

/// Throws Error(HVD_INVALID) unless the root is a rank.
void require_root(const Submission&, int32_t size);

}  // namespace hvd::collective
