// How a job ends: contract 8; F2, F3, F11.
#include "membership/script.h"

namespace hvd::membership::test {
namespace {

TEST(Ending, SuccessIsTheWorkersWord) {
  Script s = running(sizes(2, 1, 2));
  EXPECT_TRUE(s.done(1).none<Finish>());
  EXPECT_TRUE(s.done(1).latest.empty()) << "contract 11: a repeated request counts once";
  const Finish end = s.done(2).one<Finish>();
  EXPECT_TRUE(end.success);
  EXPECT_EQ(end.sentence, "all 2 workers are done after 1 generation");
  EXPECT_FALSE(s.ready(1).none<Refuse>());
  EXPECT_TRUE(s.lost(1).latest.empty());
  EXPECT_FALSE(s.membership.next_tick());
}

TEST(Ending, ExitWithoutTheWordIsADeparture) {  // F11
  for (LossKind kind : {LossKind::kExited, LossKind::kLeft}) {
    Script s = running(sizes(2, 1, 2));
    s.lost(2, kind);
    EXPECT_TRUE(s.none<Finish>());
    EXPECT_FALSE(s.none<Abort>());
    EXPECT_EQ(s.wait(1).started(), Names{"3@a:1"});
  }
}

TEST(Ending, ADoneWorkerThatGoesIsNoLoss) {
  Script s = running(sizes(2, 2, 2));
  s.done(1).lost(1);
  EXPECT_TRUE(s.latest.empty());
  EXPECT_TRUE(s.done(2).one<Finish>().success);
}

TEST(Ending, TheRestFinishesEvenBelowTheMinimum) {
  Script s = running(sizes(3, 3, 3));
  s.done(1).lost(2);
  EXPECT_EQ(s.one<Abort>().to, Ids{3});
  EXPECT_TRUE(s.wait(5).none<StartWorker>()) << "no new workers once one is done";
  EXPECT_EQ(s.ready(3, 1, true, 4).members(), Ids{3});
  EXPECT_EQ(s.done(3).one<Finish>().sentence,
            "all 2 workers are done after 2 generations; 1 was lost at the end: rank 1 (worker 2 on a) lost: "
            "connection closed");
}

TEST(Ending, LastOnesLostAfterOthersWereDone) {
  Script s = running(sizes(2, 1, 2));
  s.done(1);
  EXPECT_TRUE(s.lost(2).one<Finish>().success);
}

TEST(Ending, WhileFinishingNobodyIsInterrupted) {
  Script s = running(sizes(2, 1, 3));
  s.hosts({{"a", 3}}).done(1);
  EXPECT_TRUE(s.ready(3).none<Notify>());
  EXPECT_FALSE(s.hosts({{"a", 1}}).one<Notify>().interrupt);
  EXPECT_TRUE(s.done(2).one<Finish>().success);
  EXPECT_EQ(s.stopped(), Ids{3});
}

TEST(Ending, AllWorkersFailed) {  // F2
  Script s = running(sizes(2, 1, 2));
  s.lost(1);
  const Finish end = s.lost(2).one<Finish>();
  EXPECT_FALSE(end.success);
  EXPECT_EQ(
      end.sentence,
      "all workers failed: no survivor holds state; last: rank 1 (worker 2 on a) lost: connection closed");
}

Script with_driver_timeout(double s) {
  MembershipConfig config = sizes(2, 1, 2);
  config.driver_timeout = seconds(s);
  return running(config);
}

constexpr const char* kGivenUp =
    "all workers failed: no survivor holds state; last: rank 1 (worker 2 on a) lost: connection closed; the "
    "driver did not run for 75 s, and workers give one up after 60 s (driver_timeout)";

TEST(Ending, OfADriverThatDidNotRunItsWorkersGaveItUp) {  // F9
  Script s = with_driver_timeout(60);
  s.membership.driver_held_up(seconds(75), s.now);
  EXPECT_EQ(s.lost(1).lost(2).one<Finish>().sentence, kGivenUp);
  s = with_driver_timeout(60);
  s.membership.driver_held_up(seconds(75), s.now);
  s.membership.driver_held_up(seconds(3), s.now);
  s.close_joining("no more hosts").wait(59).lost(1);
  EXPECT_EQ(s.lost(2).one<Finish>().sentence, kGivenUp) << "and what was shorter explains nothing";
  s = with_driver_timeout(60);
  s.membership.driver_held_up(seconds(75), s.now);
  s.link(2, 1, "reset").ready(2, 1, true);
  EXPECT_EQ(s.lost(1).members(), Ids{2}) << "which has left as well";
  EXPECT_NE(s.lost(2).one<Finish>().sentence.find("the driver did not run for 75 s"), std::string::npos);
  MembershipConfig config = sizes(2, 1, 2);
  config.driver_timeout = seconds(60);
  Script early(config);
  early.hosts({{"a", 2}}).ready(1).ready(2);
  early.membership.driver_held_up(seconds(75), early.now);
  early.all_synced({1, 2}).lost(1);  // it had not read that yet
  EXPECT_EQ(early.lost(2).one<Finish>().sentence, kGivenUp);
}

TEST(Ending, WhatHappenedLongAgoIsNotItsCause) {
  const auto says_so = [](Script& s) {
    return s.lost(1).lost(2).one<Finish>().sentence.find("did not run") != std::string::npos;
  };
  Script later = with_driver_timeout(60), shorter = with_driver_timeout(60), unknown = with_driver_timeout(0);
  later.membership.driver_held_up(seconds(75), later.now);
  later.wait(61);
  EXPECT_FALSE(says_so(later));
  shorter.membership.driver_held_up(seconds(50), shorter.now);
  EXPECT_FALSE(says_so(shorter));
  unknown.membership.driver_held_up(seconds(75), unknown.now);
  EXPECT_FALSE(says_so(unknown));
  Script on = with_driver_timeout(60);
  on.membership.driver_held_up(seconds(75), on.now);
  on.link(1, 1, "reset").ready(1, 1, true).ready(2, 1, true).all_synced({1, 2});
  EXPECT_FALSE(says_so(on)) << "they went on";
}

TEST(Ending, AllLostBeforeAnySyncBeginsAgain) {
  Script s(sizes(2, 2, 2));
  s.hosts({{"a", 2}}).ready(1).ready(2).lost(1).lost(2);
  EXPECT_EQ(s.wait(1).started(), (Names{"3@a:0", "4@a:1"}));
  s.ready(3).ready(4);
  EXPECT_EQ(s.members(), (Ids{3, 4}));
  EXPECT_EQ(s.one<Assign>().generation, 2u);
}

TEST(Ending, DeathWhileTheFirstGenerationSyncsBeginsAgain) {  // F4
  Script s(sizes(2, 1, 2));
  s.hosts({{"a", 2}}).ready(1).ready(2).synced(1).lost(1);
  EXPECT_EQ(s.ready(2, 1, false).members(), Ids{2}) << "worker 2 was never synced: no step was made";
}

TEST(Ending, NoSurvivorHoldsState) {
  Script s(sizes(2, 1, 3));
  s.hosts({{"a", 2}}).ready(1).ready(2).all_synced({1, 2});
  s.hosts({{"a", 3}}).ready(3).ready(1, 1, true, 2).ready(2, 1, true, 2);
  s.lost(1).lost(2);
  EXPECT_EQ(
      s.ready(3, 2, false).one<Finish>().sentence.rfind("no survivor holds state: rank 2 (worker 3 on a)", 0),
      0u);
}

TEST(Ending, ResetLimit) {  // F3
  MembershipConfig config = sizes(2, 1, 2);
  config.reset_limit = 1;
  Script s = running(config);
  s.link(1, 1, "reset").ready(1, 1, true).ready(2, 1, true).all_synced({1, 2});
  EXPECT_EQ(s.membership.resets(), 1);
  s.lost(2).ready(1, 2, true);
  EXPECT_EQ(s.one<Finish>().sentence,
            "reset limit 1 exceeded: rank 1 (worker 2 on a) lost: connection closed");
}

TEST(Ending, StopTellsEverybody) {
  Script s = running(sizes(2, 1, 3));
  s.hosts({{"a", 3}});
  for (const Action& a : s.membership.stop("interrupted by the user", s.now)) s.latest.push_back(a);
  EXPECT_EQ(s.one<Finish>().sentence, "interrupted by the user");
  EXPECT_EQ(s.stopped(), (Ids{3, 1, 2}));
  EXPECT_TRUE(s.membership.stop("again", s.now).empty());
  EXPECT_TRUE(s.hosts({{"z", 9}}).latest.empty());
}

// ---- when nobody can join any more ----

TEST(CloseJoining, TheMembersGoOnAndNobodyJoins) {
  Script s = running(sizes(2, 1, 3));
  s.hosts({{"a", 3}});
  s.close_joining("the helper died");
  EXPECT_EQ(s.stopped(), Ids{3});
  EXPECT_TRUE(s.none<Abort>());
  s.lost(2);
  EXPECT_TRUE(s.wait(1).none<StartWorker>());
  EXPECT_EQ(s.ready(1, 1, true, 4).members(), Ids{1});
  EXPECT_TRUE(s.wait(1000).none<StartWorker>());
  EXPECT_TRUE(s.done(1).one<Finish>().success);
}

TEST(CloseJoining, TooFewIsTheEndAtOnce) {
  Script s = running(sizes(2, 2, 2));
  s.close_joining("the helper died");
  EXPECT_TRUE(s.none<Finish>());
  const Finish end = s.lost(2).one<Finish>();
  EXPECT_FALSE(end.success);
  EXPECT_NE(end.sentence.find("the helper died"), std::string::npos) << end.sentence;
}

TEST(CloseJoining, BeforeTheFirstGenerationTheJobEnds) {
  Script s(sizes(2, 1, 2));
  s.hosts({{"a", 2}});
  s.close_joining("the helper died");
  EXPECT_EQ(s.one<Finish>().sentence, "the helper died");
  EXPECT_EQ(s.stopped(), (Ids{1, 2}));
}

}  // namespace
}  // namespace hvd::membership::test
