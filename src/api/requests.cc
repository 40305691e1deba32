// Checks hvd_request before the engine sees it.
#include "api/requests.h"

#include <algorithm>

#include "api/arguments.h"
#include "api/context.h"
#include "numeric/dtype.h"

namespace hvd::api {

using collective::Kind;
using collective::Submission;
using collective::Tensor;

hvd_collective carried_by(hvd_collective collective) {
  switch (collective) {
    case HVD_COLLECTIVE_BROADCAST_OBJECT:
    case HVD_COLLECTIVE_SEND:
    case HVD_COLLECTIVE_RECEIVE: return HVD_COLLECTIVE_BROADCAST;
    case HVD_COLLECTIVE_REDUCE: return HVD_COLLECTIVE_ALLREDUCE;
    case HVD_COLLECTIVE_GATHER:
    case HVD_COLLECTIVE_SCATTER: return HVD_COLLECTIVE_ALLTOALL;
    default: return collective;
  }
}

namespace {

/// Which fields of a request a collective uses.
struct Uses {
  hvd_collective collective;
  const char* name;
  bool inputs, outputs, group, root, reduction, splits;
};

constexpr Uses kUses[] = {
    {HVD_COLLECTIVE_BROADCAST, "broadcast", false, true, true, true, false, false},
    {HVD_COLLECTIVE_ALLREDUCE, "allreduce", true, true, true, false, true, false},
    {HVD_COLLECTIVE_ALLGATHER, "allgather", true, true, true, false, false, false},
    {HVD_COLLECTIVE_BARRIER, "barrier", false, false, false, false, false, false},
    {HVD_COLLECTIVE_REDUCESCATTER, "reducescatter", true, true, false, false, true, true},
    {HVD_COLLECTIVE_ALLTOALL, "alltoall", true, true, false, false, false, true},
    {HVD_COLLECTIVE_JOIN, "join", false, false, false, false, false, false},
    {HVD_COLLECTIVE_BROADCAST_OBJECT, "broadcast_object", true, false, false, true, false, false},
    {HVD_COLLECTIVE_SEND, "send", true, false, false, true, false, false},
    {HVD_COLLECTIVE_RECEIVE, "receive", false, true, false, true, false, false},
    {HVD_COLLECTIVE_REDUCE, "reduce", true, true, false, true, true, false},
    {HVD_COLLECTIVE_GATHER, "gather", true, true, false, true, false, false},
    {HVD_COLLECTIVE_SCATTER, "scatter", true, true, false, true, false, true},
};

const Uses& uses_of(hvd_collective collective) {
  for (const Uses& uses : kUses) {
    if (uses.collective == collective) return uses;
  }
  throw Error(HVD_INVALID, fmt::format("collective is {}: expected one of hvd_collective, {} to {}",
                                       collective, HVD_COLLECTIVE_BROADCAST, HVD_COLLECTIVE_SCATTER));
}

void refuse_unused(const hvd_request& request, const Uses& uses) {
  const auto refuse = [&](bool used, bool given, const char* field, auto value, const char* expected) {
    if (used || !given) return;
    throw Error(HVD_INVALID,
                fmt::format("{} is {}: expected {}, {} does not use it", field, value, expected, uses.name));
  };
  const bool join = uses.collective == HVD_COLLECTIVE_JOIN;
  refuse(!join, request.name != nullptr, "name", "given", "NULL");
  refuse(uses.inputs, request.inputs != nullptr, "inputs", "given", "NULL");
  refuse(uses.outputs, request.outputs != nullptr, "outputs", "given", "NULL");
  refuse(uses.root, request.root != 0, "root", request.root, "0");
  refuse(uses.reduction, request.reduction != 0, "reduction", request.reduction, "0");
  refuse(uses.reduction, request.prescale != 0, "prescale", request.prescale, "0");
  refuse(uses.reduction, request.postscale != 0, "postscale", request.postscale, "0");
  refuse(uses.splits, request.splits != nullptr, "splits", "given", "NULL");
  refuse(uses.splits, request.split_count != 0, "split_count", request.split_count, "0");
  refuse(!join, request.process_set != nullptr, "process_set", "given", "NULL");
  const size_t most = uses.group ? SIZE_MAX : uses.inputs || uses.outputs ? 1 : 0;
  if (request.count > most) {
    throw Error(HVD_INVALID, fmt::format("count is {}: expected at most {}, {} takes no group", request.count,
                                         most, uses.name));
  }
}

/// The bytes are the root's input.
Call object_request(const hvd_request& request, const TensorArray& inputs, int32_t rank) {
  if (rank != request.root) {
    Call call = object_call(request.name, nullptr, 0, request.root, rank);
    call.outputs.resize(1, hvd_tensor HVD_TENSOR_INIT);
    return call;
  }
  const std::vector<Tensor> given = checked_tensors(inputs);
  const Tensor& bytes = given[0];
  if (bytes.dtype != HVD_DTYPE_UINT8 || bytes.shape.size() != 1 || bytes.memory != HVD_MEMORY_HOST) {
    throw Error(
        HVD_INVALID,
        fmt::format("inputs[0] is {} of {} dimensions in {}: expected uint8, 1 dimension, host "
                    "memory for the bytes of an object",
                    dtype_name(bytes.dtype), bytes.shape.size(), collective::memory_name(bytes.memory)));
  }
  Call call = object_call(request.name, bytes.data, bytes.bytes(), request.root, rank);
  call.outputs = read_tensors(inputs);  // the root has it
  return call;
}

}  // namespace

Call request_call(hvd_context& context, const hvd_request* given) {
  const hvd_request request = copy_in(given, "request");
  const Uses& uses = uses_of(request.collective);
  refuse_unused(request, uses);
  const size_t count = std::max<size_t>(request.count, 1);
  const TensorArray inputs{request.inputs, count, "inputs"};
  const TensorArray outputs{request.outputs, count, "outputs"};
  const hvd_reduction reduction = request.reduction == 0 ? HVD_REDUCTION_SUM : request.reduction;

  const int32_t rank = context.worker.membership().rank;
  Call call;
  switch (request.collective) {
    case HVD_COLLECTIVE_BROADCAST: call = broadcast_call(request.name, outputs, request.root); break;
    case HVD_COLLECTIVE_ALLREDUCE: call = allreduce_call(request.name, inputs, outputs, reduction); break;
    case HVD_COLLECTIVE_BARRIER: call = barrier_call(request.name); break;
    case HVD_COLLECTIVE_JOIN: call = join_call(); break;
    case HVD_COLLECTIVE_SEND: call = send_call(request.name, inputs, request.root, rank); break;
    case HVD_COLLECTIVE_RECEIVE: call = receive_call(request.name, outputs, request.root); break;
    case HVD_COLLECTIVE_REDUCE:
      call = reduce_call(request.name, inputs, outputs, reduction, request.root, rank);
      break;
    case HVD_COLLECTIVE_GATHER: call = gather_call(request.name, inputs, outputs, request.root, rank); break;
    case HVD_COLLECTIVE_SCATTER:  // splits follow below
      call = scatter_call(request.name, inputs, nullptr, 0, outputs, request.root, rank);
      break;
    case HVD_COLLECTIVE_BROADCAST_OBJECT: call = object_request(request, inputs, rank); break;
    default:
      call.submission = submission(request.collective == HVD_COLLECTIVE_ALLGATHER       ? Kind::kAllgather
                                   : request.collective == HVD_COLLECTIVE_REDUCESCATTER ? Kind::kReducescatter
                                                                                        : Kind::kAlltoall,
                                   request.name);
      call.submission.inputs = checked_tensors(inputs);
      read_outputs(outputs, &call.outputs, &call.submission.outputs);
      if (uses.reduction) call.submission.reduction = checked_reduction(reduction);
  }
  if (uses.reduction) {
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
  if (request.splits != nullptr && (request.collective != HVD_COLLECTIVE_SCATTER || rank == request.root)) {
    const elastic::Worker& worker = context.worker;
    const size_t members = call.set != nullptr ? worker.place_in(*call.set)->ranks.size()
                                               : static_cast<size_t>(worker.membership().size);
    if (request.split_count != members) {
      throw Error(HVD_INVALID, fmt::format("split_count is {}: expected {}, one for each member",
                                           request.split_count, members));
    }
    call.submission.splits = checked_splits(request.splits, members, call.submission.inputs[0], "inputs[0]");
  }
  call.submission.priority = request.priority;
  call.timeout = timeout_of(request.timeout_ns, Duration(0));
  return call;
}

}  // namespace hvd::api
