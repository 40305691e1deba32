// The plan of a sync, over all small cases and random ones.
#include "state/sync_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

#include "base/roster.h"

namespace hvd::state {
namespace {

Summary with(uint64_t revision, uint64_t digest = 1) { return {true, revision, {digest, 0}}; }
Summary without(uint64_t revision = 0) { return {false, revision, {9, 9}}; }

TEST(Root, IsTheHighestRevisionThenTheLowestRank) {  // contract 5
  EXPECT_EQ(choose_root({with(1), with(3), with(3), with(2)}), 1);
  EXPECT_EQ(choose_root({with(3), with(3)}), 0);
  EXPECT_EQ(choose_root({without(9), with(0), with(1)}), 2)
      << "who has no state can't be root, whatever it counts";
  EXPECT_EQ(choose_root({without(), with(0)}), 1);
  EXPECT_EQ(choose_root({without(4), without(5)}), 0);
}

TEST(Root, IsNobodyByItsWordAlone) {
  constexpr uint64_t kMost = ~uint64_t{0};
  const std::vector<Summary> known{{true, 7, {}}, {true, 5, {}}, {false, 0, {}}};
  const auto root = [&](std::vector<Summary> told) { return choose_root(believed(std::move(told), known)); };
  EXPECT_EQ(root({{true, 7, {}}, {true, 5, {}}, {true, kMost, {}}}), 0);
  EXPECT_EQ(root({{true, 7, {}}, {true, 8, {}}, {false, 0, {}}}), 1) << "it has saved in a callback";
  EXPECT_EQ(root({{true, 3, {}}, {true, 5, {}}, {false, 0, {}}}), 1) << "what it had may be gone";
  EXPECT_EQ(believed({{true, kMost, {}}, {true, 5, {}}, {}}, known)[0].revision, 7 + kMostCommits);
  EXPECT_EQ(believed({{false, kMost, {}}}, {})[0].revision, kMostCommits);
  EXPECT_EQ(believed({{true, kMost, {}}}, {})[0].revision, kMost) << "nobody knows better";
}

TEST(Agreement, TakesStateRevisionAndDigestOfAll) {
  EXPECT_TRUE(all_agree({with(1), with(1), with(1)}));
  EXPECT_FALSE(all_agree({with(1), with(2)}));
  EXPECT_FALSE(all_agree({with(1, 5), with(1, 6)}));
  EXPECT_FALSE(all_agree({without(), without()})) << "equal, but never synced";
  EXPECT_FALSE(all_agree({with(1), {false, 1, {1, 0}}}));
}

TEST(Plan, SurvivorsThatAgreeMoveNothing) {  // contract 6
  const std::vector<Version> row = {{{1, 1}, 100}, {{2, 2}, 1 << 20}};
  EXPECT_TRUE(plan_transfers(hold_whole({row, row, row}, 1)).empty());
}

TEST(Plan, PacksSmallVariablesOfTheSameReceivers) {
  std::vector<Version> has, lacks;
  for (uint64_t i = 0; i < 1000; ++i) {
    has.push_back({{i, 1}, 1000});
    lacks.push_back({{i, 2}, 1000});
  }
  has.push_back({{5000, 1}, kPackBelow});
  lacks.push_back({{5000, 2}, kPackBelow});
  const std::vector<Transfer> plan = plan_transfers(hold_whole({has, lacks, has}, 0));
  ASSERT_EQ(plan.size(), 2U);
  EXPECT_EQ(plan[0].parts.size(), 1000U);
  EXPECT_EQ(plan[0].bytes, 1000000U);
  EXPECT_EQ(plan[0].receivers, std::vector<int32_t>{1});
  EXPECT_EQ(plan[1].parts, (std::vector<Part>{{1000, 0, kPackBelow}}));
  EXPECT_NE(plan[0].source, plan[1].source) << "the second holder sends as well";
}

TEST(Plan, BalancesTheSources) {
  std::vector<Version> has, lacks;
  for (uint64_t i = 0; i < 12; ++i) {
    has.push_back({{i, 1}, 1 << 20});
    lacks.push_back({{i, 2}, 1 << 20});
  }
  std::map<int32_t, uint64_t> sent;
  for (const Transfer& t : plan_transfers(hold_whole({has, has, lacks, has}, 1))) sent[t.source] += t.bytes;
  EXPECT_EQ(sent, (std::map<int32_t, uint64_t>{{0, 4 << 20}, {1, 4 << 20}, {3, 4 << 20}}));
}

TEST(Plan, DividesALargeVariableAmongItsHolders) {
  Holdings holdings;
  holdings.variables = {{512 << 20, 1 << 20, true}};
  holdings.has = {{std::vector<bool>(512, true)}, {std::vector<bool>(512, true)}, {std::vector<bool>(512)}};
  std::map<int32_t, uint64_t> sent;
  for (const Transfer& t : plan_transfers(holdings)) {
    EXPECT_LE(t.bytes, kRange);
    EXPECT_FALSE(t.direct);
    sent[t.source] += t.bytes;
  }
  EXPECT_EQ(sent, (std::map<int32_t, uint64_t>{{0, 256 << 20}, {1, 256 << 20}}));

  holdings.reads = {{false, false, false}, {false, false, false}, {false, true, false}};
  for (const Transfer& t : plan_transfers(holdings)) {
    EXPECT_TRUE(t.direct);
    EXPECT_EQ(t.source, 1) << "the only one whose memory it can read";
  }
}

// Any holdings: everyone ends with all there is, nobody receives what it has, nobody sends what it lacks, and
// memory is read only where that can be.
TEST(Plan, HoldsForRandomCases) {
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](uint64_t n) { return random() % n; };
    const size_t ranks = 1 + below(8), variables = below(20), root = below(ranks);
    const uint64_t share = 1 + below(4);  // how much of all is held
    Holdings holdings;
    for (size_t v = 0; v < variables; ++v) {
      Holdings::Item item;
      item.size = below(3) == 0 ? 0 : below(2) == 0 ? 1 + below(100) : 1 + below(40 << 20);
      if (item.size >= kDirectFrom && below(3) != 0) item.piece = uint64_t{1 + below(3)} << 20;
      item.readable = item.piece != 0 && below(2) == 0;
      holdings.variables.push_back(item);
    }
    for (size_t rank = 0; rank < ranks; ++rank) {
      auto& has = holdings.has.emplace_back();
      for (const auto& item : holdings.variables) {
        auto& pieces = has.emplace_back(item.pieces());
        for (auto&& piece : pieces) piece = rank == root || below(4) < share;
      }
    }
    if (below(2) == 0) {
      for (size_t rank = 0; rank < ranks; ++rank) {
        auto& reads = holdings.reads.emplace_back(ranks);
        for (size_t other = 0; other < ranks; ++other) reads[other] = rank != other && below(2) == 0;
      }
    }
    const auto has = [&](int32_t rank, uint32_t v, uint64_t at) -> bool {
      const Holdings::Item& item = holdings.variables[v];
      return holdings.has[static_cast<size_t>(rank)][v][item.piece == 0 ? 0 : at / item.piece];
    };
    std::map<std::tuple<int32_t, uint32_t, uint64_t>, uint64_t> received;  // rank, variable, offset: to
    for (const Transfer& t : plan_transfers(holdings)) {
      ASSERT_FALSE(t.receivers.empty()) << seed;
      ASSERT_TRUE(std::is_sorted(t.receivers.begin(), t.receivers.end())) << seed;
      ASSERT_FALSE(std::binary_search(t.receivers.begin(), t.receivers.end(), t.source)) << seed;
      uint64_t bytes = 0;
      for (const Part& part : t.parts) {
        bytes += part.size;
        const Holdings::Item& item = holdings.variables[part.variable];
        ASSERT_LE(part.offset + part.size, item.size) << seed;
        const uint64_t step = item.piece == 0 ? item.size : item.piece;
        for (uint64_t at = part.offset; at < part.offset + part.size; at += step) {
          ASSERT_TRUE(has(t.source, part.variable, at)) << "seed " << seed << ": source lacks it";
          for (const int32_t rank : t.receivers) {
            ASSERT_FALSE(has(rank, part.variable, at)) << "seed " << seed << ": receiver has it";
            const uint64_t end = std::min(at + step, part.offset + part.size);
            ASSERT_TRUE(received.insert({{rank, part.variable, at}, end}).second)
                << "seed " << seed << ": sent twice";
          }
        }
        if (t.direct) {
          ASSERT_EQ(t.receivers.size(), 1U) << seed;
          ASSERT_TRUE(item.readable) << seed;
          ASSERT_TRUE(holdings.reads[static_cast<size_t>(t.receivers[0])][static_cast<size_t>(t.source)])
              << seed;
        }
      }
      ASSERT_EQ(t.bytes, bytes) << seed;
      ASSERT_GT(t.bytes, 0U) << seed;
      ASSERT_TRUE(t.parts.size() == 1 || t.bytes <= kPackLimit) << seed;
    }
    for (int32_t rank = 0; rank < static_cast<int32_t>(ranks); ++rank) {
      for (uint32_t v = 0; v < variables; ++v) {
        const Holdings::Item& item = holdings.variables[v];
        const uint64_t step = item.piece == 0 ? item.size : item.piece;
        for (uint64_t at = 0; at < item.size; at += step) {
          if (has(rank, v, at)) continue;
          const auto found = received.find({rank, v, at});
          ASSERT_NE(found, received.end())
              << "seed " << seed << " rank " << rank << " variable " << v << " at " << at;
          ASSERT_EQ(found->second, std::min(at + step, item.size)) << seed;
        }
      }
    }
  }
}

}  // namespace
}  // namespace hvd::state
