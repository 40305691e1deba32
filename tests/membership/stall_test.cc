// A worker that lives and does not come to an operation: F7.
#include "membership/script.h"

namespace hvd::membership::test {
namespace {

Script job(double stall_shutdown, int32_t min_np = 1) {
  MembershipConfig config = sizes(3, min_np, 3);
  config.stall_shutdown = seconds(stall_shutdown);
  return running(config);
}

TEST(Stall, IsAWarningAndNothingElseByDefault) {
  Script s = job(0);
  s.stalled(1, {2}, 3600);
  ASSERT_EQ(s.latest.size(), 1u);
  EXPECT_EQ(s.one<LogLine>().level, HVD_LOG_WARNING);
  EXPECT_EQ(s.one<LogLine>().text, "'loss' waits");
  EXPECT_EQ(s.membership.stall(), "'loss' waits");
  EXPECT_EQ(s.membership.size(), 3);
}

TEST(Stall, EvictsWhoDoesNotComeWhereThatIsSwitchedOn) {
  Script s = job(60);
  EXPECT_TRUE(s.stalled(1, {2}, 59).none<StopWorker>());
  s.stalled(1, {2}, 60);
  EXPECT_EQ(s.stopped(), Ids{3});
  EXPECT_NE(s.one<StopWorker>().reason.find("'loss' waits"), std::string::npos) << s.one<StopWorker>().reason;
  const Abort abort = s.one<Abort>();
  EXPECT_EQ(abort.rank, 2);
  EXPECT_EQ(abort.to, (Ids{1, 2}));
  EXPECT_NE(abort.reason.find("evicted: others waited 60.0 s for it (stall_shutdown is 60 s)"),
            std::string::npos)
      << abort.reason;
  EXPECT_EQ(s.membership.stall(), "");
  EXPECT_FALSE(s.membership.expects(3));
  s.ready(1, 1, true, 5);
  EXPECT_EQ(s.ready(2, 1, true, 5).members(), (Ids{1, 2}));
}

TEST(Stall, MayEvictRankZero) {
  Script s = job(60);
  s.stalled(1, {0}, 61);
  EXPECT_EQ(s.stopped(), Ids{1});
  EXPECT_EQ(s.one<Abort>().to, (Ids{2, 3}));
}

TEST(Stall, EvictsSeveralAtOnce) {
  Script s = job(60);
  s.stalled(1, {1, 2}, 61);
  EXPECT_EQ(s.stopped(), (Ids{2, 3}));
  EXPECT_EQ(s.all<Abort>().size(), 1u);
  EXPECT_EQ(s.ready(1, 1, true, 5).members(), Ids{1});
}

TEST(Stall, OfAllWhoHoldStateEndsTheJob) {
  Script s = job(60);
  s.stalled(1, {0, 1, 2}, 61);
  const Finish end = s.one<Finish>();
  EXPECT_FALSE(end.success);
  EXPECT_NE(end.sentence.find("all workers failed"), std::string::npos) << end.sentence;
}

TEST(Stall, LateReportsBlameNobody) {  // contract 11
  Script s = job(60);
  s.lost(2);
  EXPECT_TRUE(s.stalled(1, {2}, 61).latest.empty()) << "the generation is lost already";
  s.ready(1, 1, true, 5).ready(3, 1, true, 5);
  ASSERT_EQ(s.membership.generation(), 2u);
  const StallEvent late{"'loss' waits", {1}, seconds(61)};
  const auto actions = s.membership.worker_stalled(1, 1, late, s.now);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<Refuse>(actions[0]));
  EXPECT_TRUE(s.stalled(2, {1}, 61).none<StopWorker>()) << "of a worker that is lost";
}

TEST(Stall, IsForRankZeroToTellAndAboutRanksThatExist) {
  Script s = job(60);
  EXPECT_EQ(s.stalled(2, {2}, 61).all<Refuse>().size(), 1u);
  for (const int32_t rank : {-1, 3, 1000000}) {
    s.stalled(1, {2, rank}, 61);
    ASSERT_EQ(s.latest.size(), 1u) << rank;
    EXPECT_EQ(s.all<Refuse>().size(), 1u) << rank;
  }
  EXPECT_EQ(s.membership.stall(), "");
  EXPECT_EQ(s.membership.size(), 3);
}

}  // namespace
}  // namespace hvd::membership::test
