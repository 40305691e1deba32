// A driver and its agents in one process, with real connections and real children.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <optional>
#include <string_view>
#include <thread>

#include "agent/agent.h"
#include "agent/fleet.h"
#include "driver/driver.h"
#include "hvd/hvd.h"
#include "wire/support.h"

namespace hvd::agent {
namespace {

using hvd::test::Events;
using hvd::test::kDeadline;

const std::string kJobSecret(40, 's');

class AgentJob : public ::testing::Test {
 protected:
  AgentJob() {
    options_.logger =
        std::make_shared<Logger>(HVD_LOG_DEBUG, Callback<hvd_log_fn>(&AgentJob::log, this, nullptr));
    set(&options_, {{"heartbeat_timeout", "20"}});
  }

  void start_driver(const std::vector<std::string>& command, const std::string& np) {
    set(&options_, {{"discover_agents", "true"},
                    {"secret", kJobSecret},
                    {"listen", "127.0.0.1"},
                    {"np", np},
                    {"job", "j"},
                    {"guard", HVD_GUARD_FILE},
                    {"restart", "false"},
                    {"stop_grace", "1"},
                    {"heartbeat_interval", "0.05"}});
    driver_ = std::make_unique<driver::Driver>(options_);
    driver_->set_command(command, {"MINE=yes"});
    driver_->set_output([this](const launch::OutputLine& line) {
      if (blocked_.valid()) blocked_.wait();
      events_.change([&] { lines_.push_back(line.host + ": " + line.text); });
    });
    driver_->start();
  }
  std::string address() { return "127.0.0.1:" + std::to_string(driver_->status().port); }

  Agent* agent(const std::string& host, const std::string& patience = "20") {
    Options options([](const std::string&) { return std::nullopt; });
    options.logger = log_.logger;
    set(&options, {{"driver", address()},
                   {"secret", kJobSecret},
                   {"host", host},
                   {"guard", HVD_GUARD_FILE},
                   {"agent_timeout", patience},
                   {"stop_grace", "1"}});
    agents_.push_back(std::make_unique<Agent>(options));
    agents_.back()->start();
    return agents_.back().get();
  }
  static void set(Options* options, const std::vector<std::pair<std::string, std::string>>& values) {
    for (const auto& [key, value] : values) options->set(key, value);
  }
  /// The driver's loop stands still for so long.
  void hold_up_driver(Duration time) {
    held_up_for_ = time;
    EXPECT_EQ(refusal(wire::agent_identity("passer-by"), hello("passer-by")), "accepted");
  }
  [[nodiscard]] bool wait_lines(size_t count) {
    return events_.wait([&] { return lines_.size() >= count; });
  }

  /// Sends a first message as `identity` and gives the reason why it was refused; who is accepted leaves.
  std::string refusal(const std::string& identity, wire::AgentHelloT hello, uint64_t term = 0) {
    Loop loop("stranger");
    Events events;
    std::shared_ptr<wire::Channel> channel;
    std::string reason;
    bool closed = false;
    wire::connect_channel(
        loop, address(), kJobSecret, identity, {}, kDeadline,
        [&](std::shared_ptr<wire::Channel> connected, const Status& why) {
          if (!connected) return events.change([&] { reason = why.message; });
          channel = connected;
          wire::ChannelHandlers handlers;
          handlers.frame = [&](std::span<const uint8_t> frame) {
            const wire::EnvelopeT message = wire::decode(frame);
            const wire::RefusedT* refused = message.body.AsRefused();
            events.change([&] { reason = refused != nullptr ? refused->reason : "accepted"; });
          };
          handlers.closed = [&](const Status& why) {
            events.change([&] {
              closed = true;
              if (reason.empty()) reason = why.message;
            });
          };
          channel->set_handlers(std::move(handlers));
          wire::EnvelopeT message = wire::envelope("j", 0, 0, std::move(hello));
          message.sequence = 1;
          message.term = term;
          channel->send(wire::encode(message));
        });
    EXPECT_TRUE(events.wait([&] { return !reason.empty(); }));
    if (reason == "accepted") {  // or the driver would wait for it at its end
      hvd::test::run_on(loop, [&] {
        wire::EnvelopeT message = wire::envelope("j", 0, 0, wire::AgentLeaveT());
        message.sequence = 2;
        message.term = term;
        channel->send(wire::encode(message));
        return 0;
      });
      EXPECT_TRUE(events.wait([&] { return closed; }));
    }
    hvd::test::run_on(loop, [&] {
      if (channel) channel->close(Duration(0));
      channel.reset();
      return 0;
    });
    return reason;
  }
  static wire::AgentHelloT hello(const std::string& host) {
    wire::AgentHelloT hello;
    hello.protocol = wire::kProtocol;
    hello.library = "9.9.9";
    hello.abi = HVD_ABI_VERSION;
    hello.host = host;
    hello.slots = 1;
    hello.instance = 7;
    return hello;
  }

  /// On the thread that logs, which is the loop's when an agent has come.
  static void log(void* self, hvd_log_level level, const char* line) {
    auto* const job = static_cast<AgentJob*>(self);
    job->log_.logger->write(level, line);
    if (std::string_view(line).find("the agent of host passer-by has come") != std::string_view::npos)
      std::this_thread::sleep_for(job->held_up_for_.load());
  }

  hvd::test::LogLines log_;
  std::atomic<Duration> held_up_for_{};
  Options options_{[](const std::string&) { return std::nullopt; }};
  Events events_;
  std::vector<std::string> lines_;
  std::shared_future<void> blocked_;            // a reader that takes nothing before
  std::vector<std::unique_ptr<Agent>> agents_;  // which outlive the driver: it waits for those that are gone
  std::unique_ptr<driver::Driver> driver_;
};

TEST_F(AgentJob, WorkersRunUnderTheirAgentsAndEndWithTheJob) {
  start_driver({"sh", "-c", "echo \"$HVD_SLOT $MINE\"; exec sleep 1000"}, "2");
  Agent* const a = agent("a");
  Agent* const b = agent("b");
  ASSERT_TRUE(wait_lines(2));
  EXPECT_EQ(std::set<std::string>(lines_.begin(), lines_.end()),
            (std::set<std::string>{"a: 0 yes", "b: 0 yes"}));
  driver_->stop("enough");
  EXPECT_EQ(driver_->wait(kDeadline).code, HVD_JOB_FAILED);
  driver_.reset();
  EXPECT_EQ(a->wait(kDeadline).code, HVD_JOB_FAILED);
  EXPECT_EQ(b->wait(kDeadline).code, HVD_JOB_FAILED);
}

TEST_F(AgentJob, AnAgentSpeaksOfItsOwnWorkersAlone) {
  start_driver({"sh", "-c", "echo here; exec sleep 1000"}, "1");
  agent("a");
  ASSERT_TRUE(wait_lines(1));
  wire::AgentDiedT others, nobodys, empty;
  others.worker = empty.worker = 1;
  nobodys.worker = 99;
  others.life_token = std::make_unique<wire::Digest>(8, 9);
  nobodys.life_token = std::make_unique<wire::Digest>(8, 9);
  Loop loop("stranger");
  Events events;
  std::shared_ptr<wire::Channel> channel;
  size_t welcomes = 0;
  bool closed = false;
  wire::connect_channel(loop, address(), kJobSecret, wire::agent_identity("b"), {}, kDeadline,
                        [&](std::shared_ptr<wire::Channel> connected, const Status& why) {
                          ASSERT_TRUE(connected) << why.message;
                          channel = connected;
                          wire::ChannelHandlers handlers;
                          handlers.frame = [&](std::span<const uint8_t> frame) {
                            if (wire::decode(frame).body.type != wire::Body::AgentWelcome) return;
                            events.change([&] { ++welcomes; });
                          };
                          handlers.closed = [&](const Status&) { events.change([&] { closed = true; }); };
                          channel->set_handlers(std::move(handlers));
                          uint64_t sequence = 0;
                          const auto say = [&](auto body) {
                            wire::EnvelopeT message = wire::envelope("j", 0, 0, std::move(body));
                            message.sequence = ++sequence;
                            channel->send(wire::encode(message));
                          };
                          say(hello("b"));
                          for (int again = 0; again < 50; ++again) say(others);
                          say(nobodys);
                          say(empty);
                          wire::AgentLeaveT leave;
                          leave.reason = "that was all";
                          say(std::move(leave));
                        });
  // It has left: all that it has said was heard.
  EXPECT_TRUE(events.wait([&] { return welcomes == 1 && closed; }));
  const int lines = log_.count("says that worker 1 has died, which is another host's: ignored");
  EXPECT_GE(lines, 1);
  EXPECT_LE(lines, 20) << "an agent can't fill the log";
  EXPECT_EQ(driver_->snapshot().workers, 1);
  hvd::test::run_on(loop, [&] {
    channel->close(Duration(0));
    channel.reset();
    return 0;
  });
  driver_->stop("enough");
  EXPECT_EQ(driver_->wait(kDeadline).code, HVD_JOB_FAILED);
}

// contract 14
TEST_F(AgentJob, AnAgentOfANewerDriverIsSentBack) {
  options_.set("journal", testing::TempDir() + "hvd-agent-journal-" + std::to_string(::getpid()));
  start_driver({"sleep", "1000"}, "1");
  EXPECT_EQ(refusal(wire::agent_identity("a"), hello("a"), 2),
            "another driver has taken over from this one, which is of term 1");
  wire::AgentHelloT other = hello("b");  // terms are a job's own
  other.of_job = "another";
  EXPECT_EQ(refusal(wire::agent_identity("b"), other, 2), "accepted");
  EXPECT_EQ(refusal(wire::agent_identity("a"), hello("a"), 1), "accepted");
  std::filesystem::remove_all(options_.string("journal"));
}

// contract 13
TEST_F(AgentJob, AnAgentsFirstMessageIsAsLongAsItsWorkersTake) {
  start_driver({"sleep", "1000"}, "1");
  wire::AgentHelloT longest = hello("a");
  const uint64_t large = ~uint64_t{0} - kMostKept;
  for (size_t i = 0; i < kMostKept; ++i) {
    auto& worker = longest.kept.emplace_back(std::make_unique<wire::AgentWorkerT>());
    worker->worker = large + i;
    worker->slot = static_cast<int32_t>(i) + 1;
    if (i < kMostSlotsOfAnAgent) longest.workers.push_back(large + i);
  }
  EXPECT_EQ(refusal(wire::agent_identity("a"), longest), "accepted");
  wire::AgentHelloT longer = hello("b");
  longer.of_job.assign(kLongestHello, 'j');
  EXPECT_NE(refusal(wire::agent_identity("b"), longer), "accepted");
  EXPECT_TRUE(log_.wait_for("frame of"));
}

TEST_F(AgentJob, AllThatAWorkerPrintsArrivesInOrder) {
  start_driver({"sh", "-c", "seq 300000; exec sleep 1000"}, "1");
  agent("a");
  ASSERT_TRUE(wait_lines(300000));
  events_.read([&] {
    for (size_t i = 0; i < lines_.size(); ++i) {
      if (lines_[i] != "a: " + std::to_string(i + 1)) {
        ADD_FAILURE() << "line " << i + 1 << " is " << lines_[i];
        break;
      }
    }
    return 0;
  });
}

TEST_F(AgentJob, AnAgentThatIsDestroyedLeavesNothingBehind) {
  start_driver({"sh", "-c", "trap '' TERM; echo $$; while true; do sleep 1; done"}, "1");
  agent("a");
  ASSERT_TRUE(wait_lines(1));
  const pid_t worker = std::stoi(lines_[0].substr(3));
  agents_.clear();
  EXPECT_NE(::kill(worker, 0), 0);
}

TEST_F(AgentJob, AnAgentThatIsToldToStopEndsItsWorkersAndSaysSo) {
  start_driver({"sh", "-c", "echo $$; exec sleep 1000"}, "1");
  Agent* const a = agent("a");
  ASSERT_TRUE(wait_lines(1));
  a->stop("a test");
  const Status status = a->wait(kDeadline);
  EXPECT_EQ(status.code, HVD_CLOSED);
  EXPECT_EQ(status.message, "a test");
  EXPECT_TRUE(log_.wait_for("the agent of host a has left: a test"));
}

TEST_F(AgentJob, WhoIsNoAgentOfThisHostIsToldSo) {
  start_driver({"sleep", "1000"}, "1");
  wire::AgentHelloT other = hello("x");
  other.abi = 99;
  const std::string versions = refusal("agent/x", other);
  for (const char* part :
       {"host x is libhvd 9.9.9 (ABI 99", HVD_VERSION_STRING, "install the same version"}) {
    EXPECT_NE(versions.find(part), std::string::npos) << versions;
  }
  EXPECT_NE(refusal("agent/y", hello("x")).find("key of agent/y is not that of host x"), std::string::npos);
  EXPECT_NE(refusal("worker/1", hello("x")).find("key of worker/1 is not that"), std::string::npos);
  wire::AgentHelloT none = hello("x");
  none.slots = 0;
  EXPECT_NE(refusal("agent/x", none).find("with 0 slots"), std::string::npos);
  none.slots = kMostSlotsOfAnAgent + 1;
  EXPECT_NE(refusal("agent/x", none).find("with 4097 slots"), std::string::npos);
  none = hello("x");
  none.instance = 0;
  EXPECT_NE(refusal("agent/x", none), "accepted");
  wire::AgentHelloT ahead = hello("x");
  ahead.received = 5;  // of orders that nobody gave: it is another driver's agent, and starts anew
  EXPECT_EQ(refusal("agent/x", ahead), "accepted");
}

TEST_F(AgentJob, AnAgentThatReturnsNamesAsManyWorkersAsItMayHave) {
  start_driver({"sleep", "1000"}, "1");
  wire::AgentHelloT full = hello("x");
  full.slots = kMostSlotsOfAnAgent;
  for (int32_t slot = 0; slot < full.slots; ++slot) {
    full.workers.push_back(static_cast<uint64_t>(slot) + 1);
    full.kept.push_back(std::make_unique<wire::AgentWorkerT>());
    full.kept.back()->worker = full.workers.back();
    full.kept.back()->slot = slot;
  }
  EXPECT_EQ(refusal(wire::agent_identity("x"), std::move(full)), "accepted");
}

/// An agent that says what a test wants it to say.
class Liar {
 public:
  Liar(const std::string& driver, const std::string& host, const wire::AgentHelloT& hello) {
    std::promise<void> connected;
    wire::ChannelLimits limits;
    limits.max_queued = size_t{1} << 30;
    hvd::test::run_on(loop_, [&] {
      wire::connect_channel(
          loop_, driver, kJobSecret, wire::agent_identity(host), limits, kDeadline,
          [&](std::shared_ptr<wire::Channel> channel, const Status&) {
            channel_ = std::move(channel);
            if (channel_) {
              channel_->set_handlers({[this](std::span<const uint8_t> frame) { received(frame); },
                                      [this](const Status&) { events_.change([&] { closed_ = true; }); }});
            }
            connected.set_value();
          });
      return 0;
    });
    connected.get_future().wait();
    say(hello);
  }
  ~Liar() {
    hvd::test::run_on(loop_, [&] {
      if (channel_) channel_->close(Duration(0));
      channel_.reset();
      return 0;
    });
  }
  template <class Body>
  void say(Body body) {
    wire::EnvelopeT message = wire::envelope("j", 0, 0, std::move(body));
    hvd::test::run_on(loop_, [&] {
      message.sequence = ++sent_;
      if (channel_) channel_->send(wire::encode(message));
      return 0;
    });
  }
  uint64_t started() {
    EXPECT_TRUE(events_.wait([&] { return worker_ != 0; }));
    return events_.read([&] { return worker_; });
  }
  std::string refused() {
    EXPECT_TRUE(events_.wait([&] { return !refused_.empty(); }));
    return events_.read([&] { return refused_; });
  }
  [[nodiscard]] bool wait_acknowledged() {
    return events_.wait([&] { return acknowledged_; });
  }
  /// Whether the driver still knew it when it came.
  bool resumed() {
    EXPECT_TRUE(events_.wait([&] { return resumed_.has_value(); }));
    return events_.read([&] { return resumed_.value_or(false); });
  }
  bool is_refused() {
    return events_.read([&] { return !refused_.empty() || closed_; });
  }

 private:
  void received(std::span<const uint8_t> frame) {
    const wire::EnvelopeT message = wire::decode(frame);
    events_.change([&] {
      if (const auto* start = message.body.AsAgentStart()) worker_ = start->worker;
      if (const auto* refused = message.body.AsRefused()) refused_ = refused->reason;
      if (const auto* welcome = message.body.AsAgentWelcome()) resumed_ = welcome->resumed;
      if (message.body.type == wire::Body::AgentAck) acknowledged_ = true;
    });
  }
  Loop loop_{"liar"};
  Events events_;
  std::shared_ptr<wire::Channel> channel_;
  uint64_t sent_ = 0, worker_ = 0;
  std::string refused_;
  std::optional<bool> resumed_;
  bool acknowledged_ = false, closed_ = false;
};

constexpr Duration kHeldUp = std::chrono::seconds(5);  // longer than the deadlines of these tests

// contract 19
TEST_F(AgentJob, ADriverThatWasHeldUpTakesNoAgentForSilent) {
  set(&options_, {{"heartbeat_timeout", "4"}});
  start_driver({"sleep", "1000"}, "1");
  Liar quiet(address(), "x", hello("x"));
  quiet.started();
  hold_up_driver(kHeldUp);
  // It looks for silent agents 50 ms after one has come: it has done so before this one speaks.
  std::this_thread::sleep_for(milliseconds(500));
  quiet.say(wire::AgentHeartbeatT{});
  EXPECT_TRUE(quiet.wait_acknowledged());
  EXPECT_EQ(log_.count("no sign of life"), 0);
}

// contract 19
TEST_F(AgentJob, ADriverThatWasHeldUpWaitsForAnAgentAllTheSame) {
  set(&options_, {{"agent_timeout", "4"}});
  start_driver({"sleep", "1000"}, "1");
  Liar(address(), "x", hello("x")).started();
  ASSERT_TRUE(log_.wait_for("the connection of host x's agent is over"));
  hold_up_driver(kHeldUp);
  EXPECT_TRUE(Liar(address(), "x", hello("x")).resumed());
}

TEST_F(AgentJob, AnAgentThatFloodsADriverWhoseReaderIsSlowIsCutOff) {
  // Declared first: what the driver waits for when it goes.
  std::promise<void> over;
  const std::shared_future<void> reader = over.get_future().share();
  const std::unique_ptr<std::promise<void>, void (*)(std::promise<void>*)> let_go(
      &over, [](std::promise<void>* p) { p->set_value(); });
  blocked_ = reader;
  start_driver({"sleep", "1000"}, "1");
  Liar liar(address(), "x", hello("x"));
  wire::AgentOutputT output;
  output.worker = liar.started();
  output.bytes.assign(size_t{1} << 20, '\n');
  size_t pieces = 0;
  for (; pieces < 40 && !liar.is_refused(); ++pieces) {
    output.number = pieces + 1;
    liar.say(output);
  }
  EXPECT_NE(liar.refused().find("beyond what was acknowledged"), std::string::npos) << liar.refused();
}

TEST_F(AgentJob, AnAgentThatTellsOfMoreWorkersThanItCanHaveIsCutOff) {
  start_driver({"sleep", "1000"}, "1");
  Liar liar(address(), "x", hello("x"));
  liar.started();
  wire::AgentHeartbeatT heartbeat;
  heartbeat.running.assign(9000, 1);
  liar.say(heartbeat);
  EXPECT_NE(liar.refused().find("9000 workers in a heartbeat: expected at most 8192"), std::string::npos)
      << liar.refused();
}

TEST_F(AgentJob, AnAgentThatSaysTheSameAgainAndAgainDoesNotFillTheLog) {
  start_driver({"sleep", "1000"}, "1");
  Liar liar(address(), "x", hello("x"));
  liar.started();
  wire::AgentDrainT drain;
  drain.timeout_ms = 1000;
  for (int i = 0; i < 2000; ++i) {
    drain.reason = "for the " + std::to_string(i) + "th time";
    liar.say(drain);
  }
  liar.say(wire::AgentStartT{});  // which an agent may not send: all before it was heard
  EXPECT_NE(liar.refused().find("an agent may not send AgentStart"), std::string::npos) << liar.refused();
  EXPECT_LT(log_.count("host x"), 200);
}

TEST_F(AgentJob, ASecondAgentOfAHostWaitsAndGivesUp) {
  start_driver({"sh", "-c", "echo here; exec sleep 1000"}, "1");
  agent("a");
  ASSERT_TRUE(wait_lines(1));
  Agent* const again = agent("a", "0.5");
  const Status status = again->wait(kDeadline);
  EXPECT_EQ(status.code, HVD_DRIVER_LOST);
  EXPECT_NE(status.message.find("has another agent"), std::string::npos) << status.message;
}

}  // namespace
}  // namespace hvd::agent
