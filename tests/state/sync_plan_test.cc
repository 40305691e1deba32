// The plan of a sync, over all small cases and random ones.
#include "state/sync_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

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

TEST(Agreement, TakesStateRevisionAndDigestOfAll) {
  EXPECT_TRUE(all_agree({with(1), with(1), with(1)}));
  EXPECT_FALSE(all_agree({with(1), with(2)}));
  EXPECT_FALSE(all_agree({with(1, 5), with(1, 6)}));
  EXPECT_FALSE(all_agree({without(), without()})) << "equal, but never synced";
  EXPECT_FALSE(all_agree({with(1), {false, 1, {1, 0}}}));
}

TEST(Plan, SurvivorsThatAgreeMoveNothing) {  // contract 6
  const std::vector<Version> row = {{{1, 1}, 100}, {{2, 2}, 1 << 20}};
  EXPECT_TRUE(plan_transfers({row, row, row}, 1).empty());
}

TEST(Plan, PacksSmallVariablesOfTheSameReceivers) {
  std::vector<Version> has, lacks;
  for (uint64_t i = 0; i < 1000; ++i) {
    has.push_back({{i, 1}, 1000});
    lacks.push_back({{i, 2}, 1000});
  }
  has.push_back({{5000, 1}, kPackBelow});
  lacks.push_back({{5000, 2}, kPackBelow});
  const std::vector<Transfer> plan = plan_transfers({has, lacks, has}, 0);
  ASSERT_EQ(plan.size(), 2U);
  EXPECT_EQ(plan[0].variables.size(), 1000U);
  EXPECT_EQ(plan[0].bytes, 1000000U);
  EXPECT_EQ(plan[0].receivers, std::vector<int32_t>{1});
  EXPECT_EQ(plan[1].variables, std::vector<uint32_t>{1000});
  EXPECT_NE(plan[0].source, plan[1].source) << "the second holder sends as well";
}

TEST(Plan, BalancesTheSources) {
  std::vector<Version> has, lacks;
  for (uint64_t i = 0; i < 12; ++i) {
    has.push_back({{i, 1}, 1 << 20});
    lacks.push_back({{i, 2}, 1 << 20});
  }
  std::map<int32_t, uint64_t> sent;
  for (const Transfer& t : plan_transfers({has, has, lacks, has}, 1)) sent[t.source] += t.bytes;
  EXPECT_EQ(sent, (std::map<int32_t, uint64_t>{{0, 4 << 20}, {1, 4 << 20}, {3, 4 << 20}}));
}

// Any history of versions: everyone ends with the root's, nobody receives what it has, nobody sends what it lacks.
TEST(Plan, HoldsForRandomCases) {
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](uint64_t n) { return random() % n; };
    const size_t ranks = 1 + below(8), variables = below(40);
    const int32_t root = static_cast<int32_t>(below(ranks));
    const uint64_t spread = 1 + below(4);  // how many versions there are
    std::vector<uint64_t> fixed(variables);
    for (uint64_t& size : fixed)
      size = below(3) == 0 ? 0 : below(2) == 0 ? 1 + below(100) : below(3 * kPackBelow);
    std::vector<std::vector<Version>> versions(ranks, std::vector<Version>(variables));
    for (auto& row : versions) {
      for (size_t v = 0; v < variables; ++v) {
        row[v].digest = {below(spread), v};
        row[v].size = below(10) == 0 ? below(2 * kPackBelow) : fixed[v];  // objects differ in size too
      }
    }
    const std::vector<Version> wanted = versions[static_cast<size_t>(root)];
    std::vector<std::vector<Version>> after = versions;
    std::set<std::pair<int32_t, uint32_t>> received;
    for (const Transfer& t : plan_transfers(versions, root)) {
      ASSERT_FALSE(t.receivers.empty()) << seed;
      ASSERT_TRUE(std::is_sorted(t.receivers.begin(), t.receivers.end())) << seed;
      ASSERT_TRUE(std::is_sorted(t.variables.begin(), t.variables.end())) << seed;
      uint64_t bytes = 0;
      for (uint32_t v : t.variables) {
        bytes += wanted[v].size;
        ASSERT_EQ(versions[static_cast<size_t>(t.source)][v], wanted[v])
            << "seed " << seed << ": source lacks it";
        for (int32_t rank : t.receivers) {
          ASSERT_NE(versions[static_cast<size_t>(rank)][v], wanted[v])
              << "seed " << seed << ": receiver has it";
          ASSERT_TRUE(received.insert({rank, v}).second) << "seed " << seed << ": sent twice";
          after[static_cast<size_t>(rank)][v] = wanted[v];
        }
      }
      ASSERT_EQ(t.bytes, bytes) << seed;
      ASSERT_GT(t.bytes, 0U) << seed;
      ASSERT_TRUE(t.variables.size() == 1 || t.bytes <= kPackLimit) << seed;
    }
    for (size_t rank = 0; rank < ranks; ++rank) {
      for (size_t v = 0; v < variables; ++v) {
        if (wanted[v].size != 0) {
          ASSERT_EQ(after[rank][v], wanted[v]) << "seed " << seed << " rank " << rank << " variable " << v;
        }
      }
    }
  }
}

}  // namespace
}  // namespace hvd::state
