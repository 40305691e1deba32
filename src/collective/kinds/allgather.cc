// Allgather: one or more tensors of each rank, joined along their first dimension, to all. Ranks may bring
// different numbers of rows.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "collective/decision.h"
#include "collective/plan.h"
#include "collective/validation.h"

namespace hvd::collective {

namespace {

Status validate(const Validation& v) {
  const Submission& s = v.submission();
  if (Status status = v.pairs(false); !status.ok()) return status;
  if (Status status = v.group(s.inputs, "input"); !status.ok()) return status;
  for (size_t i = 0; i < s.inputs.size(); ++i) {
    if (Status status = v.rows(s.inputs[i], s.outputs.empty() ? nullptr : &s.outputs[i]); !status.ok())
      return status;
  }
  return {};
}

const char* inspect(const Signature& call, size_t) {
  if (call.specs.empty()) return "request without its tensor";
  const auto scalar = [](const Spec& spec) { return spec.shape.empty(); };
  return std::any_of(call.specs.begin(), call.specs.end(), scalar) ? "allgather of a scalar" : nullptr;
}

/// Every rank's rows of every tensor; false if a result is larger than memory can be.
bool collect_rows(Decision& d, bool* ret_any) {
  auto& rows = d.outcome().rows;
  rows.reserve(d.call().specs.size() * d.ranks().size());
  for (size_t t = 0; t < d.call().specs.size(); ++t) {
    std::vector<int64_t> shape = d.call().specs[t].shape;
    shape[0] = 0;
    for (const int32_t r : d.ranks()) {
      rows.push_back(d.request(r).call->specs[t].shape[0]);
      if (__builtin_add_overflow(shape[0], rows.back(), &shape[0])) return false;
    }
    const int64_t bytes = spec_bytes(d.call().specs[t].dtype, shape);
    if (bytes < 0) return false;
    *ret_any = *ret_any || bytes > 0;
  }
  return true;
}

/// What was carried, put together; false if it is too much for a message.
bool gather(Decision& d) {
  std::vector<size_t> at(d.ranks().size(), 0);
  std::vector<uint8_t> all;
  for (size_t t = 0; t < d.call().specs.size(); ++t) {
    all.resize(payload_aligned(all.size()));
    for (size_t i = 0; i < at.size(); ++i) {
      const Request& request = d.request(d.ranks()[i]);
      at[i] = payload_aligned(at[i]);
      const size_t bytes = bytes_of(request.call->specs[t]);
      append(&all, request.payload.data() + at[i], bytes);
      at[i] += bytes;
    }
  }
  if (all.size() > kMaxPayload) return false;  // many tiny tensors, each of which begins at a multiple of 16
  d.outcome().carries = true;
  d.outcome().payload = std::move(all);
  return true;
}

void decide(Decision& d) {
  bool any = false;
  if (!collect_rows(d, &any)) {
    return d.fail(HVD_INVALID,
                  fmt::format("allgather '{}': the result is larger than memory can be", d.call().name));
  }
  if (d.short_of_room() || !any || d.alone()) return;
  if (!d.carried() || !gather(d)) d.run(d.call().specs.size());
}

Fit misfit(const Answer& a) {
  const auto& inputs = a.submission().inputs;
  if (a.outcome.rows.size() != a.count() * inputs.size()) return {"rows are missing", {}};
  size_t expected = 0;
  bool any = false;
  for (size_t t = 0; t < inputs.size(); ++t) {
    const auto rows = a.rows(t);
    if (rows[a.me()] != inputs[t].shape[0]) return {"rows differ from this rank's", {}};
    const int64_t bytes = spec_bytes(inputs[t].dtype, with_rows(inputs[t], rows));
    if (bytes < 0) return {"the result is larger than memory can be", {}};
    any = any || bytes > 0;
    expected = payload_aligned(expected) + static_cast<size_t>(bytes);
  }
  if (!any) return {};
  return {nullptr, expected};
}

/// The rows of each member: none of those that take no part.
std::vector<int64_t> by_member(const Answer& a) {
  const std::vector<int32_t>&ranks = a.outcome.participants, &members = a.op.call->members;
  if (ranks.empty()) return a.outcome.rows;
  std::vector<int64_t> rows(a.op.call->member_count(a.hosts.size()), 0);
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto place = members.empty()
                           ? static_cast<size_t>(ranks[i])
                           : static_cast<size_t>(std::lower_bound(members.begin(), members.end(), ranks[i]) -
                                                 members.begin());
    rows[place] = a.outcome.rows[i];
  }
  return rows;
}

Status place(Answer& a, bool discard) {
  begin_results(a);
  if (a.submission().inputs.size() == 1) {
    a.op.splits = by_member(a);
    a.op.participants = a.outcome.participants;
  }
  const auto& inputs = a.submission().inputs;
  for (size_t t = 0; t < inputs.size(); ++t) {
    if (Status status = place_result(a, t, with_rows(inputs[t], a.rows(t)), discard); !status.ok())
      return status;
  }
  return {};
}

Status plan(Plan& plan, Answer& a) {
  if (Status status = place(a, !plan.alone()); !status.ok()) return status;
  const auto& inputs = a.submission().inputs;
  for (size_t t = 0; t < inputs.size(); ++t) {
    const Tensor& in = inputs[t];
    if (plan.alone()) {  // its own data is the result
      if (a.op.verdict.ok() && in.bytes() > 0) std::memcpy(a.op.results[t].data, in.data, in.bytes());
      continue;
    }
    std::vector<size_t> counts;
    add_counts(&counts, in, a.rows(t));
    if (std::all_of(counts.begin(), counts.end(), [](size_t n) { return n == 0; })) continue;
    auto& step = plan.add(a.op, HVD_COLLECTIVE_ALLGATHER, in.dtype);
    step.counts = std::move(counts);
    step.op.input = in.data;
    step.op.output = a.op.results[t].data;
    step.op.count = static_cast<size_t>(in.elements());
  }
  return {};
}

constexpr Form kForms[] = {{.collective = HVD_COLLECTIVE_ALLGATHER,
                            .name = "allgather",
                            .inputs = Given::kEverywhere,
                            .outputs = Given::kEverywhere,
                            .group = true}};

}  // namespace

extern const Row kAllgatherRow;
const Row kAllgatherRow{.kind = Kind::kAllgather,
                        .name = "allgather",
                        .forms = kForms,
                        .collective = HVD_COLLECTIVE_ALLGATHER,
                        .travels = Travel::kEverybodys,
                        .own_rows = true,
                        .received = true,
                        .validate = validate,
                        .inspect = inspect,
                        .decide = decide,
                        .misfit = misfit,
                        .place = place,
                        .plan = plan};

}  // namespace hvd::collective
