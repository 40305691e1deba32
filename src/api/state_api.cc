// State and elastic run of hvd.h.
#include "api/handles.h"

using hvd::Callback;
using hvd::Error;
using hvd::Status;
using hvd::api::copy_out;
using hvd::api::guarded;
using hvd::api::open_worker;
using hvd::api::required;
using hvd::api::required_text;
using hvd::api::tensor_of;

/// One elastic loop; the context allows one at a time.
struct hvd_run_loop {
  hvd_run_loop(hvd_context& c, hvd_state* state)
      : context(c), loop(*c.worker, state != nullptr ? &state->elastic : nullptr) {}
  hvd_run_loop(const hvd_run_loop&) = delete;
  hvd_run_loop& operator=(const hvd_run_loop&) = delete;
  ~hvd_run_loop() { context.running = false; }

  Status next(hvd_status last, bool* ret_again) {
    // Until training is complete, leaving is no success (contract 8).
    context.last_run = HVD_INTERNAL;
    Status status = loop.next(last, ret_again);
    context.last_run = status.ok() && *ret_again ? HVD_INTERNAL : status.code;
    return status;
  }

  hvd_context& context;
  hvd::elastic::RunLoop loop;
};

namespace {

hvd_run_loop* begin_loop(hvd_context* context, hvd_state* state) {
  open_worker(context);
  if (state != nullptr && &state->context != context) {
    throw Error(HVD_INVALID, "the state belongs to another context");
  }
  if (context->running.exchange(true)) {
    throw Error(HVD_INVALID, "a run loop is open on this context: one at a time");
  }
  try {
    return new hvd_run_loop(*context, state);
  } catch (...) {
    context->running = false;
    throw;
  }
}

hvd::elastic::ElasticState& elastic_of(hvd_state* state) { return required(state, "state").elastic; }

}  // namespace

extern "C" {

hvd_status hvd_state_create(hvd_context* context, hvd_state** ret_state, hvd_error* error) {
  return guarded(error, [&] {
    required(ret_state, "ret_state");
    open_worker(context);
    *ret_state = new hvd_state(*context);
  });
}

void hvd_state_destroy(hvd_state* state) { delete state; }

hvd_status hvd_state_add_tensor(hvd_state* state, const char* key, const hvd_tensor* tensor,
                                hvd_error* error) {
  return guarded(error, [&] {
    elastic_of(state).state.add_tensor(required_text(key, "key"), tensor_of(tensor, "tensor"));
  });
}

hvd_status hvd_state_add_value(hvd_state* state, const char* key, void* value, size_t size,
                               hvd_error* error) {
  return guarded(error, [&] {
    required(static_cast<char*>(value), "value");
    elastic_of(state).state.add_value(required_text(key, "key"), value, size);
  });
}

hvd_status hvd_state_add_object(hvd_state* state, const char* key, hvd_save_fn save, hvd_load_fn load,
                                void* userdata, hvd_destroy_fn destroy, hvd_error* error) {
  return guarded(error, [&] {
    const Callback<hvd_save_fn> saver(save, userdata, destroy);
    if (save == nullptr) throw Error(HVD_INVALID, "save is NULL");
    if (load == nullptr) throw Error(HVD_INVALID, "load is NULL");
    elastic_of(state).state.add_object(required_text(key, "key"), saver, saver.beside(load));
  });
}

hvd_status hvd_state_remove(hvd_state* state, const char* key, hvd_error* error) {
  return guarded(error, [&] { elastic_of(state).state.remove(required_text(key, "key")); });
}

hvd_status hvd_state_on_reset(hvd_state* state, hvd_reset_fn reset, void* userdata, hvd_destroy_fn destroy,
                              hvd_error* error) {
  return guarded(error, [&] {
    const Callback<hvd_reset_fn> callback(reset, userdata, destroy);
    if (reset == nullptr) throw Error(HVD_INVALID, "reset is NULL");
    elastic_of(state).reset_callbacks.push_back(callback);
  });
}

hvd_status hvd_state_commit(hvd_state* state, hvd_error* error) {
  return guarded(error, [&] {
    hvd::elastic::ElasticState& elastic = elastic_of(state);
    return hvd::elastic::commit(open_worker(&state->context), elastic);
  });
}

hvd_status hvd_state_save(hvd_state* state, hvd_error* error) {
  return guarded(error, [&] {
    hvd::elastic::ElasticState& elastic = elastic_of(state);
    Status status = elastic.state.save();
    if (status.ok()) open_worker(&state->context).set_revision(elastic.state.revision());
    return status;
  });
}

hvd_status hvd_state_check_host_updates(hvd_state* state, hvd_error* error) {
  return guarded(error, [&] {
    hvd::elastic::ElasticState& elastic = elastic_of(state);
    return hvd::elastic::check_host_updates(open_worker(&state->context), elastic);
  });
}

hvd_status hvd_state_restore(hvd_state* state, hvd_error* error) {
  return guarded(error, [&] { return elastic_of(state).state.restore(); });
}

hvd_status hvd_state_sync(hvd_state* state, hvd_error* error) {
  return guarded(error, [&] {
    hvd::elastic::ElasticState& elastic = elastic_of(state);
    return hvd::elastic::sync_now(open_worker(&state->context), elastic);
  });
}

uint64_t hvd_state_revision(hvd_state* state) {
  return state == nullptr ? 0 : state->elastic.state.revision();
}

hvd_status hvd_state_get_info(hvd_state* state, hvd_state_info* ret_statistics, hvd_error* error) {
  return guarded(error, [&] {
    const hvd::state::State& inner = elastic_of(state).state;
    const hvd::state::Statistics numbers = inner.statistics();
    hvd_state_info out{};
    out.revision = inner.revision();
    out.commits = numbers.commits;
    out.restores = numbers.restores;
    out.syncs = numbers.syncs;
    out.bytes = numbers.bytes;
    out.sync_sent_bytes = numbers.sync_sent_bytes;
    out.sync_received_bytes = numbers.sync_received_bytes;
    out.last_commit_ns = numbers.last_commit.count();
    copy_out(ret_statistics, out, "ret_statistics");
  });
}

hvd_status hvd_run(hvd_context* context, hvd_state* state, hvd_train_fn train, void* userdata,
                   hvd_error* error) {
  return guarded(error, [&]() -> Status {
    if (train == nullptr) throw Error(HVD_INVALID, "train is NULL");
    const std::unique_ptr<hvd_run_loop> loop(begin_loop(context, state));
    hvd_status last = HVD_OK;
    while (true) {
      bool again = false;
      Status status = loop->next(last, &again);
      if (!status.ok() || !again) return status;
      last = train(userdata);
    }
  });
}

hvd_status hvd_run_begin(hvd_context* context, hvd_state* state, hvd_run_loop** ret_loop, hvd_error* error) {
  return guarded(error, [&] {
    required(ret_loop, "ret_loop");
    *ret_loop = begin_loop(context, state);
  });
}

hvd_status hvd_run_next(hvd_run_loop* loop, hvd_status last, int32_t* ret_again, hvd_error* error) {
  return guarded(error, [&]() -> Status {
    required(loop, "loop");
    required(ret_again, "ret_again");
    bool again = false;
    Status status = loop->next(last, &again);
    if (status.ok()) *ret_again = again ? 1 : 0;
    return status;
  });
}

void hvd_run_end(hvd_run_loop* loop) { delete loop; }

}  // extern "C"
