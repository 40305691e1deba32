// Rate limits of log lines.
#include "base/rate_limit.h"

#include <gtest/gtest.h>

namespace hvd {
namespace {

TEST(RateLimit, LetsABurstThroughAndThenOneAnInterval) {
  RateLimit limit(3, seconds(1));
  const Time start{};
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limit.pass(start));
  EXPECT_FALSE(limit.pass(start));
  EXPECT_FALSE(limit.pass(start + milliseconds(999)));
  EXPECT_TRUE(limit.pass(start + seconds(1)));
  EXPECT_FALSE(limit.pass(start + milliseconds(1500)));
  EXPECT_EQ(limit.held_back(), 3u);
  EXPECT_EQ(limit.held_back(), 0u);
  EXPECT_TRUE(limit.pass(start + seconds(2))) << "half an interval was not forgotten";
}

TEST(RateLimit, SavesUpNoMoreThanABurst) {
  RateLimit limit(2, milliseconds(1));
  const Time start{};
  EXPECT_TRUE(limit.pass(start));
  const Time later = start + std::chrono::hours(24 * 365);
  EXPECT_TRUE(limit.pass(later));
  EXPECT_TRUE(limit.pass(later));
  EXPECT_FALSE(limit.pass(later));
  EXPECT_FALSE(limit.pass(start)) << "a clock that goes back gives nothing";
}

}  // namespace
}  // namespace hvd
