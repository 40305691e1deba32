// The engine's insides. One lock guards the tables; nothing outside (backend, log) is called under it but
// wake_at. What is to be done outside is queued, and one thread at a time works the queue off in order: so
// every rank sends its requests and runs its operations in one order, whoever brings the events.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "collective/engine.h"
#include "collective/matcher.h"
#include "collective/operation.h"

namespace hvd::collective {

using OperationPtr = std::shared_ptr<PendingOperation>;

struct Engine::Impl final : Explainer, std::enable_shared_from_this<Engine::Impl> {
  Impl(EngineConfig config, backend::Instance& instance);

  void start();
  OperationPtr submit(Submission submission);
  Status check(Duration timeout, uint64_t* ret_word);
  void deliver(int32_t source, std::span<const uint8_t> data);
  void fail(const Status& why);
  void finish();
  void tick(Time now);
  void close();
  std::string waiting_for(const std::string& name, uint64_t ticket) const override;

 private:
  using Lock = std::unique_lock<std::mutex>;

  /// Something to be done without the lock, in order.
  struct Work {
    enum class Type { kRequest, kOutcome, kStall, kLog };
    Type type = Type::kLog;
    int32_t rank = 0;  // to whom
    uint64_t ticket = 0;
    OutcomePtr outcome;
    std::vector<int32_t> missing;
    std::vector<uint8_t> bytes;  // kRequest: ready to be sent
    std::string line;
  };

  int32_t size() const { return static_cast<int32_t>(config_.hosts.size()); }
  bool coordinator() const { return config_.rank == 0; }
  std::string describe(int32_t rank) const { return describe_ranks({rank}, config_.hosts); }
  /// Why nothing works any more, if so: fail()'s reason before what the backend said.
  const Status* down() const { return failed_ ? &*failed_ : broken_ ? &*broken_ : nullptr; }
  Status stamped(Status status) const;

  void receive(int32_t source, Message&& message);
  void collect();
  void arm(Time when);
  void drain(Lock& lock);
  void perform(Work&& work) noexcept;
  void send(int32_t rank, const std::vector<uint8_t>& bytes);

  std::vector<OperationPtr> take_waiting();
  void remove(const PendingOperation& op);
  static void complete(const std::vector<OperationPtr>& ops, const Status& status);
  void break_generation(Status why, bool abort);

  // execution.cc
  struct Plan {
    std::vector<hvd_backend_op> ops;
    std::vector<size_t> counts;  // allgather
  };
  void execute(uint64_t ticket, const OutcomePtr& outcome);
  const char* misfit(const PendingOperation& op, const Outcome& outcome) const;
  Status settle(PendingOperation& op, const Outcome& outcome) const;
  Status plan(PendingOperation& op, const Outcome& outcome, Plan* ret_plan) const;
  Status plan_allgather(PendingOperation& op, const Outcome& outcome, Plan* ret_plan) const;
  Status plan_variables(PendingOperation& op, const Outcome& outcome, Plan* ret_plan) const;
  void run(const OperationPtr& op, const Outcome& outcome);
  void finished(const OperationPtr& op);
  static void on_done(void* context, hvd_status code, const hvd_error* error);
  static void release(PendingOperation* op, int64_t parts);

  const EngineConfig config_;
  backend::Instance& instance_;
  Logger& log_;
  std::atomic<uint64_t> next_ticket_{1};

  mutable std::mutex mutex_;
  std::condition_variable idle_;
  std::unordered_map<uint64_t, OperationPtr> ops_;  // pending, by ticket
  std::unordered_set<std::string_view> names_;      // of the pending operations, whose own the text is
  Matcher matcher_;                                 // rank 0 only
  std::deque<Work> queue_;
  bool started_ = false, draining_ = false, finished_ = false;
  size_t in_backend_ = 0;
  uint64_t last_sequence_ = 0;
  Time armed_ = Time::max();
  std::optional<Status> failed_;  // by fail()
  std::optional<Status> broken_;  // by the backend or this engine
};

}  // namespace hvd::collective
