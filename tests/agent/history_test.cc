// Histories of a driver and its agents from a seed: connections that break and lose what is under way, agents
// that die and come anew, name other slots, are drained, are switched off while the driver stands still, or
// come with the identity of one that is gone; workers that print, fail and end. Whatever happens, each worker
// has one end, no process runs twice, and what a worker printed arrives in order and whole unless its agent
// was lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "agent/agent_core.h"
#include "agent/fleet.h"
#include "memory_spool.h"

namespace hvd::agent {
namespace {

constexpr int kHosts = 3;

struct Simulation {
  explicit Simulation(uint64_t seed, bool by_template)
      : random(seed),
        templated(by_template),
        fleet(FleetConfig{by_template, seconds(20), seconds(10), 100}) {}

  struct Process {
    uint64_t printed = 0;
    bool killed = false, exited = false;
  };
  struct AgentProcess {
    AgentProcess(uint64_t i, Time now)
        : instance(i), core({seconds(20), seconds(2), 200}, now, std::make_unique<MemorySpool>(400)) {}
    uint64_t instance;
    AgentCore core;
    bool connected = false, welcomed = false, held = false, finished = false;
    bool unheard = false;  // the driver stands still, as far as it can tell
    std::map<uint64_t, Process> processes;
    std::deque<Report> up;  // under way
    std::deque<Order> down;
  };
  struct Worker {
    std::string host;
    bool failed = false, exited = false, gone = false, agent_lost = false;
    uint64_t heard = 0, printed = 0;
  };

  size_t below(size_t n) { return static_cast<size_t>(random() % n); }
  bool chance(int percent) { return below(100) < static_cast<size_t>(percent); }
  static std::string name(size_t i) { return std::string(1, static_cast<char>('a' + i)); }

  void fleet_does(FleetActions actions) {
    for (FleetAction& action : actions) {
      if (auto* start = std::get_if<StartAgent>(&action)) {
        ASSERT_TRUE(templated);
        ASSERT_TRUE(programs.insert(start->host).second) << "two programs for host " << start->host;
      } else if (auto* stop = std::get_if<StopAgent>(&action)) {
        programs.erase(stop->host);
        later.push_back(stop->host);
      } else if (auto* send = std::get_if<SendOrder>(&action)) {
        const auto agent = agents.find(send->host);
        if (agent != agents.end() && agent->second->connected)
          agent->second->down.push_back(std::move(send->order));
      } else if (auto* failed = std::get_if<WorkerFailed>(&action)) {
        Worker& w = workers.at(failed->worker);
        ASSERT_FALSE(w.failed || w.exited || w.gone)
            << "worker " << failed->worker << " failed after its end";
        w.failed = true;
      } else if (auto* exited = std::get_if<WorkerExited>(&action)) {
        Worker& w = workers.at(exited->worker);
        ASSERT_FALSE(w.failed || w.exited || w.gone) << "worker " << exited->worker << " exited twice";
        w.exited = true;
      } else if (auto* output = std::get_if<WorkerOutput>(&action)) {
        Worker& w = workers.at(output->worker);
        ASSERT_FALSE(w.failed || w.gone);
        const std::string text(output->bytes.begin(), output->bytes.end());
        const uint64_t number = std::stoull(text);
        // What the driver before this one had not acknowledged comes again.
        if (takeovers == 0 || number > w.heard) {
          ASSERT_EQ(number, ++w.heard) << "output of worker " << output->worker;
        } else {
          ++again;
        }
      } else if (auto* gone = std::get_if<WorkerGone>(&action)) {
        Worker& w = workers.at(gone->worker);
        ASSERT_FALSE(w.failed || w.gone) << "worker " << gone->worker << " is gone twice";
        w.gone = true;
        if (w.exited && !w.agent_lost) {
          ASSERT_EQ(w.heard, w.printed) << "worker " << gone->worker << " printed more";
          ++whole;
        }
      }
    }
    for (const std::string& host : std::exchange(later, {}))
      fleet_does(fleet->agent_ended(host, "stopped", now));
  }

  void agent_does(const std::string& host, AgentProcess& agent, CoreActions actions) {
    for (CoreAction& action : actions) {
      ASSERT_FALSE(agent.finished) << "an action after the last one";
      if (auto* launch = std::get_if<LaunchWorker>(&action)) {
        const uint64_t id = launch->order.worker;
        ASSERT_TRUE(started.insert(id).second) << "worker " << id << " was started twice";
        agent.processes[id] = {};
      } else if (auto* stop = std::get_if<StopProcess>(&action)) {
        if (const auto p = agent.processes.find(stop->worker); p != agent.processes.end())
          p->second.killed = true;
      } else if (auto* send = std::get_if<SendReport>(&action)) {
        if (agent.connected) agent.up.push_back(std::move(send->report));
      } else if (std::holds_alternative<SendDrain>(action)) {
        if (agent.connected) drains.insert(host);
      } else if (auto* hold = std::get_if<HoldOutput>(&action)) {
        agent.held = hold->hold;
      } else if (auto* finished = std::get_if<Finished>(&action)) {
        agent.finished = true;
        if (finished->code == HVD_OK) ++drained;
        if (agent.held) ++ended_held;
      }
    }
  }

  /// The next one knows by the journal who was started, and whose end it has not heard of.
  void driver_dies() {
    ++takeovers;
    for (auto& [host, agent] : agents) {
      if (!agent->connected) continue;
      agent->connected = false;
      agent->up.clear();
      agent->down.clear();
      agent_does(host, *agent, agent->core.disconnected("the driver has died", now));
    }
    greeted.clear();
    drains.clear();
    fleet.emplace(FleetConfig{templated, seconds(20), seconds(10), 100, true});
    for (const std::string& host : programs) fleet->expect(host, 0, true, now);
    for (auto& [id, w] : workers) {
      if (w.failed || w.gone) continue;
      fleet->expect(id, w.host, 0, now);
      if (!started.contains(id)) w.agent_lost = true;  // its order may have gone with the driver
      w.exited = false;
    }
  }

  /// Somebody with the key of the host's agent: one that was killed and is not quite dead, or one that lies.
  void impostor(const std::string& host) {
    const uint64_t instance = 1 + below(last_instance);
    const AgentHello hello{host, 1 + static_cast<int32_t>(below(1000)), instance, below(5)};
    const bool same = agents.contains(host) && agents.at(host)->instance == instance;
    if (same || fleet->objection(hello)) return;
    FleetActions actions;
    try {
      fleet->hello(hello, now, &actions);
    } catch (const Error&) {
      ++liars;  // it acknowledged what was never sent
    }
    for (auto& [id, w] : workers) {
      if (w.host == host && started.contains(id)) w.agent_lost = true;
    }
    greeted[host] = instance;
    // Orders that it gets are done by nobody.
    for (FleetAction& action : actions) {
      if (const auto* send = std::get_if<SendOrder>(&action)) {
        if (const auto* start = std::get_if<wire::AgentStartT>(&send->order)) {
          started.insert(start->worker);
          workers.at(start->worker).agent_lost = true;
        }
      }
    }
    std::erase_if(actions, [](const auto& a) { return std::holds_alternative<SendOrder>(a); });
    fleet_does(std::move(actions));
    fleet_does(fleet->closed(host, instance, now));
    if (agents.contains(host)) ++displaced;
  }

  void disconnect(const std::string& host, bool driver_notices) {
    AgentProcess& agent = *agents.at(host);
    if (!agent.connected) return;
    agent.connected = false;
    agent.up.clear();
    agent.down.clear();
    agent_does(host, agent, agent.core.disconnected("cut", now));
    if (driver_notices) fleet_does(fleet->closed(host, agent.instance, now));
  }

  void dial(const std::string& host) {
    AgentProcess& agent = *agents.at(host);
    if (agent.connected || agent.finished) return;
    const AgentHello hello{host,
                           1 + static_cast<int32_t>(below(4)),
                           agent.instance,
                           agent.core.received(),
                           agent.core.reported(),
                           agent.core.kept(),
                           agent.welcomed};
    if (fleet->objection(hello)) return;
    FleetActions actions;
    const AgentWelcome welcome = fleet->hello(hello, now, &actions);
    greeted[host] = agent.instance;
    const auto hosts = fleet->hosts();
    ASSERT_TRUE(std::find(hosts.begin(), hosts.end(), std::pair(host, hello.slots)) != hosts.end());
    if (!welcome.resumed) {
      for (const uint64_t id : agent.core.workers()) workers.at(id).agent_lost = true;
    }
    const bool adopted = std::any_of(actions.begin(), actions.end(),
                                     [](const auto& a) { return std::holds_alternative<WorkerFound>(a); });
    if (adopted) {  // of them it hears anew
      ++adoptions;
      for (const auto& [id, slot] : hello.kept) {
        Worker& w = workers.at(id);
        w.failed = w.exited = w.gone = false;
      }
    }
    agent.connected = agent.welcomed = true;
    agent.unheard = false;
    agent_does(host, agent, agent.core.connected(welcome.resumed, welcome.received, now));
    fleet_does(std::move(actions));
  }

  /// Everything that its instance had is lost.
  void kill_agent(const std::string& host) {
    AgentProcess& agent = *agents.at(host);
    for (auto& [id, w] : workers) {
      if (w.host == host && started.contains(id)) w.agent_lost = true;
    }
    const bool was = agent.connected;
    const uint64_t instance = agent.instance;
    agents.erase(host);
    if (programs.erase(host) > 0) fleet_does(fleet->agent_ended(host, "killed", now));
    if (was) fleet_does(fleet->closed(host, instance, now));
  }

  void deliver(const std::string& host) {
    AgentProcess& agent = *agents.at(host);
    if (!agent.connected || agent.unheard) return;
    if (chance(10)) {  // a heartbeat
      fleet->acknowledged(host, agent.core.received());
      agent_does(host, agent, agent.core.acknowledged(fleet->received(host), now));
    }
    if (!agent.down.empty() && chance(70)) {
      Order order = std::move(agent.down.front());
      agent.down.pop_front();
      agent_does(host, agent, agent.core.ordered(std::move(order), now));
      if (chance(50)) fleet->acknowledged(host, agent.core.received());
    }
    if (!agent.up.empty() && chance(70)) {
      Report report = std::move(agent.up.front());
      agent.up.pop_front();
      fleet_does(fleet->reported(host, std::move(report)));
      if (chance(50)) agent_does(host, agent, agent.core.acknowledged(fleet->received(host), now));
    }
  }

  void live(const std::string& host) {
    AgentProcess& agent = *agents.at(host);
    for (auto it = agent.processes.begin(); it != agent.processes.end();) {
      const uint64_t id = it->first;
      Process& process = it->second;
      Worker& w = workers.at(id);
      if (!process.exited && !agent.held && chance(20)) {
        const std::string text = std::to_string(++process.printed) + " line";
        w.printed = process.printed;
        agent_does(host, agent, agent.core.output(id, chance(50), text, now));
      }
      if (!process.exited && chance(process.killed ? 60 : 3)) {
        process.exited = true;
        agent_does(host, agent, agent.core.exited(id, static_cast<int32_t>(below(300)), now));
      } else if (process.exited && chance(50)) {
        it = agent.processes.erase(it);
        agent_does(host, agent, agent.core.gone(id, now));
        continue;
      } else if (!process.exited && process.printed == 0 && chance(2)) {
        it = agent.processes.erase(it);
        agent_does(host, agent, agent.core.failed(id, "no such program", now));
        continue;
      }
      ++it;
    }
  }

  void step(bool quietly) {
    now += milliseconds(static_cast<int64_t>(10 + below(400)));
    const std::string host = name(below(kHosts));
    if (!quietly) {
      if (chance(10) && fleet_size() < 30) {
        const uint64_t id = ++last_worker;
        workers[id].host = host;
        wire::AgentStartT order;
        order.worker = id;
        fleet_does(fleet->start(host, std::move(order), now));
      }
      if (chance(5) && last_worker > 0) fleet_does(fleet->stop(1 + below(last_worker), seconds(2), now));
      if (chance(3) && agents.contains(host)) disconnect(host, chance(80));
      if (chance(1) && agents.contains(host)) kill_agent(host);
      if (chance(2) && last_instance > 0) impostor(host);
      if (mortal && below(200) == 0) driver_dies();
      if (chance(1) && agents.contains(host)) {
        AgentProcess& agent = *agents.at(host);
        agent_does(host, agent,
                   agent.core.drain("its machine goes", seconds(static_cast<int64_t>(below(10))), now));
      }
      if (chance(1) && agents.contains(host)) {
        AgentProcess& agent = *agents.at(host);
        agent.unheard = chance(50);
        agent_does(host, agent, agent.core.stop("its machine is switched off", now));
      }
      for (const std::string& each : std::exchange(drains, {})) {  // as the members of the job agree to it
        for (const auto& [id, w] : workers) {
          if (w.host == each && !w.failed && !w.gone) fleet_does(fleet->stop(id, seconds(1), now));
        }
      }
    }
    // Agents come by themselves, or because a program was started for them.
    if (!agents.contains(host) && (templated ? programs.contains(host) : chance(10))) {
      if (!templated || chance(80)) {
        agents[host] = std::make_unique<AgentProcess>(++last_instance, now);
      } else {
        programs.erase(host);
        fleet_does(fleet->agent_ended(host, "exited with status 255", now));
      }
    }
    for (size_t i = 0; i < kHosts; ++i) {
      const std::string each = name(i);
      // By their silence.
      const bool there = agents.contains(each) && agents.at(each)->connected;
      if (!there && fleet->connected(each) && chance(10)) fleet_does(fleet->closed(each, greeted[each], now));
      if (!agents.contains(each)) continue;
      if (!agents.at(each)->connected && chance(30)) dial(each);
      deliver(each);
      live(each);
      AgentProcess& agent = *agents.at(each);
      if (const auto tick = agent.core.next_tick(); tick && now >= *tick)
        agent_does(each, agent, agent.core.tick(now));
      if (agent.finished) {
        ASSERT_TRUE(agent.processes.empty()) << "an agent went before its workers";
        agent_does(each, agent, agent.core.tick(now));
        if (!agent.up.empty())  // the driver moves again
          agent_does(each, agent, agent.core.acknowledged(number_of(agent.up.back()), now));
        agent_does(each, agent, agent.core.disconnected("it has ended", now));
        for (auto& [id, w] : workers) {
          if (w.host == each && started.contains(id)) w.agent_lost = true;
        }
        const bool was = agent.connected;
        const uint64_t instance = agent.instance;
        agents.erase(each);
        if (programs.erase(each) > 0) fleet_does(fleet->agent_ended(each, "ended", now));
        if (was) fleet_does(fleet->left(each, instance));
      }
    }
    if (const auto tick = fleet->next_tick(); tick && now >= *tick) {
      for (auto& [id, w] : workers) {
        const auto agent = agents.find(w.host);
        if (agent == agents.end() || !agent->second->connected)
          w.agent_lost = true;  // it may be given up now
      }
      fleet_does(fleet->tick(now));
    }
  }

  size_t fleet_size() const {
    size_t n = 0;
    for (const auto& [id, w] : workers) n += !w.failed && !w.gone ? 1 : 0;
    return n;
  }

  std::mt19937_64 random;
  const bool templated;
  Time now{seconds(1000)};
  std::optional<Fleet> fleet;
  std::map<std::string, std::unique_ptr<AgentProcess>> agents;
  std::set<std::string> programs;
  std::vector<std::string> later;
  std::map<uint64_t, Worker> workers;
  std::set<uint64_t> started;
  std::map<std::string, uint64_t> greeted;  // whom the driver takes to be there
  std::set<std::string> drains;
  bool mortal = false;  // the driver is
  uint64_t takeovers = 0, adoptions = 0, again = 0;
  uint64_t last_worker = 0, whole = 0, last_instance = 0, drained = 0, liars = 0, displaced = 0;
  uint64_t ended_held = 0;
};

struct Seen {
  uint64_t whole = 0, drained = 0, liars = 0, displaced = 0, takeovers = 0, adoptions = 0, again = 0;
  uint64_t ended_held = 0;
};

void run(uint64_t seed, bool templated, Seen* seen, bool mortal = false) {
  Simulation s(seed, templated);
  s.mortal = mortal;
  for (int i = 0; i < 600; ++i) {
    s.step(false);
    if (testing::Test::HasFatalFailure()) return;
  }
  // Then nothing breaks any more: all ends.
  for (const auto& [id, w] : s.workers) {
    if (!w.failed && !w.gone) s.fleet_does(s.fleet->stop(id, seconds(2), s.now));
  }
  for (int i = 0; i < 3000 && s.fleet_size() > 0; ++i) {
    s.step(true);
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_EQ(s.fleet_size(), 0u) << "workers that never end";
  for (const auto& [id, w] : s.workers) EXPECT_TRUE(w.failed != w.gone) << "worker " << id;
  seen->whole += s.whole;
  seen->drained += s.drained;
  seen->liars += s.liars;
  seen->displaced += s.displaced;
  seen->takeovers += s.takeovers;
  seen->adoptions += s.adoptions;
  seen->again += s.again;
  seen->ended_held += s.ended_held;
}

class Histories : public testing::TestWithParam<bool> {};

TEST_P(Histories, EachWorkerHasOneEnd) {
  Seen seen;  // whole: outputs that had to be complete, and were
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    run(seed, GetParam(), &seen);
    if (HasFailure()) FAIL() << "seed " << seed;
  }
  EXPECT_GT(seen.whole, 1000u);  // else nothing was seen
  EXPECT_GT(seen.drained, 100u);
  EXPECT_GT(seen.liars, 20u);
  EXPECT_GT(seen.displaced, 100u);
  EXPECT_GT(seen.ended_held, 20u);
}

// contract 14
TEST_P(Histories, AlsoWithDriversThatDie) {
  Seen seen;
  for (uint64_t seed = 10001; seed <= 10400; ++seed) {
    run(seed, GetParam(), &seen, true);
    if (HasFailure()) FAIL() << "seed " << seed;
  }
  EXPECT_GT(seen.whole, 1000u);
  EXPECT_GT(seen.takeovers, 500u);
  EXPECT_GT(seen.adoptions, 300u);
  EXPECT_GT(seen.again, 20u);
}

INSTANTIATE_TEST_SUITE_P(Agents, Histories, testing::Values(false, true),
                         [](const auto& info) { return info.param ? "Started" : "ByHand"; });

}  // namespace
}  // namespace hvd::agent
