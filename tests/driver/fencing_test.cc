// An older driver that is still there: who has heard of a newer one gets nothing from it, and it ends
// (contract 14).
#include <atomic>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "driver/job_fixture.h"
#include "driver/journal_file.h"
#include "driver/operator.h"

namespace hvd::driver {
namespace {

using test::ScriptedWorker;

class Fencing : public test::JobTest {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "hvd-fencing-XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
    set("journal", directory_);
    set("job", "j");
    set("min_np", "1");
  }
  void TearDown() override {
    test::JobTest::TearDown();
    driver.reset();
    std::filesystem::remove_all(directory_);
  }
  /// As another driver does that takes the job over.
  void take_over(uint64_t term) { std::ofstream(directory_ + fmt::format("/journal.{:016x}", term)); }
  void take_over_without_a_journal() {
    set("journal", "off");
    set("takeover", "true");
    set("address_file", directory_ + "/address");
    start();
  }
  /// As from a driver of term 7.
  ScriptedWorker& come_back(uint64_t id, const std::string& proof) {
    workers.push_back(
        std::make_unique<ScriptedWorker>(loop, test::Launched{id, "a", static_cast<int32_t>(id), {}}));
    ScriptedWorker& worker = *workers.back();
    worker.driver = read_address_file(directory_ + "/address").endpoint;
    worker.job = "j";
    worker.secret = wire::key_text(test::kSecret, wire::worker_identity(id));
    EXPECT_TRUE(worker.connect().ok());
    worker.term = 7;
    worker.term_proof = proof;
    wire::HelloT hello;
    hello.protocol = wire::kProtocol;
    hello.library = "test";
    hello.host = "a";
    hello.slot = static_cast<int32_t>(id);
    hello.resumes = true;
    worker.say(std::move(hello));
    return worker;
  }
  /// All that was launched ends; the sentence with which the driver has ended.
  std::string end() {
    for (const test::Launched& each : launched.all()) driver->worker_exited(each.worker, 0);
    const Status status = driver->wait(seconds(30));
    EXPECT_EQ(status.code, HVD_JOB_FAILED);
    return status.message;
  }

  std::string directory_;
};

/// Reads the journal when the log tells of a generation: its members may have been told by then.
struct JournalWhenLogged {
  std::string directory;
  std::atomic<uint64_t> generation{0};  // of the journal, when the first generation was logged

  static void line(void* self, hvd_log_level, const char* text) {
    auto& at = *static_cast<JournalWhenLogged*>(self);
    if (std::string_view(text).starts_with("generation 1 formed"))
      at.generation = JournalFile::find(at.directory).journal.job.generation;
  }
};

TEST_F(Fencing, TheJournalHasAGenerationBeforeAnybodyIsTold) {
  JournalWhenLogged found{directory_};
  options.logger =
      std::make_shared<Logger>(HVD_LOG_INFO, Callback<hvd_log_fn>(&JournalWhenLogged::line, &found, nullptr));
  start();
  form(2);
  EXPECT_TRUE(test::eventually([&] { return driver->status().phase == HVD_PHASE_RUNNING; }));
  EXPECT_EQ(found.generation, 1u);
}

TEST_F(Fencing, WhoNamesANewerTermIsNotHeard) {
  start();
  form(2);
  ScriptedWorker& worker = *workers[0];
  EXPECT_EQ(worker.await(&wire::BodyUnion::AsWelcome)->term, 1u);
  worker.say(wire::HeartbeatT{});
  ASSERT_NE(worker.await(&wire::BodyUnion::AsHeartbeatAck), nullptr);
  // A worker's word alone does not end a driver: its journal says that there is no other one.
  worker.term = 2;
  worker.say(wire::HeartbeatT{});
  worker.term = 1;
  worker.say(wire::HeartbeatT{});
  ASSERT_NE(worker.await(&wire::BodyUnion::AsHeartbeatAck, 2), nullptr) << log.text();
  EXPECT_EQ(worker.count(wire::Body::HeartbeatAck), 2u);
  EXPECT_EQ(driver->snapshot().phase, HVD_PHASE_RUNNING);
}

TEST_F(Fencing, AWorkerThatComesFromANewerDriverIsSentBack) {
  start();
  form(2);
  workers[1]->drop();
  ScriptedWorker& back = strange(2);
  ASSERT_TRUE(back.connect().ok());
  back.term = 2;
  back.hello();
  expect_refused(back, wire::Refusal::Superseded, "this driver is of term 1, and there is one of term 2");
}

TEST_F(Fencing, TheOlderDriverEndsWithOneSentence) {
  set("heartbeat_interval", "10");  // what it would see by itself comes too late
  start();
  form(2);
  take_over(2);
  workers[0]->term = 2;
  workers[0]->say(wire::HeartbeatT{});
  EXPECT_TRUE(workers[0]->hung_up());
  EXPECT_TRUE(workers[1]->hung_up());
  EXPECT_EQ(workers[0]->count(wire::Body::Abort) + workers[1]->count(wire::Body::Abort), 0u);
  EXPECT_EQ(workers[0]->count(wire::Body::JobEnded) + workers[1]->count(wire::Body::JobEnded), 0u);
  EXPECT_TRUE(stopped.all().empty());  // they are the other one's
  EXPECT_EQ(end(), "another driver has taken job j over: this one, of term 1, ends");
}

TEST_F(Fencing, TheProofOfANewerDriverEndsItWhereverThatHasItsJournal) {
  set("heartbeat_interval", "10");
  start();
  form(2);
  for (const uint64_t proved : {1, 3}) {  // of another term: of none
    workers[0]->term = 2;
    workers[0]->term_proof = wire::term_proof(test::kSecret, "j", proved);
    workers[0]->say(wire::HeartbeatT{});
  }
  workers[0]->term_proof = wire::term_proof(test::kSecret, "another", 2);
  workers[0]->say(wire::HeartbeatT{});
  workers[0]->term = 1;
  workers[0]->say(wire::HeartbeatT{});
  ASSERT_NE(workers[0]->await(&wire::BodyUnion::AsHeartbeatAck), nullptr) << log.text();
  EXPECT_EQ(workers[0]->count(wire::Body::HeartbeatAck), 1u);
  workers[0]->term = 2;
  workers[0]->term_proof = wire::term_proof(test::kSecret, "j", 2);
  workers[0]->say(wire::HeartbeatT{});
  EXPECT_TRUE(workers[0]->hung_up());
  EXPECT_TRUE(workers[1]->hung_up());
  EXPECT_EQ(end(), "another driver has taken job j over: this one, of term 1, ends");
}

TEST_F(Fencing, AWelcomeProvesItsTerm) {
  start();
  ScriptedWorker& worker = join(1);
  worker.say(wire::HeartbeatT{});
  ASSERT_NE(worker.await(&wire::BodyUnion::AsHeartbeatAck), nullptr);
  EXPECT_EQ(worker.received.all().at(0)->term_proof, wire::term_proof(test::kSecret, "j", 1));
  EXPECT_EQ(worker.received.all().at(1)->term_proof, "");
}

/// Without a journal its workers alone tell a driver that takes over how far terms have come.
TEST_F(Fencing, ATermWithoutProofIsNotBelievedByWhoTakesOver) {
  take_over_without_a_journal();
  expect_refused(come_back(1, "7"), wire::Refusal::Superseded,
                 "this driver is of term 1, and there is one of term 7");
  ScriptedWorker& worker = come_back(2, wire::term_proof(test::kSecret, "j", 7));
  ASSERT_NE(worker.await(&wire::BodyUnion::AsWelcome), nullptr) << log.text();
  EXPECT_EQ(worker.await(&wire::BodyUnion::AsWelcome)->term, 8u);
  EXPECT_EQ(worker.received.all().at(0)->term_proof, wire::term_proof(test::kSecret, "j", 8));
}

/// A worker gives a generation up as soon as an operation fails, and may say whom it lost after it has left.
TEST_F(Fencing, WhomAWorkerThatHasLeftNamesLateIsNotWaitedFor) {
  set("heartbeat_timeout", "10");
  take_over_without_a_journal();
  const std::string proof = wire::term_proof(test::kSecret, "j", 7);
  for (const uint64_t id : {1, 2}) {
    ScriptedWorker& worker = come_back(id, proof);
    const wire::WelcomeT* const welcome = worker.await(&wire::BodyUnion::AsWelcome);
    ASSERT_NE(welcome, nullptr) << log.text();
    worker.term = welcome->term;
    worker.term_proof = wire::term_proof(test::kSecret, "j", welcome->term);
    wire::ResumeT where;
    where.rank = static_cast<int32_t>(id) - 1;
    where.size = 3;
    where.synced = where.has_state = where.closed = true;
    where.left = id == 1;
    worker.say(std::move(where), 4);
    if (id == 1) worker.ready(4, true);
  }
  wire::FailureT failure;
  failure.rank = 2;
  failure.message = "rank 2 closed its link";
  workers[0]->say(std::move(failure), 4);
  const wire::AbortT* const abort = workers[1]->await(&wire::BodyUnion::AsAbort);
  ASSERT_NE(abort, nullptr) << log.text();
  EXPECT_EQ(abort->reason, "rank 2 did not come back to the new driver, and its peers have lost it");
}

TEST_F(Fencing, NobodyIsToldAGenerationOfTheOlderDriver) {
  set("heartbeat_interval", "10");
  start();
  ScriptedWorker &first = join(1), &second = join(2);
  first.ready();
  take_over(2);
  second.ready();
  EXPECT_TRUE(first.hung_up());
  EXPECT_TRUE(second.hung_up());
  EXPECT_EQ(first.count(wire::Body::Assignment) + second.count(wire::Body::Assignment), 0u);
  EXPECT_EQ(end(), "another driver has taken job j over: this one, of term 1, ends");
}

TEST_F(Fencing, WithoutAWordItSeesForItself) {
  set("heartbeat_interval", "0.02");
  set("heartbeat_timeout", "3000");  // not by workers that fall silent
  start();
  form(2);
  take_over(2);
  EXPECT_TRUE(workers[0]->hung_up());
  EXPECT_EQ(end(), "another driver has taken job j over: this one, of term 1, ends");
}

TEST_F(Fencing, AWorkerThatHasGoneToItIsNotLost) {
  set("heartbeat_interval", "10");
  start();
  form(2);
  take_over(2);
  workers[1]->drop();
  EXPECT_TRUE(workers[0]->hung_up());
  EXPECT_EQ(workers[0]->count(wire::Body::Abort), 0u);
  end();
}

}  // namespace
}  // namespace hvd::driver
