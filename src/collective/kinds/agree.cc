// Agreement: the maximum of a 64-bit word. The core's own; checks of host updates ask by it (agreement.h).
#include <algorithm>

#include "collective/decision.h"
#include "collective/matcher.h"

namespace hvd::collective {

namespace {

void decide(Decision& d) {
  for (const int32_t r : d.ranks()) d.outcome().word = std::max(d.outcome().word, d.request(r).word);
  if (d.call().name != kCheckName) return;
  const uint64_t checks = d.request(d.ranks()[0]).checks;
  d.agreement.propose(checks);
  if (const Proposal* proposal = d.agreement.settle(checks + 1)) d.outcome().word = proposal->word;
}

}  // namespace

extern const Row kAgreeRow;
const Row kAgreeRow{.kind = Kind::kAgree, .name = "agreement", .decide = decide};

}  // namespace hvd::collective
