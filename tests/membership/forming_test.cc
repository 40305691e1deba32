// How generations form and break: contract 1, 3, 5, 7, 11, 12.
#include <set>

#include "membership/script.h"

namespace hvd::membership::test {
namespace {

TEST(Forming, FirstGenerationWaitsForAllThatWereStartedInSlotOrder) {
  Script s(sizes(3, 2, 0));
  EXPECT_EQ(s.hosts({{"b", 2}, {"a", 2}}).started(), (Names{"1@b:0", "2@b:1", "3@a:0"}));
  EXPECT_TRUE(s.ready(3).none<Assign>());
  EXPECT_TRUE(s.ready(1).none<Assign>());
  EXPECT_EQ(s.membership.waiting_for(), "generation 1 waits for worker 2 on b to become ready");
  s.ready(2);
  EXPECT_EQ(s.members(), (Ids{1, 2, 3})) << "contract 7: worker id = rank + 1 at first";
  EXPECT_EQ(s.started(), (Names{"4@a:1"})) << "after the first generation up to the maximum";
  EXPECT_EQ(s.one<Assign>().generation, 1u);
  EXPECT_EQ(s.membership.rank_of(3), 2);
  EXPECT_EQ(s.membership.waiting_for(), "");
}

TEST(Forming, LateStartersAreGivenUpAndTheMinimumGoesOn) {  // contract 12
  Script s(sizes(3, 2, 3));
  s.hosts({{"a", 3}}).ready(1).ready(3);
  s.wait(120);
  EXPECT_EQ(s.stopped(), Ids{2});
  EXPECT_EQ(s.members(), (Ids{1, 3}));
  EXPECT_TRUE(s.ready(2).one<Refuse>().reason.find("given up") != std::string::npos) << "contract 11";
}

TEST(Forming, TooFewSlotsEndTheJobInOneSentence) {  // contract 8, F13
  Script s(sizes(2, 2, 2));
  s.hosts({{"a", 1}}).ready(1);
  EXPECT_EQ(s.membership.waiting_for(), "generation 1 waits for 1 more slot (2 needed)");
  EXPECT_TRUE(s.wait(599).none<Finish>());
  const Finish end = s.wait(1).one<Finish>();
  EXPECT_FALSE(end.success);
  EXPECT_EQ(end.sentence, "not enough slots: 2 needed (--min-np), 1 available after 600 s");
  EXPECT_EQ(s.stopped(), Ids{1}) << "whoever waits is told";
  EXPECT_TRUE(s.membership.ended());
}

TEST(Forming, LossAbortsAtOnceAndSurvivorsKeepTheirOrder) {  // contract 3, 7, F1
  Script s = running(sizes(3, 1, 3));
  s.lost(1);
  const Abort abort = s.one<Abort>();
  EXPECT_EQ(abort.reason, "rank 0 (worker 1 on a) lost: connection closed");
  EXPECT_EQ(abort.rank, 0);
  EXPECT_EQ(abort.worker, 1u);
  EXPECT_EQ(abort.to, (Ids{2, 3}));
  EXPECT_TRUE(s.ready(3, 1, true, 4).none<Assign>());
  EXPECT_EQ(s.membership.waiting_for(), "generation 2 waits for rank 1 (worker 2 on a) to rejoin");
  s.ready(2, 1, true, 4);
  EXPECT_EQ(s.members(), (Ids{2, 3}));
  EXPECT_EQ(s.one<Assign>().root, 0);
  EXPECT_EQ(s.membership.resets(), 1);
}

TEST(Forming, SecondLossWhileFormingIsJustOneSurvivorLess) {  // F5
  Script s = running(sizes(3, 1, 3));
  s.lost(1);
  EXPECT_TRUE(s.lost(2).none<Abort>()) << "it was aborted already";
  EXPECT_EQ(s.ready(3, 1, true, 1).members(), Ids{3});
}

TEST(Forming, LossOfAnAssignedMemberAbortsTheNewGeneration) {  // F5
  Script s = running(sizes(3, 1, 3));
  s.lost(1).ready(2, 1, true).ready(3, 1, true);
  s.lost(2);
  EXPECT_EQ(s.one<Abort>().generation, 2u);
  EXPECT_EQ(s.one<Abort>().to, Ids{3});
}

TEST(Forming, NewestCommitIsTheRoot) {  // contract 5, F10
  Script s = running(sizes(3, 1, 3));
  s.lost(1).ready(2, 1, true, 7);
  s.ready(3, 1, true, 8);
  EXPECT_EQ(s.members(), (Ids{2, 3}));
  EXPECT_EQ(s.one<Assign>().root, 1);
}

/// contract 11: a newcomer drops its connection, and comes back with a claim.
TEST(Forming, ANewcomerThatSaysThatItHadStateLeadsNoGeneration) {
  Script s = running(sizes(3, 1, 3));
  s.lost(3).ready(1, 1, true, 7).ready(2, 1, true, 7).wait(1);
  const uint64_t newcomer = 4;
  for (const uint64_t generation : {0, 1}) {
    BackEvent claim;
    claim.generation = generation;
    claim.rank = 0;
    claim.size = 3;
    claim.has_state = claim.synced = true;
    claim.revision = ~uint64_t{0};
    s.back(newcomer, claim);
  }
  s.ready(newcomer, 0, true, ~uint64_t{0});
  s.ready(1, 2, true, 8).ready(2, 2, true, 8);
  ASSERT_EQ(s.members(), (Ids{1, 2, newcomer}));
  EXPECT_EQ(s.one<Assign>().root, 0);
  EXPECT_FALSE(s.one<Assign>().members()[2].has_state);
}

TEST(Forming, RankZeroHoldsState) {  // contract 7
  Script s = running(sizes(3, 1, 3));
  s.lost(1).ready(2, 1, false);
  s.ready(3, 1, true, 2);
  EXPECT_EQ(s.members(), (Ids{3, 2}));
  EXPECT_EQ(s.one<Assign>().root, 0);
}

TEST(Forming, NewcomersAreNotOnTheSurvivorsCriticalPath) {
  Script s = running(sizes(2, 1, 2));
  s.lost(2).wait(1);
  EXPECT_EQ(s.started(), (Names{"3@a:1"}));
  EXPECT_EQ(s.ready(1, 1, true).members(), Ids{1}) << "worker 3 is not ready and not waited for";
  s.ready(3);
  EXPECT_TRUE(s.one<Notify>().interrupt);
  EXPECT_EQ(s.ready(1, 2, true).members(), (Ids{1, 3}));
}

TEST(Forming, BelowTheMinimumNewcomersAreWaitedFor) {
  Script s = running(sizes(2, 2, 2));
  s.lost(2).ready(1, 1, true, 3);
  EXPECT_TRUE(s.none<Assign>());
  s.wait(1).ready(3);
  EXPECT_EQ(s.members(), (Ids{1, 3}));
  EXPECT_EQ(s.one<Assign>().members()[0].revision, 3u);
}

TEST(Forming, SurvivorThatDoesNotRejoinIsGivenUp) {  // contract 12
  MembershipConfig config = sizes(3, 1, 3);
  config.restart = false;
  Script s = running(config);
  s.lost(1).ready(2, 1, true);
  s.wait(600);
  EXPECT_EQ(s.stopped(), Ids{3});
  EXPECT_EQ(s.members(), Ids{2});
}

TEST(Forming, SurvivorThatDoesNotRejoinEndsTheJobBelowTheMinimum) {  // contract 12
  MembershipConfig config = sizes(2, 2, 2);
  config.restart = false;
  Script s = running(config);
  s.link(1, 1, "reset by peer").ready(1, 1, true);
  EXPECT_TRUE(s.wait(599).none<Finish>());
  EXPECT_EQ(s.wait(1).one<Finish>().sentence.rfind("not enough slots: 2 needed (--min-np), 1 available", 0),
            0u);
}

TEST(Forming, MemberThatLeavesWithoutAnAgreementAbortsTheOthers) {  // contract 3
  Script s = running(sizes(3, 1, 3));
  s.ready(2, 1, true);
  EXPECT_EQ(s.one<Abort>().to, (Ids{1, 3}));
  EXPECT_EQ(s.one<Abort>().rank, 1);
}

TEST(Forming, AMemberThatLeavesBecauseItLostAPeerIsNotToBlame) {  // its word of whom may come later
  Script s = running(sizes(3, 1, 3));
  s.ready_after_a_loss(2, 1);
  EXPECT_EQ(s.one<Abort>().to, (Ids{1, 3}));
  EXPECT_EQ(s.one<Abort>().rank, -1);
  EXPECT_EQ(s.one<Abort>().worker, 0U);
}

TEST(Forming, LocalRanksFollowTheReportedHost) {
  Script s(sizes(4, 4, 4));
  s.hosts({{"a", 2}, {"b", 2}}).ready_on("x", 1).ready_on("y", 2).ready_on("x", 3).ready_on("x", 4);
  std::vector<int32_t> local;
  for (const auto& m : s.one<Assign>().members()) local.push_back(m.local_rank);
  EXPECT_EQ(local, (std::vector<int32_t>{0, 0, 1, 2}));
}

TEST(Forming, BrokenLinkAbortsOnceAndOnlyItsOwnGeneration) {  // contract 3, 11
  Script s = running(sizes(2, 1, 2));
  s.link(1, 1, "reset by peer");
  EXPECT_EQ(s.one<Abort>().to, (Ids{1, 2}));
  EXPECT_EQ(s.one<Abort>().worker, 2u);
  EXPECT_EQ(s.one<Abort>().reason, "rank 0 (worker 1 on a): reset by peer");
  EXPECT_TRUE(s.link(2, 0, "reset by peer").latest.empty());
  s.ready(1, 1, true).ready(2, 1, true);
  EXPECT_EQ(s.members(), (Ids{1, 2}));
  EXPECT_TRUE(s.membership.worker_failed_link(1, 1, 1, "old", s.now).empty());
}

// contract 19
TEST(Forming, AWorkerThatStartsSlowlyIsGivenTimeWhileItsProcessRuns) {
  MembershipConfig config = sizes(1, 1, 4);
  config.start_timeout = seconds(20);
  config.slow_timeout = seconds(30);
  std::set<uint64_t> running;
  config.runs = [&](uint64_t worker) { return running.contains(worker); };
  Script s(config);
  s.hosts({{"a", 1}}).ready(1).synced(1);
  s.hosts({{"a", 4}});
  running = {2, 3};
  s.wait(20);
  EXPECT_EQ(s.stopped(), Ids{4}) << "nobody sees it run";
  EXPECT_EQ(s.all<LogLine>().size(), 3u) << "two are slow, and one is lost";
  s.ready(2).wait(1);
  running.erase(3);  // it is stopped, or ends and nobody has told yet
  s.wait(1);
  EXPECT_EQ(s.stopped(), Ids{3});
  EXPECT_EQ(s.membership.phase(), Phase::kRunning);

  Script never(config);
  never.hosts({{"a", 1}}).ready(1).synced(1);
  never.hosts({{"a", 2}});
  running = {2};
  never.wait(49.9);
  EXPECT_TRUE(never.membership.expects(2));
  never.wait(0.2);
  EXPECT_NE(never.one<StopWorker>().reason.find("though its process runs (slow_timeout)"), std::string::npos);
}

TEST(Forming, NobodyHasStateByItsWordAlone) {
  Script s = running(sizes(2, 1, 3));
  s.hosts({{"a", 2}, {"b", 1}}).ready(3, 0, true, ~uint64_t{0});
  s.ready(1, 1, true, 5).ready(2, 1, true, 6);
  const Assign assign = s.one<Assign>();
  EXPECT_EQ(assign.root, 1);
  ASSERT_EQ(assign.members().size(), 3u);
  EXPECT_FALSE(assign.members()[2].has_state);
}

TEST(Forming, GenerationsThatNeverConnectEndTheJob) {
  Script s(sizes(2, 1, 2));
  s.hosts({{"a", 2}}).ready(1).ready(2);
  for (uint64_t g = 1; g <= 5; ++g) {
    ASSERT_FALSE(s.membership.ended()) << g;
    s.link(2, 0, "no route to 10.0.0.1").ready(1, g).ready(2, g);
  }
  EXPECT_EQ(
      s.one<Finish>().sentence,
      "5 generations in a row could not be connected though every worker lives; last: rank 1 (worker 2 on a): "
      "no route to 10.0.0.1");
}

TEST(Forming, NewcomersThatCanNotBeConnectedAreStartedAnewAndTheOthersGoOn) {
  Script s = running(sizes(2, 1, 3));
  s.hosts({{"a", 3}}).ready(3);
  s.ready(1, 1, true, 4).ready(2, 1, true, 4);
  EXPECT_EQ(s.members(), (Ids{1, 2, 3}));
  const auto fail = [&](uint64_t g) {
    s.link(1, -1, "rank 2 did not take its place").ready(1, g, true, 4).ready(2, g, true, 4);
  };
  fail(2);
  EXPECT_EQ(s.ready(3, 2).members(), (Ids{1, 2, 3})) << "once may be anything";
  fail(3);
  s.ready(3, 3);
  EXPECT_EQ(s.stopped(), Ids{3});
  EXPECT_EQ(s.members(), (Ids{1, 2})) << "those that hold state go on";
  EXPECT_EQ(s.wait(1).started(), Names{"4@a:2"});
  s.all_synced({1, 2}, 4).ready(4);
  EXPECT_TRUE(s.one<Notify>().interrupt) << "and it may join";
}

TEST(Forming, OneThatConnectsBreaksTheRow) {
  Script s(sizes(2, 1, 2));
  s.hosts({{"a", 2}}).ready(1).ready(2);
  for (uint64_t g = 1; g <= 12; ++g) {
    if (g % 4 == 0) s.all_synced({1, 2});
    s.link(2, 0, "reset").ready(1, g, g >= 4).ready(2, g, g >= 4);
  }
  EXPECT_FALSE(s.membership.ended());
  EXPECT_EQ(s.membership.generation(), 13u);
}

TEST(Fencing, StaleAndForeignMessagesAreRefusedAndChangeNothing) {  // contract 11, F6
  Script s = running(sizes(2, 1, 2));
  s.lost(2).ready(1, 1, true);
  const uint64_t epoch = s.membership.epoch();
  EXPECT_EQ(s.ready(99).one<Refuse>().reason, "worker 99 is unknown to this job");
  EXPECT_EQ(s.ready(2, 1, true).one<Refuse>().reason, "worker 2 was given up: connection closed");
  EXPECT_EQ(s.ready(1, 8).one<Refuse>().reason,
            "worker 1 says that it left generation 8, but the newest is 2");
  EXPECT_FALSE(s.synced(2).none<Refuse>());
  EXPECT_FALSE(s.done(2).none<Refuse>());
  EXPECT_EQ(s.membership.worker_done(1, 1, s.now).size(), 1u);
  EXPECT_EQ(s.membership.generation(), 2u);
  EXPECT_EQ(s.membership.epoch(), epoch);
  EXPECT_EQ(s.membership.phase(), Phase::kRunning);
  EXPECT_TRUE(s.membership.expects(1));
}

TEST(Fencing, RepeatedReadyCountsOnceAndTheNewerDataCount) {  // contract 11
  Script s = running(sizes(3, 1, 3));
  s.lost(3).ready(1, 1, true, 4);
  EXPECT_TRUE(s.ready(1, 1, true, 5).latest.empty());
  s.ready(2, 1, true, 4);
  EXPECT_EQ(s.one<Assign>().members()[0].revision, 5u);
  EXPECT_TRUE(s.ready(1, 1, true, 5).latest.empty()) << "the assignment was the answer";
  EXPECT_EQ(s.membership.phase(), Phase::kRunning);
}

// contract 5: what a worker said before it entered a generation is not what it holds after it.
TEST(Fencing, ReadyFromBeforeALostGenerationDoesNotCount) {
  Script s = running(sizes(2, 1, 2));
  s.link(1, 1, "reset").ready(1, 1, true, 3).ready(2, 1, true, 3);
  s.link(1, 1, "reset");
  EXPECT_TRUE(s.ready(2, 1, true, 3).ready(1, 2, true, 3).none<Assign>());
  s.ready(2, 2, true, 4);
  EXPECT_EQ(s.one<Assign>().root, 1);
}

}  // namespace
}  // namespace hvd::membership::test
