// Who is in the next generation, who may join, when the job ends. A pure class: events and time go in,
// actions come out. No sockets, threads, clocks or randomness.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/digest.h"
#include "base/roster.h"
#include "hvd/hvd.h"
#include "membership/name.h"

namespace hvd::membership {

struct HostSlots {
  std::string name;
  int32_t slots = 0;
  bool operator==(const HostSlots&) const = default;
};

struct MembershipConfig {
  int32_t np = 1;  // workers wanted for the first generation
  int32_t min_np = 1;
  int32_t max_np = 0;          // 0: no limit
  bool hosts_fixed = false;    // what hosts_changed tells first never changes
  bool restart = true;         // a lost worker's slot gets a new worker
  int32_t reset_limit = 0;     // 0: none
  Duration stall_shutdown{0};  // 0: who does not come to an operation is warned about and not evicted
  Duration elastic_timeout = seconds(600);
  Duration start_timeout = seconds(120);
  Duration slow_timeout = seconds(60);  // that much longer for one whose process runs
  Duration driver_timeout{0};           // workers give up a driver that is silent for so long; 0: not known
  /// Whether the process of a worker is seen to run; absent: nobody sees any.
  std::function<bool(uint64_t worker)> runs = {};
  Duration join_settle = seconds(0.5);
  Duration restart_delay_min = seconds(1), restart_delay_max = seconds(60);
  int32_t blocklist_after = 3;
  Duration blocklist_cooldown_min{0}, blocklist_cooldown_max{0};  // 0: for good
  int32_t spares = 0;        // workers beyond the maximum that are started, and wait for a place
  Duration feed_timeout{0};  // newcomers are fed before they join, at most for so long; 0: they are not
  Duration join_pause = seconds(0.1);  // see StartFeed
  int32_t max_waiting = 64;            // of those that came by themselves
  bool rests = true;  // false: every event leads to a decision, which comes to the same and takes longer
};

// ---- events ----

enum class LossKind { kConnectionClosed, kSilent, kExited, kStartFailed, kLeft, kEvicted };

/// What a worker says when it is ready for the next generation.
struct ReadyEvent {
  uint64_t left_generation = 0;
  bool has_state = false;
  uint64_t revision = 0;
  Digest digest;
  std::string host;        // as the worker reports it
  bool lost_peer = false;  // that is why it left
  std::vector<Offer> offers = {};
  std::vector<Setting> settings = {};
  bool feeds = false;  // it can be fed, and can feed others
  bool operator==(const ReadyEvent&) const = default;
};

/// How a member can be reached by those that it feeds.
struct FeedOffer {
  std::string endpoint, key;  // endpoint "": it can't feed
  std::string reason;         // why
};

/// A worker that waits for its place has been fed, or could not be.
struct FedEvent {
  uint64_t source = 0;
  uint64_t revision = 0, bytes = 0, lacking = 0;
  std::string failure;
};

/// What rank 0 says of an operation that some ranks do not come to.
struct StallEvent {
  std::string text;              // one line, ready to be logged
  std::vector<int32_t> missing;  // ranks
  Duration waited{0};
};

/// Where a worker stands that has connected again.
struct BackEvent {
  uint64_t generation = 0;  // newest it was given a place in; 0: none
  int32_t rank = -1, size = 0;
  bool synced = false;     // in it
  bool has_state = false;  // from any
  bool left = false, lost = false, interrupt = false;
  uint64_t epoch = 0, revision = 0;
  std::string slot_host;  // where it was started
  int32_t slot = 0;
  ReadyEvent last = {};  // as it was ready last
  int32_t suspect = -1;  // the rank to which its data plane broke in that generation
  bool closed = false;   // the connection to the driver before was closed, and not just silent
};

/// How long the members of a job that is taken over are waited for.
struct Settle {
  Duration longest;
  // Then who is missing is lost if a peer has seen it: since the last one came back, where the end of the
  // driver before closed its connections, and where it fell silent.
  Duration after_close, after_silence;
};

// ---- actions ----

struct StartWorker {
  uint64_t worker;
  std::string host;
  int32_t slot;
};
/// The worker's place is gone: tell it (reason), and end its process if it stays.
struct StopWorker {
  uint64_t worker;
  std::string reason;
  bool left = false;  // it goes as it, or an operator, wished: that is no failure
  Duration grace{0};  // what is left of the time that it was given for going
};
/// There is no place for it: it waits for one, for as long as that takes. Once for each worker.
struct Wait {
  uint64_t worker;
  std::string reason;
};
/// Asks a member to feed others. Once a generation; the answer is feed_offered.
struct WantFeed {
  uint64_t worker;
  uint64_t generation;
  std::string reason;
};
/// Tells a worker that waits who feeds it; the answer is worker_fed.
struct StartFeed {
  uint64_t worker;
  uint64_t source;
  std::string endpoint, key;
  Duration pause;  // that its joining may take for what it lacks
};
struct Assign {
  uint64_t generation;
  uint64_t epoch;
  int32_t root;
  std::shared_ptr<const Roster> roster;  // immutable: the membership goes on reading it
  std::string reason;
  int32_t spares = 0;  // of the members, those that had waited as spares
  const std::vector<Member>& members() const { return roster->members; }
};
/// To every living member of the generation.
struct Abort {
  uint64_t generation;
  std::string reason;
  int32_t rank;
  uint64_t worker;
  std::vector<uint64_t> to;
};
/// To every living member of the current generation, and to nobody else.
struct Notify {
  uint64_t epoch;
  bool interrupt;
  std::vector<std::string> added, removed;
  std::vector<uint64_t> to;
};
/// A message was stale or foreign: tell the worker, change nothing.
struct Refuse {
  uint64_t worker;
  std::string reason;
};
struct Finish {
  bool success;
  std::string sentence;
  bool try_again = false;  // a failure that another time may not meet: slots were too few
  bool operator==(const Finish&) const = default;
};
struct LogLine {
  hvd_log_level level;
  std::string text;
};
using Action = std::variant<StartWorker, StopWorker, Assign, Abort, Notify, Refuse, Finish, LogLine, Wait,
                            WantFeed, StartFeed>;

/// To an operator's or a host's wish.
struct Answer {
  bool accepted = false;
  std::string text;  // what happens now, or why nothing does: one sentence
};

/// To a worker that no driver started and that asks to be let in.
struct Arrival {
  uint64_t worker = 0;  // 0: refused
  int32_t slot = -1;
  std::string refusal;
  uint64_t occupant = 0;  // refused since this worker has its place, if it lives
};

enum class Phase { kForming, kRunning, kEnded };

struct KnownJob;  // membership/takeover.h
struct KnownHost;
struct Worker;     // membership/worker_registry.h
struct TermBegan;  // and these: membership/journal.h
struct WorkerStarted;
struct WorkerGone;
struct WorkerDone;
struct WorkerSynced;
struct Announced;
struct JobFinished;
using Record = std::variant<TermBegan, KnownJob, WorkerStarted, WorkerGone, WorkerDone, WorkerSynced,
                            Announced, JobFinished>;

class Membership {
 public:
  Membership(MembershipConfig config, Time now);
  /// Of a job that goes on already: waits for its members to come back.
  Membership(MembershipConfig config, const KnownJob& known, const Settle& settle, Time now);

  // Each event returns what to do about it, in order.
  std::vector<Action> hosts_changed(std::vector<HostSlots> hosts, Time now);
  std::vector<Action> worker_ready(uint64_t worker, ReadyEvent event, Time now);
  /// It has connected again: to this driver, or to a new one.
  std::vector<Action> worker_back(uint64_t worker, const BackEvent& event, Time now);
  /// Its process runs, as its parent says: it will be back.
  void worker_runs(uint64_t worker);
  std::vector<Action> worker_synced(uint64_t worker, uint64_t generation, uint64_t revision, Time now);
  std::vector<Action> worker_failed_link(uint64_t worker, uint64_t generation, int32_t rank,
                                         const std::string& message, Time now);
  /// A member says that what `rank` offers does not fit its own (backend, options, address), so that no
  /// generation with both can connect. The newer one of the two is sent away: a newcomer never harms a
  /// member.
  std::vector<Action> worker_unfit(uint64_t worker, uint64_t generation, int32_t rank,
                                   const std::string& message, Time now);
  std::vector<Action> worker_stalled(uint64_t worker, uint64_t generation, const StallEvent& event, Time now);
  std::vector<Action> worker_done(uint64_t worker, uint64_t generation, Time now);
  std::vector<Action> worker_lost(uint64_t worker, LossKind kind, const std::string& why, Time now);
  /// From now on nobody can join (`reason`): the job goes on with the members it has.
  std::vector<Action> close_joining(const std::string& reason, Time now);
  std::vector<Action> stop(const std::string& reason, Time now);

  // Leaving (draining.cc). Who goes does so at the next commit or check; whoever stays repeats nothing.
  /// The worker says that it goes. A slot that it leaves gets no other one until its host is undrained.
  std::vector<Action> worker_leaving(uint64_t worker, Duration timeout, const std::string& why, Time now);
  /// All workers of the host go, and it gets no others.
  std::vector<Action> drain(const std::string& host, Duration timeout, const std::string& why, Time now,
                            Answer* ret_answer);
  /// The host may be used again; those of its workers that have not gone yet stay.
  std::vector<Action> undrain(const std::string& host, Time now, Answer* ret_answer);
  /// The most workers from now on, min_np to max_np: newcomers are started, or the highest ranks go.
  std::vector<Action> scale(int32_t size, Time now, Answer* ret_answer);
  /// A worker that no driver started asks to be let in. slot -1: any that is free.
  std::vector<Action> worker_arrived(const std::string& host, int32_t slot, Time now, Arrival* ret_arrival);

  // Feeding (feeding.cc): a newcomer is given the last commit by a member before it takes its place.
  std::vector<Action> feed_offered(uint64_t worker, uint64_t generation, const FeedOffer& offer, Time now);
  std::vector<Action> worker_fed(uint64_t worker, const FedEvent& event, Time now);

  /// The driver did not run for so long. If no member outlives that, the job's end says so.
  void driver_held_up(Duration held, Time now);

  std::vector<Action> tick(Time now);
  /// When tick wants to be called next.
  std::optional<Time> next_tick() const;
  /// What the journal is to be given of the events so far (membership/journal.h), each once.
  void take_records(std::vector<Record>* ret_records);

  // Views for status and tests.
  bool gathering() const;  // of a job that was taken over: its members are still waited for
  bool may_come_back()
      const;  // nobody knows all who were started: a worker that is unknown may say where it stands
  KnownJob known() const;  // what a driver needs to take over from here
  Phase phase() const;
  uint64_t generation() const;
  uint64_t epoch() const;
  int32_t resets() const;
  int32_t size() const;                  // members of the current generation that live
  int32_t usable_slots(Time now) const;  // discovered, not blocked, within max_np
  int32_t blocked_hosts(Time now) const;
  bool expects(uint64_t worker) const;  // it was started by an action and not lost, stopped or done
  bool is_member(uint64_t worker) const;
  int32_t rank_of(uint64_t worker) const;  // in the current generation, -1
  std::string waiting_for() const;         // one sentence; "" while running
  std::vector<KnownHost> hosts(Time now) const;
  const Worker* worker(uint64_t worker) const;  // while it is expected, else null
  const std::string& stall() const;  // the newest report of a stall in the current generation, or ""
  bool ended() const;

 private:
  struct Impl;
  struct Deleter {
    void operator()(Impl*) const;
  };
  std::unique_ptr<Impl, Deleter> impl_;
};

}  // namespace hvd::membership
