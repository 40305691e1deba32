// Operations under way: waiting for them, and their results.
#include <algorithm>

#include "api/arguments.h"
#include "api/context.h"
#include "collective/kinds/kind.h"
#include "hvd/connect.h"

using hvd::Error;
using hvd::Status;
using hvd::api::copy_in;
using hvd::api::copy_out;
using hvd::api::guarded;
using hvd::api::required;
using hvd::api::timeout_of;
using hvd::api::Use;
using hvd::collective::Operation;

namespace {

/// Of an operation that has completed with success; otherwise its status, or HVD_INVALID while it is pending.
Status completed(const Operation& operation) {
  if (!operation.done()) return Status(HVD_INVALID, "the operation is still pending");
  return operation.status();
}

Status write_output(hvd_op& op, size_t index, hvd_tensor* ret_output) {
  if (op.outputs.empty()) return Status(HVD_INVALID, "the operation has no output");
  if (index >= op.outputs.size()) {
    return Status(HVD_INVALID, fmt::format("index is {}: expected 0 to {}, the operation has {} outputs",
                                           index, op.outputs.size() - 1, op.outputs.size()));
  }
  if (Status status = completed(*op.operation); !status.ok()) return status;
  hvd_tensor output = op.outputs[index];
  if (!row_of(op.kind).makes_output()) {
    output.struct_size = sizeof(output);
    copy_out(ret_output, output, "ret_output");
    return {};
  }
  copy_in(ret_output, "ret_output");  // before memory is taken
  std::lock_guard lock(op.mutex);
  if (output.data == nullptr) {
    if (!op.taken[index]) op.buffers[index] = op.operation->take_buffer(index);
    op.taken[index] = true;
    output.data = op.buffers[index].get();
  }
  hvd::api::describe(ret_output, op.operation->output(index), output.data, "ret_output");
  return {};
}

}  // namespace

extern "C" {

hvd_status hvd_op_test(hvd_op* op, int32_t* ret_done, hvd_error* error) {
  return guarded(error, [&] {
    const Use<hvd_op> use(op, "op");
    required(ret_done, "ret_done") = use->operation->done() ? 1 : 0;
  });
}

hvd_status hvd_op_wait(hvd_op* op, int64_t timeout_ns, hvd_error* error) {
  return guarded(error, [&]() -> Status {
    const Use<hvd_op> use(op, "op");
    Operation& operation = *use->operation;
    if (timeout_ns == HVD_DEFAULT_TIMEOUT && !use->connects) {
      return use->context->worker.operations().finish(operation, use->timeout);
    }
    if (operation.wait(timeout_of(timeout_ns, use->timeout))) return operation.status();
    const std::string whom = operation.waiting_for();
    return Status(HVD_TIMEOUT, whom.empty() ? "still pending" : "still pending: " + whom);
  });
}

hvd_status hvd_op_get_fd(hvd_op* op, int32_t* ret_fd, hvd_error* error) {
  return guarded(error, [&] {
    const Use<hvd_op> use(op, "op");
    int32_t& fd = required(ret_fd, "ret_fd");
    fd = use->operation->completion_fd();
  });
}

hvd_status hvd_op_get_error(hvd_op* op, hvd_error* error) {
  return guarded(error, [&] { return completed(*Use<hvd_op>(op, "op")->operation); });
}

hvd_status hvd_op_get_output(hvd_op* op, size_t index, hvd_tensor* ret_output, hvd_error* error) {
  return guarded(error, [&] { return write_output(*Use<hvd_op>(op, "op"), index, ret_output); });
}

hvd_status hvd_op_get_received_splits(hvd_op* op, int64_t* ret_splits, size_t* count, hvd_error* error) {
  return guarded(error, [&]() -> Status {
    const Use<hvd_op> use(op, "op");
    const Operation& operation = *use->operation;
    required(count, "count");
    if (!row_of(use->kind).received) {
      return Status(HVD_INVALID,
                    "the operation has no received splits: expected one that gets rows of each rank, as "
                    "alltoall, allgather and gather do");
    }
    if (Status status = completed(operation); !status.ok()) return status;
    hvd::api::copy_list(operation.received_splits(), ret_splits, count);
    return {};
  });
}

hvd_status hvd_op_get_last_joined(hvd_op* op, int32_t* ret_rank, hvd_error* error) {
  return guarded(error, [&]() -> Status {
    const Use<hvd_op> use(op, "op");
    const Operation& operation = *use->operation;
    required(ret_rank, "ret_rank");
    if (!row_of(use->kind).joins) return Status(HVD_INVALID, "the operation is no join: nobody joined by it");
    if (Status status = completed(operation); !status.ok()) return status;
    *ret_rank = static_cast<int32_t>(operation.word());
    return {};
  });
}

void hvd_op_destroy(hvd_op* op) { hvd::api::end_handle(op); }

hvd_status hvd_op_abandon(hvd_op* op, void* userdata, hvd_destroy_fn destroy, hvd_error* error) {
  return guarded(error, [&] {
    auto memory = std::make_shared<hvd::Userdata>(userdata, destroy);
    {
      const Use<hvd_op> use(op, "op");
      hvd_context& context = *use->context;
      context.sweep();
      std::lock_guard lock(context.mutex);
      if (!use->operation->done()) {
        context.abandoned.push_back({use->operation, std::move(memory)});
        context.any_abandoned = true;
      }
    }
    hvd::api::end_handle(op);
  });
}

}  // extern "C"
