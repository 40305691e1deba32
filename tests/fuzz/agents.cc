// Fuzzes both ends of agents: agents that lie to a driver's Fleet, and a driver that confuses an agent.
// Whatever comes, each worker has one end, orders go to connected agents alone, and an agent starts nothing
// twice.
#include <set>

#include "agent/agent_core.h"
#include "agent/fleet.h"
#include "fuzz.h"

namespace hvd::fuzz {
namespace {

using namespace agent;

constexpr size_t kMaxKept = 200;

std::string host_of(Decisions& d) { return std::string(1, static_cast<char>('a' + d.upto(2))); }

Report report_of(Decisions& d) {
  switch (d.upto(3)) {
    case 0: {
      wire::AgentFailedT r;
      r.number = d.number();
      r.worker = d.upto(8);
      r.message = d.text(20);
      return r;
    }
    case 1: {
      wire::AgentExitedT r;
      r.number = d.number();
      r.worker = d.upto(8);
      r.exit_status = static_cast<int32_t>(d.number());
      return r;
    }
    case 2: {
      wire::AgentOutputT r;
      r.number = d.number();
      r.worker = d.upto(8);
      r.is_stderr = d.coin();
      const auto bytes = d.some(20);
      r.bytes.assign(bytes.begin(), bytes.end());
      return r;
    }
    default: {
      wire::AgentGoneT r;
      r.number = d.number();
      r.worker = d.upto(8);
      return r;
    }
  }
}

Order order_of(Decisions& d) {
  switch (d.upto(3)) {
    case 0: {
      wire::AgentStartT o;
      o.number = d.number();
      o.worker = d.upto(4);
      return o;
    }
    case 1: {
      wire::AgentStopT o;
      o.number = d.number();
      o.worker = d.upto(4);
      o.grace_ms = static_cast<int64_t>(d.number());
      return o;
    }
    case 2: {
      wire::AgentWatchT o;
      o.number = d.number();
      o.worker = d.upto(4);
      o.process = static_cast<int64_t>(d.number());
      o.life = static_cast<int32_t>(d.number());
      if (d.coin()) o.life_token = std::make_unique<wire::Digest>(d.number(), d.number());
      return o;
    }
    default: {
      wire::AgentEndT o;
      o.number = d.number();
      o.success = d.coin();
      o.reason = d.text(8);
      return o;
    }
  }
}

/// What breaks the protocol is told as such and as nothing else.
template <class Function>
void tolerant(Function function) {
  try {
    function();
  } catch (const Error& error) { HVD_PROMISE(error.status().code == HVD_INVALID); }
}

void fuzz_fleet(Decisions& d) {
  FleetConfig config;
  config.starts_agents = d.coin();
  config.max_hosts = 3;
  Fleet fleet(config);
  Time now{};
  uint64_t started = 0;
  std::set<uint64_t> exited, over;
  const auto take = [&](const FleetActions& actions) {
    for (const FleetAction& action : actions) {
      if (const auto* failed = std::get_if<WorkerFailed>(&action)) {
        HVD_PROMISE(failed->worker >= 1 && failed->worker <= started && over.insert(failed->worker).second);
      } else if (const auto* gone = std::get_if<WorkerGone>(&action)) {
        HVD_PROMISE(gone->worker >= 1 && gone->worker <= started && over.insert(gone->worker).second);
      } else if (const auto* exit = std::get_if<WorkerExited>(&action)) {
        HVD_PROMISE(!over.contains(exit->worker) && exited.insert(exit->worker).second);
        HVD_PROMISE(exit->exit_status >= -1 && exit->exit_status < 512);
      } else if (const auto* output = std::get_if<WorkerOutput>(&action)) {
        HVD_PROMISE(output->worker <= started && !over.contains(output->worker));
      } else if (const auto* send = std::get_if<SendOrder>(&action)) {
        HVD_PROMISE(fleet.connected(send->host));
      }
    }
  };
  while (!d.over()) {
    const std::string host = host_of(d);
    switch (d.upto(9)) {
      case 0: {
        wire::AgentStartT start;
        start.worker = ++started;
        take(fleet.start(host, start, now));
        break;
      }
      case 1: take(fleet.stop(d.upto(8), seconds(d.upto(10)), now)); break;
      case 2: {
        const launch::ProcessClaim claim{
            static_cast<int64_t>(d.number()), static_cast<int32_t>(d.number()), {d.number(), d.number()}};
        take(fleet.watch(d.upto(8), claim));
        break;
      }
      case 3: {
        const AgentHello hello{host, static_cast<int32_t>(1 + d.upto(3)), 1 + d.upto(2), d.number()};
        if (fleet.objection(hello)) break;
        FleetActions actions;
        try {
          fleet.hello(hello, now, &actions);
          take(actions);
        } catch (const Error& error) {
          HVD_PROMISE(error.status().code == HVD_INVALID);
          take(actions);
          take(fleet.closed(host, hello.instance, now));
        }
        break;
      }
      case 4: take(fleet.closed(host, 1 + d.upto(2), now)); break;
      case 5: take(fleet.left(host, 1 + d.upto(2))); break;
      case 6: take(fleet.agent_ended(host, "it ended", now)); break;
      case 7:
        now += milliseconds(d.upto(30000));
        take(fleet.tick(now));
        break;
      case 8: tolerant([&] { fleet.acknowledged(host, d.number()); }); break;
      default:
        tolerant([&] {
          if (fleet.connected(host)) take(fleet.reported(host, report_of(d)));
        });
    }
  }
  take(fleet.end(true, false, "over"));
  HVD_PROMISE(fleet.hosts().size() <= started + config.max_hosts);
}

void fuzz_core(Decisions& d) {
  Time now{};
  AgentCore core({seconds(20), seconds(2), kMaxKept}, now);
  std::set<uint64_t> running;
  bool finished = false;
  const auto take = [&](const CoreActions& actions) {
    for (const CoreAction& action : actions) {
      HVD_PROMISE(!finished);
      if (const auto* launch = std::get_if<LaunchWorker>(&action)) {
        HVD_PROMISE(launch->order.worker != 0 && running.insert(launch->order.worker).second);
      } else if (const auto* stop = std::get_if<StopProcess>(&action)) {
        HVD_PROMISE(running.contains(stop->worker) && stop->grace >= Duration(0));
      } else if (const auto* watch = std::get_if<WatchProcess>(&action)) {
        HVD_PROMISE(running.contains(watch->worker) && watch->claim.life >= -1);
      } else if (const auto* died = std::get_if<SendDied>(&action)) {
        HVD_PROMISE(running.contains(died->worker) && core.online());
      }
      finished = std::holds_alternative<Finished>(action);
    }
  };
  while (!d.over()) {
    const uint64_t worker = d.upto(4);
    switch (d.upto(11)) {
      case 0: tolerant([&] { take(core.connected(d.coin(), d.number(), now)); }); break;
      case 1: take(core.disconnected("closed", now)); break;
      case 2: take(core.refused(HVD_REFUSED, "no", now)); break;
      case 3:
        if (running.contains(worker)) take(core.exited(worker, 0, now));
        break;
      case 4:
        if (running.erase(worker) != 0) take(core.gone(worker, now));
        break;
      case 5:
        if (running.erase(worker) != 0) take(core.failed(worker, "no", now));
        break;
      case 6:
        if (running.contains(worker)) take(core.output(worker, d.coin(), d.text(100), now));
        break;
      case 7: take(core.stop("enough", now)); break;
      case 8:
        now += milliseconds(d.upto(30000));
        take(core.tick(now));
        break;
      case 9: tolerant([&] { take(core.acknowledged(d.number(), now)); }); break;
      case 10: take(core.died(worker, {d.number(), 0})); break;
      default: tolerant([&] { take(core.ordered(order_of(d), now)); });
    }
  }
}

}  // namespace

void one_input(std::span<const uint8_t> data) {
  Decisions d(data);
  d.coin() ? fuzz_core(d) : fuzz_fleet(d);
}

std::vector<Bytes> seeds() {
  // An agent comes, gets two workers, one prints and ends; it is cut off and comes back.
  return {{0,   0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 2, 1, 1, 0, 3, 'a', 'b',
           'c', 0, 9, 1, 2, 1, 0, 0, 9, 3, 3, 1, 0, 4, 0, 0, 3, 0, 0, 0},
          // A driver is there, has one worker started, stops it and ends the job.
          {1,   0, 0,  0, 0, 0, 10, 0, 1, 1, 1, 6, 0,  5, 'h', 'e', 'l', 'l',
           'o', 0, 10, 1, 2, 1, 5,  1, 3, 1, 4, 0, 10, 3, 3,   1,   0},
          // One holds what its worker prints when it has ended, and then is cut off.
          {1, 0, 59, 0,  1,   138, 138, 138, 138, 108, 111, 2,   138, 11,  138, 138, 35, 138, 138,
           1, 1, 11, 96, 108, 111, 2,   138, 138, 63,  1,   254, 134, 134, 138, 65,  63, 1}};
}

}  // namespace hvd::fuzz
