// Makes submissions of what a program gives, as the collective's row asks for it.
#include "api/calls.h"

#include "collective/messages.h"
#include "numeric/dtype.h"

namespace hvd::api {

using collective::Asked;
using collective::Given;
using collective::Kind;
using collective::Row;
using collective::Submission;
using collective::Tensor;

namespace {

void set_object(Submission* s, const void* data, size_t size) {
  if (size > 0 && data == nullptr)
    throw Error(HVD_INVALID, fmt::format("*data is NULL, but *size is {}", size));
  const auto* bytes = static_cast<const uint8_t*>(data);
  s->object.assign(bytes, bytes + size);
}

/// The bytes of an object are an input of the root, which is what it gets as well.
void take_object(const TensorArray& inputs, Call* call) {
  call->outputs = read_tensors(inputs);
  const Tensor bytes = checked_tensors(call->outputs, inputs)[0];
  if (bytes.dtype != HVD_DTYPE_UINT8 || bytes.shape.size() != 1 || bytes.memory != HVD_MEMORY_HOST) {
    throw Error(
        HVD_INVALID,
        fmt::format("inputs[0] is {} of {} dimensions in {}: expected uint8, 1 dimension, host "
                    "memory for the bytes of an object",
                    dtype_name(bytes.dtype), bytes.shape.size(), collective::memory_name(bytes.memory)));
  }
  set_object(&call->submission, bytes.data, bytes.bytes());
}

void take_outputs(const Asked& asked, const TensorArray& inputs, const TensorArray& outputs, Call* call) {
  // A rank without an input tells by its output what comes.
  if (asked.row.makes_output() && asked.form.inputs != Given::kAtRoot)
    return read_outputs(outputs, &call->outputs, &call->submission.outputs);
  call->outputs = read_tensors(outputs);
  const std::vector<Tensor>& checked = call->submission.inputs;
  const bool in_place =
      checked.size() == outputs.count && inputs.first == outputs.first && inputs.count == outputs.count;
  call->submission.outputs = in_place ? checked : checked_tensors(call->outputs, outputs);
}

}  // namespace

Call make_call(const Asked& asked, const Arguments& given, int32_t rank) {
  const auto& [row, form] = asked;
  Call call;
  Submission& s = call.submission;
  s.name = form.own_name != nullptr ? form.own_name : operation_name(given.name);
  const TensorArray& group = form.inputs == Given::kNowhere ? given.outputs : given.inputs;
  s.kind = form.group && group.count == 0 ? Kind::kBarrier : row.kind;  // it still waits for everybody
  if (row_of(s.kind).rooted) s.root = given.root;
  if (gives(form.inputs, given.root, rank)) {
    if (row.object) {
      take_object(given.inputs, &call);
    } else {
      s.inputs = checked_tensors(given.inputs);
    }
  }
  if (gives(form.outputs, given.root, rank)) {
    take_outputs(asked, given.inputs, given.outputs, &call);
  } else if (row.makes_output() && call.outputs.empty()) {
    call.outputs.resize(1, hvd_tensor HVD_TENSOR_INIT);
  }
  if (row.reduces) s.reduction = checked_reduction(given.reduction);
  if (given.splits != nullptr && !s.inputs.empty())
    s.splits = checked_splits(given.splits, given.split_count, s.inputs[0], given.inputs);
  return call;
}

Call object_call(const char* name, const void* data, size_t size, int32_t root, int32_t rank) {
  Call call;
  call.submission.kind = Kind::kBroadcastObject;
  call.submission.name = operation_name(name);
  call.submission.root = root;
  if (rank == root) set_object(&call.submission, data, size);
  return call;
}

Call bytes_call(Kind kind, const char* name, const void* data, size_t size, int32_t root) {
  if (size > 0 && data == nullptr)
    throw Error(HVD_INVALID, fmt::format("data is NULL, but size is {}", size));
  if (size > static_cast<size_t>(INT64_MAX)) {
    throw Error(HVD_INVALID, fmt::format("size is {}: expected at most {}", size, INT64_MAX));
  }
  Call call;
  call.submission.kind = kind;
  call.submission.name = operation_name(name);
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
