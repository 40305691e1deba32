// The supervisor alone: workers that it may not forget, and time in which it stood still.
#include "driver/supervisor.h"

#include <algorithm>

#include "driver/scripted_worker.h"

namespace hvd::driver {
namespace {

using test::Launched;
using test::on_loop;
using test::Recorder;
using test::ScriptedWorker;

const std::string kSecret(40, 's');

/// Starts nobody; tells the test who is to be started and ended.
class ToldLauncher final : public launch::Launcher {
 public:
  ToldLauncher(Recorder<Launched>& started, Recorder<uint64_t>& ended) : started_(started), ended_(ended) {}
  void start(launch::LaunchRequest request) override {
    started_.add({request.worker, request.host, request.slot, request.environment});
  }
  void stop(uint64_t worker, Duration) override { ended_.add(worker); }
  void kill(uint64_t worker) override { ended_.add(worker); }
  void set_rank(uint64_t, int32_t) override {}
  std::optional<int32_t> ended(uint64_t) const override { return std::nullopt; }
  launch::Life life(uint64_t, int64_t) const override { return launch::Life::kUnknown; }
  void close(Duration) override {}

 private:
  Recorder<Launched>& started_;
  Recorder<uint64_t>& ended_;
};

class SupervisorTest : public ::testing::Test {
 protected:
  SupervisorTest() {
    Settings& s = config.settings;
    s.job = "j";
    s.secret = kSecret;
    s.listen = "127.0.0.1:0";
    s.np = s.min_np = 1;
    s.max_np = 8;
    s.membership.restart = false;
    s.membership.start_timeout = s.membership.elastic_timeout = test::kDeadline;
    s.membership.join_settle = milliseconds(20);
    s.heartbeat_interval = milliseconds(50);
    s.heartbeat_timeout = s.slow_timeout = test::kDeadline;
    s.stop_grace = s.leave_timeout = seconds(1);
    s.discovery_interval = s.discovery_timeout = seconds(1);
    config.logger = log.logger();
    config.changed = [](const DriverStatus&) {};
    config.make_launcher = [this](const launch::Launcher::Events&) {
      return std::make_unique<ToldLauncher>(started, ended);
    };
  }
  ~SupervisorTest() override {
    others.clear();
    on_loop(loop, [&] { supervisor.reset(); });
  }
  void begin() {
    on_loop(loop, [&] {
      supervisor = std::make_unique<Supervisor>(loop, std::move(config), make_fixed_discovery({{"a", 1}}));
      supervisor->discover_first([&](const Status&) { loop.post([&] { supervisor->begin(); }); });
    });
    ASSERT_TRUE(started.wait_count(1)) << log.text();
  }
  std::unique_ptr<ScriptedWorker> join(const Launched& place) {
    auto worker = std::make_unique<ScriptedWorker>(workers, place);
    EXPECT_TRUE(worker->connect().ok());
    worker->hello();
    EXPECT_NE(worker->await(&wire::BodyUnion::AsWelcome), nullptr) << log.text();
    return worker;
  }
  /// A worker that comes by itself to a host of this name.
  std::unique_ptr<ScriptedWorker> arrive(const std::string& host) {
    Launched place = started.all().at(0);
    place.host = host;
    ScriptedWorker applicant(workers, place);
    applicant.apply(kSecret);
    const wire::AdmittedT* admitted = applicant.await(&wire::BodyUnion::AsAdmitted);
    if (admitted == nullptr) {
      ADD_FAILURE() << log.text();
      return nullptr;
    }
    place.worker = admitted->worker;
    auto worker = std::make_unique<ScriptedWorker>(workers, place);
    worker->secret = admitted->key;
    EXPECT_TRUE(worker->connect().ok());
    worker->hello();
    EXPECT_NE(worker->await(&wire::BodyUnion::AsWelcome), nullptr) << log.text();
    return worker;
  }

  test::RecordedLog log;
  Recorder<Launched> started;
  Recorder<uint64_t> ended;
  SupervisorConfig config;
  Loop loop{"driver"}, workers{"workers"};
  std::unique_ptr<Supervisor> supervisor;
  std::vector<std::unique_ptr<ScriptedWorker>> others;
};

/// contract 3: it came by address, so that no process of this driver's stands for it.
TEST_F(SupervisorTest, AMemberThatCameByAddressIsNotForgottenWhileItLives) {
  config.remembered = 2;
  begin();
  const auto first = join(started.all().at(0));
  const auto member = arrive("b");
  first->ready();
  member->ready();
  const auto* assignment = first->await(&wire::BodyUnion::AsAssignment);
  ASSERT_NE(assignment, nullptr) << log.text();
  if (assignment->members.size() < 2) {  // the first one was alone for a moment
    first->synced(1, 1);
    ASSERT_NE(first->await(&wire::BodyUnion::AsHostsUpdated), nullptr) << log.text();
    first->ready(1, true, 1);
    assignment = first->await(&wire::BodyUnion::AsAssignment, 2);
    ASSERT_NE(assignment, nullptr) << log.text();
  }
  ASSERT_EQ(assignment->members.size(), 2u);
  for (int i = 0; i < 6; ++i) others.push_back(arrive("c" + std::to_string(i)));
  const size_t aborts = first->count(wire::Body::Abort);
  member->drop();
  EXPECT_NE(first->await(&wire::BodyUnion::AsAbort, aborts + 1), nullptr) << log.text();
}

/// contract 19: the driver was stopped for longer than a worker may take to start.
TEST_F(SupervisorTest, TimeInWhichItStoodStillIsNotTheWorkers) {
  const Duration start = test::patient(std::chrono::milliseconds(1500));
  config.settings.membership.start_timeout = start;
  begin();
  on_loop(loop, [&] {
    for (const Time began = now(); now() < began + start + start / 4;) std::this_thread::yield();
  });
  const auto worker = join(started.all().at(0));
  worker->ready();
  EXPECT_NE(worker->await(&wire::BodyUnion::AsAssignment), nullptr) << log.text();
  EXPECT_TRUE(ended.all().empty()) << log.text();
}

}  // namespace
}  // namespace hvd::driver
