// A driver refuses agents of other versions, drivers and hosts, cuts off those that lie or say too much, and
// waits for those that it could not hear (contract 13, 14, 19).
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <optional>
#include <string_view>
#include <thread>

#include "agent/fleet.h"
#include "agent/job_fixture.h"
#include "hvd/hvd.h"

namespace hvd::agent {
namespace {

class AgentServer : public AgentJob {
 protected:
  AgentServer() {
    options_.logger =
        std::make_shared<Logger>(HVD_LOG_DEBUG, Callback<hvd_log_fn>(&AgentServer::log, this, nullptr));
  }
  ~AgentServer() override { driver_.reset(); }  // it logs to this until then

  /// The driver's loop stands still for so long.
  void hold_up_driver(Duration time) {
    held_up_for_ = time;
    EXPECT_EQ(refusal(wire::agent_identity("passer-by"), hello("passer-by")), "accepted");
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

 private:
  /// On the thread that logs, which is the loop's when an agent has come.
  static void log(void* self, hvd_log_level level, const char* line) {
    auto* const job = static_cast<AgentServer*>(self);
    job->log_.logger->write(level, line);
    if (std::string_view(line).find("the agent of host passer-by has come") != std::string_view::npos)
      std::this_thread::sleep_for(job->held_up_for_.load());
  }

  std::atomic<Duration> held_up_for_{};
};

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
  [[nodiscard]] bool wait_closed() {
    return events_.wait([&] { return closed_; });
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

TEST_F(AgentServer, AnAgentSpeaksOfItsOwnWorkersAlone) {
  start_driver({"sh", "-c", "echo here; exec sleep 1000"}, "1");
  agent("a");
  ASSERT_TRUE(wait_lines(1));
  wire::AgentDiedT others, nobodys, empty;
  others.worker = empty.worker = 1;
  nobodys.worker = 99;
  others.life_token = std::make_unique<wire::Digest>(8, 9);
  nobodys.life_token = std::make_unique<wire::Digest>(8, 9);
  Liar liar(address(), "b", hello("b"));
  for (int again = 0; again < 50; ++again) liar.say(others);
  liar.say(nobodys);
  liar.say(empty);
  wire::AgentLeaveT leave;
  leave.reason = "that was all";
  liar.say(leave);
  EXPECT_TRUE(liar.wait_closed());  // all that it has said was heard
  EXPECT_FALSE(liar.resumed());
  const int lines = log_.count("says that worker 1 has died, which is another host's: ignored");
  EXPECT_GE(lines, 1);
  EXPECT_LE(lines, 20) << "an agent can't fill the log";
  EXPECT_EQ(driver_->snapshot().workers, 1);
  driver_->stop("enough");
  EXPECT_EQ(driver_->wait(kDeadline).code, HVD_JOB_FAILED);
}

// contract 14
TEST_F(AgentServer, AnAgentOfANewerDriverIsSentBack) {
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
TEST_F(AgentServer, AnAgentsFirstMessageIsAsLongAsItsWorkersTake) {
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

TEST_F(AgentServer, WhoIsNoAgentOfThisHostIsToldSo) {
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

TEST_F(AgentServer, AnAgentThatReturnsNamesAsManyWorkersAsItMayHave) {
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

constexpr Duration kHeldUp = std::chrono::seconds(5);  // longer than the deadlines of these tests

// contract 19
TEST_F(AgentServer, ADriverThatWasHeldUpTakesNoAgentForSilent) {
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
TEST_F(AgentServer, ADriverThatWasHeldUpWaitsForAnAgentAllTheSame) {
  set(&options_, {{"agent_timeout", "4"}});
  start_driver({"sleep", "1000"}, "1");
  Liar(address(), "x", hello("x")).started();
  ASSERT_TRUE(log_.wait_for("the connection of host x's agent is over"));
  hold_up_driver(kHeldUp);
  EXPECT_TRUE(Liar(address(), "x", hello("x")).resumed());
}

TEST_F(AgentServer, AnAgentThatFloodsADriverWhoseReaderIsSlowIsCutOff) {
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

TEST_F(AgentServer, AnAgentThatTellsOfMoreWorkersThanItCanHaveIsCutOff) {
  start_driver({"sleep", "1000"}, "1");
  Liar liar(address(), "x", hello("x"));
  liar.started();
  wire::AgentHeartbeatT heartbeat;
  heartbeat.running.assign(9000, 1);
  liar.say(heartbeat);
  EXPECT_NE(liar.refused().find("9000 workers in a heartbeat: expected at most 8192"), std::string::npos)
      << liar.refused();
}

TEST_F(AgentServer, AnAgentThatSaysTheSameAgainAndAgainDoesNotFillTheLog) {
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

}  // namespace
}  // namespace hvd::agent
