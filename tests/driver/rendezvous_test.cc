// The driver's end of the control channel against real connections.
#include <atomic>

#include "driver/job_fixture.h"
#include "driver/rendezvous_server.h"

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

TEST_F(Rendezvous, HeartbeatsAreAnswered) {
  start();
  ScriptedWorker& worker = join(1);
  const wire::WelcomeT& welcome = *worker.await(&wire::BodyUnion::AsWelcome);
  EXPECT_EQ(welcome.heartbeat_interval_ms, 1000);
  EXPECT_EQ(welcome.heartbeat_timeout_ms, 30000);
  wire::HeartbeatT heartbeat;
  heartbeat.sent_ns = 77;
  worker.say(std::move(heartbeat));
  const wire::HeartbeatAckT* ack = worker.await(&wire::BodyUnion::AsHeartbeatAck);
  ASSERT_NE(ack, nullptr);
  EXPECT_EQ(ack->sent_ns, 77);
  EXPECT_EQ(ack->interval_ms, 1000);
}

TEST(Heartbeats, OfManyWorkersAreSeldomButThreeWithinTheTimeout) {
  const auto of = [](size_t workers) { return spread_heartbeats(seconds(1), seconds(10), workers); };
  EXPECT_EQ(of(1), seconds(1));
  EXPECT_EQ(of(1000), seconds(1));
  EXPECT_EQ(of(2000), seconds(2));
  EXPECT_EQ(of(100'000), seconds(10) / 3);
  EXPECT_EQ(spread_heartbeats(seconds(8), seconds(10), 100'000), seconds(8)) << "as its user has set it";
}

TEST(Heartbeats, OfManyWorkersAreAnsweredWithinTwoThirdsOfTheTimeout) {
  const auto of = [](size_t workers) { return heartbeats_an_answer(seconds(1), seconds(10), workers); };
  EXPECT_EQ(of(1), 1);
  EXPECT_EQ(of(3334), 1);
  EXPECT_EQ(of(6000), 1);
  EXPECT_EQ(of(7000), 2);
  EXPECT_EQ(of(100'000), 2) << "a third of the timeout each";
  EXPECT_EQ(heartbeats_an_answer(seconds(8), seconds(10), 100'000), 1) << "rare as they are";
  EXPECT_EQ(heartbeats_an_answer(seconds(1), seconds(60), 10'000), 1);
}

TEST_F(Rendezvous, AGrowingJobsWorkersAreToldToBeatMoreSeldom) {
  set("heartbeat_interval", "0.01");
  set("hosts", "a:12");
  start();
  ScriptedWorker& first = join(1);
  EXPECT_EQ(first.await(&wire::BodyUnion::AsWelcome)->heartbeat_interval_ms, 10);
  for (uint64_t id = 2; id <= 12; ++id) join(id);
  first.say(wire::HeartbeatT());
  const wire::HeartbeatAckT* ack = first.await(&wire::BodyUnion::AsHeartbeatAck);
  ASSERT_NE(ack, nullptr) << log.text();
  EXPECT_EQ(ack->interval_ms, 12);
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

TEST_F(Rendezvous, SilenceIsALossAndTheSilentOneIsTold) {
  set("min_np", "1");  // with fewer the job would end at once
  set("heartbeat_interval", "0.05");
  set("heartbeat_timeout", "0.5");
  start();
  form(2);
  // Worker 1 goes on saying that it lives; worker 2 does not.
  std::atomic<bool> stop{false};
  std::thread heart([&stop, &alive = *workers[0]] {
    while (!stop) {
      alive.say(wire::HeartbeatT{});
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  const wire::AbortT* abort = workers[0]->await(&wire::BodyUnion::AsAbort);
  expect_refused(*workers[1], wire::Refusal::Evicted, "no sign of life for");
  // Coming back changes nothing.
  ScriptedWorker& again = strange(2);
  EXPECT_TRUE(again.connect().ok());
  again.hello();
  expect_refused(again, wire::Refusal::Evicted, "was evicted: no sign of life");
  stop = true;
  heart.join();
  ASSERT_NE(abort, nullptr) << log.text();
  EXPECT_EQ(abort->rank, 1);
  EXPECT_GE(abort->silence_ns, 500000000);
}

/// A server that sees the processes of its workers as the test says.
TEST(Silence, SlowIsNotDeadAndStoppedIs) {  // contract 19
  test::RecordedLog log;
  Loop loop("driver"), theirs("workers");
  std::atomic<launch::Life> life{launch::Life::kRunning};
  test::Recorder<std::string> lost;
  std::unique_ptr<RendezvousServer> server;
  const auto serve = [&](const std::string& slow_timeout) {
    RendezvousConfig config;
    config.job = "job";
    config.secret = kSecret;
    config.listen = "127.0.0.1:0";
    config.heartbeat_interval = milliseconds(20);
    config.heartbeat_timeout = milliseconds(100);
    config.slow_timeout = slow_timeout == "short" ? milliseconds(300) : seconds(3600);
    RendezvousServer::Events events;
    events.admit = [](uint64_t) { return std::nullopt; };
    events.connected = [](uint64_t, const launch::ProcessClaim&) {};
    events.life = [&](uint64_t worker, int64_t process) {
      EXPECT_EQ(worker, 1u);
      EXPECT_EQ(process, 4711);
      return life.load();
    };
    events.lost = [&](uint64_t, membership::LossKind kind, const std::string& why) {
      EXPECT_EQ(kind, membership::LossKind::kSilent);
      lost.add(why);
    };
    test::on_loop(loop, [&] {
      server.reset();
      server = std::make_unique<RendezvousServer>(loop, std::move(config), log.logger(), std::move(events));
    });
    test::Launched seat{1,
                        "a",
                        0,
                        {"HVD_DRIVER=127.0.0.1:" + std::to_string(server->port()), "HVD_JOB=job",
                         "HVD_SECRET=" + wire::key_text(kSecret, wire::worker_identity(1))}};
    auto worker = std::make_unique<ScriptedWorker>(theirs, seat);
    EXPECT_TRUE(worker->connect().ok());
    wire::HelloT hello;
    hello.protocol = wire::kProtocol;
    hello.host = "a";
    hello.pid = 4711;
    worker->say(std::move(hello));
    return worker;
  };
  auto worker = serve("long");
  EXPECT_TRUE(log.wait_for("worker 1 on host a: no sign of life for 0.1")) << log.text();
  EXPECT_TRUE(log.wait_for("but its process runs: it is given 3600 s (slow_timeout)")) << log.text();
  worker->say(wire::HeartbeatT{});
  EXPECT_TRUE(log.wait_for("worker 1 is heard again after ")) << log.text();
  EXPECT_TRUE(lost.all().empty());
  life = launch::Life::kStopped;
  ASSERT_TRUE(lost.wait_count(1)) << log.text();
  EXPECT_NE(lost.all()[0].find(", its process is stopped (heartbeat_timeout is 0.1 s)"), std::string::npos)
      << lost.all()[0];
  life = launch::Life::kRunning;
  worker = serve("short");
  ASSERT_TRUE(lost.wait_count(2)) << log.text();
  EXPECT_NE(lost.all()[1].find(", though its process runs (slow_timeout is 0.3 s)"), std::string::npos)
      << lost.all()[1];
  life = launch::Life::kUnknown;
  worker = serve("long");
  ASSERT_TRUE(lost.wait_count(3)) << log.text();
  EXPECT_NE(lost.all()[2].find(" s (heartbeat_timeout is 0.1 s)"), std::string::npos) << lost.all()[2];
  worker.reset();
  test::on_loop(loop, [&] { server.reset(); });
}

/// A life that nobody on the driver's machine can watch: others tell of its end.
TEST(Lives, AnothersWordEndsTheConnectionOfThatLifeAlone) {
  test::RecordedLog log;
  Loop loop("driver"), theirs("workers");
  test::Recorder<std::string> lost;
  test::Recorder<launch::ProcessClaim> claims;
  RendezvousConfig config;
  config.job = "job";
  config.secret = kSecret;
  config.listen = "127.0.0.1:0";
  RendezvousServer::Events events;
  events.admit = [](uint64_t) { return std::nullopt; };
  events.connected = [&](uint64_t, const launch::ProcessClaim& claim) { claims.add(claim); };
  events.leaving = [&](uint64_t, Duration, const std::string& why) { lost.add("heard: " + why); };
  events.lost = [&](uint64_t worker, membership::LossKind kind, const std::string& why) {
    EXPECT_EQ(kind, membership::LossKind::kConnectionClosed);
    lost.add(std::to_string(worker) + " " + why);
  };
  std::unique_ptr<RendezvousServer> server;
  test::on_loop(loop, [&] {
    server = std::make_unique<RendezvousServer>(loop, std::move(config), log.logger(), std::move(events));
  });
  ScriptedWorker worker(theirs, {1,
                                 "a",
                                 0,
                                 {"HVD_DRIVER=127.0.0.1:" + std::to_string(server->port()), "HVD_JOB=job",
                                  "HVD_SECRET=" + wire::key_text(kSecret, wire::worker_identity(1))}});
  ASSERT_TRUE(worker.connect().ok());
  wire::HelloT hello;
  hello.protocol = wire::kProtocol;
  hello.host = "a";
  hello.pid = ::getpid();
  hello.life = 1 << 20;
  hello.life_token = std::make_unique<wire::Digest>(8, 9);
  worker.say(std::move(hello));
  ASSERT_TRUE(claims.wait_count(1)) << log.text();
  EXPECT_EQ(claims.all()[0].life, 1 << 20) << "it could not be watched, and is not to be kept from others";
  EXPECT_EQ(claims.all()[0].life_token, (Digest{8, 9}));
  test::on_loop(loop, [&] {
    EXPECT_EQ(server->process(1)->life, 1 << 20);
    EXPECT_FALSE(server->process(2));
    server->life_ended(2, {8, 9}, "the agent of host a");  // nobody's
    server->life_ended(1, {9, 8}, "the agent of host a");  // another life
  });
  // It is heard still, and what it has said before its end is.
  wire::LeavingT leaving;
  leaving.message = "soon";
  worker.say(std::move(leaving));
  ASSERT_TRUE(lost.wait_count(1)) << log.text();
  EXPECT_EQ(lost.all()[0], "heard: soon");
  EXPECT_TRUE(log.wait_for("by a life that is not its own: ignored")) << log.text();
  for (int again = 0; again < 2; ++again)
    test::on_loop(loop, [&] { server->life_ended(1, {8, 9}, "the agent of host a"); });
  ASSERT_TRUE(lost.wait_count(2)) << log.text();
  EXPECT_EQ(lost.all()[1], "1 its process has died, says the agent of host a");
  test::on_loop(loop, [&] {
    server->life_ended(1, {8, 9}, "the agent of host a");
    EXPECT_FALSE(server->process(1));
  });
  EXPECT_EQ(lost.all().size(), 2u);
  test::on_loop(loop, [&] { server.reset(); });
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
