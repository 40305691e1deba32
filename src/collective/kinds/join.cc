// Join: complete when all ranks have called it; until then the others run without those that have.
#include <algorithm>

#include "collective/decision.h"
#include "collective/validation.h"

namespace hvd::collective {

namespace {

Status validate(const Validation& v) {
  return v.submission().members.empty() ? Status() : v.invalid("all ranks join, not a process set");
}

void decide(Decision& d) {
  d.outcome().word = static_cast<uint64_t>(d.last_joined);
  for (const int32_t r : d.ranks()) d.outcome().checks = std::max(d.outcome().checks, d.request(r).checks);
}

constexpr Form kForms[] = {{.collective = HVD_COLLECTIVE_JOIN, .name = "join", .own_name = "hvd.join"}};

}  // namespace

extern const Row kJoinRow;
const Row kJoinRow{.kind = Kind::kJoin,
                   .name = "join",
                   .forms = kForms,
                   .joins = true,
                   .patient = true,
                   .validate = validate,
                   .decide = decide};

}  // namespace hvd::collective
