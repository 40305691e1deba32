// The driver's end of the control channel against real connections.
#include "driver/job_fixture.h"

namespace hvd::driver {
namespace {

using test::kSecret;
using test::ScriptedWorker;

class Rendezvous : public test::JobTest {};

TEST_F(Rendezvous, FormsAGenerationOfThoseWhoAreReady) {
  start();
  form(2);
  const wire::AssignmentT& assignment = *workers[0]->await(&wire::BodyUnion::AsAssignment);
  ASSERT_EQ(assignment.members.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const wire::MemberT& member = *assignment.members[i];
    EXPECT_EQ(member.host, "a");
    EXPECT_EQ(member.local_rank, static_cast<int32_t>(i));
    ASSERT_EQ(member.addresses.size(), 1u);
    EXPECT_EQ(member.addresses[0]->backend, "test");
    EXPECT_EQ(member.addresses[0]->blob, std::vector<uint8_t>{static_cast<uint8_t>(member.worker)});
    EXPECT_EQ(member.digest->high(), 2u);
  }
  EXPECT_EQ(assignment.members[1]->worker,
            workers[1]->await(&wire::BodyUnion::AsAssignment)->members[1]->worker);
  EXPECT_TRUE(log.wait_for("generation 1 formed: 2 workers on a:2"));
  EXPECT_TRUE(test::eventually([&] { return driver->status().phase == HVD_PHASE_RUNNING; }));
}

TEST_F(Rendezvous, AClosedConnectionAbortsTheOthers) {  // contract 3
  set("min_np", "1");
  set("np", "2");
  start();
  form(2);
  workers[1]->drop();
  const wire::AbortT* abort = workers[0]->await(&wire::BodyUnion::AsAbort);
  ASSERT_NE(abort, nullptr) << log.text();
  EXPECT_EQ(abort->rank, 1);
  EXPECT_NE(abort->reason.find("rank 1"), std::string::npos) << abort->reason;
  EXPECT_NE(abort->reason.find("connection closed"), std::string::npos) << abort->reason;
  EXPECT_EQ(abort->silence_ns, 0);  // noticed at once
  workers[0]->ready(1, true, 1);
  const wire::AssignmentT* next = workers[0]->await(&wire::BodyUnion::AsAssignment, 2);
  ASSERT_NE(next, nullptr) << log.text();
  EXPECT_EQ(next->members.size(), 1u);
  EXPECT_NE(next->reason.find("rank 1"), std::string::npos) << next->reason;
}

TEST_F(Rendezvous, LeavingIsALossWithItsReason) {  // contract 8
  start();
  form(2);
  wire::LeaveT leave;
  leave.message = "I give up";
  workers[1]->say(std::move(leave));
  const wire::AbortT* abort = workers[0]->await(&wire::BodyUnion::AsAbort);
  ASSERT_NE(abort, nullptr);
  EXPECT_NE(abort->reason.find("I give up"), std::string::npos) << abort->reason;
}

TEST_F(Rendezvous, StaleMessagesChangeNothing) {  // contract 11
  start();
  form(2);
  wire::FailureT failure;
  failure.rank = 1;
  failure.message = "an old story";
  workers[0]->say(std::move(failure), 99);
  workers[0]->done(99);
  wire::KvGetT get;
  get.key = "k";
  workers[0]->say(std::move(get), 99);
  const wire::KvValueT* value =
      workers[0]->await(&wire::BodyUnion::AsKvValue);  // in order: the others were read
  ASSERT_NE(value, nullptr);
  EXPECT_EQ(value->status, HVD_PEER_LOST);
  EXPECT_EQ(workers[0]->count(wire::Body::Abort), 0u);
  EXPECT_EQ(workers[1]->count(wire::Body::Abort), 0u);
  EXPECT_TRUE(test::eventually([&] { return driver->status().phase == HVD_PHASE_RUNNING; }));
}

// A worker may say that it is done before it hears that its generation was aborted: nobody waits for it to
// come back, and the job succeeds with the one that goes on (contract 8).
TEST_F(Rendezvous, BeingDoneCrossesAnAbort) {
  set("hosts", "a:3");
  set("np", "3");
  set("min_np", "1");
  set("restart", "false");
  start();
  form(3);
  for (auto& worker : workers) worker->synced(1, 1);
  workers[2]->drop();
  for (size_t i : {0, 1}) ASSERT_NE(workers[i]->await(&wire::BodyUnion::AsAbort), nullptr) << log.text();
  workers[0]->done(1);
  workers[1]->ready(1, true, 1);
  const wire::AssignmentT* next = workers[1]->await(&wire::BodyUnion::AsAssignment, 2);
  ASSERT_NE(next, nullptr) << log.text();
  EXPECT_EQ(next->members.size(), 1u);
  workers[1]->done(2);
  for (size_t i : {0, 1}) {
    const wire::JobEndedT* ended = workers[i]->await(&wire::BodyUnion::AsJobEnded);
    ASSERT_NE(ended, nullptr) << log.text();
    EXPECT_TRUE(ended->success);
  }
}

TEST_F(Rendezvous, ABrokenLinkAbortsEverybodyOnce) {
  start();
  form(2);
  wire::FailureT failure;
  failure.rank = 0;
  failure.message = "reset by peer";
  workers[1]->say(failure, 1);
  workers[1]->say(failure, 1);
  for (auto& worker : workers) {
    const wire::AbortT* abort = worker->await(&wire::BodyUnion::AsAbort);
    ASSERT_NE(abort, nullptr);
    EXPECT_NE(abort->reason.find("reset by peer"), std::string::npos) << abort->reason;
    worker->ready(1, true, 1);
  }
  for (auto& worker : workers) {
    ASSERT_NE(worker->await(&wire::BodyUnion::AsAssignment, 2), nullptr);
    EXPECT_EQ(worker->count(wire::Body::Abort), 1u);
  }
}

TEST_F(Rendezvous, ARepeatedMessageCountsOnce) {  // contract 11
  start();
  ScriptedWorker& worker = join(1);
  wire::HeartbeatT heartbeat;
  heartbeat.sent_ns = 1;
  worker.say(heartbeat);
  --worker.sequence;  // the same number again
  heartbeat.sent_ns = 2;
  worker.say(heartbeat);
  heartbeat.sent_ns = 3;
  worker.say(heartbeat);
  ASSERT_NE(worker.await(&wire::BodyUnion::AsHeartbeatAck, 2), nullptr);
  EXPECT_EQ(worker.await(&wire::BodyUnion::AsHeartbeatAck, 2)->sent_ns, 3);
}

TEST_F(Rendezvous, KeysAreSharedWithinAGeneration) {
  start();
  form(2);
  wire::KvGetT get;
  get.key = "k";
  workers[1]->say(std::move(get), 1);
  wire::KvSetT set;
  set.key = "k";
  set.value = {5};
  workers[0]->say(std::move(set), 1);
  const wire::KvValueT* value = workers[1]->await(&wire::BodyUnion::AsKvValue);
  ASSERT_NE(value, nullptr);
  EXPECT_EQ(value->status, HVD_OK);
  EXPECT_EQ(value->value, std::vector<uint8_t>{5});
  // Who waits when the generation is lost is told so.
  get = {};
  get.key = "never";
  workers[1]->say(std::move(get), 1);
  workers[0]->drop();
  value = workers[1]->await(&wire::BodyUnion::AsKvValue, 2);
  ASSERT_NE(value, nullptr);
  EXPECT_EQ(value->status, HVD_PEER_LOST);
}

TEST_F(Rendezvous, AMemberCanNotFillTheLog) {
  start();
  form(2);
  for (int i = 0; i < 1500; ++i) {
    wire::KvSetT set;
    set.key = "once";
    set.value = {static_cast<uint8_t>(i), static_cast<uint8_t>(i >> 8)};
    workers[0]->say(std::move(set), 1);
  }
  // A thousand messages that are refused are enough: it is lost, and the other one told.
  const wire::AbortT* abort = workers[1]->await(&wire::BodyUnion::AsAbort);
  ASSERT_NE(abort, nullptr) << log.text();
  EXPECT_NE(abort->reason.find("1000 of its messages were refused"), std::string::npos) << abort->reason;
  size_t lines = 0;
  for (const std::string& line : log.lines.all()) lines += line.find("'once'") != std::string::npos;
  EXPECT_GE(lines, 10u);
  EXPECT_LT(lines, 100u);
}

TEST_F(Rendezvous, StrangersAreRefusedAndDisturbNobody) {  // contracts 11 and 13
  start();
  form(2);
  ScriptedWorker& wrong_secret = strange(1);
  wrong_secret.secret = std::string(64, 'x');
  EXPECT_EQ(wrong_secret.connect().code, HVD_REFUSED);

  ScriptedWorker& wrong_job = strange(1);
  wrong_job.job = "another";
  ASSERT_TRUE(wrong_job.connect().ok());
  wrong_job.hello();
  expect_refused(wrong_job, wire::Refusal::Job, "another");

  ScriptedWorker& second = strange(1);
  ASSERT_TRUE(second.connect().ok());
  second.hello();
  expect_refused(second, wire::Refusal::Busy, "connected already");

  ScriptedWorker& unknown = strange(1);
  unknown.worker = 4711;
  EXPECT_EQ(unknown.connect().code, HVD_INVALID) << "with the key of worker 1";
  unknown.secret = kSecret;  // whoever holds the job's secret can make itself any worker's key
  ASSERT_TRUE(unknown.connect().ok());
  unknown.hello();
  expect_refused(unknown, wire::Refusal::Unknown, "no worker 4711");

  // The key of a worker opens the connection, but says who it is (contract 13).
  ScriptedWorker& impostor = strange(1);
  impostor.identity = wire::worker_identity(impostor.worker);
  impostor.worker = workers[1]->worker;
  ASSERT_TRUE(impostor.connect().ok());
  impostor.hello();
  expect_refused(impostor, wire::Refusal::Unknown, "the key of worker/1 is not worker 2's");

  ScriptedWorker& old = strange(1);
  ASSERT_TRUE(old.connect().ok());
  wire::HelloT hello;
  hello.protocol = wire::kProtocol + 1;
  hello.host = "a";
  old.say(std::move(hello));
  expect_refused(old, wire::Refusal::Protocol, "protocol");

  ScriptedWorker& rude = strange(1);
  ASSERT_TRUE(rude.connect().ok());
  rude.ready();
  expect_refused(rude, wire::Refusal::Protocol, "expected Hello");

  ScriptedWorker& garbage = strange(1);
  ASSERT_TRUE(garbage.connect().ok());
  garbage.send({1, 2, 3, 4, 5});
  expect_refused(garbage, wire::Refusal::Protocol, "protocol error");

  for (size_t i = 0; i < 2; ++i) {
    workers[i]->say(wire::HeartbeatT{});
    EXPECT_NE(workers[i]->await(&wire::BodyUnion::AsHeartbeatAck), nullptr);
    EXPECT_EQ(workers[i]->count(wire::Body::Abort), 0u);
  }
  EXPECT_EQ(driver->snapshot().generation, 1u);
}

/// Whoever knows a key holds no more connections than it needs.
TEST_F(Rendezvous, AWorkerThatConnectsAgainAndAgainLosesTheOldest) {
  start();
  form(2);
  std::vector<ScriptedWorker*> silent;
  for (int i = 0; i < 6; ++i) {
    silent.push_back(&strange(1));
    ASSERT_TRUE(silent.back()->connect().ok());
  }
  EXPECT_TRUE(silent[0]->hung_up());
  EXPECT_TRUE(silent[1]->hung_up());
  ScriptedWorker& last = *silent.back();
  last.hello();
  expect_refused(last, wire::Refusal::Busy, "connected already");
  workers[0]->say(wire::HeartbeatT{});
  EXPECT_NE(workers[0]->await(&wire::BodyUnion::AsHeartbeatAck), nullptr);
}

TEST_F(Rendezvous, AMemberThatSpeaksNonsenseIsLost) {
  start();
  form(2);
  workers[1]->say(wire::WelcomeT{});  // not a worker's to say
  expect_refused(*workers[1], wire::Refusal::Protocol, "may not send Welcome");
  const wire::AbortT* abort = workers[0]->await(&wire::BodyUnion::AsAbort);
  ASSERT_NE(abort, nullptr);
  EXPECT_NE(abort->reason.find("protocol error"), std::string::npos) << abort->reason;
}

TEST_F(Rendezvous, OneMayNotSpeakForAnother) {
  start();
  form(2);
  workers[1]->worker = workers[0]->worker;
  workers[1]->say(wire::LeaveT{});
  const wire::AbortT* abort = workers[0]->await(&wire::BodyUnion::AsAbort);
  ASSERT_NE(abort, nullptr);
  EXPECT_EQ(abort->rank, 1);
}

}  // namespace
}  // namespace hvd::driver
