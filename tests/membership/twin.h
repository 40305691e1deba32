// Two memberships that hear the same: one decides when an event can matter, the other one at every event.
// What they do must be the same, and when they want to be woken may differ only in what comes to nothing.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "membership/membership.h"

namespace hvd::membership::test {

inline std::string describe(const Action& action) {
  const auto ids = [](const auto& list) {
    std::string text;
    for (const auto& id : list) text += fmt::format(" {}", id);
    return text;
  };
  struct Visitor {
    decltype(ids)& list;
    std::string operator()(const StartWorker& a) const {
      return fmt::format("start {} {} {}", a.worker, a.host, a.slot);
    }
    std::string operator()(const StopWorker& a) const {
      return fmt::format("stop {} {} {} {}", a.worker, a.reason, a.left, a.grace.count());
    }
    std::string operator()(const Assign& a) const {
      std::string text =
          fmt::format("assign {} {} {} {} {}:", a.generation, a.epoch, a.root, a.reason, a.spares);
      for (const Member& m : a.members()) {
        text += fmt::format(" {}@{}:{} {} {}", m.worker, m.host, m.local_rank, m.has_state, m.revision);
      }
      return text;
    }
    std::string operator()(const Abort& a) const {
      return fmt::format("abort {} {} {} {}:{}", a.generation, a.reason, a.rank, a.worker, list(a.to));
    }
    std::string operator()(const Notify& a) const {
      return fmt::format("notify {} {} +{} -{}:{}", a.epoch, a.interrupt, list(a.added), list(a.removed),
                         list(a.to));
    }
    std::string operator()(const Refuse& a) const { return fmt::format("refuse {} {}", a.worker, a.reason); }
    std::string operator()(const Finish& a) const {
      return fmt::format("finish {} {} {}", a.success, a.sentence, a.try_again);
    }
    std::string operator()(const LogLine& a) const { return "log " + a.text; }
    std::string operator()(const WantFeed& a) const {
      return fmt::format("want feed {} {}", a.worker, a.generation);
    }
    std::string operator()(const StartFeed& a) const {
      return fmt::format("start feed {} {} {} {}", a.worker, a.source, a.endpoint, a.key);
    }
    std::string operator()(const Wait& a) const { return fmt::format("wait {} {}", a.worker, a.reason); }
  };
  return std::visit(Visitor{ids}, action);
}

class Twin {
 public:
  Twin(MembershipConfig config, Time now) : resting_(config, now), deciding_(without_rest(config), now) {}

  std::vector<Action> hosts_changed(std::vector<HostSlots> hosts, Time now) {
    return both([&](Membership& m) { return m.hosts_changed(hosts, now); });
  }
  std::vector<Action> worker_ready(uint64_t worker, const ReadyEvent& event, Time now) {
    return both([&](Membership& m) { return m.worker_ready(worker, event, now); });
  }
  std::vector<Action> worker_synced(uint64_t worker, uint64_t generation, uint64_t revision, Time now) {
    return both([&](Membership& m) { return m.worker_synced(worker, generation, revision, now); });
  }
  std::vector<Action> worker_failed_link(uint64_t worker, uint64_t generation, int32_t rank,
                                         const std::string& message, Time now) {
    return both([&](Membership& m) { return m.worker_failed_link(worker, generation, rank, message, now); });
  }
  std::vector<Action> worker_unfit(uint64_t worker, uint64_t generation, int32_t rank,
                                   const std::string& message, Time now) {
    return both([&](Membership& m) { return m.worker_unfit(worker, generation, rank, message, now); });
  }
  std::vector<Action> worker_done(uint64_t worker, uint64_t generation, Time now) {
    return both([&](Membership& m) { return m.worker_done(worker, generation, now); });
  }
  std::vector<Action> worker_lost(uint64_t worker, LossKind kind, const std::string& why, Time now) {
    return both([&](Membership& m) { return m.worker_lost(worker, kind, why, now); });
  }
  std::vector<Action> worker_leaving(uint64_t worker, Duration timeout, const std::string& why, Time now) {
    return both([&](Membership& m) { return m.worker_leaving(worker, timeout, why, now); });
  }
  std::vector<Action> drain(const std::string& host, Duration timeout, const std::string& why, Time now,
                            Answer* ret_answer) {
    return both([&](Membership& m) { return m.drain(host, timeout, why, now, ret_answer); });
  }
  std::vector<Action> undrain(const std::string& host, Time now, Answer* ret_answer) {
    return both([&](Membership& m) { return m.undrain(host, now, ret_answer); });
  }
  std::vector<Action> scale(int32_t size, Time now, Answer* ret_answer) {
    return both([&](Membership& m) { return m.scale(size, now, ret_answer); });
  }
  std::vector<Action> worker_arrived(const std::string& host, int32_t slot, Time now, Arrival* ret_arrival) {
    return both([&](Membership& m) { return m.worker_arrived(host, slot, now, ret_arrival); });
  }
  std::vector<Action> feed_offered(uint64_t worker, uint64_t generation, const FeedOffer& offer, Time now) {
    return both([&](Membership& m) { return m.feed_offered(worker, generation, offer, now); });
  }
  std::vector<Action> worker_fed(uint64_t worker, const FedEvent& event, Time now) {
    return both([&](Membership& m) { return m.worker_fed(worker, event, now); });
  }
  std::vector<Action> tick(Time now) {
    return both([&](Membership& m) { return m.tick(now); });
  }

  std::optional<Time> next_tick() const { return resting_.next_tick(); }
  Phase phase() const { return resting_.phase(); }
  uint64_t generation() const { return resting_.generation(); }
  uint64_t epoch() const { return resting_.epoch(); }
  int32_t size() const { return resting_.size(); }
  int32_t usable_slots(Time now) const { return resting_.usable_slots(now); }
  bool expects(uint64_t worker) const { return resting_.expects(worker); }
  std::string waiting_for() const { return resting_.waiting_for(); }
  bool ended() const { return resting_.ended(); }
  /// How the two differed first; "" if they never did.
  const std::string& difference() const { return difference_; }

 private:
  static MembershipConfig without_rest(MembershipConfig config) {
    config.rests = false;
    return config;
  }
  template <class Event>
  std::vector<Action> both(Event event) {
    std::vector<Action> ours = event(resting_);
    const std::vector<Action> theirs = event(deciding_);
    if (difference_.empty()) {
      std::string a, b;
      for (const Action& action : ours) a += describe(action) + "; ";
      for (const Action& action : theirs) b += describe(action) + "; ";
      if (a != b) difference_ = fmt::format("it rested and did '{}', else it would have done '{}'", a, b);
      if (resting_.epoch() != deciding_.epoch()) difference_ += "; other epochs";
    }
    return ours;
  }

  Membership resting_, deciding_;
  std::string difference_;
};

}  // namespace hvd::membership::test
