// What becomes of an operation that all ranks have called: it fails, it is complete with what the calls
// brought, or it runs in the backend.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "collective/pending.h"
#include "numeric/dtype.h"
#include "numeric/reduce.h"

namespace hvd::collective {

namespace {

int64_t total_bytes(const Signature& call) {
  int64_t bytes = 0;
  for (const auto& spec : call.specs) bytes += spec_bytes(spec.dtype, spec.shape);
  return bytes;
}

size_t bytes_of(const Spec& spec) { return static_cast<size_t>(spec_bytes(spec.dtype, spec.shape)); }

size_t row_bytes(const Spec& spec) {
  return static_cast<size_t>(spec_bytes(spec.dtype, std::span(spec.shape).subspan(1)));
}

bool is_float(hvd_dtype dtype) {
  return dtype == HVD_DTYPE_FLOAT32 || dtype == HVD_DTYPE_FLOAT64 || dtype == HVD_DTYPE_FLOAT16 ||
         dtype == HVD_DTYPE_BFLOAT16;
}

void append(std::vector<uint8_t>* to, const uint8_t* from, size_t bytes) {
  to->insert(to->end(), from, from + bytes);
}

}  // namespace

Matcher::Verdict Matcher::decide(Pending& pending) {
  Verdict verdict;
  verdict.participants = pending.ranks(true);
  const Signature& call = *pending.first;
  const auto& ranks = verdict.participants;
  const auto failed = [&](hvd_status code, std::string text) {
    verdict.outcome = failed_outcome(code, std::move(text));
    verdict.operations = 0;
    verdict.by_rank.clear();
    return std::move(verdict);
  };
  if (call.kind == Kind::kJoin) {
    std::fill(joined_.begin(), joined_.end(), false);
    joined_count_ = 0;
  }
  if (std::string text = pending.mismatch(hosts_); !text.empty()) {
    return failed(HVD_MISMATCH, std::move(text));
  }
  verdict.outcome = std::make_shared<Outcome>();
  Outcome& outcome = *verdict.outcome;
  const bool some_joined = ranks.size() < call.member_count(hosts_.size());
  const bool rooted = call.kind == Kind::kBroadcast || call.kind == Kind::kBroadcastObject;
  if (some_joined) {
    std::vector<int32_t> absent;
    for (size_t r = 0; r < hosts_.size(); ++r) {
      const auto rank = static_cast<int32_t>(r);
      if (joined_[r] && !pending.calls[r].here &&
          (call.members.empty() || std::binary_search(call.members.begin(), call.members.end(), rank))) {
        absent.push_back(rank);
      }
    }
    const char* have = absent.size() == 1 ? "has" : "have";
    if (rooted && std::find(absent.begin(), absent.end(), call.root) != absent.end()) {
      return failed(HVD_MISMATCH, fmt::format("{} '{}': the root, {}, has joined", kind_name(call.kind),
                                              call.name, describe_ranks({call.root}, hosts_)));
    }
    if (call.kind == Kind::kAlltoall || call.kind == Kind::kReducescatter) {
      return failed(HVD_INVALID,
                    fmt::format("{} '{}': {} {} joined, and it needs all of its ranks", kind_name(call.kind),
                                call.name, describe_ranks(absent, hosts_), have));
    }
    outcome.participants = ranks;
  }
  const auto carried = [&] {
    return std::all_of(ranks.begin(), ranks.end(), [&](int32_t r) { return pending.at(r).carries; });
  };
  // It has all it needs, and its own hands can move it: device memory is moved by its backend alone.
  const bool alone = ranks.size() == 1 && (call.kind == Kind::kBroadcast || !call.on_device());
  switch (call.kind) {
    case Kind::kBarrier: break;
    case Kind::kAgree:
      for (const int32_t r : ranks) outcome.word = std::max(outcome.word, pending.at(r).word);
      if (call.name == kCheckName) {
        agreement_.propose(pending.at(ranks[0]).checks);
        if (const Proposal* proposal = agreement_.settle(pending.at(ranks[0]).checks + 1)) {
          outcome.word = proposal->word;
        }
      }
      break;
    case Kind::kJoin:
      outcome.word = static_cast<uint64_t>(last_joined_);
      for (const int32_t r : ranks) outcome.checks = std::max(outcome.checks, pending.at(r).checks);
      break;
    case Kind::kBroadcastObject: {
      Request& root = pending.calls[static_cast<size_t>(call.root)].request;
      outcome.object_size = root.object_size;
      if (alone) break;
      if (root.object_size > kInlineObject) {
        verdict.operations = 1;
        break;
      }
      outcome.payload = std::move(root.payload);
      verdict.by_rank.resize(hosts_.size());
      auto own = std::make_shared<Outcome>();  // the root has it
      own->object_size = outcome.object_size;
      own->participants = outcome.participants;
      verdict.by_rank[static_cast<size_t>(call.root)] = std::move(own);
      break;
    }
    case Kind::kBroadcast: {
      Request& root = pending.calls[static_cast<size_t>(call.root)].request;
      if (alone || total_bytes(call) == 0) break;
      if (!root.carries) {
        verdict.operations = call.specs.size();  // as many as there can be
        break;
      }
      outcome.payload = std::move(root.payload);
      outcome.carries = true;
      verdict.by_rank.resize(hosts_.size());
      auto own = std::make_shared<Outcome>();
      own->participants = outcome.participants;
      verdict.by_rank[static_cast<size_t>(call.root)] = std::move(own);
      break;
    }
    case Kind::kAllreduce:
      if (alone || total_bytes(call) == 0) break;
      if (carried()) {
        reduce_here(pending, &verdict);
      } else {
        verdict.operations = call.specs.size();
      }
      break;
    case Kind::kReducescatter:
      if (alone || total_bytes(call) == 0) break;
      if (carried()) {
        reduce_here(pending, &verdict);
      } else {
        verdict.operations = 1;
      }
      break;
    case Kind::kAllgather:
      if (!decide_allgather(pending, &verdict)) {
        return failed(HVD_INVALID,
                      fmt::format("allgather '{}': the result is larger than memory can be", call.name));
      }
      if (std::string text = short_of_room(pending, verdict); !text.empty()) {
        return failed(HVD_INVALID, std::move(text));
      }
      if (verdict.operations > 0 && alone) verdict.operations = 0;
      if (verdict.operations > 0 && carried()) gather_here(pending, &verdict);
      break;
    case Kind::kAlltoall: {
      const size_t row = row_bytes(call.specs[0]);
      for (const int32_t to : ranks) {
        int64_t rows = 0;
        const auto m = static_cast<size_t>(std::find(ranks.begin(), ranks.end(), to) - ranks.begin());
        for (const int32_t from : ranks) {
          if (__builtin_add_overflow(rows, pending.at(from).call->splits[m], &rows) ||
              (row > 0 && rows > std::numeric_limits<int64_t>::max() / 2 / static_cast<int64_t>(row))) {
            return failed(HVD_INVALID,
                          fmt::format("alltoall '{}': the result is larger than memory can be", call.name));
          }
        }
      }
      decide_alltoall(pending, &verdict);
      if (std::string text = short_of_room(pending, verdict); !text.empty()) {
        return failed(HVD_INVALID, std::move(text));
      }
      if (verdict.operations > 0 && alone) verdict.operations = 0;
      if (verdict.operations > 0 && carried()) exchange_here(pending, &verdict);
      break;
    }
  }
  return verdict;
}

/// All parts in the order of ranks: whoever reduces them so gets the same bits.
void Matcher::reduce_here(const Pending& pending, Verdict* verdict) {
  const Signature& call = *pending.first;
  const auto& ranks = verdict->participants;
  Outcome& outcome = *verdict->outcome;
  outcome.carries = true;
  outcome.payload.resize(call.payload);
  std::vector<const void*> inputs(ranks.size());
  size_t at = 0;
  for (const auto& spec : call.specs) {
    at = payload_aligned(at);
    const size_t bytes = bytes_of(spec);
    if (bytes == 0) continue;
    for (size_t i = 0; i < ranks.size(); ++i) inputs[i] = pending.at(ranks[i]).payload.data() + at;
    reduce_many(spec.dtype, call.reduction, outcome.payload.data() + at, inputs.data(), inputs.size(),
                bytes / dtype_size(spec.dtype), static_cast<int32_t>(ranks.size()));
    at += bytes;
  }
  if (call.kind != Kind::kReducescatter) return;
  const size_t row = row_bytes(call.specs[0]);
  verdict->by_rank.resize(hosts_.size());
  at = 0;
  for (size_t i = 0; i < ranks.size(); ++i) {
    auto own = std::make_shared<Outcome>();
    own->carries = true;
    const size_t bytes = row * static_cast<size_t>(call.splits[i]);
    append(&own->payload, outcome.payload.data() + at, bytes);
    at += bytes;
    verdict->by_rank[static_cast<size_t>(ranks[i])] = std::move(own);
  }
}

/// Every rank's rows of every tensor; false if a result is larger than memory can be.
bool Matcher::decide_allgather(const Pending& pending, Verdict* verdict) {
  const auto& ranks = verdict->participants;
  const Signature& call = *pending.first;
  auto& rows = verdict->outcome->rows;
  rows.reserve(call.specs.size() * ranks.size());
  bool any = false;
  for (size_t t = 0; t < call.specs.size(); ++t) {
    std::vector<int64_t> shape = call.specs[t].shape;
    shape[0] = 0;
    for (const int32_t r : ranks) {
      rows.push_back(pending.at(r).call->specs[t].shape[0]);
      if (__builtin_add_overflow(shape[0], rows.back(), &shape[0])) return false;
    }
    const int64_t bytes = spec_bytes(call.specs[t].dtype, shape);
    if (bytes < 0) return false;
    any = any || bytes > 0;
  }
  if (any) verdict->operations = call.specs.size();
  return true;
}

/// Device memory: whose output is too small for what it gets; "" if nobody's is.
std::string Matcher::short_of_room(const Pending& pending, const Verdict& verdict) const {
  const Signature& call = *pending.first;
  if (!call.on_device()) return "";
  const auto& ranks = verdict.participants;
  for (size_t t = 0; t < call.specs.size(); ++t) {
    for (const int32_t r : ranks) {
      const auto& all = verdict.of(r)->rows;
      const auto rows = std::span(all).subspan(t * ranks.size(), ranks.size());
      const int64_t needed = std::accumulate(rows.begin(), rows.end(), int64_t{0});
      const int64_t room = pending.at(r).call->rooms[t];
      if (room >= needed) continue;
      const std::string which = call.specs.size() > 1 ? fmt::format("output {}", t) : "output";
      return fmt::format("{} '{}': {} has room for {} rows on {}, {} are needed", kind_name(call.kind),
                         call.name, which, room, describe_ranks({r}, hosts_), needed);
    }
  }
  return "";
}

void Matcher::gather_here(const Pending& pending, Verdict* verdict) {
  const Signature& call = *pending.first;
  Outcome& outcome = *verdict->outcome;
  std::vector<size_t> at(hosts_.size(), 0);
  std::vector<uint8_t> all;
  for (size_t t = 0; t < call.specs.size(); ++t) {
    all.resize(payload_aligned(all.size()));
    for (const int32_t r : verdict->participants) {
      const Request& request = pending.at(r);
      size_t& from = at[static_cast<size_t>(r)];
      from = payload_aligned(from);
      const size_t bytes = bytes_of(request.call->specs[t]);
      append(&all, request.payload.data() + from, bytes);
      from += bytes;
    }
  }
  if (all.size() > kMaxPayload) return;  // many tiny tensors, each of which begins at a multiple of 16
  outcome.carries = true;
  outcome.payload = std::move(all);
  verdict->operations = 0;
}

/// What each rank receives from each.
void Matcher::decide_alltoall(const Pending& pending, Verdict* verdict) {
  const auto& ranks = verdict->participants;
  const size_t row = row_bytes(pending.first->specs[0]);
  verdict->by_rank.resize(hosts_.size());
  int64_t all = 0;
  for (size_t to = 0; to < ranks.size(); ++to) {
    auto own = std::make_shared<Outcome>();
    for (const int32_t from : ranks) own->rows.push_back(pending.at(from).call->splits[to]);
    for (const int64_t rows : own->rows) all |= rows;
    verdict->by_rank[static_cast<size_t>(ranks[to])] = std::move(own);
  }
  if (all > 0 && row > 0) verdict->operations = 1;
}

void Matcher::exchange_here(const Pending& pending, Verdict* verdict) {
  const auto& ranks = verdict->participants;
  const size_t row = row_bytes(pending.first->specs[0]);
  std::vector<size_t> at(ranks.size(), 0);
  std::vector<std::shared_ptr<Outcome>> outcomes;
  for (size_t to = 0; to < ranks.size(); ++to) {
    auto own = std::make_shared<Outcome>(*verdict->by_rank[static_cast<size_t>(ranks[to])]);
    own->carries = true;
    for (size_t from = 0; from < ranks.size(); ++from) {
      const size_t bytes = row * static_cast<size_t>(own->rows[from]);
      append(&own->payload, pending.at(ranks[from]).payload.data() + at[from], bytes);
      at[from] += bytes;
    }
    if (own->payload.size() > kMaxPayload) return;
    outcomes.push_back(std::move(own));
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    verdict->by_rank[static_cast<size_t>(ranks[i])] = std::move(outcomes[i]);
  }
  verdict->operations = 0;
}

bool Matcher::fusable(const Pending& pending, const std::vector<int32_t>& participants) const {
  const Signature& call = *pending.first;
  if (call.payload > config_.fusion_threshold || participants.size() < 2) return false;
  if (call.kind == Kind::kBroadcast) return true;
  if (call.kind != Kind::kAllreduce) return false;
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
