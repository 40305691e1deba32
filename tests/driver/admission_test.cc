// Workers that come by address: what one who knows the secret may not do to those that are there.
#include "driver/job_fixture.h"

namespace hvd::driver {
namespace {

using test::kSecret;
using test::Launched;
using test::ScriptedWorker;

/// One worker of the driver's own, whose process runs, and a stranger with the secret.
class Admission : public test::JobTest {
 protected:
  Admission() {
    set("hosts", "a:1");
    set("np", "1");
    set("job", "j");
    set("guard", HVD_GUARD_FILE);
    set("heartbeat_interval", "0.05");
    driver = std::make_unique<Driver>(options);
    driver->set_output([this](const launch::OutputLine& line) { lines.add(line); });
    driver->set_command({"sh", "-c", "echo $$; echo $HVD_DRIVER; echo $HVD_SECRET; exec sleep 1000"}, {});
    driver->start();
  }
  ScriptedWorker& member() {
    EXPECT_TRUE(lines.wait_count(3)) << log.text();
    seat = {
        1, "a", 0, {"HVD_DRIVER=" + lines.all()[1].text, "HVD_SECRET=" + lines.all()[2].text, "HVD_JOB=j"}};
    workers.push_back(std::make_unique<ScriptedWorker>(loop, seat));
    ScriptedWorker& worker = *workers.back();
    EXPECT_TRUE(worker.connect().ok());
    wire::HelloT hello;
    hello.protocol = wire::kProtocol;
    hello.library = "test";
    hello.host = "a";
    hello.pid = std::stoi(lines.all()[0].text);
    worker.say(std::move(hello));
    worker.ready();
    EXPECT_NE(worker.await(&wire::BodyUnion::AsAssignment), nullptr) << log.text();
    return worker;
  }
  ScriptedWorker& applicant(int32_t slot) {
    workers.push_back(std::make_unique<ScriptedWorker>(loop, seat));
    ScriptedWorker& worker = *workers.back();
    worker.apply(kSecret, slot);
    return worker;
  }
  Launched seat;
  test::Recorder<launch::OutputLine> lines;
};

TEST_F(Admission, NobodyTakesThePlaceOfAWorkerThatIsSlow) {  // contract 19
  ScriptedWorker& worker = member();
  // It says nothing, and its process runs: it is slow, and another one has come for its place.
  expect_refused(applicant(0), wire::Refusal::Busy, "which lives");
  EXPECT_EQ(worker.count(wire::Body::Refused), 0u);
  EXPECT_TRUE(test::eventually([&] { return driver->status().phase == HVD_PHASE_RUNNING; }));
}

TEST_F(Admission, WhoKnocksAgainAndAgainDoesNotFillTheLog) {
  member();
  for (int i = 0; i < 60; ++i) expect_refused(applicant(0), wire::Refusal::Busy, "which lives");
  const std::string text = log.text();
  size_t said = 0;
  for (size_t at = 0; (at = text.find("was not let in", at)) != std::string::npos; ++at) ++said;
  EXPECT_GE(said, 1u);
  EXPECT_LT(said, 60u);
}

}  // namespace
}  // namespace hvd::driver
