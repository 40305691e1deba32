// A membership with the clock in the test's hand and its actions sorted by kind.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "membership/membership.h"
#include "membership/takeover.h"

namespace hvd::membership::test {

class Script {
 public:
  explicit Script(MembershipConfig config) : membership(config, now) {}
  /// Of a job that goes on already.
  Script(MembershipConfig config, const KnownJob& known, const Settle& settle)
      : membership(config, known, settle, now) {}

  Script& hosts(std::vector<HostSlots> list) { return took(membership.hosts_changed(std::move(list), now)); }
  Script& ready(uint64_t worker, uint64_t left = 0, bool has_state = false, uint64_t revision = 0) {
    return took(membership.worker_ready(worker, ReadyEvent{left, has_state, revision, {}, ""}, now));
  }
  Script& ready_with(uint64_t worker, ReadyEvent event) {
    return took(membership.worker_ready(worker, event, now));
  }
  Script& ready_after_a_loss(uint64_t worker, uint64_t left) {
    return took(membership.worker_ready(worker, ReadyEvent{left, true, 0, {}, "", true}, now));
  }
  Script& ready_on(const std::string& host, uint64_t worker) {
    return took(membership.worker_ready(worker, ReadyEvent{0, false, 0, {}, host}, now));
  }
  Script& synced(uint64_t worker, uint64_t revision = 0) {
    return took(membership.worker_synced(worker, membership.generation(), revision, now));
  }
  Script& all_synced(std::vector<uint64_t> workers, uint64_t revision = 0) {
    for (uint64_t w : workers) synced(w, revision);
    return *this;
  }
  Script& done(uint64_t worker) { return took(membership.worker_done(worker, membership.generation(), now)); }
  Script& lost(uint64_t worker, LossKind kind = LossKind::kConnectionClosed) {
    return took(membership.worker_lost(worker, kind, "", now));
  }
  Script& link(uint64_t worker, int32_t rank, const std::string& message) {
    return took(membership.worker_failed_link(worker, membership.generation(), rank, message, now));
  }
  Script& unfit(uint64_t worker, int32_t rank, const std::string& message) {
    return took(membership.worker_unfit(worker, membership.generation(), rank, message, now));
  }
  Script& stalled(uint64_t worker, const std::vector<int32_t>& missing, double waited) {
    const StallEvent event{"'loss' waits", missing, seconds(waited)};
    return took(membership.worker_stalled(worker, membership.generation(), event, now));
  }
  Script& offered(uint64_t worker, const FeedOffer& offer) {
    return took(membership.feed_offered(worker, membership.generation(), offer, now));
  }
  Script& fed(uint64_t worker, uint64_t source) {
    FedEvent event;
    event.source = source;
    return fed_with(worker, event);
  }
  Script& fed_with(uint64_t worker, const FedEvent& event) {
    return took(membership.worker_fed(worker, event, now));
  }
  Script& leaving(uint64_t worker, double within) {
    return took(membership.worker_leaving(worker, seconds(within), "", now));
  }
  Script& close_joining(const std::string& reason) { return took(membership.close_joining(reason, now)); }
  Script& back(uint64_t worker, const BackEvent& event) {
    return took(membership.worker_back(worker, event, now));
  }
  /// Time passes, and the driver is woken when it asks for it.
  Script& wait(double s) {
    const Time until = now + seconds(s);
    std::vector<Action> all;
    for (std::optional<Time> next = membership.next_tick(); next && *next <= until;
         next = membership.next_tick()) {
      now = *next;
      for (Action& a : membership.tick(now)) all.push_back(std::move(a));
    }
    now = until;
    for (Action& a : membership.tick(now)) all.push_back(std::move(a));
    return took(std::move(all));
  }

  /// Of the latest event.
  template <class A>
  std::vector<A> all() const {
    std::vector<A> found;
    for (const Action& action : latest) {
      if (const A* a = std::get_if<A>(&action)) found.push_back(*a);
    }
    return found;
  }
  template <class A>
  A one() const {
    std::vector<A> found = all<A>();
    EXPECT_EQ(found.size(), 1u) << typeid(A).name();
    return found.empty() ? A{} : found.back();
  }
  template <class A>
  bool none() const {
    return all<A>().empty();
  }
  std::vector<std::string> started() const {
    std::vector<std::string> places;
    for (const auto& s : all<StartWorker>()) {
      places.push_back(std::to_string(s.worker) + "@" + s.host + ":" + std::to_string(s.slot));
    }
    return places;
  }
  std::vector<uint64_t> members() const {
    std::vector<uint64_t> ids;
    for (const Member& m : one<Assign>().members()) ids.push_back(m.worker);
    return ids;
  }
  std::vector<uint64_t> stopped() const {
    std::vector<uint64_t> ids;
    for (const auto& s : all<StopWorker>()) ids.push_back(s.worker);
    return ids;
  }

  Time now{};
  Membership membership;
  std::vector<Action> latest;

 private:
  Script& took(std::vector<Action> actions) {
    latest = std::move(actions);
    return *this;
  }
};

using Ids = std::vector<uint64_t>;
using Names = std::vector<std::string>;

inline MembershipConfig sizes(int32_t np, int32_t min_np, int32_t max_np) {
  MembershipConfig config;
  config.np = np;
  config.min_np = min_np;
  config.max_np = max_np;
  return config;
}

/// A job of np workers, ids 1..np on host a, synced in generation 1.
inline Script running(MembershipConfig config) {
  Script s(config);
  s.hosts({{"a", config.np}});
  for (int32_t w = 1; w <= config.np; ++w) s.ready(static_cast<uint64_t>(w));
  for (int32_t w = 1; w <= config.np; ++w) s.synced(static_cast<uint64_t>(w));
  return s;
}

}  // namespace hvd::membership::test
