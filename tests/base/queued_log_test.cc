// A thread that logs never waits for the program's log callback.
#include "base/queued_log.h"

#include <gtest/gtest.h>

#include <future>

#include "support.h"

namespace hvd {
namespace {

/// A callback that waits until it is let go, as one does that needs a lock of the program.
struct Held {
  std::shared_future<void> let_go;
  test::Watched<bool> entered;
  test::Watched<std::vector<std::string>> lines;
  static void write(void* self, hvd_log_level, const char* line) {
    auto& held = *static_cast<Held*>(self);
    held.entered.update([](bool& is) { is = true; });
    held.let_go.wait();
    held.lines.update([&](auto& all) { all.emplace_back(line); });
  }
};

TEST(QueuedLog, NobodyWaitsForItsCallback) {
  std::promise<void> promise;
  Held held;
  held.let_go = promise.get_future().share();
  {
    const LoggerPtr log =
        queue_log(std::make_shared<Logger>(HVD_LOG_INFO, Callback<hvd_log_fn>(&Held::write, &held, nullptr)),
                  test::kDeadline, 3);
    EXPECT_FALSE(log->enabled(HVD_LOG_DEBUG));
    log->debug("too fine");
    for (int i = 0; i < 10; ++i) log->info("line {}", i);  // returns though the callback waits
    EXPECT_TRUE(held.lines.get().empty());
    promise.set_value();
  }  // what is queued is written
  const std::vector<std::string> lines = held.lines.get();
  ASSERT_GE(lines.size(), 4u);
  EXPECT_EQ(lines[0], "line 0");
  EXPECT_EQ(lines[1], "line 1");
  EXPECT_NE(lines.back().find("lines of the log were dropped"), std::string::npos) << lines.back();
}

TEST(QueuedLog, ACallbackThatNeverReturnsIsLeftBehind) {
  std::promise<void> promise;
  auto held = std::make_shared<Held>();
  held->let_go = promise.get_future().share();
  {
    const LoggerPtr log = queue_log(
        std::make_shared<Logger>(HVD_LOG_INFO, Callback<hvd_log_fn>(&Held::write, held.get(), nullptr)),
        Duration(0));
    log->info("written late");
    // A line that is still in the queue when patience ends is dropped.
    EXPECT_TRUE(held->entered.wait([](bool is) { return is; }));
  }
  promise.set_value();
  EXPECT_TRUE(held->lines.wait([](const auto& all) { return !all.empty(); }));
}

TEST(QueuedLog, OneThatWritesNothingNeedsNoThread) {
  const LoggerPtr none = std::make_shared<Logger>();
  EXPECT_EQ(queue_log(none), none);
}

}  // namespace
}  // namespace hvd
