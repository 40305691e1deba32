#include "collective/operation.h"

#include <algorithm>
#include <cstdlib>

#include "base/dtype.h"

namespace hvd::collective {

int64_t Tensor::elements() const {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

size_t Tensor::bytes() const { return static_cast<size_t>(elements()) * dtype_size(dtype); }

void FreeDeleter::operator()(void* p) const { std::free(p); }

Buffer allocate(size_t bytes) { return Buffer(static_cast<uint8_t*>(std::malloc(bytes))); }

bool PendingOperation::wait(Duration timeout) {
  if (done()) return true;
  const Time deadline = now() + std::clamp(timeout, Duration::zero(), kMaxTimeout);
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] { return done(); });
}

std::string PendingOperation::waiting_for() const {
  if (done()) return "";
  if (const auto engine_now = explainer.lock()) return engine_now->waiting_for(name, ticket);
  return "";
}

Buffer PendingOperation::take_buffer(size_t) {
  std::lock_guard lock(mutex_);
  return done() ? std::move(buffer) : nullptr;
}

void PendingOperation::complete(Status status) {
  packs.clear();
  std::vector<uint8_t>().swap(submission.object);
  std::lock_guard lock(mutex_);
  status_ = std::move(status);
  done_.store(true, std::memory_order_release);
  changed_.notify_all();
}

void PendingOperation::note(Status status) {
  std::lock_guard lock(mutex_);
  if (noted_.ok()) noted_ = std::move(status);
}

Status PendingOperation::noted() {
  std::lock_guard lock(mutex_);
  return noted_;
}

}  // namespace hvd::collective
