// TensorFlow's operation HvdCollective: a collective of libhvd as a node of a graph that holds no thread of
// TensorFlow's.
//
// TensorFlow runs a graph's nodes in a pool of a few threads. A node that waits in one of them for other
// ranks keeps it, and as soon as all threads of two ranks wait, each for another operation, nothing goes on
// any more. So this is an asynchronous kernel: threads of its own wait, as many as operations are under way.
//
// It is written against TensorFlow's C interface for kernels, whose functions are looked up when
// tf.load_op_library loads it: no header of TensorFlow's is needed to build it, and one file serves all
// versions that have them (2.12 has no asynchronous kernels there).
#include <dlfcn.h>
#include <hvd/hvd.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace {

// ---- TensorFlow's functions: opaque types, and what tensorflow/c declares ----

struct Status;
struct Tensor;
struct Construction;
struct Context;
struct Done;
struct OpBuilder;
struct KernelBuilder;
struct ShapeContext;

// tensorflow/c/tf_status.h
enum Code { kOk = 0, kUnknown = 2, kInvalidArgument = 3, kDeadlineExceeded = 4, kFailedPrecondition = 9,
            kUnimplemented = 12 };

struct Api {
  Status* (*TF_NewStatus)();
  void (*TF_DeleteStatus)(Status*);
  void (*TF_SetStatus)(Status*, int, const char*);
  int (*TF_GetCode)(const Status*);
  OpBuilder* (*TF_NewOpDefinitionBuilder)(const char*);
  void (*TF_OpDefinitionBuilderAddAttr)(OpBuilder*, const char*);
  void (*TF_OpDefinitionBuilderAddInput)(OpBuilder*, const char*);
  void (*TF_OpDefinitionBuilderAddOutput)(OpBuilder*, const char*);
  void (*TF_OpDefinitionBuilderSetIsStateful)(OpBuilder*, bool);
  void (*TF_OpDefinitionBuilderSetShapeInferenceFunction)(OpBuilder*, void (*)(ShapeContext*, Status*));
  void (*TF_RegisterOpDefinition)(OpBuilder*, Status*);
  void (*TF_ShapeInferenceContextSetUnknownShape)(ShapeContext*, Status*);
  KernelBuilder* (*TF_NewAsyncKernelBuilder)(const char*, const char*, void* (*)(Construction*),
                                             void (*)(void*, Context*, Done*), void (*)(void*));
  void (*TF_RegisterKernelBuilder)(const char*, KernelBuilder*, Status*);
  void (*TF_RunAsyncOpKernelDoneCallback)(Done*);
  void (*TF_OpKernelConstruction_GetAttrInt64)(Construction*, const char*, int64_t*, Status*);
  void (*TF_OpKernelConstruction_GetAttrSize)(Construction*, const char*, int32_t*, int32_t*, Status*);
  void (*TF_OpKernelConstruction_GetAttrString)(Construction*, const char*, char*, size_t, Status*);
  void (*TF_OpKernelConstruction_Failure)(Construction*, Status*);
  void (*TF_OpKernelContext_Failure)(Context*, Status*);
  int (*TF_NumInputs)(Context*);
  void (*TF_GetInput)(Context*, int, Tensor**, Status*);
  Tensor* (*TF_AllocateOutput)(Context*, int, int, const int64_t*, int, size_t, Status*);
  int (*TF_TensorType)(const Tensor*);
  int (*TF_NumDims)(const Tensor*);
  int64_t (*TF_Dim)(const Tensor*, int);
  size_t (*TF_TensorByteSize)(const Tensor*);
  void* (*TF_TensorData)(const Tensor*);
  void (*TF_DeleteTensor)(Tensor*);
};
Api tf;

// The library's functions, which Python sets as it may have loaded any libhvd; the layout is repeated in
// _graph.py. Handles are tickets that the library checks: one of a context or set that is gone gives an
// error.
struct Library {
  hvd_status (*submit_and_wait)(hvd_context*, const hvd_request*, int64_t, hvd_op**, hvd_error*);
  hvd_status (*output)(hvd_op*, size_t, hvd_tensor*, hvd_error*);
  hvd_status (*received)(hvd_op*, int64_t*, size_t*, hvd_error*);
  void (*destroy)(hvd_op*);
  hvd_status (*membership)(hvd_context*, hvd_membership_info*, hvd_error*);
  const char* (*status_name)(hvd_status);
};
Library library;
std::atomic<hvd_context*> current{nullptr};

struct StatusDeleter {
  void operator()(Status* status) const { tf.TF_DeleteStatus(status); }
};
using StatusPtr = std::unique_ptr<Status, StatusDeleter>;
struct TensorDeleter {
  void operator()(Tensor* tensor) const { tf.TF_DeleteTensor(tensor); }
};
using TensorPtr = std::unique_ptr<Tensor, TensorDeleter>;

StatusPtr status_of(int code, const std::string& message) {
  StatusPtr status(tf.TF_NewStatus());
  tf.TF_SetStatus(status.get(), code, message.c_str());
  return status;
}

// ---- dtypes: tensorflow/c/tf_datatype.h ----

constexpr struct {
  int theirs;
  hvd_dtype ours;
} kDtypes[] = {{1, HVD_DTYPE_FLOAT32}, {2, HVD_DTYPE_FLOAT64}, {3, HVD_DTYPE_INT32}, {4, HVD_DTYPE_UINT8},
               {5, HVD_DTYPE_INT16}, {6, HVD_DTYPE_INT8}, {9, HVD_DTYPE_INT64}, {10, HVD_DTYPE_BOOL},
               {14, HVD_DTYPE_BFLOAT16}, {17, HVD_DTYPE_UINT16}, {19, HVD_DTYPE_FLOAT16}, {22, HVD_DTYPE_UINT32},
               {23, HVD_DTYPE_UINT64}};
constexpr int kInt64 = 9;

hvd_dtype dtype_of(int theirs) {
  for (const auto& pair : kDtypes) {
    if (pair.theirs == theirs) return pair.ours;
  }
  return 0;
}

// ---- a node ----

struct Kernel {
  int64_t kind = 0, reduction = 0, root = 0, prescale = 0, postscale = 0, has_splits = 0, process_set = 0;
  std::string key;
};

void* create(Construction* construction) {
  auto kernel = std::make_unique<Kernel>();
  StatusPtr status(tf.TF_NewStatus());
  const auto good = [&] { return tf.TF_GetCode(status.get()) == kOk; };
  const std::pair<const char*, int64_t*> numbers[] = {
      {"kind", &kernel->kind}, {"reduction", &kernel->reduction}, {"root", &kernel->root},
      {"prescale", &kernel->prescale}, {"postscale", &kernel->postscale}, {"has_splits", &kernel->has_splits},
      {"process_set", &kernel->process_set}};
  for (const auto& [name, value] : numbers) {
    if (good()) tf.TF_OpKernelConstruction_GetAttrInt64(construction, name, value, status.get());
  }
  int32_t entries = 0, size = 0;
  if (good()) tf.TF_OpKernelConstruction_GetAttrSize(construction, "key", &entries, &size, status.get());
  if (good() && size > 0) {
    kernel->key.resize(static_cast<size_t>(size));
    tf.TF_OpKernelConstruction_GetAttrString(construction, "key", kernel->key.data(), kernel->key.size(), status.get());
  }
  if (!good()) tf.TF_OpKernelConstruction_Failure(construction, status.get());
  return kernel.release();
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

struct Work {
  const Kernel& kernel;
  Context* context;
  std::function<void()> done;  // a copy: TensorFlow's own lies on a stack that is left
};

class Call {
 public:
  explicit Call(const Work& work) : kernel_(work.kernel), context_(work.context) {}
  ~Call() {
    if (op_ != nullptr) library.destroy(op_);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void run() {
    if (StatusPtr failure = perform(); failure) tf.TF_OpKernelContext_Failure(context_, failure.get());
  }

 private:
  // "HVD_NAME: message [hvd status rank generation]": Python makes its own exception of it.
  StatusPtr failed(hvd_status status) const {
    int code = kUnknown;
    if (status == HVD_INVALID) code = kInvalidArgument;
    if (status == HVD_MISMATCH) code = kFailedPrecondition;
    if (status == HVD_TIMEOUT) code = kDeadlineExceeded;
    if (status == HVD_UNSUPPORTED) code = kUnimplemented;
    std::string text(error_.message, strnlen(error_.message, sizeof error_.message));
    const std::string name = library.status_name(status);
    if (text.compare(0, name.size(), name) != 0) text = name + ": " + text;
    return status_of(code, text + " [hvd " + std::to_string(status) + " " + std::to_string(error_.rank) + " " +
                               std::to_string(error_.generation) + "]");
  }

  StatusPtr invalid(const std::string& text) const {
    return status_of(kInvalidArgument, "HVD_INVALID: " + text + " [hvd " + std::to_string(HVD_INVALID) + " -1 0]");
  }

  StatusPtr describe(const Tensor* tensor, hvd_tensor* ret) const {
    const int dims = tf.TF_NumDims(tensor);
    *ret = HVD_TENSOR_INIT;
    ret->dtype = dtype_of(tf.TF_TensorType(tensor));
    if (ret->dtype == 0) return invalid("TensorFlow's dtype " + std::to_string(tf.TF_TensorType(tensor)) + " is none of the library's");
    if (dims > HVD_MAX_DIMS) {
      return invalid(std::to_string(dims) + " dimensions: expected at most " + std::to_string(HVD_MAX_DIMS));
    }
    ret->data = tf.TF_TensorData(tensor);
    ret->ndim = dims;
    for (int i = 0; i < dims; ++i) ret->shape[i] = tf.TF_Dim(tensor, i);
    return nullptr;
  }

  StatusPtr take_inputs() {
    StatusPtr status(tf.TF_NewStatus());
    const int count = tf.TF_NumInputs(context_);
    for (int i = 0; i < count; ++i) {
      Tensor* tensor = nullptr;
      tf.TF_GetInput(context_, i, &tensor, status.get());
      if (tf.TF_GetCode(status.get()) != kOk) return status;
      inputs_.emplace_back(tensor);
    }
    if (kernel_.has_splits != 0) {
      if (inputs_.empty() || tf.TF_TensorType(inputs_.back().get()) != kInt64) return invalid("splits: expected int64");
      const auto* rows = static_cast<const int64_t*>(tf.TF_TensorData(inputs_.back().get()));
      splits_.assign(rows, rows + tf.TF_TensorByteSize(inputs_.back().get()) / sizeof(int64_t));
      inputs_.pop_back();
    }
    for (const TensorPtr& tensor : inputs_) {
      if (StatusPtr failure = describe(tensor.get(), &sources_.emplace_back()); failure) return failure;
    }
    return nullptr;
  }

  // TensorFlow's own memory for output i.
  StatusPtr allocate(size_t i, int type, const hvd_tensor& like, size_t bytes, void** ret_data) {
    StatusPtr status(tf.TF_NewStatus());
    TensorPtr tensor(tf.TF_AllocateOutput(context_, static_cast<int>(i), type, like.shape, like.ndim, bytes, status.get()));
    if (tf.TF_GetCode(status.get()) != kOk) return status;
    *ret_data = tf.TF_TensorData(tensor.get());
    outputs_.push_back(std::move(tensor));
    return nullptr;
  }

  StatusPtr perform() {
    hvd_context* const context = current;
    if (context == nullptr) return invalid("hvd.init() has not been called");
    if (StatusPtr failure = take_inputs(); failure) return failure;
    const bool broadcast = kernel_.kind == HVD_COLLECTIVE_BROADCAST;
    const bool rows = kernel_.kind != HVD_COLLECTIVE_ALLREDUCE && !broadcast;  // how many is known afterwards
    std::vector<hvd_tensor> targets;
    if (!rows) {
      hvd_membership_info place{};
      place.struct_size = sizeof place;
      if (broadcast) {
        if (hvd_status status = library.membership(context, &place, &error_); status != HVD_OK) return failed(status);
      }
      for (size_t i = 0; i < sources_.size(); ++i) {
        const Tensor* const input = inputs_[i].get();
        hvd_tensor target = sources_[i];
        const size_t bytes = tf.TF_TensorByteSize(input);
        if (StatusPtr failure = allocate(i, tf.TF_TensorType(input), target, bytes, &target.data); failure) return failure;
        if (broadcast && place.rank == kernel_.root && bytes > 0) std::memcpy(target.data, sources_[i].data, bytes);
        targets.push_back(target);
      }
    }
    hvd_request request = HVD_REQUEST_INIT;
    request.collective = static_cast<hvd_collective>(kernel_.kind);
    request.root = static_cast<int32_t>(kernel_.root);
    request.name = kernel_.key.empty() ? nullptr : kernel_.key.c_str();
    request.inputs = broadcast ? nullptr : sources_.data();
    request.outputs = rows ? nullptr : targets.data();
    request.count = sources_.size() == 1 ? 0 : sources_.size();
    request.reduction = static_cast<hvd_reduction>(kernel_.reduction);
    std::memcpy(&request.prescale, &kernel_.prescale, sizeof(double));
    std::memcpy(&request.postscale, &kernel_.postscale, sizeof(double));
    if (kernel_.has_splits != 0) {
      request.splits = splits_.data();
      request.split_count = splits_.size();
    }
    request.process_set = reinterpret_cast<hvd_process_set*>(static_cast<intptr_t>(kernel_.process_set));
    // Bounded by the operation's own time-out.
    if (hvd_status status = library.submit_and_wait(context, &request, 0, &op_, &error_); status != HVD_OK) return failed(status);
    return rows ? give_rows() : nullptr;
  }

  StatusPtr give_rows() {
    for (size_t i = 0; i < sources_.size(); ++i) {
      hvd_tensor got = HVD_TENSOR_INIT;
      if (hvd_status status = library.output(op_, i, &got, &error_); status != HVD_OK) return failed(status);
      size_t bytes = 1;
      for (int d = 0; d < got.ndim; ++d) bytes *= static_cast<size_t>(got.shape[d]);
      const size_t entries = element_count(sources_[i]);
      bytes *= entries > 0 ? tf.TF_TensorByteSize(inputs_[i].get()) / entries : size_of(got.dtype);
      void* data = nullptr;
      if (StatusPtr failure = allocate(i, tf.TF_TensorType(inputs_[i].get()), got, bytes, &data); failure) return failure;
      if (bytes > 0) std::memcpy(data, got.data, bytes);
    }
    if (kernel_.has_splits == 0) return nullptr;
    size_t count = splits_.size();
    hvd_tensor like = HVD_TENSOR_INIT;
    like.ndim = 1;
    like.shape[0] = static_cast<int64_t>(count);
    void* data = nullptr;
    if (StatusPtr failure = allocate(1, kInt64, like, count * sizeof(int64_t), &data); failure) return failure;
    if (hvd_status status = library.received(op_, static_cast<int64_t*>(data), &count, &error_); status != HVD_OK) return failed(status);
    return nullptr;
  }

  static size_t element_count(const hvd_tensor& tensor) {
    size_t count = 1;
    for (int d = 0; d < tensor.ndim; ++d) count *= static_cast<size_t>(tensor.shape[d]);
    return count;
  }

  static size_t size_of(hvd_dtype dtype) {
    switch (dtype) {
      case HVD_DTYPE_UINT8: case HVD_DTYPE_INT8: case HVD_DTYPE_BOOL: return 1;
      case HVD_DTYPE_UINT16: case HVD_DTYPE_INT16: case HVD_DTYPE_FLOAT16: case HVD_DTYPE_BFLOAT16: return 2;
      case HVD_DTYPE_UINT32: case HVD_DTYPE_INT32: case HVD_DTYPE_FLOAT32: return 4;
      default: return 8;
    }
  }

  const Kernel& kernel_;
  Context* const context_;
  hvd_error error_ = HVD_ERROR_INIT;
  hvd_op* op_ = nullptr;
  std::vector<TensorPtr> inputs_, outputs_;
  std::vector<hvd_tensor> sources_;
  std::vector<int64_t> splits_;
};

// Threads that wait: one for each operation under way, kept for a while.
class Waiters {
 public:
  void give(Work work) {
    std::unique_lock lock(mutex_);
    queue_.push_back(std::move(work));
    if (idle_ >= queue_.size()) {
      lock.unlock();
      more_.notify_one();
      return;
    }
    ++threads_;
    lock.unlock();
    try {
      std::thread([this] { run(); }).detach();
      return;
    } catch (const std::system_error&) {  // no more threads: those there are take it in turn
    }
    lock.lock();
    if (--threads_ > 0) return;
    while (!queue_.empty()) run_first(lock);  // there are none: it is done here
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      while (queue_.empty()) {
        ++idle_;
        const bool woken = more_.wait_for(lock, std::chrono::seconds(5), [this] { return !queue_.empty(); });
        --idle_;
        if (!woken) {
          --threads_;
          return;
        }
      }
      run_first(lock);
    }
  }

  void run_first(std::unique_lock<std::mutex>& lock) {
    Work work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    Call(work).run();
    work.done();
    lock.lock();
  }

  std::mutex mutex_;
  std::condition_variable more_;
  std::deque<Work> queue_;
  size_t idle_ = 0, threads_ = 0;
};
Waiters* waiters = new Waiters;  // never freed: its threads may outlive what the process frees at its end

void compute(void* kernel, Context* context, Done* done) {
  waiters->give({*static_cast<Kernel*>(kernel), context, *reinterpret_cast<std::function<void()>*>(done)});
}

// ---- registering ----

bool find_functions() {
  void* const framework = dlopen("libtensorflow_framework.so.2", RTLD_LAZY | RTLD_NOLOAD);
  bool all = true;
  const auto find = [&](auto& function, const char* name) {
    void* found = framework != nullptr ? dlsym(framework, name) : nullptr;
    if (found == nullptr) found = dlsym(RTLD_DEFAULT, name);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
    all = all && found != nullptr;
  };
#define FIND(name) find(tf.name, #name)
  FIND(TF_NewStatus);
  FIND(TF_DeleteStatus);
  FIND(TF_SetStatus);
  FIND(TF_GetCode);
  FIND(TF_NewOpDefinitionBuilder);
  FIND(TF_OpDefinitionBuilderAddAttr);
  FIND(TF_OpDefinitionBuilderAddInput);
  FIND(TF_OpDefinitionBuilderAddOutput);
  FIND(TF_OpDefinitionBuilderSetIsStateful);
  FIND(TF_OpDefinitionBuilderSetShapeInferenceFunction);
  FIND(TF_RegisterOpDefinition);
  FIND(TF_ShapeInferenceContextSetUnknownShape);
  FIND(TF_NewAsyncKernelBuilder);
  FIND(TF_RegisterKernelBuilder);
  FIND(TF_RunAsyncOpKernelDoneCallback);
  FIND(TF_OpKernelConstruction_GetAttrInt64);
  FIND(TF_OpKernelConstruction_GetAttrSize);
  FIND(TF_OpKernelConstruction_GetAttrString);
  FIND(TF_OpKernelConstruction_Failure);
  FIND(TF_OpKernelContext_Failure);
  FIND(TF_NumInputs);
  FIND(TF_GetInput);
  FIND(TF_AllocateOutput);
  FIND(TF_TensorType);
  FIND(TF_NumDims);
  FIND(TF_Dim);
  FIND(TF_TensorByteSize);
  FIND(TF_TensorData);
  FIND(TF_DeleteTensor);
#undef FIND
  return all;
}

// Whether TensorFlow's callbacks are this compiler's std::function, which compute() copies.
bool callbacks_fit() {
  bool called = false;
  std::function<void()> probe = [&called] { called = true; };
  tf.TF_RunAsyncOpKernelDoneCallback(reinterpret_cast<Done*>(&probe));
  return called;
}

// When TensorFlow loads this file; without it the operation is missing, and Python goes another way.
__attribute__((constructor)) void register_operation() {
  if (!find_functions() || !callbacks_fit()) return;
  OpBuilder* const op = tf.TF_NewOpDefinitionBuilder("HvdCollective");
  for (const char* attribute : {"Tin: list(type) >= 0", "Tout: list(type) >= 0", "kind: int", "key: string", "reduction: int",
                                "root: int", "prescale: int", "postscale: int", "has_splits: int", "process_set: int"}) {
    tf.TF_OpDefinitionBuilderAddAttr(op, attribute);
  }
  tf.TF_OpDefinitionBuilderAddInput(op, "inputs: Tin");
  tf.TF_OpDefinitionBuilderAddOutput(op, "outputs: Tout");
  tf.TF_OpDefinitionBuilderSetIsStateful(op, true);
  tf.TF_OpDefinitionBuilderSetShapeInferenceFunction(
      op, [](ShapeContext* context, Status* status) { tf.TF_ShapeInferenceContextSetUnknownShape(context, status); });
  StatusPtr status(tf.TF_NewStatus());
  tf.TF_RegisterOpDefinition(op, status.get());
  if (tf.TF_GetCode(status.get()) != kOk) return;
  KernelBuilder* const kernel = tf.TF_NewAsyncKernelBuilder("HvdCollective", "CPU", create, compute, destroy);
  tf.TF_RegisterKernelBuilder("HvdCollective", kernel, status.get());
  pthread_atfork(nullptr, nullptr, [] { waiters = new Waiters; });  // a child has none of the threads
}

}  // namespace

// Which library and context nodes use from now on. NULL: what it was; no context.
extern "C" __attribute__((visibility("default"))) void hvd_tensorflow_bind(const Library* functions, hvd_context* context) {
  if (functions != nullptr) library = *functions;
  current = context;
}
