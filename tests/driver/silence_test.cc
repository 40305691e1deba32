// The driver answers heartbeats, and gives up who is silent unless its process runs (contract 3, 19).
#include <atomic>

#include "driver/job_fixture.h"
#include "driver/rendezvous_server.h"

namespace hvd::driver {
namespace {

using test::kSecret;
using test::ScriptedWorker;

class Heartbeats : public test::JobTest {};

TEST_F(Heartbeats, AreAnswered) {
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

TEST(HeartbeatTimes, OfManyWorkersAreSeldomButThreeWithinTheTimeout) {
  const auto of = [](size_t workers) { return spread_heartbeats(seconds(1), seconds(10), workers); };
  EXPECT_EQ(of(1), seconds(1));
  EXPECT_EQ(of(1000), seconds(1));
  EXPECT_EQ(of(2000), seconds(2));
  EXPECT_EQ(of(100'000), seconds(10) / 3);
  EXPECT_EQ(spread_heartbeats(seconds(8), seconds(10), 100'000), seconds(8)) << "as its user has set it";
}

TEST(HeartbeatTimes, OfManyWorkersAreAnsweredWithinTwoThirdsOfTheTimeout) {
  const auto of = [](size_t workers) { return heartbeats_an_answer(seconds(1), seconds(10), workers); };
  EXPECT_EQ(of(1), 1);
  EXPECT_EQ(of(3334), 1);
  EXPECT_EQ(of(6000), 1);
  EXPECT_EQ(of(7000), 2);
  EXPECT_EQ(of(100'000), 2) << "a third of the timeout each";
  EXPECT_EQ(heartbeats_an_answer(seconds(8), seconds(10), 100'000), 1) << "rare as they are";
  EXPECT_EQ(heartbeats_an_answer(seconds(1), seconds(60), 10'000), 1);
}

TEST_F(Heartbeats, AGrowingJobsWorkersAreToldToBeatMoreSeldom) {
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

TEST_F(Heartbeats, SilenceIsALossAndTheSilentOneIsTold) {
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

}  // namespace
}  // namespace hvd::driver
