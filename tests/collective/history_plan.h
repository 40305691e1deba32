// A call of a history of engines under one name, and the results that are expected of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "collective/simulation.h"

namespace hvd::collective::testing {

struct Plan {  // one use of one name
  std::string name;
  Kind kind = Kind::kBarrier;
  std::vector<int32_t> ranks;  // who calls it
  bool set = false;            // and these are its members
  bool joined = false;         // the others have joined
  size_t tensors = 1;
  std::vector<std::vector<int64_t>> rows;    // by rank and tensor
  std::vector<std::vector<int64_t>> splits;  // by rank
  int64_t width = 1;
  hvd_reduction reduction = HVD_REDUCTION_SUM;
  double prescale = 1, postscale = 1;
  int32_t root = 0;
  int32_t priority = 0;
  bool allocate = false;
  size_t object = 0;
};

/// The i-th element of a rank's tensor.
inline int32_t value(int32_t rank, size_t plan, size_t tensor, size_t i) {
  return static_cast<int32_t>((static_cast<size_t>(rank) * 31 + plan * 7 + tensor * 3 + i) % 17);
}

/// The next use of name `index` by some of `ranks`: mostly the same call as the last time. joined: the other
/// ranks have joined.
inline Plan make_plan(testing::Simulation& sim, uint64_t seed, int32_t size, std::vector<int32_t> ranks,
                      bool joined, int index) {
  const auto pick = [&](int low, int high) { return sim.pick(low, high); };
  Plan plan;
  const bool repeat = !sim.chance(4);  // the same call as under this name before
  std::mt19937_64 own(repeat ? static_cast<uint64_t>(index) * 977 + seed : sim.random());
  const auto choose = [&](int low, int high) {
    return low + static_cast<int>(own() % static_cast<uint64_t>(high - low + 1));
  };
  plan.name = "n" + std::to_string(index);
  constexpr Kind kKinds[] = {Kind::kAllreduce, Kind::kAllreduce,     Kind::kBroadcast,
                             Kind::kAllgather, Kind::kBarrier,       Kind::kBroadcastObject,
                             Kind::kAgree,     Kind::kReducescatter, Kind::kAlltoall};
  plan.kind = kKinds[choose(0, joined ? 6 : 8)];
  plan.joined = joined;
  if (!joined && sim.chance(4)) {
    std::shuffle(ranks.begin(), ranks.end(), sim.random);
    ranks.resize(static_cast<size_t>(pick(1, static_cast<int>(ranks.size()))));
    std::sort(ranks.begin(), ranks.end());
    plan.set = true;
  }
  plan.ranks = ranks;
  plan.root = ranks[static_cast<size_t>(choose(0, 100)) % ranks.size()];
  plan.tensors = plan.kind == Kind::kReducescatter || plan.kind == Kind::kAlltoall
                     ? 1
                     : static_cast<size_t>(choose(1, 3));
  plan.width = choose(1, 3);
  plan.reduction = choose(HVD_REDUCTION_SUM, HVD_REDUCTION_MAX);
  if (choose(0, 3) == 0) plan.prescale = 2, plan.postscale = 3;
  plan.priority = choose(0, 2);
  plan.allocate = sim.chance(2);
  plan.object = static_cast<size_t>(choose(0, 1)) * static_cast<size_t>(pick(0, 40000));
  std::vector<int64_t> common;
  for (size_t t = 0; t < plan.tensors; ++t) common.push_back(choose(0, 6));
  plan.rows.resize(static_cast<size_t>(size));
  plan.splits.resize(static_cast<size_t>(size));
  for (const int32_t r : ranks) {
    auto& rows = plan.rows[static_cast<size_t>(r)];
    rows = common;
    if (plan.kind == Kind::kAllgather) {
      for (auto& n : rows) n = pick(0, 5);
    }
    auto& splits = plan.splits[static_cast<size_t>(r)];
    if (plan.kind == Kind::kAlltoall) {
      rows[0] = 0;
      for (size_t i = 0; i < ranks.size(); ++i) {
        splits.push_back(pick(0, 3));
        rows[0] += splits.back();
      }
    }
  }
  return plan;
}

/// The i-th element of a reduction.
inline int32_t reduced(const Plan& plan, size_t index, size_t t, size_t i) {
  int64_t result = 0;
  bool first = true;
  for (const int32_t r : plan.ranks) {
    const auto v = static_cast<int64_t>(value(r, index, t, i) * plan.prescale);
    if (first) {
      result = v;
    } else if (plan.reduction == HVD_REDUCTION_MIN) {
      result = std::min(result, v);
    } else if (plan.reduction == HVD_REDUCTION_MAX) {
      result = std::max(result, v);
    } else {
      result += v;
    }
    first = false;
  }
  if (plan.reduction == HVD_REDUCTION_AVERAGE) result /= static_cast<int64_t>(plan.ranks.size());
  return static_cast<int32_t>(static_cast<double>(result) * plan.postscale);
}

/// The elements of tensor t on the rank that is number `me` of the plan's.
inline std::vector<int32_t> expected(const Plan& plan, size_t index, size_t me, size_t t) {
  const int32_t r = plan.ranks[me];
  const auto cells = [&](int32_t of) {
    return static_cast<size_t>(plan.rows[static_cast<size_t>(of)][t] * plan.width);
  };
  std::vector<int32_t> all;
  switch (plan.kind) {
    case Kind::kBroadcast:
      for (size_t i = 0; i < cells(r); ++i) all.push_back(value(plan.root, index, t, i));
      break;
    case Kind::kAllreduce:
      for (size_t i = 0; i < cells(r); ++i) all.push_back(reduced(plan, index, t, i));
      break;
    case Kind::kReducescatter: {
      const auto n = static_cast<int64_t>(plan.ranks.size());
      const int64_t rows = plan.rows[static_cast<size_t>(r)][t];
      int64_t begin = 0;
      for (size_t m = 0; m < me; ++m) begin += rows / n + (static_cast<int64_t>(m) < rows % n ? 1 : 0);
      const int64_t mine = rows / n + (static_cast<int64_t>(me) < rows % n ? 1 : 0);
      for (int64_t i = begin * plan.width; i < (begin + mine) * plan.width; ++i) {
        all.push_back(reduced(plan, index, t, static_cast<size_t>(i)));
      }
      break;
    }
    case Kind::kAllgather:
      for (const int32_t from : plan.ranks) {
        for (size_t i = 0; i < cells(from); ++i) all.push_back(value(from, index, t, i));
      }
      break;
    case Kind::kAlltoall:
      for (const int32_t from : plan.ranks) {
        const auto& splits = plan.splits[static_cast<size_t>(from)];
        const int64_t begin =
            std::accumulate(splits.begin(), splits.begin() + static_cast<std::ptrdiff_t>(me), int64_t{0});
        for (int64_t i = begin * plan.width; i < (begin + splits[me]) * plan.width; ++i) {
          all.push_back(value(from, index, t, static_cast<size_t>(i)));
        }
      }
      break;
    default: break;
  }
  return all;
}

}  // namespace hvd::collective::testing
