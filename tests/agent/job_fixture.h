// A driver and its agents in one process, with real connections and real children.
#pragma once

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/agent.h"
#include "driver/driver.h"
#include "wire/support.h"

namespace hvd::agent {

using hvd::test::Events;
using hvd::test::kDeadline;

inline const std::string kJobSecret(40, 's');

class AgentJob : public ::testing::Test {
 protected:
  AgentJob() {
    options_.logger = log_.logger;
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
      if (blocked_.valid()) return blocked_.wait();
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
  [[nodiscard]] bool wait_lines(size_t count) {
    return events_.wait([&] { return lines_.size() >= count; });
  }

  hvd::test::LogLines log_;
  Options options_{[](const std::string&) { return std::nullopt; }};
  Events events_;
  std::vector<std::string> lines_;
  std::shared_future<void> blocked_;            // a reader that waits for it, and keeps nothing
  std::vector<std::unique_ptr<Agent>> agents_;  // which outlive the driver: it waits for those that are gone
  std::unique_ptr<driver::Driver> driver_;
};

}  // namespace hvd::agent
