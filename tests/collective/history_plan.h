// A call of a history of engines under one name, and the results that are expected of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "collective/simulation.h"

namespace hvd::collective::testing {

struct Plan {  // one use of one name
  std::string name;
  Kind kind = Kind::kBarrier;
  std::vector<int32_t> ranks;   // who calls it
  bool set = false;             // and these are its members
  std::vector<int32_t> within;  // send: the process set that it names; empty: none
  bool joined = false;          // the others have joined
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

struct Use {  // of a plan, on a rank
  std::shared_ptr<Operation> operation;
  std::vector<std::vector<int32_t>> in, out;
  uint64_t word = 0;  // the rank's at the call
  bool before_check = false;
};

/// Its result has a shape of its own, and lies where the caller or the library made room.
inline bool makes_output(const Plan& plan) {
  constexpr Kind kKinds[] = {Kind::kAllgather, Kind::kReducescatter, Kind::kAlltoall, Kind::kGather,
                             Kind::kScatter};
  return std::find(std::begin(kKinds), std::end(kKinds), plan.kind) != std::end(kKinds);
}
inline bool reduces(const Plan& plan) {
  return plan.kind == Kind::kAllreduce || plan.kind == Kind::kReducescatter || plan.kind == Kind::kReduce;
}
inline bool has_tensors(const Plan& plan) {
  return plan.kind != Kind::kBarrier && plan.kind != Kind::kAgree && plan.kind != Kind::kBroadcastObject;
}

/// The i-th element of a rank's tensor.
inline int32_t value(int32_t rank, size_t plan, size_t tensor, size_t i) {
  return static_cast<int32_t>((static_cast<size_t>(rank) * 31 + plan * 7 + tensor * 3 + i) % 17);
}

/// The kinds that a history draws; the first ones run without ranks that have joined.
constexpr Kind kDrawn[] = {Kind::kAllreduce,     Kind::kAllreduce,       Kind::kBroadcast, Kind::kAllgather,
                           Kind::kBarrier,       Kind::kBroadcastObject, Kind::kAgree,     Kind::kReduce,
                           Kind::kReducescatter, Kind::kAlltoall,        Kind::kSend,      Kind::kGather,
                           Kind::kScatter};
constexpr int kWithoutJoined = 8;

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
  plan.kind = kDrawn[choose(0, joined ? kWithoutJoined - 1 : static_cast<int>(std::size(kDrawn)) - 1)];
  plan.joined = joined;
  if (!joined && sim.chance(4)) {
    std::shuffle(ranks.begin(), ranks.end(), sim.random);
    ranks.resize(static_cast<size_t>(pick(1, static_cast<int>(ranks.size()))));
    std::sort(ranks.begin(), ranks.end());
    plan.set = true;
  }
  const size_t root = static_cast<size_t>(choose(0, 100)) % ranks.size();
  plan.root = ranks[root];
  if (plan.kind == Kind::kSend) {
    if (ranks.size() == 1) {
      plan.kind = Kind::kBarrier;
    } else {
      if (plan.set) plan.within = ranks;
      plan.set = true;
      const size_t step = 1 + static_cast<size_t>(choose(0, 100)) % (ranks.size() - 1);
      const int32_t other = ranks[(root + step) % ranks.size()];
      ranks = {std::min(plan.root, other), std::max(plan.root, other)};
      plan.name = "send";  // pairs and directions tell them apart
    }
  }
  plan.ranks = ranks;
  constexpr Kind kGroups[] = {Kind::kAllreduce, Kind::kBroadcast, Kind::kAllgather};
  const bool group = std::find(std::begin(kGroups), std::end(kGroups), plan.kind) != std::end(kGroups);
  plan.tensors = group ? static_cast<size_t>(choose(1, 3)) : 1;
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
    if (plan.kind == Kind::kAllgather || plan.kind == Kind::kGather) {
      for (auto& n : rows) n = pick(0, 5);
    }
    auto& splits = plan.splits[static_cast<size_t>(r)];
    const bool deals = plan.kind == Kind::kScatter && r == plan.root && sim.chance(2);
    if (plan.kind == Kind::kAlltoall || deals) {
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

/// How many rows go to number `member` if they are split evenly, and the first of them.
inline std::pair<int64_t, int64_t> even_share(const Plan& plan, int64_t rows, size_t member) {
  const auto n = static_cast<int64_t>(plan.ranks.size());
  const auto m = static_cast<int64_t>(member);
  return {rows / n + (m < rows % n ? 1 : 0), m * (rows / n) + std::min(m, rows % n)};
}
/// The same of what rank `from` sends.
inline std::pair<int64_t, int64_t> share(const Plan& plan, int32_t from, size_t member) {
  const int64_t rows = plan.rows[static_cast<size_t>(from)][0];
  const auto& splits = plan.splits[static_cast<size_t>(from)];
  if (plan.kind == Kind::kGather) return {plan.ranks[member] == plan.root ? rows : 0, 0};
  if (plan.kind == Kind::kScatter && from != plan.root) return {0, 0};
  if (splits.empty()) return even_share(plan, rows, member);
  const auto before = splits.begin() + static_cast<std::ptrdiff_t>(member);
  return {*before, std::accumulate(splits.begin(), before, int64_t{0})};
}
/// The rows that number `me` gets from each.
inline std::vector<int64_t> received(const Plan& plan, size_t me) {
  std::vector<int64_t> rows;
  for (const int32_t from : plan.ranks) rows.push_back(share(plan, from, me).first);
  return rows;
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
    case Kind::kSend:
      for (size_t i = 0; i < cells(r); ++i) all.push_back(value(plan.root, index, t, i));
      break;
    case Kind::kReduce:
      if (r != plan.root) break;
      [[fallthrough]];
    case Kind::kAllreduce:
      for (size_t i = 0; i < cells(r); ++i) all.push_back(reduced(plan, index, t, i));
      break;
    case Kind::kReducescatter: {
      const auto [rows, begin] = even_share(plan, plan.rows[static_cast<size_t>(r)][t], me);
      for (int64_t i = begin * plan.width; i < (begin + rows) * plan.width; ++i) {
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
    case Kind::kGather:
    case Kind::kScatter:
      for (const int32_t from : plan.ranks) {
        const auto [rows, begin] = share(plan, from, me);
        for (int64_t i = begin * plan.width; i < (begin + rows) * plan.width; ++i) {
          all.push_back(value(from, index, t, static_cast<size_t>(i)));
        }
      }
      break;
    default: break;
  }
  return all;
}

/// Two uses with the same key on one rank are not under way together.
inline std::string key(const Plan& plan) {
  std::string text = plan.name;
  if (plan.set) {
    for (const int32_t r : plan.ranks) text += "," + std::to_string(r);
  }
  if (plan.kind == Kind::kSend) text += ">" + std::to_string(plan.root);
  for (const int32_t r : plan.within) text += "," + std::to_string(r);
  return text;
}

/// A program on rank r submits this, with the memory of `use`.
inline Submission submission(const Plan& plan, size_t index, int32_t r, int32_t size, Use* use) {
  Submission s;
  s.name = plan.name;
  s.kind = plan.kind;
  s.reduction = plan.reduction;
  s.root = plan.root;
  s.priority = plan.priority;
  if (reduces(plan)) {
    s.prescale = plan.prescale;
    s.postscale = plan.postscale;
  }
  s.members = plan.kind == Kind::kSend ? plan.within : plan.set ? plan.ranks : std::vector<int32_t>();
  if (!s.members.empty()) s.set = key(plan);
  const bool root = r == plan.root;
  bool gives = true, gets = true;  // an input, an output
  if (plan.kind == Kind::kBroadcast) gives = false;
  if (plan.kind == Kind::kSend || plan.kind == Kind::kScatter) gives = root;
  if (plan.kind == Kind::kReduce || plan.kind == Kind::kGather) gets = root;
  if (plan.kind == Kind::kSend) gets = !root;
  for (size_t t = 0; has_tensors(plan) && t < plan.tensors; ++t) {
    const int64_t rows = plan.rows[static_cast<size_t>(r)][t];
    std::vector<int32_t> in(static_cast<size_t>(rows * plan.width));
    for (size_t i = 0; i < in.size(); ++i) in[i] = value(r, index, t, i);
    use->in.push_back(in);
    use->out.push_back(makes_output(plan) ? std::vector<int32_t>(200, -1) : in);
  }
  for (size_t t = 0; t < use->in.size(); ++t) {
    const std::vector<int64_t> shape = {plan.rows[static_cast<size_t>(r)][t], plan.width};
    if (gives) s.inputs.push_back({use->in[t].data(), HVD_DTYPE_INT32, shape});
    if (!gets) continue;
    if (!makes_output(plan)) {
      s.outputs.push_back({use->out[t].data(), HVD_DTYPE_INT32, shape});
    } else if (!plan.allocate) {
      s.outputs.push_back({use->out[t].data(), HVD_DTYPE_INT32, {200 / plan.width, plan.width}});
    } else if (plan.kind == Kind::kScatter) {  // it says what comes
      s.outputs.push_back({nullptr, HVD_DTYPE_INT32, {0, plan.width}});
    }
  }
  if (gives) s.splits = plan.splits[static_cast<size_t>(r)];
  if (plan.kind == Kind::kSend && root) s.root = plan.ranks[0] == r ? plan.ranks[1] : plan.ranks[0];
  if (plan.kind == Kind::kBroadcastObject && root) s.object.assign(plan.object, 9);
  s.word = plan.kind == Kind::kAgree ? static_cast<uint64_t>(r) + index : 0;
  resolve(&s, r, size);
  return s;
}

}  // namespace hvd::collective::testing
