// Splits, placement of copies and the plan between two splits, over random histories of losses and arrivals.
#include "state/shard_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

namespace hvd::state {
namespace {

TEST(Even, TilesTheVectorWhateverItsLength) {
  for (const int64_t elements : {0, 1, 3, 7, 100, 1000003}) {
    for (const int32_t size : {1, 2, 3, 5, 8}) {
      std::vector<ShardRange> ranges;
      for (int32_t rank = 0; rank < size; ++rank) ranges.push_back(even_range(0, elements, rank, size));
      EXPECT_EQ(misfit(elements, ranges), "");
      EXPECT_LE(ranges.front().elements() - ranges.back().elements(), 1);
    }
  }
}

TEST(Misfit, NamesWhatOverlapsIsMissingOrIsBeyondTheEnd) {
  EXPECT_EQ(misfit(10, {{0, 0, 5}, {0, 5, 10}}), "");
  EXPECT_EQ(misfit(10, {{0, 5, 10}, {0, 3, 3}, {0, 0, 5}}), "") << "in any order, and some may have nothing";
  EXPECT_EQ(misfit(10, {{0, 0, 6}, {0, 5, 10}}),
            "elements 5 to 9 of rank 1 overlap elements 0 to 5 of rank 0");
  EXPECT_EQ(misfit(10, {{0, 0, 4}, {0, 5, 10}}),
            "no rank has elements 4 to 4, before elements 5 to 9 of rank 1");
  EXPECT_EQ(misfit(10, {{0, 0, 4}, {0, 4, 9}}), "no rank has elements 9 to 9");
  EXPECT_EQ(misfit(10, {{0, 0, 4}, {0, 4, 11}}),
            "rank 1 has 7 elements from 4: expected a range within 0 .. 10");
  EXPECT_EQ(misfit(10, {{0, -1, 10}}), "rank 0 has 11 elements from -1: expected a range within 0 .. 10");
}

TEST(Placement, IsOnOtherHostsAndEven) {
  EXPECT_EQ(place_copies({"a", "a", "b", "b"}, 1), (std::vector<std::vector<int32_t>>{{2}, {3}, {0}, {1}}));
  EXPECT_EQ(place_copies({"a", "a", "a"}, 1), (std::vector<std::vector<int32_t>>{{1}, {2}, {0}}));
  EXPECT_EQ(place_copies({"a"}, 2), (std::vector<std::vector<int32_t>>{{}})) << "nobody else";
  EXPECT_EQ(place_copies({"a", "a", "b"}, 5), (std::vector<std::vector<int32_t>>{{2, 1}, {2, 0}, {0, 1}}));
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    const auto size = static_cast<int32_t>(1 + random() % 12);
    const auto copies = static_cast<int32_t>(random() % 4);
    std::vector<std::string> hosts;
    for (int32_t rank = 0; rank < size; ++rank) hosts.push_back(std::string(1, "abcd"[random() % 4]));
    const size_t others = std::set<std::string>(hosts.begin(), hosts.end()).size() - 1;
    const auto holders = place_copies(hosts, copies);
    std::vector<int> load(hosts.size(), 0);
    for (int32_t rank = 0; rank < size; ++rank) {
      const auto& mine = holders[static_cast<size_t>(rank)];
      ASSERT_EQ(mine.size(), static_cast<size_t>(std::min(copies, size - 1)));
      EXPECT_EQ(std::set<int32_t>(mine.begin(), mine.end()).size(), mine.size()) << "each of them once";
      EXPECT_EQ(std::count(mine.begin(), mine.end(), rank), 0) << "and not itself";
      std::set<std::string> seen;
      for (size_t i = 0; i < mine.size(); ++i) {
        const std::string& host = hosts[static_cast<size_t>(mine[i])];
        if (i < others) { EXPECT_TRUE(host != hosts[static_cast<size_t>(rank)] && seen.insert(host).second); }
        ++load[static_cast<size_t>(mine[i])];
      }
    }
    if (others == 0 && size > 1) {
      EXPECT_LE(*std::max_element(load.begin(), load.end()) - *std::min_element(load.begin(), load.end()), 1);
    }
  }
}

TEST(Shards, WhatIsThereDoesNotMove) {
  const std::vector<std::vector<ShardRange>> all = {{{0, 0, 5}, {0, 5, 10}}, {{0, 5, 10}, {0, 0, 5}}};
  const ShardPlan plan = plan_shards(all, all, {4});
  EXPECT_TRUE(plan.moves.empty());
  EXPECT_TRUE(plan.lost.empty());
}

TEST(Shards, SourcesShareTheSendingAndLostRangesAreNamed) {
  const ShardPlan plan = plan_shards({{{0, 0, 8}}, {{0, 0, 8}}, {}}, {{}, {}, {{0, 0, 4}, {0, 4, 12}}}, {4});
  EXPECT_EQ(plan.moves, (std::vector<ShardMove>{{{0, 0, 4}, 0, {2}}, {{0, 4, 8}, 1, {2}}}));
  EXPECT_EQ(plan.lost, (std::vector<ShardRange>{{0, 8, 12}}));
}

/// Ranks with what they hold, element by element: what a plan says is carried out, and compared with a
/// reference.
class Histories {
 public:
  explicit Histories(uint32_t seed) : random_(seed) {
    for (uint32_t key = 0; key < 2; ++key) elements_.push_back(static_cast<int64_t>(random_() % 90));
    copies_ = static_cast<int32_t>(random_() % 3);
    for (int i = 0; i < 4; ++i) hosts_.push_back(any_host());
    train();
    has_.assign(4, {});
    for (int32_t rank = 0; rank < 4; ++rank) {
      for (uint32_t key = 0; key < 2; ++key) give(rank, even_range(key, elements_[key], rank, 4));
    }
    sync(false);
  }

  /// Some are lost, some come. `lost` of them before anything is copied anew.
  void step(size_t lost, size_t size) {
    std::vector<size_t> ranks(has_.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    std::shuffle(ranks.begin(), ranks.end(), random_);
    ranks.resize(ranks.size() - std::min(lost, ranks.size() - 1));
    std::sort(ranks.begin(), ranks.end());
    std::vector<Held> stay;
    std::vector<std::string> hosts;
    for (const size_t rank : ranks) {
      stay.push_back(has_[rank]);
      hosts.push_back(hosts_[rank]);
    }
    if (stay.size() > size) {  // the rest of them leaves, and hands over
      has_ = stay;
      std::vector<bool> leaves(has_.size(), false);
      std::fill(leaves.begin() + static_cast<ptrdiff_t>(size), leaves.end(), true);
      const auto takes = plan_handover(ranges(), ranges(), leaves, {4, 8}, {copies_ + 1, copies_ + 1});
      carry_out(plan_shards(ranges(), takes, {4, 8}), takes, true);
      has_.resize(size);
      hosts.resize(size);
      // Until copies are made anew as many may be lost as there are.
      for (auto more = copies_ - static_cast<int32_t>(lost); more > 0 && has_.size() > 1; --more) {
        const auto gone = static_cast<ptrdiff_t>(random_() % has_.size());
        has_.erase(has_.begin() + gone);
        hosts.erase(hosts.begin() + gone);
      }
      stay = has_;
    }
    has_ = stay;
    hosts_ = hosts;
    while (has_.size() < size) {
      has_.emplace_back();
      hosts_.push_back(any_host());
    }
    sync(static_cast<int32_t>(lost) > copies_);
    train();
    commit();
  }
  int32_t copies() const { return copies_; }
  bool over() const { return over_; }
  uint32_t any(uint32_t below) { return random_() % below; }

 private:
  using Held = std::map<std::pair<uint32_t, int64_t>, uint64_t>;  // key and element to its value
  using Ranges = std::vector<std::vector<ShardRange>>;

  std::string any_host() { return std::string(1, "abc"[random_() % 3]); }
  void train() {
    for (uint32_t key = 0; key < 2; ++key) {
      for (int64_t i = 0; i < elements_[key]; ++i) reference_[{key, i}] = random_();
    }
  }
  void give(int32_t rank, const ShardRange& range) {
    for (int64_t i = range.begin; i < range.end; ++i)
      has_[static_cast<size_t>(rank)][{range.key, i}] = reference_.at({range.key, i});
  }
  Ranges ranges() const {
    Ranges all;
    for (const Held& held : has_) {
      auto& mine = all.emplace_back();
      for (const auto& [at, value] : held) {
        if (!mine.empty() && mine.back().key == at.first && mine.back().end == at.second) {
          ++mine.back().end;
        } else {
          mine.push_back({at.first, at.second, at.second + 1});
        }
      }
    }
    return all;
  }
  /// Ranges of this size and hosts: a rank's own, then those that it holds for others.
  Ranges wanted() const {
    const auto size = static_cast<int32_t>(has_.size());
    const auto holders = place_copies(hosts_, copies_);
    Ranges wants(has_.size());
    for (int32_t rank = 0; rank < size; ++rank) {
      for (uint32_t key = 0; key < 2; ++key) {
        const ShardRange own = even_range(key, elements_[key], rank, size);
        wants[static_cast<size_t>(rank)].push_back(own);
        for (const int32_t holder : holders[static_cast<size_t>(rank)])
          wants[static_cast<size_t>(holder)].push_back(own);
      }
    }
    return wants;
  }
  void carry_out(const ShardPlan& plan, const Ranges& wants, bool besides) {
    std::vector<Held> next(has_.size());
    if (besides) next = has_;
    for (size_t rank = 0; rank < has_.size(); ++rank) {
      for (const ShardRange& range : wants[rank]) {
        for (int64_t i = range.begin; i < range.end; ++i) {
          const auto found = has_[rank].find({range.key, i});
          if (found != has_[rank].end()) next[rank].insert(*found);
        }
      }
    }
    for (const ShardMove& move : plan.moves) {
      for (int64_t i = move.range.begin; i < move.range.end; ++i) {
        const uint64_t value = has_[static_cast<size_t>(move.source)].at({move.range.key, i});
        for (const int32_t to : move.receivers) {
          EXPECT_TRUE(next[static_cast<size_t>(to)].insert({{move.range.key, i}, value}).second)
              << "nothing comes twice";
        }
      }
    }
    has_ = next;
  }
  void sync(bool may_lose) {
    const Ranges wants = wanted();
    const ShardPlan plan = plan_shards(ranges(), wants, {4, 8});
    if (!plan.lost.empty()) {
      EXPECT_TRUE(may_lose) << "of " << copies_ << " copies no more were lost than that";
      over_ = true;
      return;
    }
    carry_out(plan, wants, false);
    for (size_t rank = 0; rank < has_.size(); ++rank) {
      for (const ShardRange& range : wants[rank]) {
        for (int64_t i = range.begin; i < range.end; ++i)
          ASSERT_EQ(has_[rank].at({range.key, i}), reference_.at({range.key, i}));
      }
    }
  }
  void commit() {
    const Ranges wants = wanted();
    for (size_t rank = 0; rank < has_.size(); ++rank) {
      has_[rank].clear();
      for (const ShardRange& range : wants[rank]) give(static_cast<int32_t>(rank), range);
    }
  }

  std::mt19937 random_;
  std::vector<int64_t> elements_;
  int32_t copies_ = 1;
  std::vector<std::string> hosts_;
  std::vector<Held> has_;  // by rank
  Held reference_;
  bool over_ = false;
};

TEST(Shards, HistoriesKeepEveryElement) {
  size_t lost_after_all = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    Histories history(seed);
    for (const size_t size : {3U, 5U, 2U, 4U}) {
      history.step(history.any(static_cast<uint32_t>(history.copies()) + 1), size);
      ASSERT_FALSE(history.over());
    }
    for (int i = 0; i < 6; ++i) {
      history.step(history.any(static_cast<uint32_t>(history.copies()) + 1), 1 + history.any(6));
      ASSERT_FALSE(history.over());
    }
    history.step(2, 4);  // and with more lost than there are copies it is said so
    if (history.over()) ++lost_after_all;
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(lost_after_all, 20U);
}

}  // namespace
}  // namespace hvd::state
