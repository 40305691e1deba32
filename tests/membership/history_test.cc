// Random histories of deaths, arrivals, removals and broken links against every rule of the contract that the
// driver's decisions can keep or break. HVD_TEST_HISTORIES and HVD_TEST_SEED choose others.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "membership/simulator.h"

namespace hvd::membership::test {
namespace {

uint64_t from_environment(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 0);
}

TEST(MembershipHistories, KeepEveryRuleOfTheContract) {
  const uint64_t first = from_environment("HVD_TEST_SEED", 1);
  const uint64_t histories = from_environment("HVD_TEST_HISTORIES", 100'000);
  Tally tally;
  for (uint64_t seed = first; seed < first + histories; ++seed) {
    if (auto broken = Simulator(seed, &tally).run()) {
      Tally ignored;
      Simulator again(seed, &ignored, true);
      again.run();
      FAIL() << again.trace() << "seed " << seed << ": " << *broken;
    }
  }
  RecordProperty("generations", std::to_string(tally.generations));
  std::cout << tally.histories << " histories: " << tally.generations << " generations, " << tally.aborts
            << " aborts, " << tally.interrupts << " interrupts (" << tally.undone << " undone), "
            << tally.hand_overs << " hand-overs, " << tally.refusals << " refusals, " << tally.late_ends
            << " late, " << tally.left << " left, " << tally.drained << " drained, " << tally.left_late
            << " left too late, " << tally.scaled << " scalings, " << tally.arrivals << " arrivals, "
            << tally.spares_used << " spares used, " << tally.unfit << " unfit, " << tally.misfits
            << " misfits, " << tally.offers << " offers to feed, " << tally.fed << " fed, "
            << tally.joined_fed << " joined so, " << tally.joined_unfed << " unfed since needed, "
            << tally.fresh_starts << " fresh starts; ended " << tally.successes << " well, " << tally.failures
            << " badly, " << tally.running << " at rest\n";
  if (histories < 10'000) return;
  // Rare situations must have been met, or the rules about them were not tried.
  EXPECT_GT(tally.undone, histories / 1000);
  EXPECT_GT(tally.hand_overs, histories / 2000);
  EXPECT_GT(tally.late_ends, histories / 1000);
  EXPECT_GT(tally.unfit, histories / 1000);
  EXPECT_GT(tally.left, histories / 100);
  EXPECT_GT(tally.drained, histories / 100);
  EXPECT_GT(tally.left_late, histories / 1000);
  EXPECT_GT(tally.scaled, histories / 100);
  EXPECT_GT(tally.arrivals, histories / 100);
  EXPECT_GT(tally.spares_used, histories / 1000);
  EXPECT_GT(tally.misfits, histories / 100);
  EXPECT_GT(tally.fed, histories / 100);
  EXPECT_GT(tally.joined_fed, histories / 100);
  EXPECT_GT(tally.joined_unfed, histories / 10000);
  EXPECT_GT(tally.fresh_starts, 0u);
  EXPECT_GT(tally.successes, histories / 100);
  EXPECT_GT(tally.failures, histories / 100);
  EXPECT_GT(tally.running, histories / 10);
}

}  // namespace
}  // namespace hvd::membership::test
