// What a session decides, without I/O: events go in, actions come out, time is an argument.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "session/session.h"
#include "wire/messages.h"
#include "wire/roster.h"

namespace hvd::session {

struct CoreConfig {
  std::string driver;  // for messages
  std::string job, host;
  uint64_t worker = 0;
  int32_t slot = 0;
  int64_t pid = 0;
  Duration driver_timeout = seconds(60);  // silence of a driver whose connection is open
  int32_t life = -1;                      // descriptor of this process' life (base/life.h), -1: it has none
  Digest life_token{};
};

// ---- actions ----

struct Send {
  wire::EnvelopeT envelope;
  bool candidate = false;  // on the second connection (session_return.cc)
};
struct Welcomed {};
/// A second connection is wanted, within this time: dialled or dial_failed answers. Replaces an earlier one.
struct Dial {
  Duration timeout;
};
/// The second connection, or the attempt at one, is given up.
struct StopDial {};
/// The second connection is the session's from now on; the first one, if there still is one, is closed.
struct Adopt {};
/// The driver is missed, or there is one again.
struct NotifyDriver {
  DriverChange change;
};
/// For join. Replaces one that join has not taken.
struct Deliver {
  Assignment assignment;
};
struct NotifyAbort {
  AbortInfo info;
};
struct NotifyHosts {
  HostsUpdate update;
};
struct AnswerKv {
  uint64_t id;
  Status status;
  std::vector<uint8_t> value;
};
/// Once, and nothing but Close after it.
struct End {
  Status why;
  bool left = false;  // as was wished: the worker goes in peace
};
/// This worker is a spare: join waits on, whatever its time-out.
struct NotifyWaiting {
  std::string reason;
};
/// Others are to be fed by this worker.
struct NotifyFeedWanted {
  uint64_t generation;
};
/// This worker is fed while it waits.
struct NotifyFeed {
  FeedInfo info;
};
struct Close {
  Duration linger;
};
struct LogLine {
  hvd_log_level level;
  std::string text;
};
using Action = std::variant<Send, Welcomed, Deliver, NotifyAbort, NotifyHosts, AnswerKv, End, Close, LogLine,
                            Dial, StopDial, Adopt, NotifyDriver, NotifyWaiting, NotifyFeedWanted, NotifyFeed>;

class SessionCore {
 public:
  using Actions = std::vector<Action>;
  explicit SessionCore(CoreConfig config);

  // The channel. `patience`: how long the driver may take to answer hello.
  Actions connected(Duration patience, Time now);
  /// The connection broke before the driver had answered hello: true if another one may be made, and
  /// `connected` called again.
  bool begin_anew();
  Actions frame(std::span<const uint8_t> bytes, Time now);
  Actions received(const wire::EnvelopeT& message, Time now);
  Actions channel_closed(const Status& why, Time now);
  Actions tick(Time now);
  /// When tick wants to be called next.
  std::optional<Time> next_tick() const;

  // The second connection.
  Actions dialled(Time now);
  Actions dial_failed(const Status& why, Time now);
  Actions candidate_frame(std::span<const uint8_t> bytes, Time now);
  Actions candidate_received(const wire::EnvelopeT& message, Time now);
  Actions candidate_closed(const Status& why, Time now);

  // The worker.
  Actions ready(const ReadyInfo& info, Time now);
  /// join has given out this generation: its abort, held back until now, may be told.
  Actions taken(uint64_t generation, Time now);
  Actions synced(uint64_t generation, uint64_t revision, Time now);
  Actions recovered(uint64_t generation, const hvd_recovery_info& recovery, Time now);
  Actions failure(uint64_t generation, int32_t rank, const std::string& message, bool unfit, Time now);
  Actions stall(uint64_t generation, const std::string& text, const std::vector<int32_t>& missing,
                Duration waited, Time now);
  Actions feed_offer(uint64_t generation, const std::string& endpoint, const std::string& key,
                     const std::string& reason);
  Actions fed(uint64_t source, uint64_t revision, uint64_t bytes, uint64_t lacking,
              const std::string& failure);
  Actions done(uint64_t revision, Time now);
  Actions leave(const std::string& message, Time now);
  /// Wants to go, within the time-out. Said as soon as the driver has let this worker in.
  Actions leaving(Duration timeout, const std::string& message, Time now);
  Actions kv_set(uint64_t generation, const std::string& key, std::span<const uint8_t> value, Time now);
  Actions kv_get(uint64_t id, uint64_t generation, const std::string& key, Time now);
  void kv_forget(uint64_t id);
  Actions close(Duration linger, Time now);
  void set_revision(uint64_t revision) { revision_ = revision; }
  void set_progress(const Progress& progress) { progress_ = progress; }

  uint64_t epoch_word() const { return word_; }
  uint64_t generation() const { return generation_; }
  uint64_t term() const { return term_; }
  /// The driver is missed: its connection is closed, or it has been silent on it for too long.
  bool missing_driver() const { return missed_since_.has_value(); }
  bool welcomed() const { return phase_ == Phase::kWelcomed; }
  bool ended() const { return phase_ == Phase::kEnded; }

 private:
  enum class Phase { kNew, kHello, kWelcomed, kEnded };
  enum class Dialling { kNo, kUnderWay, kHello, kPause };
  struct Link {
    uint64_t sent = 0, seen = 0;  // sequence numbers
  };
  struct Broken {
    uint64_t generation;
    int32_t rank;
    std::string message;
    bool unfit;
  };
  struct PendingGet {
    uint64_t id;
    uint64_t generation;
    std::string key;
  };

  template <class Table>
  void send(uint64_t generation, Table body) {
    if (!linked_) return;  // said again by resume
    wire::EnvelopeT e = wire::envelope(config_.job, config_.worker, generation, std::move(body));
    e.sequence = ++link_.sent;
    e.term = term_;
    actions_.emplace_back(Send{std::move(e), false});
  }
  wire::HelloT hello() const;
  void log(hvd_log_level level, std::string text);
  void end(Status why, Duration linger = Duration(0));
  void broken(const std::string& what);  // the driver broke the protocol
  void say_leaving(Time now);
  void heartbeat(Time now);
  Actions take();
  void look_for_silence(Time now);
  Duration driver_patience() const;

  // session_return.cc
  bool outlives_driver() const { return term_ > 0; }
  void miss(Time since, const std::string& why, Time now);
  void found(Time now);
  void dial(Time now);
  void drop_candidate(Time again);
  void look_for_driver(Time now);
  Time gives_up_at() const;
  void adopt(const wire::WelcomeT& welcome, Time now);
  void resume(bool closed);
  std::optional<Time> next_look() const;
  bool take_welcome(const wire::WelcomeT& welcome, Time now);
  static wire::ReadyT to_wire(const ReadyInfo& info);
  std::unique_ptr<wire::ProgressT> progress() const;

  void dispatch(const wire::EnvelopeT& message, Time now);
  void on_welcome(const wire::WelcomeT& welcome, Time now);
  void on_heartbeat_ack(const wire::HeartbeatAckT& ack, Time now);
  void on_refused(const wire::RefusedT& refused, bool final = false);
  void on_assignment(uint64_t generation, const wire::AssignmentT& assignment, Time now);
  void on_abort(uint64_t generation, const wire::AbortT& abort, Time now);
  void on_hosts_updated(const wire::HostsUpdatedT& update);
  void on_kv_value(uint64_t generation, const wire::KvValueT& value);
  void lose_generation(AbortInfo info);
  void fail_gets(uint64_t below, const std::string& why);
  bool is_live(uint64_t generation) const { return generation == generation_ && generation != 0 && !lost_; }

  const CoreConfig config_;
  Phase phase_ = Phase::kNew;
  Actions actions_;  // of the event at hand

  Link link_;
  bool linked_ = true;             // there is a connection, as far as is known
  std::optional<Status> refusal_;  // last one that did not end the session
  Time hello_deadline_{};

  bool takes_stalls_ = false, takes_leaving_ = false, takes_recoveries_ = false;  // the driver does
  std::optional<Time> leaves_by_;                                                 // this worker wants to
  std::string leaves_why_;
  Duration heartbeat_interval_{0}, heartbeat_timeout_{0};
  Time next_heartbeat_{}, last_received_{};
  bool silence_told_ = false;      // that the driver is silent was logged
  std::optional<Time> suspected_;  // silent for too long: judged at this time, not before

  uint64_t generation_ = 0;        // newest assigned
  wire::Known roster_;             // and its members, from which the driver goes on
  bool taken_ = true;              // by join
  bool left_ = true;               // ready for the next was said
  bool lost_ = false;              // its abort has come
  std::optional<AbortInfo> held_;  // abort of a generation that join has not taken yet

  uint64_t word_ = 0;            // newest epoch * 2 + interrupt
  uint64_t assigned_epoch_ = 0;  // what the assignment has taken account of
  uint64_t revision_ = 0;
  Progress progress_;
  std::vector<PendingGet> gets_;

  // A driver that is missed, and what a new one has to be told (session_return.cc).
  uint64_t term_ = 0;       // newest known
  std::string term_proof_;  // its driver's
  std::optional<Time> missed_since_;
  std::optional<Time> last_chance_;  // the driver is given up then, later than it would have been
  std::string missed_why_;
  Dialling dialling_ = Dialling::kNo;
  Time look_at_{};  // end of a pause, or of waiting for the answer to hello
  Link candidate_;
  int32_t rank_ = -1, size_ = 0;
  bool synced_ = false;       // in the newest generation
  bool ever_synced_ = false;  // in any
  std::optional<ReadyInfo> last_ready_;
  std::optional<Broken> failure_;
  std::optional<uint64_t> done_;                                   // revision
  std::vector<std::pair<std::string, std::vector<uint8_t>>> set_;  // values set in the newest generation
};

}  // namespace hvd::session
