// Time in which this process stood still is nobody's silence.
#include "base/held_up.h"

#include "base/patient_clock.h"
#include "loop_support.h"

namespace hvd {
namespace {

const Time kBegin{seconds(1000)};

TEST(HeldUp, CountsFromTheLastLookIfTheNextComesLate) {
  HeldUp held;
  EXPECT_EQ(held.at(kBegin, seconds(1)), Duration(0)) << "no look was due";
  held.look_after(seconds(2), kBegin);
  EXPECT_EQ(held.at(kBegin + seconds(2), seconds(1)), Duration(0));
  EXPECT_EQ(held.at(kBegin + seconds(3), seconds(1)), Duration(0)) << "late, but no more than is tolerated";
  EXPECT_EQ(held.at(kBegin + seconds(4), seconds(1)), seconds(4));
}

TEST(PatientTime, SaysForHowLongItStoodStill) {
  PatientTime time(seconds(1));
  std::vector<Duration> held;
  const auto at = [&](double s) { return time.at(kBegin + seconds(s), &held.emplace_back()) - kBegin; };
  EXPECT_EQ(at(0), seconds(0));
  EXPECT_EQ(at(0.5), seconds(0.5));
  EXPECT_EQ(at(75.5), seconds(0.5)) << "stopped";
  EXPECT_EQ(at(76), seconds(1)) << "and said once";
  EXPECT_EQ(at(78), seconds(3)) << "late, but not stopped";
  EXPECT_EQ(at(88), seconds(3));
  EXPECT_EQ(held, (std::vector<Duration>{{}, {}, seconds(75), {}, {}, seconds(10)}));
}

TEST(PatientClock, StandsStillWhileTheLoopDoes) {
  Loop loop("patient");
  constexpr Duration kBeat = std::chrono::milliseconds(20);
  std::unique_ptr<PatientClock> clock;
  Time before{}, after{}, began{};
  test::on_loop(loop, [&] {
    clock = std::make_unique<PatientClock>(loop, kBeat);
    before = clock->now();
    began = now();
    while (now() < began + 20 * kBeat) std::this_thread::yield();  // as if it were stopped
    after = clock->now();
  });
  EXPECT_GE(after, before);
  EXPECT_LE(after - before, 2 * kBeat) << "of 20 beats that the loop was held up";
  // It goes on afterwards, by itself.
  EXPECT_TRUE(test::eventually([&] {
    bool later = false;
    test::on_loop(loop, [&] { later = clock->now() >= after + 5 * kBeat; });
    return later;
  }));
  test::on_loop(loop, [&] { clock.reset(); });
}

}  // namespace
}  // namespace hvd
