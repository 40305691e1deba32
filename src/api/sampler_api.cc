// The sampler of hvd.h.
#include "api/state_handle.h"
#include "elastic/sampler.h"
#include "hvd/sampler.h"

using hvd::Callback;
using hvd::Error;
using hvd::api::connected_worker;
using hvd::api::copy_in;
using hvd::api::copy_out;
using hvd::api::guarded;
using hvd::api::required;
using hvd::api::required_text;
using hvd::api::Use;
using hvd::elastic::Batch;
using hvd::elastic::Place;
using hvd::elastic::Sampler;

struct hvd_sampler {
  const std::shared_ptr<hvd_context> context;
  const std::shared_ptr<Sampler> sampler;  // shared with the states that it is part of
};

namespace {

/// Asked for at each call, so that nobody works with an old rank or size.
Place place_of(hvd_sampler& sampler) {
  const hvd_membership_info place = connected_worker(*sampler.context).membership();
  return {place.generation, place.rank, place.size};
}

Batch batch_of(const hvd_sampler_batch* batch, const char* name) {
  const hvd_sampler_batch value = copy_in(batch, name);
  return {value.generation, value.epoch, value.position, value.count, value.total};
}

using Shared = std::shared_ptr<Sampler>;

int32_t save(void* shared, hvd_write_fn write, void* sink) {
  const auto bytes = (*static_cast<Shared*>(shared))->save();
  write(sink, bytes.data(), bytes.size());
  return 0;
}

int32_t load(void* shared, const void* data, size_t size) {
  // What it throws becomes the message of the restore or sync that calls it.
  (*static_cast<Shared*>(shared))->load({static_cast<const uint8_t*>(data), size});
  return 0;
}

}  // namespace

extern "C" {

hvd_status hvd_sampler_create(hvd_context* context, const hvd_sampler_options* options,
                              hvd_sampler** ret_sampler, hvd_error* error) {
  return guarded(error, [&] {
    required(ret_sampler, "ret_sampler");
    const Use<hvd_context> use(context, "context");
    hvd::api::open_worker(*use);
    const hvd_sampler_options given = copy_in(options, "options");
    if (given.in_order != 0 && given.in_order != 1) {
      throw Error(HVD_INVALID, fmt::format("options->in_order is {}: expected 0 or 1", given.in_order));
    }
    auto sampler = std::make_shared<Sampler>(hvd::elastic::SamplerConfig{
        given.samples, given.batch_size, given.seed, given.in_order == 1, given.padding});
    *ret_sampler = hvd::api::make_handle(
        std::shared_ptr<hvd_sampler>(new hvd_sampler{use.shared(), std::move(sampler)}));
  });
}

void hvd_sampler_destroy(hvd_sampler* sampler) { hvd::api::end_handle(sampler); }

hvd_status hvd_state_add_sampler(hvd_state* state, const char* key, hvd_sampler* sampler, hvd_error* error) {
  return guarded(error, [&] {
    const Use<hvd_state> owner(state, "state");
    const Use<hvd_sampler> use(sampler, "sampler");
    const hvd::api::StateCall call(*owner);
    if (owner->context != use->context) {
      throw Error(HVD_INVALID, "the sampler belongs to another context than the state");
    }
    auto shared = std::make_unique<Shared>(use->sampler);
    const Callback<hvd_save_fn> saver(&save, shared.get(), [](void* p) { delete static_cast<Shared*>(p); });
    static_cast<void>(shared.release());  // the callback's
    owner->elastic.state.add_object(required_text(key, "key"), saver, saver.beside(&load),
                                    use->sampler->describe());
  });
}

hvd_status hvd_sampler_next(hvd_sampler* sampler, const hvd_sampler_batch* after, uint64_t* indices,
                            size_t room, hvd_sampler_batch* ret_batch, hvd_error* error) {
  return guarded(error, [&] {
    const Use<hvd_sampler> use(sampler, "sampler");
    const Place place = place_of(*use);
    copy_in(ret_batch, "ret_batch");  // nothing is written if it can't be
    if (room > 0) required(indices, "indices");
    Batch last;
    if (after != nullptr) last = batch_of(after, "after");
    const Batch batch = use->sampler->next(place, after != nullptr ? &last : nullptr, {indices, room});
    copy_out(ret_batch, {0, batch.generation, batch.epoch, batch.position, batch.count, batch.total},
             "ret_batch");
  });
}

hvd_status hvd_sampler_record(hvd_sampler* sampler, const hvd_sampler_batch* batch, hvd_error* error) {
  return guarded(error, [&] {
    const Use<hvd_sampler> use(sampler, "sampler");
    const Place place = place_of(*use);
    use->sampler->record(place, batch_of(batch, "batch"));
  });
}

hvd_status hvd_sampler_set_epoch(hvd_sampler* sampler, uint64_t epoch, hvd_error* error) {
  return guarded(error, [&] { Use<hvd_sampler>(sampler, "sampler")->sampler->set_epoch(epoch); });
}

hvd_status hvd_sampler_get_info(hvd_sampler* sampler, hvd_sampler_info* ret_info, hvd_error* error) {
  return guarded(error, [&] {
    const Use<hvd_sampler> use(sampler, "sampler");
    const Place place = place_of(*use);
    const Sampler& inner = *use->sampler;
    const hvd::elastic::SamplerProgress progress = inner.progress(place);
    hvd_sampler_info info{};
    info.epoch = progress.epoch;
    info.samples = inner.config().samples;
    info.batch_size = inner.config().batch_size;
    info.processed = progress.processed;
    info.remaining = info.samples - progress.processed;
    info.rounds = progress.rounds;
    copy_out(ret_info, info, "ret_info");
  });
}

hvd_status hvd_sampler_save(hvd_sampler* sampler, void* data, size_t room, hvd_error* error) {
  return guarded(error, [&] {
    const auto bytes = Use<hvd_sampler>(sampler, "sampler")->sampler->save();
    required(static_cast<uint8_t*>(data), "data");
    if (room < bytes.size()) {
      throw Error(HVD_INVALID, fmt::format("room is {} bytes: expected at least HVD_SAMPLER_SAVED_BYTES ({})",
                                           room, bytes.size()));
    }
    std::memcpy(data, bytes.data(), bytes.size());
  });
}

hvd_status hvd_sampler_load(hvd_sampler* sampler, const void* data, size_t size, hvd_error* error) {
  return guarded(error, [&] {
    const Use<hvd_sampler> use(sampler, "sampler");
    use->sampler->load({&required(static_cast<const uint8_t*>(data), "data"), size});
  });
}

}  // extern "C"
