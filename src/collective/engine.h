// Named collectives of one generation: a rank submits operations by name in its own order; rank 0
// matches them and tells all ranks the order in which to run them. Small data travels within the matching
// messages, the rest in the backend, small neighbours together. Matching is the pure class Matcher; the engine
// is the thin layer around it. No thread of its own, no polling: whoever brings an event (a submission, a
// message, a completion) drives it on.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "timeline/timeline.h"

namespace hvd::collective {

enum class Kind : uint8_t {
  kBroadcast,      // one or more tensors, in place
  kAllreduce,      // one or more tensors
  kAllgather,      // one or more tensors
  kReducescatter,  // one tensor
  kAlltoall,       // one tensor
  kBarrier,
  kBroadcastObject,
  kJoin,
  kAgree,  // maximum of a 64-bit word, carried by the matching messages alone; the core's own
};

struct Tensor {  // borrowed
  void* data = nullptr;
  hvd_dtype dtype = 0;
  std::vector<int64_t> shape;
  hvd_memory memory = HVD_MEMORY_HOST;
  int32_t device = 0;      // device memory
  void* stream = nullptr;  // device memory
  int64_t elements() const;
  size_t bytes() const;
};

struct Submission {
  std::string name;  // user names and the core's own ("hvd....")
  Kind kind = Kind::kBarrier;
  hvd_reduction reduction = HVD_REDUCTION_SUM;  // allreduce, reducescatter
  double prescale = 1, postscale = 1;  // allreduce, reducescatter: of the input before, of the result after
  int32_t root = 0;                    // rank in the generation, also with a process set
  std::vector<Tensor> inputs;          // allreduce, allgather, reducescatter, alltoall
  /// As many as inputs; broadcast: the tensors. Allgather, reducescatter, alltoall: data NULL = allocate; or
  /// none at all, which is the same.
  std::vector<Tensor> outputs;
  /// Alltoall: rows that go to each member; reducescatter: rows that each member gets. Empty: evenly
  /// (alltoall: must divide; reducescatter: the first ones get one more).
  std::vector<int64_t> splits;
  std::vector<uint8_t> object;      // broadcast of an object: the root's bytes (moved in)
  uint64_t word = 0;                // agree
  std::string set;                  // process set's name; "" = none
  std::vector<int32_t> members;     // who takes part, ascending, this rank among them; empty: all ranks
  int32_t priority = 0;             // higher runs first among those that are ready
  Duration timeout = seconds(600);  // for ranks that do not submit
};

/// Memory from malloc, to be handed to C callers.
struct FreeDeleter {
  void operator()(void* p) const;
};
using Buffer = std::unique_ptr<uint8_t[], FreeDeleter>;

/// An operation under way; shared by the engine and whoever waits. Thread-safe.
class Operation {
 public:
  virtual ~Operation() = default;
  virtual bool done() const = 0;
  /// Waits at most for `timeout`; false if it is still pending.
  virtual bool wait(Duration timeout) = 0;
  /// Polls readable from completion on; the operation's own. Throws Error(HVD_UNAVAILABLE) if there is none to be had.
  virtual int completion_fd() = 0;
  /// Of a completed operation.
  virtual Status status() const = 0;
  /// Which ranks it waits for, as far as this rank knows: "rank 2 (host b) has not called 'loss'"; "" if complete.
  virtual std::string waiting_for() const = 0;

  // Results of a completed operation.
  virtual uint64_t word() const = 0;  // agree; join: the rank that joined last
  virtual const Tensor& output(
      size_t index = 0) const = 0;  // allgather, reducescatter, alltoall: as it came out
  virtual const std::vector<int64_t>& received_splits() const = 0;  // alltoall: rows from each member
  /// The library's memory, once: allgather, reducescatter, alltoall and object.
  virtual Buffer take_buffer(size_t index = 0) = 0;
  virtual size_t buffer_size(size_t index = 0) const = 0;  // bytes
};

struct EngineConfig {
  uint64_t generation = 0;
  int32_t rank = 0;
  std::vector<std::string> hosts;  // by rank, for messages; its size is the number of ranks
  Duration stall_warning = seconds(60);
  LoggerPtr logger;
  TimelinePtr timeline;                  // may be none
  uint64_t fusion_threshold = 16 << 20;  // bytes that travel as one operation at most; 0: no fusion
  bool deterministic = false;            // nothing is fused that could change the bits of a result
  size_t small_data = 64 << 10;          // operations up to this (bytes x members) travel with the matching
  /// This rank's current epoch word: see check. Called with the engine's lock held; it must not call back.
  std::function<uint64_t()> word;
  /// What an agreed word means to ranks that have joined: their join completes with it unless it is HVD_OK. On
  /// rank 0, with the engine's lock held; it must not call back.
  std::function<Status(uint64_t word)> interrupts;
  /// Rank 0's stall report: one line, as logged; the ranks that have not come, ascending, none for a join, whom
  /// others with more data keep waiting; since when the operation waits. No lock is held.
  std::function<void(const std::string& text, const std::vector<int32_t>& missing, Duration waited)> stalled;
  /// Called each time before this engine aborts the backend, which cuts off what devices are still at. Any thread, no
  /// lock is held; never blocks.
  std::function<void()> aborting;
  /// Asks that tick be called at or after `when`; called when that time comes closer. Never blocks, and may be
  /// called with the engine's lock held: it must not call back into the engine.
  std::function<void(Time when)> wake_at;
};

class Engine {
 public:
  /// `instance` (not owned) must be connected to this generation before start() and outlive the engine.
  Engine(EngineConfig config, backend::Instance& instance);
  ~Engine();  // fail(HVD_CLOSED); returns when the backend has given back every buffer

  /// Messages that came before start() are kept until then.
  void start();

  /// Never blocks. Bad arguments and a name in use give an operation that is complete with HVD_INVALID;
  /// after fail() one that is complete with that status.
  std::shared_ptr<Operation> submit(Submission submission);

  /// Contract 1: is called at the same point by every rank. The maximum of all ranks' words, the same on every
  /// rank; it is no older than any rank's word at its last operation of all ranks that had completed before, if
  /// no rank has left such an operation open. It costs a message of its own only if there was no such operation
  /// since the last check, or one was left open. Blocks as an operation named "hvd.check_host_updates" would,
  /// and fails as that would.
  Status check(Duration timeout, uint64_t* ret_word);

  /// A message of the backend for this generation. Any thread. Bad bytes are logged and dropped.
  void deliver(int32_t source, std::span<const uint8_t> data);

  /// The generation is lost (or closed): every pending and later operation completes with `why`
  /// (contract 3). Aborts the backend. Any thread, idempotent: the first reason stays.
  void fail(const Status& why);

  /// Tells the others, in order with this rank's operations, that it will submit no more: operations
  /// that still need it fail with HVD_PEER_LOST, naming it, instead of waiting.
  void finish();

  /// Drives deadlines and stall reports: see EngineConfig::wake_at. Not called while nothing is pending.
  void tick(Time now);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace hvd::collective
