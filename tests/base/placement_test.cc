// Who goes to another processor and who stays, and threads that do.
#include "base/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <random>
#include <vector>

namespace hvd {
namespace {

cpu_set_t set_of(std::initializer_list<size_t> numbers) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const size_t number : numbers) CPU_SET(number, &set);
  return set;
}

using Numbers = std::vector<int32_t>;

TEST(BetterProcessor, TheLastOfThoseTogetherGoesWhereTwoFewerAre) {
  const cpu_set_t both = set_of({0, 1});
  EXPECT_EQ(better_processor(Numbers{0, 0}, 1, both), 1);
  EXPECT_FALSE(better_processor(Numbers{0, 0}, 0, both)) << "both would go";
  EXPECT_FALSE(better_processor(Numbers{0, 1}, 0, both)) << "it is alone";
  EXPECT_EQ(better_processor(Numbers{1, 1, 1, 0}, 2, both), 0);
  EXPECT_FALSE(better_processor(Numbers{0, 0, 1}, 1, both)) << "one fewer: there it would be as bad";
  EXPECT_FALSE(better_processor(Numbers{0, 0, 1, 1}, 3, both));
  EXPECT_EQ(better_processor(Numbers{5, 2, 5}, 2, set_of({2, 5, 7})), 7) << "the emptiest";
  EXPECT_FALSE(better_processor(Numbers{5, 5}, 1, set_of({5}))) << "it may not go";
}

TEST(BetterProcessor, NumbersOfNoProcessorCountForNothing) {
  const cpu_set_t both = set_of({0, 1});
  for (const int32_t wrong :
       {-1, std::numeric_limits<int32_t>::min(), CPU_SETSIZE, std::numeric_limits<int32_t>::max()}) {
    EXPECT_FALSE(better_processor(Numbers{wrong, wrong}, 1, both)) << wrong;
    EXPECT_FALSE(better_processor(Numbers{wrong, 0}, 1, both)) << wrong;
    EXPECT_EQ(better_processor(Numbers{0, wrong, 0}, 2, both), 1) << wrong;
  }
}

// Some or all at once, on what they read before anybody moved: soon nobody moves any more.
TEST(BetterProcessor, HistoriesEndWithRanksApart) {
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 chance(seed);
    const size_t processors = 1 + chance() % 8, ranks = 1 + chance() % 20;
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    for (size_t i = 0; i < processors; ++i) CPU_SET(i, &allowed);
    Numbers places(ranks);
    for (int32_t& place : places) place = static_cast<int32_t>(chance() % processors);
    const uint32_t part = 1 + chance() % 3;  // 1: all decide each time
    bool moves = true;
    for (size_t pass = 0; moves; ++pass) {
      ASSERT_LT(pass, 200u) << "seed " << seed;
      const Numbers told = places;
      moves = false;
      for (size_t who = 0; who < ranks; ++who) {
        const auto better = better_processor(told, who, allowed);
        if (!better) continue;
        moves = true;
        ASSERT_TRUE(CPU_ISSET(static_cast<size_t>(*better), &allowed));
        if (chance() % part == 0) places[who] = *better;
      }
    }
    std::vector<size_t> there(processors);
    for (const int32_t place : places) ++there[static_cast<size_t>(place)];
    const auto [fewest, most] = std::minmax_element(there.begin(), there.end());
    EXPECT_LE(*most - *fewest, 1u) << "seed " << seed;
  }
}

class PlacementTest : public testing::Test {
 protected:
  void SetUp() override {
    if (sched_getaffinity(0, sizeof(before_), &before_) != 0 || CPU_COUNT(&before_) < 2 ||
        CPU_COUNT(&before_) < processors_online()) {
      GTEST_SKIP() << "needs two processors, and all there are";
    }
    for (auto& word : words_) word = Placement::kUnknown;
  }
  void TearDown() override { sched_setaffinity(0, sizeof(before_), &before_); }
  Placement::Told told() {
    return [this](size_t index) { return index < words_.size() ? &words_[index] : nullptr; };
  }
  cpu_set_t before_{};
  std::array<std::atomic<int32_t>, 3> words_;
};

TEST_F(PlacementTest, AThreadLeavesTheProcessorOfItsPeerAndMayUseAllAfterwards) {
  // The kernel may move the thread as well, at any time: of many tries most see what was meant.
  int parted = 0;
  for (int i = 0; i < 100; ++i) {
    Placement placement(2, 1, told());
    const int32_t on = sched_getcpu();
    words_[0] = on;
    placement.gave_way(Time() + std::chrono::hours(1));
    if (words_[1] != on && words_[1] != Placement::kUnknown) ++parted;
    cpu_set_t after;
    ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
    ASSERT_TRUE(CPU_EQUAL(&after, &before_)) << "round " << i;
  }
  EXPECT_GE(parted, 90);
}

TEST_F(PlacementTest, OneMoveInTwoMilliseconds) {
  Placement placement(2, 1, told());
  const Time start = Time() + std::chrono::hours(1);
  words_[0] = CPU_SETSIZE;
  placement.gave_way(start);  // nobody is here: still the one look for this time
  int moved = 0;
  for (int i = 0; i < 50; ++i) {
    words_[0] = sched_getcpu();
    placement.gave_way(start + std::chrono::microseconds(1999));
    if (words_[1] != words_[0]) ++moved;
  }
  EXPECT_LE(moved, 5) << "the kernel's doing at most";
}

TEST_F(PlacementTest, WhoIsKeptToSomeProcessorsStays) {
  int moved = 0;
  for (int i = 0; i < 100; ++i) {
    Placement placement(2, 1, told(), CPU_COUNT(&before_) + 1);
    words_[0] = sched_getcpu();
    placement.gave_way(Time() + std::chrono::hours(1));
    if (words_[1] != words_[0]) ++moved;
  }
  EXPECT_LE(moved, 10) << "the kernel's doing at most";
}

TEST_F(PlacementTest, WhereNothingIsToldNobodyMoves) {
  Placement nowhere(2, 1, [](size_t) { return nullptr; });
  nowhere.gave_way(Time() + std::chrono::hours(1));
  Placement beyond(200, 150, [this](size_t) { return &words_[2]; });
  beyond.gave_way(Time() + std::chrono::hours(1));
  EXPECT_EQ(words_[2], sched_getcpu());
}

}  // namespace
}  // namespace hvd
