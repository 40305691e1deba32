// Steps of a history of the matcher, and the results that are expected of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "collective/calls.h"

namespace hvd::collective::testing {

using Floats = std::vector<float>;

/// Each kind as hvd.h has it, and not the rows that are under test.
struct Traits {
  Kind kind;
  const char* name;
  bool tensor = false, rooted = false, reduces = false, own_rows = false;
  bool in_place = false;  // the root's data go to the others
  bool deals = false;     // a rank's rows are split among the members
};
constexpr Traits kTraits[] = {
    {.kind = Kind::kBroadcast, .name = "broadcast", .tensor = true, .rooted = true, .in_place = true},
    {.kind = Kind::kAllreduce, .name = "allreduce", .tensor = true, .reduces = true},
    {.kind = Kind::kAllgather, .name = "allgather", .tensor = true, .own_rows = true},
    {.kind = Kind::kReducescatter, .name = "reducescatter", .tensor = true, .reduces = true, .deals = true},
    {.kind = Kind::kAlltoall, .name = "alltoall", .tensor = true, .own_rows = true, .deals = true},
    {.kind = Kind::kBarrier, .name = "barrier"},
    {.kind = Kind::kBroadcastObject, .name = "broadcast of an object", .rooted = true},
    {.kind = Kind::kAgree, .name = "agreement"},
    {.kind = Kind::kSend, .name = "send", .tensor = true, .rooted = true, .in_place = true},
    {.kind = Kind::kReduce, .name = "reduce", .tensor = true, .rooted = true, .reduces = true},
    {.kind = Kind::kGather,
     .name = "gather",
     .tensor = true,
     .rooted = true,
     .own_rows = true,
     .deals = true},
    {.kind = Kind::kScatter,
     .name = "scatter",
     .tensor = true,
     .rooted = true,
     .own_rows = true,
     .deals = true},
};
inline const Traits& traits_of(Kind kind) {
  return *std::find_if(std::begin(kTraits), std::end(kTraits),
                       [&](const Traits& traits) { return traits.kind == kind; });
}

struct Step {  // one use of one name
  std::string name;
  std::map<int32_t, Call> calls;  // by participating rank
  bool clean = true;              // all calls agree
  bool carries = false;           // its data travels with the calls
};

inline Floats floats(std::span<const uint8_t> bytes) {
  Floats all(bytes.size() / sizeof(float));
  if (!all.empty()) std::memcpy(all.data(), bytes.data(), bytes.size());
  return all;
}

/// The rows that go to number `to`, and the first of them.
inline std::pair<int64_t, int64_t> share(const Call& from, size_t to) {
  const auto split = from.splits.begin() + static_cast<std::ptrdiff_t>(to);
  return {*split, std::accumulate(from.splits.begin(), split, int64_t{0})};
}

inline Floats part(const Call& from, size_t to, const Floats& of) {
  const auto width = from.specs[0].shape[1];
  const auto [rows, begin] = share(from, to);
  return {of.begin() + begin * width, of.begin() + (begin + rows) * width};
}

/// The rows that number `me` is told of.
inline std::vector<int64_t> rows_for(const Step& step, size_t me) {
  std::vector<int64_t> rows;
  for (const auto& [r, call] : step.calls) {
    if (call.kind == Kind::kAllgather) {
      rows.push_back(call.specs[0].shape[0]);
    } else if (traits_of(call.kind).deals && !traits_of(call.kind).reduces) {
      rows.push_back(share(call, me).first);
    }
  }
  return rows;
}

inline Floats reduced(const Step& step) {
  Floats all;
  for (const auto& [r, call] : step.calls) {
    const Floats own = floats(call.bytes);
    if (all.empty()) {
      all = own;
      continue;
    }
    for (size_t i = 0; i < own.size(); ++i) {
      switch (call.reduction) {
        case HVD_REDUCTION_MIN: all[i] = std::min(all[i], own[i]); break;
        case HVD_REDUCTION_MAX: all[i] = std::max(all[i], own[i]); break;
        case HVD_REDUCTION_PRODUCT: all[i] *= own[i]; break;
        default: all[i] += own[i];
      }
    }
  }
  if (step.calls.begin()->second.reduction == HVD_REDUCTION_AVERAGE) {
    for (float& x : all) x /= static_cast<float>(step.calls.size());
  }
  return all;
}

/// The data that come to number `me`, rank r.
inline Floats data_for(const Step& step, size_t me, int32_t r) {
  const Call& own = step.calls.at(r);
  const Traits& kind = traits_of(own.kind);
  if (kind.reduces) return kind.deals ? part(own, me, reduced(step)) : reduced(step);
  Floats all;
  for (const auto& [from, call] : step.calls) {
    const Floats its = floats(call.bytes);
    if (kind.in_place && (from != own.root || r == own.root)) continue;  // the root has it
    const Floats mine = kind.deals ? part(call, me, its) : its;
    all.insert(all.end(), mine.begin(), mine.end());
  }
  return all;
}

inline bool same(const Floats& a, const Floats& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](float x, float y) { return std::abs(x - y) <= 1e-5F * (1 + std::abs(y)); });
}

}  // namespace hvd::collective::testing
