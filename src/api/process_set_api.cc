// Process sets of hvd.h.
#include "api/arguments.h"
#include "elastic/worker.h"

using hvd::Error;
using hvd::api::connected_worker;
using hvd::api::copy_out;
using hvd::api::guarded;
using hvd::api::required;
using hvd::api::Use;

namespace {

std::optional<std::vector<int32_t>> ranks_of(const int32_t* ranks, size_t count) {
  if (ranks == nullptr && count == 0) return std::nullopt;
  required(ranks, "ranks");
  return std::vector<int32_t>(ranks, ranks + count);
}

std::shared_ptr<const hvd::elastic::SetPlace> place_of(hvd_process_set* set) {
  const Use<hvd_process_set> use(set, "set");
  return connected_worker(*use->context).place_in(*use->set);
}

}  // namespace

extern "C" {

hvd_status hvd_process_set_create(hvd_context* context, const char* name, const int32_t* ranks, size_t count,
                                  hvd_set_rule rule, hvd_process_set** ret_set, hvd_error* error) {
  return guarded(error, [&] {
    required(ret_set, "ret_set");
    const Use<hvd_context> use(context, "context");
    const hvd::elastic::Worker& worker = connected_worker(*use);
    auto members = std::make_shared<hvd::elastic::ProcessSet>(
        hvd::api::operation_name(&required(name, "name")), rule, ranks_of(ranks, count), worker.assignment());
    *ret_set = hvd::api::make_handle(
        std::shared_ptr<hvd_process_set>(new hvd_process_set{use.shared(), std::move(members)}));
  });
}

void hvd_process_set_destroy(hvd_process_set* set) { hvd::api::end_handle(set); }

hvd_status hvd_process_set_get_info(hvd_process_set* set, hvd_process_set_info* ret_info, hvd_error* error) {
  return guarded(error, [&] {
    const auto place = place_of(set);
    hvd_process_set_info info{};
    info.rank = place->rank;
    info.size = static_cast<int32_t>(place->ranks.size());
    info.local_rank = place->local_rank;
    info.local_size = place->local_size;
    info.cross_rank = place->cross_rank;
    info.cross_size = place->cross_size;
    info.generation = place->generation;
    copy_out(ret_info, info, "ret_info");
  });
}

hvd_status hvd_process_set_get_ranks(hvd_process_set* set, int32_t* ret_ranks, size_t* count,
                                     hvd_error* error) {
  return guarded(error, [&] {
    const auto place = place_of(set);
    hvd::api::copy_list(place->ranks, ret_ranks, &required(count, "count"));
  });
}

}  // extern "C"
