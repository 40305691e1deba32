// Processes that die, come and go.
#include <sys/wait.h>

#include <cstdlib>

#include "hvd/hvd.h"
#include "modules/mpi_elastic/ranks.h"

namespace hvd::backend::test {
namespace {

std::string loop_of(hvd_collective collective) { return "loop " + std::to_string(collective) + " 50000"; }

// contract 3: nobody waits for the dead, and nobody dies of SIGPIPE, which has its default action here.
class KillOneOf : public StartedApart, public testing::WithParamInterface<std::tuple<int, hvd_collective>> {};

TEST_P(KillOneOf, TheOthersGoOn) {
  const auto [size, collective] = GetParam();
  MpiJob job;
  std::vector<RankPtr> ranks = start(job, size);
  must_form(job, all_of(ranks));
  while (ranks.size() > 1) {
    expect_all(all_of(ranks), loop_of(collective), "running");
    const auto victim = ranks.begin() + static_cast<std::ptrdiff_t>(ranks.size() / 2);
    (*victim)->kill();
    ranks.erase(victim);
    for (const RankPtr& rank : ranks) ASSERT_EQ(rank->hear(), "lost");
    must_form(job, all_of(ranks));
    expect_all(all_of(ranks), "check");
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, KillOneOf,
                         testing::Combine(testing::Values(2, 4), testing::Values(HVD_COLLECTIVE_ALLREDUCE,
                                                                                 HVD_COLLECTIVE_REDUCESCATTER,
                                                                                 HVD_COLLECTIVE_ALLTOALL)));

using MpiProcesses = StartedApart;

TEST_F(MpiProcesses, GrowByNewcomers) {
  MpiJob job;
  std::vector<RankPtr> ranks = start(job, 1);
  must_form(job, all_of(ranks));
  for (int more : {1, 3}) {
    for (RankPtr& rank : start(job, more)) ranks.push_back(std::move(rank));
    expect_all({ranks[0].get()}, "disconnect");
    must_form(job, all_of(ranks));
    expect_all(all_of(ranks), "check");
  }
}

TEST_F(MpiProcesses, CyclesOfLossAndGrowth) {
  MpiJob job;
  std::vector<RankPtr> ranks = start(job, 3);
  must_form(job, all_of(ranks));
  for (int cycle = 0; cycle < 20; ++cycle) {
    SCOPED_TRACE(cycle);
    RankPtr newcomer = std::make_unique<MpiRank>(job);
    expect_all(all_of(ranks), loop_of(HVD_COLLECTIVE_ALLREDUCE), "running");
    ranks[static_cast<size_t>(cycle) % 3]->kill();
    ranks.erase(ranks.begin() + cycle % 3);
    for (const RankPtr& rank : ranks) ASSERT_EQ(rank->hear(), "lost");
    // At times the survivors go on alone first, at times loss and growth are one.
    if (cycle % 2 == 0) must_form(job, all_of(ranks));
    if (cycle % 2 == 0) expect_all(all_of(ranks), "disconnect");
    ranks.push_back(std::move(newcomer));
    must_form(job, all_of(ranks));
    if (cycle % 5 == 4) expect_all(all_of(ranks), "check");
  }
}

TEST_F(MpiProcesses, ANewcomerThatDiesBeforeItConnectsCostsOneGeneration) {
  MpiJob job;
  std::vector<RankPtr> ranks = start(job, 3);
  must_form(job, all_of(ranks));
  MpiRank newcomer(job);
  ASSERT_NE(newcomer.ask("address"), "(gone)");
  std::string blobs;
  for (const RankPtr& rank : ranks) blobs += " " + rank->ask("address");
  blobs += " " + newcomer.ask("address");
  newcomer.kill();
  const std::string generation = std::to_string(job.next_generation());
  for (size_t i = 0; i < ranks.size(); ++i) {
    ranks[i]->tell("connect " + generation + " " + std::to_string(i) + " 4 3000" + blobs);
  }
  for (const RankPtr& rank : ranks) {
    const std::string answer = rank->hear();
    EXPECT_TRUE(answer.starts_with(std::to_string(HVD_PEER_LOST)) ||
                answer.starts_with(std::to_string(HVD_TIMEOUT)))
        << answer;
  }
  must_form(job, all_of(ranks));
  expect_all(all_of(ranks), "check");
}

// At whatever moment of the joining: those who are left go on in the same processes.
TEST_F(MpiProcesses, ANewcomerMayDieWhileItConnects) {
  MpiJob job;
  std::vector<RankPtr> ranks = start(job, 2);
  must_form(job, all_of(ranks));
  for (int attempt = 0; attempt < 6; ++attempt) {
    SCOPED_TRACE(attempt);
    if (module_name() != "mpi" && attempt > 0) {  // a process can't always live through two such deaths there
      ranks = start(job, 2);
      must_form(job, all_of(ranks));
    }
    MpiRank newcomer(job);
    Ranks with = all_of(ranks);
    with.push_back(&newcomer);
    std::string blobs;
    for (MpiRank* rank : with) blobs += " " + rank->ask("address");
    const std::string generation = std::to_string(job.next_generation());
    for (size_t i = 0; i < with.size(); ++i) {
      with[i]->tell("connect " + generation + " " + std::to_string(i) + " 3 3000" + blobs);
    }
    // Deaths at several moments: no condition of the test hangs on which one it is.
    newcomer.hear(std::chrono::milliseconds(20 * attempt));
    newcomer.kill();
    for (const RankPtr& rank : ranks) {
      const std::string answer = rank->hear();
      // The driver would have told of the death; here the deadline does, where the links had not met yet.
      EXPECT_TRUE(answer == "ok" || answer.starts_with(std::to_string(HVD_PEER_LOST)) ||
                  answer.starts_with(std::to_string(HVD_TIMEOUT)))
          << answer;
      rank->ask("abort");
    }
    must_form(job, all_of(ranks));
    expect_all(all_of(ranks), loop_of(HVD_COLLECTIVE_ALLREDUCE), "running");
    // One of them dies as well, and a newcomer that lives takes its place.
    ranks.push_back(std::make_unique<MpiRank>(job));
    ranks[1]->kill();
    ranks.erase(ranks.begin() + 1);
    ASSERT_EQ(ranks[0]->hear(), "lost");
    must_form(job, all_of(ranks));
  }
}

// An op is given up at many moments while the others' data are on their way. They arrive in the next
// generation.
TEST_F(MpiProcesses, NothingIsWrittenToTheUsersMemoryAfterAnAbort) {
  MpiJob job;
  const std::vector<RankPtr> ranks = start(job, 3);
  must_form(job, all_of(ranks));
  for (int moment = 0; moment < 16; ++moment) {
    SCOPED_TRACE(moment);
    ASSERT_EQ(ranks[1]->ask("begin"), "ok");
    ASSERT_EQ(ranks[2]->ask("begin"), "ok");
    ASSERT_EQ(ranks[0]->ask("flash " + std::to_string(400 * moment)), "ok");
    expect_all({ranks[1].get(), ranks[2].get()}, "abort");
    must_form(job, all_of(ranks));
    expect_all(all_of(ranks), "barrier");
    ASSERT_EQ(ranks[0]->ask("untouched"), "ok");
  }
  expect_all(all_of(ranks), "check");
  EXPECT_EQ(ranks[0]->ask("untouched"), "ok");
}

TEST_F(MpiProcesses, LeaveTheProgramsSignalsAlone) {
  MpiJob job;
  const std::vector<RankPtr> ranks = start(job, 2);
  must_form(job, all_of(ranks));
  expect_all(all_of(ranks), "signals");
}

// What MPI's TCP does when it learns of a death depends on the moment, and on most moments nothing bad comes
// of it.
TEST_F(MpiProcesses, KeepDeathsFromMpi) {
  MpiJob job;
  const std::vector<RankPtr> ranks = start(job, 2);
  must_form(job, all_of(ranks));
  expect_all(all_of(ranks), "shielded");
}

// The call on the user's memory blocks, and nothing can end it: the op ends all the same, and so does the
// process.
TEST_F(MpiProcesses, GiveUpAnOpOnTheUsersMemoryThatNobodyElseComesTo) {
  MpiJob job;
  const std::vector<RankPtr> ranks = start(job, 2, {.elastic = false});
  must_form(job, all_of(ranks));
  expect_all(all_of(ranks), "check");
  ASSERT_EQ(ranks[0]->ask("flash 20000"), "ok");
  // Who hangs in MPI says so, and is waited for by nobody for longer than connecting may take.
  const std::vector<std::string> answers = form(job, all_of(ranks), 3000);
  EXPECT_TRUE(answers[0].starts_with(std::to_string(HVD_UNAVAILABLE))) << answers[0];
  EXPECT_NE(answers[0].find("started anew"), std::string::npos) << answers[0];
  EXPECT_TRUE(answers[1].starts_with(std::to_string(HVD_PEER_LOST)) ||
              answers[1].starts_with(std::to_string(HVD_TIMEOUT)))
      << answers[1];
  for (const RankPtr& rank : ranks) {
    rank->tell("close");
    EXPECT_EQ(rank->hear(), "(gone)");
    const int status = rank->wait();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
}

// contract 10: the host process ends when it wants to, whatever MPI is doing.
class MpiExit : public StartedApart, public testing::WithParamInterface<bool> {};

TEST_P(MpiExit, InTheMiddleOfAnOperation) {
  MpiJob job;
  const std::vector<RankPtr> ranks = start(job, 2, {.elastic = GetParam()});
  must_form(job, all_of(ranks));
  expect_all(all_of(ranks), "signals");
  expect_all({ranks[0].get()}, "begin");
  ranks[0]->tell("exit");
  EXPECT_EQ(ranks[0]->hear(), "(gone)");
  const int status = ranks[0]->wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  ranks[1]->tell("close");
  EXPECT_EQ(ranks[1]->hear(), "(gone)");
  const int other = ranks[1]->wait();
  EXPECT_TRUE(WIFEXITED(other) && WEXITSTATUS(other) == 0) << other;
}

TEST_F(MpiProcesses, MayExitWhileMpiBegins) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer's library must be the first one";
#endif
  MpiJob job;
  ASSERT_EQ(setenv("LD_PRELOAD", HVD_TEST_SLOW_INIT, 1), 0);
  MpiRank rank(job);
  unsetenv("LD_PRELOAD");
  rank.tell("exit");
  EXPECT_EQ(rank.hear(), "(gone)");
  const int status = rank.wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

INSTANTIATE_TEST_SUITE_P(, MpiExit, testing::Bool(), [](const testing::TestParamInfo<bool>& info) {
  return info.param ? "Elastic" : "Direct";
});

}  // namespace
}  // namespace hvd::backend::test
