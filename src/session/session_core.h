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

namespace hvd::session {

struct CoreConfig {
  std::string driver;  // for messages
  std::string job, host;
  uint64_t worker = 0;
  int32_t slot = 0;
  int64_t pid = 0;
  Duration driver_timeout = seconds(60);  // silence of a driver whose connection is open
};

// ---- actions ----

struct Send {
  wire::EnvelopeT envelope;
};
struct Welcomed {};
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
};
struct Close {
  Duration linger;
};
struct LogLine {
  hvd_log_level level;
  std::string text;
};
using Action = std::variant<Send, Welcomed, Deliver, NotifyAbort, NotifyHosts, AnswerKv, End, Close, LogLine>;

class SessionCore {
 public:
  using Actions = std::vector<Action>;
  explicit SessionCore(CoreConfig config);

  // The channel. `patience`: how long the driver may take to answer hello.
  Actions connected(Duration patience, Time now);
  Actions frame(std::span<const uint8_t> bytes, Time now);
  Actions received(const wire::EnvelopeT& message, Time now);
  Actions channel_closed(const Status& why, Time now);
  Actions tick(Time now);
  /// When tick wants to be called next.
  std::optional<Time> next_tick() const;

  // The worker.
  Actions ready(const ReadyInfo& info, Time now);
  /// join has given out this generation: its abort, held back until now, may be told.
  Actions taken(uint64_t generation, Time now);
  Actions synced(uint64_t generation, uint64_t revision, Time now);
  Actions failure(uint64_t generation, int32_t rank, const std::string& message, bool unfit, Time now);
  Actions stall(uint64_t generation, const std::string& text, const std::vector<int32_t>& missing,
                Duration waited, Time now);
  Actions done(uint64_t revision, Time now);
  Actions leave(const std::string& message, Time now);
  Actions kv_set(uint64_t generation, const std::string& key, std::span<const uint8_t> value, Time now);
  Actions kv_get(uint64_t id, uint64_t generation, const std::string& key, Time now);
  void kv_forget(uint64_t id);
  Actions close(Duration linger, Time now);
  void set_revision(uint64_t revision) { revision_ = revision; }

  uint64_t epoch_word() const { return word_; }
  uint64_t generation() const { return generation_; }
  bool welcomed() const { return phase_ == Phase::kWelcomed; }
  bool ended() const { return phase_ == Phase::kEnded; }

 private:
  enum class Phase { kNew, kHello, kWelcomed, kEnded };
  struct PendingGet {
    uint64_t id;
    uint64_t generation;
    std::string key;
  };

  template <class Table>
  void send(uint64_t generation, Table body) {
    wire::EnvelopeT e = wire::envelope(config_.job, config_.worker, generation, std::move(body));
    e.sequence = ++sent_;
    actions_.emplace_back(Send{std::move(e)});
  }
  void log(hvd_log_level level, std::string text);
  void end(Status why, Duration linger = Duration(0));
  void broken(const std::string& what);  // the driver broke the protocol
  Actions take();
  void look_for_silence(Time now);
  Duration driver_patience() const;

  void dispatch(const wire::EnvelopeT& message, Time now);
  void on_welcome(const wire::WelcomeT& welcome, Time now);
  void on_refused(const wire::RefusedT& refused);
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

  uint64_t sent_ = 0, seen_ = 0;   // sequence numbers
  std::optional<Status> refusal_;  // last one that did not end the session
  Time hello_deadline_{};

  bool takes_stalls_ = false;  // the driver does
  Duration heartbeat_interval_{0}, heartbeat_timeout_{0};
  Time next_heartbeat_{}, last_received_{};
  bool silence_told_ = false;      // that the driver is silent was logged
  std::optional<Time> suspected_;  // silent for too long: judged at this time, not before

  uint64_t generation_ = 0;        // newest assigned
  bool taken_ = true;              // by join
  bool left_ = true;               // ready for the next was said
  bool lost_ = false;              // its abort has come
  std::optional<AbortInfo> held_;  // abort of a generation that join has not taken yet

  uint64_t word_ = 0;            // newest epoch * 2 + interrupt
  uint64_t assigned_epoch_ = 0;  // what the assignment has taken account of
  uint64_t revision_ = 0;
  std::vector<PendingGet> gets_;
};

}  // namespace hvd::session
