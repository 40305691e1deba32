// Which slots may be used now: the discovered hosts in stable order, the back-off of slots that failed and
// the blocklist of hosts that fail again and again. Pure: time is an argument.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "membership/membership.h"
#include "membership/takeover.h"

namespace hvd::membership {

class HostManager {
 public:
  struct Change {
    std::vector<std::string> added, removed;  // hosts that gained slots, hosts that lost some
    bool any() const { return !added.empty() || !removed.empty(); }
  };
  struct Failure {
    bool blocked = false;              // this failure put the host on the blocklist
    std::optional<Duration> cooldown;  // how long; absent: for good
  };

  explicit HostManager(const MembershipConfig& config) : config_(config) {}

  /// Takes the full list. Known hosts keep their place and their record, new ones are appended. A host that
  /// is gone is forgotten when nothing speaks against it and in_use says that no worker lives there.
  Change set_hosts(const std::vector<HostSlots>& hosts,
                   const std::function<bool(const std::string&)>& in_use);

  /// For a driver that takes over, and what it was told.
  std::vector<KnownHost> known(Time now) const;
  void restore(const std::vector<KnownHost>& known, Time now);

  /// The slot is among the discovered ones, blocked or not.
  bool has_slot(const std::string& host, int32_t slot) const;
  /// What has_slot says stays so until this changes. From 1 on.
  uint64_t version() const { return version_; }

  // What was drained gets no worker until it is undrained (draining.cc).
  /// The whole host, listed or not.
  void drain(const std::string& host);
  /// One slot. Forgotten when the host is listed no more: the machine that comes back is another one.
  bool withdraw(const std::string& host, int32_t slot);  // false: it was already
  /// Host and slots; whether anything was.
  bool undrain(const std::string& host);
  bool drained(const std::string& host) const;
  std::vector<std::string> names() const;  // of the hosts that are listed

  /// Place of the host in the stable order; after all others if it is unknown.
  size_t position(const std::string& host) const;

  /// Calls use(host, slot) for each slot that may get a worker now, in stable order, until it returns false.
  /// Leaves out hosts of which full(host, slots) says that all slots have one.
  void for_each_usable(Time now, const std::function<bool(const Name&, int32_t)>& full,
                       const std::function<bool(const Name&, int32_t)>& use) const;

  /// A worker of this slot failed: the next one is started later each time.
  void record_failure(const std::string& host, int32_t slot, Time now);
  /// And that counts against its host. Members of one generation that fail together count once (generation 0:
  /// not a member): a host that went down once has failed once.
  Failure blame(const std::string& host, uint64_t generation, Time now);
  /// A worker of this slot came so far as to be synced: what counts is failures in a row.
  void record_success(const std::string& host, int32_t slot);

  /// Takes hosts whose cooldown is over off the blocklist; returns those of them that are discovered.
  std::vector<std::string> end_cooldowns(Time now);

  /// The next moment after `now` at which a slot becomes usable by itself.
  std::optional<Time> next_change(Time now) const;

  using Places = std::map<int32_t, uint64_t>;  // of one host: slot to worker
  /// Slots without a worker that may be used now or some day if no other hosts are discovered. `places` are
  /// those of a host's workers.
  int64_t lasting_slots(const std::function<const Places&(const std::string& host)>& places) const;

  size_t count() const { return hosts_.size(); }  // of all that are known
  int64_t unblocked_slots(Time now) const;
  int32_t blocked_hosts(Time now) const;

 private:
  struct Slot {
    int32_t failures = 0;
    Time usable_from{};
    bool abandoned = false;  // restart is off
  };
  struct Host {
    Name name;
    int32_t slots = 0;     // 0: not discovered now
    int32_t failures = 0;  // in a row
    int32_t blockings = 0;
    uint64_t failed_generation = 0;
    bool blocked = false;
    bool drained = false;
    std::set<int32_t> withdrawn;        // slots that were drained by themselves
    std::optional<Time> blocked_until;  // absent: for good
    std::map<int32_t, Slot> records;    // of slots that failed

    bool blocked_at(Time now) const { return blocked && (!blocked_until || now < *blocked_until); }
  };

  Host* find(const std::string& name);
  const Host* find(const std::string& name) const;
  Host& made(const std::string& name);
  void reindex();

  const MembershipConfig& config_;
  uint64_t version_ = 1;
  std::vector<Host> hosts_;
  std::unordered_map<std::string, size_t> index_;
};

/// base * 2^(times - 1), at most limit (or base, if that is more).
Duration doubled(Duration base, int32_t times, Duration limit);

}  // namespace hvd::membership
