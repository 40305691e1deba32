// Splits, placement of copies, and what moves between two splits: one sweep over the borders of all ranges of
// a key.
#include "state/shard_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace hvd::state {
namespace {

using Ranges = std::vector<std::vector<ShardRange>>;

/// A stretch between two borders: who has it, and who wants it.
struct Stretch {
  ShardRange range;
  std::vector<int32_t> having, wanting;  // ascending
};

/// Calls see(stretch) for every stretch that somebody has or wants, in order.
template <class See>
void sweep(const Ranges& has, const Ranges& wants, See see) {
  struct Border {
    uint32_t key;
    int64_t at;
    int32_t rank;
    bool wanted;
    int by;  // 1: a range begins, -1: it ends
  };
  std::vector<Border> borders;
  const auto collect = [&](const Ranges& ranges, bool wanted) {
    for (size_t rank = 0; rank < ranges.size(); ++rank) {
      for (const ShardRange& range : ranges[rank]) {
        if (range.begin >= range.end) continue;
        borders.push_back({range.key, range.begin, static_cast<int32_t>(rank), wanted, 1});
        borders.push_back({range.key, range.end, static_cast<int32_t>(rank), wanted, -1});
      }
    }
  };
  collect(has, false);
  collect(wants, true);
  std::sort(borders.begin(), borders.end(),
            [](const Border& a, const Border& b) { return std::tie(a.key, a.at) < std::tie(b.key, b.at); });
  std::map<int32_t, int> having, wanting;  // ranges that are open, by rank
  const auto names = [](const std::map<int32_t, int>& open) {
    std::vector<int32_t> ranks;
    for (const auto& [rank, count] : open) ranks.push_back(rank);
    return ranks;
  };
  for (size_t i = 0; i < borders.size(); ++i) {
    auto& open = borders[i].wanted ? wanting : having;
    const auto place = open.try_emplace(borders[i].rank, 0).first;
    if ((place->second += borders[i].by) == 0) open.erase(place);
    if (i + 1 == borders.size() || borders[i + 1].key != borders[i].key || borders[i + 1].at == borders[i].at)
      continue;
    if (having.empty() && wanting.empty()) continue;
    see(Stretch{{borders[i].key, borders[i].at, borders[i + 1].at}, names(having), names(wanting)});
  }
}

}  // namespace

ShardRange even_range(uint32_t key, int64_t elements, int32_t rank, int32_t size) {
  const int64_t each = elements / size, more = elements % size;
  const int64_t begin = each * rank + std::min<int64_t>(rank, more);
  return {key, begin, begin + each + (rank < more ? 1 : 0)};
}

std::vector<std::vector<int32_t>> place_copies(const std::vector<std::string>& hosts, int32_t copies) {
  const auto size = static_cast<int32_t>(hosts.size());
  std::map<std::string, size_t> number;
  for (const std::string& host : hosts) number.try_emplace(host, number.size());
  std::vector<size_t> host_of;
  // Of each host its ranks, who holds least first, and then whoever follows the last one that was asked.
  using Entry = std::tuple<int32_t, int32_t>;  // copies held, rank
  std::vector<std::set<Entry>> idle(number.size());
  for (int32_t rank = 0; rank < size; ++rank) {
    host_of.push_back(number.at(hosts[static_cast<size_t>(rank)]));
    idle[host_of.back()].insert({0, rank});
  }
  std::vector<std::vector<int32_t>> holders(hosts.size());
  // One copy after the other: the first copies are as even as can be, whatever the later ones are.
  for (int32_t copy = 0; copy < std::min(copies, size - 1); ++copy) {
    for (int32_t rank = 0; rank < size; ++rank) {
      std::vector<int32_t>& mine = holders[static_cast<size_t>(rank)];
      using Rating =
          std::tuple<int, int32_t, int32_t>;  // how near the host is, copies held, distance: least is best
      Rating best{3, 0, 0};
      Entry chosen{0, -1};
      size_t chosen_host = 0;
      for (size_t host = 0; host < idle.size(); ++host) {
        int near = host == host_of[static_cast<size_t>(rank)] ? 2 : 0;
        for (const int32_t holder : mine) {
          if (host_of[static_cast<size_t>(holder)] == host) near = std::max(near, 1);
        }
        if (near > std::get<0>(best)) continue;
        size_t seen = 0;
        for (const Entry& entry : idle[host]) {
          const auto [load, candidate] = entry;
          if (candidate == rank || std::find(mine.begin(), mine.end(), candidate) != mine.end()) continue;
          // The next of the host's ranks in a circle; looking at a few of many is enough.
          const Rating rating{near, load, (candidate - rank + size) % size};
          if (rating < best) {
            best = rating;
            chosen = entry;
            chosen_host = host;
          } else if (load > std::get<1>(best) || ++seen > 64) {
            break;
          }
        }
      }
      const int32_t holder = std::get<1>(chosen);
      idle[chosen_host].erase(chosen);
      idle[chosen_host].insert({std::get<0>(chosen) + 1, holder});
      mine.push_back(holder);
    }
  }
  return holders;
}

std::string misfit(int64_t elements, const std::vector<ShardRange>& ranges) {
  const auto told = [&](size_t rank) {
    return fmt::format("elements {} to {} of rank {}", ranges[rank].begin, ranges[rank].end - 1, rank);
  };
  std::vector<size_t> order;
  for (size_t rank = 0; rank < ranges.size(); ++rank) {
    const ShardRange& range = ranges[rank];
    if (range.begin < 0 || range.end < range.begin || range.end > elements) {
      // What a rank says may be beyond what can be subtracted.
      const uint64_t count = static_cast<uint64_t>(range.end) - static_cast<uint64_t>(range.begin);
      return fmt::format("rank {} has {} elements from {}: expected a range within 0 .. {}", rank,
                         static_cast<int64_t>(count), range.begin, elements);
    }
    if (range.begin < range.end) order.push_back(rank);
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return ranges[a].begin < ranges[b].begin; });
  int64_t covered = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const ShardRange& range = ranges[order[i]];
    if (range.begin < covered) return fmt::format("{} overlap {}", told(order[i]), told(order[i - 1]));
    if (range.begin > covered) {
      return fmt::format("no rank has elements {} to {}, before {}", covered, range.begin - 1,
                         told(order[i]));
    }
    covered = range.end;
  }
  if (covered < elements) return fmt::format("no rank has elements {} to {}", covered, elements - 1);
  return {};
}

ShardPlan plan_shards(const Ranges& has, const Ranges& wants, const std::vector<uint64_t>& element_bytes) {
  ShardPlan plan;
  std::vector<uint64_t> load(has.size(), 0);
  sweep(has, wants, [&](const Stretch& stretch) {
    std::vector<int32_t> receivers;
    std::set_difference(stretch.wanting.begin(), stretch.wanting.end(), stretch.having.begin(),
                        stretch.having.end(), std::back_inserter(receivers));
    if (receivers.empty()) return;
    const ShardRange& range = stretch.range;
    if (stretch.having.empty()) {
      const bool follows =
          !plan.lost.empty() && plan.lost.back().key == range.key && plan.lost.back().end == range.begin;
      if (follows) {
        plan.lost.back().end = range.end;
      } else {
        plan.lost.push_back(range);
      }
      return;
    }
    const int32_t source =
        *std::min_element(stretch.having.begin(), stretch.having.end(), [&](int32_t a, int32_t b) {
          return std::pair(load[static_cast<size_t>(a)], a) < std::pair(load[static_cast<size_t>(b)], b);
        });
    load[static_cast<size_t>(source)] += static_cast<uint64_t>(range.elements()) * element_bytes[range.key];
    plan.moves.push_back({range, source, std::move(receivers)});
  });
  return plan;
}

Ranges plan_handover(const Ranges& has, const Ranges& had, const std::vector<bool>& leaves,
                     const std::vector<uint64_t>& element_bytes, const std::vector<int32_t>& holders) {
  Ranges takes(has.size());
  std::vector<uint64_t> load(has.size(), 0);
  std::vector<int32_t> staying;
  for (size_t rank = 0; rank < has.size(); ++rank) {
    if (leaves[rank]) continue;
    staying.push_back(static_cast<int32_t>(rank));
    for (const ShardRange& range : has[rank])
      load[rank] += static_cast<uint64_t>(range.elements()) * element_bytes[range.key];
  }
  if (staying.empty()) return takes;
  sweep(has, had, [&](const Stretch& stretch) {
    std::vector<int32_t> others;  // that stay and have it not
    std::set_difference(staying.begin(), staying.end(), stretch.having.begin(), stretch.having.end(),
                        std::back_inserter(others));
    const size_t have = staying.size() - others.size();
    if (have == stretch.wanting.size() || stretch.having.empty()) return;  // nobody who leaves has it
    const auto wanted = static_cast<size_t>(std::max(holders[stretch.range.key], 1));
    for (size_t count = have; count < wanted && !others.empty(); ++count) {
      const auto taker = std::min_element(others.begin(), others.end(), [&](int32_t x, int32_t y) {
        return std::pair(load[static_cast<size_t>(x)], x) < std::pair(load[static_cast<size_t>(y)], y);
      });
      takes[static_cast<size_t>(*taker)].push_back(stretch.range);
      load[static_cast<size_t>(*taker)] +=
          static_cast<uint64_t>(stretch.range.elements()) * element_bytes[stretch.range.key];
      others.erase(taker);
    }
  });
  return takes;
}

}  // namespace hvd::state
