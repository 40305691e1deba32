// XLA's typed FFI handlers for hvd.jax: each runs one operation of libhvd in place of a custom call.
//
// Built from jaxlib's header-only FFI and hvd.h by _native.py; it links neither. The library's functions and
// the context are set by Python, as it may have loaded any libhvd, and may replace the context. All handlers
// of a program run in the program's order (Python gives each the token of the one before), so that unnamed
// operations are numbered alike on every rank.
#include <hvd/hvd.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

using Int32s = ffi::Buffer<ffi::DataType::S32, 1>;

// What Python sets; the layout is repeated in _native.py.
struct Library {
  hvd_status (*submit)(hvd_context*, const hvd_request*, hvd_op**, hvd_error*);
  hvd_status (*wait)(hvd_op*, int64_t, hvd_error*);
  hvd_status (*output)(hvd_op*, size_t, hvd_tensor*, hvd_error*);
  hvd_status (*received)(hvd_op*, int64_t*, size_t*, hvd_error*);
  void (*destroy)(hvd_op*);
  hvd_status (*membership)(hvd_context*, hvd_membership_info*, hvd_error*);
  const char* (*status_name)(hvd_status);
};

struct State {
  std::shared_mutex life;  // shared: a handler uses the context; unique: it is replaced
  Library library = {};
  hvd_context* context = nullptr;
  std::mutex numbers_mutex;
  uint64_t generation = 0;
  std::map<std::string, uint64_t, std::less<>> numbers;
};

State& state() {
  static auto* const instance = new State;  // handlers may run while the process ends
  return *instance;
}

// "HVD_NAME: message [hvd status rank generation]": Python makes its own exception of it.
ffi::Error failure(hvd_status status, const hvd_error& error) {
  std::string message(error.message, strnlen(error.message, sizeof error.message));
  message = std::string(state().library.status_name(status)) + ": " + message + " [hvd " + std::to_string(status) + " " +
            std::to_string(error.rank) + " " + std::to_string(error.generation) + "]";
  return ffi::Error(ffi::ErrorCode::kAborted, std::move(message));
}

ffi::Error invalid(const std::string& message) {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument,
                    "HVD_INVALID: " + message + " [hvd " + std::to_string(HVD_INVALID) + " -1 0]");
}

int32_t dtype_of(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::U8: return HVD_DTYPE_UINT8;
    case ffi::DataType::S8: return HVD_DTYPE_INT8;
    case ffi::DataType::U16: return HVD_DTYPE_UINT16;
    case ffi::DataType::S16: return HVD_DTYPE_INT16;
    case ffi::DataType::U32: return HVD_DTYPE_UINT32;
    case ffi::DataType::S32: return HVD_DTYPE_INT32;
    case ffi::DataType::U64: return HVD_DTYPE_UINT64;
    case ffi::DataType::S64: return HVD_DTYPE_INT64;
    case ffi::DataType::F16: return HVD_DTYPE_FLOAT16;
    case ffi::DataType::BF16: return HVD_DTYPE_BFLOAT16;
    case ffi::DataType::F32: return HVD_DTYPE_FLOAT32;
    case ffi::DataType::F64: return HVD_DTYPE_FLOAT64;
    case ffi::DataType::PRED: return HVD_DTYPE_BOOL;
    default: return 0;
  }
}

hvd_tensor tensor_of(const ffi::AnyBuffer& buffer) {
  hvd_tensor tensor = HVD_TENSOR_INIT;
  tensor.data = buffer.untyped_data();
  tensor.dtype = dtype_of(buffer.element_type());
  const auto shape = buffer.dimensions();
  tensor.ndim = static_cast<int32_t>(shape.size());
  for (size_t i = 0; i < shape.size() && i < HVD_MAX_DIMS; ++i) tensor.shape[i] = shape[i];
  return tensor;
}

hvd_membership_info membership_info() {
  hvd_membership_info info = {};
  info.struct_size = sizeof info;
  return info;
}

// The op's handle goes at the end of a handler.
struct Op {
  hvd_op* op = nullptr;
  Op() = default;
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;
  ~Op() {
    if (op != nullptr) state().library.destroy(op);
  }
};

struct Call {
  State& now = state();
  std::shared_lock<std::shared_mutex> alive{now.life};
  hvd_error error = HVD_ERROR_INIT;
  uint64_t* number = nullptr;

  // The n-th unnamed operation of its kind in this generation bears that number, if it can be submitted.
  hvd_status name(std::string_view given, std::string_view kind, std::string* result) {
    if (!given.empty()) {
      *result = given;
      return HVD_OK;
    }
    hvd_membership_info info = membership_info();
    if (hvd_status status = now.library.membership(now.context, &info, &error); status != HVD_OK) return status;
    const std::lock_guard lock(now.numbers_mutex);
    if (info.generation != now.generation) {
      now.generation = info.generation;
      now.numbers.clear();
    }
    number = &now.numbers[std::string(kind)];
    *result = "jax." + std::string(kind) + ".noname." + std::to_string(++*number);
    return HVD_OK;
  }

  hvd_status run(const hvd_request& request, Op* op) {
    if (hvd_status status = now.library.submit(now.context, &request, &op->op, &error); status != HVD_OK) {
      // What is wrong on this rank alone; a mismatch may be known at once, too, and is everybody's.
      const bool alone = status == HVD_INVALID || status == HVD_UNSUPPORTED;
      const std::lock_guard lock(now.numbers_mutex);
      if (alone && number != nullptr && *number > 0) --*number;
      return status;
    }
    return now.library.wait(op->op, 0, &error);  // bounded by the operation's own time-out
  }
};

// Rows of an operation whose number is known afterwards, into a result of the size that was compiled in; the
// rest zero.
ffi::Error fill(const hvd_tensor& got, ffi::AnyBuffer& room, std::string_view what) {
  const hvd_tensor have = tensor_of(room);
  const int64_t rows = got.shape[0];
  if (rows > have.shape[0]) {
    return invalid(std::string(what) + ": " + std::to_string(rows) + " rows came, and the program was compiled for " +
                   std::to_string(have.shape[0]) + ": compile it anew, or give rows= a number that is always enough");
  }
  size_t row_bytes = have.shape[0] > 0 ? room.size_bytes() / static_cast<size_t>(have.shape[0]) : 0;
  const size_t bytes = static_cast<size_t>(rows) * row_bytes;
  auto* to = static_cast<char*>(room.untyped_data());
  if (bytes > 0) std::memcpy(to, got.data, bytes);
  if (room.size_bytes() > bytes) std::memset(to + bytes, 0, room.size_bytes() - bytes);
  return ffi::Error::Success();
}

constexpr std::string_view kKinds[] = {"",        "broadcast",     "allreduce", "allgather",
                                       "barrier", "reducescatter", "alltoall"};

// Operands: the tensors, alltoall's splits if there are any, a token. Results: as many tensors, alltoall's
// received splits, a token.
ffi::Error collective(ffi::RemainingArgs args, ffi::RemainingRets rets, std::string_view given_name, int32_t kind,
                      int32_t reduction, int32_t root, double prescale, double postscale, bool has_splits, bool trim) {
  Call call;
  if (call.now.context == nullptr) return invalid("hvd.init() has not been called, or the context was shut down");
  const size_t count = args.size() - 1 - (has_splits ? 1 : 0);
  std::vector<hvd_tensor> inputs, outputs;
  for (size_t i = 0; i < count; ++i) inputs.push_back(tensor_of(*args.get<ffi::AnyBuffer>(i)));
  for (size_t i = 0; i < count; ++i) outputs.push_back(tensor_of(**rets.get<ffi::AnyBuffer>(i)));
  hvd_request request = HVD_REQUEST_INIT;
  request.collective = kind;
  request.root = root;
  std::string name;
  if (hvd_status status = call.name(given_name, kKinds[kind], &name); status != HVD_OK) return failure(status, call.error);
  request.name = name.c_str();
  request.count = count == 1 ? 0 : count;
  request.reduction = reduction;
  request.prescale = prescale;
  request.postscale = postscale;
  std::vector<int64_t> splits;
  const bool own_rows = kind == HVD_COLLECTIVE_ALLGATHER || kind == HVD_COLLECTIVE_REDUCESCATTER ||
                        kind == HVD_COLLECTIVE_ALLTOALL;
  if (kind == HVD_COLLECTIVE_BROADCAST) {
    for (size_t i = 0; i < count; ++i) {
      const size_t bytes = args.get<ffi::AnyBuffer>(i)->size_bytes();
      if (bytes > 0) std::memcpy(outputs[i].data, inputs[i].data, bytes);
    }
    request.outputs = outputs.data();
  } else {
    request.inputs = inputs.data();
    request.outputs = own_rows ? nullptr : outputs.data();
  }
  if (has_splits) {
    const auto given = args.get<Int32s>(count);
    if (!given) return invalid("splits: expected int32 of one dimension");
    splits.assign(given->typed_data(), given->typed_data() + given->element_count());
    request.splits = splits.data();
    request.split_count = splits.size();
    // A gradient has rows beyond those that came.
    const int64_t total = std::accumulate(splits.begin(), splits.end(), int64_t{0});
    if (trim && total < inputs[0].shape[0]) inputs[0].shape[0] = total;
  }
  Op op;
  if (hvd_status status = call.run(request, &op); status != HVD_OK) return failure(status, call.error);
  if (!own_rows) return ffi::Error::Success();
  hvd_tensor got = HVD_TENSOR_INIT;
  if (hvd_status status = call.now.library.output(op.op, 0, &got, &call.error); status != HVD_OK) {
    return failure(status, call.error);
  }
  auto room = rets.get<ffi::AnyBuffer>(0);
  if (ffi::Error error = fill(got, **room, name); error.failure()) return error;
  if (has_splits) {
    auto received = *rets.get<Int32s>(1);
    size_t entries = splits.size();
    std::vector<int64_t> rows(entries);
    if (hvd_status status = call.now.library.received(op.op, rows.data(), &entries, &call.error); status != HVD_OK) {
      return failure(status, call.error);
    }
    for (size_t i = 0; i < rows.size(); ++i) received->typed_data()[i] = static_cast<int32_t>(rows[i]);
  }
  return ffi::Error::Success();
}

// The gradient of an allgather: the average over the ranks of what they have of this rank's rows. How many
// rows each rank gave is asked for first.
ffi::Error allgather_gradient(ffi::AnyBuffer gradient, ffi::Token, ffi::Result<ffi::AnyBuffer> result,
                              ffi::Result<ffi::Token>, std::string_view given_name) {
  Call call;
  if (call.now.context == nullptr) return invalid("hvd.init() has not been called, or the context was shut down");
  std::string name;
  if (hvd_status status = call.name(given_name, "allgather.gradient", &name); status != HVD_OK) {
    return failure(status, call.error);
  }
  hvd_tensor share = tensor_of(*result);
  int64_t mine = share.shape[0];
  hvd_tensor rows = HVD_TENSOR_INIT;
  rows.data = &mine;
  rows.dtype = HVD_DTYPE_INT64;
  rows.ndim = 1;
  rows.shape[0] = 1;
  hvd_request request = HVD_REQUEST_INIT;
  request.collective = HVD_COLLECTIVE_ALLGATHER;
  const std::string rows_name = name + ".rows";
  request.name = rows_name.c_str();
  request.inputs = &rows;
  Op gathered;
  if (hvd_status status = call.run(request, &gathered); status != HVD_OK) return failure(status, call.error);
  hvd_tensor all = HVD_TENSOR_INIT;
  if (hvd_status status = call.now.library.output(gathered.op, 0, &all, &call.error); status != HVD_OK) {
    return failure(status, call.error);
  }
  const auto* each = static_cast<const int64_t*>(all.data);
  std::vector<int64_t> splits(each, each + all.shape[0]);
  int64_t total = 0;
  for (int64_t one : splits) total += one;
  hvd_tensor input = tensor_of(gradient);
  if (total > input.shape[0]) {
    return invalid(name + ": the gradient has " + std::to_string(input.shape[0]) + " rows, and the ranks gave " +
                   std::to_string(total));
  }
  input.shape[0] = total;
  request = HVD_REQUEST_INIT;
  request.collective = HVD_COLLECTIVE_REDUCESCATTER;
  request.name = name.c_str();
  request.inputs = &input;
  request.outputs = &share;
  request.reduction = HVD_REDUCTION_AVERAGE;
  request.splits = splits.data();
  request.split_count = splits.size();
  Op op;
  if (hvd_status status = call.run(request, &op); status != HVD_OK) return failure(status, call.error);
  return ffi::Error::Success();
}

// Rank and size, as they are when the program runs.
ffi::Error place(ffi::Token, ffi::Result<Int32s> result, ffi::Result<ffi::Token>) {
  Call call;
  if (call.now.context == nullptr) return invalid("hvd.init() has not been called, or the context was shut down");
  hvd_membership_info info = membership_info();
  if (hvd_status status = call.now.library.membership(call.now.context, &info, &call.error); status != HVD_OK) {
    return failure(status, call.error);
  }
  result->typed_data()[0] = info.rank;
  result->typed_data()[1] = info.size;
  return ffi::Error::Success();
}

}  // namespace

#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(hvd_jax_collective, collective,
                              ffi::Ffi::Bind()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<std::string_view>("name")
                                  .Attr<int32_t>("kind")
                                  .Attr<int32_t>("reduction")
                                  .Attr<int32_t>("root")
                                  .Attr<double>("prescale")
                                  .Attr<double>("postscale")
                                  .Attr<bool>("has_splits")
                                  .Attr<bool>("trim"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(hvd_jax_allgather_gradient, allgather_gradient,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Token>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::Token>()
                                  .Attr<std::string_view>("name"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(hvd_jax_place, place,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Token>()
                                  .Ret<Int32s>()
                                  .Ret<ffi::Token>());

extern "C" {

// NULL: no context. Returns when no handler uses the one before any more.
void hvd_jax_set_context(const Library* library, hvd_context* context) {
  State& now = state();
  const std::unique_lock lock(now.life);
  if (library != nullptr) now.library = *library;
  now.context = context;
  now.generation = 0;
  now.numbers.clear();
}
}

#pragma GCC visibility pop
