// The choice between two ways to copy: both have their turns, and the second must be clearly faster.
#include "base/copy_trial.h"

#include <gtest/gtest.h>

#include <cstdlib>
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
  CopyTrial trial;
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

TEST(CopyTrial, BothHaveTheirTurnsAndNeitherIsAlwaysFirst) {
  const Outcome outcome = outcome_of([](size_t, int) { return 5000; });
  ASSERT_EQ(outcome.turns.size(), 2 * CopyTrial::kTurns);
  int first[2] = {};
  for (size_t pair = 0; pair < CopyTrial::kTurns; ++pair) {
    EXPECT_NE(outcome.turns[2 * pair], outcome.turns[2 * pair + 1]) << "pair " << pair;
    ++first[outcome.turns[2 * pair]];
  }
  EXPECT_LE(std::abs(first[0] - first[1]), 1);
}

TEST(CopyTrial, TheSecondIsChosenIfItIsClearlyFaster) {
  for (const auto& [time, expected] :
       std::vector<std::pair<int, size_t>>{{2500, 1}, {4700, 1}, {4800, 0}, {5000, 0}, {10000, 0}}) {
    EXPECT_EQ(outcome_of([time = time](size_t way, int) { return way == 0 ? 5000 : time; }).choice, expected)
        << time << " ns beside 5000";
  }
}

TEST(CopyTrial, AFewSlowCopiesDecideNothing) {
  constexpr int kMiddle = CopyTrial::kTurns / 2;
  for (const size_t slowed : {size_t{0}, size_t{1}}) {
    const auto time = [&](size_t way, int turn) {
      const int usual = way == 0 ? 5000 : 4000;
      return way == slowed && std::abs(turn - kMiddle) <= 3 ? 1000 * usual : usual;
    };
    EXPECT_EQ(outcome_of(time).choice, 1u) << "7 of 15 copies of way " << slowed << " were slow";
  }
}

TEST(CopyTrial, SizesAreTakenIntoAccount) {
  CopyTrial trial;
  std::optional<size_t> choice;
  while (!choice.has_value()) {  // the second way copies twice as much in nearly the same time
    const size_t way = trial.turn();
    choice = trial.took(way == 0 ? 65536 : 131072, Duration(way == 0 ? 5000 : 6000));
  }
  EXPECT_EQ(choice, size_t{1});
}

}  // namespace
}  // namespace hvd
