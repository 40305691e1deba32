// Whole jobs: how they start, change and end.
#include "driver/driver.h"

#include <atomic>
#include <csignal>
#include <set>

#include "driver/job_fixture.h"

namespace hvd::driver {
namespace {

using test::kSecret;
using test::ScriptedWorker;

class Job : public test::JobTest {
 protected:
  std::string start_error(hvd_status expected) {
    try {
      driver->start();
    } catch (const Error& error) {
      EXPECT_EQ(error.status().code, expected);
      return error.what();
    }
    ADD_FAILURE() << "it started";
    return "";
  }
};

TEST_F(Job, SucceedsWhenItsWorkersSaySo) {  // contract 8
  start();
  form(2);
  workers[0]->done(1);
  workers[1]->done(1);
  for (size_t i = 0; i < 2; ++i) {
    const wire::JobEndedT* ended = workers[i]->await(&wire::BodyUnion::AsJobEnded);
    ASSERT_NE(ended, nullptr) << log.text();
    EXPECT_TRUE(ended->success);
  }
  EXPECT_EQ(driver->wait(Duration(0)).code, HVD_TIMEOUT) << "its workers are there still";
  EXPECT_TRUE(stopped.all().empty()) << "workers that are done take the time they need";
  driver->worker_exited(workers[0]->worker, 0);
  driver->worker_exited(workers[1]->worker, 0);
  EXPECT_EQ(driver->wait(test::kDeadline).code, HVD_OK);
  EXPECT_EQ(driver->status().phase, HVD_PHASE_SUCCEEDED);
}

TEST_F(Job, AWorkerThatIsDoneAndEndsWithAnErrorFailsTheJob) {  // contract 8
  start();
  form(2);
  workers[0]->done(1);
  driver->worker_exited(workers[0]->worker, 3);  // before the others are done
  workers[1]->done(1);
  const wire::JobEndedT* ended = workers[1]->await(&wire::BodyUnion::AsJobEnded);
  ASSERT_NE(ended, nullptr) << log.text();
  driver->worker_exited(workers[1]->worker, 0);
  const Status status = driver->wait(test::kDeadline);
  EXPECT_EQ(status.code, HVD_JOB_FAILED);
  EXPECT_NE(status.message.find(
                "worker 1 (host a, slot 0, rank 0) exited with status 3 after it had said that it was"),
            std::string::npos)
      << status.message;
  EXPECT_EQ(driver->status().phase, HVD_PHASE_FAILED);
}

TEST_F(Job, AnErrorAtTheEndCountsWheneverItIsNoticed) {  // contract 8
  start();
  form(2);
  driver->worker_exited(workers[1]->worker, 256 + 11);  // may be noticed before what it said is read
  for (auto& worker : workers) worker->done(1);
  ASSERT_NE(workers[0]->await(&wire::BodyUnion::AsJobEnded), nullptr) << log.text();
  driver->worker_exited(workers[0]->worker, 0);
  const Status status = driver->wait(test::kDeadline);
  EXPECT_EQ(status.code, HVD_JOB_FAILED);
  EXPECT_NE(status.message.find("SIGSEGV"), std::string::npos) << status.message;
}

TEST_F(Job, DoneAndGoneAtOnceIsSuccess) {
  start();
  form(2);
  for (auto& worker : workers) {
    worker->done(1);
    driver->worker_exited(worker->worker, 0);  // may be noticed before what it said is read
    worker->drop();
  }
  EXPECT_EQ(driver->wait(test::kDeadline).code, HVD_OK) << log.text();
}

TEST_F(Job, FailsWhenAllHoldersAreGone) {  // contract 8
  set("min_np", "1");                      // with fewer the job would end at once
  start();
  form(2);
  workers[0]->drop();
  ASSERT_NE(workers[1]->await(&wire::BodyUnion::AsAbort), nullptr);
  workers[1]->drop();
  const Status status = driver->wait(test::kDeadline);
  EXPECT_EQ(status.code, HVD_JOB_FAILED);
  EXPECT_NE(status.message.find("no survivor holds state"), std::string::npos) << status.message;
}

TEST_F(Job, AnExitSaysMoreThanAClosedConnection) {
  start();
  form(2);
  driver->worker_exited(workers[1]->worker, 256 + SIGSEGV);
  workers[1]->drop();
  const wire::AbortT* abort = workers[0]->await(&wire::BodyUnion::AsAbort);
  ASSERT_NE(abort, nullptr);
  EXPECT_NE(abort->reason.find("killed by signal 11 (SIGSEGV)"), std::string::npos) << abort->reason;
}

TEST_F(Job, AProcessThatEndsWithItsConnectionHeldOpenIsLost) {
  start();
  form(2);
  driver->worker_exited(workers[1]->worker, 5);
  const wire::AbortT* abort = workers[0]->await(&wire::BodyUnion::AsAbort);
  ASSERT_NE(abort, nullptr);
  EXPECT_NE(abort->reason.find("exited with status 5"), std::string::npos) << abort->reason;
}

TEST_F(Job, StopTellsWorkersAndEndsThem) {
  start();
  form(2);
  driver->stop("enough");
  for (size_t i = 0; i < 2; ++i) {
    const wire::JobEndedT* ended = workers[i]->await(&wire::BodyUnion::AsJobEnded);
    ASSERT_NE(ended, nullptr);
    EXPECT_FALSE(ended->success);
    EXPECT_NE(ended->reason.find("enough"), std::string::npos);
  }
  const Status status = driver->wait(test::kDeadline);
  EXPECT_EQ(status.code, HVD_JOB_FAILED);
  EXPECT_NE(status.message.find("enough"), std::string::npos);
  for (const auto& stop : stopped.all()) EXPECT_FALSE(stop.force);
  EXPECT_EQ(stopped.all().size(), 2u);
}

TEST_F(Job, WhoseEndIsKnownWhenTheJobIsStoppedIsALossToItsPeersFirst) {
  start();
  form(2);
  driver->worker_exited(workers[1]->worker, 0);  // not done, and its connection is still open
  driver->stop("enough");
  ASSERT_NE(workers[0]->await(&wire::BodyUnion::AsJobEnded), nullptr);
  EXPECT_EQ(workers[0]->count(wire::Body::Abort), 1u);
}

TEST_F(Job, StoppedTwiceKills) {
  set("stop_grace", "3600");
  start();
  form(2);
  driver->stop("enough");
  driver->stop("now");
  EXPECT_EQ(driver->wait(test::kDeadline).code, HVD_JOB_FAILED);
  for (const auto& stop : stopped.all()) EXPECT_TRUE(stop.force);
}

TEST_F(Job, LateComersAreToldThatItHasEnded) {
  start();
  form(2);
  driver->stop("enough");
  ASSERT_NE(workers[0]->await(&wire::BodyUnion::AsJobEnded), nullptr);
  ScriptedWorker& late = strange(1);
  if (!late.connect().ok()) return;  // it may be gone altogether
  late.hello();
  const wire::RefusedT* refused = late.await(&wire::BodyUnion::AsRefused);
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->code, wire::Refusal::Ended);
}

TEST_F(Job, LateComersToASuccessHaveNotFailed) {
  start();
  form(2);
  workers[0]->done(1);
  workers[1]->done(1);
  ASSERT_NE(workers[0]->await(&wire::BodyUnion::AsJobEnded), nullptr);
  ScriptedWorker& late = strange(1);
  ASSERT_TRUE(late.connect().ok()) << "the others are there still";
  late.hello();
  const wire::JobEndedT* ended = late.await(&wire::BodyUnion::AsJobEnded);
  ASSERT_NE(ended, nullptr) << log.text();
  EXPECT_TRUE(ended->success);
}

TEST_F(Job, AWorkerThatCanNotBeStartedIsAFailureOfItsSlot) {
  set("elastic_timeout", "0.3");
  start_result = 9;
  start();
  const Status status = driver->wait(test::kDeadline);
  EXPECT_EQ(status.code, HVD_JOB_FAILED);
  EXPECT_NE(status.message.find("start callback returned 9"), std::string::npos) << status.message;
}

TEST_F(Job, HostsThatComeAndGoAreTold) {                    // contract 1
  const auto held = std::make_shared<std::atomic<int>>(0);  // the driver may ask until TearDown
  std::atomic<int>& phase = *held;
  options = Options([](const std::string&) { return std::nullopt; });
  options.logger = log.logger();
  set("discovery_interval", "0.02");
  set("heartbeat_timeout", "30");
  set("stop_grace", "0.2");
  set("min_np", "1");
  set("join_settle", "0.05");
  make();
  driver->set_discovery([held](std::vector<membership::HostSlots>* hosts) {
    if (*held == 2) return 1;
    hosts->push_back({"a", 1});
    if (*held == 1) hosts->push_back({"b", 1});
    return 0;
  });
  driver->start();
  form(1);
  phase = 1;
  join(2).ready();
  ASSERT_TRUE(workers[0]->received.wait([](const auto& all) {
    return std::any_of(all.begin(), all.end(), [](const auto& message) {
      const auto* update = message->body.AsHostsUpdated();
      return update != nullptr && update->interrupt;
    });
  })) << log.text();
  EXPECT_EQ(workers[1]->count(wire::Body::HostsUpdated), 0u) << "it is no member yet";
  workers[0]->ready(1, true, 1);
  const wire::AssignmentT* next = workers[0]->await(&wire::BodyUnion::AsAssignment, 2);
  ASSERT_NE(next, nullptr) << log.text();
  EXPECT_EQ(next->members.size(), 2u);
  EXPECT_EQ(next->root, 0);
  // Discovery that fails changes nothing, and is told once.
  phase = 2;
  ASSERT_TRUE(log.wait_for("discovery failed, the hosts stay as they were"));
  EXPECT_EQ(driver->snapshot().slots, 2);
  phase = 1;
  ASSERT_TRUE(log.wait_for("discovery works again"));
  workers[0]->synced(2, 1);
  workers[1]->synced(2, 1);
  // A host that goes takes its worker with it.
  phase = 0;
  ASSERT_TRUE(workers[0]->received.wait([](const auto& all) {
    return std::count_if(all.begin(), all.end(), [](const auto& message) {
             const auto* update = message->body.AsHostsUpdated();
             return update != nullptr && update->interrupt;
           }) >= 2;
  })) << log.text();
  workers[0]->ready(2, true, 1);
  workers[1]->ready(2, true, 1);
  expect_refused(*workers[1], wire::Refusal::Removed, "host b");
  ASSERT_NE(workers[0]->await(&wire::BodyUnion::AsAssignment, 3), nullptr);
  EXPECT_TRUE(stopped.wait_count(1)) << "its process is ended after its grace";
}

TEST_F(Job, FirstDiscoveryIsFatal) {  // H9
  options = Options([](const std::string&) { return std::nullopt; });
  make();
  driver->set_discovery([](std::vector<membership::HostSlots>*) { return 3; });
  const std::string why = start_error(HVD_UNAVAILABLE);
  EXPECT_NE(why.find("first discovery failed"), std::string::npos) << why;
  EXPECT_EQ(driver->status().phase, HVD_PHASE_NEW);
}

TEST_F(Job, WhatIsMissingIsSaid) {
  driver = std::make_unique<Driver>(options);
  EXPECT_NE(start_error(HVD_INVALID).find("no command"), std::string::npos);
  driver->set_command({"no-such-program"}, {});
  EXPECT_NE(start_error(HVD_UNAVAILABLE).find("no-such-program"), std::string::npos);
  EXPECT_EQ(driver->wait(Duration(0)).code, HVD_INVALID);
  EXPECT_THROW(driver->stop("x"), Error);
  set("guard", "/nowhere/hvd-guard");
  driver = std::make_unique<Driver>(options);
  driver->set_command({"true"}, {});
  EXPECT_NE(start_error(HVD_UNAVAILABLE).find("/nowhere/hvd-guard"), std::string::npos);
  set("guard", HVD_GUARD_FILE);
  set("listen", "203.0.113.1:1");
  driver = std::make_unique<Driver>(options);
  driver->set_command({"true"}, {});
  EXPECT_NE(start_error(HVD_UNAVAILABLE).find("203.0.113.1"), std::string::npos);
  set("listen", "");
  set("np", "3");
  driver = std::make_unique<Driver>(options);
  driver->set_command({"true"}, {});
  EXPECT_NE(start_error(HVD_UNAVAILABLE).find("not enough slots"), std::string::npos);
}

TEST_F(Job, TheSecretIsInNoArgumentListAndEachWorkerHasAKeyOfItsOwn) {  // contract 13
  set("guard", HVD_GUARD_FILE);
  driver = std::make_unique<Driver>(options);
  test::Recorder<launch::OutputLine> lines;
  driver->set_output([&](const launch::OutputLine& line) { lines.add(line); });
  driver->set_command(
      {"sh", "-c",
       "tr '\\0' ' ' < /proc/$$/cmdline; echo; echo $HVD_SECRET; echo $MINE$HVD_SECRET_FILE; sleep "
       "1000"},
      {"MINE=yes", "HVD_SECRET_FILE=/given"});
  ::setenv("HVD_SECRET_FILE", "/inherited", 1);
  driver->start();
  ::unsetenv("HVD_SECRET_FILE");
  ASSERT_TRUE(lines.wait_count(6)) << log.text();
  std::set<std::string> keys;
  size_t mine = 0;
  for (const launch::OutputLine& line : lines.all()) {
    mine += line.text == "yes";
    if (line.text.starts_with("hvd-key:worker/")) keys.insert(line.text);
    EXPECT_EQ(line.text.find(kSecret), std::string::npos) << line.text;
  }
  EXPECT_EQ(keys, (std::set<std::string>{wire::key_text(kSecret, wire::worker_identity(1)),
                                         wire::key_text(kSecret, wire::worker_identity(2))}));
  EXPECT_EQ(mine, 2u) << "and is told of no secret file";
  driver.reset();  // ends them
}

TEST_F(Job, DestroyingEndsRealWorkers) {
  const test::Folder folder;
  set("guard", HVD_GUARD_FILE);
  driver = std::make_unique<Driver>(options);
  test::Recorder<launch::OutputLine> lines;
  driver->set_output([&](const launch::OutputLine& line) { lines.add(line); });
  driver->set_command({"sh", "-c", "trap '' TERM; echo $$; while true; do sleep 1000; done"}, {});
  driver->start();
  ASSERT_TRUE(lines.wait_count(2)) << log.text();
  driver.reset();
  for (const launch::OutputLine& line : lines.all()) EXPECT_FALSE(test::alive(std::stoi(line.text)));
}

}  // namespace
}  // namespace hvd::driver
