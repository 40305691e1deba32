// The driver's end of the control channel: who is connected, since when silent, what each may say. It
// checks every message and hands on what counts; the decisions are Membership's.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/held_up.h"
#include "base/life.h"
#include "base/log.h"
#include "base/rate_limit.h"
#include "driver/kv_store.h"
#include "launch/launcher.h"
#include "launch/life.h"
#include "membership/membership.h"
#include "status/recorder.h"
#include "wire/channel.h"
#include "wire/heartbeat.h"
#include "wire/names.h"
#include "wire/roster.h"

namespace hvd::driver {

struct Refusal {
  wire::Refusal code{};
  std::string reason;
};

/// Answers a command: once, on the loop's thread, now or later. Whether the operator still waits does not
/// matter.
using CommandReply = std::function<void(const Status& status, const std::string& text)>;

struct RendezvousConfig {
  std::string job, secret;
  std::string listen;  // "address:port"
  Duration heartbeat_interval = seconds(1), heartbeat_timeout = seconds(10), slow_timeout = seconds(60);
  Duration hello_timeout = seconds(5);
  wire::ChannelLimits limits;
  // Connections, which know a key, that have not said hello; of one worker or agent, which need one at a
  // time. The oldest gives way.
  size_t max_strangers = 16384, max_strangers_of_one = 4;
  size_t max_operators = 64;  // connections of operators; the one that was idle for longest gives way
  Duration operator_timeout = seconds(120);  // without a command
  uint64_t term = 0;                         // of this driver; 0: nobody will take over from it
  int socket = -1;                           // that listens already, instead of `listen`
};

/// How often each of so many workers sends a heartbeat, and to how many of them it gets one answer. Pure.
Duration spread_heartbeats(Duration interval, Duration timeout, size_t workers);
int64_t heartbeats_an_answer(Duration interval, Duration timeout, size_t workers);

/// All on the loop's thread.
class RendezvousServer {
 public:
  struct Events {
    /// Whether this worker may connect: nothing, or why not.
    std::function<std::optional<Refusal>(uint64_t worker)> admit;
    /// `process`: what it names as its own; with its life only if this server can't watch that by itself.
    std::function<void(uint64_t worker, const launch::ProcessClaim& process)> connected;
    /// A worker says where it stands that an earlier driver knew, or that has lost its connection to this
    /// one.
    std::function<void(uint64_t worker, const membership::BackEvent& event)> back;
    /// Whether a worker that is unknown may say that first.
    std::function<bool(uint64_t worker)> may_be_known;
    /// Somebody has heard of a newer driver; `proved`: for certain. The term that this one has from now on;
    /// 0: the same one, and who said so is not heard.
    std::function<uint64_t(uint64_t term, bool proved)> newer_term;
    /// The first message of a connection is another role's than a worker's: true if somebody takes the
    /// channel over, by handlers of its own. It has checked the channel's identity. Absent: refused.
    std::function<bool(const std::shared_ptr<wire::Channel>& channel, const wire::EnvelopeT& message)> guest;
    /// What is known of its process, whose number it named. Absent: nothing.
    std::function<launch::Life(uint64_t worker, int64_t process)> life;
    std::function<void(uint64_t worker, membership::ReadyEvent event)> ready;
    std::function<void(uint64_t worker, uint64_t generation, uint64_t revision)> synced;
    std::function<void(uint64_t worker, uint64_t generation, int32_t rank, const std::string& message)>
        failure;
    std::function<void(uint64_t worker, uint64_t generation, int32_t rank, const std::string& message)> unfit;
    std::function<void(uint64_t worker, uint64_t generation, const membership::StallEvent& event)> stalled;
    std::function<void(uint64_t worker, uint64_t generation, const membership::FeedOffer& offer)>
        feed_offered;
    std::function<void(uint64_t worker, const membership::FedEvent& event)> fed;
    std::function<void(uint64_t worker, uint64_t generation)> done;
    std::function<void(uint64_t worker, const status::Progress& progress)> progress;
    std::function<void(uint64_t worker, uint64_t generation, const status::Recovery& recovery)> recovered;
    std::function<void(uint64_t worker, Duration timeout, const std::string& why)> leaving;
    /// An operator asks. Absent: none may.
    std::function<void(const std::string& verb, const std::string& argument, const CommandReply& reply)>
        command;
    /// The connection is over: closed by the worker, silent, or by a Leave.
    std::function<void(uint64_t worker, membership::LossKind kind, const std::string& why)> lost;
  };

  /// Throws Error(HVD_UNAVAILABLE) if it can't listen.
  RendezvousServer(Loop& loop, RendezvousConfig config, LoggerPtr logger, Events events);
  ~RendezvousServer();
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;

  uint16_t port() const;
  std::string address() const;

  /// Newest epoch, for Welcome.
  void set_epoch(uint64_t epoch) { epoch_ = epoch; }
  void assign(const membership::Assign& assign);
  void abort(const membership::Abort& abort);
  void notify(const membership::Notify& notify);
  /// Tells a connected worker that a message of its was refused. The connection stays open, unless there were
  /// too many.
  void refuse(uint64_t worker, wire::Refusal code, const std::string& reason);
  /// Tells a connected worker why and closes the connection; no `lost` follows.
  /// left: it went as was wished.
  void dismiss(uint64_t worker, wire::Refusal code, const std::string& reason, bool left = false);
  /// Tells a connected worker that it is a spare.
  void wait(const membership::Wait& wait);
  /// Asks a connected member to feed others.
  void want_feed(const membership::WantFeed& want);
  /// Tells a connected worker who feeds it.
  void start_feed(const membership::StartFeed& start);
  /// The generation that runs, of a job that was taken over, and how many members it has.
  void run_on(uint64_t generation, size_t members);
  /// Closes everything without a word: the workers have another driver.
  void retire();
  int descriptor() const { return listener_->descriptor(); }
  uint64_t term() const { return term_; }
  /// contract 14: somebody of the job has named this term, with a proof of it or "". True if it is newer than
  /// this driver's, which must not have him then.
  bool fence(uint64_t term, const std::string& proof);
  /// Tells everybody how the job ended. Connections stay until their workers close them.
  void end(bool success, const std::string& sentence);
  /// Of a worker that is connected: since its last message, whether that is too long, and what it told last.
  struct Hearing {
    Duration silence{0};
    bool silent = false;
    uint64_t revision = 0;
  };
  std::optional<Hearing> hearing(uint64_t worker, Time now) const;
  /// Asks a worker for a sign of life; false if it is not connected.
  bool probe(uint64_t worker);
  /// The life that this worker has named has ended: its connection's end may take longer (base/life.h). A
  /// life that is not the connection's changes nothing. witness: who says so.
  void life_ended(uint64_t worker, const Digest& token, const std::string& witness);
  /// As `connected` has told it. Absent: it has no connection.
  std::optional<launch::ProcessClaim> process(uint64_t worker) const;
  /// It has been heard after that time.
  bool heard_since(uint64_t worker, Time time) const;
  /// What is known of its process.
  launch::Life life(uint64_t worker) const;
  bool connected(uint64_t worker) const { return connections_.contains(worker); }

 private:
  struct Connection;
  using ConnectionPtr = std::shared_ptr<Connection>;

  void accepted(std::shared_ptr<wire::Channel> channel);
  void received(const ConnectionPtr& connection, std::span<const uint8_t> frame);
  void hello(const ConnectionPtr& connection, const wire::EnvelopeT& message);
  void let_in(const ConnectionPtr& connection, const wire::EnvelopeT& message, const wire::HelloT& hello);
  void handle(const ConnectionPtr& connection, wire::EnvelopeT& message);
  void ready(const ConnectionPtr& connection, const wire::EnvelopeT& message);
  void failed(const ConnectionPtr& connection, const wire::EnvelopeT& message);
  void leaving(uint64_t worker, const wire::EnvelopeT& message);
  void feed_offered(const ConnectionPtr& connection, const wire::EnvelopeT& message);
  void kv_set(const ConnectionPtr& connection, wire::EnvelopeT& message);
  void kv_get(const ConnectionPtr& connection, const wire::EnvelopeT& message);
  void stalled(uint64_t worker, const wire::EnvelopeT& message);
  void progressed(uint64_t worker, const wire::ProgressT* progress);
  void progressed(uint64_t worker, uint64_t commits, int64_t useful_ns, int64_t commit_ns,
                  uint64_t sync_bytes);
  bool heartbeat(Connection& connection, const wire::Envelope& message);
  void answer_heartbeat(Connection& connection, int64_t sent_ns);
  void recovered(uint64_t worker, const wire::EnvelopeT& message);
  void operate(const ConnectionPtr& connection, wire::EnvelopeT& message);
  void operator_hello(const ConnectionPtr& connection, const wire::EnvelopeT& message);
  void expect_command(const ConnectionPtr& connection);
  bool fenced(const ConnectionPtr& connection, const wire::EnvelopeT& message);
  std::chrono::milliseconds heartbeat_interval() const;
  void resumed(const ConnectionPtr& connection, wire::EnvelopeT& message);
  membership::ReadyEvent ready_event(const Connection& connection, uint64_t generation,
                                     const wire::ReadyT& ready) const;
  void begin_term(uint64_t term);
  bool in_generation(const ConnectionPtr& connection, const wire::EnvelopeT& message);
  static bool of_last_place(const Connection& connection, const wire::EnvelopeT& message);
  void closed(const ConnectionPtr& connection, const Status& why);
  void reject(const ConnectionPtr& connection, wire::Refusal code, const std::string& reason);
  void remove(const ConnectionPtr& connection);
  void lose(const ConnectionPtr& connection, membership::LossKind kind, const std::string& why);
  void watch_life(const ConnectionPtr& connection);
  void died(const ConnectionPtr& connection, const std::string& why, int quiet_turns, Time deadline);
  void tell_refusal(Connection& connection, wire::Refusal code, const std::string& reason);
  void note(Connection& connection, hvd_log_level level, const std::string& text);
  void count_refused(const ConnectionPtr& connection);
  void answer(const KvStore::Answer& answer);
  void begin_values(uint64_t generation, size_t members);  // 0: of none
  void heard(Connection& connection, Time at);
  void watch();
  void look_for_silence();
  std::string verdict_on(Connection& connection, Time at);
  template <class Body>
  void send(Connection& connection, uint64_t generation, Body body);

  Loop& loop_;
  const RendezvousConfig config_;
  const LoggerPtr logger_;
  const Events events_;
  uint64_t epoch_ = 0, term_ = 0;
  std::string term_proof_;
  std::optional<std::pair<bool, std::string>> ended_;
  std::map<uint64_t, ConnectionPtr> connections_;  // by worker, after hello
  std::list<Connection*> by_silence_;              // the same, who was silent for longest first
  std::list<ConnectionPtr> strangers_;             // before it, oldest first
  std::vector<ConnectionPtr> operators_;           // after an operator's hello, longest idle first
  std::map<uint64_t, Duration> silence_;           // of workers that were lost
  std::shared_ptr<const Roster> assigned_;         // newest
  std::unique_ptr<wire::HeartbeatAnswer> answer_;  // as it was given last
  KvStore kv_;
  RateLimit rejections_{20, seconds(1)};  // that are logged
  Loop::Timer timer_;
  HeldUp held_up_;  // between two looks for silence
  std::unique_ptr<wire::Listener> listener_;
  LifeWatch lives_;  // by worker. Ends first: what it tells uses the rest
};

}  // namespace hvd::driver
