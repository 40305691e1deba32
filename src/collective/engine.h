// Named collectives of one generation: a rank submits operations by name in its own order; rank 0
// matches them and tells all ranks the order in which to run them; the backend runs them. Matching is
// the pure class Matcher; the engine is the thin layer around it. No thread of its own, no polling: whoever brings an event
// (a submission, a message, a completion) drives it on.
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

namespace hvd::collective {

enum class Kind : uint8_t {
  kBroadcast,
  kAllreduce,
  kAllgather,
  kBarrier,
  kBroadcastVariables,
  kBroadcastObject,
  kAgree /* maximum of a 64-bit word, carried by the matching messages alone */,
  kTransfer /* broadcast from root to some ranks, see Submission::ranks */
};

struct Tensor {  // borrowed
  void* data = nullptr;
  hvd_dtype dtype = 0;
  std::vector<int64_t> shape;
  int64_t elements() const;
  size_t bytes() const;
};

struct Submission {
  std::string name;  // user names and the core's own ("hvd....")
  Kind kind = Kind::kBarrier;
  hvd_reduction reduction = HVD_SUM;
  int32_t root = 0;
  Tensor input;                   // allreduce, allgather
  Tensor output;                  // allreduce, broadcast; allgather: data NULL = allocate
  std::vector<Tensor> variables;  // broadcast of variables
  std::vector<uint8_t> object;    // broadcast of an object: the root's bytes (moved in)
  uint64_t word = 0;              // agree
  std::vector<int32_t> ranks;     // transfer: who takes part, ascending, root among them; others don't submit
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
  /// Of a completed operation.
  virtual Status status() const = 0;
  /// Which ranks it waits for, as far as this rank knows: "rank 2 (host b) has not called 'loss'"; "" if complete.
  virtual std::string waiting_for() const = 0;

  // Results of a completed operation.
  virtual uint64_t word() const = 0;         // agree
  virtual const Tensor& output() const = 0;  // allgather: shape as gathered
  virtual Buffer take_buffer() = 0;          // allgather and object: library's memory, once
  virtual size_t buffer_size() const = 0;    // bytes
};

struct EngineConfig {
  uint64_t generation = 0;
  int32_t rank = 0;
  std::vector<std::string> hosts;  // by rank, for messages; its size is the number of ranks
  Duration stall_warning = seconds(60);
  LoggerPtr logger;
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
