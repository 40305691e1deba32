// Collectives of hvd.h.
#include <algorithm>
#include <functional>
#include <utility>

#include "api/context.h"
#include "api/requests.h"

using hvd::Error;
using hvd::Status;
using hvd::api::Call;
using hvd::api::connected_worker;
using hvd::api::guarded;
using hvd::api::required;
using hvd::api::TensorArray;
using hvd::api::Use;
using hvd::collective::Kind;
using hvd::collective::Operation;

namespace hvd::api {
namespace {

/// The contents of its handle, before it is submitted.
std::shared_ptr<hvd_op> new_op(const Use<hvd_context>& use, Call& call, Duration longest) {
  auto op = std::make_shared<hvd_op>();
  op->context = use.shared();
  op->kind = call.submission.kind;
  op->timeout = longest;
  op->outputs = std::move(call.outputs);
  op->buffers.resize(op->outputs.size());
  op->taken.resize(op->outputs.size());
  return op;
}

/// A handle that ends with this unless it is taken.
class PendingHandle {
 public:
  explicit PendingHandle(std::shared_ptr<hvd_op> op) : handle_(make_handle(std::move(op))) {}
  PendingHandle(const PendingHandle&) = delete;
  PendingHandle& operator=(const PendingHandle&) = delete;
  ~PendingHandle() {
    if (handle_ != nullptr) end_handle(handle_);
  }
  hvd_op* take() { return std::exchange(handle_, nullptr); }

 private:
  hvd_op* handle_;
};

hvd_status start(hvd_context* context, hvd_op** ret_op, hvd_error* error,
                 const std::function<Call(hvd_context& context)>& make) {
  return guarded(error, [&]() -> Status {
    required(ret_op, "ret_op");
    const Use<hvd_context> use(context, "context");
    elastic::Worker& worker = connected_worker(*use);
    use->sweep();
    Call call = make(*use);
    auto op = new_op(use, call, worker.operations().longest_wait(call.submission.kind, call.timeout));
    // Before the operation is under way, which borrows memory of a caller that would have no handle.
    PendingHandle handle(op);
    op->operation = worker.operations().submit(std::move(call.submission), call.set.get(), call.timeout);
    // What is wrong with the arguments, or with the generation, is told at once.
    if (op->operation->done() && !op->operation->status().ok()) return op->operation->status();
    *ret_op = handle.take();
    return {};
  });
}

[[gnu::always_inline]] inline Status finish(elastic::Worker& worker, Call call,
                                            std::shared_ptr<Operation>* ret_operation = nullptr) {
  return worker.operations().run(std::move(call.submission), ret_operation, call.set.get(), call.timeout);
}

/// Runs it and writes what came out into the caller's descriptors.
Status finish_into(elastic::Worker& worker, Call call, hvd_tensor* outputs, size_t count, const char* name,
                   std::shared_ptr<Operation>* ret_operation = nullptr) {
  std::shared_ptr<Operation> operation;
  Status status = finish(worker, std::move(call), &operation);
  if (!status.ok()) return status;
  for (size_t i = 0; i < count; ++i) {
    hvd_tensor* output = entry(outputs, i);
    if (output->data != nullptr) {
      describe(output, operation->output(i), output->data, name);
    } else {
      collective::Buffer buffer = operation->take_buffer(i);
      describe(output, operation->output(i), buffer.get(), name);
      static_cast<void>(buffer.release());  // the caller's from here on
    }
  }
  if (ret_operation != nullptr) *ret_operation = std::move(operation);
  return status;
}

Call call_of(hvd_collective collective, const Arguments& arguments, int32_t rank = -1) {
  return make_call(collective::asked_by(collective), arguments, rank);
}

/// Both arrays of a group: as many outputs as inputs.
TensorArray group(const hvd_tensor* tensors, size_t count, const char* name) {
  return {tensors, count, name, false};
}

/// An array of outputs that the caller must have.
TensorArray outputs_of(const hvd_tensor* outputs, size_t count) {
  if (count > 0) required(outputs, "outputs");
  return group(outputs, count, "outputs");
}

/// Bytes of every rank, and how many from each.
hvd_status gather_objects(Kind kind, hvd_context* context, const char* name, const void* data, size_t size,
                          void** ret_data, size_t* ret_sizes, size_t count, int32_t root, hvd_error* error) {
  return guarded(error, [&] {
    const Use<hvd_context> use(context, "context");
    elastic::Worker& worker = connected_worker(*use);
    required(ret_data, "ret_data");
    required(ret_sizes, "ret_sizes");
    const auto ranks = static_cast<size_t>(worker.membership().size);
    if (count < ranks) {
      throw Error(HVD_INVALID,
                  fmt::format("count is {}: expected {} or more, one entry a rank", count, ranks));
    }
    std::shared_ptr<Operation> operation;
    Status status = finish(worker, bytes_call(kind, name, data, size, root), &operation);
    if (!status.ok()) return status;
    const std::vector<int64_t>& sizes = operation->received_splits();
    for (size_t i = 0; i < ranks; ++i) ret_sizes[i] = i < sizes.size() ? static_cast<size_t>(sizes[i]) : 0;
    *ret_data = operation->output(0).bytes() > 0 ? operation->take_buffer(0).release() : nullptr;
    return status;
  });
}

}  // namespace
}  // namespace hvd::api

using namespace hvd::api;  // NOLINT(google-build-using-namespace): the helpers above

extern "C" {

hvd_status hvd_submit(hvd_context* context, const hvd_request* request, hvd_op** ret_op, hvd_error* error) {
  return start(context, ret_op, error, [&](hvd_context& inner) { return request_call(inner, request); });
}

hvd_status hvd_submit_and_wait(hvd_context* context, const hvd_request* request, int64_t timeout_ns,
                               hvd_op** ret_op, hvd_error* error) {
  return guarded(error, [&]() -> Status {
    required(ret_op, "ret_op");
    const Use<hvd_context> use(context, "context");
    hvd::elastic::Worker& worker = connected_worker(*use);
    use->sweep();
    Call call = request_call(*use, request);
    const Kind kind = call.submission.kind;
    const hvd::Duration longest = worker.operations().longest_wait(kind, call.timeout);
    const hvd::Duration most = timeout_of(timeout_ns, longest);
    Status met;
    auto operation =
        worker.operations().meet_or_submit(std::move(call.submission), &met, call.set.get(), call.timeout);
    if (operation == nullptr) {
      if (met.ok()) *ret_op = nullptr;
      return met;
    }
    if (timeout_ns == HVD_DEFAULT_TIMEOUT) {
      if (Status status = worker.operations().finish(*operation, longest); !status.ok()) return status;
    }
    const bool done = operation->wait(most);
    if (done && !operation->status().ok()) return operation->status();
    if (const auto& row = row_of(kind); done && !row.makes_output() && !row.joins) {
      *ret_op = nullptr;
      return {};
    }
    try {
      auto op = new_op(use, call, longest);
      op->kind = kind;  // the submission is gone
      op->operation = operation;
      *ret_op = make_handle(std::move(op));
    } catch (...) {
      // No handle is to be had: the operation must not outlive this call, whose memory it borrows.
      static_cast<void>(worker.operations().finish(*operation, longest));
      throw;
    }
    return {};
  });
}

hvd_status hvd_allreduce(hvd_context* context, const char* name, const hvd_tensor* input, hvd_tensor* output,
                         hvd_reduction reduction, hvd_error* error) {
  return guarded(error, [&] {
    return finish(connected_worker(*Use<hvd_context>(context, "context")),
                  call_of(HVD_COLLECTIVE_ALLREDUCE, {.name = name,
                                                     .inputs = one(input, "input"),
                                                     .outputs = one(output, "output"),
                                                     .reduction = reduction}));
  });
}

hvd_status hvd_broadcast(hvd_context* context, const char* name, hvd_tensor* tensor, int32_t root,
                         hvd_error* error) {
  return guarded(error, [&] {
    return finish(
        connected_worker(*Use<hvd_context>(context, "context")),
        call_of(HVD_COLLECTIVE_BROADCAST, {.name = name, .outputs = one(tensor, "tensor"), .root = root}));
  });
}

hvd_status hvd_allgather(hvd_context* context, const char* name, const hvd_tensor* input, hvd_tensor* output,
                         hvd_error* error) {
  return guarded(error, [&] {
    return finish_into(
        connected_worker(*Use<hvd_context>(context, "context")),
        call_of(HVD_COLLECTIVE_ALLGATHER,
                {.name = name, .inputs = one(input, "input"), .outputs = one(output, "output")}),
        output, 1, "output");
  });
}

hvd_status hvd_reducescatter(hvd_context* context, const char* name, const hvd_tensor* input,
                             hvd_tensor* output, hvd_reduction reduction, hvd_error* error) {
  return guarded(error, [&] {
    return finish_into(connected_worker(*Use<hvd_context>(context, "context")),
                       call_of(HVD_COLLECTIVE_REDUCESCATTER, {.name = name,
                                                              .inputs = one(input, "input"),
                                                              .outputs = one(output, "output"),
                                                              .reduction = reduction}),
                       output, 1, "output");
  });
}

hvd_status hvd_alltoall(hvd_context* context, const char* name, const hvd_tensor* input,
                        const int64_t* splits, hvd_tensor* output, int64_t* ret_received_splits,
                        hvd_error* error) {
  return guarded(error, [&] {
    const Use<hvd_context> use(context, "context");
    hvd::elastic::Worker& worker = connected_worker(*use);
    std::shared_ptr<Operation> operation;
    Status status = finish_into(
        worker,
        call_of(HVD_COLLECTIVE_ALLTOALL, {.name = name,
                                          .inputs = one(input, "input"),
                                          .outputs = one(output, "output"),
                                          .splits = splits,
                                          .split_count = static_cast<size_t>(worker.membership().size)}),
        output, 1, "output", &operation);
    if (status.ok() && ret_received_splits != nullptr) {
      const std::vector<int64_t>& received = operation->received_splits();
      std::copy(received.begin(), received.end(), ret_received_splits);
    }
    return status;
  });
}

hvd_status hvd_barrier(hvd_context* context, const char* name, hvd_error* error) {
  return guarded(error, [&] {
    return finish(connected_worker(*Use<hvd_context>(context, "context")),
                  call_of(HVD_COLLECTIVE_BARRIER, {.name = name}));
  });
}

hvd_status hvd_broadcast_variables(hvd_context* context, const char* name, hvd_tensor* tensors, size_t count,
                                   int32_t root, hvd_error* error) {
  return guarded(error, [&] {
    return finish(connected_worker(*Use<hvd_context>(context, "context")),
                  call_of(HVD_COLLECTIVE_BROADCAST,
                          {.name = name, .outputs = group(tensors, count, "tensors"), .root = root}));
  });
}

hvd_status hvd_grouped_allreduce(hvd_context* context, const char* name, const hvd_tensor* inputs,
                                 hvd_tensor* outputs, size_t count, hvd_reduction reduction,
                                 hvd_error* error) {
  return guarded(error, [&] {
    return finish(connected_worker(*Use<hvd_context>(context, "context")),
                  call_of(HVD_COLLECTIVE_ALLREDUCE, {.name = name,
                                                     .inputs = group(inputs, count, "inputs"),
                                                     .outputs = outputs_of(outputs, count),
                                                     .reduction = reduction}));
  });
}

hvd_status hvd_grouped_allgather(hvd_context* context, const char* name, const hvd_tensor* inputs,
                                 hvd_tensor* outputs, size_t count, hvd_error* error) {
  return guarded(error, [&] {
    return finish_into(connected_worker(*Use<hvd_context>(context, "context")),
                       call_of(HVD_COLLECTIVE_ALLGATHER, {.name = name,
                                                          .inputs = group(inputs, count, "inputs"),
                                                          .outputs = outputs_of(outputs, count)}),
                       outputs, count, "outputs");
  });
}

hvd_status hvd_broadcast_object(hvd_context* context, const char* name, void** data, size_t* size,
                                int32_t root, hvd_error* error) {
  return guarded(error, [&] {
    const Use<hvd_context> use(context, "context");
    hvd::elastic::Worker& worker = connected_worker(*use);
    required(data, "data");
    required(size, "size");
    const int32_t rank = worker.membership().rank;
    const bool sender = rank == root;
    Call call = object_call(name, sender ? *data : nullptr, sender ? *size : 0, root, rank);
    std::shared_ptr<Operation> operation;
    Status status = finish(worker, std::move(call), &operation);
    if (!status.ok() || sender) return status;
    const size_t length = operation->buffer_size();
    *data = length > 0 ? operation->take_buffer().release() : nullptr;
    *size = length;
    return status;
  });
}

hvd_status hvd_join(hvd_context* context, int32_t* ret_last_rank, hvd_error* error) {
  return guarded(error, [&] {
    std::shared_ptr<Operation> operation;
    Status status = finish(connected_worker(*Use<hvd_context>(context, "context")),
                           call_of(HVD_COLLECTIVE_JOIN, {}), &operation);
    if (status.ok() && ret_last_rank != nullptr) *ret_last_rank = static_cast<int32_t>(operation->word());
    return status;
  });
}

hvd_status hvd_send(hvd_context* context, const char* name, const hvd_tensor* tensor, int32_t to,
                    hvd_error* error) {
  return guarded(error, [&] {
    const Use<hvd_context> use(context, "context");
    hvd::elastic::Worker& worker = connected_worker(*use);
    return finish(worker,
                  call_of(HVD_COLLECTIVE_SEND, {.name = name, .inputs = one(tensor, "tensor"), .root = to}));
  });
}

hvd_status hvd_receive(hvd_context* context, const char* name, hvd_tensor* tensor, int32_t from,
                       hvd_error* error) {
  return guarded(error, [&] {
    const Use<hvd_context> use(context, "context");
    return finish(
        connected_worker(*use),
        call_of(HVD_COLLECTIVE_RECEIVE, {.name = name, .outputs = one(tensor, "tensor"), .root = from}));
  });
}

hvd_status hvd_reduce(hvd_context* context, const char* name, const hvd_tensor* input, hvd_tensor* output,
                      hvd_reduction reduction, int32_t root, hvd_error* error) {
  return guarded(error, [&] {
    const Use<hvd_context> use(context, "context");
    hvd::elastic::Worker& worker = connected_worker(*use);
    return finish(worker, call_of(HVD_COLLECTIVE_REDUCE,
                                  {.name = name,
                                   .inputs = one(input, "input"),
                                   .outputs = one(output, "output"),
                                   .root = root,
                                   .reduction = reduction},
                                  worker.membership().rank));
  });
}

hvd_status hvd_gather(hvd_context* context, const char* name, const hvd_tensor* input, hvd_tensor* output,
                      int32_t root, hvd_error* error) {
  return guarded(error, [&] {
    const Use<hvd_context> use(context, "context");
    hvd::elastic::Worker& worker = connected_worker(*use);
    const int32_t rank = worker.membership().rank;
    return finish_into(
        worker,
        call_of(HVD_COLLECTIVE_GATHER,
                {.name = name, .inputs = one(input, "input"), .outputs = one(output, "output"), .root = root},
                rank),
        output, rank == root ? 1 : 0, "output");
  });
}

hvd_status hvd_scatter(hvd_context* context, const char* name, const hvd_tensor* input, const int64_t* splits,
                       hvd_tensor* output, int32_t root, hvd_error* error) {
  return guarded(error, [&] {
    const Use<hvd_context> use(context, "context");
    hvd::elastic::Worker& worker = connected_worker(*use);
    const hvd_membership_info place = worker.membership();
    return finish_into(worker,
                       call_of(HVD_COLLECTIVE_SCATTER,
                               {.name = name,
                                .inputs = one(input, "input"),
                                .outputs = one(output, "output"),
                                .root = root,
                                .splits = splits,
                                .split_count = static_cast<size_t>(place.size)},
                               place.rank),
                       output, 1, "output");
  });
}

hvd_status hvd_allgather_object(hvd_context* context, const char* name, const void* data, size_t size,
                                void** ret_data, size_t* ret_sizes, size_t count, hvd_error* error) {
  return gather_objects(Kind::kAllgather, context, name, data, size, ret_data, ret_sizes, count, 0, error);
}

hvd_status hvd_gather_object(hvd_context* context, const char* name, const void* data, size_t size,
                             void** ret_data, size_t* ret_sizes, size_t count, int32_t root,
                             hvd_error* error) {
  return gather_objects(Kind::kGather, context, name, data, size, ret_data, ret_sizes, count, root, error);
}

}  // extern "C"
