// Reducescatter: one tensor, reduced over all ranks; each rank gets its rows of the result.
#include <fmt/format.h>

#include <cstring>

#include "collective/decision.h"
#include "collective/plan.h"
#include "collective/validation.h"
#include "numeric/dtype.h"
#include "numeric/reduce.h"

namespace hvd::collective {

namespace {

Status validate(const Validation& v) {
  const Submission& s = v.submission();
  if (Status status = v.reduction(); !status.ok()) return status;
  if (Status status = v.one_with_splits(); !status.ok()) return status;
  if (!s.splits.empty()) return v.room(s.splits[static_cast<size_t>(v.index())]);
  const int64_t rows = s.inputs[0].shape[0];
  return v.room(rows / v.members() + (v.index() < rows % v.members() ? 1 : 0));
}

void decide(Decision& d) {
  if (d.alone() || d.bytes() == 0) return;
  if (!d.carried()) return d.run(1);
  d.reduce();
  const size_t row = row_bytes(d.call().specs[0]);
  size_t at = 0;
  for (size_t i = 0; i < d.ranks().size(); ++i) {
    Outcome& own = d.own(d.ranks()[i]);
    own.carries = true;
    const size_t bytes = row * static_cast<size_t>(d.call().splits[i]);
    const auto part = d.outcome().payload.bytes().subspan(at, bytes);
    own.payload = std::vector(part.begin(), part.end());
    at += bytes;
  }
}

Fit misfit(const Answer& a) {
  const Submission& s = a.submission();
  if (a.me() >= s.splits.size()) return {"it is of other members", {}};
  if (a.op.call->payload == 0) return {};
  return {nullptr, row_bytes(a.op.call->specs[0]) * static_cast<size_t>(s.splits[a.me()])};
}

Status place(Answer& a, bool discard) {
  begin_results(a);
  const Submission& s = a.submission();
  return place_result(a, 0, with_rows(s.inputs[0], std::span(&s.splits[a.me()], 1)), discard);
}

Status plan(Plan& plan, Answer& a) {
  if (Status status = place(a, !plan.alone()); !status.ok()) return status;
  const Submission& s = a.submission();
  const Tensor& in = s.inputs[0];
  const auto elements = static_cast<size_t>(in.elements());
  const void* input = in.data;
  if (s.prescale != 1 && elements > 0) {
    uint8_t* scaled = plan.scratch(in.bytes());
    if (scaled == nullptr) {
      return Status(HVD_INTERNAL,
                    fmt::format("reducescatter '{}': no memory for {} bytes", s.name, in.bytes()));
    }
    std::memcpy(scaled, in.data, in.bytes());
    scale(in.dtype, scaled, elements, s.prescale);
    input = scaled;
  }
  if (plan.alone()) {  // its own data is the result
    if (a.op.verdict.ok() && elements > 0) std::memcpy(a.op.results[0].data, input, in.bytes());
    return {};
  }
  auto& step = plan.add(a.op, HVD_COLLECTIVE_REDUCESCATTER, in.dtype);
  add_counts(&step.counts, in, s.splits);
  step.op.input = input;
  step.op.output = a.op.results[0].data;
  step.op.count = elements;
  return {};
}

constexpr Form kForms[] = {{.collective = HVD_COLLECTIVE_REDUCESCATTER,
                            .name = "reducescatter",
                            .inputs = Given::kEverywhere,
                            .outputs = Given::kEverywhere,
                            .splits = true}};

}  // namespace

extern const Row kReducescatterRow;
const Row kReducescatterRow{.kind = Kind::kReducescatter,
                            .name = "reducescatter",
                            .forms = kForms,
                            .collective = HVD_COLLECTIVE_REDUCESCATTER,
                            .travels = Travel::kEverybodys,
                            .reduces = true,
                            .splits = true,
                            .equal_splits = true,
                            .needs_all = true,
                            .validate = validate,
                            .inspect = inspect_splits,
                            .decide = decide,
                            .misfit = misfit,
                            .place = place,
                            .plan = plan};

}  // namespace hvd::collective
