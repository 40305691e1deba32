// The driver dies after any event of random histories, with journals that are whole, cut, damaged or empty:
// the next one goes on from there. HVD_TEST_HISTORIES and HVD_TEST_SEED choose others.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "membership/takeover_simulator.h"

namespace hvd::membership::test {
namespace {

uint64_t from_environment(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 0);
}

// contract 14
TEST(TakeoverHistories, KeepEveryRuleOfTheContract) {
  const uint64_t first = from_environment("HVD_TEST_SEED", 1);
  const uint64_t histories = from_environment("HVD_TEST_HISTORIES", 20'000);
  TakeoverTally tally;
  for (uint64_t seed = first; seed < first + histories; ++seed) {
    if (auto broken = TakeoverSimulator(seed, &tally).run()) {
      TakeoverTally ignored;
      TakeoverSimulator again(seed, &ignored, true);
      again.run();
      FAIL() << again.trace() << "seed " << seed << ": " << *broken;
    }
  }
  std::cout << tally.histories << " histories: " << tally.takeovers << " takeovers (" << tally.torn
            << " torn, " << tally.damaged << " damaged, " << tally.empty << " empty journals; "
            << tally.worker_died_too << " with a worker; " << tally.two_drivers << " with two drivers, "
            << tally.acts_of_older << " acts of the older one, " << tally.split << " split), "
            << tally.same_generation << " back in the same generation, " << tally.unheard_of
            << " workers that no journal told of, " << tally.early << " lost by their peers' word, "
            << tally.generations << " generations; ended " << tally.successes << " well, " << tally.failures
            << " badly, " << tally.at_rest << " at rest\n";
  if (histories < 10'000) return;
  EXPECT_GT(tally.takeovers, histories);
  EXPECT_GT(tally.torn, histories / 10);
  EXPECT_GT(tally.damaged, histories / 100);
  EXPECT_GT(tally.empty, histories / 100);
  EXPECT_GT(tally.worker_died_too, histories / 20);
  EXPECT_GT(tally.two_drivers, histories / 10);
  EXPECT_GT(tally.acts_of_older, histories / 10);
  EXPECT_GT(tally.same_generation, histories / 2);
  EXPECT_GT(tally.unheard_of, histories / 100);
  EXPECT_GT(tally.early, histories / 100);
  EXPECT_GT(tally.successes, histories / 20);
  EXPECT_GT(tally.at_rest, histories / 4);
}

}  // namespace
}  // namespace hvd::membership::test
