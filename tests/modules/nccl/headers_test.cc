// The module's own declarations against the real headers: what does not agree does not compile. CMake builds
// it where cuda.h and nccl.h are found (HVD_CUDA_INCLUDE_DIR, HVD_NCCL_INCLUDE_DIR).
#include <cuda.h>
#include <gtest/gtest.h>

// Of the runtime's headers nccl.h uses two names, and these headers need compiler headers that come
// separately.
#define __CUDA_RUNTIME_H__
#define __CUDA_FP16_H__
using cudaStream_t = CUstream;
using cudaEvent_t = CUevent;
#include <nccl.h>

#include <type_traits>

#include "modules/nccl/api.h"

namespace hvdnccl {
namespace {

// What a parameter is to the machine: handles and pointers are addresses, enumerations are their integers.
template <class T, class = void>
struct Machine {
  using type = T;
};
template <class T>
struct Machine<T, std::enable_if_t<std::is_pointer_v<T>>> {
  using type = void*;
};
template <class T>
struct Machine<T, std::enable_if_t<std::is_enum_v<T>>> {
  // 32 bits either way, and every value of it is positive.
  using type = std::conditional_t<sizeof(T) == sizeof(int), int, void>;
};
template <>
struct Machine<ncclUniqueId> {
  using type = NcclUniqueId;
};
template <class T>
using MachineType = typename Machine<std::remove_cv_t<T>>::type;

template <class A, class B>
struct SameCall : std::false_type {};
template <class R, class... P, class S, class... Q>
struct SameCall<R (*)(P...), S (*)(Q...)>
    : std::bool_constant<
          std::is_same_v<void(MachineType<R>, MachineType<P>...), void(MachineType<S>, MachineType<Q>...)>> {
};

// cuda.h renames what has a later version, so that the real name is looked up by its declaration.
#define HVD_SAME(ours, real) \
  static_assert(SameCall<decltype(CudaFunctions::ours), decltype(&real)>::value, #ours)
HVD_SAME(cuInit, ::cuInit);
HVD_SAME(cuDriverGetVersion, ::cuDriverGetVersion);
HVD_SAME(cuDeviceGetCount, ::cuDeviceGetCount);
HVD_SAME(cuDeviceGet, ::cuDeviceGet);
HVD_SAME(cuDevicePrimaryCtxRetain, ::cuDevicePrimaryCtxRetain);
HVD_SAME(cuDevicePrimaryCtxRelease_v2, ::cuDevicePrimaryCtxRelease_v2);
HVD_SAME(cuCtxPushCurrent_v2, ::cuCtxPushCurrent_v2);
HVD_SAME(cuCtxPopCurrent_v2, ::cuCtxPopCurrent_v2);
HVD_SAME(cuCtxGetCurrent, ::cuCtxGetCurrent);
HVD_SAME(cuCtxGetDevice, ::cuCtxGetDevice);
HVD_SAME(cuStreamCreate, ::cuStreamCreate);
HVD_SAME(cuStreamDestroy_v2, ::cuStreamDestroy_v2);
HVD_SAME(cuStreamWaitEvent, ::cuStreamWaitEvent);
HVD_SAME(cuStreamIsCapturing, ::cuStreamIsCapturing);
HVD_SAME(cuStreamSynchronize, ::cuStreamSynchronize);
HVD_SAME(cuStreamQuery, ::cuStreamQuery);
HVD_SAME(cuEventCreate, ::cuEventCreate);
HVD_SAME(cuEventRecord, ::cuEventRecord);
HVD_SAME(cuEventQuery, ::cuEventQuery);
HVD_SAME(cuEventDestroy_v2, ::cuEventDestroy_v2);
HVD_SAME(cuMemHostAlloc, ::cuMemHostAlloc);
HVD_SAME(cuMemFreeHost, ::cuMemFreeHost);
HVD_SAME(cuMemAlloc_v2, ::cuMemAlloc_v2);
HVD_SAME(cuMemFree_v2, ::cuMemFree_v2);
HVD_SAME(cuMemcpyDtoHAsync_v2, ::cuMemcpyDtoHAsync_v2);
HVD_SAME(cuMemcpyHtoDAsync_v2, ::cuMemcpyHtoDAsync_v2);
HVD_SAME(cuMemcpyDtoDAsync_v2, ::cuMemcpyDtoDAsync_v2);
HVD_SAME(cuPointerGetAttribute, ::cuPointerGetAttribute);
HVD_SAME(cuGetErrorName, ::cuGetErrorName);
HVD_SAME(cuGetErrorString, ::cuGetErrorString);
#undef HVD_SAME

#define HVD_SAME(name, ...) \
  static_assert(SameCall<decltype(NcclFunctions::name), decltype(&::name)>::value, #name);
HVDNCCL_NCCL_FUNCTIONS(HVD_SAME)
HVDNCCL_NCCL_TEXTS(HVD_SAME)
#undef HVD_SAME

static_assert(sizeof(CuPointer) == sizeof(CUdeviceptr) && sizeof(CuDevice) == sizeof(CUdevice));
static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId) && alignof(NcclUniqueId) == alignof(ncclUniqueId));

static_assert(kCuSuccess == CUDA_SUCCESS && kCuInvalidValue == CUDA_ERROR_INVALID_VALUE &&
              kCuNoDevice == CUDA_ERROR_NO_DEVICE && kCuNotReady == CUDA_ERROR_NOT_READY);
static_assert(kCuStreamNonBlocking == CU_STREAM_NON_BLOCKING &&
              kCuEventDisableTiming == CU_EVENT_DISABLE_TIMING &&
              kCuMemHostAllocPortable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(kCuPointerMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE &&
              kCuPointerIsManaged == CU_POINTER_ATTRIBUTE_IS_MANAGED &&
              kCuPointerDeviceOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL &&
              kCuMemoryTypeDevice == CU_MEMORYTYPE_DEVICE && kCuCaptureNone == CU_STREAM_CAPTURE_STATUS_NONE);

static_assert(kNcclSuccess == ncclSuccess && kNcclUnhandledCudaError == ncclUnhandledCudaError &&
              kNcclSystemError == ncclSystemError && kNcclRemoteError == ncclRemoteError &&
              kNcclInProgress == ncclInProgress);
static_assert(kNcclInt8 == ncclInt8 && kNcclUint8 == ncclUint8 && kNcclInt32 == ncclInt32 &&
              kNcclUint32 == ncclUint32 && kNcclInt64 == ncclInt64 && kNcclUint64 == ncclUint64 &&
              kNcclFloat16 == ncclFloat16 && kNcclFloat32 == ncclFloat32 && kNcclFloat64 == ncclFloat64 &&
              kNcclBfloat16 == ncclBfloat16);
static_assert(kNcclSum == ncclSum && kNcclProd == ncclProd && kNcclMax == ncclMax && kNcclMin == ncclMin &&
              kNcclAvg == ncclAvg);
static_assert(offsetof(NcclConfig, size) == offsetof(ncclConfig_t, size) &&
              offsetof(NcclConfig, magic) == offsetof(ncclConfig_t, magic) &&
              offsetof(NcclConfig, version) == offsetof(ncclConfig_t, version) &&
              offsetof(NcclConfig, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(sizeof(NcclConfig) == 24 && sizeof(NcclConfig) <= sizeof(ncclConfig_t));

TEST(NcclHeaders, TheConfigurationBeginsAsTheRealOneDoes) {
  const ncclConfig_t real = NCCL_CONFIG_INITIALIZER;
  const NcclConfig ours;
  EXPECT_EQ(ours.magic, real.magic);
  EXPECT_EQ(ours.size, sizeof(ours));
  EXPECT_LE(ours.version, real.version);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(CU_STREAM_PER_THREAD), kCuStreamPerThread);
}

// The number that the module shows is the one that the header makes.
TEST(NcclHeaders, VersionsAreCodedAsHere) { EXPECT_EQ(NCCL_VERSION(2, 18, 0), kNcclOldest); }

}  // namespace
}  // namespace hvdnccl
