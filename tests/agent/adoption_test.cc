// Agents that outlive their driver: what they keep for the next one, and what that one makes of it (contract
// 14).
#include <gtest/gtest.h>

#include "agent/agent_core.h"
#include "agent/fleet.h"

namespace hvd::agent {
namespace {

const Time kStart{seconds(1000)};
const Duration kPatience = seconds(60);

using Kept = std::vector<std::pair<uint64_t, int32_t>>;

template <class Wanted, class Actions>
std::vector<Wanted> all(const Actions& actions) {
  std::vector<Wanted> result;
  for (const auto& action : actions) {
    if (const auto* a = std::get_if<Wanted>(&action)) result.push_back(*a);
  }
  return result;
}

wire::AgentStartT start(uint64_t worker, uint64_t number = 0, int32_t slot = 0) {
  wire::AgentStartT order;
  order.worker = worker;
  order.number = number;
  order.slot = slot;
  return order;
}

template <class Body>
Report report(uint64_t worker, uint64_t number) {
  Body body;
  body.worker = worker;
  body.number = number;
  return body;
}

AgentHello hello(const std::string& host, uint64_t instance, Kept kept, uint64_t received = 0,
                 uint64_t reported = 0) {
  return {host, 4, instance, received, reported, std::move(kept), true};
}

FleetConfig taking_over() { return {true, kPatience, seconds(30), 4, true}; }

TEST(Kept, AreThoseThatRunAndThoseOfWhomSomethingIsToBeTold) {
  AgentCore core({seconds(60), seconds(5), 1000}, kStart);
  core.connected(false, 0, kStart);
  for (const uint64_t id : {1, 2, 3}) core.ordered(start(id, id, static_cast<int32_t>(id) - 1), kStart);
  core.exited(1, 0, kStart);
  core.gone(1, kStart);  // reports 1 and 2
  core.acknowledged(2, kStart);
  core.disconnected("cut", kStart);
  core.exited(2, 3, kStart);
  core.gone(2, kStart);
  EXPECT_EQ(core.kept(), (Kept{{2, 1}, {3, 2}}));
  EXPECT_EQ(core.received(), 3u);
  EXPECT_EQ(core.reported(), 2u);
  // The driver that takes over says what the agent has said.
  const auto sent = all<SendReport>(core.connected(true, core.reported(), kStart));
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(number_of(sent[0].report), 3u);
  EXPECT_EQ(all<LaunchWorker>(core.ordered(start(4, 4), kStart)).size(), 1u);  // it goes on counting
}

TEST(Adoption, WorkersGoOnWithTheirAgent) {
  Fleet fleet(taking_over());
  fleet.expect(7, "b", 0, kStart);
  fleet.expect(8, "b", 1, kStart);
  EXPECT_TRUE(fleet.awaits());
  EXPECT_EQ(fleet.hosts(), (std::vector<std::pair<std::string, int32_t>>{{"b", 1}}));  // it will say
  FleetActions actions;
  const AgentWelcome welcome = fleet.hello(hello("b", 77, {{7, 0}, {8, 1}}, 5, 9), kStart, &actions);
  EXPECT_TRUE(welcome.resumed);
  EXPECT_EQ(welcome.received, 9u);
  EXPECT_FALSE(fleet.awaits());
  EXPECT_TRUE(all<WorkerExited>(actions).empty());
  EXPECT_EQ(all<WorkerFound>(actions).size(), 2u);
  EXPECT_EQ(all<WorkerExited>(fleet.reported("b", report<wire::AgentExitedT>(7, 10))).size(), 1u);
  const auto orders = all<SendOrder>(fleet.stop(8, seconds(1), kStart));
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(number_of(orders[0].order), 6u);
}

TEST(Adoption, WhomItsAgentDoesNotHaveIsLost) {
  Fleet fleet(taking_over());
  fleet.expect(7, "b", 0, kStart);
  fleet.expect(8, "b", 1, kStart);
  FleetActions actions;
  fleet.hello(hello("b", 77, {{8, 1}}), kStart, &actions);
  ASSERT_EQ(all<WorkerExited>(actions).size(), 1u);
  EXPECT_EQ(all<WorkerExited>(actions)[0].worker, 7u);
  EXPECT_EQ(all<WorkerGone>(actions).size(), 1u);
  EXPECT_FALSE(fleet.has(7));
  EXPECT_TRUE(fleet.has(8));
}

TEST(Adoption, AnAgentThatDoesNotComeIsGivenUpWithItsWorkers) {
  Fleet fleet(taking_over());
  fleet.expect(7, "b", 0, kStart);
  ASSERT_EQ(fleet.next_tick(), kStart + kPatience);
  const FleetActions actions = fleet.tick(kStart + kPatience);
  EXPECT_EQ(all<WorkerExited>(actions).size(), 1u);
  EXPECT_EQ(all<WorkerGone>(actions).size(), 1u);
  EXPECT_FALSE(fleet.knows("b"));
}

TEST(Adoption, TheEndOfTheJobWaitsLess) {
  Fleet fleet(taking_over());
  EXPECT_TRUE(fleet.expect("b", 1, false, kStart));
  EXPECT_TRUE(fleet.expect("b", 2, false, kStart)) << "more slots";
  EXPECT_FALSE(fleet.expect("b", 1, false, kStart));
  fleet.hurry(seconds(5), kStart);
  EXPECT_EQ(fleet.next_tick(), kStart + seconds(5));
  fleet.tick(kStart + seconds(5));
  EXPECT_FALSE(fleet.awaits());
}

TEST(Adoption, WorkersOfAnotherJobAreNotAdopted) {
  Fleet fleet(taking_over());
  AgentHello other = hello("b", 77, {{7, 0}}, 5, 9);
  other.of_this_job = false;
  FleetActions actions;
  EXPECT_FALSE(fleet.hello(other, kStart, &actions).resumed);
  EXPECT_FALSE(fleet.has(7));
  FleetConfig first = taking_over();
  first.takes_over = false;
  Fleet begins(first);
  EXPECT_FALSE(begins.hello(hello("b", 77, {{7, 0}}, 5, 9), kStart, &actions).resumed);
}

TEST(Adoption, OncePerHost) {
  Fleet fleet(taking_over());
  fleet.expect(7, "b", 0, kStart);
  FleetActions actions;
  EXPECT_TRUE(fleet.hello(hello("b", 77, {{7, 0}}), kStart, &actions).resumed);
  fleet.closed("b", 77, kStart);
  actions.clear();
  EXPECT_FALSE(fleet.hello(hello("b", 78, {{7, 0}}), kStart, &actions).resumed);  // 77's is lost
  EXPECT_EQ(all<WorkerExited>(actions).size(), 1u);
}

TEST(Adoption, NobodyHasAnotherHostsWorker) {
  Fleet fleet(taking_over());
  fleet.expect(7, "b", 0, kStart);
  FleetActions actions;
  fleet.hello(hello("c", 77, {{7, 0}, {9, 1}}), kStart, &actions);
  ASSERT_EQ(all<WorkerFound>(actions).size(), 1u);
  EXPECT_EQ(all<WorkerFound>(actions)[0].worker, 9u);
  EXPECT_EQ(fleet.host_of(7), "b");
}

TEST(Adoption, WhatWasOrderedMeanwhileFollows) {
  Fleet fleet(taking_over());
  fleet.expect("b", 2, false, kStart);
  EXPECT_TRUE(all<SendOrder>(fleet.start("b", start(3), kStart)).empty());
  FleetActions actions;
  fleet.hello(hello("b", 77, {{7, 0}}, 5, 9), kStart, &actions);
  const auto orders = all<SendOrder>(actions);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(number_of(orders[0].order), 6u);
}

TEST(Adoption, NumbersThatCannotBeAreRefused) {
  Fleet fleet(taking_over());
  FleetActions actions;
  EXPECT_THROW(fleet.hello(hello("b", 77, {}, UINT64_MAX), kStart, &actions), Error);
  EXPECT_THROW(fleet.hello(hello("b", 77, {}, 0, UINT64_MAX), kStart, &actions), Error);
}

TEST(Adoption, AnAgentThatComesAfterTheEndIsEnded) {
  Fleet fleet(taking_over());
  fleet.expect(7, "b", 0, kStart);
  fleet.end(true, false, "all are done");
  FleetActions actions;
  fleet.hello(hello("b", 77, {{7, 0}}, 5, 9), kStart, &actions);
  const auto orders = all<SendOrder>(actions);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<wire::AgentEndT>(orders[0].order));
}

}  // namespace
}  // namespace hvd::agent
