// The handle of a worker.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "api/handles.h"
#include "api/standalone.h"
#include "base/callback.h"
#include "base/options.h"
#include "elastic/worker.h"

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
