// Stall reports over real connections (contract 12, F7).
#include "driver/job_fixture.h"

namespace hvd::driver {
namespace {

using test::ScriptedWorker;

class Stall : public test::JobTest {
 protected:
  static wire::StallT report(std::vector<int32_t> missing, int64_t waited_ms,
                             std::string text = "'loss' waits") {
    wire::StallT stall;
    stall.message = std::move(text);
    stall.missing = std::move(missing);
    stall.waited_ms = waited_ms;
    return stall;
  }
  /// That the driver has read all that `worker` said.
  void flush(ScriptedWorker& worker) {
    worker.say(wire::HeartbeatT{});
    ASSERT_NE(worker.await(&wire::BodyUnion::AsHeartbeatAck), nullptr) << log.text();
  }
};

TEST_F(Stall, IsLoggedAndToldToTheEmbedder) {
  start();
  form(2);
  EXPECT_TRUE(workers[0]->await(&wire::BodyUnion::AsWelcome)->takes_stalls);
  workers[0]->say(report({1}, 3600000, "rank 1\nhas not called 'loss'"), 1);
  flush(*workers[0]);
  EXPECT_TRUE(log.wait_for("rank 1 has not called 'loss'")) << log.text();
  EXPECT_TRUE(test::eventually([&] { return driver->status().stall == "rank 1 has not called 'loss'"; }));
  EXPECT_TRUE(test::eventually([&] { return driver->status().phase == HVD_PHASE_RUNNING; }));
  EXPECT_EQ(driver->snapshot().size, 2);
}

TEST_F(Stall, EvictsWhereThatIsSwitchedOn) {
  set("stall_shutdown", "2");
  set("np", "2");
  set("min_np", "1");
  start();
  form(2);
  workers[0]->say(report({1}, 1999), 1);
  workers[0]->say(report({1}, 2000), 1);
  const wire::AbortT* abort = workers[0]->await(&wire::BodyUnion::AsAbort);
  ASSERT_NE(abort, nullptr) << log.text();
  EXPECT_EQ(abort->rank, 1);
  EXPECT_NE(abort->reason.find("evicted"), std::string::npos) << abort->reason;
  expect_refused(*workers[1], wire::Refusal::Removed, "evicted: others waited 2.0 s for it");
  ASSERT_TRUE(stopped.wait_count(1)) << "its process would hold the slot";
  EXPECT_EQ(stopped.all()[0].worker, workers[1]->worker);
  EXPECT_EQ(driver->snapshot().stall, "");
  workers[0]->ready(1, true, 1);
  const wire::AssignmentT* next = workers[0]->await(&wire::BodyUnion::AsAssignment, 2);
  ASSERT_NE(next, nullptr) << log.text();
  EXPECT_EQ(next->members.size(), 1u);
}

TEST_F(Stall, OfAnotherGenerationIsIgnored) {  // contract 11
  set("stall_shutdown", "2");
  start();
  form(2);
  workers[0]->say(report({1}, 5000), 99);
  flush(*workers[0]);
  EXPECT_EQ(driver->snapshot().stall, "");
  EXPECT_EQ(workers[0]->count(wire::Body::Abort), 0u);
}

TEST_F(Stall, FromTheNetworkIsChecked) {  // contract 13
  start();
  form(2);
  workers[0]->say(report({1}, -1), 1);
  expect_refused(*workers[0], wire::Refusal::Protocol, "a stall of -1 ms");
}

TEST_F(Stall, OfMoreRanksThanThereCanBeIsRefused) {  // contract 13
  start();
  form(2);
  workers[0]->say(report(std::vector<int32_t>((1 << 16) + 1, 0), 1), 1);
  expect_refused(*workers[0], wire::Refusal::Protocol, "a stall that waits for 65537 ranks");
}

TEST_F(Stall, TextIsCut) {
  start();
  form(2);
  workers[0]->say(report({1}, 1000, std::string(100000, 'x')), 1);
  flush(*workers[0]);
  EXPECT_TRUE(test::eventually([&] { return driver->status().stall == std::string(4096, 'x'); }));
}

/// The value of a variable in the environment of the first worker.
class StallTime : public Stall {
 protected:
  std::string warning() {
    start();
    EXPECT_TRUE(launched.wait_count(1));
    return launched.all()[0].variable("HVD_STALL_WARNING");
  }
};

TEST_F(StallTime, OfEvictionIsOneAtWhichAReportComes) {
  set("stall_shutdown", "90");
  EXPECT_EQ(warning(), "45");
}

TEST_F(StallTime, OfEvictionMayComeBeforeTheWarnings) {
  set("stall_shutdown", "5");
  EXPECT_EQ(warning(), "5");
}

TEST_F(StallTime, OfWarningsStaysWithoutEviction) {
  set("stall_warning", "7");
  EXPECT_EQ(warning(), "7");
}

}  // namespace
}  // namespace hvd::driver
