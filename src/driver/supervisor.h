// What the driver does on its loop: events from discovery, workers and their processes go into
// Membership, and the actions that come out are done by the parts around it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/patient_clock.h"
#include "base/rate_limit.h"
#include "driver/discovery.h"
#include "driver/journal_file.h"
#include "driver/rendezvous_server.h"
#include "driver/settings.h"
#include "hvd/driver.h"
#include "launch/keeper.h"
#include "launch/launcher.h"
#include "membership/membership.h"
#include "status/describe.h"
#include "status/recorder.h"

namespace hvd::driver {

using DriverStatus = status::Snapshot;

struct SupervisorConfig {
  Settings settings;
  uint64_t term = 0;                          // of this driver; 0: nobody takes over from it
  std::shared_ptr<JournalFile> journal;       // or null
  std::optional<membership::KnownJob> known;  // a job that an earlier driver has begun
  std::shared_ptr<launch::Keeper> keeper;     // or null
  std::vector<std::string> environment;       // for workers, besides address, identity and secret
  LoggerPtr logger;
  std::function<std::vector<status::LogLine>()> log_lines;  // the last ones; absent: none are kept
  std::function<std::unique_ptr<launch::Launcher>(launch::Launcher::Events events)> make_launcher;
  /// Told where the driver listens, says how workers of this machine reach it; "": as it says itself. May be
  /// absent.
  std::function<std::string(const std::string& address, uint16_t port)> listening;
  std::function<bool(const std::string& host)> is_here;  // this machine; absent: all are
  /// As RendezvousServer::Events::guest. May be absent.
  std::function<bool(const std::shared_ptr<wire::Channel>& channel, const wire::EnvelopeT& message)> guest;
  size_t remembered = 4096;  // workers, living or gone, before those that are gone are forgotten
  std::function<void(const DriverStatus& status)>
      changed;  // after every event; the last one tells how the job ended
};

/// Everything on the loop's thread.
class Supervisor {
 public:
  /// Listens. Throws Error(HVD_UNAVAILABLE).
  Supervisor(Loop& loop, SupervisorConfig config, std::unique_ptr<HostDiscovery> discovery);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  /// The first discovery: `done` says how it went.
  void discover_first(std::function<void(const Status& status)> done);
  /// After it: listens, and starts workers. Throws Error(HVD_UNAVAILABLE) if it can't listen or the hosts can
  /// never be enough.
  void begin();
  /// The hosts may have changed: asks at once, unless a discovery is under way.
  void discover_now();
  /// Nobody can join any more; before `begin`: nobody ever. Repeated: the first reason stays.
  void close_joining(const std::string& reason);
  /// Ends the job; what is still there when called again gets SIGKILL.
  void stop(const std::string& reason);
  bool stopped() const { return stopped_; }
  // Of agents.
  void worker_found(uint64_t worker, const std::string& host, int32_t slot);
  void agents_changed();
  /// As RendezvousServer has it.
  bool fence(uint64_t term, const std::string& proof);
  /// Another driver is newer: this one ends (contract 14).
  void yield() { superseded(); }
  /// Somebody stands by for this driver, and has to learn of the job's end from it.
  bool followed() const { return followed_ && finish_ && !superseded_; }
  uint64_t term() const;
  /// A connection is over, perhaps since it has gone to a driver that has taken over.
  void look_for_successor();
  // What an operator or a host's agent wants (membership.h). Before begin nothing is accepted.
  membership::Answer drain(const std::string& host, Duration timeout, const std::string& why);
  membership::Answer undrain(const std::string& host);
  membership::Answer scale(int32_t size);
  /// Ends what is left at once, waiting at most `grace` for callbacks under way.
  void close(Duration grace);
  /// How the job is doing now, all of it. It takes time that grows with the workers.
  status::Snapshot snapshot() const;

 private:
  struct Worker;
  struct Verb;
  struct Applicant;
  using ApplicantPtr = std::shared_ptr<Applicant>;

  // Workers that come by themselves (admission.cc).
  bool guest(const std::shared_ptr<wire::Channel>& channel, const wire::EnvelopeT& message);
  void let_in(const ApplicantPtr& applicant, bool may_ask);
  void await_proof(const ApplicantPtr& applicant, const std::string& refusal);
  void drop_applicants();
  void note_refused(const wire::Channel& channel, const std::string& host, const std::string& why);

  template <class Event>
  membership::Answer wish(Event event);
  void listen();
  void discovered(const Status& status, std::vector<membership::HostSlots> hosts);
  void discover_later();
  void discover();

  void apply(std::vector<membership::Action> actions);
  void perform(membership::StartWorker& action);
  void perform(membership::StopWorker& action);
  void perform(membership::Assign& action);
  void perform(membership::Abort& action);
  void perform(membership::Notify& action);
  void perform(membership::Refuse& action);
  void perform(membership::Finish& action);
  void perform(membership::Wait& action) { server_->wait(action); }
  void perform(membership::WantFeed& action) { server_->want_feed(action); }
  void perform(membership::StartFeed& action) { server_->start_feed(action); }
  void perform(membership::LogLine& action) { lines_.push_back(std::move(action)); }
  void note(hvd_log_level level, std::string text) { lines_.push_back({level, std::move(text)}); }

  // What an operator asks: commands.cc.
  static std::span<const Verb> verbs();
  void command(const std::string& name, const std::string& argument, const CommandReply& reply);
  void command_help(const std::string& argument, const CommandReply& reply);
  void command_status(const std::string& argument, const CommandReply& reply);
  void command_drain(const std::string& argument, const CommandReply& reply);
  void command_undrain(const std::string& argument, const CommandReply& reply);
  void command_scale(const std::string& argument, const CommandReply& reply);
  void command_stop(const std::string& argument, const CommandReply& reply);
  void command_journal(const std::string& argument, const CommandReply& reply);
  void command_yield(const std::string& argument, const CommandReply& reply);
  bool tell_follower(const std::string& argument, const CommandReply& reply, bool even_nothing);
  void tell_followers(bool even_nothing);
  void doubt_losses();
  bool is_doubtful(uint64_t worker, membership::LossKind kind, const std::string& why);
  static void answer_to(const membership::Answer& answer, const CommandReply& reply);

  status::Snapshot summary() const;
  status::WorkerView view_of(uint64_t id, const Worker& worker, Time at) const;
  void write_address();
  void remove_address();
  // Taking over, and being taken over from (supervisor_takeover.cc).
  membership::Settle settle() const;
  void know(const std::vector<launch::InheritedWorker>& kept);
  void inherit(const std::vector<launch::InheritedWorker>& kept);
  void worker_back(uint64_t worker, const membership::BackEvent& event);
  uint64_t newer_term(uint64_t term, bool proved);
  void superseded();
  bool write_journal();
  void gathered();
  void end_unheard_of();
  void beat();

  std::optional<Refusal> admit(uint64_t worker) const;
  void worker_lost(uint64_t worker, membership::LossKind kind, std::string why);
  void launch_failed(uint64_t worker, const std::string& why);
  void process_exited(uint64_t worker, int32_t exit_status);
  void process_gone(uint64_t worker);
  void process_died(uint64_t worker, const Digest& life_token);
  void judge_end(uint64_t worker);
  void doubt_success();
  /// Ends its process unless it ends by itself within `after`.
  void end_process(uint64_t worker, Duration after);
  void end_all_processes(Duration after);
  bool over() const;
  void publish();
  void publish_now();
  std::string driver_endpoint() const;
  std::vector<std::string> torchrun_of(const membership::StartWorker& action);
  std::string name_of(uint64_t worker) const;
  Worker& add_worker(uint64_t id);
  launch::Life life(uint64_t worker, int64_t process) const;

  Loop& loop_;
  SupervisorConfig config_;
  const LoggerPtr logger_;
  std::unique_ptr<HostDiscovery> discovery_;
  std::unique_ptr<RendezvousServer> server_;
  std::unique_ptr<launch::Launcher> launcher_;
  std::unique_ptr<membership::Membership> membership_;
  mutable PatientClock clock_;  // what membership knows of time
  Loop::Timer tick_, discovery_timer_, publish_timer_, doubt_timer_, beat_timer_, follow_timer_, loss_timer_;
  std::vector<std::pair<std::string, CommandReply>> followers_;  // questions that wait for something new
  struct Loss {
    uint64_t worker;
    membership::LossKind kind;
    std::string why;
  };
  bool followed_ = false;  // somebody has asked for the journal
  bool doubts_ = false;    // see doubt_losses
  Time beat_at_{};
  std::vector<Loss> doubtful_;  // losses after this process had stood still
  bool publishing_ = false;     // it is under way
  Time published_{};            // when the last summary was told
  Duration publish_cost_{0};    // and what it took to make
  size_t forget_at_ = 0;        // as many workers, living or gone: those that are gone are forgotten
  std::vector<membership::HostSlots> hosts_;
  std::string discovery_failure_, endpoint_;
  std::string master_;  // of torchrun's variables
  uint16_t master_port_ = 0;
  int64_t first_size_ = 0;  // of the first generation
  bool discovering_ = false;
  std::string joining_closed_;  // why
  std::string done_in_vain_;    // a worker that said it was done ended with an error: the first
  std::map<uint64_t, Worker> workers_;
  std::vector<ApplicantPtr> applicants_;  // that wait until somebody proves that it lives
  RateLimit refusals_{20, seconds(1)};    // of applicants, that are logged
  std::optional<membership::Finish> finish_;
  status::Recorder recorder_{now()};
  std::vector<membership::LogLine> lines_;  // written when the actions are done
  bool stopped_ = false, closed_ = false;
  bool address_written_ = false;
  bool gathering_ = false, superseded_ = false;
  std::set<uint64_t> unheard_of_;  // workers that agents have, and nobody knows
  Time took_over_{};
};

}  // namespace hvd::driver
