// What the driver knows of each worker: where it lives, whether it is ready, what state it holds, how it
// ended. Pure.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "membership/membership.h"

namespace hvd::membership {

/// A worker that was started and is not lost, stopped or done.
struct Worker {
  // First what a decision asks of every worker: few lines of the processor's memory for each.
  uint64_t id = 0;
  int32_t rank = -1;  // in the current generation; -1: it never was a member
  int32_t slot = 0;
  bool ready = false;   // it waits for a generation; a member that is ready has left the current one
  bool synced = false;  // in the current generation
  bool ever_synced = false;
  bool has_state = false;
  bool at_work = false;    // it came back to this driver from within the current generation
  bool absent = false;     // known by an earlier driver, and not back yet
  bool runs = false;       // and its process is known to run
  bool behind = false;     // it never learnt of its place in the current generation
  bool own_place = false;  // it came by itself: its slot is no discovered one
  bool waits = false;      // it was told that it is a spare
  bool slow = false;       // it was given more time to become ready, since its process runs
  bool at_home = true;     // the host that it reports is that of its slot
  // Whether its slot is a discovered one, as of this version of the hosts.
  mutable bool slot_there = false;
  mutable uint64_t looked_in = 0;
  uint64_t revision = 0;          // as far as the driver knows
  uint64_t chosen_for = 0;        // the newest generation that it was put into
  size_t address_bytes = 0;       // of its newest offers
  std::optional<Time> leaves_by;  // it goes at the next change of generation; lost if it is still there then

  Name host;  // of its slot
  Time started{};
  Time ready_since{};
  ReadyEvent event;                   // the newest; what the roster says as well has moved there
  bool in_roster = false;             // that has happened
  int32_t changes = 0;                // of it, since the worker is ready
  uint64_t judged_in = ~uint64_t{0};  // the generation whose members it fits

  bool drained = false;  // since its host is
  int32_t wishes = 0;    // that it said itself, and that changed when it goes
  std::string leaves_why;

  // Feeding: one that waits.
  bool fed = false;       // it needs nothing before it joins
  Time fed_at{};          // when that was known
  uint64_t fed_in = 0;    // the generation in which it was told whom to ask
  uint64_t fed_from = 0;  // who that is
  // A member that feeds others.
  uint64_t asked_in = 0;  // the generation in which it was asked to
  bool offered = false;   // and has answered
  std::string feed_endpoint, feed_key;

  bool member() const { return rank >= 0; }
  void take(ReadyEvent newest);
};

enum class Ending { kLost, kStopped, kDone };

class WorkerStateRegistry {
 public:
  using Living = std::map<uint64_t, Worker>;

  /// The next worker, in a slot where none lives. Identities grow from 1 and are never used twice.
  Worker& start(const Name& host, int32_t slot, Time now);
  Worker* find(uint64_t id);
  const Worker* find(uint64_t id) const;
  bool occupied(const std::string& host, int32_t slot) const;
  bool lives_on(const std::string& host) const;

  /// A worker that an earlier driver started. False: the identity or the slot is taken.
  bool adopt(uint64_t id, const Name& host, int32_t slot, Time now);
  uint64_t in_slot(const std::string& host, int32_t slot) const;  // 0: nobody
  void remember_done(uint64_t id);
  const std::set<uint64_t>& done() const { return done_; }  // of whichever generation
  uint64_t next() const { return next_; }
  void begin_at(uint64_t next) { next_ = std::max(next_, next); }

  /// From now on it is not expected any more. Those that ended some thousands before it are forgotten, but
  /// for those that are done.
  void end(uint64_t id, Ending ending, const std::string& why);
  std::optional<Ending> ending(uint64_t id) const;

  /// Why a message of this worker is refused; empty if the worker is expected.
  std::string objection(uint64_t id) const;

  /// Pointers to workers stay what they are until this changes.
  uint64_t version() const { return version_; }
  /// Where workers live on this host: slot to worker.
  const std::map<int32_t, uint64_t>& places(const std::string& host) const;
  /// Each of the host's first `slots` slots has a worker.
  bool full(const std::string& host, int32_t slots) const;

  Living& living() { return living_; }
  const Living& living() const { return living_; }

 private:
  struct End {
    Ending ending;
    std::string why;
  };
  Living living_;
  std::unordered_map<uint64_t, Worker*> by_id_;  // the same: each is looked for many times a decision
  std::unordered_map<std::string, std::map<int32_t, uint64_t>> places_;  // by host and slot
  std::map<uint64_t, End> ended_;
  std::deque<uint64_t> oldest_;  // of these, but for those that are done
  std::set<uint64_t> done_;
  uint64_t next_ = 1, version_ = 1;
};

}  // namespace hvd::membership
