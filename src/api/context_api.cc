// Context, membership, notifications and recoveries of hvd.h.
#include "api/handles.h"

using hvd::Error;
using hvd::Status;
using hvd::api::copy_out;
using hvd::api::copy_text;
using hvd::api::guarded;
using hvd::api::open_worker;
using hvd::api::required;
using hvd::api::timeout_of;

namespace hvd::api {

elastic::Worker& open_worker(hvd_context* context) {
  if (required(context, "context").closed) throw Error(HVD_CLOSED, "the context was shut down");
  return *context->worker;
}

Duration timeout_of(int64_t timeout_ns, Duration fallback) {
  constexpr int64_t kLongest = 365 * 24 * 3600 * HVD_SECOND;
  if (timeout_ns < 0 || timeout_ns > kLongest) {
    throw Error(HVD_INVALID, fmt::format("timeout_ns is {}: expected 0 (the default) to {} (365 days)",
                                         timeout_ns, kLongest));
  }
  return timeout_ns == HVD_DEFAULT_TIMEOUT ? fallback : Duration(timeout_ns);
}

namespace {

Status shut_down(hvd_context& context, Duration timeout) {
  if (context.worker->notifications().in_listener()) {
    return Status(HVD_INVALID, "hvd_shutdown was called from a listener: call it from another thread");
  }
  if (context.closed.exchange(true)) return {};
  Status status = context.worker->shutdown(timeout, context.last_run == HVD_OK && !context.running);
  context.driver.reset();  // sends the others what it still has to say
  return status;
}

}  // namespace
}  // namespace hvd::api

extern "C" {

hvd_status hvd_init(const hvd_options* options, hvd_context** ret_context, hvd_error* error) {
  return guarded(error, [&]() -> Status {
    required(ret_context, "ret_context");
    hvd::Options effective = options != nullptr ? options->options : hvd::Options();
    auto context = std::make_unique<hvd_context>();
    context->driver = hvd::api::prepare_standalone(effective);
    context->shutdown_timeout = effective.duration("shutdown_timeout");
    Status status = hvd::elastic::Worker::start(effective, &context->worker);
    if (!status.ok()) return status;
    context->backend_name = context->worker->backend().name;
    *ret_context = context.release();
    return status;
  });
}

hvd_status hvd_shutdown(hvd_context* context, int64_t timeout_ns, hvd_error* error) {
  return guarded(error, [&] {
    required(context, "context");
    return hvd::api::shut_down(*context, timeout_of(timeout_ns, context->shutdown_timeout));
  });
}

hvd_status hvd_abort(hvd_context* context, const char* reason, hvd_error* error) {
  return guarded(error, [&] {
    if (required(context, "context").closed) return;
    const std::string why = reason != nullptr && *reason != 0 ? reason : "no reason given";
    context->worker->abort(Status(HVD_CLOSED, "the context was aborted: " + why));
  });
}

void hvd_destroy(hvd_context* context) {
  if (context == nullptr) return;
  guarded(nullptr, [&] {
    if (context->worker->notifications().in_listener()) {
      context->worker->log().error("hvd_destroy was called from a listener: nothing was done");
      return;
    }
    delete context;
  });
}

hvd_status hvd_get_membership(hvd_context* context, hvd_membership_info* ret_membership, hvd_error* error) {
  return guarded(error,
                 [&] { copy_out(ret_membership, open_worker(context).membership(), "ret_membership"); });
}

}  // extern "C"

namespace {

template <class Field>
Field place(hvd_context* context, Field hvd_membership_info::*field, Field otherwise) {
  Field value = otherwise;
  guarded(nullptr, [&] { value = open_worker(context).membership().*field; });
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
    const hvd::elastic::Worker& worker = open_worker(context);
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

const char* hvd_backend_name(hvd_context* context) {
  return context == nullptr ? "" : context->backend_name.c_str();
}

hvd_status hvd_get_recovery_count(hvd_context* context, size_t* ret_count, hvd_error* error) {
  return guarded(error, [&] {
    const size_t count = required(context, "context").worker->recoveries().count();
    required(ret_count, "ret_count") = count;
  });
}

hvd_status hvd_get_recovery(hvd_context* context, size_t index, hvd_recovery_info* ret_recovery,
                            hvd_error* error) {
  return guarded(error, [&] {
    copy_out(ret_recovery, required(context, "context").worker->recoveries().at(index), "ret_recovery");
  });
}

hvd_status hvd_register_listener(hvd_context* context, hvd_event_kind kinds, hvd_listener_fn listener,
                                 void* userdata, hvd_destroy_fn destroy, uint64_t* ret_listener,
                                 hvd_error* error) {
  return guarded(error, [&] {
    hvd::Callback<hvd_listener_fn> callback(listener, userdata, destroy);
    required(ret_listener, "ret_listener");
    *ret_listener = open_worker(context).notifications().add(kinds, std::move(callback));
  });
}

hvd_status hvd_remove_listener(hvd_context* context, uint64_t listener, hvd_error* error) {
  return guarded(error, [&] { open_worker(context).notifications().remove(listener); });
}

hvd_status hvd_get_event_fd(hvd_context* context, int32_t* ret_fd, hvd_error* error) {
  return guarded(error, [&] {
    required(ret_fd, "ret_fd");
    *ret_fd = open_worker(context).notifications().event_fd();
  });
}

hvd_status hvd_next_event(hvd_context* context, hvd_event* ret_event, int32_t* ret_available,
                          hvd_error* error) {
  return guarded(error, [&] {
    required(ret_event, "ret_event");
    required(ret_available, "ret_available");
    hvd_event event{};
    // Also after shutdown: events that are queued can still be taken.
    const bool available = required(context, "context").worker->notifications().next(&event);
    if (available) copy_out(ret_event, event, "ret_event");
    *ret_available = available ? 1 : 0;
  });
}

}  // extern "C"
