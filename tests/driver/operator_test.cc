// Operators: commands over real connections, the address file, and who is no operator.
#include "driver/operator.h"

#include <sys/stat.h>

#include <fstream>

#include "driver/follower.h"
#include "driver/job_fixture.h"
#include "driver/standby.h"

namespace hvd::driver {
namespace {

class OperatorTest : public test::JobTest {
 protected:
  std::string file() const { return folder.path("address"); }
  void start() {
    set("address_file", file());
    JobTest::start();
  }
  std::string ask(const std::string& verb, const std::string& argument = "") {
    return command(read_address_file(file()), verb, argument, seconds(30));
  }
  /// What is thrown, as its status; HVD_OK if nothing is.
  template <class Fn>
  static Status thrown(const Fn& fn) {
    try {
      fn();
    } catch (const Error& error) { return error.status(); }
    return {};
  }
  test::Folder folder;
};

TEST_F(OperatorTest, AsksForTheStatus) {
  start();
  form(2);
  EXPECT_NE(ask("status").find("running"), std::string::npos);
  const std::string json = ask("status", "json");
  EXPECT_NE(json.find("\"generation\":1,"), std::string::npos) << json;
  EXPECT_NE(ask("help").find("status"), std::string::npos);
}

TEST_F(OperatorTest, IsToldWhatIsWrongWithACommand) {
  start();
  const Status unknown = thrown([&] { ask("dance"); });
  EXPECT_EQ(unknown.code, HVD_INVALID);
  EXPECT_NE(unknown.message.find("no verb 'dance': expected one of help, status"), std::string::npos)
      << unknown.message;
  const Status argument = thrown([&] { ask("status", "xml"); });
  EXPECT_EQ(argument.code, HVD_INVALID);
  EXPECT_NE(argument.message.find("'xml'"), std::string::npos) << argument.message;
  EXPECT_EQ(thrown([&] { ask("help", "me"); }).code, HVD_INVALID);
  EXPECT_EQ(thrown([&] { ask("status", std::string(5000, 'x')); }).code, HVD_INVALID);
  EXPECT_EQ(thrown([&] { ask(std::string(100, 'v')); }).code, HVD_INVALID);
  EXPECT_FALSE(ask("status").empty()) << "the driver goes on";
}

// contract 14: who stands by without the driver's directory.
TEST_F(OperatorTest, WhoFollowsGetsTheJournalPieceByPiece) {
  set("journal", folder.path("journal"));
  start();
  form(2);
  JournalCopy copy;
  const auto look = [&] { return copy.take(read_answer(ask("journal", question_for(copy.wanted())))); };
  while (look()) {}
  EXPECT_EQ(copy.term(), 1u);
  const membership::Journal journal = membership::read_journal(copy.bytes());
  EXPECT_TRUE(journal.whole());
  EXPECT_EQ(journal.job.generation, 1u);
  EXPECT_EQ(journal.job.members.size(), 2u);
  const size_t had = copy.bytes().size();
  EXPECT_FALSE(look()) << "a sign of life, after a while";
  EXPECT_GE(copy.bytes().size(), had);
  EXPECT_EQ(thrown([&] { ask("journal", "1 2"); }).code, HVD_INVALID);
}

// contract 14
TEST_F(OperatorTest, WhoFollowsTakesOverFromNoDriverThatLives) {
  set("journal", folder.path("journal"));
  set("heartbeat_interval", "0.02");  // a sign of life so often, for who knows all there is
  start();
  form(2);
  Follower follower({read_address_file(file())}, seconds(20), log.logger());
  Vigil vigil(seconds(10), seconds(1));
  const Time began = now();
  JournalFile::Look seen;
  // An answer is a sign of life even if nothing is new.
  for (int turn = 0; turn < 20; ++turn) {
    const JournalFile::Look look = follower.look();
    ASSERT_TRUE(look.locked) << "turn " << turn;
    ASSERT_NE(look.stamp, seen.stamp) << "turn " << turn;
    ASSERT_EQ(look.term, 1u);
    ASSERT_FALSE(vigil.see(look, began + turn * seconds(9))) << "it took over from a driver that lives";
    seen = look;
  }
  EXPECT_EQ(membership::read_journal(follower.copy().bytes()).job.generation, 1u);
}

TEST_F(OperatorTest, ADriverWithoutAJournalCannotBeFollowed) {
  start();
  EXPECT_EQ(thrown([&] { ask("journal", "0 0 0"); }).code, HVD_UNAVAILABLE);
}

TEST_F(OperatorTest, ADriverGivesWayToANewerTermAlone) {
  set("journal", folder.path("journal"));
  start();
  form(2);
  EXPECT_EQ(ask("yield", "1"), "1");
  EXPECT_EQ(ask("yield", "0"), "1");
  EXPECT_EQ(thrown([&] { ask("yield", "2x"); }).code, HVD_INVALID);
  EXPECT_NE(ask("status").find("running"), std::string::npos) << "the driver goes on";
  EXPECT_EQ(ask("yield", "2"), "1");
  for (const test::Launched& each : launched.all()) driver->worker_exited(each.worker, 0);
  const Status status = driver->wait(seconds(30));
  EXPECT_EQ(status.code, HVD_JOB_FAILED);
  EXPECT_NE(status.message.find(" over: this one, of term 1, ends"), std::string::npos) << status.message;
}

TEST_F(OperatorTest, ItsFileIsPrivateAndGoesWithTheDriver) {
  start();
  struct stat found {};
  ASSERT_EQ(::stat(file().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  const DriverAddress address = read_address_file(file());
  EXPECT_EQ(test::read_file(file()).find(test::kSecret), std::string::npos)
      << "the job's secret is not the operator's";
  driver.reset();
  EXPECT_NE(::stat(file().c_str(), &found), 0);
  EXPECT_EQ(thrown([&] { command(address, "status", "", milliseconds(300)); }).code, HVD_DRIVER_LOST);
}

TEST_F(OperatorTest, AFileThatIsAnotherDriversStays) {
  start();
  write_address_file(file(), {"127.0.0.1:1", "another", "key"});
  driver.reset();
  EXPECT_EQ(read_address_file(file()).job, "another");
}

TEST_F(OperatorTest, ADriverWhoseFileCantBeWrittenDoesNotStart) {
  set("address_file", folder.path("missing/address"));
  make();
  EXPECT_EQ(thrown([&] { driver->start(); }).code, HVD_UNAVAILABLE);
}

TEST_F(OperatorTest, FilesThatAreNoneAreRefused) {
  EXPECT_EQ(thrown([&] { read_address_file(folder.path("missing")); }).code, HVD_UNAVAILABLE);
  std::ofstream(folder.path("other")) << "hello\nworld=1\n";
  EXPECT_EQ(thrown([&] { read_address_file(folder.path("other")); }).code, HVD_INVALID);
}

TEST_F(OperatorTest, TakesTheJobsSecretAsWellAsTheKey) {
  start();
  DriverAddress address = read_address_file(file());
  address.key = test::kSecret;
  address.job.clear();
  EXPECT_FALSE(command(address, "status", "", seconds(30)).empty());
  address.job = "another";
  EXPECT_EQ(thrown([&] { command(address, "status", "", seconds(30)); }).code, HVD_REFUSED);
  address.job.clear();
  address.key = std::string(40, 'x');
  EXPECT_EQ(thrown([&] { command(address, "status", "", seconds(30)); }).code, HVD_REFUSED);
}

TEST_F(OperatorTest, AWorkersKeyIsNoOperatorsAndTheOtherWayRound) {  // contract 13
  start();
  test::ScriptedWorker& worker = strange(1);
  DriverAddress address = read_address_file(file());
  const std::string key = address.key;
  address.key = worker.secret;
  EXPECT_EQ(thrown([&] { command(address, "status", "", seconds(30)); }).code, HVD_INVALID);
  // A worker that sends an operator's messages under its own identity is no operator.
  EXPECT_TRUE(worker.connect().ok());
  worker.say(wire::OperatorHelloT{});
  expect_refused(worker, wire::Refusal::Protocol, "expected Hello");
  // An operator that says a worker's hello is no worker.
  test::ScriptedWorker& fake = strange(2);
  fake.identity = wire::kOperatorIdentity;
  fake.secret = key;
  EXPECT_TRUE(fake.connect().ok());
  fake.hello();
  expect_refused(fake, wire::Refusal::Protocol, "expected OperatorHello");
}

}  // namespace
}  // namespace hvd::driver
