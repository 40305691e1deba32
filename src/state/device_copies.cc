// Asks the instance that has the device for copies, while there is one.
#include "state/device_copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "collective/messages.h"

namespace hvd::state {

namespace {
// A wait looks this often whether it is to end.
constexpr Duration kSlice = std::chrono::milliseconds(50);

Status closed() { return {HVD_CLOSED, "the context is closed: device memory is out of reach"}; }
}  // namespace

void DeviceCopies::open(backend::Instance& instance) {
  const std::unique_lock lock(mutex_);
  instance_ = &instance;
}

void DeviceCopies::close() {
  stop();
  const std::unique_lock lock(mutex_);
  instance_ = nullptr;
}

void DeviceCopies::lost() noexcept {
  uint64_t epoch = epoch_;
  while (!is_lost(epoch) && !epoch_.compare_exchange_weak(epoch, epoch + 1)) {}
}

void DeviceCopies::renewed() noexcept {
  uint64_t epoch = epoch_;
  while (is_lost(epoch) && !epoch_.compare_exchange_weak(epoch, epoch + 1)) {}
}

// The flag comes first: somebody who waits in slices must not keep close() out for ever.
DeviceCopies::Use::Use(DeviceCopies& copies) {
  if (copies.stopped_) return;
  lock_ = std::shared_lock(copies.mutex_);
  instance_ = copies.instance_;
}

Status DeviceCopies::serves(hvd_memory memory) {
  const Use use(*this);
  if (!use) return closed();
  if ((use.instance_->description().memories >> memory & 1) != 0) return {};
  return {HVD_UNSUPPORTED, fmt::format("backend {} does not take {}", use.instance_->description().name,
                                       collective::memory_name(memory))};
}

Status DeviceCopies::allocate(hvd_memory memory, size_t size, void** ret_memory) {
  const Use use(*this);
  return use ? use.instance_->host_alloc(memory, size, ret_memory) : closed();
}

void DeviceCopies::free(hvd_memory memory, void* data) noexcept {
  const Use use(*this);
  if (use) use.instance_->host_free(memory, data);
}

Status DeviceCopies::start(hvd_memory memory, int32_t device, void* stream, Way way,
                           std::span<const hvd_backend_copy> copies, Ticket* ret_ticket) {
  const Use use(*this);
  if (!use) return closed();
  ret_ticket->memory = memory;
  if (way == Way::kToHostAside)
    return use.instance_->copy_aside(memory, device, stream, copies, &ret_ticket->ticket);
  return use.instance_->copy(memory, device, stream, way == Way::kToDevice, copies, &ret_ticket->ticket);
}

Status DeviceCopies::wait(const Ticket& ticket, const std::atomic<bool>& give_up) {
  while (true) {
    const Use use(*this);
    if (!use || give_up) return closed();
    Status status = use.instance_->copy_wait(ticket.memory, ticket.ticket, kSlice);
    if (status.code != HVD_TIMEOUT) return status;
  }
}

}  // namespace hvd::state
