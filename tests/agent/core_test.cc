// What an agent decides, step by step.
#include <gtest/gtest.h>

#include "agent/agent_core.h"

namespace hvd::agent {
namespace {

const Time kStart{seconds(1000)};

wire::AgentStartT start(uint64_t worker, uint64_t number) {
  wire::AgentStartT order;
  order.worker = worker;
  order.number = number;
  return order;
}

template <class Action>
std::vector<Action> all(const CoreActions& actions) {
  std::vector<Action> result;
  for (const CoreAction& action : actions) {
    if (const auto* a = std::get_if<Action>(&action)) result.push_back(*a);
  }
  return result;
}

class Core : public testing::Test {
 protected:
  AgentCore core{{seconds(60), seconds(5), 1000}, kStart};
  void SetUp() override { core.connected(false, 0, kStart); }
};

TEST_F(Core, StartsReportsAndForgets) {
  EXPECT_EQ(all<LaunchWorker>(core.ordered(start(7, 1), kStart)).size(), 1u);
  EXPECT_EQ(core.workers(), std::vector<uint64_t>{7});
  EXPECT_EQ(all<SendReport>(core.output(7, false, "hello", kStart)).size(), 1u);
  EXPECT_EQ(all<SendReport>(core.exited(7, 3, kStart)).size(), 1u);
  EXPECT_EQ(all<SendReport>(core.gone(7, kStart)).size(), 1u);
  EXPECT_TRUE(core.workers().empty());
}

TEST_F(Core, AnOrderThatComesAgainIsDoneOnce) {
  core.ordered(start(7, 1), kStart);
  core.disconnected("cut", kStart);
  core.connected(true, 0, kStart);
  EXPECT_TRUE(core.ordered(start(7, 1), kStart).empty());
  EXPECT_EQ(core.received(), 1u);
}

TEST_F(Core, WhatBreaksTheProtocolIsRefused) {
  EXPECT_THROW(core.ordered(start(7, 2), kStart), Error);  // 1 is missing
  core.ordered(start(7, 1), kStart);
  EXPECT_THROW(core.ordered(start(7, 2), kStart), Error);  // it is there
  EXPECT_THROW(core.ordered(start(0, 3), kStart), Error);
  EXPECT_THROW(core.acknowledged(1, kStart), Error);  // nothing was reported
}

TEST_F(Core, ReportsOfTheTimeWithoutADriverAreSentLater) {
  core.ordered(start(7, 1), kStart);
  core.disconnected("cut", kStart);
  EXPECT_TRUE(all<SendReport>(core.output(7, true, "a", kStart)).empty());
  EXPECT_TRUE(all<SendReport>(core.exited(7, 0, kStart)).empty());
  const auto again = all<SendReport>(core.connected(true, 0, kStart + seconds(3)));
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(number_of(again[0].report), 1u);
  EXPECT_EQ(number_of(again[1].report), 2u);
  EXPECT_EQ(all<SendReport>(core.connected(true, 1, kStart + seconds(4))).size(), 1u);
}

TEST_F(Core, OutputIsBoundedAndNeverLost) {
  core.ordered(start(7, 1), kStart);
  EXPECT_TRUE(all<HoldOutput>(core.output(7, false, std::string(900, 'x'), kStart)).empty());
  const auto held = all<HoldOutput>(core.output(7, false, std::string(900, 'x'), kStart));
  ASSERT_EQ(held.size(), 1u);
  EXPECT_TRUE(held[0].hold);
  EXPECT_TRUE(all<HoldOutput>(core.acknowledged(1, kStart)).empty());
  const auto released = all<HoldOutput>(core.acknowledged(2, kStart));
  ASSERT_EQ(released.size(), 1u);
  EXPECT_FALSE(released[0].hold);
}

TEST_F(Core, WorkersLiveOnForItsPatienceOnly) {
  core.ordered(start(7, 1), kStart);
  core.disconnected("cut", kStart);
  ASSERT_EQ(core.next_tick(), kStart + seconds(60));
  EXPECT_TRUE(core.tick(kStart + seconds(59)).empty());
  const auto stopped = all<StopProcess>(core.tick(kStart + seconds(60)));
  ASSERT_EQ(stopped.size(), 1u);
  EXPECT_EQ(stopped[0].grace, seconds(5));
  core.exited(7, 271, kStart + seconds(61));
  const auto finished = all<Finished>(core.gone(7, kStart + seconds(61)));
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].code, HVD_DRIVER_LOST);
  EXPECT_NE(finished[0].sentence.find("cut"), std::string::npos);
}

TEST_F(Core, ADriverThatDoesNotKnowItGetsAnEmptyAgent) {
  core.ordered(start(7, 1), kStart);
  core.disconnected("cut", kStart);
  const auto stopped = all<StopProcess>(core.connected(false, 0, kStart));
  ASSERT_EQ(stopped.size(), 1u);
  EXPECT_EQ(stopped[0].grace, Duration(0));
  EXPECT_TRUE(core.workers().empty());
  EXPECT_EQ(all<LaunchWorker>(core.ordered(start(8, 1), kStart)).size(), 1u);
  EXPECT_TRUE(core.exited(7, 265, kStart).empty());  // nobody is told
  EXPECT_TRUE(core.gone(7, kStart).empty());
}

TEST_F(Core, EndsItsWorkersThenTellsThenItself) {
  core.ordered(start(7, 1), kStart);
  EXPECT_EQ(all<StopProcess>(core.stop("SIGTERM", kStart)).size(), 1u);
  EXPECT_EQ(all<StopProcess>(core.stop("SIGTERM", kStart))[0].grace, Duration(0));
  EXPECT_EQ(all<SendReport>(core.ordered(start(8, 2), kStart)).size(), 1u);  // refused
  core.exited(7, 271, kStart);
  EXPECT_TRUE(all<Finished>(core.gone(7, kStart)).empty());  // reports are under way
  EXPECT_EQ(all<Finished>(core.acknowledged(3, kStart)).size(), 1u);
  EXPECT_TRUE(core.finished());
}

TEST_F(Core, DoesNotWaitForeverForItsReportsToBeTaken) {
  core.ordered(start(7, 1), kStart);
  core.stop("SIGTERM", kStart);
  core.gone(7, kStart);
  ASSERT_TRUE(core.next_tick().has_value());
  EXPECT_EQ(all<Finished>(core.tick(*core.next_tick())).size(), 1u);
}

TEST_F(Core, TheJobsEndIsItsOwn) {
  wire::AgentEndT end;
  end.number = 1;
  end.success = true;
  const auto finished = all<Finished>(core.ordered(end, kStart));
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].code, HVD_OK);
}

}  // namespace
}  // namespace hvd::agent
