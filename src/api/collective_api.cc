// Collectives of hvd.h.
#include <algorithm>
#include <functional>

#include "api/handles.h"
#include "base/dtype.h"

using hvd::Error;
using hvd::Status;
using hvd::api::copy_in;
using hvd::api::copy_out;
using hvd::api::guarded;
using hvd::api::open_worker;
using hvd::api::operation_name;
using hvd::api::required;
using hvd::api::tensor_of;
using hvd::api::timeout_of;
using hvd::collective::Kind;
using hvd::collective::Operation;
using hvd::collective::Submission;

namespace hvd::api {

std::string operation_name(const char* name) {
  std::string text = required_text(name, "name");
  if (text.size() > 255) {
    throw Error(HVD_INVALID, fmt::format("name is {} bytes long: expected 1 to 255", text.size()));
  }
  if (text.starts_with("hvd.")) {
    throw Error(HVD_INVALID, fmt::format("name '{}' begins with 'hvd.': that is kept for the library", text));
  }
  return text;
}

collective::Tensor tensor_of(const hvd_tensor* tensor, const char* name) {
  const hvd_tensor value = copy_in(tensor, name);
  if (dtype_size(value.dtype) == 0) {
    throw Error(HVD_INVALID, fmt::format("{}->dtype is {}: expected one of hvd_dtype, {} to {}", name,
                                         value.dtype, HVD_UINT8, HVD_BOOL));
  }
  if (value.ndim < 0 || value.ndim > HVD_MAX_DIMS) {
    throw Error(HVD_INVALID, fmt::format("{}->ndim is {}: expected 0 to {}", name, value.ndim, HVD_MAX_DIMS));
  }
  if (value.memory != HVD_MEMORY_HOST) {
    throw Error(HVD_UNSUPPORTED,
                fmt::format("{}->memory is {}: expected HVD_MEMORY_HOST", name, value.memory));
  }
  collective::Tensor result;
  result.data = value.data;
  result.dtype = value.dtype;
  result.shape.assign(value.shape, value.shape + value.ndim);
  for (size_t i = 0; i < result.shape.size(); ++i) {
    if (result.shape[i] < 0) {
      throw Error(HVD_INVALID,
                  fmt::format("{}->shape[{}] is {}: expected 0 or more", name, i, result.shape[i]));
    }
  }
  return result;
}

namespace {

Submission allreduce(const char* name, const hvd_tensor* input, const hvd_tensor* output,
                     hvd_reduction reduction) {
  Submission s;
  s.name = operation_name(name);
  s.kind = Kind::kAllreduce;
  s.inputs = {tensor_of(input, "input")};
  s.outputs = {tensor_of(output, "output")};
  s.reduction = reduction;
  return s;
}

Submission broadcast(const char* name, const hvd_tensor* tensor, int32_t root) {
  Submission s;
  s.name = operation_name(name);
  s.kind = Kind::kBroadcast;
  s.outputs = {tensor_of(tensor, "tensor")};
  s.root = root;
  return s;
}

Submission allgather(const char* name, const hvd_tensor* input, const hvd_tensor* output) {
  Submission s;
  s.name = operation_name(name);
  s.kind = Kind::kAllgather;
  s.inputs = {tensor_of(input, "input")};
  if (required(output, "output").data != nullptr) s.outputs = {tensor_of(output, "output")};
  return s;
}

Submission barrier(const char* name) {
  Submission s;
  s.name = operation_name(name);
  s.kind = Kind::kBarrier;
  return s;
}

/// Writes dtype and shape of a gathered tensor into the caller's descriptor.
void describe(hvd_tensor* target, const collective::Tensor& gathered, void* data) {
  hvd_tensor value = copy_in(target, "output");
  value.data = data;
  value.dtype = gathered.dtype;
  value.ndim = static_cast<int32_t>(gathered.shape.size());
  std::copy(gathered.shape.begin(), gathered.shape.end(), value.shape);
  copy_out(target, value, "output");
}

hvd_status start(hvd_context* context, hvd_op** ret_op, hvd_error* error, const hvd_tensor* gathered,
                 const std::function<Submission()>& make) {
  return guarded(error, [&]() -> Status {
    required(ret_op, "ret_op");
    auto op = std::make_unique<hvd_op>();
    elastic::Worker& worker = open_worker(context);
    op->timeout = worker.longest_wait();
    Submission submission = make();
    if (gathered != nullptr) {
      op->output = copy_in(gathered, "output");
      op->has_output = true;
    }
    op->operation = worker.submit(std::move(submission));
    // What is wrong with the arguments, or with the generation, is told at once.
    if (op->operation->done() && !op->operation->status().ok()) return op->operation->status();
    *ret_op = op.release();
    return {};
  });
}

}  // namespace
}  // namespace hvd::api

using namespace hvd::api;  // NOLINT(google-build-using-namespace): the helpers above

extern "C" {

hvd_status hvd_allreduce(hvd_context* context, const char* name, const hvd_tensor* input, hvd_tensor* output,
                         hvd_reduction reduction, hvd_error* error) {
  return guarded(error, [&] { return open_worker(context).run(allreduce(name, input, output, reduction)); });
}

hvd_status hvd_broadcast(hvd_context* context, const char* name, hvd_tensor* tensor, int32_t root,
                         hvd_error* error) {
  return guarded(error, [&] { return open_worker(context).run(broadcast(name, tensor, root)); });
}

hvd_status hvd_allgather(hvd_context* context, const char* name, const hvd_tensor* input, hvd_tensor* output,
                         hvd_error* error) {
  return guarded(error, [&] {
    std::shared_ptr<Operation> operation;
    Status status = open_worker(context).run(allgather(name, input, output), &operation);
    if (!status.ok()) return status;
    if (output->data != nullptr) {
      describe(output, operation->output(), output->data);
    } else {
      hvd::collective::Buffer buffer = operation->take_buffer();
      describe(output, operation->output(), buffer.get());
      static_cast<void>(buffer.release());  // the caller's from here on
    }
    return status;
  });
}

hvd_status hvd_barrier(hvd_context* context, const char* name, hvd_error* error) {
  return guarded(error, [&] { return open_worker(context).run(barrier(name)); });
}

hvd_status hvd_broadcast_variables(hvd_context* context, const char* name, hvd_tensor* tensors, size_t count,
                                   int32_t root, hvd_error* error) {
  return guarded(error, [&] {
    hvd::elastic::Worker& worker = open_worker(context);
    Submission s;
    s.name = operation_name(name);
    s.kind = Kind::kBroadcast;
    s.root = root;
    if (count > 0) required(tensors, "tensors");
    // The array's stride is the size of the struct that the caller was compiled with.
    const size_t stride = count > 0 ? tensors->struct_size : 0;
    for (size_t i = 0; i < count; ++i) {
      const auto* tensor =
          reinterpret_cast<const hvd_tensor*>(reinterpret_cast<const char*>(tensors) + i * stride);
      s.outputs.push_back(tensor_of(tensor, fmt::format("tensors[{}]", i).c_str()));
      if (tensor->struct_size != stride) {
        throw Error(HVD_INVALID, fmt::format("tensors[{}].struct_size is {}: expected {} as in tensors[0]", i,
                                             tensor->struct_size, stride));
      }
    }
    return worker.run(std::move(s));
  });
}

hvd_status hvd_broadcast_object(hvd_context* context, const char* name, void** data, size_t* size,
                                int32_t root, hvd_error* error) {
  return guarded(error, [&] {
    hvd::elastic::Worker& worker = open_worker(context);
    required(data, "data");
    required(size, "size");
    Submission s;
    s.name = operation_name(name);
    s.kind = Kind::kBroadcastObject;
    s.root = root;
    const bool sender = worker.membership().rank == root;
    if (sender) {
      if (*size > 0 && *data == nullptr)
        throw Error(HVD_INVALID, fmt::format("*data is NULL, but *size is {}", *size));
      const auto* bytes = static_cast<const uint8_t*>(*data);
      s.object.assign(bytes, bytes + *size);
    }
    std::shared_ptr<Operation> operation;
    Status status = worker.run(std::move(s), &operation);
    if (!status.ok() || sender) return status;
    const size_t length = operation->buffer_size();
    *data = length > 0 ? operation->take_buffer().release() : nullptr;
    *size = length;
    return status;
  });
}

hvd_status hvd_allreduce_async(hvd_context* context, const char* name, const hvd_tensor* input,
                               hvd_tensor* output, hvd_reduction reduction, hvd_op** ret_op,
                               hvd_error* error) {
  return start(context, ret_op, error, nullptr, [&] { return allreduce(name, input, output, reduction); });
}

hvd_status hvd_broadcast_async(hvd_context* context, const char* name, hvd_tensor* tensor, int32_t root,
                               hvd_op** ret_op, hvd_error* error) {
  return start(context, ret_op, error, nullptr, [&] { return broadcast(name, tensor, root); });
}

hvd_status hvd_allgather_async(hvd_context* context, const char* name, const hvd_tensor* input,
                               const hvd_tensor* output, hvd_op** ret_op, hvd_error* error) {
  return start(context, ret_op, error, output, [&] { return allgather(name, input, output); });
}

hvd_status hvd_barrier_async(hvd_context* context, const char* name, hvd_op** ret_op, hvd_error* error) {
  return start(context, ret_op, error, nullptr, [&] { return barrier(name); });
}

hvd_status hvd_op_test(hvd_op* op, int32_t* ret_done, hvd_error* error) {
  return guarded(error, [&] {
    const bool done = required(op, "op").operation->done();
    required(ret_done, "ret_done") = done ? 1 : 0;
  });
}

hvd_status hvd_op_wait(hvd_op* op, int64_t timeout_ms, hvd_error* error) {
  return guarded(error, [&]() -> Status {
    Operation& operation = *required(op, "op").operation;
    if (operation.wait(timeout_of(timeout_ms, op->timeout))) return operation.status();
    return Status(HVD_TIMEOUT, fmt::format("still pending: {}", operation.waiting_for()));
  });
}

hvd_status hvd_op_error(hvd_op* op, hvd_error* error) {
  return guarded(error, [&]() -> Status {
    const Operation& operation = *required(op, "op").operation;
    if (!operation.done()) return Status(HVD_INVALID, "the operation is still pending");
    return operation.status();
  });
}

hvd_status hvd_op_output(hvd_op* op, hvd_tensor* ret_output, hvd_error* error) {
  return guarded(error, [&]() -> Status {
    Operation& operation = *required(op, "op").operation;
    if (!op->has_output)
      return Status(HVD_INVALID, "the operation is no allgather: it has no output of its own");
    if (!operation.done()) return Status(HVD_INVALID, "the operation is still pending");
    if (!operation.status().ok()) return operation.status();
    std::lock_guard lock(op->mutex);
    if (op->output.data == nullptr && op->buffer == nullptr) op->buffer = operation.take_buffer();
    describe(ret_output, operation.output(), op->output.data != nullptr ? op->output.data : op->buffer.get());
    return {};
  });
}

void hvd_op_destroy(hvd_op* op) { delete op; }

}  // extern "C"
