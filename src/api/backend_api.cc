// Which backends there are, and which of them a context uses, of hvd.h.
#include "api/requests.h"
#include "elastic/worker.h"
#include "selection/selection.h"

using hvd::Error;
using hvd::Options;
using hvd::api::connected_worker;
using hvd::api::copy_out;
using hvd::api::copy_text;
using hvd::api::guarded;
using hvd::api::required;
using hvd::api::Use;

namespace {

Options options_of(const hvd_options* options) {
  return options != nullptr ? Use<hvd_options>(options, "options")->options : Options();
}

}  // namespace

extern "C" {

hvd_status hvd_get_available_backend_count(const hvd_options* options, size_t* ret_count, hvd_error* error) {
  return guarded(error, [&] {
    required(ret_count, "ret_count");
    *ret_count = hvd::selection::survey(options_of(options)).size();
  });
}

hvd_status hvd_get_available_backend(const hvd_options* options, size_t index,
                                     hvd_available_backend_info* ret_info, hvd_error* error) {
  return guarded(error, [&] {
    required(ret_info, "ret_info");
    const std::vector<hvd::backend::Report> all = hvd::selection::survey(options_of(options));
    if (index >= all.size()) {
      throw Error(HVD_INVALID, fmt::format("index is {}: expected 0 to {}", index, all.size() - 1));
    }
    const hvd::backend::Report& from = all[index];
    hvd_available_backend_info report{};
    copy_text(report.name, from.description.name);
    copy_text(report.version, from.description.version);
    copy_text(report.path, from.description.path);
    report.usable = from.status.ok() ? 1 : 0;
    report.abi_version = from.abi_version;
    report.memories = from.description.memories;
    report.dtypes = from.description.dtypes;
    report.collectives = from.description.collectives;
    report.local = from.description.local ? 1 : 0;
    report.max_instances = from.max_instances;
    copy_text(report.reason, from.status.message);
    copy_out(ret_info, report, "ret_info");
  });
}

hvd_status hvd_get_backend_choice(hvd_context* context, hvd_memory memory, hvd_dtype dtype,
                                  hvd_collective collective, hvd_backend_choice_info* ret_choice,
                                  hvd_error* error) {
  return guarded(error, [&]() -> hvd::Status {
    const Use<hvd_context> use(context, "context");
    hvd::elastic::Worker& worker = connected_worker(*use);
    required(ret_choice, "ret_choice");
    hvd::backend::Choice choice;
    hvd::Status status = worker.backend_choice(memory, dtype, hvd::api::carried_by(collective), &choice);
    if (!status.ok()) return status;
    hvd_backend_choice_info info{};
    copy_text(info.name, choice.name);
    copy_text(info.reason, choice.reason);
    copy_out(ret_choice, info, "ret_choice");
    return status;
  });
}

}  // extern "C"
