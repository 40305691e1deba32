// The driver's view of agents, step by step.
#include "agent/fleet.h"

#include <gtest/gtest.h>

namespace hvd::agent {
namespace {

const Time kStart{seconds(1000)};

wire::AgentStartT start(uint64_t worker) {
  wire::AgentStartT order;
  order.worker = worker;
  return order;
}

template <class Action>
std::vector<Action> all(const FleetActions& actions) {
  std::vector<Action> result;
  for (const FleetAction& action : actions) {
    if (const auto* a = std::get_if<Action>(&action)) result.push_back(*a);
  }
  return result;
}

template <class Body>
Report report(uint64_t worker, uint64_t number) {
  Body body;
  body.worker = worker;
  body.number = number;
  return body;
}

FleetConfig config(bool starts) { return {starts, seconds(60), seconds(30), 4}; }

TEST(Fleet, StartsOneAgentForAHostAndThenItsWorkers) {
  Fleet fleet(config(true));
  EXPECT_EQ(all<StartAgent>(fleet.start("b", start(1), kStart)).size(), 1u);
  EXPECT_TRUE(fleet.start("b", start(2), kStart).empty());
  FleetActions actions;
  EXPECT_FALSE(fleet.hello({"b", 2, 77, 0}, kStart, &actions).resumed);
  EXPECT_EQ(all<SendOrder>(actions).size(), 2u);
  EXPECT_EQ(all<SendOrder>(fleet.start("b", start(3), kStart)).size(), 1u);
}

TEST(Fleet, AnAgentThatCannotBeStartedFailsThoseThatWaitForIt) {
  Fleet fleet(config(true));
  fleet.start("b", start(1), kStart);
  const auto failed = all<WorkerFailed>(fleet.agent_ended("b", "ssh b exited with status 255", kStart));
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].why, "ssh b exited with status 255");
  EXPECT_EQ(all<StartAgent>(fleet.start("b", start(2), kStart)).size(), 1u);  // the next one tries again
}

TEST(Fleet, AnAgentThatHangsIsGivenUp) {
  Fleet fleet(config(true));
  fleet.start("b", start(1), kStart);
  ASSERT_EQ(fleet.next_tick(), kStart + seconds(30));
  const FleetActions actions = fleet.tick(kStart + seconds(30));
  EXPECT_EQ(all<StopAgent>(actions).size(), 1u);
  ASSERT_EQ(all<WorkerFailed>(actions).size(), 1u);
  EXPECT_NE(all<WorkerFailed>(actions)[0].why.find("did not connect within 30 s"), std::string::npos);
  EXPECT_FALSE(fleet.next_tick().has_value());
}

TEST(Fleet, AHostWithoutAnAgentIsNoHost) {
  Fleet fleet(config(false));
  EXPECT_EQ(all<WorkerFailed>(fleet.start("b", start(1), kStart)).size(), 1u);
  EXPECT_TRUE(fleet.hosts().empty());
  FleetActions actions;
  fleet.hello({"b", 3, 77, 0}, kStart, &actions);
  EXPECT_EQ(all<HostsChanged>(actions).size(), 1u);
  EXPECT_EQ(fleet.hosts(), (std::vector<std::pair<std::string, int32_t>>{{"b", 3}}));
}

TEST(Fleet, TheSameAgentGoesOnWhereItWas) {
  Fleet fleet(config(false));
  FleetActions actions;
  fleet.hello({"b", 2, 77, 0}, kStart, &actions);
  fleet.start("b", start(1), kStart);
  fleet.reported("b", report<wire::AgentOutputT>(1, 1));
  fleet.closed("b", 77, kStart);
  fleet.start("b", start(2), kStart);
  actions.clear();
  const AgentWelcome welcome = fleet.hello({"b", 2, 77, 1}, kStart, &actions);
  EXPECT_TRUE(welcome.resumed);
  EXPECT_EQ(welcome.received, 1u);
  ASSERT_EQ(all<SendOrder>(actions).size(), 1u);
  EXPECT_EQ(number_of(all<SendOrder>(actions)[0].order), 2u);
  EXPECT_TRUE(fleet.has(1));
}

TEST(Fleet, WhatAWorkerClaimsGoesToItsHostsAgent) {
  Fleet fleet(config(false));
  FleetActions actions;
  fleet.hello({"b", 2, 77, 0}, kStart, &actions);
  fleet.start("b", start(1), kStart);
  for (const int32_t life : {5, -1}) {
    const auto sent = all<SendOrder>(fleet.watch(1, {4711, life, {8, 9}}));
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].host, "b");
    const auto* watch = std::get_if<wire::AgentWatchT>(&sent[0].order);
    ASSERT_NE(watch, nullptr);
    EXPECT_EQ(watch->process, 4711);
    EXPECT_EQ(watch->life, life);
    ASSERT_EQ(watch->life_token != nullptr, life >= 0);
    if (life >= 0) { EXPECT_EQ(wire::to_digest(watch->life_token.get()), (Digest{8, 9})); }
  }
  EXPECT_TRUE(fleet.watch(2, {4711, 5, {8, 9}}).empty());
}

TEST(Fleet, AnotherAgentOfTheHostHasNoneOfItsWorkers) {
  Fleet fleet(config(false));
  FleetActions actions;
  fleet.hello({"b", 2, 77, 0}, kStart, &actions);
  fleet.start("b", start(1), kStart);
  EXPECT_TRUE(fleet.objection({"b", 2, 78, 0}).has_value());  // the first is connected
  fleet.closed("b", 77, kStart);
  fleet.start("b", start(2), kStart);
  EXPECT_FALSE(fleet.objection({"b", 2, 78, 0}).has_value());
  actions.clear();
  EXPECT_FALSE(fleet.hello({"b", 2, 78, 0}, kStart, &actions).resumed);
  ASSERT_EQ(all<WorkerGone>(actions).size(), 1u);
  EXPECT_EQ(all<WorkerGone>(actions)[0].worker, 1u);
  ASSERT_EQ(all<SendOrder>(actions).size(), 1u);  // worker 2, by a number that fits
  EXPECT_EQ(number_of(all<SendOrder>(actions)[0].order), 1u);
}

TEST(Fleet, AnAgentThatStaysAwayIsGivenUp) {
  Fleet fleet(config(false));
  FleetActions actions;
  fleet.hello({"b", 2, 77, 0}, kStart, &actions);
  fleet.start("b", start(1), kStart);
  fleet.closed("b", 77, kStart);
  EXPECT_EQ(fleet.hosts().size(), 1u);
  EXPECT_TRUE(fleet.tick(kStart + seconds(59)).empty());
  actions = fleet.tick(kStart + seconds(60));
  EXPECT_EQ(all<WorkerExited>(actions).size(), 1u);
  EXPECT_EQ(all<WorkerGone>(actions).size(), 1u);
  EXPECT_EQ(all<HostsChanged>(actions).size(), 1u);
  EXPECT_TRUE(fleet.hosts().empty());
}

TEST(Fleet, WhoIsToEndAnywayIsNotWaitedForSoLong) {
  Fleet fleet(config(false));
  FleetActions actions;
  fleet.hello({"b", 2, 77, 0}, kStart, &actions);
  fleet.start("b", start(1), kStart);
  fleet.closed("b", 77, kStart);
  fleet.stop(1, seconds(5), kStart);
  EXPECT_EQ(fleet.next_tick(), kStart + seconds(10));
}

TEST(Fleet, AnAgentThatLeavesTakesItsHostWithIt) {
  Fleet fleet(config(false));
  FleetActions actions;
  fleet.hello({"b", 2, 77, 0}, kStart, &actions);
  fleet.start("b", start(1), kStart);
  EXPECT_TRUE(fleet.left("b", 78).empty());
  actions = fleet.left("b", 77);
  EXPECT_EQ(all<WorkerGone>(actions).size(), 1u);
  EXPECT_TRUE(fleet.hosts().empty());
}

TEST(Fleet, LiesAreRefused) {
  Fleet fleet(config(false));
  FleetActions actions;
  fleet.hello({"a", 2, 76, 0}, kStart, &actions);
  fleet.hello({"b", 2, 77, 0}, kStart, &actions);
  fleet.start("a", start(1), kStart);
  EXPECT_THROW(fleet.reported("b", report<wire::AgentGoneT>(1, 1)), Error);  // another host's
  EXPECT_THROW(fleet.reported("a", report<wire::AgentGoneT>(1, 3)), Error);  // some are missing
  EXPECT_THROW(fleet.acknowledged("a", 2), Error);                           // never sent
  wire::AgentExitedT odd;
  odd.worker = 1;
  odd.number = 1;
  odd.exit_status = 100000;
  EXPECT_EQ(all<WorkerExited>(fleet.reported("a", odd))[0].exit_status, -1);
  for (const char* host : {"c", "d"}) fleet.hello({host, 1, 5, 0}, kStart, &actions);
  EXPECT_TRUE(fleet.objection({"e", 1, 5, 0}).has_value());  // max_hosts
}

TEST(Fleet, AnOrderThatWasNeverSentCannotBeReceived) {
  Fleet fleet(config(false));
  FleetActions actions;
  fleet.hello({"b", 2, 77, 0}, kStart, &actions);
  fleet.start("b", start(1), kStart);
  fleet.closed("b", 77, kStart);
  fleet.start("b", start(2), kStart);  // waits for the agent
  EXPECT_THROW(fleet.hello({"b", 2, 77, 2}, kStart, &actions), Error);
  actions.clear();
  fleet.hello({"b", 2, 77, 1}, kStart, &actions);
  EXPECT_EQ(all<SendOrder>(actions).size(), 1u);
}

TEST(Fleet, AWorkerThatIsStoppedBeforeItsAgentCameIsGone) {
  Fleet fleet(config(true));
  fleet.start("b", start(1), kStart);
  fleet.start("b", start(2), kStart);
  EXPECT_EQ(all<WorkerGone>(fleet.stop(1, seconds(1), kStart)).size(), 1u);
  FleetActions actions;
  fleet.hello({"b", 2, 77, 0}, kStart, &actions);
  ASSERT_EQ(all<SendOrder>(actions).size(), 1u);
  EXPECT_EQ(number_of(all<SendOrder>(actions)[0].order), 1u);
}

}  // namespace
}  // namespace hvd::agent
