// The coordinator's decisions, one by one.
#include "collective/matcher.h"

#include <gtest/gtest.h>

#include <map>

#include "collective/calls.h"

namespace hvd::collective {
namespace {

using Type = Matcher::Action::Type;

Time at(int64_t s) { return Time{} + std::chrono::seconds(s); }

using testing::Call;
using testing::call;

Call allreduce(const std::string& name, std::vector<int64_t> shape, hvd_dtype dtype = HVD_DTYPE_FLOAT32,
               hvd_reduction reduction = HVD_REDUCTION_SUM) {
  return testing::allreduce_call(name, std::move(shape), dtype, reduction);
}

struct MatcherTest : ::testing::Test {
  MatcherConfig config() {
    MatcherConfig c;
    c.hosts = {"a", "a", "b"};
    c.stall_warning = seconds(60);
    return c;
  }
  Matcher matcher{config()};

  /// Outcomes by rank; fails if a rank gets two.
  std::map<int32_t, OutcomePtr> outcomes() {
    std::map<int32_t, OutcomePtr> result;
    for (auto& action : matcher.take()) {
      if (action.type != Type::kOutcome) continue;
      EXPECT_TRUE(result.emplace(action.rank, action.outcome).second);
    }
    return result;
  }
  /// All three ranks get this failure, with one message.
  void expect_failure(hvd_status code, const std::string& message) {
    const auto got = outcomes();
    ASSERT_EQ(got.size(), 3u);
    for (const auto& [rank, outcome] : got) {
      EXPECT_EQ(outcome->status.code, code);
      EXPECT_EQ(outcome->status.message, message) << "rank " << rank;
    }
    EXPECT_EQ(matcher.pending(), 0u);
  }
};

TEST_F(MatcherTest, RunsWhenAllHaveCalled) {
  matcher.request(2, allreduce("x", {3}), at(0));
  matcher.request(0, allreduce("x", {3}), at(1));
  EXPECT_TRUE(matcher.take().empty());
  EXPECT_EQ(matcher.missing("x"), std::vector<int32_t>{1});
  matcher.request(1, allreduce("x", {3}), at(2));
  const auto got = outcomes();
  ASSERT_EQ(got.size(), 3u);
  for (const auto& [rank, outcome] : got) {
    EXPECT_TRUE(outcome->status.ok());
    EXPECT_EQ(outcome->sequence, 1u);
  }
}

TEST_F(MatcherTest, OrderIsTheSameForAll) {
  for (const char* name : {"x", "y"}) matcher.request(0, allreduce(name, {1}), at(0));
  for (const char* name : {"y", "x"}) matcher.request(1, allreduce(name, {1}), at(0));
  for (const char* name : {"y", "x"}) matcher.request(2, allreduce(name, {1}), at(0));
  std::map<int32_t, std::vector<uint64_t>> order;
  for (const auto& action : matcher.take()) order[action.rank].push_back(action.outcome->sequence);
  for (int32_t r = 0; r < 3; ++r) EXPECT_EQ(order[r], (std::vector<uint64_t>{1, 2}));
}

// Contract 9: the same message on every rank, naming ranks and values.
TEST_F(MatcherTest, ShapeMismatch) {
  matcher.request(0, allreduce("loss", {3}), at(0));
  matcher.request(2, allreduce("loss", {4}), at(0));
  EXPECT_TRUE(matcher.take().empty()) << "all shall get it, so all must have come";
  matcher.request(1, allreduce("loss", {3}), at(0));
  expect_failure(HVD_MISMATCH,
                 "allreduce 'loss': shape [3] on ranks 0 (host a), 1 (host a), [4] on rank 2 (host b)");
}

TEST_F(MatcherTest, DtypeReductionRootKindVariablesMismatch) {
  matcher.request(0, allreduce("m", {3}), at(0));
  matcher.request(1, allreduce("m", {3}, HVD_DTYPE_FLOAT64), at(0));
  matcher.request(2, allreduce("m", {3}), at(0));
  expect_failure(HVD_MISMATCH,
                 "allreduce 'm': dtype float32 on ranks 0 (host a), 2 (host b), float64 on rank 1 (host a)");
  matcher.request(0, allreduce("m", {3}), at(0));
  matcher.request(1, allreduce("m", {3}, HVD_DTYPE_FLOAT32, HVD_REDUCTION_MAX), at(0));
  matcher.request(2, allreduce("m", {3}), at(0));
  expect_failure(HVD_MISMATCH,
                 "allreduce 'm': reduction sum on ranks 0 (host a), 2 (host b), max on rank 1 (host a)");
  for (int32_t r = 0; r < 3; ++r) {
    Call b = call("m", Kind::kBroadcast);
    b.specs = {{HVD_DTYPE_UINT8, {2}}};
    b.root = r == 1 ? 1 : 0;
    matcher.request(r, b, at(0));
  }
  expect_failure(HVD_MISMATCH, "broadcast 'm': root 0 on ranks 0 (host a), 2 (host b), 1 on rank 1 (host a)");
  matcher.request(0, call("m"), at(0));
  matcher.request(1, call("m"), at(0));
  matcher.request(2, allreduce("m", {3}), at(0));
  expect_failure(HVD_MISMATCH, "'m': barrier on ranks 0 (host a), 1 (host a), allreduce on rank 2 (host b)");
  for (int32_t r = 0; r < 3; ++r) {
    Call v = call("m", Kind::kBroadcast);
    v.specs = {{HVD_DTYPE_UINT8, {2}}, {HVD_DTYPE_UINT8, {r == 2 ? 5 : 4}}};
    matcher.request(r, v, at(0));
  }
  expect_failure(
      HVD_MISMATCH,
      "broadcast 'm': shape of tensor 1 [4] on ranks 0 (host a), 1 (host a), [5] on rank 2 (host b)");
}

TEST_F(MatcherTest, AllgatherTellsAllRows) {
  for (int32_t r = 0; r < 3; ++r) {
    Call g = call("g", Kind::kAllgather);
    g.specs = {{HVD_DTYPE_INT32, {r, 2}}};
    matcher.request(r, g, at(0));
  }
  for (const auto& [rank, outcome] : outcomes()) EXPECT_EQ(outcome->rows, (std::vector<int64_t>{0, 1, 2}));
  for (int32_t r = 0; r < 3; ++r) {
    Call g = call("g", Kind::kAllgather);
    g.specs = {{HVD_DTYPE_INT32, {r, r == 0 ? 7 : 2}}};
    matcher.request(r, g, at(0));
  }
  expect_failure(HVD_MISMATCH,
                 "allgather 'g': shape [*, 7] on rank 0 (host a), [*, 2] on ranks 1 (host a), 2 (host b)");
  for (int32_t r = 0; r < 3; ++r) {
    Call g = call("g", Kind::kAllgather);
    g.specs = {{HVD_DTYPE_UINT8, {int64_t{1} << 62}}};
    matcher.request(r, g, at(0));
  }
  for (const auto& [rank, outcome] : outcomes()) EXPECT_EQ(outcome->status.code, HVD_INVALID);
}

// Contract 12: whoever waits is told for whom.
TEST_F(MatcherTest, TimeoutNamesTheMissingAndAnswersThemOnce) {
  Call hasty = allreduce("loss", {3});
  hasty.timeout = seconds(10);
  matcher.request(0, allreduce("loss", {3}), at(0));
  matcher.request(1, hasty, at(1));
  EXPECT_LE(matcher.wake(), at(11));
  matcher.tick(at(10));
  EXPECT_TRUE(outcomes().empty());
  matcher.tick(at(11));
  auto got = outcomes();
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0]->status.code, HVD_TIMEOUT);
  EXPECT_EQ(got[0]->status.message, "allreduce 'loss': rank 2 (host b) has not called it within 11 s");
  EXPECT_EQ(got[0]->status.rank, 2);
  EXPECT_EQ(got[0], got[1]);
  EXPECT_EQ(matcher.wake(), Time::max()) << "nothing waits, nothing to wake up for";
  matcher.request(2, allreduce("loss", {3}), at(20));
  const auto late = outcomes();
  ASSERT_EQ(late.size(), 1u);
  EXPECT_EQ(late.at(2), got[0]);
  for (int32_t r = 2; r >= 0; --r) matcher.request(r, allreduce("loss", {3}), at(21));
  got = outcomes();
  ASSERT_EQ(got.size(), 3u) << "the name is free again";
  EXPECT_TRUE(got[2]->status.ok());
}

TEST_F(MatcherTest, MismatchIsSaidAtTheTimeoutIfNotAllCome) {
  matcher.request(0, allreduce("loss", {3}), at(0));
  matcher.request(1, allreduce("loss", {4}), at(0));
  matcher.tick(at(600));
  const auto got = outcomes();
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got.at(0)->status.code, HVD_MISMATCH);
  EXPECT_EQ(got.at(1)->status.message,
            "allreduce 'loss': shape [3] on rank 0 (host a), [4] on rank 1 (host a)");
  matcher.request(2, allreduce("loss", {3}), at(601));
  EXPECT_EQ(outcomes().at(2), got.at(0));
}

// Contract 9: a wrong name is a mismatch, not a time-out.
TEST_F(MatcherTest, DifferentNamesAreAMismatch) {
  matcher.request(0, call("x"), at(0));
  matcher.request(1, call("x"), at(0));
  matcher.request(2, call("y"), at(5));
  matcher.tick(at(600));
  const std::string message =
      "every rank waits, but not for the same operation: rank 0 (host a) in 'x', rank 1 (host a) in 'x', rank 2 (host "
      "b) in 'y'";
  auto got = outcomes();
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0]->status.code, HVD_MISMATCH);
  EXPECT_EQ(got[0]->status.message, message);
  matcher.tick(at(605));
  got = outcomes();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[2]->status.message, message);
}

TEST_F(MatcherTest, ObjectAndWordComeWithTheOutcome) {
  for (int32_t r = 0; r < 3; ++r) {
    Call o = call("o", Kind::kBroadcastObject);
    o.root = 1;
    if (r == 1) o.bytes = {1, 2, 3};
    if (r == 1) o.object_size = 3;
    matcher.request(r, o, at(0));
  }
  for (const auto& [rank, outcome] : outcomes()) {
    EXPECT_EQ(outcome->payload, rank == 1 ? std::vector<uint8_t>() : (std::vector<uint8_t>{1, 2, 3}));
    EXPECT_EQ(outcome->object_size, 3u);
    EXPECT_EQ(outcome->sequence, 0u);
  }
  for (int32_t r = 0; r < 3; ++r) {
    Call a = call("epoch", Kind::kAgree);
    a.word = r == 1 ? 9 : 4;
    matcher.request(r, a, at(0));
  }
  const auto got = outcomes();
  ASSERT_EQ(got.size(), 3u);
  for (const auto& [rank, outcome] : got) EXPECT_EQ(outcome->word, 9u);
}

TEST_F(MatcherTest, TransferConcernsItsRanksOnly) {
  for (const int32_t r : {2, 0}) {
    Call t = call("t", Kind::kBroadcast);
    t.specs = {{HVD_DTYPE_UINT8, {100}}};
    t.members = {0, 2};
    matcher.request(r, t, at(0));
  }
  const auto got = outcomes();
  ASSERT_EQ(got.size(), 2u);
  EXPECT_GT(got.at(0)->sequence, 0u);
  // Ranks that disagree about who takes part.
  Call two = call("t", Kind::kBroadcast), three = two;
  two.specs = three.specs = {{HVD_DTYPE_UINT8, {100}}};
  two.members = {0, 2};
  three.members = {0, 1, 2};
  matcher.request(0, two, at(0));
  matcher.request(2, three, at(0));
  EXPECT_TRUE(outcomes().empty());
  matcher.request(1, three, at(0));
  expect_failure(
      HVD_MISMATCH,
      "broadcast 't': participants {0, 2} on rank 0 (host a), {0, 1, 2} on ranks 1 (host a), 2 (host b)");
}

TEST_F(MatcherTest, AFinishedRankIsNotWaitedFor) {
  matcher.request(0, call("x"), at(0));
  matcher.request(1, call("y"), at(0));
  matcher.finish(1);
  auto got = outcomes();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0]->status.code, HVD_PEER_LOST);
  EXPECT_EQ(got[0]->status.message, "rank 1 (host a) has finished and will not call 'x'");
  EXPECT_EQ(got[0]->status.rank, 1);
  matcher.request(2, call("x"), at(0));
  EXPECT_EQ(outcomes().at(2)->status.code, HVD_PEER_LOST);
  matcher.request(0, call("y"), at(0));
  matcher.request(2, call("y"), at(0));
  got = outcomes();
  ASSERT_EQ(got.size(), 3u) << "what it called before counts";
  EXPECT_TRUE(got[1]->status.ok());
  matcher.request(1, call("z"), at(0));
  const auto actions = matcher.take();
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].type, Type::kRefused);
  EXPECT_EQ(actions[0].rank, 1);
  EXPECT_EQ(matcher.pending(), 0u);
}

TEST_F(MatcherTest, RankZeroMayFinishAndGoOnCoordinating) {
  matcher.finish(0);
  Call t = call("t", Kind::kBroadcast);
  t.specs = {{HVD_DTYPE_UINT8, {1}}};
  t.root = 1;
  t.members = {1, 2};
  matcher.request(1, t, at(0));
  matcher.request(2, t, at(0));
  EXPECT_EQ(outcomes().size(), 2u);
}

TEST_F(MatcherTest, StallIsReportedOncePerDoubling) {
  matcher.request(0, call("x"), at(0));
  matcher.request(2, call("x"), at(5));
  std::vector<int64_t> reported;
  for (int64_t s = 1; s < 600; ++s) {
    matcher.tick(at(s));
    for (const auto& action : matcher.take()) {
      if (action.type == Type::kStallReport) {
        reported.push_back(s);
        EXPECT_NE(action.line.find("barrier 'x': rank 1 (host a) has not called it for"), std::string::npos)
            << action.line;
      }
      if (action.type != Type::kStall) continue;
      EXPECT_EQ(action.missing, std::vector<int32_t>{1});
    }
  }
  EXPECT_EQ(reported, (std::vector<int64_t>{60, 120, 240, 480}));
}

// A rank that lies must not fill rank 0's memory.
TEST_F(MatcherTest, WhatARankHasUnderWayIsBounded) {
  MatcherConfig few = config();
  few.most_under_way = 100;
  Matcher matcher(few);
  const auto broken_by = [&] {
    std::vector<std::pair<int32_t, std::string>> all;
    for (const auto& action : matcher.take()) {
      if (action.type == Type::kBreak) all.emplace_back(action.rank, action.line);
    }
    return all;
  };
  for (size_t i = 0; i < 200; ++i) matcher.request(1, call(std::to_string(i)), at(0));
  EXPECT_TRUE(broken_by().empty());
  const size_t pending = matcher.pending();
  matcher.request(1, call("one more"), at(0));
  EXPECT_EQ(matcher.pending(), pending);
  auto broken = broken_by();
  ASSERT_EQ(broken.size(), 1U);
  EXPECT_EQ(broken[0].first, 1);
  EXPECT_EQ(broken[0].second,
            "rank 1 (host a) has 200 operations under way and begins another: expected at most 200");
  matcher.request(2, call("another's"), at(0));
  EXPECT_TRUE(broken_by().empty());
  matcher.tick(at(601));  // their deadline
  matcher.take();
  EXPECT_EQ(matcher.pending(), 0U);
  matcher.request(1, call("and again"), at(602));
  EXPECT_TRUE(broken_by().empty());
}

TEST_F(MatcherTest, WhatARankHasUnderWayIsBoundedInBytes) {
  const auto heavy = [](const std::string& name) {
    Request request = call(name);
    auto signature = std::make_shared<Signature>(*request.call);
    signature->weight = size_t{100} << 20;
    request.call = std::move(signature);
    return request;
  };
  for (int i = 0; i < 50; ++i) {  // what all have called counts no more
    for (int32_t r = 0; r < 3; ++r) matcher.request(r, heavy("x"), at(0));
  }
  for (int i = 0; i < 50; ++i) matcher.request(1, heavy("again"), at(0));  // nor what was given up
  for (const auto& action : matcher.take()) EXPECT_EQ(action.type, Type::kOutcome);
  for (int i = 0; i < 10; ++i) matcher.request(1, heavy(std::to_string(i)), at(0));
  EXPECT_TRUE(matcher.take().empty());
  matcher.request(1, heavy("one more"), at(0));
  const auto actions = matcher.take();
  ASSERT_EQ(actions.size(), 1U);
  EXPECT_EQ(actions[0].type, Type::kBreak);
  EXPECT_EQ(actions[0].rank, 1);
  EXPECT_NE(actions[0].line.find("rank 1 (host a) has operations of 11534"), std::string::npos)
      << actions[0].line;
}

// A rank opens operations that all others have to call: rank 0 keeps an entry for each of these.
TEST_F(MatcherTest, WhatARankHasUnderWayIncludesTheEntriesOfOthers) {
  MatcherConfig large = config();
  large.hosts.assign(1000, "a");
  Matcher matcher(large);
  const auto fill = [&](int32_t rank) {  // but for 400,000 bytes
    Request request = call("large of " + std::to_string(rank));
    auto signature = std::make_shared<Signature>(*request.call);
    signature->weight = (size_t{1} << 30) - 400'000;
    request.call = std::move(signature);
    matcher.request(rank, std::move(request), at(0));
  };
  fill(1);
  fill(2);
  int opened = 0;
  while (matcher.take().empty() && opened < 1000) {
    matcher.request(1, call("n" + std::to_string(opened++)), at(0));
  }
  EXPECT_LT(opened, 100) << "4,000 bytes and more each";
  for (int i = 0; i < opened - 1; ++i) matcher.request(2, call("n" + std::to_string(i)), at(0));
  EXPECT_TRUE(matcher.take().empty()) << "they are in the share of the rank that came first";
  matcher.tick(at(600));  // their deadline
  matcher.take();
  for (int i = 0; i < 1000; ++i) matcher.request(1, call("m" + std::to_string(i)), at(601));
  EXPECT_TRUE(matcher.take().empty()) << "and gone with them";
}

TEST_F(MatcherTest, HeldUpIsNobodysDelay) {
  matcher.request(0, call("x"), at(0));
  matcher.held_up(seconds(1000));
  EXPECT_EQ(matcher.wake(), at(1060));  // its stall report
  matcher.tick(at(1059));
  EXPECT_TRUE(matcher.take().empty());
  matcher.tick(at(1599));
  for (const auto& action : matcher.take()) EXPECT_NE(action.type, Type::kOutcome);
  matcher.tick(at(1600));
  EXPECT_EQ(outcomes().at(0)->status.message,
            "barrier 'x': ranks 1 (host a), 2 (host b) have not called it within 600 s");
}

TEST_F(MatcherTest, TombstonesAreBounded) {
  for (int i = 0; i < 1500; ++i) matcher.request(0, call("n" + std::to_string(i)), at(0));
  matcher.tick(at(600));
  EXPECT_EQ(matcher.take().size(), 1500u);
  size_t answered = 0;
  for (int i = 0; i < 1500; ++i) {
    matcher.request(1, call("n" + std::to_string(i)), at(601));
    answered += matcher.take().size();
  }
  EXPECT_EQ(answered, 1024u) << "the oldest are forgotten and wait like a first call";
}

TEST_F(MatcherTest, TombstonesAreBoundedInBytes) {
  std::vector<int> answered{0, 0};
  for (int round = 0; round < 2; ++round) {
    const auto name = [&](int i) { return std::string(500, round == 0 ? 'a' : 'b') + std::to_string(i); };
    const int64_t start = round * 10'000;
    for (int i = 0; i < 1000; ++i) matcher.request(0, call(name(i)), at(start));
    matcher.tick(at(start + 600));
    matcher.take();
    for (int i = 999; i >= 0; --i) {  // the newest first
      matcher.request(1, call(name(i)), at(start + 601));
      if (matcher.take().empty()) break;
      ++answered[static_cast<size_t>(round)];
    }
  }
  EXPECT_GT(answered[0], 150);
  EXPECT_LT(answered[0], 262) << "256 KiB, of a name of 500 bytes and a message with it";
  EXPECT_NEAR(answered[1], answered[0], 1) << "what was answered counts no more";
}

}  // namespace
}  // namespace hvd::collective
