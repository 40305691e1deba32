// What is used of the CUDA driver API and of NCCL, declared here, so that the module builds where neither is
// installed; tests/backend/nccl_headers_test.cc holds it against the real headers where there are any. The
// names are those that the libraries export: cuda.h renames some (cuCtxPushCurrent is cuCtxPushCurrent_v2),
// and nothing here is of the per-thread variants.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

namespace hvdnccl {

template <class Function>
using Pointer = Function*;

// ---- CUDA driver API ----
using CuResult = int;
using CuDevice = int;
using CuPointer = unsigned long long;  // CUdeviceptr
struct CuContextTag;
struct CuStreamTag;
struct CuEventTag;
using CuContext = CuContextTag*;
using CuStream = CuStreamTag*;
using CuEvent = CuEventTag*;

constexpr CuResult kCuSuccess = 0;
constexpr CuResult kCuInvalidValue = 1;
constexpr CuResult kCuNoDevice = 100;
constexpr CuResult kCuNotReady = 600;
constexpr unsigned kCuStreamNonBlocking = 1;  // not ordered with the legacy default stream
constexpr unsigned kCuEventDisableTiming = 2;
constexpr unsigned kCuMemHostAllocPortable = 1;  // pinned for every context of the process
constexpr int kCuPointerMemoryType = 2;
constexpr int kCuPointerIsManaged = 8;
constexpr int kCuPointerDeviceOrdinal = 9;
constexpr unsigned kCuMemoryTypeDevice = 2;
constexpr int kCuCaptureNone = 0;
constexpr uintptr_t kCuStreamPerThread = 2;  // a handle that means another stream in each thread

// X(name, parameters): all give a CUresult.
#define HVDNCCL_CUDA_FUNCTIONS(X)                                     \
  X(cuInit, (unsigned))                                               \
  X(cuDriverGetVersion, (int*))                                       \
  X(cuDeviceGetCount, (int*))                                         \
  X(cuDeviceGet, (CuDevice*, int))                                    \
  X(cuDevicePrimaryCtxRetain, (CuContext*, CuDevice))                 \
  X(cuDevicePrimaryCtxRelease_v2, (CuDevice))                         \
  X(cuCtxPushCurrent_v2, (CuContext))                                 \
  X(cuCtxPopCurrent_v2, (CuContext*))                                 \
  X(cuCtxGetCurrent, (CuContext*))                                    \
  X(cuCtxGetDevice, (CuDevice*))                                      \
  X(cuStreamCreate, (CuStream*, unsigned))                            \
  X(cuStreamDestroy_v2, (CuStream))                                   \
  X(cuStreamWaitEvent, (CuStream, CuEvent, unsigned))                 \
  X(cuStreamIsCapturing, (CuStream, int*))                            \
  X(cuStreamSynchronize, (CuStream))                                  \
  X(cuStreamQuery, (CuStream))                                        \
  X(cuEventCreate, (CuEvent*, unsigned))                              \
  X(cuEventRecord, (CuEvent, CuStream))                               \
  X(cuEventQuery, (CuEvent))                                          \
  X(cuEventDestroy_v2, (CuEvent))                                     \
  X(cuMemHostAlloc, (void**, size_t, unsigned))                       \
  X(cuMemFreeHost, (void*))                                           \
  X(cuMemAlloc_v2, (CuPointer*, size_t))                              \
  X(cuMemFree_v2, (CuPointer))                                        \
  X(cuMemcpyDtoHAsync_v2, (void*, CuPointer, size_t, CuStream))       \
  X(cuMemcpyHtoDAsync_v2, (CuPointer, const void*, size_t, CuStream)) \
  X(cuMemcpyDtoDAsync_v2, (CuPointer, CuPointer, size_t, CuStream))   \
  X(cuPointerGetAttribute, (void*, int, CuPointer))                   \
  X(cuGetErrorName, (CuResult, const char**))                         \
  X(cuGetErrorString, (CuResult, const char**))

struct CudaFunctions {
#define HVDNCCL_MEMBER(name, parameters) Pointer<CuResult parameters> name = nullptr;
  HVDNCCL_CUDA_FUNCTIONS(HVDNCCL_MEMBER)
#undef HVDNCCL_MEMBER
};

// ---- NCCL ----
using NcclResult = int;
using NcclType = int;
using NcclReduction = int;
struct NcclCommTag;
using NcclComm = NcclCommTag*;
struct NcclUniqueId {
  char internal[128];
};

constexpr NcclResult kNcclSuccess = 0;
constexpr NcclResult kNcclUnhandledCudaError = 1;
constexpr NcclResult kNcclSystemError = 2;
constexpr NcclResult kNcclRemoteError = 6;
constexpr NcclResult kNcclInProgress = 7;
constexpr NcclType kNcclInt8 = 0, kNcclUint8 = 1, kNcclInt32 = 2, kNcclUint32 = 3, kNcclInt64 = 4,
                   kNcclUint64 = 5, kNcclFloat16 = 6, kNcclFloat32 = 7, kNcclFloat64 = 8, kNcclBfloat16 = 9;
constexpr NcclReduction kNcclSum = 0, kNcclProd = 1, kNcclMax = 2, kNcclMin = 3, kNcclAvg = 4;

/// The beginning of ncclConfig_t, as it was when it first came (2.14). A later library reads as far as `size`
/// says and takes defaults for the rest.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

// Oldest version that is taken: non-blocking communicators and their abort are older, and were mended until
// then.
constexpr int kNcclOldest = 21800;

// X(name, parameters): all give a ncclResult_t, but the two that give text.
#define HVDNCCL_NCCL_FUNCTIONS(X)                                                                 \
  X(ncclGetVersion, (int*))                                                                       \
  X(ncclGetUniqueId, (NcclUniqueId*))                                                             \
  X(ncclCommInitRankConfig, (NcclComm*, int, NcclUniqueId, int, NcclConfig*))                     \
  X(ncclCommFinalize, (NcclComm))                                                                 \
  X(ncclCommDestroy, (NcclComm))                                                                  \
  X(ncclCommAbort, (NcclComm))                                                                    \
  X(ncclCommGetAsyncError, (NcclComm, NcclResult*))                                               \
  X(ncclGroupStart, ())                                                                           \
  X(ncclGroupEnd, ())                                                                             \
  X(ncclReduce, (const void*, void*, size_t, NcclType, NcclReduction, int, NcclComm, CuStream))   \
  X(ncclBroadcast, (const void*, void*, size_t, NcclType, int, NcclComm, CuStream))               \
  X(ncclAllReduce, (const void*, void*, size_t, NcclType, NcclReduction, NcclComm, CuStream))     \
  X(ncclReduceScatter, (const void*, void*, size_t, NcclType, NcclReduction, NcclComm, CuStream)) \
  X(ncclAllGather, (const void*, void*, size_t, NcclType, NcclComm, CuStream))                    \
  X(ncclSend, (const void*, size_t, NcclType, int, NcclComm, CuStream))                           \
  X(ncclRecv, (void*, size_t, NcclType, int, NcclComm, CuStream))
#define HVDNCCL_NCCL_TEXTS(X)         \
  X(ncclGetErrorString, (NcclResult)) \
  X(ncclGetLastError, (NcclComm))

struct NcclFunctions {
#define HVDNCCL_MEMBER(name, parameters) Pointer<NcclResult parameters> name = nullptr;
  HVDNCCL_NCCL_FUNCTIONS(HVDNCCL_MEMBER)
#undef HVDNCCL_MEMBER
#define HVDNCCL_MEMBER(name, parameters) Pointer<const char* parameters> name = nullptr;
  HVDNCCL_NCCL_TEXTS(HVDNCCL_MEMBER)
#undef HVDNCCL_MEMBER
};

}  // namespace hvdnccl
