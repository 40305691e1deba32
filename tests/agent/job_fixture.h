// A driver and its agents in one process, with real connections and real children.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string_view>
#include <thread>

#include "agent/agent.h"
#include "driver/driver.h"
#include "hvd/hvd.h"
#include "wire/support.h"

namespace hvd::agent {
using hvd::test::Events;
using hvd::test::kDeadline;

inline const std::string kJobSecret(40, 's');

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

}  // namespace hvd::agent
