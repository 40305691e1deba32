// A driver whose workers are scripted by the test: it launches by callback and tells the test.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "driver/driver.h"
#include "driver/scripted_worker.h"

namespace hvd::driver::test {

struct Stopped {
  uint64_t worker;
  bool force;
};

inline const std::string kSecret(40, 's');

class JobTest : public ::testing::Test {
 protected:
  JobTest() {
    options.logger = log.logger();
    set("hosts", "a:2");
    set("local_hosts", "true");
    set("secret", kSecret);
    set("heartbeat_timeout", "30");
    set("stop_grace", "0.2");
    set("restart", "false");
    set("join_settle", "0.05");
  }
  void set(const std::string& key, const std::string& value) { options.set(key, value); }

  void make() {
    driver = std::make_unique<Driver>(options);
    launch::LaunchFunctions functions;
    functions.start = [this](const launch::LaunchRequest& request) {
      launched.add({request.worker, request.host, request.slot, request.environment});
      return start_result;
    };
    functions.stop = [this, d = driver.get()](uint64_t worker, bool force) {
      stopped.add({worker, force});
      d->worker_exited(worker, force ? 256 + 9 : 0);
    };
    driver->set_launcher(std::move(functions));
  }
  void start() {
    make();
    driver->start();
  }
  /// The n-th worker that was launched, as a scripted one that is connected and has said hello.
  ScriptedWorker& join(size_t n) {
    ScriptedWorker& worker = strange(n);
    EXPECT_TRUE(worker.connect().ok());
    worker.hello();
    EXPECT_NE(worker.await(&wire::BodyUnion::AsWelcome), nullptr);
    return worker;
  }
  /// The same, not connected yet.
  ScriptedWorker& strange(size_t n) {
    EXPECT_TRUE(launched.wait_count(n)) << log.text();
    workers.push_back(std::make_unique<ScriptedWorker>(loop, launched.all().at(n - 1)));
    return *workers.back();
  }
  /// A generation of the first `size` workers, synced at revision 1.
  void form(size_t size) {
    for (size_t i = 1; i <= size; ++i) join(i).ready();
    for (size_t i = 0; i < size; ++i) {
      ASSERT_NE(workers[i]->await(&wire::BodyUnion::AsAssignment), nullptr) << log.text();
      workers[i]->synced(1, 1);
    }
  }
  /// A connection that is refused: with this code, a reason that has this part, and then closed.
  void expect_refused(ScriptedWorker& worker, wire::Refusal code, const std::string& part) {
    const wire::RefusedT* refused = worker.await(&wire::BodyUnion::AsRefused);
    ASSERT_NE(refused, nullptr) << log.text();
    EXPECT_EQ(refused->code, code) << refused->reason;
    EXPECT_NE(refused->reason.find(part), std::string::npos) << refused->reason;
    EXPECT_TRUE(worker.hung_up());
  }
  void TearDown() override {
    workers.clear();
    // Nobody is left who would take the second that a job's workers have for their last words.
    for (const Launched& worker : launched.all()) {
      if (driver) driver->worker_exited(worker.worker, 0);
    }
    driver.reset();
  }

  RecordedLog log;
  Options options{[](const std::string&) { return std::nullopt; }};
  Recorder<Launched> launched;
  Recorder<Stopped> stopped;
  int32_t start_result = 0;
  Loop loop{"workers"};
  std::unique_ptr<Driver> driver;
  std::vector<std::unique_ptr<ScriptedWorker>> workers;
};

}  // namespace hvd::driver::test
