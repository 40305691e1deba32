// The log's thread without memory drops lines, counts them, and does not end the process (contract 10).
#include <gtest/gtest.h>

#include <optional>

#include "base/queued_log.h"
#include "starved.h"
#include "support.h"

namespace hvd {
namespace {

using test::Starved;
using test::Watched;

struct Lines {
  Watched<bool> may_go;
  Watched<size_t> count;
  std::optional<Starved> starved;  // in the log's thread
  bool starves = true;
  std::string dropped;
  static void write(void* self, hvd_log_level, const char* line) {
    auto& lines = *static_cast<Lines*>(self);
    lines.may_go.wait([](bool may) { return may; });
    lines.starved.reset();
    if (std::string_view(line).find("were dropped") != std::string_view::npos) {
      lines.dropped = line;
    } else if (lines.starves) {
      lines.starved.emplace(0);
    }
    lines.count.update([](size_t& count) { ++count; });
  }
};

TEST(LogWithoutMemory, DropsAndCounts) {
  Lines lines;
  const std::string text(200, 'x');
  {
    const LoggerPtr log = queue_log(
        std::make_shared<Logger>(HVD_LOG_INFO, Callback<hvd_log_fn>(&Lines::write, &lines, nullptr)),
        test::kDeadline, 3);
    {
      const Starved starved(0);
      EXPECT_NO_THROW(log->write(HVD_LOG_INFO, text));
      EXPECT_TRUE(Starved::has_failed());
    }
    log->write(HVD_LOG_INFO, text);  // behind it there is no memory to say that one was dropped
    lines.may_go.update([](bool& may) { may = true; });
    ASSERT_TRUE(lines.count.wait([](size_t count) { return count == 1; }));
    lines.starves = false;
    log->write(HVD_LOG_INFO, text);
    ASSERT_TRUE(lines.count.wait([](size_t count) { return count == 3; }));
  }
  EXPECT_EQ(lines.dropped.substr(0, 35), "1 lines of the log were dropped: it");
}

}  // namespace
}  // namespace hvd
