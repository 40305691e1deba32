// The output thread without memory.
#include "launch/output.h"

#include <gtest/gtest.h>

#include "loop_support.h"

namespace hvd::launch {
namespace {

using test::RecordedLog;
using test::Recorder;

TEST(OutputThread, WithoutMemoryLosesAPieceAndSaysSoButNoWordThatIsWaitedFor) {
  RecordedLog log;
  Recorder<std::string> told;
  bool out_of_memory = true;
  OutputThread output(
      [&](const OutputLine& line) {
        if (std::exchange(out_of_memory, false)) throw std::bad_alloc();
        told.add(line.text);
      },
      log.logger());
  output.lines(std::make_shared<LineSplitter>(), {}, "one\n");
  int tried = 0;
  output.flush([&] {
    if (++tried < 3) throw std::bad_alloc();
    told.add("gone");
  });
  output.lines(std::make_shared<LineSplitter>(), {}, "two\n");
  ASSERT_TRUE(told.wait_count(2));
  EXPECT_EQ(told.all(), (std::vector<std::string>{"gone", "two"}));
  EXPECT_TRUE(log.wait_for("no memory was left for 1 piece(s) of workers' output, which are lost"));
}

}  // namespace
}  // namespace hvd::launch
