// Checks hvd_request before the engine sees it.
#include "api/requests.h"

#include <algorithm>

#include "api/arguments.h"
#include "api/context.h"

namespace hvd::api {

using collective::Asked;
using collective::Given;

hvd_collective carried_by(hvd_collective collective) {
  const std::optional<Asked> asked = collective::find_asked(collective);
  return asked && asked->row.collective != 0 ? asked->row.collective : collective;
}

namespace {

void refuse_unused(const hvd_request& request, const Asked& asked) {
  const auto& [row, form] = asked;
  const auto refuse = [name = form.name](bool used, bool given, const char* field, auto value,
                                         const char* expected) {
    if (used || !given) return;
    throw Error(HVD_INVALID,
                fmt::format("{} is {}: expected {}, {} does not use it", field, value, expected, name));
  };
  const bool named = form.own_name == nullptr;
  const bool inputs = form.inputs != Given::kNowhere, outputs = form.outputs != Given::kNowhere;
  refuse(named, request.name != nullptr, "name", "given", "NULL");
  refuse(inputs, request.inputs != nullptr, "inputs", "given", "NULL");
  refuse(outputs, request.outputs != nullptr, "outputs", "given", "NULL");
  refuse(row.rooted, request.root != 0, "root", request.root, "0");
  refuse(row.reduces, request.reduction != 0, "reduction", request.reduction, "0");
  refuse(row.reduces, request.prescale != 0, "prescale", request.prescale, "0");
  refuse(row.reduces, request.postscale != 0, "postscale", request.postscale, "0");
  refuse(form.splits, request.splits != nullptr, "splits", "given", "NULL");
  refuse(form.splits, request.split_count != 0, "split_count", request.split_count, "0");
  refuse(named, request.process_set != nullptr, "process_set", "given", "NULL");
  const size_t most = form.group ? SIZE_MAX : inputs || outputs ? 1 : 0;
  if (request.count > most) {
    throw Error(HVD_INVALID, fmt::format("count is {}: expected at most {}, {} takes no group", request.count,
                                         most, form.name));
  }
}

}  // namespace

Call request_call(hvd_context& context, const hvd_request* given) {
  const hvd_request request = copy_in(given, "request");
  const Asked asked = collective::asked_by(request.collective);
  refuse_unused(request, asked);
  const size_t count = std::max<size_t>(request.count, 1);
  Arguments arguments;  // but for the splits, whose number depends on the set
  arguments.name = request.name;
  arguments.inputs = {request.inputs, count, "inputs"};
  arguments.outputs = {request.outputs, count, "outputs"};
  arguments.root = request.root;
  if (request.reduction != 0) arguments.reduction = request.reduction;
  const int32_t rank = context.worker.membership().rank;
  Call call = make_call(asked, arguments, rank);
  if (asked.row.reduces) {
    call.submission.prescale = checked_factor(request.prescale, "prescale");
    call.submission.postscale = checked_factor(request.postscale, "postscale");
  }
  if (request.process_set != nullptr) {
    const Use<hvd_process_set> set(request.process_set, "process_set");
    if (set->context.get() != &context)
      throw Error(HVD_INVALID, fmt::format("process_set '{}' belongs to another context", set->set->name()));
    call.set = set->set;
  }
  if (request.split_count > 0) required(request.splits, "splits");
  if (request.splits != nullptr && gives(asked.form.inputs, request.root, rank)) {
    const elastic::Worker& worker = context.worker;
    const size_t members = call.set != nullptr ? worker.place_in(*call.set)->ranks.size()
                                               : static_cast<size_t>(worker.membership().size);
    if (request.split_count != members) {
      throw Error(HVD_INVALID, fmt::format("split_count is {}: expected {}, one for each member",
                                           request.split_count, members));
    }
    call.submission.splits =
        checked_splits(request.splits, members, call.submission.inputs[0], arguments.inputs);
  }
  call.submission.priority = request.priority;
  call.timeout = timeout_of(request.timeout_ns, Duration(0));
  return call;
}

}  // namespace hvd::api
