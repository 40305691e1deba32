// What the opaque handles of hvd.h are, and how their arguments are checked.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/guard.h"
#include "api/handle.h"
#include "api/standalone.h"
#include "base/callback.h"
#include "base/options.h"
#include "elastic/process_set.h"
#include "elastic/run_loop.h"
#include "elastic/worker.h"
#include "hvd/connect.h"

struct hvd_options {
  hvd::Options options;
  std::string text;  // what hvd_options_get gave last
};

/// One worker. What was made from it shares it, so it lives as long as any of that; its threads end with
/// close.
struct hvd_context {
  explicit hvd_context(hvd::Options given)
      : options(hvd::api::with_identity(std::move(given))),
        worker(options),
        shutdown_timeout(options.duration("shutdown_timeout")),
        init_timeout(options.duration("init_timeout")) {}
  hvd_context(const hvd_context&) = delete;
  hvd_context& operator=(const hvd_context&) = delete;
  ~hvd_context() { close("the context was destroyed"); }

  /// See hvd_connect. Once.
  hvd::Status connect(hvd::Duration timeout);
  /// Ends everything of it; later calls give HVD_CLOSED. Any thread but the worker's own. Idempotent.
  void close(const char* why);
  /// A driver runs within it, for a job without another one.
  bool serves_others() {
    std::lock_guard lock(mutex);
    return driver != nullptr;
  }
  /// Frees what abandoned operations have let go of; `all`: there can be no others.
  void sweep(bool all = false);

  enum class Stage : uint8_t { kCreated, kConnecting, kConnected, kFailed };

  hvd::Options options;               // completed by connect
  hvd::api::StandaloneDriver driver;  // of rank 0 in a job without a driver; outlives the worker's session
  hvd::elastic::Worker worker;
  const hvd::Duration shutdown_timeout, init_timeout;
  std::atomic<Stage> stage{Stage::kCreated};
  std::atomic<bool> running{false};  // a run loop is open
  std::atomic<hvd_status> last_run{HVD_OK};
  std::atomic<bool> closed{false};
  std::atomic<const void*> closes_later{nullptr};  // the thread that destroyed it from within a call

  struct Abandoned {
    std::shared_ptr<hvd::collective::Operation> operation;
    std::shared_ptr<hvd::Userdata> memory;
  };
  std::mutex mutex;  // guards what follows, and the driver's end
  std::vector<Abandoned> abandoned;
  std::atomic<bool> any_abandoned{false};
  std::thread connecting;
};

namespace hvd::api {
state::Settings state_settings(const Options& options);
}  // namespace hvd::api

struct hvd_state {
  explicit hvd_state(std::shared_ptr<hvd_context> c)
      : context(std::move(c)),
        elastic(context->worker.logger(), context->worker.timeline(), context->worker.copies(),
                hvd::api::state_settings(context->options)) {}
  const std::shared_ptr<hvd_context> context;
  hvd::elastic::ElasticState elastic;
  std::atomic<const void*> user{nullptr};  // the thread that is in a call: see StateCall
  std::atomic<bool> ended{false};          // its memory is the program's again, whoever shares this
};

struct hvd_op {
  std::shared_ptr<hvd_context> context;
  std::shared_ptr<hvd::collective::Operation> operation;
  hvd::collective::Kind kind{};
  hvd::Duration timeout{0};                      // the longest wait of the operation
  std::vector<hvd_tensor> outputs;               // as the caller gave them
  std::mutex mutex;                              // guards what follows
  std::vector<hvd::collective::Buffer> buffers;  // library's memory, once taken from the operation
  std::vector<bool> taken;
};

struct hvd_process_set {
  const std::shared_ptr<hvd_context> context;
  const std::shared_ptr<hvd::elastic::ProcessSet> set;
};

namespace hvd::api {

/// The worker of a context that was not shut down; throws Error(HVD_CLOSED).
elastic::Worker& open_worker(hvd_context& context);
/// The same, of one that has joined a job; otherwise throws Error(HVD_INVALID).
elastic::Worker& connected_worker(hvd_context& context);

/// Stands for the calling thread.
const void* this_thread();

/// A call on a state, which takes one thread at a time; from within its callbacks that thread may call again.
/// Throws Error(HVD_INVALID) if another thread is in one.
class StateCall {
 public:
  explicit StateCall(hvd_state& state);
  StateCall(const StateCall&) = delete;
  StateCall& operator=(const StateCall&) = delete;
  ~StateCall();
  /// Is this thread in a call on a state of this context?
  static bool within(const hvd_context& context);

 private:
  hvd_state& state_;
  const bool outermost_;
  StateCall* const outer_;
};

}  // namespace hvd::api
