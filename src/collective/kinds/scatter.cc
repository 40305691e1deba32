// Scatter: the rows of one tensor of the root, dealt out to the ranks: an alltoall in which it has them all.
#include "collective/kinds/shared.h"
#include "hvd/direct.h"

namespace hvd::collective {

namespace {

void split_from_root(Submission* s, int32_t rank, int32_t size) {
  require_root(*s, size);
  const bool root = rank == s->root;
  if (!root) {  // nothing to send: no rows of what comes
    Tensor none;
    none.dtype = s->outputs[0].dtype;
    none.shape = s->outputs[0].shape;
    if (!none.shape.empty()) none.shape[0] = 0;
    s->inputs.assign(1, std::move(none));
  }
  if (s->inputs[0].shape.empty()) return;  // refused as such
  if (root && !s->splits.empty()) return;
  const auto count = static_cast<int64_t>(s->members.empty() ? size_t(size) : s->members.size());
  const int64_t rows = s->inputs[0].shape[0];
  s->splits.clear();
  for (int64_t i = 0; i < count; ++i) s->splits.push_back(rows / count + (i < rows % count ? 1 : 0));
}

constexpr Form kForms[] = {{.collective = HVD_COLLECTIVE_SCATTER,
                            .name = "scatter",
                            .inputs = Given::kAtRoot,
                            .outputs = Given::kEverywhere,
                            .splits = true}};

}  // namespace

extern const Row kScatterRow;
const Row kScatterRow{.kind = Kind::kScatter,
                      .name = "scatter",
                      .forms = kForms,
                      .collective = HVD_COLLECTIVE_ALLTOALL,
                      .travels = Travel::kEverybodys,
                      .rooted = true,
                      .own_rows = true,
                      .splits = true,
                      .needs_all = true,
                      .resolve = split_from_root,
                      .validate = alltoall::validate_on_host,
                      .inspect = inspect_splits,
                      .decide = alltoall::decide,
                      .misfit = alltoall::misfit,
                      .place = alltoall::place,
                      .plan = alltoall::plan};

}  // namespace hvd::collective
