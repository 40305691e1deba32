// A job in one thread: the real Membership, simulated workers, hosts, network and time. One seed is one
// history.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "membership/membership.h"
#include "membership/twin.h"

namespace hvd::membership::test {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {  // SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators)
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int32_t below(size_t n) { return static_cast<int32_t>(next() % n); }
  bool chance(int32_t percent) { return below(100) < percent; }

 private:
  uint64_t state_;
};

/// What was seen over many histories: a simulator that never meets a situation proves nothing about it.
struct Tally {
  uint64_t histories = 0, generations = 0, aborts = 0, interrupts = 0, undone = 0, hand_overs = 0,
           successes = 0, failures = 0, running = 0, refusals = 0, late_ends = 0, fresh_starts = 0, unfit = 0,
           misfits = 0, left = 0, left_late = 0, drained = 0, scaled = 0, spares_used = 0, arrivals = 0,
           offers = 0, fed = 0, joined_fed = 0, joined_unfed = 0;
};

class Simulator {
 public:
  Simulator(uint64_t seed, Tally* tally, bool trace = false);

  /// The rule that was broken, with what was seen; nothing if the history kept all of them.
  std::optional<std::string> run();
  const std::string& trace() const { return trace_; }

 private:
  enum class Where { kStarting, kWaiting, kConnecting, kTraining, kReducing, kBlocked, kDone, kGone };
  struct ToDriver {
    enum Kind { kReady, kSynced, kFailedLink, kUnfit, kDone, kLost, kLeaving, kOffer, kFed } kind;
    uint64_t generation = 0;
    ReadyEvent ready = {};
    uint64_t revision = 0;
    int32_t rank = -1;
    LossKind loss = LossKind::kConnectionClosed;
    Duration timeout{0};
    uint64_t source = 0;  // of a feed
    bool works = true;    // a feed
  };
  struct ToWorker {
    enum Kind { kAssign, kAbort, kNotify, kEnd } kind;
    uint64_t generation = 0;
    uint64_t word = 0;  // epoch * 2 + interrupt
  };
  struct Process {
    uint64_t id = 0;
    std::string host;
    int32_t slot = 0;
    int32_t flavour = 0;  // only those of one flavour can be in one generation
    Time started{};
    Where where = Where::kStarting;
    bool hung = false;
    std::deque<ToDriver> outbox;
    std::deque<ToWorker> inbox;
    uint64_t generation = 0;  // the last one it entered
    size_t round = 0;
    uint64_t word = 0;  // newest epoch * 2 + interrupt
    bool has_state = false;
    uint64_t revision = 0;
    ReadyEvent last_ready;  // the last one it sent
    ReadyEvent heard;       // the newest that the driver took
    // As the driver was told.
    bool expected = true, member = false, ready = false, synced = false, said_state = false, done = false;
    bool ever_synced = false;
    int32_t rank = -1;
    bool own_place = false, waits = false, leaves = false, drained = false;
    Time leaves_by{};
    // Feeding, as the driver was told.
    bool feeds = false, fed = false;
    Time ready_since{};
    uint64_t asked_in = 0, offered_in = 0;  // to feed others: generations
    uint64_t fed_from = 0, fed_in = 0;
  };
  struct Round {
    size_t contributions = 0;
    uint64_t word = 0;
  };
  struct Generation {
    std::vector<uint64_t> members;
    uint64_t revision = 0;  // of its root
    bool fresh = false;     // nobody held state when it was formed
    size_t entered = 0;
    std::vector<Round> rounds;
  };

  // ---- what happens (membership_simulator.cc) ----
  void disturb();
  void change_hosts();
  void change_wishes();  // leaving, draining, scaling, arriving
  void worker_leaves(Process& p, Duration timeout);
  void calm_down();
  bool stable();
  void set_hosts(std::vector<HostSlots> hosts);
  void pass_time(bool to_next_tick);
  bool deliver_to_driver(Process& p);
  bool deliver_to_worker(Process& p);
  void unfit(Process& accuser, const ToDriver& m);
  bool step(Process& p);
  void leave(Process& p);
  void die(Process& p, LossKind kind);
  void say_ready(Process& p);
  void stale_message();
  Process* pick();
  Process& at(uint64_t id) { return processes_[id - 1]; }

  // ---- what must hold (membership_simulator_checks.cc) ----
  void apply(std::vector<Action> actions);
  void apply(const StartWorker& a);
  void apply(const StopWorker& a);
  void apply(const Assign& a);
  void apply(const Abort& a);
  void apply(const Notify& a);
  void apply(const Refuse& a);
  void apply(const Finish& a);
  void apply(const LogLine&) {}
  void apply(const Wait& a);
  void apply(const WantFeed& a);
  void apply(const StartFeed& a);
  bool held(const Process& p) const;  // it is fed before it joins
  void check_assign_order(const Assign& a);
  void check_state();
  void check_target();
  bool listed(const Process& p) const;  // its slot is there
  bool placed(const Process& p) const;  // and it may stay in it
  bool drained(const std::string& host, int32_t slot) const;
  int64_t most() const;  // members; 0: no limit
  int32_t flavour_of_job() const;
  bool is_misfit(const Process& p) const;
  std::vector<uint64_t> inside() const;
  void require(bool holds, const char* rule) {
    if (!holds && !broken_) broken_ = rule;
  }
  bool active() const { return !broken_ && !finished_; }
  void note(const std::string& line) {
    if (tracing_) trace_ += line + "\n";
  }

  Random random_;
  Tally& tally_;
  const bool tracing_;
  std::string trace_;
  std::optional<std::string> broken_;

  MembershipConfig config_;
  Time now_{};
  std::optional<Twin> driver_;
  std::deque<Process> processes_;
  std::vector<Generation> generations_{1};
  std::vector<HostSlots> hosts_, hosts_before_;
  std::set<std::string> drained_hosts_;
  std::set<std::pair<std::string, int32_t>> drained_slots_;
  int32_t scaled_ = 0;
  Time forming_since_{};
  uint64_t last_revision_ = 0;  // training is over there
  uint64_t newest_epoch_ = 0, newest_word_ = 0;
  bool told_interrupt_ = false;  // the newest epoch interrupts the current generation
  bool aborted_ = false, state_exists_ = false, any_done_ = false;
  bool refused_to_feed_ = false;  // a member did: nobody knows from whom its newcomers were to get it
  bool all_feed_ = false;         // workers that understand it
  bool calm_ = false, all_fit_ = false, finished_ = false, just_finished_ = false;
  bool saw_abort_ = false, saw_notify_ = false;  // in the latest batch
  uint64_t unfit_ = 0;                           // who is to be stopped as such
};

}  // namespace hvd::membership::test
