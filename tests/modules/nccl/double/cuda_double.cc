// libcuda_double.so: the driver's functions that the library calls.
#include <algorithm>
#include <cstring>

#include "modules/nccl/double/cuda_world.h"

using namespace hvddouble;

#define ENTER() \
  if (const int injected = enter(__func__, kUnknown); injected != 0) return injected
#define NEED(condition, result) \
  if (!(condition)) return result
// What frees does so also when it is to fail.
#define LEAVE(result) return injected != 0 ? injected : (result)

extern "C" {
#pragma GCC visibility push(default)

CuResult cuInit(unsigned) {
  ENTER();
  const std::lock_guard lock(cuda_world().mutex);
  if (cuda_world().devices == 0) return kNoDevice;
  cuda_world().initialized = true;
  return 0;
}
CuResult cuDriverGetVersion(int* version) {
  ENTER();
  *version = 12090;
  return 0;
}
CuResult cuDeviceGetCount(int* count) {
  ENTER();
  const std::lock_guard lock(cuda_world().mutex);
  NEED(cuda_world().initialized, kNotInitialized);
  *count = cuda_world().devices;
  return 0;
}
CuResult cuDeviceGet(int* device, int ordinal) {
  ENTER();
  const std::lock_guard lock(cuda_world().mutex);
  NEED(cuda_world().initialized, kNotInitialized);
  NEED(ordinal >= 0 && ordinal < cuda_world().devices, kInvalidDevice);
  *device = ordinal;
  return 0;
}
CuResult cuDevicePrimaryCtxRetain(CuContext* context, int device) {
  ENTER();
  const std::lock_guard lock(cuda_world().mutex);
  Context& c = cuda_world().contexts.try_emplace(device, Context{device}).first->second;
  ++c.retained;
  *context = reinterpret_cast<CuContext>(&c);
  return 0;
}
CuResult cuDevicePrimaryCtxRelease_v2(int device) {
  const int injected = enter(__func__, kUnknown);
  const std::lock_guard lock(cuda_world().mutex);
  const auto found = cuda_world().contexts.find(device);
  if (found == cuda_world().contexts.end() || --found->second.retained < 0)
    cuda_world().violations.push_back("a context released once too often");
  LEAVE(0);
}
CuResult cuCtxPushCurrent_v2(CuContext context) {
  ENTER();
  NEED(context != nullptr, kInvalidContext);
  context_stack().push_back(context);
  return 0;
}
CuResult cuCtxPopCurrent_v2(CuContext* context) {
  const int injected = enter(__func__, kUnknown);
  if (context_stack().empty()) {
    violation("cuCtxPopCurrent without a current context");
    return kInvalidContext;
  }
  *context = context_stack().back();
  context_stack().pop_back();
  LEAVE(0);
}
CuResult cuCtxGetCurrent(CuContext* context) {
  ENTER();
  *context = context_stack().empty() ? nullptr : context_stack().back();
  return 0;
}
CuResult cuCtxGetDevice(int* device) {
  ENTER();
  NEED(current() != nullptr, kInvalidContext);
  *device = current()->device;
  return 0;
}
CuResult cuStreamCreate(CuStream* stream, unsigned flags) {
  ENTER();
  NEED(current() != nullptr, kInvalidContext);
  if (flags != 1) violation("a stream of the module's that is ordered with the default stream");
  auto made = std::make_unique<Stream>(current()->device);
  *stream = reinterpret_cast<CuStream>(made.get());
  const std::lock_guard lock(cuda_world().mutex);
  cuda_world().streams[*stream] = std::move(made);
  return 0;
}
CuResult cuStreamDestroy_v2(CuStream stream) {
  const int injected = enter(__func__, kUnknown);
  std::unique_ptr<Stream> gone;
  const std::lock_guard lock(cuda_world().mutex);
  const auto found = cuda_world().streams.find(stream);
  if (found == cuda_world().streams.end()) {
    cuda_world().violations.push_back("cuStreamDestroy of what is no stream");
    return kInvalidHandle;
  }
  gone = std::move(found->second);
  cuda_world().streams.erase(found);
  LEAVE(0);
}
CuResult cuStreamWaitEvent(CuStream stream, CuEvent event, unsigned) {
  ENTER();
  CudaWorld& w = cuda_world();
  const std::lock_guard lock(w.mutex);
  Stream* const s = find_stream(stream);
  const auto found = w.events.find(event);
  NEED(s != nullptr && found != w.events.end(), kInvalidHandle);
  if (auto mark = found->second->mark) s->add([mark] { mark->wait(); });
  return 0;
}
CuResult cuStreamIsCapturing(CuStream stream, int* status) {
  ENTER();
  const std::lock_guard lock(cuda_world().mutex);
  Stream* const s = find_stream(stream);
  NEED(s != nullptr, kInvalidHandle);
  *status = s->capturing ? 1 : 0;
  return 0;
}
CuResult cuStreamSynchronize(CuStream stream) {
  ENTER();
  NEED(knows_stream(stream), kInvalidHandle);
  synchronize(stream);
  return 0;
}
CuResult cuStreamQuery(CuStream stream) {
  ENTER();
  NEED(knows_stream(stream), kInvalidHandle);
  return 0;
}
CuResult cuEventCreate(CuEvent* event, unsigned) {
  ENTER();
  NEED(current() != nullptr, kInvalidContext);
  auto made = std::make_unique<Event>(Event{current()->device, nullptr});
  *event = reinterpret_cast<CuEvent>(made.get());
  const std::lock_guard lock(cuda_world().mutex);
  cuda_world().events[*event] = std::move(made);
  return 0;
}
CuResult cuEventRecord(CuEvent event, CuStream stream) {
  ENTER();
  CudaWorld& w = cuda_world();
  const std::lock_guard lock(w.mutex);
  Stream* const s = find_stream(stream);
  const auto found = w.events.find(event);
  NEED(s != nullptr && found != w.events.end(), kInvalidHandle);
  NEED(found->second->device == s->device, kInvalidHandle);
  auto mark = std::make_shared<Mark>();
  found->second->mark = mark;
  s->add([mark] { mark->reach(); });
  return 0;
}
CuResult cuEventQuery(CuEvent event) {
  ENTER();
  const std::lock_guard lock(cuda_world().mutex);
  const auto found = cuda_world().events.find(event);
  NEED(found != cuda_world().events.end(), kInvalidHandle);
  return found->second->mark == nullptr || found->second->mark->is_reached() ? 0 : kNotReady;
}
CuResult cuEventDestroy_v2(CuEvent event) {
  const int injected = enter(__func__, kUnknown);
  const std::lock_guard lock(cuda_world().mutex);
  if (cuda_world().events.erase(event) == 0)
    cuda_world().violations.push_back("cuEventDestroy of what is no event");
  LEAVE(0);
}
CuResult cuMemHostAlloc(void** memory, size_t size, unsigned flags) {
  ENTER();
  NEED(current() != nullptr, kInvalidContext);
  if (flags != 1) violation("pinned memory that is not portable");
  *memory = add_memory(size, -1, true);
  return 0;
}
CuResult cuMemFreeHost(void* memory) {
  const int injected = enter(__func__, kUnknown);
  const CuResult result = drop_memory(reinterpret_cast<uintptr_t>(memory), "cuMemFreeHost");
  LEAVE(result);
}
CuResult cuMemAlloc_v2(CuPointer* memory, size_t size) {
  ENTER();
  NEED(current() != nullptr, kInvalidContext);
  *memory = reinterpret_cast<uintptr_t>(add_memory(size, current()->device, true));
  return 0;
}
CuResult cuMemFree_v2(CuPointer memory) {
  const int injected = enter(__func__, kUnknown);
  const CuResult result = drop_memory(static_cast<uintptr_t>(memory), "cuMemFree");
  LEAVE(result);
}
CuResult cuMemcpyDtoHAsync_v2(void* to, CuPointer from, size_t size, CuStream stream) {
  ENTER();
  const auto* source = reinterpret_cast<const void*>(static_cast<uintptr_t>(from));
  return copy_async(to, source, size, stream, source);
}
CuResult cuMemcpyHtoDAsync_v2(CuPointer to, const void* from, size_t size, CuStream stream) {
  ENTER();
  auto* const target = reinterpret_cast<void*>(static_cast<uintptr_t>(to));
  return copy_async(target, from, size, stream, target);
}
CuResult cuMemcpyDtoDAsync_v2(CuPointer to, CuPointer from, size_t size, CuStream stream) {
  ENTER();
  auto* const target = reinterpret_cast<void*>(static_cast<uintptr_t>(to));
  return copy_async(target, reinterpret_cast<const void*>(static_cast<uintptr_t>(from)), size, stream,
                    target);
}
CuResult cuPointerGetAttribute(void* data, int attribute, CuPointer pointer) {
  ENTER();
  const std::lock_guard lock(cuda_world().mutex);
  const auto* found = find_memory(static_cast<uintptr_t>(pointer));
  NEED(found != nullptr, kInvalidValue);
  int value = 0;
  if (attribute == 2) value = found->second.device < 0 ? 1 : 2;
  if (attribute == 9) value = std::max(found->second.device, 0);
  std::memcpy(data, &value, sizeof(value));
  return 0;
}
CuResult cuGetErrorName(CuResult error, const char** text) {
  switch (error) {
    case 1: *text = "CUDA_ERROR_INVALID_VALUE"; return 0;
    case 100: *text = "CUDA_ERROR_NO_DEVICE"; return 0;
    case 101: *text = "CUDA_ERROR_INVALID_DEVICE"; return 0;
    case 400: *text = "CUDA_ERROR_INVALID_HANDLE"; return 0;
    case 999: *text = "CUDA_ERROR_UNKNOWN"; return 0;
    default: return kInvalidValue;
  }
}
CuResult cuGetErrorString(CuResult, const char** text) {
  *text = "said by the double";
  return 0;
}

#pragma GCC visibility pop
}
