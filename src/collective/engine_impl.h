// The engine's insides. One lock guards the tables; nothing outside (backend, log) is called under it but
// wake_at, word and interrupts. What is to be done outside is queued, and one thread at a time works the queue
// off in order: so every rank sends its requests and runs its operations in one order, whoever brings the events.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "collective/agreement.h"
#include "collective/engine.h"
#include "collective/matcher.h"
#include "collective/operation.h"
#include "collective/signature.h"

namespace hvd::collective {

/// How much longer than an operation's own time-out a rank waits for rank 0's word about it.
inline constexpr Duration kCoordinatorGrace = std::chrono::seconds(10);

using OperationPtr = std::shared_ptr<PendingOperation>;

struct Engine::Impl final : Waiter, std::enable_shared_from_this<Engine::Impl> {
  Impl(EngineConfig config, backend::Instance& instance);

  void start();
  OperationPtr submit(Submission submission);
  Status check(Duration timeout, uint64_t* ret_word);
  void deliver(int32_t source, std::span<const uint8_t> data);
  void fail(const Status& why);
  void finish();
  void tick(Time now);
  void close();
  std::string waiting_for(const std::string& key, uint64_t ticket) const override;
  void progress(const std::atomic<bool>& done, Time deadline) override;

 private:
  using Lock = std::unique_lock<std::mutex>;

  /// Something to be done without the lock, in order.
  struct Work {
    enum class Type { kMessage, kOutcome, kStall, kResend, kLog, kStallReport };
    Type type = Type::kLog;
    int32_t rank = 0;  // to whom
    uint64_t ticket = 0;
    std::vector<uint64_t> more;
    OutcomePtr outcome;
    Proposal proposal;
    std::vector<int32_t> missing;
    Duration waited{0};
    std::vector<uint8_t> bytes;  // kMessage: ready to be sent to rank 0
    std::string line;
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
  void begin(const OperationPtr& op, bool question);
  bool carries(const Signature& call) const;
  void fill(const PendingOperation& op, uint8_t* room) const;
  void queue_request(const PendingOperation& op, uint32_t id, bool in_full);
  void queue_message(std::span<const uint8_t> bytes);
  void receive(int32_t source, Message&& message);
  void collect();
  void arm(Time when);
  void drain(Lock& lock);
  void perform(Work& work) noexcept;
  void send(int32_t rank, std::span<const uint8_t> bytes);

  std::vector<OperationPtr> take_waiting();
  void remove(const PendingOperation& op);
  static void complete(const std::vector<OperationPtr>& ops, const Status& status);
  void break_generation(Status why, bool abort);
  void abort_backend();

  // outcome.cc
  void execute(Work& work);
  const char* misfit(const PendingOperation& op, const Outcome& outcome) const;
  size_t participants(const PendingOperation& op, const Outcome& outcome) const;
  bool alone(const PendingOperation& op, const Outcome& outcome) const;
  Status settle(PendingOperation& op, const Outcome& outcome) const;
  Status place(PendingOperation& op, size_t index, std::vector<int64_t> shape, bool discard) const;
  Status place_results(PendingOperation& op, const Outcome& outcome, bool discard) const;

  // execution.cc
  Status plan(Batch& batch, const Outcome& outcome) const;
  Status plan_one(Batch& batch, PendingOperation& op, const Outcome& outcome) const;
  void plan_parts(Batch& batch, const PendingOperation& op) const;
  Status plan_counted(Batch& batch, PendingOperation& op, const Outcome& outcome) const;
  Status prescale(PendingOperation& op) const;
  void run(std::vector<OperationPtr> ops, const Outcome& outcome);
  void finished(Batch& batch);
  static void on_done(void* context, hvd_status code, const hvd_error* error);
  static void release(Batch* batch, int64_t steps);

  const EngineConfig config_;
  backend::Instance& instance_;
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
  Encoder request_encoder_;
  std::vector<std::vector<uint8_t>> spare_bytes_;
  std::deque<Work> queue_;
  bool started_ = false, draining_ = false, finished_ = false;
  size_t in_backend_ = 0;
  uint64_t last_sequence_ = 0;
  Time armed_ = Time::max();
  std::optional<Status> failed_;  // by fail()
  std::optional<Status> broken_;  // by the backend or this engine

  Encoder encoder_;  // of whoever drains
};

/// A failure of which every rank learns by itself leaves the generation whole: what a backend does not
/// support it supports on no rank.
inline bool breaks(hvd_status code) { return code != HVD_OK && code != HVD_UNSUPPORTED; }

}  // namespace hvd::collective
