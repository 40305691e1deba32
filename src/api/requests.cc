// Checks hvd_request and the shorthands' arguments before the engine sees them.
#include "api/requests.h"

#include <algorithm>
#include <cmath>

#include "numeric/dtype.h"

namespace hvd::api {

using collective::Kind;
using collective::Submission;
using collective::Tensor;

std::string operation_name(const char* name) {
  if (name == nullptr) return {};
  std::string text = required_text(name, "name");
  if (text.size() > 255) {
    throw Error(HVD_INVALID, fmt::format("name is {} bytes long: expected 1 to 255", text.size()));
  }
  if (text.starts_with("hvd.")) {
    throw Error(HVD_INVALID, fmt::format("name '{}' begins with 'hvd.': that is kept for the library", text));
  }
  return text;
}

namespace {

std::string entry_name(const TensorArray& array, size_t index) {
  return array.single ? std::string(array.name) : fmt::format("{}[{}]", array.name, index);
}

// What is wrong is said with the tensor's name, which is made only then: these run at every operation.

/// Where it is; whether any backend serves that, and all tensors of a call are in one place, is found out
/// later.
void read_place(const hvd_tensor& tensor, const TensorArray& array, size_t index, Tensor* result) {
  if (tensor.memory == HVD_MEMORY_HOST) return;
  if (tensor.memory != HVD_MEMORY_CUDA) {
    throw Error(HVD_INVALID,
                fmt::format("{}.memory is {}: expected one of hvd_memory, {} to {}", entry_name(array, index),
                            tensor.memory, HVD_MEMORY_HOST, HVD_MEMORY_CUDA));
  }
  if (tensor.device < 0) {
    throw Error(HVD_INVALID,
                fmt::format("{}.device is {}: expected 0 or more", entry_name(array, index), tensor.device));
  }
  result->memory = tensor.memory;
  result->device = tensor.device;
  result->stream = tensor.stream;
}

Tensor checked_tensor(const hvd_tensor& value, const TensorArray& array, size_t index) {
  if (dtype_size(value.dtype) == 0) {
    throw Error(HVD_INVALID,
                fmt::format("{}.dtype is {}: expected one of hvd_dtype, {} to {}", entry_name(array, index),
                            value.dtype, HVD_DTYPE_UINT8, hvd::kLastDtype));
  }
  if (value.ndim < 0 || value.ndim > HVD_MAX_DIMS) {
    throw Error(HVD_INVALID, fmt::format("{}.ndim is {}: expected 0 to {}", entry_name(array, index),
                                         value.ndim, HVD_MAX_DIMS));
  }
  Tensor result;
  read_place(value, array, index, &result);
  result.data = value.data;
  result.dtype = value.dtype;
  result.shape.assign(value.shape, value.shape + value.ndim);
  for (size_t i = 0; i < result.shape.size(); ++i) {
    if (result.shape[i] < 0) {
      throw Error(HVD_INVALID, fmt::format("{}.shape[{}] is {}: expected 0 or more", entry_name(array, index),
                                           i, result.shape[i]));
    }
  }
  return result;
}

std::vector<hvd_tensor> read(const TensorArray& array) {
  if (array.count == 0) return {};
  const size_t stride = required(array.first, array.name).struct_size;
  std::vector<hvd_tensor> tensors;
  tensors.reserve(array.count);
  for (size_t i = 0; i < array.count; ++i) {
    const auto* tensor =
        reinterpret_cast<const hvd_tensor*>(reinterpret_cast<const char*>(array.first) + i * stride);
    if (tensor->struct_size != stride) {
      throw Error(HVD_INVALID, fmt::format("{}[{}].struct_size is {}: expected {} as in {}[0]", array.name, i,
                                           tensor->struct_size, stride, array.name));
    }
    // Only the first one's size can be wrong in itself.
    tensors.push_back(i > 0 || array.single ? copy_in(tensor, array.name)
                                            : copy_in(tensor, entry_name(array, i).c_str()));
  }
  return tensors;
}

std::vector<Tensor> checked(const std::vector<hvd_tensor>& given, const TensorArray& array) {
  std::vector<Tensor> tensors;
  tensors.reserve(given.size());
  for (size_t i = 0; i < given.size(); ++i) tensors.push_back(checked_tensor(given[i], array, i));
  return tensors;
}

std::vector<Tensor> checked_tensors(const TensorArray& array) { return checked(read(array), array); }

/// Outputs that the library allocates where data is NULL, or all of them if there is no array.
void read_outputs(const TensorArray& array, Call* call) {
  if (array.first == nullptr && !array.single) {
    call->outputs.resize(array.count, hvd_tensor HVD_TENSOR_INIT);
    return;
  }
  call->outputs = read(array);
  for (size_t i = 0; i < call->outputs.size(); ++i) {
    const hvd_tensor& output = call->outputs[i];
    // Device memory of no elements may have no address; where there are some it will be refused.
    if (output.data != nullptr || (output.memory != HVD_MEMORY_HOST && dtype_size(output.dtype) != 0)) {
      call->submission.outputs.push_back(checked_tensor(output, array, i));
    } else {
      read_place(output, array, i, &call->submission.outputs.emplace_back());
    }
  }
}

/// A group of nothing still waits for everybody.
Kind kind_of_group(Kind kind, const TensorArray& inputs) { return inputs.count > 0 ? kind : Kind::kBarrier; }

TensorArray one(const hvd_tensor* tensor, const char* name) { return {tensor, 1, name, true}; }

Submission submission(Kind kind, const char* name) {
  Submission s;
  s.kind = kind;
  s.name = operation_name(name);
  return s;
}

hvd_reduction checked_reduction(hvd_reduction reduction) {
  if (reduction >= HVD_REDUCTION_SUM && reduction <= HVD_REDUCTION_PRODUCT) return reduction;
  throw Error(HVD_INVALID, fmt::format("reduction is {}: expected one of hvd_reduction, {} to {}", reduction,
                                       HVD_REDUCTION_SUM, HVD_REDUCTION_PRODUCT));
}

double checked_factor(double factor, const char* name) {
  if (!std::isfinite(factor))
    throw Error(HVD_INVALID, fmt::format("{} is {}: expected a finite number (0 means 1)", name, factor));
  return factor == 0 ? 1 : factor;
}

/// Rows for each member, which together are the input's.
std::vector<int64_t> checked_splits(const int64_t* splits, size_t count, const Tensor& input,
                                    const std::string& name) {
  if (input.shape.empty())
    throw Error(HVD_INVALID,
                fmt::format("{}.ndim is 0: expected at least one dimension, that of the rows", name));
  std::vector<int64_t> result(splits, splits + count);
  const int64_t rows = input.shape[0];
  int64_t left = rows;
  for (size_t i = 0; i < count; ++i) {
    if (result[i] < 0)
      throw Error(HVD_INVALID, fmt::format("splits[{}] is {}: expected 0 or more", i, result[i]));
    if (result[i] > left) left = -1;
    if (left < 0) break;
    left -= result[i];
  }
  if (left != 0) {
    throw Error(HVD_INVALID, fmt::format("splits are {}: expected {} in all, the rows of {}",
                                         fmt::join(result, " + "), rows, name));
  }
  return result;
}

}  // namespace

Tensor tensor_of(const hvd_tensor* tensor, const char* name) {
  return checked_tensor(copy_in(tensor, name), one(tensor, name), 0);
}

Call allreduce_call(const char* name, const TensorArray& inputs, const TensorArray& outputs,
                    hvd_reduction reduction) {
  Call call;
  call.submission = submission(kind_of_group(Kind::kAllreduce, inputs), name);
  call.submission.inputs = checked_tensors(inputs);
  call.outputs = read(outputs);
  call.submission.outputs = checked(call.outputs, outputs);
  call.submission.reduction = checked_reduction(reduction);
  return call;
}

Call broadcast_call(const char* name, const TensorArray& tensors, int32_t root) {
  Call call;
  call.submission = submission(Kind::kBroadcast, name);
  call.outputs = read(tensors);
  call.submission.outputs = checked(call.outputs, tensors);
  call.submission.root = root;
  return call;
}

Call allgather_call(const char* name, const TensorArray& inputs, const TensorArray& outputs) {
  Call call;
  call.submission = submission(kind_of_group(Kind::kAllgather, inputs), name);
  call.submission.inputs = checked_tensors(inputs);
  read_outputs(outputs, &call);
  return call;
}

Call reducescatter_call(const char* name, const hvd_tensor* input, const hvd_tensor* output,
                        hvd_reduction reduction) {
  Call call;
  call.submission = submission(Kind::kReducescatter, name);
  call.submission.inputs = checked_tensors(one(input, "input"));
  read_outputs(one(output, "output"), &call);
  call.submission.reduction = checked_reduction(reduction);
  return call;
}

Call alltoall_call(const char* name, const hvd_tensor* input, const int64_t* splits, int32_t size,
                   const hvd_tensor* output) {
  Call call;
  call.submission = submission(Kind::kAlltoall, name);
  call.submission.inputs = checked_tensors(one(input, "input"));
  read_outputs(one(output, "output"), &call);
  if (splits != nullptr)
    call.submission.splits =
        checked_splits(splits, static_cast<size_t>(size), call.submission.inputs[0], "input");
  return call;
}

Call barrier_call(const char* name) {
  Call call;
  call.submission = submission(Kind::kBarrier, name);
  return call;
}

Call join_call() {
  Call call;
  call.submission.kind = Kind::kJoin;
  call.submission.name = "hvd.join";
  return call;
}

Call send_call(const char* name, const TensorArray& tensor, int32_t to, int32_t rank) {
  Call call;
  call.submission = submission(Kind::kSend, name);
  call.submission.outputs = checked_tensors(tensor);  // read, and not written: this rank is the root
  call.submission.root = rank;
  call.submission.peer = to;
  return call;
}

Call receive_call(const char* name, const TensorArray& tensor, int32_t from) {
  Call call;
  call.submission = submission(Kind::kSend, name);
  call.outputs = read(tensor);
  call.submission.outputs = checked(call.outputs, tensor);
  call.submission.root = from;
  call.submission.peer = from;
  return call;
}

Call reduce_call(const char* name, const TensorArray& input, const TensorArray& output,
                 hvd_reduction reduction, int32_t root, int32_t rank) {
  Call call;
  call.submission = submission(Kind::kReduce, name);
  call.submission.inputs = checked_tensors(input);
  call.submission.reduction = checked_reduction(reduction);
  call.submission.root = root;
  if (rank == root) {
    call.outputs = read(output);
    call.submission.outputs = checked(call.outputs, output);
  }
  return call;
}

Call gather_call(const char* name, const TensorArray& input, const TensorArray& output, int32_t root,
                 int32_t rank) {
  Call call;
  call.submission = submission(Kind::kGather, name);
  call.submission.inputs = checked_tensors(input);
  call.submission.root = root;
  if (rank == root) {
    read_outputs(output, &call);
  } else {
    call.outputs.resize(1, hvd_tensor HVD_TENSOR_INIT);
  }
  return call;
}

Call scatter_call(const char* name, const TensorArray& input, const int64_t* splits, size_t split_count,
                  const TensorArray& output, int32_t root, int32_t rank) {
  Call call;
  call.submission = submission(Kind::kScatter, name);
  call.submission.root = root;
  required(output.first, output.name);
  call.outputs = read(output);
  const Tensor room = checked_tensor(call.outputs[0], output, 0);
  call.submission.outputs.assign(1, room);
  if (rank == root) {
    call.submission.inputs = checked_tensors(input);
    if (splits != nullptr) {
      call.submission.splits = checked_splits(splits, split_count, call.submission.inputs[0], "input");
    }
    return call;
  }
  // Nothing to send: no rows of what comes.
  Tensor none;
  none.dtype = room.dtype;
  none.shape = room.shape;
  if (!none.shape.empty()) none.shape[0] = 0;
  call.submission.inputs.push_back(std::move(none));
  return call;
}

Call object_call(const char* name, const void* data, size_t size, int32_t root, int32_t rank) {
  Call call;
  call.submission = submission(Kind::kBroadcastObject, name);
  call.submission.root = root;
  if (rank != root) return call;
  if (size > 0 && data == nullptr)
    throw Error(HVD_INVALID, fmt::format("*data is NULL, but *size is {}", size));
  const auto* bytes = static_cast<const uint8_t*>(data);
  call.submission.object.assign(bytes, bytes + size);
  return call;
}

Call bytes_call(Kind kind, const char* name, const void* data, size_t size, int32_t root) {
  if (size > 0 && data == nullptr)
    throw Error(HVD_INVALID, fmt::format("data is NULL, but size is {}", size));
  if (size > static_cast<size_t>(INT64_MAX)) {
    throw Error(HVD_INVALID, fmt::format("size is {}: expected at most {}", size, INT64_MAX));
  }
  Call call;
  call.submission = submission(kind, name);
  call.submission.root = root;
  Tensor bytes;
  bytes.data = const_cast<void*>(data);  // an input: it is not written
  bytes.dtype = HVD_DTYPE_UINT8;
  bytes.shape = {static_cast<int64_t>(size)};
  call.submission.inputs.push_back(std::move(bytes));
  call.outputs.resize(1, hvd_tensor HVD_TENSOR_INIT);
  return call;
}

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
  call.outputs = read(inputs);  // the root has it
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
      read_outputs(outputs, &call);
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

void describe(hvd_tensor* target, const Tensor& result, void* data, const char* name) {
  hvd_tensor value = copy_in(target, name);
  value.data = data;
  value.dtype = result.dtype;
  value.memory = result.memory;
  value.device = result.device;
  value.stream = result.stream;
  value.ndim = static_cast<int32_t>(result.shape.size());
  std::copy(result.shape.begin(), result.shape.end(), value.shape);
  copy_out(target, value, name);
}

}  // namespace hvd::api
