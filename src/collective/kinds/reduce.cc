// Reduce: one tensor, reduced over all ranks, to the root. It is an allreduce, which backends have: the other
// ranks reduce into memory of their own.
#include "collective/kinds/shared.h"
#include "hvd/direct.h"

namespace hvd::collective {

namespace {

void reduce_aside(Submission* s, int32_t rank, int32_t size) {
  require_root(*s, size);
  if (rank == s->root) return;
  s->outputs.assign(1, s->inputs[0]);
  const int64_t bytes = spec_bytes(s->inputs[0].dtype, s->inputs[0].shape);
  if (bytes <= 0) return;                                     // nothing, or refused as such
  s->scratch.reset(new uint8_t[static_cast<size_t>(bytes)]);  // not filled: it is written over
  s->outputs[0].data = s->scratch.get();
}

Status validate(const Validation& v) {
  if (is_device(v.submission().inputs[0])) return v.unsupported("reduces to one rank in host memory alone");
  return allreduce::validate(v);
}

constexpr Form kForms[] = {{.collective = HVD_COLLECTIVE_REDUCE,
                            .name = "reduce",
                            .inputs = Given::kEverywhere,
                            .outputs = Given::kAtRoot}};

}  // namespace

extern const Row kReduceRow;
const Row kReduceRow{.kind = Kind::kReduce,
                     .name = "reduce",
                     .forms = kForms,
                     .collective = HVD_COLLECTIVE_ALLREDUCE,
                     .travels = Travel::kEverybodys,
                     .rooted = true,
                     .reduces = true,
                     .resolve = reduce_aside,
                     .validate = validate,
                     .inspect = allreduce::inspect,
                     .decide = allreduce::decide,
                     .misfit = allreduce::misfit,
                     .plan = plan_parts,
                     .parts = allreduce::parts};

}  // namespace hvd::collective
