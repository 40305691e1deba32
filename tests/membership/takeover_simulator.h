// A job whose driver dies again and again: real Memberships one after another, each with what its
// predecessor's journal holds (whole, cut or damaged) and what workers say that come back. An older driver
// may live on for a while, stopped or cut off. One seed is one history.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "membership/journal.h"
#include "membership/membership.h"
#include "membership/simulator.h"

namespace hvd::membership::test {

inline const Settle kSettle{seconds(5), seconds(1), seconds(2)};

struct TakeoverTally {
  uint64_t histories = 0, takeovers = 0, same_generation = 0, quiet = 0, torn = 0, damaged = 0, empty = 0,
           worker_died_too = 0, two_drivers = 0, acts_of_older = 0, split = 0, generations = 0,
           unheard_of = 0, early = 0, successes = 0, failures = 0, at_rest = 0;
};

class TakeoverSimulator {
 public:
  TakeoverSimulator(uint64_t seed, TakeoverTally* tally, bool trace = false);
  /// The rule that was broken; nothing if the history kept all of them.
  std::optional<std::string> run();
  const std::string& trace() const { return trace_; }

 private:
  enum class Where { kStarting, kWaiting, kConnecting, kTraining, kReducing, kDone, kGone };
  using Instance = std::pair<uint64_t, uint64_t>;  // generation, term of the driver that formed it
  struct ToDriver {
    enum Kind { kBack, kReady, kSynced, kFailedLink, kDone } kind;
    uint64_t generation = 0;
    BackEvent back = {};
    ReadyEvent ready = {};
    uint64_t revision = 0;
    int32_t rank = -1;
  };
  struct ToWorker {
    enum Kind { kAssign, kAbort, kNotify, kEnd } kind;
    Instance instance = {};
    uint64_t epoch = 0;
    bool interrupt = false;
  };
  struct Process {
    uint64_t id = 0;
    std::string host;
    int32_t slot = 0;
    Where where = Where::kStarting;
    uint64_t term = 0;  // of the driver it is connected to; 0: none
    uint64_t newest_term = 0;
    bool cut = false;        // off from the driver that it is connected to
    bool forgotten = false;  // no driver knows of it until it is back
    bool told_end = false;   // some driver wants it gone
    std::deque<ToDriver> up;
    std::deque<ToWorker> down;
    // As its session knows (src/session).
    Instance instance{0, 0};
    int32_t rank = -1, size = 0;
    bool left = true, lost = false, synced = false, ever_synced = false, lost_peer = false;
    uint64_t epoch = 0, assigned_epoch = 0, revision = 0;
    bool interrupt = false;
    std::optional<ReadyEvent> last_ready;
    std::optional<int32_t> failure;
    size_t round = 0;
  };
  struct Round {
    size_t contributions = 0;
    bool interrupt = false;
  };
  struct Generation {
    std::vector<uint64_t> members;
    uint64_t revision = 0;
    size_t entered = 0;
    bool trained = false;
    std::vector<Round> rounds;
  };

  /// A driver that lives on beside the newest one. What is here and in the members below of the same name
  /// changes places while it acts.
  struct Older {
    std::optional<Membership> driver;
    uint64_t term = 0;
    Duration offset{0};
    std::string journal;
    std::vector<size_t> ends;
  };

  void crash();
  void check_journal(const KnownJob& job);
  KnownJob know(const Journal& journal, bool told);
  void begin(const KnownJob& known);
  void leave_behind();
  void end_older();
  void older_step();
  bool has_older(const Process& p) const { return older_ && p.term != 0 && p.term == older_->term; }
  bool is_linked(const Process& p) const { return p.term != 0 && (p.term == term_ || has_older(p)); }
  template <class Act>
  auto as_older(Act act);
  void exchange_drivers();
  void disturb();
  void calm_down();
  bool move(Process& p);
  bool connect(Process& p);
  bool deliver_up(Process& p);
  bool deliver_down(Process& p);
  bool step(Process& p);
  bool to_be_left(const Generation& g, const Process& p) const;
  bool peer_is_gone(const Process& p);
  void say_ready(Process& p);
  void leave(Process& p);
  void die(Process& p, bool driver_sees);
  void set_hosts(std::vector<HostSlots> hosts);
  void all_come_back();
  void pass_time(bool to_next_tick);
  void take(std::vector<Action> actions);
  void act(const StartWorker& a);
  void act(const StopWorker& a);
  void act(const Assign& a);
  void act(const Abort& a);
  void act(const Notify& a);
  void act(const Refuse& a);
  void act(const Finish& a);
  void act(const LogLine&) {}
  void act(const Wait&) {}
  void act(const WantFeed&) {}
  void act(const StartFeed&) {}
  void check_rest();
  Process* find(uint64_t id);
  bool active() const { return !broken_ && !finished_; }
  Time driver_time() const { return now_ + offset_; }
  void require(bool holds, const std::string& rule) {
    if (!holds && !broken_) broken_ = rule;
  }
  void note(const std::string& line) {
    if (tracing_) trace_ += line + "\n";
  }

  Random random_;
  TakeoverTally& tally_;
  const bool tracing_;
  std::string trace_;
  std::optional<std::string> broken_;

  MembershipConfig config_;
  Time now_{};
  Duration offset_{0};  // of this driver's clock
  uint64_t term_ = 0;
  std::optional<Membership> driver_;
  std::string journal_;
  std::vector<size_t> ends_;  // of its records
  std::optional<Older> older_;
  bool older_acts_ = false;
  bool shared_ = false;  // one directory of journals: an older driver sees the newer one's before it acts
  std::map<uint64_t, Process> processes_;
  std::map<Instance, Generation> generations_;
  std::vector<HostSlots> hosts_;
  std::set<uint64_t> unlearnt_;  // generations that a member never learnt of
  uint64_t last_revision_ = 0;
  bool only_drivers_die_ = false;  // and journals are whole: nothing may be lost
  bool calm_ = false, finished_ = false, any_done_ = false;
  bool lossy_ = false;   // a journal was lost, or part of it
  bool prompt_ = false;  // who lives is back before any time passes
  Time began_{};         // the newest driver, by its clock
  uint64_t before_ = 0;  // generation that the last driver left
};

template <class Act>
auto TakeoverSimulator::as_older(Act act) {
  note(fmt::format("the driver of term {}:", older_->term));
  exchange_drivers();
  const auto result = act();
  exchange_drivers();
  return result;
}

}  // namespace hvd::membership::test
