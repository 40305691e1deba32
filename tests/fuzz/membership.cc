// Fuzzes the driver's decisions: workers that lie in every order, hosts that come and go, time that jumps.
#include "membership/membership.h"

#include <set>

#include "fuzz.h"

namespace hvd::fuzz {
namespace {

using namespace membership;

/// Holds actions against what membership.h promises.
class Watch {
 public:
  explicit Watch(Membership& membership) : membership_(membership) {}
  void take(const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      if (!std::holds_alternative<LogLine>(action) && !std::holds_alternative<Refuse>(action) &&
          !std::holds_alternative<StopWorker>(action)) {
        HVD_PROMISE(!finished_);
      }
      if (const auto* start = std::get_if<StartWorker>(&action)) {
        HVD_PROMISE(start->worker == ++started_ && start->slot >= 0 && !start->host.empty());
      } else if (const auto* assign = std::get_if<Assign>(&action)) {
        HVD_PROMISE(assign->generation > generation_);  // never two of one number
        generation_ = assign->generation;
        HVD_PROMISE(assign->root >= 0 && assign->root < static_cast<int32_t>(assign->members().size()));
        std::set<uint64_t> members;
        for (const Member& place : assign->members()) {
          HVD_PROMISE(place.worker >= 1 && place.worker <= started_);
          HVD_PROMISE(members.insert(place.worker).second);
        }
      } else if (const auto* abort = std::get_if<Abort>(&action)) {
        HVD_PROMISE(abort->generation <= generation_);
      } else if (std::holds_alternative<Finish>(action)) {
        finished_ = true;
      }
    }
    HVD_PROMISE(membership_.generation() == generation_);
    HVD_PROMISE(membership_.ended() == finished_);
  }
  uint64_t started() const { return started_; }
  uint64_t generation() const { return generation_; }

 private:
  Membership& membership_;
  uint64_t started_ = 0, generation_ = 0;
  bool finished_ = false;
};

}  // namespace

void one_input(std::span<const uint8_t> data) {
  Decisions decisions(data);
  MembershipConfig config;
  config.np = 1 + static_cast<int32_t>(decisions.upto(3));
  config.min_np = 1 + static_cast<int32_t>(decisions.upto(static_cast<uint32_t>(config.np - 1)));
  config.max_np = decisions.coin() ? config.np + static_cast<int32_t>(decisions.upto(3)) : 0;
  config.restart = decisions.upto(3) != 3;
  config.reset_limit = static_cast<int32_t>(decisions.upto(9));
  config.stall_shutdown = seconds(decisions.upto(1) * 90);
  Time now{seconds(1000)};
  Membership membership(config, now);
  Watch watch(membership);
  for (int steps = 0; !decisions.over() && steps < 1000; ++steps) {
    const auto worker = [&] { return 1 + decisions.upto(static_cast<uint32_t>(watch.started() % 64)); };
    const auto generation = [&] {
      return decisions.upto(15) == 15 ? decisions.number() : watch.generation();
    };
    switch (decisions.upto(10)) {
      case 0: {
        std::vector<HostSlots> hosts;
        for (uint32_t left = decisions.upto(3); left > 0; --left) {
          hosts.push_back({std::string(1, static_cast<char>('a' + hosts.size())),
                           1 + static_cast<int32_t>(decisions.upto(2))});
        }
        watch.take(membership.hosts_changed(std::move(hosts), now));
        break;
      }
      case 1:
      case 2: {
        ReadyEvent event;
        event.left_generation = generation();
        event.has_state = decisions.coin();
        event.revision = decisions.number();
        event.digest = {event.revision, 1};
        event.lost_peer = decisions.coin();
        if (decisions.upto(7) == 7) event.host = decisions.text(3);
        watch.take(membership.worker_ready(worker(), event, now));
        break;
      }
      case 3: {
        const uint64_t who = worker();
        const uint64_t where = generation();
        watch.take(membership.worker_synced(who, where, decisions.number(), now));
        break;
      }
      case 4: {
        const uint64_t who = worker();
        const uint64_t where = generation();
        watch.take(membership.worker_failed_link(who, where, static_cast<int32_t>(decisions.number()),
                                                 "broke", now));
        break;
      }
      case 5: {
        const uint64_t who = worker();
        const uint64_t where = generation();
        watch.take(
            membership.worker_unfit(who, where, static_cast<int32_t>(decisions.number()), "unfit", now));
        break;
      }
      case 6: {
        const uint64_t who = worker();
        const StallEvent event{
            "'x' waits", {static_cast<int32_t>(decisions.number())}, seconds(decisions.upto(200))};
        watch.take(membership.worker_stalled(who, generation(), event, now));
        break;
      }
      case 7: {
        const uint64_t who = worker();
        if (decisions.upto(3) == 3) watch.take(membership.worker_done(who, generation(), now));
        break;
      }
      case 8: {
        const auto kind = static_cast<LossKind>(decisions.upto(5));
        watch.take(membership.worker_lost(worker(), kind, "gone", now));
        break;
      }
      case 9:
        now += milliseconds(decisions.upto(200000));
        watch.take(membership.tick(now));
        break;
      default:
        if (decisions.upto(63) == 63) watch.take(membership.stop("asked to", now));
    }
    membership.waiting_for();
  }
}

std::vector<Bytes> seeds() {
  const Bytes begin = {1, 0, 0, 0, 5, 0};  // two workers wanted, one is enough
  const auto with = [&](std::initializer_list<uint8_t> rest) {
    Bytes all = begin;
    all.insert(all.end(), rest);
    return all;
  };
  return {
      with({0, 1, 1}), with({0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1}),
      with({0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 3, 0, 0, 4, 3, 1, 0, 4, 8, 0, 1, 9, 0, 9, 0})};
}

}  // namespace hvd::fuzz
