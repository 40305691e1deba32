// Pinned memory, and copies with a callback at their end.
#include "modules/nccl/copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "modules/nccl/failure.h"

namespace hvdnccl {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
constexpr auto kLast = 400ms;  // of close, for copies under way

CuPointer pointer_of(const void* data) { return static_cast<CuPointer>(reinterpret_cast<uintptr_t>(data)); }

}  // namespace

void* Copies::alloc(const std::shared_ptr<Device>& device, size_t size) {
  const Device::Current current(*device);
  Libraries& libraries = device->libraries();
  void* memory = nullptr;
  if (const CuResult result =
          libraries.cuda.cuMemHostAlloc(&memory, std::max<size_t>(size, 1), kCuMemHostAllocPortable);
      result != kCuSuccess) {
    throw vendor_failure(
        HVD_INTERNAL,
        fmt::format("no pinned memory of {} bytes: cuMemHostAlloc gave {}", size, libraries.describe(result)),
        result);
  }
  const std::lock_guard lock(mutex_);
  memory_[memory] = device;
  return memory;
}

void Copies::free(void* memory) {
  std::shared_ptr<Device> device;
  {
    const std::lock_guard lock(mutex_);
    const auto found = memory_.find(memory);
    if (found == memory_.end()) return;
    device = std::move(found->second);
    memory_.erase(found);
  }
  const Device::Current current(*device, std::nothrow);
  device->libraries().check(device->libraries().cuda.cuMemFreeHost(memory), "cuMemFreeHost");
}

void* Copies::start(const std::shared_ptr<Device>& device, CuStream stream, bool to_device, bool aside,
                    const hvd_backend_copy* copies, size_t count) {
  const Device::Current current(*device);
  const CudaFunctions& cuda = device->libraries().cuda;
  device->check_stream(stream);
  for (size_t i = 0; i < count; ++i) {
    if (copies[i].size == 0) continue;
    if (copies[i].source == nullptr || copies[i].target == nullptr) {
      throw Failure(HVD_INVALID, fmt::format("copy {} of {}: source or target is NULL", i, count));
    }
    device->check_memory(to_device ? copies[i].target : copies[i].source,
                         to_device ? "the target" : "the source");
  }
  auto ticket = std::make_shared<Ticket>();
  ticket->device = device;
  device->wait(device->copy_stream(), device->record(stream));
  try {
    for (size_t i = 0; i < count; ++i) {
      const hvd_backend_copy& copy = copies[i];
      if (copy.size == 0) continue;
      const CuResult result = to_device ? cuda.cuMemcpyHtoDAsync_v2(pointer_of(copy.target), copy.source,
                                                                    copy.size, device->copy_stream())
                                        : cuda.cuMemcpyDtoHAsync_v2(copy.target, pointer_of(copy.source),
                                                                    copy.size, device->copy_stream());
      device->libraries().check(result, to_device ? "cuMemcpyHtoDAsync" : "cuMemcpyDtoHAsync");
    }
    ticket->after = device->record(device->copy_stream());
    if (!aside) device->wait(stream, ticket->after);
  } catch (const Failure&) {
    cuda.cuStreamSynchronize(
        device->copy_stream());  // no copy goes on into memory that the caller takes back
    throw;
  }
  void* const handle = ticket.get();
  const std::lock_guard lock(mutex_);
  tickets_[handle] = std::move(ticket);
  return handle;
}

bool Copies::wait(void* handle, int64_t timeout_ns) {
  std::shared_ptr<Ticket> ticket;
  {
    const std::lock_guard lock(mutex_);
    const auto found = tickets_.find(handle);
    if (found == tickets_.end()) throw Failure(HVD_INVALID, "copy_wait: no such ticket");
    ticket = found->second;
  }
  const auto forget = [&] {
    const std::lock_guard lock(mutex_);
    tickets_.erase(handle);
  };
  const auto deadline = Clock::now() + std::chrono::nanoseconds(timeout_ns);
  const Device::Current current(*ticket->device, std::nothrow);
  try {
    // The driver tells of an event only by being asked, or by blocking without an end.
    for (auto nap = 10us; !ticket->device->reached(ticket->after);
         nap = std::min(nap * 2, decltype(nap)(1ms))) {
      if (Clock::now() >= deadline) return false;
      std::this_thread::sleep_for(std::min<Clock::duration>(nap, deadline - Clock::now()));
    }
  } catch (const Failure&) {
    forget();
    ticket->device->libraries().cuda.cuStreamSynchronize(ticket->device->copy_stream());  // as in start
    throw;
  }
  forget();
  return true;
}

bool Copies::close() {
  std::map<void*, std::shared_ptr<Device>> memory;
  std::map<void*, std::shared_ptr<Ticket>> tickets;
  {
    const std::lock_guard lock(mutex_);
    memory.swap(memory_);
    tickets.swap(tickets_);
  }
  const auto deadline = Clock::now() + kLast;
  bool ended = true;
  for (const auto& [handle, ticket] : tickets) {
    const auto& device = ticket->device;
    const Device::Current current(*device, std::nothrow);
    try {
      while (!device->reached(ticket->after) && Clock::now() < deadline) std::this_thread::sleep_for(200us);
      ended = ended && device->reached(ticket->after);
    } catch (const Failure&) {}  // a device that has failed copies nothing
  }
  if (!ended) return false;
  for (const auto& [data, device] : memory) {
    const Device::Current current(*device, std::nothrow);
    device->libraries().cuda.cuMemFreeHost(data);
  }
  return true;
}

}  // namespace hvdnccl
