// The handle of a state, and the calls on it.
#pragma once

#include <atomic>
#include <memory>
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
  std::atomic<bool> ended{false};          // its memory is the program's again, whoever shares this
};

namespace hvd::api {

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
