// Context, membership, notifications and recoveries of hvd.h.
#include <algorithm>
#include <iterator>

#include "api/state_handle.h"
#include "base/thread.h"
#include "collective/operation.h"
#include "hvd/connect.h"

using hvd::Error;
using hvd::Status;
using hvd::api::connected_worker;
using hvd::api::copy_out;
using hvd::api::copy_text;
using hvd::api::guarded;
using hvd::api::open_worker;
using hvd::api::required;
using hvd::api::timeout_of;
using hvd::api::Use;

namespace hvd::api {

namespace {

using Stage = hvd_context::Stage;

thread_local StateCall* innermost_state = nullptr;

}  // namespace

const void* this_thread() {
  static thread_local const char here = 0;
  return &here;
}

elastic::Worker& open_worker(hvd_context& context) {
  if (context.closed) throw Error(HVD_CLOSED, "the context was shut down or destroyed");
  return context.worker;
}

elastic::Worker& connected_worker(hvd_context& context) {
  elastic::Worker& worker = open_worker(context);
  if (worker.leaving().has_left()) throw Error(HVD_CLOSED, "this worker has left the job, as was wished");
  switch (context.stage.load(std::memory_order_acquire)) {
    case Stage::kConnected: break;
    case Stage::kCreated:
      throw Error(HVD_INVALID, "the context has not joined a job: expected hvd_connect before");
    case Stage::kConnecting:
      throw Error(HVD_INVALID,
                  "the context is joining its job: expected hvd_connect to have returned before");
    case Stage::kFailed: throw Error(HVD_CLOSED, "the context could not join its job: make another one");
  }
  return worker;
}

StateCall::StateCall(hvd_state& state)
    : state_(state), outermost_(state.user.load() != this_thread()), outer_(innermost_state) {
  const void* nobody = nullptr;
  if (outermost_ && !state.user.compare_exchange_strong(nobody, this_thread())) {
    throw Error(HVD_INVALID, "the state is in use by another thread: expected one call at a time");
  }
  if (outermost_ && state.ended) {
    let_go();
    throw Error(HVD_CLOSED, "the state was destroyed");
  }
  innermost_state = this;
}

StateCall::~StateCall() {
  innermost_state = outer_;
  if (outermost_) let_go();
}

void StateCall::let_go() {
  state_.user = nullptr;
  if (!state_.ended) return;  // or end() sees that nobody is in it
  const std::lock_guard lock(state_.mutex);
  state_.unused.notify_all();
}

void StateCall::end(hvd_state& state) {
  // Calls end by their own time-outs, which no option sets longer.
  constexpr Duration kPatience = std::chrono::hours(24);
  if (state.user == this_thread()) return;
  const auto nobody = [&] { return state.user == nullptr; };
  std::unique_lock lock(state.mutex);
  Status status;
  if (!state.unused.wait_until(lock, now() + kPatience, nobody)) {
    status = Status(HVD_TIMEOUT, "another thread is in a call on it");
  } else {
    status = state.elastic.state.rest();
  }
  if (status.ok()) return;
  state.context->worker.log().error("hvd_state_destroy: the state's memory is still in use: {}",
                                    status.message);
}

bool StateCall::within(const hvd_context& context) {
  for (const StateCall* call = innermost_state; call != nullptr; call = call->outer_) {
    if (call->state_.context.get() == &context) return true;
  }
  return false;
}

void close_if_due(hvd_context* context) noexcept {
  if (context->closes_later.load(std::memory_order_relaxed) != this_thread()) return;
  context->closes_later = nullptr;
  guarded(nullptr, [&] { context->close("the context was destroyed"); });
}

namespace {

Options options_of(const hvd_options* options) {
  if (options == nullptr) return {};
  return Use<hvd_options>(options, "options")->options;
}

Status shut_down(hvd_context& context, Duration timeout) {
  if (context.worker.notifications().in_listener()) {
    return Status(HVD_INVALID, "hvd_shutdown was called from a listener: call it from another thread");
  }
  if (StateCall::within(context)) {
    return Status(HVD_INVALID, "hvd_shutdown was called from a callback of a state: call it after that");
  }
  if (context.closed.exchange(true)) return {};
  Status status;
  if (context.stage == Stage::kConnected) {
    status = context.worker.shutdown(timeout, context.last_run == HVD_OK && !context.running);
  }
  context.close("the context was shut down");  // a driver within it sends the others what it still has to say
  return status;
}

/// From created to connecting: by one caller alone.
void begin_connecting(hvd_context& context) {
  open_worker(context);
  Stage stage = Stage::kCreated;
  if (!context.stage.compare_exchange_strong(stage, Stage::kConnecting)) {
    throw Error(HVD_INVALID, stage == Stage::kConnecting ? "the context is joining its job already"
                             : stage == Stage::kConnected
                                 ? "the context has joined its job already"
                                 : "the context could not join its job: make another one");
  }
}

}  // namespace
}  // namespace hvd::api

Status hvd_context::connect(hvd::Duration timeout) {
  hvd_error error = HVD_ERROR_INIT;
  const hvd_status code = guarded(&error, [&]() -> Status {
    hvd::api::StandaloneDriver made = hvd::api::prepare_standalone(options);
    {
      std::lock_guard lock(mutex);
      if (!closed) driver = std::move(made);
    }
    return worker.open(options, timeout);
  });
  stage = code == HVD_OK ? Stage::kConnected : Stage::kFailed;
  return code == HVD_OK ? Status() : Status::from(code, error);
}

void hvd_context::close(const char* why) {
  closed = true;
  const Status reason(HVD_CLOSED, why);
  worker.abort(reason);
  std::thread thread;
  {
    std::lock_guard lock(mutex);
    thread.swap(connecting);
  }
  if (thread.joinable()) thread.join();
  worker.close(reason, hvd::Duration(0));
  hvd::api::StandaloneDriver dying;
  {
    std::lock_guard lock(mutex);
    dying.swap(driver);
  }
  dying.reset();
  sweep(true);
}

void hvd_context::sweep(bool all) {
  if (!any_abandoned.load(std::memory_order_relaxed)) return;
  std::vector<Abandoned> done;  // freed with no lock held: that is the program's code
  {
    std::lock_guard lock(mutex);
    const auto pending = std::partition(abandoned.begin(), abandoned.end(),
                                        [](const Abandoned& a) { return !a.operation->done(); });
    done.assign(std::make_move_iterator(pending), std::make_move_iterator(abandoned.end()));
    abandoned.erase(pending, abandoned.end());
    if (all && !abandoned.empty()) {
      // Closing ends every operation; should one not have ended, its memory is better lost than freed.
      static_cast<void>(new std::vector<Abandoned>(std::move(abandoned)));
      abandoned.clear();
    }
    any_abandoned = !abandoned.empty();
  }
}

extern "C" {

hvd_status hvd_context_create(const hvd_options* options, hvd_context** ret_context, hvd_error* error) {
  return guarded(error, [&] {
    required(ret_context, "ret_context");
    *ret_context = hvd::api::make_handle(std::make_shared<hvd_context>(hvd::api::options_of(options)));
  });
}

hvd_status hvd_connect(hvd_context* context, int64_t timeout_ns, hvd_error* error) {
  return guarded(error, [&] {
    const Use<hvd_context> use(context, "context");
    const hvd::Duration timeout = timeout_of(timeout_ns, use->init_timeout);
    hvd::api::begin_connecting(*use);
    return use->connect(timeout);
  });
}

hvd_status hvd_connect_begin(hvd_context* context, int64_t timeout_ns, hvd_op** ret_op, hvd_error* error) {
  return guarded(error, [&] {
    const Use<hvd_context> use(context, "context");
    required(ret_op, "ret_op");
    const hvd::Duration timeout = timeout_of(timeout_ns, use->init_timeout);
    auto operation = std::make_shared<hvd::collective::Operation>(hvd::collective::Submission{});
    auto op = std::make_shared<hvd_op>();
    op->context = use.shared();
    op->operation = operation;
    op->kind = hvd::collective::Kind::kBarrier;  // nothing comes out of it
    op->connects = true;
    op->timeout = timeout + std::chrono::minutes(10);
    hvd_op* handle = hvd::api::make_handle(std::move(op));
    std::lock_guard lock(use->mutex);
    bool begun = false;
    try {
      hvd::api::begin_connecting(*use);
      begun = true;
      // It ends before the context does, which joins it.
      use->connecting = hvd::start_thread("hvd-connect", [&inner = *use, operation, timeout] {
        operation->complete(inner.connect(timeout));
      });
    } catch (...) {
      if (begun) use->stage = hvd_context::Stage::kCreated;  // there is no thread: it may be tried again
      hvd::api::end_handle(handle);
      throw;
    }
    *ret_op = handle;
  });
}

hvd_status hvd_init(const hvd_options* options, hvd_context** ret_context, hvd_error* error) {
  return guarded(error, [&]() -> Status {
    required(ret_context, "ret_context");
    auto context = std::make_shared<hvd_context>(hvd::api::options_of(options));
    hvd::api::begin_connecting(*context);
    Status status = context->connect(context->init_timeout);
    if (status.ok()) *ret_context = hvd::api::make_handle(std::move(context));
    return status;
  });
}

hvd_status hvd_shutdown(hvd_context* context, int64_t timeout_ns, hvd_error* error) {
  return guarded(error, [&] {
    const Use<hvd_context> use(context, "context");
    return hvd::api::shut_down(*use, timeout_of(timeout_ns, use->shutdown_timeout));
  });
}

hvd_status hvd_leave(hvd_context* context, int64_t timeout_ns, hvd_error* error) {
  return guarded(error, [&]() -> Status {
    const Use<hvd_context> use(context, "context");
    hvd::elastic::Worker& worker = open_worker(*use);
    const hvd::Duration timeout = timeout_of(timeout_ns, worker.leaving().timeout());
    if (use->serves_others()) {
      return Status(HVD_UNSUPPORTED,
                    "this worker serves the others of a job without a driver: it can't leave before them");
    }
    return worker.leaving().want(timeout, "its program asked for it");
  });
}

int32_t hvd_has_left(hvd_context* context) {
  int32_t left = 0;
  guarded(nullptr, [&] { left = Use<hvd_context>(context, "context")->worker.leaving().has_left() ? 1 : 0; });
  return left;
}

hvd_status hvd_get_leave_fd(hvd_context* context, int32_t* ret_fd, hvd_error* error) {
  return guarded(error, [&]() -> Status {
    required(ret_fd, "ret_fd");
    const Use<hvd_context> use(context, "context");
    hvd::elastic::Worker& worker = open_worker(*use);
    if (use->serves_others()) {
      return Status(HVD_UNSUPPORTED,
                    "this worker serves the others of a job without a driver: it can't leave before them");
    }
    *ret_fd = worker.leaving().fd();
    return {};
  });
}

hvd_status hvd_abort(hvd_context* context, const char* reason, hvd_error* error) {
  return guarded(error, [&] {
    const Use<hvd_context> use(context, "context");
    if (use->closed) return;
    const std::string why = reason != nullptr && *reason != 0 ? reason : "no reason given";
    use->worker.abort(Status(HVD_CLOSED, "the context was aborted: " + why));
  });
}

void hvd_destroy(hvd_context* context) {
  guarded(nullptr, [&] {
    if (Use<hvd_context> use(context, "context"); use->worker.notifications().in_listener()) {
      use->worker.log().error("hvd_destroy was called from a listener: nothing was done");
      return;
    }
    const std::shared_ptr<hvd_context> ended = hvd::api::end_handle(context);
    if (ended == nullptr) return;
    if (hvd::api::SlotUse::within(ended.get())) {
      // From a callback: what is under way here needs what close takes away.
      ended->closed = true;
      ended->closes_later = hvd::api::this_thread();
      ended->worker.abort(Status(HVD_CLOSED, "the context was destroyed"));
    } else {
      ended->close("the context was destroyed");
    }
  });
}

hvd_status hvd_get_membership(hvd_context* context, hvd_membership_info* ret_membership, hvd_error* error) {
  return guarded(error, [&] {
    const Use<hvd_context> use(context, "context");
    copy_out(ret_membership, connected_worker(*use).membership(), "ret_membership");
  });
}

}  // extern "C"

namespace {

template <class Field>
Field place(hvd_context* context, Field hvd_membership_info::*field, Field otherwise) {
  Field value = otherwise;
  guarded(nullptr,
          [&] { value = connected_worker(*Use<hvd_context>(context, "context")).membership().*field; });
  return value;
}

}  // namespace

extern "C" {

int32_t hvd_rank(hvd_context* context) { return place(context, &hvd_membership_info::rank, -1); }
int32_t hvd_size(hvd_context* context) { return place(context, &hvd_membership_info::size, -1); }
int32_t hvd_local_rank(hvd_context* context) { return place(context, &hvd_membership_info::local_rank, -1); }
int32_t hvd_local_size(hvd_context* context) { return place(context, &hvd_membership_info::local_size, -1); }
int32_t hvd_cross_rank(hvd_context* context) { return place(context, &hvd_membership_info::cross_rank, -1); }
int32_t hvd_cross_size(hvd_context* context) { return place(context, &hvd_membership_info::cross_size, -1); }
uint64_t hvd_generation(hvd_context* context) {
  return place(context, &hvd_membership_info::generation, uint64_t{0});
}

hvd_status hvd_get_backend(hvd_context* context, hvd_backend_info* ret_info, hvd_error* error) {
  return guarded(error, [&] {
    const Use<hvd_context> use(context, "context");
    const hvd::elastic::Worker& worker = connected_worker(*use);
    hvd_backend_info info{};
    copy_text(info.name, worker.backend().name);
    copy_text(info.version, worker.backend().version);
    copy_text(info.path, worker.backend().path);
    copy_text(info.detail, worker.backend_detail());
    info.dtypes = worker.backend().dtypes;
    info.collectives = worker.backend().collectives;
    copy_out(ret_info, info, "ret_info");
  });
}

hvd_status hvd_get_recovery_count(hvd_context* context, size_t* ret_count, hvd_error* error) {
  return guarded(error, [&] {
    const size_t count = Use<hvd_context>(context, "context")->worker.recoveries().count();
    required(ret_count, "ret_count") = count;
  });
}

hvd_status hvd_get_recovery(hvd_context* context, size_t index, hvd_recovery_info* ret_recovery,
                            hvd_error* error) {
  return guarded(error, [&] {
    copy_out(ret_recovery, Use<hvd_context>(context, "context")->worker.recoveries().at(index),
             "ret_recovery");
  });
}

hvd_status hvd_register_listener(hvd_context* context, hvd_event_kind kinds, hvd_listener_fn listener,
                                 void* userdata, hvd_destroy_fn destroy, uint64_t* ret_listener,
                                 hvd_error* error) {
  return guarded(error, [&] {
    hvd::Callback<hvd_listener_fn> callback(listener, userdata, destroy);
    required(ret_listener, "ret_listener");
    const Use<hvd_context> use(context, "context");
    *ret_listener = open_worker(*use).notifications().add(kinds, std::move(callback));
  });
}

hvd_status hvd_remove_listener(hvd_context* context, uint64_t listener, hvd_error* error) {
  return guarded(
      error, [&] { open_worker(*Use<hvd_context>(context, "context")).notifications().remove(listener); });
}

hvd_status hvd_get_event_fd(hvd_context* context, int32_t* ret_fd, hvd_error* error) {
  return guarded(error, [&] {
    required(ret_fd, "ret_fd");
    *ret_fd = open_worker(*Use<hvd_context>(context, "context")).notifications().event_fd();
  });
}

hvd_status hvd_next_event(hvd_context* context, hvd_event* ret_event, int32_t* ret_available,
                          hvd_error* error) {
  return guarded(error, [&] {
    required(ret_event, "ret_event");
    required(ret_available, "ret_available");
    hvd_event event{};
    // Also after shutdown: events that are queued can still be taken.
    const bool available = Use<hvd_context>(context, "context")->worker.notifications().next(&event);
    if (available) copy_out(ret_event, event, "ret_event");
    *ret_available = available ? 1 : 0;
  });
}

}  // extern "C"
