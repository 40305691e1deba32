// The choice between two ways to do a thing: both have their turns, and the second must be clearly faster.
#include "base/two_ways.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>
#include <vector>

namespace hvd {
namespace {

struct Outcome {
  size_t choice = 0;
  std::vector<size_t> turns;
};

// time(way, turn): nanoseconds that the n-th copy of 64 KiB took.
template <class Time>
Outcome outcome_of(Time time) {
  WayTrial trial;
  Outcome outcome;
  std::vector<int> copies(2);
  for (;;) {
    const size_t way = trial.turn();
    outcome.turns.push_back(way);
    if (const auto choice = trial.took(65536, Duration(time(way, copies[way]++)))) {
      outcome.choice = *choice;
      EXPECT_EQ(trial.took(65536, Duration(1)), choice) << "the choice stays";
      return outcome;
    }
  }
}

TEST(WayTrial, BothHaveTheirTurnsAndNeitherIsAlwaysFirst) {
  const Outcome outcome = outcome_of([](size_t, int) { return 5000; });
  ASSERT_EQ(outcome.turns.size(), 2 * WayTrial::kTurns);
  int first[2] = {};
  for (size_t pair = 0; pair < WayTrial::kTurns; ++pair) {
    EXPECT_NE(outcome.turns[2 * pair], outcome.turns[2 * pair + 1]) << "pair " << pair;
    ++first[outcome.turns[2 * pair]];
  }
  EXPECT_LE(std::abs(first[0] - first[1]), 1);
}

TEST(WayTrial, TheSecondIsChosenIfItIsClearlyFaster) {
  for (const auto& [time, expected] :
       std::vector<std::pair<int, size_t>>{{2500, 1}, {4700, 1}, {4800, 0}, {5000, 0}, {10000, 0}}) {
    EXPECT_EQ(outcome_of([time = time](size_t way, int) { return way == 0 ? 5000 : time; }).choice, expected)
        << time << " ns beside 5000";
  }
}

TEST(WayTrial, AFewSlowCopiesDecideNothing) {
  constexpr int kMiddle = WayTrial::kTurns / 2;
  for (const size_t slowed : {size_t{0}, size_t{1}}) {
    const auto time = [&](size_t way, int turn) {
      const int usual = way == 0 ? 5000 : 4000;
      return way == slowed && std::abs(turn - kMiddle) <= 3 ? 1000 * usual : usual;
    };
    EXPECT_EQ(outcome_of(time).choice, 1u) << "7 of 15 copies of way " << slowed << " were slow";
  }
}

TEST(WayTrial, SizesAreTakenIntoAccount) {
  WayTrial trial;
  std::optional<size_t> choice;
  while (!choice.has_value()) {  // the second way copies twice as much in nearly the same time
    const size_t way = trial.turn();
    choice = trial.took(way == 0 ? 65536 : 131072, Duration(way == 0 ? 5000 : 6000));
  }
  EXPECT_EQ(choice, size_t{1});
}

TEST(TwoWays, EachCallGoesOneWayOnceAndSmallOnesDecideNothing) {
  TwoWays ways;
  size_t calls = 0, seconds = 0;
  const auto go = [&](size_t way) {
    ++calls;
    seconds += way;
  };
  for (int i = 0; i < 100; ++i) ways.run(TwoWays::kLeast - 1, go);
  EXPECT_EQ(seconds, 0u) << "small ones go the first way";
  for (size_t i = 0; i < 2 * WayTrial::kTurns; ++i) ways.run(TwoWays::kLeast, go);
  EXPECT_EQ(seconds, WayTrial::kTurns) << "of large ones half go the second";
  EXPECT_EQ(calls, 100 + 2 * WayTrial::kTurns);
}

TEST(TwoWays, TheSlowerWayIsNotTakenAgain) {
  for (const size_t slow : {size_t{0}, size_t{1}}) {
    TwoWays ways;
    std::vector<size_t> taken;
    for (size_t i = 0; i < 2 * WayTrial::kTurns + 20; ++i) {
      ways.run(TwoWays::kLeast, [&](size_t way) {
        taken.push_back(way);
        const Time until = now() + (way == slow ? milliseconds(2) : Duration(0));
        while (now() < until) {}
      });
    }
    const std::vector<size_t> rest(taken.begin() + 2 * WayTrial::kTurns, taken.end());
    EXPECT_EQ(rest, std::vector<size_t>(20, 1 - slow)) << "way " << slow << " is slow";
  }
}

TEST(TwoWays, NobodyWaitsForWhoeverTries) {
  TwoWays ways;
  size_t inner = 0;
  std::thread other;
  ways.run(TwoWays::kLeast, [&](size_t) {
    other = std::thread([&] { ways.run(TwoWays::kLeast, [&](size_t way) { inner += way == 0 ? 1 : 100; }); });
    other.join();
  });
  EXPECT_EQ(inner, 1u);
}

}  // namespace
}  // namespace hvd
