// Newcomers are sent away unless their backends, options and addresses fit the others' (contract 16).
#include "membership/script.h"

namespace hvd::membership::test {
namespace {

TEST(Fitting, ANewcomerThatDoesNotFitIsSentAwayAndTheJobGoesOn) {  // contract 16
  Script s = running(sizes(2, 1, 3));
  s.hosts({{"a", 2}, {"b", 1}}).ready(3);
  s.ready(1, 1, true, 5).ready(2, 1, true, 5);
  ASSERT_EQ(s.members(), (Ids{1, 2, 3}));
  s.unfit(2, 2, "backend other is not gloo");
  EXPECT_EQ(s.one<StopWorker>().worker, 3u);
  EXPECT_EQ(s.one<StopWorker>().reason,
            "does not fit the other workers: backend other is not gloo (as rank 1 (worker 2 on a) says)");
  EXPECT_EQ(s.one<Abort>().to, (Ids{1, 2}));
  EXPECT_NE(s.one<Abort>().reason.find("rank 2 (worker 3 on b) lost: does not fit"), std::string::npos);
  s.unfit(1, 2, "backend other is not gloo");  // the second to say so finds it gone
  EXPECT_TRUE(s.none<StopWorker>());
  s.ready(1, 2, true, 5).ready(2, 2, true, 5);
  EXPECT_EQ(s.members(), (Ids{1, 2}));
}

TEST(Fitting, ANewcomerThatDoesNotFitDoesNotCountTowardsTheResetLimit) {  // contract 16
  MembershipConfig config = sizes(2, 1, 3);
  config.reset_limit = 1;
  Script s = running(config);
  s.hosts({{"a", 2}, {"b", 1}}).ready(3);
  s.ready(1, 1, true, 5).ready(2, 1, true, 5);  // the one reset that there may be
  s.unfit(1, 2, "x").ready(1, 2, true, 5).ready(2, 2, true, 5);
  EXPECT_EQ(s.members(), (Ids{1, 2}));
  s.lost(2).ready(1, 3, true, 5);
  EXPECT_NE(s.one<Finish>().sentence.find("reset limit 1 exceeded"), std::string::npos);
}

TEST(Fitting, ANewcomerThatBlamesAMemberGoesItself) {  // contract 16
  Script s = running(sizes(2, 1, 3));
  s.hosts({{"a", 2}, {"b", 1}}).ready(3);
  s.ready(1, 1, true, 5).ready(2, 1, true, 5);
  EXPECT_EQ(s.unfit(3, 0, "backend gloo is not other").one<StopWorker>().worker, 3u);
}

TEST(Fitting, OfTwoThatAreNewTheLowerRankStays) {
  Script s(sizes(2, 1, 2));
  s.hosts({{"a", 2}}).ready(1).ready(2);
  EXPECT_EQ(s.unfit(2, 0, "x").one<StopWorker>().worker, 2u);
  EXPECT_EQ(s.ready(1, 1).wait(1000).membership.size(), 1);
}

TEST(Fitting, ThatAMemberDoesNotFitAfterAllIsABrokenLink) {
  Script s = running(sizes(2, 1, 2));
  s.unfit(1, 1, "x");
  EXPECT_TRUE(s.none<StopWorker>());
  EXPECT_EQ(s.one<Abort>().worker, 2u);
}

ReadyEvent offering(std::vector<Offer> offers, const std::string& local = "on") {
  ReadyEvent event;
  event.offers = std::move(offers);
  event.settings = {{"option local", local}};
  return event;
}

const Offer kGloo{"gloo", "", 1, 0xff, 0x3f, {1, 2}};
const Offer kNccl{"nccl", "", 2, 0xff, 0x3f, {3}};

/// Two members with these offers.
Script running_with(const ReadyEvent& offer, MembershipConfig config = sizes(2, 1, 3)) {
  Script s(config);
  s.hosts({{"a", 2}}).ready_with(1, offer).ready_with(2, offer);
  EXPECT_EQ(s.members(), (Ids{1, 2}));
  s.all_synced({1, 2}, 1).hosts({{"a", 2}, {"b", 1}});
  return s;
}

struct Newcomer {
  ReadyEvent brings;
  std::string why;  // "": it fits
};
class FittingNewcomer : public ::testing::TestWithParam<Newcomer> {};

TEST_P(FittingNewcomer, IsJudgedBeforeAnybodyIsInterrupted) {  // contract 16
  Script s = running_with(offering({kGloo, kNccl}));
  s.ready_with(3, GetParam().brings);
  EXPECT_TRUE(s.none<Abort>());
  EXPECT_TRUE(s.none<Assign>());
  if (GetParam().why.empty()) {
    EXPECT_TRUE(s.one<Notify>().interrupt);
    EXPECT_TRUE(s.stopped().empty());
    return;
  }
  EXPECT_EQ(s.one<StopWorker>().worker, 3u);
  EXPECT_EQ(s.one<StopWorker>().reason, "does not fit the other workers: " + GetParam().why);
  EXPECT_TRUE(s.none<Notify>()) << "nobody is interrupted";
  EXPECT_EQ(s.membership.size(), 2);
  // It counts against its host: the slot is used again after the back-off, the host blocked after three in a
  // row.
  s.wait(5);
  EXPECT_EQ(s.started(), Names{"4@b:0"});
  s.ready_with(4, GetParam().brings).wait(5);
  EXPECT_EQ(s.started(), Names{"5@b:0"});
  s.ready_with(5, GetParam().brings);
  EXPECT_EQ(s.membership.blocked_hosts(s.now), 1);
  EXPECT_EQ(s.membership.generation(), 1u);
}

INSTANTIATE_TEST_SUITE_P(
    Newcomers, FittingNewcomer,
    ::testing::Values(
        Newcomer{offering({kGloo, kNccl}), ""},
        Newcomer{offering({kGloo, kNccl, {"more", "", 4, 1, 1, {}}}), ""},
        Newcomer{offering({kGloo, kNccl}, "off"),
                 "option local is off, on the other workers on: expected the same everywhere"},
        Newcomer{offering({{"mpi", "", 1, 0xff, 0x3f, {}}, kNccl}),
                 "its backend for host memory is mpi, that of the other workers gloo: expected the "
                 "same everywhere (option backend)"},
        Newcomer{offering({}),
                 "its backend for host memory is none, that of the other workers gloo: expected the "
                 "same everywhere (option backend)"},
        Newcomer{offering({kGloo}),
                 "it leaves out backend nccl, which the other workers use (option backend)"},
        Newcomer{offering({kGloo, {"nccl", "no libnccl.so.2", 0, 0, 0, {}}}),
                 "it lacks backend nccl, which the other workers use: no libnccl.so.2"},
        Newcomer{offering({kGloo, {"nccl", "", 2, 0x7f, 0x3f, {3}}}),
                 "its backend nccl can do less than that of the other workers: memories 0x2, dtypes 0x7f, "
                 "collectives 0x3f, expected 0x2, 0xff, 0x3f"},
        Newcomer{offering({kGloo, {"nccl", "", 2, 0xff, 0x3f, std::vector<uint8_t>(3 << 20)}}),
                 "its addresses have 3145730 bytes: expected at most 2796202 in a generation of 3"}));

TEST(Fitting, WhatAMemberLacksANewcomerNeedNotBring) {
  Script s(sizes(2, 1, 3));
  s.hosts({{"a", 2}}).ready_with(1, offering({kGloo, kNccl})).ready_with(2, offering({kGloo}));
  ASSERT_EQ(s.members(), (Ids{1, 2}));
  s.all_synced({1, 2}, 1).hosts({{"a", 2}, {"b", 1}}).ready_with(3, offering({kGloo}));
  EXPECT_TRUE(s.one<Notify>().interrupt);
}

TEST(Fitting, OfThoseThatBeginTheMinorityIsSentAway) {
  Script s(sizes(3, 1, 3));
  s.hosts({{"a", 1}, {"b", 2}});
  s.ready_with(1, offering({kGloo}, "off")).ready_with(2, offering({kGloo})).ready_with(3, offering({kGloo}));
  EXPECT_EQ(s.stopped(), Ids{1});  // though it stands first
  EXPECT_TRUE(s.none<Assign>());
  s.wait(2);
  EXPECT_EQ(s.started(), Names{"4@a:0"});
  s.ready_with(4, offering({kGloo}));
  EXPECT_EQ(s.members(), (Ids{4, 2, 3}));
}

TEST(Fitting, OfAsManyTheFirstOnesBegin) {
  Script s(sizes(5, 1, 5));
  s.hosts({{"a", 5}});
  s.ready_with(1, offering({kGloo}, "off")).ready_with(2, offering({kGloo})).ready_with(3, offering({kGloo}));
  s.ready_with(4, offering({kGloo}, "other")).ready_with(5, offering({kGloo}, "other"));
  EXPECT_EQ(s.stopped(), (Ids{1, 4, 5}));
  for (const StopWorker& stop : s.all<StopWorker>())
    EXPECT_NE(stop.reason.find("on the other workers"), std::string::npos) << stop.reason;
}

/// Some minutes where each would be compared with each.
TEST(Fitting, ManyThatBeginAreSortedByWhatTheyBring) {
  constexpr int32_t kMany = 30'000;
  MembershipConfig config = sizes(kMany, 1, kMany);
  config.restart = false;
  Script s(config);
  s.hosts({{"a", kMany}});
  for (int32_t w = 1; w <= kMany; ++w)
    s.ready_with(static_cast<uint64_t>(w), offering({kGloo}, w == 7 ? "off" : "auto"));
  EXPECT_EQ(s.stopped(), Ids{7});
}

TEST(Fitting, OneThatWasReadyBeforeThereWereMembersIsJudgedWhenThereAre) {
  Script s(sizes(1, 1, 2));
  s.hosts({{"a", 2}}).ready_with(1, offering({kGloo}));
  ASSERT_EQ(s.members(), (Ids{1}));
  s.ready_with(2, offering({kGloo}, "off"));
  EXPECT_EQ(s.stopped(), Ids{2});
}

TEST(Fitting, NobodyMakesAnAssignmentTooLarge) {
  Script s(sizes(2, 1, 2));
  Offer large = kGloo;
  large.address.resize(size_t{5} << 20);
  s.hosts({{"a", 2}}).ready_with(1, offering({large})).ready_with(2, offering({kGloo}));
  EXPECT_EQ(s.stopped(), Ids{1});
}

}  // namespace
}  // namespace hvd::membership::test
