// Streams and events of a device, by the driver's API.
#include "modules/nccl/device.h"

#include <fmt/format.h>

#include "modules/nccl/failure.h"

namespace hvdnccl {

Device::Device(std::shared_ptr<Libraries> libraries, int ordinal)
    : libraries_(std::move(libraries)), ordinal_(ordinal) {
  const CudaFunctions& cuda = libraries_->cuda;
  if (const CuResult result = cuda.cuDeviceGet(&device_, ordinal); result != kCuSuccess) {
    throw Failure(HVD_INVALID,
                  fmt::format("CUDA device {}: cuDeviceGet gave {}", ordinal, libraries_->describe(result)),
                  result);
  }
  libraries_->check(cuda.cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
  const auto undo = [&] {
    if (work_stream_ != nullptr) cuda.cuStreamDestroy_v2(work_stream_);
    cuda.cuDevicePrimaryCtxRelease_v2(device_);
  };
  try {
    const Current current(*this);
    // Not ordered with the default stream but by events: else everything that the program does there would
    // wait.
    libraries_->check(cuda.cuStreamCreate(&work_stream_, kCuStreamNonBlocking), "cuStreamCreate");
    libraries_->check(cuda.cuStreamCreate(&copy_stream_, kCuStreamNonBlocking), "cuStreamCreate");
  } catch (...) {
    undo();
    throw;
  }
}

Device::~Device() {
  const CudaFunctions& cuda = libraries_->cuda;
  {
    const Current current(*this, std::nothrow);
    for (CuEvent event : events_) cuda.cuEventDestroy_v2(event);
    cuda.cuStreamDestroy_v2(work_stream_);
    cuda.cuStreamDestroy_v2(copy_stream_);
  }
  cuda.cuDevicePrimaryCtxRelease_v2(device_);
}

Device::Current::Current(const Device& device) : device_(device) {
  device.libraries_->check(device.libraries_->cuda.cuCtxPushCurrent_v2(device.context_), "cuCtxPushCurrent");
}

Device::Current::Current(const Device& device, std::nothrow_t)
    : device_(device), pushed_(device.libraries_->cuda.cuCtxPushCurrent_v2(device.context_) == kCuSuccess) {}

Device::Current::~Current() {
  if (!pushed_) return;
  CuContext popped = nullptr;
  device_.libraries_->cuda.cuCtxPopCurrent_v2(&popped);
}

Device::Event Device::record(CuStream stream) {
  CuEvent event = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!events_.empty()) {
      event = events_.back();
      events_.pop_back();
    }
  }
  const CudaFunctions& cuda = libraries_->cuda;
  if (event == nullptr) libraries_->check(cuda.cuEventCreate(&event, kCuEventDisableTiming), "cuEventCreate");
  Event owned(shared_from_this(), event);
  libraries_->check(cuda.cuEventRecord(event, stream), "cuEventRecord");
  return owned;
}

void Device::wait(CuStream stream, const Event& event) {
  libraries_->check(libraries_->cuda.cuStreamWaitEvent(stream, event.get(), 0), "cuStreamWaitEvent");
}

bool Device::reached(const Event& event) {
  const CuResult result = libraries_->cuda.cuEventQuery(event.get());
  if (result == kCuNotReady) return false;
  libraries_->check(result, "cuEventQuery");
  return true;
}

void Device::check_stream(CuStream stream) {
  if (reinterpret_cast<uintptr_t>(stream) == kCuStreamPerThread) {
    throw Failure(
        HVD_INVALID,
        "the stream is CU_STREAM_PER_THREAD, which is another one in each thread: expected a stream of the "
        "program's own, or NULL for the default stream");
  }
  int capturing = kCuCaptureNone;
  libraries_->check(libraries_->cuda.cuStreamIsCapturing(stream, &capturing), "cuStreamIsCapturing");
  if (capturing != kCuCaptureNone) {
    throw Failure(HVD_INVALID,
                  "the stream is being captured into a CUDA graph, which an operation can't be part of");
  }
}

void Device::check_memory(const void* data, const char* what) {
  const CudaFunctions& cuda = libraries_->cuda;
  const auto pointer = static_cast<CuPointer>(reinterpret_cast<uintptr_t>(data));
  unsigned type = 0;
  if (const CuResult result = cuda.cuPointerGetAttribute(&type, kCuPointerMemoryType, pointer);
      result != kCuSuccess) {
    throw vendor_failure(result == kCuInvalidValue ? HVD_INVALID : HVD_INTERNAL,
                         fmt::format("{} at {} is no memory of a CUDA device: cuPointerGetAttribute gave {}",
                                     what, data, libraries_->describe(result)),
                         result);
  }
  int ordinal = -1;
  libraries_->check(cuda.cuPointerGetAttribute(&ordinal, kCuPointerDeviceOrdinal, pointer),
                    "cuPointerGetAttribute");
  if (type == kCuMemoryTypeDevice && ordinal == ordinal_) return;
  int managed = 0;
  if (cuda.cuPointerGetAttribute(&managed, kCuPointerIsManaged, pointer) == kCuSuccess && managed != 0)
    return;
  throw Failure(HVD_INVALID,
                fmt::format("{} at {} is {}: expected memory of device {}", what, data,
                            type == kCuMemoryTypeDevice ? fmt::format("memory of device {}", ordinal)
                                                        : std::string("host memory"),
                            ordinal_));
}

void Device::give(CuEvent event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(event);
}

}  // namespace hvdnccl
