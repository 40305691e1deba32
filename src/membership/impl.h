// The parts of Membership: membership.cc takes events, membership_time.cc what time brings,
// membership_forming.cc decides and forms generations, membership_views.cc tells, draining.cc is about
// leaving, feeding.cc about what newcomers get first.
#pragma once

#include <map>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "membership/host_manager.h"
#include "membership/journal.h"
#include "membership/membership.h"
#include "membership/worker_registry.h"

namespace hvd::membership {

inline constexpr int32_t kMaxFailedConnects = 5;
inline constexpr int32_t kMostChanges = 16;     // of what one worker says while it waits
inline constexpr int32_t kPatientConnects = 2;  // that fail before newcomers are started anew

/// Who would stay, go and join if a generation were formed now.
struct Plan {
  std::vector<Worker*> kept;       // members with a place, by rank
  std::vector<Worker*> leaving;    // living members without one, by rank
  std::vector<Worker*> newcomers;  // started workers that fit, in slot order, ready or not
  std::vector<Worker*> homeless;   // started workers whose slot is gone
  std::vector<Worker*> spares;     // started workers beyond the maximum that wait for a place
  std::vector<Worker*> surplus;    // started workers beyond those, too

  size_t placed() const { return kept.size() + newcomers.size(); }
};

/// Hosts that members are told of in one message, each once. A discovery may name far more than a message
/// holds: of those without workers only the first are named.
class HostNames {
 public:
  void add(const std::string& name, bool has_workers);
  std::vector<std::string> take() { return std::exchange(*this, {}).names_; }

 private:
  std::vector<std::string> names_;
  std::unordered_set<std::string> known_;
  size_t bytes_ = 0;
};

/// Whose it may be that a worker is lost.
enum class Fault { kHosts, kNobodys };

struct Membership::Impl {
  Impl(MembershipConfig c, Time now);
  Impl(MembershipConfig c, const KnownJob& known, const Settle& settle, Time now);

  // ---- events (membership.cc) ----
  void hosts_changed(const std::vector<HostSlots>& hosts);
  void worker_ready(uint64_t id, ReadyEvent event);
  uint64_t believed(const Worker& worker, uint64_t revision) const;
  bool hear(Worker& worker, ReadyEvent event);
  void worker_synced(uint64_t id, uint64_t generation, uint64_t revision);
  void worker_failed_link(uint64_t id, uint64_t generation, int32_t rank, const std::string& message);
  void worker_unfit(uint64_t id, uint64_t generation, int32_t rank, const std::string& message);
  void worker_stalled(uint64_t id, uint64_t generation, const StallEvent& event);
  void worker_done(uint64_t id, uint64_t generation);
  void worker_lost(uint64_t id, LossKind kind, const std::string& why);
  void close_joining(const std::string& reason);
  void stop(const std::string& reason);

  // ---- what changes no decision (quiet.cc) ----
  std::vector<Action> take(
      Time now);  // advances, if anything can have changed, and hands out what there is to do
  template <class Test>
  bool any_member(size_t* cursor, Test test);
  const std::vector<Worker*>& seated();  // survivors, as long as no worker comes or goes
  void seat(size_t rank, uint64_t worker) {
    members[rank] = worker;
    seated_version = 0;
  }
  bool somebody_inside();  // a living member has not left the current generation
  bool somebody_unsynced();
  bool somebody_lives();
  bool quiet_member_ready();
  bool quiet_beginner_ready(const Worker& worker);
  bool quiet_synced();
  bool quiet_done();

  // ---- leaving and arriving (draining.cc) ----
  void worker_leaving(uint64_t id, Duration timeout, const std::string& why);
  Answer drain(const std::string& host, Duration timeout, const std::string& why);
  Answer undrain(const std::string& host);
  Answer scale(int32_t size);
  Arrival worker_arrived(const std::string& host, int32_t slot);
  bool leaves(Worker& worker, Duration timeout, const std::string& why);
  void end_late_leavers();
  bool placed(const Worker& worker) const;  // it may be in the next generation
  void place_beyond(Plan* plan, std::vector<Worker*> rest) const;
  void keep_the_needed(Plan* plan) const;
  void tell_waiting(const std::vector<Worker*>& spares);
  int32_t spares_wanted();
  StopWorker farewell(const Worker& worker) const;
  std::string hosts_text() const;

  // ---- feeding (feeding.cc) ----
  void feed_offered(uint64_t id, uint64_t generation, const FeedOffer& offer);
  void worker_fed(uint64_t id, const FedEvent& event);
  bool is_held(const Worker& worker) const;  // ready, and to be fed before it joins
  Time may_join_since(const Worker& worker) const;
  Time waits_for_others_until(const Worker& worker) const;  // one that may join
  void leave_out_held(Plan* plan) const;
  Worker* source_for(const Worker& newcomer, const std::vector<Worker*>& sources) const;
  bool feed_newcomers();  // whether one of them needs it no more
  void now_fed(Worker* worker);

  // ---- taking over (takeover.cc) ----
  void worker_back(uint64_t id, const BackEvent& event);
  void raise(const BackEvent& event);
  bool take_seat(Worker& worker, const BackEvent& event);
  bool all_back();
  bool is_missing(size_t rank);
  bool loss_was_seen();
  Time seen_by() const { return last_back + (any_silent ? after_silence : after_close); }
  /// No journal tells who else was started: somebody may still come back of whom nobody has heard.
  bool may_come_back() const { return !told && (gathering || now < gather_until); }
  std::optional<std::string> lie_of(uint64_t id, const BackEvent& e) const;
  void gather();
  std::string abort_reason() const;
  KnownJob known() const;
  void remember(Record record) { records.push_back(std::move(record)); }

  // ---- time (membership_time.cc) ----
  void advance();
  void end_cooldowns();
  void end_late_starters();
  Time start_judged_at(const Worker& worker) const;
  void end_late_survivors();
  void check_shortage();
  bool short_for_good(const Plan& plan);
  std::optional<Time> wake();
  std::optional<Time> next_tick() const;

  // ---- decisions (membership_forming.cc) ----
  /// As of now; until a worker starts, ends or becomes ready, or hosts change.
  const Plan& plan();
  Plan make_plan();
  void forget_plan() { known_plan.reset(); }
  void stop_misplaced();
  void start_workers();
  void try_form();
  void send_away(Worker& worker, const std::string& reason, Fault fault = Fault::kHosts);
  void send_away_misfits();
  const std::vector<Offer>& offers_of(const Worker& worker) const;
  const std::string& reported_host(const Worker& worker) const;
  bool send_away_minority(const std::vector<Worker*>& beginners);
  bool send_away_too_long(const std::vector<Worker*>& next);
  void form(const std::vector<Worker*>& next);
  bool count_failed_connects();
  bool restart_unconnected();
  bool short_of_workers(const Plan& plan) const;
  bool newcomers_settled(const Plan& plan);
  bool interrupt_due();
  void announce();

  // ---- losses and ends (membership.cc) ----
  void lose(Worker& worker, const std::string& why, Fault fault = Fault::kHosts);
  void blame(const std::string& host, uint64_t in_generation);
  void confirm_unfit(const Worker& witness, uint64_t accused);
  void abort(const std::string& reason, int32_t rank, uint64_t worker);
  void all_members_gone();
  void end_worker(uint64_t id, Ending ending, const std::string& why);
  void stop_worker(uint64_t id, const std::string& reason);
  void stop_worker(StopWorker stop);
  void finish(bool success, std::string sentence, bool try_again = false);
  void refuse(uint64_t id, std::string reason) { out.push_back(Refuse{id, std::move(reason)}); }
  void log(hvd_log_level level, std::string text) { out.push_back(LogLine{level, std::move(text)}); }

  bool running() const { return phase == Phase::kRunning; }
  bool finishing() const { return done > 0; }
  int32_t first_size() const;  // workers wanted for the first generation
  int64_t capacity() const;    // most workers in the next generation
  int64_t limit() const;       // most workers in any
  /// Living members, by rank. To be copied if what is done with them may end one.
  const std::vector<Worker*>& survivors();
  size_t survivor_count();
  std::vector<Worker*> newcomers();  // living workers that are no members, by identity
  std::vector<Worker*> leavers();    // that want to go, by identity
  std::vector<uint64_t> inside();    // living members that have not left the current generation
  std::string describe(const Worker& worker) const;  // "rank 2 (worker 5 on b)", "worker 5 on b"

  MembershipConfig config;
  HostManager hosts;
  WorkerStateRegistry workers;
  Time now;
  Phase phase = Phase::kForming;
  std::vector<Action> out;
  std::vector<Record> records;      // for the journal
  bool records_lack_hosts = false;  // the last loss among them does, which many may share

  uint64_t generation = 0;
  uint64_t epoch = 0;
  int32_t resets = 0;
  int32_t excused = 0;                   // of them, for which a worker that did not fit was to blame
  std::vector<uint64_t> members;         // of the current generation, by rank; also those that ended since
  std::shared_ptr<const Roster> roster;  // as it was assigned by this driver; those are in it who say so

  std::vector<Worker*> known_seated;
  uint64_t seated_version = 0;  // of the workers; 0: to be found anew, since members have changed

  bool initial = true;              // no generation has formed yet, or all that did were lost before any sync
  std::optional<int32_t> scaled;    // an operator's maximum
  bool state_exists = false;        // some member has been synced: from now on a holder is needed
  Time waiting_since;               // start of the first forming, or end of the last generation
  std::optional<Time> short_since;  // fewer than min_np since then

  // Of the current generation.
  bool aborted = false;
  bool interrupted = false;  // an interrupt was sent: members may leave by agreement
  bool announced = false;    // what its members were told last: does the newest epoch interrupt?
  bool settled = false;      // ready newcomers have waited long enough for others
  bool lost_any = false;
  bool found_unfit = false;        // a worker that did not fit has ended it
  bool fresh = false;              // no member held state when it was formed
  std::optional<uint64_t> newest;  // revision that a member can't have passed; absent: nobody knows
  std::string link_failure;        // it ended by this
  struct Accusation {
    uint64_t accuser;
    Name host;  // of the one that was sent away
  };
  std::map<uint64_t, Accusation> unconfirmed;  // by worker: sent away by one member's word alone
  std::string stall;                           // the newest report of an operation that waits for somebody

  // Changes of hosts that listeners have not heard of.
  HostNames added, removed;
  bool unheard = false;

  // Of a job that was taken over.
  bool gathering = false;  // its members are waited for
  bool inherited = false;  // the generation was formed by an earlier driver
  bool told = true;        // all that there is to know, by a journal of which nothing can be missing
  Time gather_until{};
  Duration after_close{0}, after_silence{0};  // see Settle
  Time last_back{};                           // when a member came back last
  bool any_silent = false;                    // one that is back had found its driver silent
  std::set<int32_t> suspects;                 // ranks to which members that are back have lost their link
  size_t absent_cursor = 0, empty_cursor = 0;

  // Whether an event calls for a decision (quiet.cc).
  bool quiet = false;                // the event at hand does not
  bool undecided = true;             // the last decision may have made room for another
  Time decided_until = Time::min();  // then time alone does
  std::optional<Time> next;          // when tick wants to be called
  size_t inside_cursor = 0, unsynced_cursor = 0, living_cursor = 0;
  int64_t ready_beginners = 0;  // and among `capacity`, as of the last decision and since
  bool anybody_leaves = true;   // members without a place in the next generation, as of the last decision
  std::optional<Plan> known_plan;
  std::set<uint64_t> leaver_ids;  // and of some that have gone

  int32_t failed_connects = 0;  // generations in a row that ended unsynced, with nobody lost
  int32_t done = 0;
  int32_t lost_at_end = 0;  // members lost since the first one was done
  std::string last_loss;
  std::string held_up;      // the driver was, and for so long that workers may have given it up
  uint64_t held_up_in = 0;  // the generation then
  Time held_up_until{};     // members that are lost by then may have done so
  std::string last_loss_with_cause() const;
  std::string closed;  // why nobody can join any more
  bool hosts_told = false;
};

/// Members pass these tests once and for all in a generation: each look goes on where the last one ended.
template <class Test>
bool Membership::Impl::any_member(size_t* cursor, Test test) {
  if (initial) return false;
  const std::vector<Worker*>& living = seated();
  if (*cursor >= living.size()) *cursor = 0;
  for (size_t looked = 0; looked < living.size(); ++looked) {
    if (test(*living[*cursor])) return true;
    if (++*cursor == living.size()) *cursor = 0;
  }
  return false;
}

std::string count(int64_t n, const char* what);  // "1 slot", "2 slots"

}  // namespace hvd::membership
