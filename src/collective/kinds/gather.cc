// Gather: one tensor of each rank, joined along their first dimension, to the root: an alltoall in which all
// rows go to it.
#include <algorithm>

#include "collective/kinds/shared.h"
#include "hvd/direct.h"

namespace hvd::collective {

namespace {

void split_to_root(Submission* s, int32_t, int32_t size) {
  require_root(*s, size);
  if (s->inputs[0].shape.empty()) return;  // refused as such
  const auto& members = s->members;
  const auto place =
      members.empty()
          ? static_cast<size_t>(s->root)
          : static_cast<size_t>(std::lower_bound(members.begin(), members.end(), s->root) - members.begin());
  s->splits.assign(members.empty() ? static_cast<size_t>(size) : members.size(), 0);
  if (place < s->splits.size()) s->splits[place] = s->inputs[0].shape[0];
}

constexpr Form kForms[] = {{.collective = HVD_COLLECTIVE_GATHER,
                            .name = "gather",
                            .inputs = Given::kEverywhere,
                            .outputs = Given::kAtRoot}};

}  // namespace

extern const Row kGatherRow;
const Row kGatherRow{.kind = Kind::kGather,
                     .name = "gather",
                     .forms = kForms,
                     .collective = HVD_COLLECTIVE_ALLTOALL,
                     .travels = Travel::kEverybodys,
                     .rooted = true,
                     .own_rows = true,
                     .splits = true,
                     .needs_all = true,
                     .received = true,
                     .resolve = split_to_root,
                     .validate = alltoall::validate_on_host,
                     .inspect = inspect_splits,
                     .decide = alltoall::decide,
                     .misfit = alltoall::misfit,
                     .place = alltoall::place,
                     .plan = alltoall::plan};

}  // namespace hvd::collective
