// What a driver believes that takes a job over (contract 14), rule by rule; takeover_test.cc has histories.
#include "membership/script.h"

namespace hvd::membership::test {
namespace {

const Settle kSettle{seconds(5), seconds(1), seconds(3)};

/// Members 1..size of generation 1 on host a, all synced.
KnownJob known(int32_t size, bool told = true) {
  KnownJob job;
  job.told = told;
  job.generation = 1;
  job.epoch = 1;
  job.next_worker = 10;
  job.initial = false;
  job.state_exists = true;
  for (int32_t slot = 0; slot < size; ++slot) {
    const uint64_t id = static_cast<uint64_t>(slot) + 1;
    job.members.push_back(id);
    job.workers.push_back({id, "a", slot, true, false, false, std::nullopt, ""});
  }
  return job;
}

/// At work in this generation.
BackEvent at_work(uint64_t generation, int32_t rank, int32_t size, int32_t slot) {
  BackEvent event;
  event.generation = generation;
  event.rank = rank;
  event.size = size;
  event.synced = event.has_state = true;
  event.epoch = 1;
  event.slot_host = "a";
  event.slot = slot;
  return event;
}

TEST(TakingOver, AllWhoAreBackGoOn) {
  Script s(sizes(2, 1, 2), known(2), kSettle);
  EXPECT_TRUE(s.hosts({{"a", 2}}).latest.empty());
  EXPECT_TRUE(s.back(1, at_work(1, 0, 2, 0)).membership.gathering());
  EXPECT_FALSE(s.back(2, at_work(1, 1, 2, 1)).membership.gathering());
  EXPECT_EQ(s.membership.phase(), Phase::kRunning);
  EXPECT_EQ(s.membership.size(), 2);
}

TEST(TakingOver, WhoDoesNotComeIsLostAfterTheSettleTimeAndNotBefore) {
  Script s(sizes(2, 1, 2), known(2), kSettle);
  s.hosts({{"a", 2}}).back(1, at_work(1, 0, 2, 0));
  EXPECT_TRUE(s.wait(4.9).latest.empty());
  EXPECT_EQ(s.wait(0.2).stopped(), Ids{2});
  EXPECT_EQ(s.one<Abort>().to, Ids{1});
}

/// It has left the generation, whose link to this rank broke.
BackEvent after_a_loss(int32_t suspect, int32_t rank, int32_t size, int32_t slot) {
  BackEvent event = at_work(1, rank, size, slot);
  event.left = true;
  event.suspect = suspect;
  event.closed = true;
  return event;
}

TEST(TakingOver, WhoseLossAPeerHasSeenIsNotWaitedForForLong) {
  Script s(sizes(4, 1, 4), known(4), kSettle);
  s.hosts({{"a", 4}}).back(1, after_a_loss(2, 0, 4, 0));
  s.wait(0.7);
  EXPECT_TRUE(s.back(2, after_a_loss(2, 1, 4, 1)).membership.gathering());
  EXPECT_TRUE(s.wait(0.9).latest.empty()) << "since the last one came back";
  EXPECT_EQ(s.wait(0.2).stopped(), (Ids{3, 4})) << "and whoever is missing as well";
  s.ready_after_a_loss(1, 1);
  EXPECT_EQ(s.ready_after_a_loss(2, 1).members(), (Ids{1, 2}));
}

TEST(TakingOver, ALinkThatBreaksMeanwhileTellsOfALossAsWell) {
  Script s(sizes(2, 1, 2), known(2), kSettle);
  BackEvent inside = at_work(1, 0, 2, 0);
  inside.closed = true;
  s.hosts({{"a", 2}}).back(1, inside);
  EXPECT_TRUE(s.wait(2).latest.empty());
  EXPECT_EQ(s.link(1, 1, "connection reset").stopped(), Ids{2});
}

TEST(TakingOver, OfASilentDriverWorkersLearnLate) {
  Script s(sizes(2, 1, 2), known(2), kSettle);
  BackEvent silent = after_a_loss(1, 0, 2, 0);
  silent.closed = false;
  s.hosts({{"a", 2}}).back(1, silent);
  EXPECT_TRUE(s.wait(2.9).latest.empty());
  EXPECT_EQ(s.wait(0.2).stopped(), Ids{2});
}

TEST(TakingOver, WhoseProcessRunsIsWaitedForWhateverItsPeersSay) {
  Script s(sizes(3, 1, 3), known(3), kSettle);
  s.membership.worker_runs(3);
  s.hosts({{"a", 3}}).back(1, after_a_loss(1, 0, 3, 0));
  EXPECT_TRUE(s.wait(4.9).latest.empty());
  EXPECT_EQ(s.wait(0.2).stopped(), (Ids{2, 3}));
  // Until its end is known.
  Script ended(sizes(3, 1, 3), known(3), kSettle);
  ended.membership.worker_runs(3);
  ended.hosts({{"a", 3}}).back(1, after_a_loss(1, 0, 3, 0)).wait(2);
  EXPECT_EQ(ended.lost(3, LossKind::kExited).stopped(), Ids{2});
}

TEST(TakingOver, ALinkToAMemberThatIsBackTellsOfNoLoss) {
  Script s(sizes(3, 1, 3), known(3), kSettle);
  s.hosts({{"a", 3}}).back(1, after_a_loss(1, 0, 3, 0));
  s.back(2, after_a_loss(-1, 1, 3, 1));
  EXPECT_TRUE(s.wait(4.9).latest.empty());
  EXPECT_EQ(s.wait(0.2).stopped(), Ids{3});
}

TEST(TakingOver, NobodyIsStartedWhileMembersAreWaitedFor) {
  Script s(sizes(2, 1, 3), known(2), kSettle);
  EXPECT_TRUE(s.hosts({{"a", 3}}).none<StartWorker>());
  EXPECT_TRUE(s.back(1, at_work(1, 0, 2, 0)).none<StartWorker>());
  // And then with a number that the driver before cannot have used.
  EXPECT_EQ(s.back(2, at_work(1, 1, 2, 1)).started(), Names{"1000@a:2"});
}

TEST(TakingOver, WhoClaimsASeatThatIsNotItsOwnIsStopped) {
  for (const auto& [rank, size] : {std::pair{0, 2}, std::pair{1, 3}}) {  // another's; in another generation 1
    Script s(sizes(2, 1, 2), known(2), kSettle);
    s.hosts({{"a", 2}}).back(1, at_work(1, 0, 2, 0));
    EXPECT_EQ(s.back(2, at_work(1, rank, size, 1)).stopped(), Ids{2});
    EXPECT_EQ(s.membership.rank_of(1), 0);
  }
  // Of a generation that its members alone tell of, the first to come has its seat.
  Script s(sizes(2, 1, 2), known(2, false), kSettle);
  s.hosts({{"a", 2}}).back(1, at_work(2, 0, 2, 0));
  EXPECT_EQ(s.back(2, at_work(2, 0, 2, 1)).stopped(), Ids{2});
}

TEST(TakingOver, ARankOutsideItsGenerationIsRefused) {
  for (const int32_t rank : {-1, 2}) {
    Script s(sizes(2, 1, 2), known(2), kSettle);
    s.hosts({{"a", 2}});
    EXPECT_EQ(s.back(2, at_work(1, rank, 2, 1)).one<Refuse>().worker, 2u);
    EXPECT_TRUE(s.membership.gathering());
  }
}

TEST(TakingOver, ANewerGenerationIsWhatItsMembersSay) {
  Script s(sizes(2, 1, 2), known(2, false), kSettle);
  s.hosts({{"a", 2}}).back(2, at_work(3, 0, 2, 1));
  EXPECT_EQ(s.membership.generation(), 3u);
  EXPECT_TRUE(s.membership.gathering());
  EXPECT_FALSE(s.back(1, at_work(3, 1, 2, 0)).membership.gathering());
  EXPECT_EQ(s.membership.rank_of(2), 0);
  EXPECT_EQ(s.membership.size(), 2);
}

TEST(TakingOver, ANewerGenerationIsNotBelievedOnceThisOneGoesOn) {
  KnownJob job = known(1, false);
  job.workers.push_back({2, "a", 1, false, false, false, std::nullopt, ""});  // it waits for its place
  Script s(sizes(2, 1, 2), job, kSettle);
  s.hosts({{"a", 2}});
  EXPECT_FALSE(s.back(1, at_work(1, 0, 1, 0)).membership.gathering());
  // An older driver that lives has given it one.
  EXPECT_EQ(s.back(2, at_work(2, 0, 2, 1)).one<Refuse>().worker, 2u);
  EXPECT_EQ(s.membership.generation(), 1u);
  EXPECT_EQ(s.membership.rank_of(1), 0);
}

TEST(TakingOver, WhoHasLeftAnUntoldGenerationMayNotKnowTheNext) {
  Script s(sizes(2, 1, 2), known(2, false), kSettle);
  s.hosts({{"a", 2}}).back(1, at_work(1, 0, 2, 0));
  BackEvent left = at_work(1, 1, 2, 1);
  left.left = true;
  EXPECT_TRUE(s.back(2, left).membership.gathering());
  EXPECT_FALSE(s.wait(5.1).membership.gathering());
  // By a journal of which nothing can be missing it is known at once.
  Script told(sizes(2, 1, 2), known(2), kSettle);
  told.hosts({{"a", 2}}).back(1, at_work(1, 0, 2, 0));
  EXPECT_FALSE(told.back(2, left).membership.gathering());
}

TEST(TakingOver, WhoIsInAnOlderGenerationNeverLearntOfItsPlace) {
  // The generation is told by who comes later, or by the journal.
  Script later(sizes(2, 1, 2), known(2, false), kSettle);
  later.hosts({{"a", 2}}).back(1, at_work(1, 0, 2, 0));
  later.back(2, at_work(2, 1, 2, 1));
  later.wait(5.1);
  EXPECT_EQ(later.one<Abort>().to, Ids{2});
  KnownJob job = known(2);
  job.generation = 2;
  Script before(sizes(2, 1, 2), job, kSettle);
  before.hosts({{"a", 2}}).back(2, at_work(2, 1, 2, 1));
  const auto aborts = before.back(1, at_work(1, 0, 2, 0)).all<Abort>();
  ASSERT_EQ(aborts.size(), 2u);  // of the generation that can't go on, and of the one that is over
  EXPECT_EQ(aborts[0].generation, 2u);
  EXPECT_EQ(aborts[0].to.back(), 2u);
  EXPECT_EQ(aborts[1].generation, 1u);
  EXPECT_EQ(aborts[1].to, Ids{1});
}

TEST(TakingOver, WhoIsDoneTellsOfItsGenerationAsWell) {
  KnownJob job = known(1, false);
  job.done = {2};
  Script s(sizes(2, 1, 2), job, kSettle);
  s.hosts({{"a", 2}}).back(2, at_work(4, 1, 2, 1));
  EXPECT_EQ(s.membership.generation(), 4u);
  EXPECT_FALSE(s.back(1, at_work(4, 0, 2, 0)).membership.gathering());
  EXPECT_TRUE(s.done(1).one<Finish>().success);
}

TEST(TakingOver, OnlyTheOnesThatAreLeftOfAJobThatEndsAreWaitedFor) {
  KnownJob job = known(2);
  job.members = {1, 2};
  job.workers.pop_back();
  job.done = {2};
  Script s(sizes(2, 1, 2), job, kSettle);
  s.hosts({{"a", 2}});
  EXPECT_FALSE(s.wait(5.1).one<Finish>().sentence.empty());  // and the last one never came
}

TEST(TakingOver, WhatIsNotWholeStaysSoForTheNextDriver) {
  Script s(sizes(2, 1, 2), known(2, false), kSettle);
  s.hosts({{"a", 2}});
  EXPECT_FALSE(s.membership.known().told);
  s.back(1, at_work(1, 0, 2, 0));
  EXPECT_FALSE(s.membership.known().told);
}

TEST(TakingOver, AJobOfWhichNobodyIsLeftFails) {
  Script s(sizes(2, 1, 2), known(2), kSettle);
  s.hosts({{"a", 2}});
  EXPECT_FALSE(s.wait(5.1).one<Finish>().success);
  EXPECT_TRUE(s.none<StartWorker>());
}

TEST(TakingOver, WhatAMemberHasHeardOfHostsIsNotTakenBack) {
  Script s(sizes(2, 1, 2), known(2), kSettle);
  s.hosts({{"a", 2}});
  BackEvent heard = at_work(1, 0, 2, 0);
  heard.epoch = 7;
  s.back(1, heard);
  s.back(2, at_work(1, 1, 2, 1));
  EXPECT_GE(s.membership.epoch(), 7u);
}

}  // namespace
}  // namespace hvd::membership::test
