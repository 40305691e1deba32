// Doubles of libcuda.so.1 and libnccl.so.2 for the tests of module nccl: no device is needed, what looks like
// device memory is host memory, streams are threads, and the collectives really move and add up data among
// the ranks of this process. They note the calls, and what a program of the real ones must not do; and they
// can fail at any call. libcuda_double.so has the functions here; the tests link it and give its path to the
// module.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "modules/nccl/api.h"

namespace hvddouble {

#define HVD_DOUBLE __attribute__((visibility("default")))

using hvdnccl::CuContext;
using hvdnccl::CuEvent;
using hvdnccl::CuPointer;
using hvdnccl::CuResult;
using hvdnccl::CuStream;

// ---- For tests ----

/// Forgets what was noted, and what was told to fail.
HVD_DOUBLE void reset();
/// The calls since reset, in their order, one line each: "cuEventRecord", "ncclAllReduce".
HVD_DOUBLE std::vector<std::string> calls();
HVD_DOUBLE int64_t call_count();
/// The call with this number (the first after reset is 0) gives its library's error instead. What frees
/// something does so all the same.
HVD_DOUBLE void fail_call(int64_t number);
/// Every call of this function fails with `result`; "": none.
HVD_DOUBLE void fail_function(const std::string& name, int result);
/// What was done that must not be done.
HVD_DOUBLE std::vector<std::string> violations();
HVD_DOUBLE void set_device_count(int count);
/// "" if nothing is alive: contexts, streams, events, pinned memory, device memory, communicators.
HVD_DOUBLE std::string alive();
/// Memory of a device, not counted by alive.
HVD_DOUBLE void* device_memory(size_t size, int device);
HVD_DOUBLE void free_device_memory(void* memory);
/// A stream of the program's, and work for one.
HVD_DOUBLE CuStream make_stream(int device);
HVD_DOUBLE void drop_stream(CuStream stream);
HVD_DOUBLE void enqueue(CuStream stream, std::function<void()> work);
HVD_DOUBLE void synchronize(CuStream stream);
/// cuStreamIsCapturing says yes for it.
HVD_DOUBLE void set_capturing(CuStream stream, bool capturing);
/// The current context of this thread, and makes one current as a program does; the device must be in use.
HVD_DOUBLE CuContext current_context();
HVD_DOUBLE void set_current_context(CuContext context);
HVD_DOUBLE CuContext context_of(int device);  // the primary one, without retaining it
HVD_DOUBLE int retained(int device);          // how often

// ---- For libnccl_double.so ----

/// Notes a call; 0, or the error that it is to give (`error` if its number was told to fail).
HVD_DOUBLE int enter(const char* name, int error);
HVD_DOUBLE void violation(const std::string& text);
HVD_DOUBLE void count_communicators(int change);
HVD_DOUBLE int device_of(CuContext context);          // -1: none
HVD_DOUBLE int device_of_memory(const void* memory);  // -1: none of a device's
HVD_DOUBLE bool knows_stream(CuStream stream);

}  // namespace hvddouble
