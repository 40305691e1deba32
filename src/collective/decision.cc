// What several collectives need to decide, and the frame around each one's own decision.
#include "collective/decision.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "collective/matcher.h"
#include "numeric/dtype.h"
#include "numeric/reduce.h"

namespace hvd::collective {

namespace {

bool is_float(hvd_dtype dtype) {
  return dtype == HVD_DTYPE_FLOAT32 || dtype == HVD_DTYPE_FLOAT64 || dtype == HVD_DTYPE_FLOAT16 ||
         dtype == HVD_DTYPE_BFLOAT16;
}

}  // namespace

size_t bytes_of(const Spec& spec) { return static_cast<size_t>(spec_bytes(spec.dtype, spec.shape)); }

size_t row_bytes(const Spec& spec) {
  return static_cast<size_t>(spec_bytes(spec.dtype, std::span(spec.shape).subspan(1)));
}

void append(std::vector<uint8_t>* to, const uint8_t* from, size_t bytes) {
  to->insert(to->end(), from, from + bytes);
}

int64_t Decision::bytes() const {
  int64_t bytes = 0;
  for (const auto& spec : call().specs) bytes += spec_bytes(spec.dtype, spec.shape);
  return bytes;
}

bool Decision::carried() const {
  return std::all_of(ranks().begin(), ranks().end(), [&](int32_t r) { return pending_.at(r).carries; });
}

Outcome& Decision::own(int32_t rank) {
  verdict_.by_rank.resize(hosts_.size());
  auto& own = verdict_.by_rank[static_cast<size_t>(rank)];
  if (own == nullptr) {
    own = std::make_shared<Outcome>();
    own->participants = verdict_.outcome->participants;
  }
  return *own;
}

void Decision::fail(hvd_status code, std::string text) {
  verdict_.outcome = failed_outcome(code, std::move(text));
  verdict_.operations = 0;
  verdict_.by_rank.clear();
}

void Decision::reduce() {
  Outcome& result = outcome();
  result.carries = true;
  uint8_t* const to = result.payload.make(call().payload);
  std::vector<const void*> inputs(ranks().size());
  const size_t divisor = join_counts_ ? call().member_count(hosts_.size()) : inputs.size();
  size_t at = 0;
  for (const auto& spec : call().specs) {
    at = payload_aligned(at);
    const size_t bytes = bytes_of(spec);
    if (bytes == 0) continue;
    for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = pending_.at(ranks()[i]).payload.data() + at;
    reduce_many(spec.dtype, call().reduction, to + at, inputs.data(), inputs.size(),
                bytes / dtype_size(spec.dtype), static_cast<int32_t>(divisor));
    at += bytes;
  }
}

bool Decision::short_of_room() {
  if (!call().on_device()) return false;
  for (size_t t = 0; t < call().specs.size(); ++t) {
    for (const int32_t r : ranks()) {
      const OutcomePtr outcome = verdict_.of(r);
      const auto rows = std::span(outcome->rows).subspan(t * ranks().size(), ranks().size());
      const int64_t needed = std::accumulate(rows.begin(), rows.end(), int64_t{0});
      const int64_t room = pending_.at(r).call->rooms[t];
      if (room >= needed) continue;
      const std::string which = call().specs.size() > 1 ? fmt::format("output {}", t) : "output";
      fail(HVD_INVALID,
           fmt::format("{} '{}': {} has room for {} rows on {}, {} are needed", kind_name(call().kind),
                       call().name, which, room, describe_ranks({r}, hosts_), needed));
      return true;
    }
  }
  return false;
}

Verdict Matcher::decide(Pending& pending) {
  Verdict verdict;
  verdict.participants = pending.ranks(true);
  verdict.outcome = std::make_shared<Outcome>();
  const Signature& call = *pending.first;
  const Row& row = row_of(call.kind);
  Decision decision(pending, verdict, hosts_, agreement_, last_joined_, config_.join_counts);
  if (row.joins) {
    std::fill(joined_.begin(), joined_.end(), false);
    joined_count_ = 0;
  }
  if (std::string text = pending.mismatch(hosts_); !text.empty()) {
    decision.fail(HVD_MISMATCH, std::move(text));
    return verdict;
  }
  if (verdict.participants.size() < call.member_count(hosts_.size())) {  // some have joined
    std::vector<int32_t> absent;
    for (size_t r = 0; r < hosts_.size(); ++r) {
      const auto rank = static_cast<int32_t>(r);
      if (joined_[r] && pending.calls[r].here == 0 &&
          (call.members.empty() || std::binary_search(call.members.begin(), call.members.end(), rank))) {
        absent.push_back(rank);
      }
    }
    const char* have = absent.size() == 1 ? "has" : "have";
    if (row.rooted && std::find(absent.begin(), absent.end(), call.root) != absent.end()) {
      decision.fail(HVD_MISMATCH, fmt::format("{} '{}': the root, {}, has joined", row.name, call.name,
                                              describe_ranks({call.root}, hosts_)));
      return verdict;
    }
    if (row.needs_all) {
      decision.fail(HVD_INVALID, fmt::format("{} '{}': {} {} joined, and it needs all of its ranks", row.name,
                                             call.name, describe_ranks(absent, hosts_), have));
      return verdict;
    }
    verdict.outcome->participants = verdict.participants;
  }
  if (row.decide != nullptr) row.decide(decision);
  return verdict;
}

bool Matcher::fusable(const Pending& pending, const std::vector<int32_t>& participants) const {
  const Signature& call = *pending.first;
  const Row& row = row_of(call.kind);
  if (row.parts == nullptr || call.payload > config_.fusion_threshold || participants.size() < 2)
    return false;
  if (!row.reduces) return true;
  const hvd_dtype dtype = call.specs[0].dtype;
  if (std::any_of(call.specs.begin(), call.specs.end(), [&](const Spec& s) { return s.dtype != dtype; })) {
    return false;
  }
  const bool by_position =
      is_float(dtype) && call.reduction != HVD_REDUCTION_MIN && call.reduction != HVD_REDUCTION_MAX;
  if (!by_position || !config_.keep_order) return true;
  if (config_.keep_order_on_a_host || call.on_device()) return false;
  return std::all_of(participants.begin(), participants.end(), [&](int32_t r) {
    return hosts_[static_cast<size_t>(r)] == hosts_[static_cast<size_t>(participants[0])];
  });
}

}  // namespace hvd::collective
