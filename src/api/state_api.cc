// State and elastic run of hvd.h.
#include <fmt/format.h>

#include <optional>

#include "api/arguments.h"
#include "api/state_handle.h"
#include "hvd/shards.h"
#include "state/shards.h"
#include "state/variable.h"

using hvd::Callback;
using hvd::Error;
using hvd::Status;
using hvd::api::connected_worker;
using hvd::api::copy_out;
using hvd::api::guarded;
using hvd::api::required;
using hvd::api::required_text;
using hvd::api::tensor_of;
using hvd::api::Use;

namespace hvd::api {

state::Settings state_settings(const Options& options) {
  using enum state::Settings::OnDivergence;
  state::Settings settings;
  settings.check_commits = options.boolean("check_commits");
  settings.divergence_every = static_cast<uint64_t>(options.integer("divergence_every"));
  settings.reads_others = options.string("local") != "off";
  const std::string action = options.string("on_divergence");
  if (action != "report" && action != "evict" && action != "stop") {
    throw Error(
        HVD_INVALID,
        fmt::format("option on_divergence (HVD_ON_DIVERGENCE) is '{}': expected report, evict or stop",
                    action));
  }
  settings.on_divergence = action == "stop" ? kStop : action == "evict" ? kEvict : kReport;
  return settings;
}

}  // namespace hvd::api

/// One elastic loop; the context allows one at a time.
struct hvd_run_loop {
  hvd_run_loop(std::shared_ptr<hvd_context> c, std::shared_ptr<hvd_state> s)
      : context(std::move(c)),
        state(std::move(s)),
        loop(context->worker, state ? &state->elastic : nullptr) {}
  hvd_run_loop(const hvd_run_loop&) = delete;
  hvd_run_loop& operator=(const hvd_run_loop&) = delete;
  ~hvd_run_loop() { context->running = false; }

  Status next(hvd_status last, bool* ret_again) {
    if (stepping.exchange(true)) {
      throw Error(HVD_INVALID, "the loop is in use by another thread: expected one call at a time");
    }
    const std::unique_ptr<std::atomic<bool>, void (*)(std::atomic<bool>*)> done(
        &stepping, [](std::atomic<bool>* flag) { *flag = false; });
    std::optional<hvd::api::StateCall> call;
    if (state != nullptr) {
      if (state->ended) return Status(HVD_CLOSED, "the loop's state was destroyed");
      call.emplace(*state);
    }
    // Until training is complete, leaving is no success (contract 8).
    context->last_run = HVD_INTERNAL;
    Status status = loop.next(last, ret_again);
    context->last_run = status.ok() && *ret_again ? HVD_INTERNAL : status.code;
    return status;
  }

  const std::shared_ptr<hvd_context> context;
  const std::shared_ptr<hvd_state> state;
  hvd::elastic::RunLoop loop;
  std::atomic<bool> stepping{false};
};

namespace {

std::shared_ptr<hvd_run_loop> begin_loop(hvd_context* context, hvd_state* state) {
  const Use<hvd_context> use(context, "context");
  connected_worker(*use);
  std::shared_ptr<hvd_state> kept;
  if (state != nullptr) {
    kept = Use<hvd_state>(state, "state").shared();
    if (kept->context != use.shared()) throw Error(HVD_INVALID, "the state belongs to another context");
  }
  if (use->running.exchange(true)) {
    throw Error(HVD_INVALID, "a run loop is open on this context: one at a time");
  }
  try {
    return std::make_shared<hvd_run_loop>(use.shared(), std::move(kept));
  } catch (...) {
    use->running = false;
    throw;
  }
}

/// A call on a state, from its beginning to its end.
struct Call {
  explicit Call(hvd_state* handle) : use(handle, "state"), call(*use) {}
  hvd::elastic::ElasticState* operator->() const { return &use->elastic; }
  hvd::elastic::ElasticState& operator*() const { return use->elastic; }
  hvd::elastic::Worker& worker() const { return connected_worker(*use->context); }
  const Use<hvd_state> use;
  const hvd::api::StateCall call;
};

}  // namespace

extern "C" {

hvd_status hvd_state_create(hvd_context* context, hvd_state** ret_state, hvd_error* error) {
  return guarded(error, [&] {
    required(ret_state, "ret_state");
    const Use<hvd_context> use(context, "context");
    hvd::api::open_worker(*use);
    auto state = std::make_shared<hvd_state>(use.shared());
    state->elastic.reset_before_sync = use->options.boolean("reset_before_sync");
    *ret_state = hvd::api::make_handle(std::move(state));
  });
}

void hvd_state_destroy(hvd_state* state) {
  guarded(nullptr, [&] {
    const std::shared_ptr<hvd_state> ended = hvd::api::end_handle(state);
    if (ended == nullptr) return;
    ended->ended = true;
    hvd::api::StateCall::end(*ended);  // a run loop, or a call, may share it for long after that
  });
}

hvd_status hvd_state_add_tensor(hvd_state* state, const char* key, const hvd_tensor* tensor,
                                hvd_error* error) {
  return guarded(
      error, [&] { Call(state)->state.add_tensor(required_text(key, "key"), tensor_of(tensor, "tensor")); });
}

hvd_status hvd_state_add_value(hvd_state* state, const char* key, void* value, size_t size,
                               hvd_error* error) {
  return guarded(error, [&] {
    required(static_cast<char*>(value), "value");
    Call(state)->state.add_value(required_text(key, "key"), value, size);
  });
}

hvd_status hvd_state_add_object(hvd_state* state, const char* key, hvd_save_fn save, hvd_load_fn load,
                                void* userdata, hvd_destroy_fn destroy, hvd_error* error) {
  return guarded(error, [&] {
    const Callback<hvd_save_fn> saver(save, userdata, destroy);
    if (save == nullptr) throw Error(HVD_INVALID, "save is NULL");
    if (load == nullptr) throw Error(HVD_INVALID, "load is NULL");
    Call(state)->state.add_object(required_text(key, "key"), saver, saver.beside(load));
  });
}

int32_t hvd_state_lend(void* sink, const void* const* data, const size_t* sizes, size_t count) {
  return hvd::state::lend(sink, data, sizes, count);
}

int32_t hvd_state_lend_until_end(void* sink, const void* const* data, const size_t* sizes, size_t count) {
  return hvd::state::lend(sink, data, sizes, count, hvd::state::Lent::kUntilEnd);
}

namespace {

/// `info` has copies or parity, and the callback if there is one.
void add_shard(hvd_state* state, const char* key, const hvd_tensor* tensor, int64_t global_elements,
               int64_t offset, hvd::state::ShardInfo info) {
  const Call call(state);
  info.tensor = tensor_of(tensor, "tensor");
  info.global_elements = global_elements;
  info.offset = offset;
  hvd::elastic::Worker& worker = call.worker();
  call->state.add_shard(
      required_text(key, "key"), std::move(info),
      [&worker](hvd::state::Generation* generation) { return worker.generation(generation); });
}

}  // namespace

hvd_status hvd_state_add_shard(hvd_state* state, const char* key, const hvd_tensor* tensor,
                               int64_t global_elements, int64_t offset, int32_t copies,
                               hvd_reshard_fn reshard, void* userdata, hvd_destroy_fn destroy,
                               hvd_error* error) {
  return guarded(error, [&] {
    const Callback<hvd_reshard_fn> callback(reshard, userdata, destroy);
    hvd::state::ShardInfo info;
    if (copies < HVD_NO_COPIES || copies > hvd::state::kMostCopies) {
      throw Error(HVD_INVALID, fmt::format("copies is {}: expected 1 to {}, 0 (one) or HVD_NO_COPIES", copies,
                                           hvd::state::kMostCopies));
    }
    info.copies = copies == 0 ? 1 : copies == HVD_NO_COPIES ? 0 : copies;
    if (reshard != nullptr) info.reshard = callback;
    add_shard(state, key, tensor, global_elements, offset, std::move(info));
  });
}

hvd_status hvd_state_add_shard_with_parity(hvd_state* state, const char* key, const hvd_tensor* tensor,
                                           int64_t global_elements, int64_t offset, int32_t parity,
                                           hvd_reshard_fn reshard, void* userdata, hvd_destroy_fn destroy,
                                           hvd_error* error) {
  return guarded(error, [&] {
    const Callback<hvd_reshard_fn> callback(reshard, userdata, destroy);
    hvd::state::ShardInfo info;
    if (parity < hvd::state::kLeastParity || parity > hvd::state::kMostParity) {
      throw Error(
          HVD_INVALID,
          fmt::format("parity is {}: expected the parity of {} to {} shards (of one shard it would be "
                      "a copy: hvd_state_add_shard)",
                      parity, hvd::state::kLeastParity, hvd::state::kMostParity));
    }
    info.parity = parity;
    if (reshard != nullptr) info.reshard = callback;
    add_shard(state, key, tensor, global_elements, offset, std::move(info));
  });
}

hvd_status hvd_shard_range(int64_t global_elements, int32_t rank, int32_t size, int64_t* ret_offset,
                           int64_t* ret_elements, hvd_error* error) {
  return guarded(error, [&] {
    required(ret_offset, "ret_offset");
    required(ret_elements, "ret_elements");
    if (global_elements < 0)
      throw Error(HVD_INVALID, fmt::format("global_elements is {}: expected none or more", global_elements));
    if (size < 1 || rank < 0 || rank >= size)
      throw Error(HVD_INVALID, fmt::format("rank is {} of {}: expected 0 <= rank < size", rank, size));
    const hvd::state::ShardRange range = hvd::state::even_range(0, global_elements, rank, size);
    *ret_offset = range.begin;
    *ret_elements = range.elements();
  });
}

hvd_status hvd_state_on_lost(hvd_state* state, hvd_lost_fn lost, void* userdata, hvd_destroy_fn destroy,
                             hvd_error* error) {
  return guarded(error, [&] {
    const Callback<hvd_lost_fn> callback(lost, userdata, destroy);
    Call(state)->state.on_lost(lost != nullptr ? callback : Callback<hvd_lost_fn>());
  });
}

hvd_status hvd_state_remove(hvd_state* state, const char* key, hvd_error* error) {
  return guarded(error, [&] { Call(state)->state.remove(required_text(key, "key")); });
}

hvd_status hvd_state_set_data(hvd_state* state, const char* key, void* data, hvd_error* error) {
  return guarded(error, [&] { Call(state)->state.set_data(required_text(key, "key"), data); });
}

hvd_status hvd_state_on_reset(hvd_state* state, hvd_reset_fn reset, void* userdata, hvd_destroy_fn destroy,
                              hvd_error* error) {
  return guarded(error, [&] {
    const Callback<hvd_reset_fn> callback(reset, userdata, destroy);
    if (reset == nullptr) throw Error(HVD_INVALID, "reset is NULL");
    Call(state)->reset_callbacks.push_back(callback);
  });
}

hvd_status hvd_state_commit(hvd_state* state, hvd_error* error) {
  return guarded(error, [&] {
    const Call call(state);
    return hvd::elastic::commit(call.worker(), *call);
  });
}

hvd_status hvd_state_commit_begin(hvd_state* state, hvd_error* error) {
  return guarded(error, [&] {
    const Call call(state);
    call.worker();
    return call->state.begin();
  });
}

hvd_status hvd_state_commit_end(hvd_state* state, hvd_error* error) {
  return guarded(error, [&] {
    const Call call(state);
    return hvd::elastic::commit_end(call.worker(), *call);
  });
}

hvd_status hvd_state_save(hvd_state* state, hvd_error* error) {
  return guarded(error, [&] {
    const Call call(state);
    return hvd::elastic::save(call.worker(), *call);
  });
}

hvd_status hvd_state_check_host_updates(hvd_state* state, hvd_error* error) {
  return guarded(error, [&] {
    const Call call(state);
    return hvd::elastic::check_host_updates(call.worker(), *call);
  });
}

hvd_status hvd_state_restore(hvd_state* state, hvd_error* error) {
  return guarded(error, [&] { return Call(state)->state.restore(); });
}

hvd_status hvd_state_sync(hvd_state* state, hvd_error* error) {
  return guarded(error, [&] {
    const Call call(state);
    return hvd::elastic::sync_now(call.worker(), *call);
  });
}

uint64_t hvd_state_revision(hvd_state* state) {
  uint64_t revision = 0;
  guarded(nullptr, [&] { revision = Use<hvd_state>(state, "state")->elastic.state.revision(); });
  return revision;
}

hvd_status hvd_state_get_info(hvd_state* state, hvd_state_info* ret_info, hvd_error* error) {
  return guarded(error, [&] {
    const Use<hvd_state> use(state, "state");
    const hvd::state::State& inner = use->elastic.state;
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
    out.written_bytes = numbers.written_bytes;
    out.shard_bytes = numbers.shard_bytes;
    out.copy_bytes = numbers.copy_bytes;
    out.fed_bytes = numbers.fed_bytes;
    copy_out(ret_info, out, "ret_info");
  });
}

hvd_status hvd_run(hvd_context* context, hvd_state* state, hvd_train_fn train, void* userdata,
                   hvd_error* error) {
  return guarded(error, [&]() -> Status {
    if (train == nullptr) throw Error(HVD_INVALID, "train is NULL");
    const Use<hvd_context> use(context, "context");  // should the function destroy it
    const std::shared_ptr<hvd_run_loop> loop = begin_loop(context, state);
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
    *ret_loop = hvd::api::make_handle(begin_loop(context, state));
  });
}

hvd_status hvd_run_next(hvd_run_loop* loop, hvd_status last, int32_t* ret_again, hvd_error* error) {
  return guarded(error, [&]() -> Status {
    const Use<hvd_run_loop> use(loop, "loop");
    required(ret_again, "ret_again");
    bool again = false;
    Status status = use->next(last, &again);
    if (status.ok()) *ret_again = again ? 1 : 0;
    return status;
  });
}

void hvd_run_end(hvd_run_loop* loop) { hvd::api::end_handle(loop); }

}  // extern "C"
