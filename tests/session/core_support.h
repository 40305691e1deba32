// A core and what came out of it, for tests in one thread and without a clock.
#pragma once

#include <gtest/gtest.h>

#include "session/session_core.h"

namespace hvd::session {

inline constexpr uint64_t kWorker = 5;

inline CoreConfig core_config() {
  CoreConfig c;
  c.driver = "driver:1";
  c.job = "job";
  c.host = "a";
  c.worker = kWorker;
  return c;
}

/// Members by worker id, one per host "h<id>" unless all on one.
inline wire::AssignmentT members(std::vector<uint64_t> workers, uint64_t epoch = 1, int32_t root = 0) {
  wire::AssignmentT a;
  a.epoch = epoch;
  a.root = root;
  for (uint64_t w : workers) {
    a.members.push_back(std::make_unique<wire::MemberT>());
    a.members.back()->worker = w;
    a.members.back()->host = "h" + std::to_string(w);
  }
  return a;
}

inline wire::WelcomeT welcome(int64_t interval = 1000, int64_t timeout = 10000, uint64_t epoch = 0) {
  wire::WelcomeT w;
  w.heartbeat_interval_ms = interval;
  w.heartbeat_timeout_ms = timeout;
  w.epoch = epoch;
  return w;
}

inline wire::HostsUpdatedT hosts(uint64_t epoch, bool interrupt) {
  wire::HostsUpdatedT h;
  h.epoch = epoch;
  h.interrupt = interrupt;
  h.added = {"b"};
  return h;
}

class CoreTest : public testing::Test {
 protected:
  using Actions = SessionCore::Actions;

  template <class Table>
  Actions receive(uint64_t generation, Table body) {
    auto e = wire::envelope("job", kWorker, generation, std::move(body));
    e.sequence = ++sequence;
    return core.received(e, time);
  }
  void become_welcome() {
    core.connected(seconds(5), time);
    receive(0, welcome());
    ASSERT_TRUE(core.welcomed());
  }
  void become_member(uint64_t generation, uint64_t epoch = 1) {
    core.ready({}, time);
    ASSERT_EQ(of<Deliver>(receive(generation, members({3, kWorker, 9}, epoch))).size(), 1u);
    core.taken(generation, time);
  }
  template <class A>
  static std::vector<A> of(Actions actions) {
    std::vector<A> result;
    for (auto& action : actions)
      if (auto* a = std::get_if<A>(&action)) result.push_back(std::move(*a));
    return result;
  }
  /// The status with which these actions end the session.
  static Status end_of(Actions actions) {
    auto ends = of<End>(std::move(actions));
    EXPECT_EQ(ends.size(), 1u);
    return ends.empty() ? Status(HVD_INTERNAL, "no end") : ends[0].why;
  }

  SessionCore core{core_config()};
  Time time{seconds(1000)};
  uint64_t sequence = 0;
};

}  // namespace hvd::session
