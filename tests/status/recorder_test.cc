// What is remembered of a job: goodput, rates, recoveries, stalls.
#include "status/recorder.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace hvd::status {
namespace {

Time at(double s) { return Time{} + seconds(1000 + s); }

Progress made(uint64_t commits, double useful, double commit = 0, uint64_t bytes = 0) {
  return {commits, seconds(useful), seconds(commit), bytes};
}

Recovery recovery(double total, double sync) {
  Recovery r;
  r.phases[static_cast<size_t>(Phase::kTotal)] = seconds(total);
  r.phases[static_cast<size_t>(Phase::kSync)] = seconds(sync);
  r.attempts = 1;
  return r;
}

Snapshot told(const Recorder& recorder, double now, std::vector<uint64_t> members = {}) {
  Snapshot s;
  for (const uint64_t id : members) {
    WorkerView view;
    view.id = id;
    view.rank = static_cast<int32_t>(id);
    s.all.push_back(view);
  }
  recorder.fill(&s, at(now));
  return s;
}

TEST(Recorder, KnowsNoGoodputBeforeSomebodyTells) {
  Recorder recorder(at(0));
  recorder.formed(1, {1, 2}, "", at(1));
  EXPECT_LT(told(recorder, 5).goodput(), 0);
}

TEST(Recorder, GoodputIsTheMembersMeanUsefulTimeOverWallTime) {
  Recorder recorder(at(0));
  recorder.formed(1, {1, 2}, "", at(2));
  recorder.progress(1, made(8, 8), at(10));
  recorder.progress(2, made(8, 8), at(10));
  EXPECT_DOUBLE_EQ(told(recorder, 10).goodput(), 0.8);
  // One dies: what the other keeps counts for all of the job.
  recorder.lost(1, at(10));
  recorder.gone(2);
  recorder.formed(2, {1}, "rank 1 lost", at(12));
  recorder.progress(1, made(16, 16), at(20));
  EXPECT_DOUBLE_EQ(told(recorder, 20).goodput(), 0.8);
  recorder.ended(at(20));
  EXPECT_DOUBLE_EQ(told(recorder, 1000).goodput(), 0.8) << "the wall stands when the job has ended";
}

TEST(Recorder, ProgressThatFallsIsIgnored) {
  Recorder recorder(at(0));
  recorder.formed(1, {1}, "", at(0));
  recorder.progress(1, made(5, 5, 1, 100), at(10));
  recorder.progress(1, made(3, 9, 9, 900), at(11));
  const Snapshot s = told(recorder, 10);
  EXPECT_DOUBLE_EQ(s.goodput(), 0.5);
  EXPECT_EQ(s.commits, 5u);
  EXPECT_EQ(s.sync_bytes, 100u);
  EXPECT_DOUBLE_EQ(s.commit_seconds, 1);
}

TEST(Recorder, OfWhoIsNoMemberNothingCounts) {
  Recorder recorder(at(0));
  recorder.progress(7, made(5, 5), at(1));
  EXPECT_LT(told(recorder, 10).goodput(), 0);
}

TEST(Recorder, TellsCommitsASecondAndForgetsThem) {
  Recorder recorder(at(0));
  recorder.formed(1, {1, 2}, "", at(0));
  for (int i = 0; i <= 10; ++i) {
    recorder.progress(1, made(static_cast<uint64_t>(i) * 4, i), at(i));
    recorder.progress(2, made(static_cast<uint64_t>(i) * 2, i), at(i));
  }
  Snapshot s = told(recorder, 10, {1, 2});
  EXPECT_NEAR(s.all[0].commits_per_second, 4, 0.01);
  EXPECT_NEAR(s.all[1].commits_per_second, 2, 0.01);
  EXPECT_NEAR(s.commits_per_second, 4, 0.01) << "of the fastest";
  EXPECT_LT(told(recorder, 100, {1}).all[0].commits_per_second, 0.5) << "it has told nothing for long";
}

TEST(Recorder, CountsResetsByTheirCause) {
  Recorder recorder(at(0));
  recorder.formed(1, {1}, "", at(0));
  recorder.formed(2, {1}, "", at(1));
  recorder.formed(3, {1}, "rank 0 lost", at(2));
  recorder.formed(4, {1}, "rank 0 lost", at(3));
  const Snapshot s = told(recorder, 5);
  EXPECT_EQ(s.resets_by_cause[static_cast<size_t>(Cause::kStart)], 0u);
  EXPECT_EQ(s.resets_by_cause[static_cast<size_t>(Cause::kHostsUpdated)], 1u);
  EXPECT_EQ(s.resets_by_cause[static_cast<size_t>(Cause::kPeerLost)], 2u);
  ASSERT_EQ(s.generations.size(), 4u);
  EXPECT_EQ(s.generations[0].ended, at(1));
  EXPECT_EQ(s.generations[3].ended, std::nullopt);
  EXPECT_EQ(s.generations[3].reason, "rank 0 lost");
}

TEST(Recorder, AGenerationsRecoveryIsTheSlowestMembers) {
  Recorder recorder(at(0));
  recorder.formed(1, {1, 2}, "", at(0));
  recorder.formed(2, {1, 2}, "rank 2 lost", at(1));
  recorder.recovered(1, 2, recovery(0.3, 0.1));
  recorder.recovered(2, 2, recovery(0.7, 0.2));
  const Snapshot s = told(recorder, 5, {1, 2});
  EXPECT_EQ(s.generations[1].reports, 2);
  EXPECT_EQ(s.last_recovery, seconds(0.7));
  const Histogram& total = s.recoveries[static_cast<size_t>(Phase::kTotal)];
  EXPECT_DOUBLE_EQ(total.sum, 1.0);
  EXPECT_EQ(total.counts[6], 1u) << "0.25 < 0.3 <= 0.5";
  EXPECT_EQ(total.counts[7], 1u) << "0.5 < 0.7 <= 1";
  ASSERT_TRUE(s.all[0].last);
  EXPECT_EQ(s.all[0].last->phases[static_cast<size_t>(Phase::kTotal)], seconds(0.3));
}

TEST(Recorder, HistoryIsBounded) {
  Recorder recorder(at(0));
  for (uint64_t g = 1; g <= 1000; ++g) recorder.formed(g, {1}, "rank 0 lost", at(static_cast<double>(g)));
  const Snapshot s = told(recorder, 2000);
  EXPECT_EQ(s.generations.size(), Recorder::kGenerations);
  EXPECT_EQ(s.generations.back().number, 1000u);
  EXPECT_EQ(s.resets_by_cause[static_cast<size_t>(Cause::kPeerLost)], 999u);
}

TEST(Recorder, AStallStaysUntilItsNextReportIsOverdue) {
  Recorder recorder(at(0));
  recorder.formed(1, {1}, "", at(0));
  recorder.stalled("rank 1 has not called 'loss'", seconds(10), at(10));
  recorder.stalled("rank 1 has not called 'grad'", seconds(10), at(10));
  EXPECT_EQ(told(recorder, 11).stalled, 2);
  recorder.stalled("rank 1 has not called 'loss' for 20 s", seconds(20), at(20));
  EXPECT_EQ(told(recorder, 21).stalled, 2) << "the same operation is one";
  EXPECT_EQ(told(recorder, 40).stalled, 1);
  recorder.lost(1, at(41));
  EXPECT_EQ(told(recorder, 41).stalled, 0);
}

}  // namespace
}  // namespace hvd::status
