// Workers that lie about the job when they come back, to their driver or to one that takes over: the liar is
// refused, and nobody else pays (contract 11, 14).
#include <limits>

#include "membership/journal.h"
#include "membership/script.h"

namespace hvd::membership::test {
namespace {

constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();

/// Workers 1 and 2 run in generation 1; worker 3 was started and has not come yet.
Script job() {
  Script s(sizes(2, 1, 3));
  s.hosts({{"a", 2}});
  s.ready(1).ready(2).all_synced({1, 2});
  s.hosts({{"a", 2}, {"b", 1}});
  return s;
}

BackEvent member(const Script& s, uint64_t worker) {
  BackEvent event;
  event.generation = s.membership.generation();
  event.rank = s.membership.rank_of(worker);
  event.size = s.membership.size();
  event.synced = event.has_state = true;
  event.epoch = s.membership.epoch();
  event.slot_host = "a";
  event.slot = event.rank;
  return event;
}

BackEvent newcomer() {
  BackEvent event;
  event.slot_host = "b";
  return event;
}

/// The next driver, with a journal that is whole or not.
Script taken_over(const Script& before, bool whole) {
  KnownJob known = before.membership.known();
  known.told = whole;
  return {sizes(2, 1, 3), known, Settle{seconds(10), seconds(2), seconds(7)}};
}

void expect_refused(const Script& s, uint64_t worker, const std::string& part) {
  const Refuse refused = s.one<Refuse>();
  EXPECT_EQ(refused.worker, worker);
  EXPECT_NE(refused.reason.find(part), std::string::npos) << refused.reason;
}

TEST(Liars, NobodyKnowsANewerEpochThanTheOnlyDriver) {
  Script s = job();
  const uint64_t epoch = s.membership.epoch();
  BackEvent lie = member(s, 2);
  lie.epoch = epoch + 1;
  s.back(2, lie);
  expect_refused(s, 2, "worker 2 says that it knows epoch " + std::to_string(epoch + 1));
  EXPECT_EQ(s.membership.epoch(), epoch);
  s.back(1, member(s, 1));
  EXPECT_TRUE(s.none<Refuse>());
}

TEST(Liars, NobodyIsInANewerGenerationThanAWholeJournal) {
  Script s = taken_over(job(), true);
  BackEvent lie = member(s, 2);
  ++lie.generation;
  lie.rank = 0;
  lie.size = 1;
  s.back(2, lie);
  expect_refused(s, 2, "worker 2 says that it is in generation 2, but the newest is 1");
  EXPECT_EQ(s.membership.generation(), 1u);
  s.back(1, member(s, 1));
  EXPECT_TRUE(s.none<Abort>());
}

TEST(Liars, WhatAJournalHasLostIsNotEverything) {
  const Script before = job();
  for (const bool generation : {true, false}) {
    Script s = taken_over(before, false);
    BackEvent lie = member(s, 2);
    (generation ? lie.generation : lie.epoch) = uint64_t{1} << 62;
    s.back(2, lie);
    expect_refused(s, 2, std::to_string(uint64_t{1} << 62));
    EXPECT_EQ(s.membership.generation(), 1u);
    EXPECT_EQ(s.membership.epoch(), before.membership.epoch());
  }
  Script s = taken_over(before, false);
  BackEvent newer = member(s, 2);
  newer.generation += 5;
  ++newer.epoch;
  s.back(2, newer);
  EXPECT_TRUE(s.none<Refuse>());
  EXPECT_EQ(s.membership.generation(), 6u);
}

TEST(Liars, ANewcomerDoesNotLeadTheGenerationAfterATakeover) {
  Script s = taken_over(job(), true);
  BackEvent lie = newcomer();
  lie.has_state = true;
  lie.revision = kMost;
  s.back(3, lie).back(1, member(s, 1)).back(2, member(s, 2));
  s.wait(0);
  s.ready(3, 0, true, kMost);
  s.wait(60);
  s.ready(1, 1, true, 7).ready(2, 1, true, 7);
  const Assign assign = s.one<Assign>();
  ASSERT_EQ(assign.members().size(), 3u);
  EXPECT_NE(assign.members().at(static_cast<size_t>(assign.root)).worker, 3u);
  EXPECT_FALSE(assign.members().at(2).has_state);
}

/// Three members in generation 1, synced at revision 5, who have lost the fourth.
Script losing_one() {
  Script s = running(sizes(4, 1, 4));
  s.ready(1, 1, true, 5).ready(2, 1, true, 5).ready(3, 1, true, 5).lost(4);
  s.all_synced({1, 2, 3}, 5);
  return s;
}

TEST(Liars, ARevisionThatNobodyComesToLeadsNoGeneration) {
  Script s = losing_one();
  ASSERT_EQ(s.membership.generation(), 2u);
  s.lost(3).ready(2, 2, true, kMost);
  EXPECT_NE(s.one<LogLine>().text.find("says that it holds revision 18446744073709551615"), std::string::npos)
      << s.one<LogLine>().text;
  s.ready(1, 2, true, 7);
  const Assign assign = s.one<Assign>();
  EXPECT_EQ(assign.members().at(static_cast<size_t>(assign.root)).worker, 1u);
  for (const Member& member : assign.members()) EXPECT_LE(member.revision, 7u) << member.worker;
}

TEST(Liars, NorDoesOneThatIsToldAsSynced) {
  Script s = running(sizes(4, 1, 4));
  s.ready(1, 1, true, 5).ready(2, 1, true, 5).ready(3, 1, true, 5).lost(4);
  s.synced(1, 5).synced(2, kMost).lost(3).ready(2, 2, true, kMost).ready(1, 2, true, 7);
  const Assign assign = s.one<Assign>();
  EXPECT_EQ(assign.members().at(static_cast<size_t>(assign.root)).worker, 1u);
}

// contract 5: saves ride on no collective, and a member commits while others have joined.
TEST(Liars, AMemberMayBeFarAheadOfAllOthers) {
  Script s = losing_one();
  s.lost(3).ready(1, 2, true, 5).ready(2, 2, true, 5 + (uint64_t{1} << 32));
  const Assign assign = s.one<Assign>();
  EXPECT_EQ(assign.members().at(static_cast<size_t>(assign.root)).worker, 2u);
  EXPECT_EQ(assign.members().at(static_cast<size_t>(assign.root)).revision, 5 + (uint64_t{1} << 32));
}

TEST(Liars, ARevisionThatNobodyComesToIsOneForTheNextDriverToo) {
  Script s = taken_over(job(), true);
  BackEvent lie = member(s, 2);
  lie.revision = kMost;
  lie.last = ReadyEvent{1, true, kMost, {}, ""};
  s.back(1, member(s, 1)).back(2, lie);
  s.wait(0);
  s.lost(3).link(1, 1, "reset").ready(2, 1, true, kMost).ready(1, 1, true, 7);
  const Assign assign = s.one<Assign>();
  EXPECT_EQ(assign.members().at(static_cast<size_t>(assign.root)).worker, 1u);
}

/// It was ready when its connection broke, and says another thing of itself when it is back.
TEST(Liars, ANewcomerThatComesBackHasNoMoreStateThanBefore) {
  Script s = job();
  s.ready_with(3, ReadyEvent{0, false, 0, {}, ""});
  BackEvent lie = newcomer();
  lie.has_state = true;
  lie.last = ReadyEvent{0, true, kMost, {}, ""};
  s.back(3, lie);
  s.wait(60);
  s.ready(1, 1, true, 7).ready(2, 1, true, 7);
  const Assign assign = s.one<Assign>();
  ASSERT_EQ(assign.members().size(), 3u);
  EXPECT_FALSE(assign.members().at(2).has_state);
}

TEST(Liars, WhoIsReadyAgainAndAgainCausesFewDecisions) {
  Script s = job();
  const ReadyEvent honest{0, false, 0, {}, "b"};
  s.ready_with(3, honest);
  s.ready_with(3, honest);
  EXPECT_TRUE(s.latest.empty());
  int refused = 0;
  for (uint64_t i = 1; i <= 100; ++i) {
    ReadyEvent other = honest;
    other.revision = i;
    s.ready_with(3, other);
    for (const Refuse& refusal : s.all<Refuse>()) {
      EXPECT_EQ(refusal.worker, 3u);
      ++refused;
    }
  }
  EXPECT_EQ(refused, 84);
  s.ready_with(3, ReadyEvent{0, false, 16, {}, "b"});
  EXPECT_TRUE(s.none<Refuse>()) << "what was taken last may be repeated";
  s.wait(1);
  s.ready(1, 1, true, 7).ready(2, 1, true, 7);
  EXPECT_EQ(s.members(), (Ids{1, 2, 3}));
  s.lost(2).ready(3, 2, false, 1).ready(3, 2, false, 2);
  EXPECT_TRUE(s.none<Refuse>()) << "in the next generation it begins anew";
}

TEST(Liars, WhoLeavesSoonerAndSoonerFillsNeitherLogNorJournal) {
  Script s = running(sizes(3, 1, 3));
  std::vector<Record> records;
  s.membership.take_records(&records);
  size_t lines = 0, refused = 0, kept = 0;
  for (int i = 0; i < 10'000; ++i) {
    s.leaving(2, 36'000 - i);
    s.membership.take_records(&records);
    lines += s.all<LogLine>().size();
    refused += s.all<Refuse>().size();
    kept += records.size();
  }
  EXPECT_LE(lines, 16u);
  EXPECT_LE(kept, 20u);
  EXPECT_GT(refused, 9'000u);
  s.leaving(3, 600).leaving(3, 600);
  s.membership.take_records(&records);
  EXPECT_EQ(records.size(), 1u) << "the same again is nothing new";
  EXPECT_TRUE(s.latest.empty());
  s.leaving(3, 10);
  EXPECT_EQ(s.all<LogLine>().size(), 1u) << "sooner is";
}

/// Whether a slot of the host that the newcomers are on gets another worker, after so many were sent away.
void send_newcomers_away(Script* s, const std::vector<uint64_t>& accusers, int times) {
  uint64_t newcomer = 4;
  for (int i = 0; i < times; ++i, ++newcomer) {
    const uint64_t generation = s->membership.generation();
    s->ready(newcomer).wait(1);
    for (const uint64_t w : {1, 2, 3}) s->ready(w, generation, true, 5);
    ASSERT_EQ(s->membership.generation(), generation + 1);
    for (const uint64_t accuser : accusers) s->unfit(accuser, 3, "its address means nothing");
    ASSERT_FALSE(s->membership.expects(newcomer));
    for (const uint64_t w : {1, 2, 3}) s->ready(w, generation + 1, true, 5);
    s->all_synced({1, 2, 3}, 5).wait(60);
  }
}

TEST(Liars, OneMembersWordPutsNoHostOnTheBlocklist) {
  for (const bool confirmed : {false, true}) {
    Script s = running(sizes(3, 3, 4));
    s.hosts({{"a", 3}, {"b", 1}});
    send_newcomers_away(&s, confirmed ? std::vector<uint64_t>{2, 2, 3} : std::vector<uint64_t>{2, 2}, 3);
    EXPECT_EQ(s.membership.blocked_hosts(s.now), confirmed ? 1 : 0);
    EXPECT_EQ(s.membership.expects(7), !confirmed);
  }
}

}  // namespace
}  // namespace hvd::membership::test
