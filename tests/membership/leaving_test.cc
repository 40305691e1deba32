// Who leaves, is drained, scaled away, waits as a spare or comes by itself (contract 15).
#include "membership/script.h"

namespace hvd::membership::test {
namespace {

TEST(Leaving, TheOthersAreInterruptedOnceAndGoOnWithoutTheLeaver) {
  Script s = running(sizes(3, 2, 3));
  s.latest = s.membership.worker_leaving(2, seconds(30), "SIGTERM", s.now);
  EXPECT_TRUE(s.one<Notify>().interrupt);
  EXPECT_TRUE(s.none<Abort>());
  EXPECT_TRUE(s.none<StartWorker>());  // its slot gets no other worker
  s.ready(1, 1, true, 5).ready(2, 1, true, 5).ready(3, 1, true, 5);
  EXPECT_EQ(s.members(), (Ids{1, 3}));
  EXPECT_EQ(s.stopped(), Ids{2});
  EXPECT_TRUE(s.one<StopWorker>().left);
  EXPECT_EQ(s.one<StopWorker>().reason, "SIGTERM");
  EXPECT_TRUE(s.wait(100).started().empty());
}

TEST(Leaving, WhoeverTakesItsPlaceIsStartedWhileItIsStillThere) {
  Script s = running(sizes(2, 2, 2));
  s.hosts({{"a", 2}, {"b", 1}});
  s.latest = s.membership.worker_leaving(1, seconds(30), "", s.now);
  EXPECT_EQ(s.started(), Names{"3@b:0"});
  EXPECT_TRUE(s.none<Notify>());  // with one alone they would be too few
  s.ready(3);
  EXPECT_TRUE(s.one<Notify>().interrupt);
  s.ready(1, 1, true, 5).ready(2, 1, true, 5);
  EXPECT_EQ(s.members(), (Ids{2, 3}));
}

TEST(Leaving, PastItsDeadlineItIsLost) {
  Script s = running(sizes(3, 2, 3));
  s.latest = s.membership.worker_leaving(2, seconds(5), "", s.now);
  s.latest = s.membership.worker_leaving(2, seconds(500), "", s.now);  // the earlier deadline holds
  s.wait(4.9);
  EXPECT_TRUE(s.none<Abort>());
  s.wait(0.2);
  EXPECT_EQ(s.one<Abort>().worker, 2u);
  EXPECT_EQ(s.stopped(), Ids{2});
  EXPECT_FALSE(s.one<StopWorker>().left);
}

TEST(Leaving, ALossMeanwhileKeepsTheLeaverAsLongAsItIsNeeded) {
  Script s = running(sizes(3, 2, 3));
  s.latest = s.membership.worker_leaving(2, seconds(30), "", s.now);
  s.lost(3);
  s.ready(1, 1, true, 5).ready(2, 1, true, 5);
  EXPECT_EQ(s.members(), (Ids{1, 2}));
}

TEST(Draining, AHostGetsNoWorkerUntilItIsUndrained) {
  Script s = running(sizes(2, 1, 2));
  s.hosts({{"a", 2}, {"b", 1}});
  Answer answer;
  s.latest = s.membership.drain("a", seconds(30), "", s.now, &answer);
  EXPECT_TRUE(answer.accepted) << answer.text;
  EXPECT_EQ(answer.text, "host a is drained: 2 workers leave within 30 s");
  EXPECT_EQ(s.started(), Names{"3@b:0"});
  EXPECT_TRUE(s.one<Notify>().interrupt);
  s.ready(3).ready(1, 1, true, 5).ready(2, 1, true, 5);
  EXPECT_EQ(s.members(), (Ids{1, 3}));  // contract 5: the commit is handed over first
  s.synced(1).synced(3).ready(1, 2, true, 6).ready(3, 2, true, 6);
  EXPECT_EQ(s.members(), Ids{3});
  EXPECT_EQ(s.membership.usable_slots(s.now), 1);
  s.hosts({{"b", 1}}).hosts({{"a", 2}, {"b", 1}});  // a drain holds though discovery forgets the host
  EXPECT_TRUE(s.started().empty());
  s.latest = s.membership.undrain("a", s.now, &answer);
  EXPECT_TRUE(answer.accepted);
  EXPECT_EQ(s.started(), Names{"4@a:0"});
}

TEST(Draining, UndoneInTimeNobodyGoes) {
  Script s = running(sizes(3, 1, 3));
  s.hosts({{"a", 3}, {"b", 0}});
  Answer answer;
  s.latest = s.membership.drain("a", seconds(30), "", s.now, &answer);
  s.latest = s.membership.undrain("a", s.now, &answer);
  EXPECT_EQ(answer.text, "host a may be used again: 3 workers of it stay");
  EXPECT_TRUE(s.wait(60).none<StopWorker>());
  EXPECT_TRUE(s.none<Abort>());
}

TEST(Draining, WhatIsNotThereIsSaid) {
  Script s = running(sizes(1, 1, 1));
  Answer answer;
  s.membership.drain("z", seconds(1), "", s.now, &answer);
  EXPECT_FALSE(answer.accepted);
  EXPECT_EQ(answer.text, "no host 'z' to be drained: expected one of a");
  s.membership.undrain("a", s.now, &answer);
  EXPECT_FALSE(answer.accepted);
  s.membership.scale(2, s.now, &answer);
  EXPECT_EQ(answer.text, "can't scale to 2: expected 1 to 1 (min_np, max_np)");
}

TEST(Scaling, TheHighestRanksLeaveAndComeBack) {
  Script s = running(sizes(3, 1, 3));
  Answer answer;
  s.latest = s.membership.scale(1, s.now, &answer);
  EXPECT_TRUE(answer.accepted);
  EXPECT_TRUE(s.one<Notify>().interrupt);
  s.ready(1, 1, true, 5).ready(2, 1, true, 5).ready(3, 1, true, 5);
  EXPECT_EQ(s.members(), Ids{1});
  EXPECT_EQ(s.stopped(), (Ids{2, 3}));
  for (const StopWorker& stop : s.all<StopWorker>()) EXPECT_TRUE(stop.left);
  s.latest = s.membership.scale(2, s.now, &answer);
  EXPECT_EQ(s.started(), Names{"4@a:1"});
}

MembershipConfig with_spares(int32_t np, int32_t spares) {
  MembershipConfig config = sizes(np, np, np);
  config.spares = spares;
  return config;
}

TEST(Spares, OneTakesThePlaceOfALostWorkerInTheSameReset) {
  Script s(with_spares(2, 1));
  s.hosts({{"a", 2}, {"b", 2}});
  EXPECT_EQ(s.started(), (Names{"1@a:0", "2@a:1", "3@b:0"}));
  s.ready(1).ready(2);
  EXPECT_EQ(s.one<Assign>().spares, 0);
  s.all_synced({1, 2}).ready(3);
  EXPECT_EQ(s.one<Wait>().worker, 3u);
  EXPECT_TRUE(s.none<Notify>());  // the members are not disturbed
  s.lost(2);
  s.ready(1, 1, true, 5);
  EXPECT_EQ(s.members(), (Ids{1, 3}));
  EXPECT_EQ(s.one<Assign>().spares, 1);
  s.synced(1);
  EXPECT_TRUE(s.none<StartWorker>());  // nothing takes time from those who recover
  s.synced(3);
  EXPECT_EQ(s.started(), Names{"4@b:1"});  // the next spare
}

TEST(Arrivals, AWorkerThatComesByItselfGetsASlotOfItsHost) {
  Script s(sizes(1, 1, 2));
  Arrival arrival;
  s.latest = s.membership.worker_arrived("x", -1, s.now, &arrival);
  EXPECT_EQ(arrival.worker, 1u);
  EXPECT_EQ(arrival.slot, 0);
  s.membership.worker_arrived("x", 0, s.now, &arrival);
  EXPECT_EQ(arrival.worker, 0u);
  EXPECT_EQ(arrival.occupant, 1u);
  s.ready(1);
  EXPECT_EQ(s.members(), Ids{1});
}

TEST(Arrivals, TooManyWaitAndWhoComesAfterThemIsRefused) {
  MembershipConfig config = sizes(1, 1, 1);
  config.max_waiting = 2;
  Script s(config);
  Arrival arrival;
  for (uint64_t w = 1; w <= 3; ++w) {
    s.latest = s.membership.worker_arrived("x", -1, s.now, &arrival);
    EXPECT_EQ(arrival.worker, w);
    s.ready(w);
  }
  EXPECT_EQ(s.one<Wait>().worker, 3u);
  s.membership.worker_arrived("x", -1, s.now, &arrival);
  EXPECT_EQ(arrival.refusal, "2 workers wait for a place already (max_waiting)");
}

TEST(Arrivals, NobodyIsLetInWhoCouldNotStay) {
  const auto refusal = [](Script& s, const std::string& host) {
    Arrival arrival;
    s.latest = s.membership.worker_arrived(host, -1, s.now, &arrival);
    EXPECT_EQ(arrival.worker, 0u);
    return arrival.refusal;
  };
  const auto begun = [](Script& s) {
    Arrival arrival;
    s.latest = s.membership.worker_arrived("x", -1, s.now, &arrival);
    s.ready(1).synced(1);
  };
  {
    Script s(sizes(1, 1, 4));
    begun(s);
    Answer answer;
    s.latest = s.membership.drain("x", seconds(30), "", s.now, &answer);
    EXPECT_TRUE(answer.accepted) << answer.text;
    EXPECT_EQ(refusal(s, "x"), "host x is drained");
  }
  {
    Script s(sizes(1, 1, 4));
    begun(s);
    s.latest = s.membership.close_joining("its helper died", s.now);
    EXPECT_EQ(refusal(s, "y"), "nobody can join any more: its helper died");
  }
  {
    Script s(sizes(2, 1, 4));
    Arrival arrival;
    for (int i = 0; i < 2; ++i) s.latest = s.membership.worker_arrived("x", -1, s.now, &arrival);
    s.ready(1).ready(2).all_synced({1, 2});
    s.latest = s.membership.worker_done(1, 1, s.now);
    EXPECT_EQ(refusal(s, "y"), "the job is about to end: workers are done");
  }
}

TEST(Spares, MoreThanAreWantedAreSentAway) {
  MembershipConfig config = with_spares(3, 1);
  config.min_np = 1;
  Script s(config);
  s.hosts({{"a", 8}});
  s.ready(1).ready(2).ready(3).all_synced({1, 2, 3}).ready(4);
  s.lost(2).ready(1, 1, true, 5).ready(3, 1, true, 5);
  EXPECT_EQ(s.members(), (Ids{1, 3, 4}));
  s.all_synced({1, 3, 4});  // worker 5 is started
  s.lost(3).ready(1, 2, true, 6).ready(4, 2, true, 6);
  EXPECT_EQ(s.members(), (Ids{1, 4}));
  s.all_synced({1, 4});  // and worker 6: one has a place to come, one waits
  Answer answer;
  s.latest = s.membership.scale(2, s.now, &answer);
  EXPECT_TRUE(answer.accepted) << answer.text;
  EXPECT_EQ(s.one<StopWorker>().worker, 6u);  // that place is gone
}

}  // namespace
}  // namespace hvd::membership::test
