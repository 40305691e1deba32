// The shorthands' arguments, as submissions.
#include "api/calls.h"

#include "api/arguments.h"

namespace hvd::api {

using collective::Kind;
using collective::Submission;
using collective::Tensor;

namespace {

/// A group of nothing still waits for everybody.
Kind kind_of_group(Kind kind, const TensorArray& tensors) {
  return tensors.count > 0 ? kind : Kind::kBarrier;
}

}  // namespace

Submission submission(Kind kind, const char* name) {
  Submission s;
  s.kind = kind;
  s.name = operation_name(name);
  return s;
}

Call allreduce_call(const char* name, const TensorArray& inputs, const TensorArray& outputs,
                    hvd_reduction reduction) {
  Call call;
  call.submission = submission(kind_of_group(Kind::kAllreduce, inputs), name);
  call.submission.inputs = checked_tensors(inputs);
  call.outputs = read_tensors(outputs);
  call.submission.outputs = checked_tensors(call.outputs, outputs);
  call.submission.reduction = checked_reduction(reduction);
  return call;
}

Call broadcast_call(const char* name, const TensorArray& tensors, int32_t root) {
  Call call;
  call.submission = submission(kind_of_group(Kind::kBroadcast, tensors), name);
  call.outputs = read_tensors(tensors);
  call.submission.outputs = checked_tensors(call.outputs, tensors);
  if (tensors.count > 0) call.submission.root = root;
  return call;
}

Call allgather_call(const char* name, const TensorArray& inputs, const TensorArray& outputs) {
  Call call;
  call.submission = submission(kind_of_group(Kind::kAllgather, inputs), name);
  call.submission.inputs = checked_tensors(inputs);
  read_outputs(outputs, &call.outputs, &call.submission.outputs);
  return call;
}

Call reducescatter_call(const char* name, const hvd_tensor* input, const hvd_tensor* output,
                        hvd_reduction reduction) {
  Call call;
  call.submission = submission(Kind::kReducescatter, name);
  call.submission.inputs = checked_tensors(one(input, "input"));
  read_outputs(one(output, "output"), &call.outputs, &call.submission.outputs);
  call.submission.reduction = checked_reduction(reduction);
  return call;
}

Call alltoall_call(const char* name, const hvd_tensor* input, const int64_t* splits, int32_t size,
                   const hvd_tensor* output) {
  Call call;
  call.submission = submission(Kind::kAlltoall, name);
  call.submission.inputs = checked_tensors(one(input, "input"));
  read_outputs(one(output, "output"), &call.outputs, &call.submission.outputs);
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
  call.outputs = read_tensors(tensor);
  call.submission.outputs = checked_tensors(call.outputs, tensor);
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
    call.outputs = read_tensors(output);
    call.submission.outputs = checked_tensors(call.outputs, output);
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
    read_outputs(output, &call.outputs, &call.submission.outputs);
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
  call.outputs = read_tensors(output);
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

}  // namespace hvd::api
