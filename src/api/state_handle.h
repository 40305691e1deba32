// The handle of a state, and the calls on it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "api/context.h"
#include "elastic/run_loop.h"

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
  std::atomic<bool> ended{false};          // its handle is gone: no call begins any more
  std::mutex mutex;                        // for those who wait until `user` is nobody
  std::condition_variable unused;
};

namespace hvd::api {

/// A call on a state, which takes one thread at a time; from within its callbacks that thread may call again.
/// Throws Error(HVD_INVALID) if another thread is in one, and Error(HVD_CLOSED) if the handle is gone.
class StateCall {
 public:
  explicit StateCall(hvd_state& state);
  StateCall(const StateCall&) = delete;
  StateCall& operator=(const StateCall&) = delete;
  ~StateCall();
  /// Is this thread in a call on a state of this context?
  static bool within(const hvd_context& context);
  /// After `ended`: returns when nobody is in a call on it, and no copy of its memory is under way. Within a
  /// call of this thread at once: the memory is the program's when that returns.
  static void end(hvd_state& state);

 private:
  void let_go();
  hvd_state& state_;
  const bool outermost_;
  StateCall* const outer_;
};

}  // namespace hvd::api
