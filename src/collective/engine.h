// Named collectives of one generation: a rank submits operations by name in its own order; rank 0
// matches them and tells all ranks the order in which to run them. Small data travels within the matching
// messages, the rest in the backend, small neighbours together. Matching is the pure class Matcher; the
// engine is the thin layer around it. No thread of its own, no polling: whoever brings an event (a
// submission, a message, a completion) drives it on.
//
// One lock guards the tables; nothing outside (backend, log) is called under it but wake_at, word and
// interrupts. What is to be done outside is queued, and one thread at a time works the queue off in order: so
// every rank sends its requests and runs its operations in one order, whoever brings the events.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "backend/backend.h"
#include "backend/board.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/rate_limit.h"
#include "base/status.h"
#include "collective/agreement.h"
#include "collective/matcher.h"
#include "collective/operation.h"
#include "collective/signature.h"
#include "collective/submission.h"
#include "local/bell.h"
#include "timeline/timeline.h"

namespace hvd::collective {

/// How much longer than an operation's own time-out a rank waits for rank 0's word about it.
inline constexpr Duration kCoordinatorGrace = std::chrono::seconds(10);

struct EngineConfig {
  uint64_t generation = 0;
  int32_t rank = 0;
  std::vector<std::string> hosts;  // by rank, for messages; its size is the number of ranks
  Duration stall_warning = seconds(60);
  LoggerPtr logger;
  TimelinePtr timeline;                   // may be none
  uint64_t fusion_threshold = 16 << 20;   // bytes that travel as one operation at most; 0: no fusion
  bool deterministic = false;             // nothing is fused that could change the bits of a result
  bool join_counts = false;               // averages are over all members, also those that have joined
  size_t small_data = 64 << 10;           // operations up to this (bytes x members) travel with the matching
  size_t most_under_way = kMostUnderWay;  // operations of one rank
  /// This rank's current epoch word: see check. Called with the engine's lock held; it must not call back.
  std::function<uint64_t()> word;
  /// The status that an agreed word means for ranks that have joined. Unless it is HVD_OK their join ends.
  /// On rank 0, with the engine's lock held; it must not call back.
  std::function<Status(uint64_t word)> interrupts;
  /// Rank 0's stall report: one line, as logged; the ranks that have not come, ascending, none for a join,
  /// whom others with more data keep waiting; since when the operation waits. No lock is held.
  std::function<void(const std::string& text, const std::vector<int32_t>& missing, Duration waited)> stalled;
  /// Called each time before this engine aborts the backend, which cuts off what devices are still at. Any
  /// thread, no lock is held; never blocks.
  std::function<void()> aborting;
  /// This engine found that the generation is broken by a rank, of which no backend knows. Any thread, no
  /// lock is held.
  std::function<void(const Status& why)> broken;
  /// Asks that tick be called at or after `when`; called when that time comes closer. Never blocks, and may
  /// be called with the engine's lock held: it must not call back into the engine.
  std::function<void(Time when)> wake_at;
};

class Engine final : public std::enable_shared_from_this<Engine> {
 public:
  /// `instance` (not owned) must be connected to this generation before start() and outlive what this
  /// returns. The last owner of that closes the engine.
  static std::shared_ptr<Engine> open(EngineConfig config, backend::Instance& instance);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Messages that came before start() are kept until then.
  void start();

  /// Never blocks. Bad arguments, a name in use and too many operations under way give an operation that is
  /// complete with HVD_INVALID; after fail() one that is complete with that status.
  std::shared_ptr<Operation> submit(Submission submission);

  /// The result of a call for which all ranks have met: it is over, or an operation runs in the backend.
  struct Concluded {
    Status status;  // without an operation
    std::shared_ptr<Operation> operation;
    uint64_t word = 0;  // of a check
  };
  /// For a caller that would wait at once for what it submits. If the ranks call this over and over they meet
  /// on the board, without messages. Nothing: submit it and wait. Waits for a moment at most.
  std::optional<Concluded> meet(Submission& submission);

  // The same in steps, for tests that replay histories: arrive; look until it is no more kOpen, or close;
  // conclude.
  struct Met {
    std::string name;
    backend::Board::Meeting meeting;
    uint64_t ticket = 0, checks = 0, word = 0;
    bool runs = false;   // in the backend, once all have met
    bool check = false;  // it is a check's question
  };
  using Meeting = backend::Board::State;
  std::optional<Met> arrive(Submission& submission);
  Meeting look(Met& met) { return board_->look(met.meeting); }
  Meeting close(Met& met) { return board_->close(met.meeting); }
  std::optional<Concluded> conclude(Met& met, Meeting state, Submission& submission);

  /// Contract 1: is called at the same point by every rank. The maximum of all ranks' words, the same on
  /// every rank; it is no older than any rank's word at its last operation of all ranks that had completed
  /// before, if no rank has left such an operation open. It costs a message of its own only if there was no
  /// such operation since the last check, or one was left open; checks in a row meet on the board. Blocks as
  /// an operation named "hvd.check_host_updates" would, and fails as that would.
  Status check(Duration timeout, uint64_t* ret_word);
  // The same in steps: over at once (HVD_OK: *ret_known), or a question to meet for; who does not meet for it
  // asks.
  Status begin_check(uint64_t* ret_word, bool* ret_known);
  static Submission question(Duration timeout);
  Status ask(Submission question, uint64_t* ret_word);

  /// A message of the backend for this generation. Any thread. Bad bytes are dropped, with few words; who
  /// sends them again and again has broken the generation.
  void deliver(int32_t source, std::span<const uint8_t> data);

  /// The generation is lost (or closed): every pending and later operation completes with `why`
  /// (contract 3). Aborts the backend. Any thread, idempotent: the first reason stays.
  void fail(const Status& why);
  /// Why nothing works any more; HVD_OK: nothing is known of that. Any thread.
  Status failure() const;

  /// Tells the others, in order with this rank's operations, that it will submit no more: operations
  /// that still need it fail with HVD_PEER_LOST, naming it, instead of waiting.
  void finish();

  /// For whom an operation waits; "" if it is complete. Any thread.
  std::string waiting_for(uint64_t ticket) const;
  /// Lends the calling thread to the backend: see backend::Instance::progress.
  void progress(const std::atomic<bool>& done, Time deadline);

  /// Drives deadlines and stall reports: see EngineConfig::wake_at. Not called while nothing is pending.
  void tick(Time now);

 private:
  Engine(EngineConfig config, backend::Instance& instance);
  /// fail(HVD_CLOSED); returns when the backend has given back every buffer.
  void close();

  using Lock = std::unique_lock<std::mutex>;

  static constexpr size_t kSpare = 16;

  /// Something to be done without the lock, in order.
  struct Work {
    enum class Type { kMessage, kOutcome, kStall, kResend, kLog, kBreak, kStallReport };
    Type type = Type::kLog;
    int32_t rank = 0;  // to whom; kBreak: who is to blame
    uint64_t ticket = 0;
    std::vector<uint64_t> more;
    OutcomePtr outcome;
    Proposal proposal;
    std::vector<int32_t> missing;
    Duration waited{0};
    std::unique_ptr<Encoder> message;  // kMessage: ready to be sent
    std::string line;
  };
  /// Messages of one rank that were refused.
  struct Refusals {
    RateLimit lines{10, seconds(1)};
    uint64_t count = 0;
  };
  /// Operations that run in the backend as one.
  struct Batch;

  int32_t size() const { return static_cast<int32_t>(config_.hosts.size()); }
  bool coordinator() const { return config_.rank == 0; }
  std::string describe(int32_t rank) const { return describe_ranks({rank}, config_.hosts); }
  /// Why nothing works any more, if so: fail()'s reason before what the backend said.
  const Status* down() const { return failed_ ? &*failed_ : broken_ ? &*broken_ : nullptr; }
  Status stamped(Status status) const;

  /// Why this operation can't be started now; HVD_OK if it can. Under the lock.
  Status obstacle(const Submission& submission);
  Status obstacle(Kind kind, const std::string& name, bool in_use);
  /// Without memory the generation is stuck, and the operation is over.
  void begin(const OperationPtr& op, bool question, Lock& lock) noexcept;
  void enter(const OperationPtr& op, bool question);
  Status too_many(const Submission& submission) const;
  bool travels(const Signature& call) const;
  bool carries(const Signature& call) const;
  size_t weight(const Signature& call) const;
  void fill(const Submission& submission, uint8_t* room) const;
  void queue_request(const Operation& op, uint32_t id, bool in_full);
  template <class Encode>
  void queue_message(Encode encode) {
    Work& work = queue_.emplace_back();
    work.type = Work::Type::kMessage;
    if (spare_.empty()) {
      work.message = std::make_unique<Encoder>();
    } else {
      work.message = std::move(spare_.back());
      spare_.pop_back();
    }
    encode(*work.message);
  }
  void refused(int32_t source, std::string line);
  void collect();
  void arm(Time when);
  Duration held_up(Time time);
  void drain(Lock& lock);
  void perform(Work& work) noexcept;
  void unsent(int32_t rank, Status status);

  // meeting.cc
  /// A call that the ranks repeat, and meet for.
  struct Repeated {
    SignaturePtr call;
    Grant grant;
    uint64_t round = 0;  // of this rank's last arrival
    bool busy = false;   // it has arrived and is not through
  };
  void take_board();
  void granted(const Operation& op, const Grant& grant);
  bool meeting(const std::string& name) const;
  bool awaits_meeting(const Work& work) const;
  Concluded run_together(Met& met, Submission& submission);
  void leave_board(const std::string& name);

  std::vector<OperationPtr> take_waiting() noexcept;
  void remove(const Operation& op);
  static void complete(const std::vector<OperationPtr>& ops, const Status& status) noexcept;
  void break_generation(Status why, bool abort);
  void stuck(const std::exception& error) noexcept;
  void look_at_deadlines(Time time);
  void abort_backend();

  // execution.cc
  /// Does what an outcome says of this rank's own operations. Under the lock, which it gives up.
  void execute(const Work& work, Lock& lock) noexcept;
  const char* misfit(const std::vector<OperationPtr>& ops, const Outcome& outcome) const;
  /// Counted in in_backend_ already.
  void run(std::unique_ptr<Batch> batch, const Outcome& outcome) noexcept;
  Status plan(Batch& batch, const Outcome& outcome) const;
  void finished(Batch& batch) noexcept;
  void complete_batch(Batch& batch);
  static void on_done(void* context, hvd_status code, const hvd_error* error) noexcept;
  static void release(Batch* batch, int64_t steps) noexcept;

  const EngineConfig config_;
  backend::Instance& instance_;
  backend::Instance& carrier_;  // of messages
  Logger& log_;
  std::atomic<int> lent_{0};  // threads in the backend's progress
  std::atomic<bool> closing_{false};

  mutable std::mutex mutex_;
  std::condition_variable idle_;
  uint64_t next_ticket_ = 1;
  std::unordered_map<uint64_t, OperationPtr> ops_;  // pending, by ticket
  std::unordered_set<std::string_view> keys_;       // of the pending operations, whose own the text is
  SentSignatures sent_;
  Checks checks_;
  Matcher matcher_;              // rank 0 only
  ReceivedSignatures received_;  // rank 0 only
  std::vector<Matcher::Action> actions_;
  std::vector<std::unique_ptr<Encoder>> spare_;  // whose memory serves the next message
  std::deque<Work> queue_;
  bool takes_parts_ = false;                            // from start on, as the backend says
  std::shared_ptr<backend::Board> board_;               // from start on; NULL: there is none
  std::unordered_map<std::string, Repeated> repeated_;  // by name
  std::optional<backend::Board::Meeting> held_;  // for what runs in the backend: no other operation begins
  pid_t process_ = 0;                            // a forked child has no board
  local::Patience patience_;
  std::atomic<int> looks_{0};  // of who waits on the board, before it gives way
  std::atomic<uint32_t> waits_{0};
  bool started_ = false, draining_ = false, finished_ = false;
  size_t in_backend_ = 0;
  size_t bytes_under_way_ = 0;      // of ops_
  std::vector<Refusals> refusals_;  // by rank; the last one is of ranks that do not exist
  uint64_t last_sequence_ = 0;
  Time armed_ = Time::max();
  Time read_by_ = Time::min();    // what had come when this process was held up last
  std::optional<Status> failed_;  // by fail()
  std::optional<Status> broken_;  // by the backend or this engine

  Encoder encoder_;  // of whoever drains
};

/// A failure of which every rank learns by itself leaves the generation whole: what a backend does not
/// support it supports on no rank.
inline bool breaks(hvd_status code) { return code != HVD_OK && code != HVD_UNSUPPORTED; }

}  // namespace hvd::collective
