// Alltoall: one tensor, whose rows are split among the ranks; each gets its rows from every rank.
#include <fmt/format.h>

#include <cstring>
#include <limits>

#include "collective/kinds/shared.h"

namespace hvd::collective {

namespace {

Status validate(const Validation& v) {
  if (Status status = v.one_with_splits(); !status.ok()) return status;
  const int64_t rows = v.submission().inputs[0].shape[0];
  if (!v.submission().splits.empty() || rows % v.members() == 0) return {};
  return v.invalid(
      fmt::format("{} rows can't be divided evenly among {} ranks: give splits", rows, v.members()));
}

/// What each rank receives from each; false if that is larger than memory can be.
bool share_out(Decision& d, bool* ret_any) {
  const auto row = static_cast<int64_t>(row_bytes(d.call().specs[0]));
  for (size_t to = 0; to < d.ranks().size(); ++to) {
    Outcome& own = d.own(d.ranks()[to]);
    int64_t rows = 0;
    for (const int32_t from : d.ranks()) {
      own.rows.push_back(d.request(from).call->splits[to]);
      if (__builtin_add_overflow(rows, own.rows.back(), &rows) ||
          (row > 0 && rows > std::numeric_limits<int64_t>::max() / 2 / row)) {
        return false;
      }
    }
    *ret_any = *ret_any || (rows > 0 && row > 0);
  }
  return true;
}

/// What was carried, to whom it goes; false if it is too much for a message.
bool exchange(Decision& d) {
  const size_t row = row_bytes(d.call().specs[0]);
  const size_t count = d.ranks().size();
  std::vector<size_t> at(count, 0);
  std::vector<std::vector<uint8_t>> payloads(count);
  for (size_t to = 0; to < count; ++to) {
    const auto& rows = d.own(d.ranks()[to]).rows;
    for (size_t from = 0; from < count; ++from) {
      const size_t bytes = row * static_cast<size_t>(rows[from]);
      append(&payloads[to], d.request(d.ranks()[from]).payload.data() + at[from], bytes);
      at[from] += bytes;
    }
    if (payloads[to].size() > kMaxPayload) return false;
  }
  for (size_t to = 0; to < count; ++to) {
    Outcome& own = d.own(d.ranks()[to]);
    own.carries = true;
    own.payload = std::move(payloads[to]);
  }
  return true;
}

constexpr Form kForms[] = {{.collective = HVD_COLLECTIVE_ALLTOALL,
                            .name = "alltoall",
                            .inputs = Given::kEverywhere,
                            .outputs = Given::kEverywhere,
                            .splits = true}};

}  // namespace

namespace alltoall {

/// A rank with nothing to send has no rows.
Status validate_on_host(const Validation& v) {
  if (is_device(v.submission().inputs[0])) {
    return v.unsupported(fmt::format("has {} in host memory alone", kind_name(v.submission().kind)));
  }
  return v.one_with_splits();
}

void decide(Decision& d) {
  bool any = false;
  if (!share_out(d, &any)) {
    return d.fail(HVD_INVALID, fmt::format("{} '{}': the result is larger than memory can be",
                                           kind_name(d.call().kind), d.call().name));
  }
  if (d.short_of_room() || !any || d.alone()) return;
  if (!d.carried() || !exchange(d)) d.run(1);
}

Fit misfit(const Answer& a) {
  const Submission& s = a.submission();
  const auto& rows = a.outcome.rows;
  if (rows.size() != a.count() || a.me() >= s.splits.size()) return {"rows are missing", {}};
  if (rows[a.me()] != s.splits[a.me()]) return {"rows differ from this rank's", {}};
  const int64_t bytes = spec_bytes(s.inputs[0].dtype, with_rows(s.inputs[0], rows));
  if (bytes < 0) return {"the result is larger than memory can be", {}};
  if (bytes == 0) return {};
  return {nullptr, static_cast<size_t>(bytes)};
}

Status place(Answer& a, bool discard) {
  begin_results(a);
  a.op.splits = a.outcome.rows;
  return place_result(a, 0, with_rows(a.submission().inputs[0], a.outcome.rows), discard);
}

Status plan(Plan& plan, Answer& a) {
  if (Status status = place(a, !plan.alone()); !status.ok()) return status;
  const Submission& s = a.submission();
  const Tensor& in = s.inputs[0];
  if (plan.alone()) {  // its own data is the result
    if (a.op.verdict.ok() && in.bytes() > 0) std::memcpy(a.op.results[0].data, in.data, in.bytes());
    return {};
  }
  auto& step = plan.add(a.op, HVD_COLLECTIVE_ALLTOALL, in.dtype);
  add_counts(&step.counts, in, s.splits);
  add_counts(&step.counts, in, a.outcome.rows);
  step.op.input = in.data;
  step.op.output = a.op.results[0].data;
  step.op.count = static_cast<size_t>(in.elements());
  return {};
}

}  // namespace alltoall

extern const Row kAlltoallRow;
const Row kAlltoallRow{.kind = Kind::kAlltoall,
                       .name = "alltoall",
                       .forms = kForms,
                       .collective = HVD_COLLECTIVE_ALLTOALL,
                       .travels = Travel::kEverybodys,
                       .own_rows = true,
                       .splits = true,
                       .needs_all = true,
                       .received = true,
                       .validate = validate,
                       .inspect = inspect_splits,
                       .decide = alltoall::decide,
                       .misfit = alltoall::misfit,
                       .place = alltoall::place,
                       .plan = alltoall::plan};

}  // namespace hvd::collective
