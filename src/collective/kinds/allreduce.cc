// Allreduce: one or more tensors, reduced over all ranks, to all.
#include <cstring>

#include "collective/kinds/shared.h"
#include "numeric/reduce.h"

namespace hvd::collective {

namespace allreduce {

Status validate(const Validation& v) {
  const Submission& s = v.submission();
  if (Status status = v.pairs(true); !status.ok()) return status;
  if (Status status = v.reduction(); !status.ok()) return status;
  if (Status status = v.group(s.inputs, "input"); !status.ok()) return status;
  if (s.inputs == s.outputs) return {};
  if (Status status = v.group(s.outputs, "output"); !status.ok()) return status;
  for (size_t i = 0; i < s.inputs.size(); ++i) {
    const Tensor& in = s.inputs[i];
    const Tensor& out = s.outputs[i];
    if (Status status = v.same_dtype(in, out); !status.ok()) return status;
    if (Status status = v.same_shape(in, out); !status.ok()) return status;
    if (in.data != out.data && overlap(in, out)) {
      return v.invalid("input and output overlap; they must be the same memory or disjoint");
    }
  }
  return {};
}

const char* inspect(const Signature& call, size_t) {
  return call.specs.empty() ? "request without its tensor" : nullptr;
}

void decide(Decision& d) {
  if (d.alone() || d.bytes() == 0) return;
  if (d.carried()) {
    d.reduce();
  } else {
    d.run(d.call().specs.size());
  }
}

Fit misfit(const Answer& a) {
  if (a.op.call->payload == 0) return {};
  return {nullptr, a.op.call->payload};
}

/// The scaled input goes to the output, where it is reduced in place.
void parts(const Operation& op, std::vector<backend::Part>* ret_parts) {
  const Submission& s = op.submission;
  for (size_t i = 0; i < s.inputs.size(); ++i) {
    const Tensor& in = s.inputs[i];
    const Tensor& out = s.outputs[i];
    const auto elements = static_cast<size_t>(out.elements());
    if (s.prescale == 1) {
      ret_parts->push_back({in.data, out.data, elements});
      continue;
    }
    if (elements > 0) {
      if (out.data != in.data) std::memcpy(out.data, in.data, out.bytes());
      scale(out.dtype, out.data, elements, s.prescale);
    }
    ret_parts->push_back({out.data, out.data, elements});
  }
}

}  // namespace allreduce

namespace {

constexpr size_t kMostOnStack = 16;

void exchange(const Submission& s, int32_t, std::span<const uint8_t* const> data) {
  const void* inputs[kMostOnStack];
  std::vector<const void*> more;
  const void** parts = inputs;
  if (data.size() > kMostOnStack) {
    more.resize(data.size());
    parts = more.data();
  }
  size_t at = 0;
  for (const Tensor& t : s.outputs) {
    at = payload_aligned(at);
    const auto elements = static_cast<size_t>(t.elements());
    if (elements == 0) continue;
    for (size_t r = 0; r < data.size(); ++r) parts[r] = data[r] + at;
    reduce_many(t.dtype, s.reduction, t.data, parts, data.size(), elements,
                static_cast<int32_t>(data.size()));
    at += t.bytes();
  }
}

constexpr Form kForms[] = {{.collective = HVD_COLLECTIVE_ALLREDUCE,
                            .name = "allreduce",
                            .inputs = Given::kEverywhere,
                            .outputs = Given::kEverywhere,
                            .group = true}};

}  // namespace

extern const Row kAllreduceRow;
const Row kAllreduceRow{.kind = Kind::kAllreduce,
                        .name = "allreduce",
                        .forms = kForms,
                        .collective = HVD_COLLECTIVE_ALLREDUCE,
                        .travels = Travel::kEverybodys,
                        .reduces = true,
                        .validate = allreduce::validate,
                        .inspect = allreduce::inspect,
                        .decide = allreduce::decide,
                        .misfit = allreduce::misfit,
                        .plan = plan_parts,
                        .parts = allreduce::parts,
                        .exchange = exchange};

}  // namespace hvd::collective
