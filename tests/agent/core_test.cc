// What an agent decides, step by step.
#include <gtest/gtest.h>

#include "agent/agent_core.h"
#include "memory_spool.h"

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

TEST_F(Core, NothingFollowsItsEnd) {
  core.ordered(start(7, 1), kStart);
  core.output(7, false, std::string(900, 'x'), kStart);
  ASSERT_EQ(all<HoldOutput>(core.output(7, false, std::string(900, 'x'), kStart)).size(), 1u);
  core.stop("enough", kStart);
  core.exited(7, 0, kStart);
  core.gone(7, kStart);
  const Time end = *core.next_tick();
  ASSERT_EQ(all<Finished>(core.tick(end)).size(), 1u);
  EXPECT_TRUE(core.tick(end).empty());
  EXPECT_TRUE(core.acknowledged(4, end).empty());
  EXPECT_TRUE(core.disconnected("closed", end).empty());
  EXPECT_TRUE(core.refused(HVD_REFUSED, "no", end).empty());
  EXPECT_TRUE(core.connected(true, 0, end).empty());
  EXPECT_TRUE(core.ordered(start(8, 2), end).empty());
  EXPECT_TRUE(core.stop("again", end).empty());
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

// contract 19
TEST_F(Core, AnAgentThatWasStoppedWhileItWasAloneDialsFirst) {
  core.ordered(start(7, 1), kStart);
  core.disconnected("cut", kStart);
  const Time awake = kStart + seconds(3600);
  EXPECT_TRUE(core.disconnected("timed out", awake).empty()) << "what was under way has failed meanwhile";
  EXPECT_TRUE(core.tick(awake).empty());
  ASSERT_TRUE(core.next_tick());
  EXPECT_GT(*core.next_tick(), awake + seconds(5));
  EXPECT_EQ(all<StopProcess>(core.tick(*core.next_tick())).size(), 1u) << "nor is it for ever";

  AgentCore other({seconds(60), seconds(5), 1000}, kStart);
  other.connected(false, 0, kStart);
  other.ordered(start(7, 1), kStart);
  other.disconnected("cut", kStart);
  EXPECT_TRUE(other.tick(awake).empty());
  EXPECT_TRUE(all<StopProcess>(other.connected(true, 0, awake + seconds(1))).empty());
  other.disconnected("cut", awake + seconds(2));
  EXPECT_EQ(other.next_tick(), awake + seconds(62)) << "and it has all its time again";
}

wire::AgentWatchT watch(uint64_t worker, uint64_t number, int32_t life, uint64_t token) {
  wire::AgentWatchT order;
  order.worker = worker;
  order.number = number;
  order.process = 4711;
  order.life = life;
  if (token != 0) order.life_token = std::make_unique<wire::Digest>(token, token);
  return order;
}

TEST_F(Core, TheEndOfALifeIsToldAtOnce) {
  core.ordered(start(7, 1), kStart);
  const auto watched = all<WatchProcess>(core.ordered(watch(7, 2, 5, 9), kStart));
  ASSERT_EQ(watched.size(), 1u);
  EXPECT_EQ(watched[0].worker, 7u);
  EXPECT_EQ(watched[0].claim.process, 4711);
  EXPECT_EQ(watched[0].claim.life, 5);
  EXPECT_EQ(watched[0].claim.life_token, (Digest{9, 9}));
  // More output than is taken at once: its reports wait, and this does not.
  core.output(7, false, std::string(3000, 'x'), kStart);
  const auto told = all<SendDied>(core.died(7, {9, 9}));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].worker, 7u);
  EXPECT_EQ(told[0].life_token, (Digest{9, 9}));
  core.exited(7, 265, kStart);
  EXPECT_TRUE(core.died(7, {9, 9}).empty()) << "that it has ended is told already";
}

TEST_F(Core, OnlyTheDriverThatIsThereIsToldOfItsWorkers) {
  core.ordered(start(7, 1), kStart);
  EXPECT_TRUE(core.died(8, {1, 1}).empty()) << "it has no such worker";
  core.disconnected("cut", kStart);
  EXPECT_TRUE(core.died(7, {1, 1}).empty());
  core.connected(true, 0, kStart);
  EXPECT_EQ(core.died(7, {1, 1}).size(), 1u);
  core.disconnected("cut", kStart);
  core.connected(false, 0, kStart);
  EXPECT_TRUE(core.died(7, {1, 1}).empty()) << "this driver does not know it";
}

TEST_F(Core, ALifeThatIsNoneIsNotWatched) {
  core.ordered(start(7, 1), kStart);
  uint64_t number = 1;
  for (const auto& [life, token] : {std::pair(-1, 9), std::pair(-5, 9), std::pair(5, 0)}) {
    const auto watched =
        all<WatchProcess>(core.ordered(watch(7, ++number, life, static_cast<uint64_t>(token)), kStart));
    ASSERT_EQ(watched.size(), 1u);
    EXPECT_EQ(watched[0].claim.life, -1) << life << ", " << token;
    EXPECT_EQ(watched[0].claim.process, 4711);
  }
  EXPECT_TRUE(core.ordered(watch(8, ++number, 5, 9), kStart).empty()) << "it has no such worker";
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

/// What the driver gets of the output, as one text, while it acknowledges all that comes.
std::string told(AgentCore* core, CoreActions actions, uint64_t* received) {
  std::string text;
  while (true) {
    const auto reports = all<SendReport>(actions);
    if (reports.empty()) return text;
    for (const SendReport& sent : reports) {
      EXPECT_EQ(number_of(sent.report), ++*received);
      if (const auto* output = std::get_if<wire::AgentOutputT>(&sent.report)) {
        text.append(output->bytes.begin(), output->bytes.end());
      } else {
        text += std::holds_alternative<wire::AgentExitedT>(sent.report) ? "<exited>" : "<gone>";
      }
    }
    actions = core->acknowledged(*received, kStart);
  }
}

class Spooled : public testing::Test {
 protected:
  void SetUp() override {
    core.connected(false, 0, kStart);
    core.ordered(start(7, 1), kStart);
    core.disconnected("cut", kStart);
  }
  MemorySpool* const spool = new MemorySpool(5000);
  AgentCore core{{seconds(60), seconds(5), 1000}, kStart, std::unique_ptr<Spool>(spool)};
};

TEST_F(Spooled, WithoutADriverWorkersPrintOnAndAllOfItIsToldInOrder) {
  std::string expected;
  for (int i = 0; i < 40; ++i) {
    const std::string line(100, static_cast<char>('a' + i % 26));
    expected += line;
    EXPECT_TRUE(all<HoldOutput>(core.output(7, i % 2 == 1, line, kStart)).empty()) << i;
  }
  core.exited(7, 0, kStart);
  expected += "<exited>";
  core.output(7, false, "last", kStart);
  core.gone(7, kStart);
  expected += "last<gone>";
  uint64_t received = 0;
  EXPECT_EQ(told(&core, core.connected(true, 0, kStart), &received), expected);
  EXPECT_TRUE(core.workers().empty());
}

TEST_F(Spooled, WhenTheSpoolIsFullPrintingWaitsAndNothingIsLost) {
  std::string expected;
  CoreActions actions;
  int lines = 0;
  while (all<HoldOutput>(actions).empty()) {
    ASSERT_LT(++lines, 100);
    expected += std::string(100, 'x');
    actions = core.output(7, false, std::string(100, 'x'), kStart);
  }
  EXPECT_TRUE(all<HoldOutput>(actions)[0].hold);
  ASSERT_EQ(all<AgentNote>(actions).size(), 1u);
  EXPECT_EQ(all<AgentNote>(actions)[0].text, "what workers print waits: it is full");
  EXPECT_GT(lines, 40);
  core.output(7, false, "under way", kStart);  // was read before printing was held
  expected += "under way";
  uint64_t received = 0;
  CoreActions back = core.connected(true, 0, kStart);
  EXPECT_TRUE(all<HoldOutput>(back).empty());  // the driver's pace counts now
  EXPECT_EQ(told(&core, std::move(back), &received), expected);
  EXPECT_EQ(all<SendReport>(core.output(7, false, "more", kStart)).size(), 1u);
}

TEST_F(Spooled, ASpoolThatBreaksLosesItsOwnBytesAlone) {
  for (int i = 0; i < 20; ++i) core.output(7, false, std::string(100, 'x'), kStart);
  core.exited(7, 0, kStart);
  core.gone(7, kStart);
  spool->broken = true;
  CoreActions back = core.connected(true, 0, kStart);
  EXPECT_NE(all<AgentNote>(back).at(0).text.find("bytes that workers printed are lost: it broke"),
            std::string::npos);
  uint64_t received = 0;
  const std::string text = told(&core, std::move(back), &received);
  EXPECT_EQ(text.substr(text.find('<')), "<exited><gone>");
  EXPECT_LT(text.size(), 2000u);
}

TEST_F(Spooled, AnotherDriverGetsNothingOfIt) {
  for (int i = 0; i < 40; ++i) core.output(7, false, std::string(100, 'x'), kStart);
  EXPECT_TRUE(all<SendReport>(core.connected(false, 0, kStart)).empty());
  core.ordered(start(8, 1), kStart);
  EXPECT_EQ(all<SendReport>(core.output(8, false, "new", kStart)).size(), 1u);
}

TEST_F(Spooled, AnAgentThatEndsTellsWhatNobodyGot) {
  for (int i = 0; i < 20; ++i) core.output(7, false, std::string(100, 'x'), kStart);
  core.tick(kStart + seconds(60));
  core.exited(7, 271, kStart + seconds(61));
  const auto finished = all<Finished>(core.gone(7, kStart + seconds(61)));
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_NE(finished[0].sentence.find("bytes that workers printed have reached nobody"), std::string::npos);
}

TEST_F(Core, ADrainEndsWellWhenAllHaveLeft) {
  core.ordered(start(7, 1), kStart);
  const auto sent = all<SendDrain>(core.drain("SIGTERM", seconds(30), kStart));
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].timeout, seconds(30));
  EXPECT_EQ(core.next_tick(), kStart + seconds(30));
  core.disconnected("cut", kStart + seconds(1));
  const auto again = all<SendDrain>(core.connected(true, 0, kStart + seconds(10)));
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].timeout, seconds(20));
  EXPECT_EQ(all<SendReport>(core.ordered(start(8, 2), kStart)).size(), 1u);  // nobody else is started
  core.exited(7, 0, kStart + seconds(11));
  EXPECT_TRUE(all<Finished>(core.gone(7, kStart + seconds(11))).empty());  // reports are under way
  const auto finished = all<Finished>(core.acknowledged(3, kStart + seconds(11)));
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].code, HVD_OK);
}

TEST_F(Core, ADrainWithoutWorkersIsOverAtOnce) {
  const auto finished = all<Finished>(core.drain("SIGTERM", seconds(30), kStart));
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].code, HVD_OK);
}

TEST_F(Core, ADrainIsCutShortByItsDeadlineOrASecondWord) {
  for (const bool second : {false, true}) {
    AgentCore other({seconds(60), seconds(5), 1000}, kStart);
    other.connected(false, 0, kStart);
    other.ordered(start(7, 1), kStart);
    EXPECT_TRUE(all<StopProcess>(other.drain("SIGTERM", seconds(30), kStart)).empty());
    EXPECT_TRUE(all<StopProcess>(other.tick(kStart + seconds(29))).empty());
    const auto stopped = all<StopProcess>(second ? other.drain("SIGTERM", seconds(30), kStart + seconds(29))
                                                 : other.tick(kStart + seconds(30)));
    ASSERT_EQ(stopped.size(), 1u) << second;
    EXPECT_EQ(stopped[0].grace, seconds(5));
    other.exited(7, 271, kStart + seconds(31));
    other.gone(7, kStart + seconds(31));
    const auto finished = all<Finished>(other.acknowledged(2, kStart + seconds(31)));
    ASSERT_EQ(finished.size(), 1u);
    EXPECT_EQ(finished[0].code, HVD_CLOSED);
  }
}

TEST_F(Core, HowAJobFailedReachesWhoWaits) {
  for (const bool try_again : {false, true}) {
    AgentCore other({seconds(60), seconds(5), 1000}, kStart);
    other.connected(false, 0, kStart);
    wire::AgentEndT end;
    end.number = 1;
    end.try_again = try_again;
    const auto finished = all<Finished>(other.ordered(end, kStart));
    ASSERT_EQ(finished.size(), 1u);
    EXPECT_EQ(finished[0].code, try_again ? HVD_UNAVAILABLE : HVD_JOB_FAILED);
  }
}

}  // namespace
}  // namespace hvd::agent
