// Completion, waiting and results of an operation.
#include "collective/operation.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/internal_status.h"
#include "collective/engine.h"
#include "numeric/dtype.h"

namespace hvd::collective {

int64_t Tensor::elements() const {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

size_t Tensor::bytes() const { return static_cast<size_t>(elements()) * dtype_size(dtype); }

void FreeDeleter::operator()(void* p) const { std::free(p); }

Buffer allocate(size_t bytes) {
  return Buffer(static_cast<uint8_t*>(std::malloc(std::max<size_t>(bytes, 1))));
}

Operation::~Operation() {
  if (fd_ >= 0) ::close(fd_);
}

bool Operation::wait(Duration timeout) {
  if (done()) return true;
  const Time deadline = now() + std::clamp(timeout, Duration::zero(), kMaxTimeout);
  if (timeout > Duration::zero()) {
    if (const auto engine_now = engine.lock()) engine_now->progress(done_, deadline);
    if (done()) return true;
  }
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] { return done(); });
}

int Operation::completion_fd() {
  const std::lock_guard lock(mutex_);
  if (fd_ < 0) {
    fd_ = ::eventfd(done() ? 1 : 0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd_ < 0) {
      Status status(HVD_UNAVAILABLE, fmt::format("eventfd: {}", std::strerror(errno)));
      status.vendor_code = errno;
      throw Error(status);
    }
  }
  return fd_;
}

// Nobody reads it, so its counter can't be full.
void Operation::signal_fd() const {
  const uint64_t one = 1;
  if (fd_ >= 0) static_cast<void>(!::write(fd_, &one, sizeof(one)));
}

std::string Operation::waiting_for() const {
  if (done()) return "";
  const auto engine_now = engine.lock();
  return engine_now != nullptr && call != nullptr ? engine_now->waiting_for(ticket) : "";
}

const Tensor& Operation::output(size_t index) const {
  return index < results.size() ? results[index] : none_;
}

Buffer Operation::take_buffer(size_t index) {
  std::lock_guard lock(mutex_);
  return done() && index < buffers.size() ? std::move(buffers[index].data) : nullptr;
}

void Operation::record(const Status& status) const {
  const Submission& s = submission;
  const auto& tensors = s.inputs.empty() ? s.outputs : s.inputs;
  size_t bytes = s.object.size();
  for (const Tensor& t : tensors) bytes += t.bytes();
  if (row_of(s.kind).object && bytes == 0) bytes = buffer_size(0);
  const TimelineField of_bytes{"bytes", static_cast<int64_t>(bytes)};
  const TimelineField dtype{"dtype",
                            dtype_name(tensors.empty() ? hvd_dtype(HVD_DTYPE_UINT8) : tensors[0].dtype)};
  const TimelineField fused{"fused", static_cast<int64_t>(fused_)};
  const auto add = [&](TimelineFields fields) {
    timeline_->operation(s.name, kind_name(s.kind), times_, now(), fields);
  };
  if (!status.ok()) {
    add({of_bytes, dtype, fused, {"status", status_name(status.code)}});
  } else if (bytes > 0) {
    add({of_bytes, dtype, fused});
  } else {
    add({});
  }
}

void Operation::complete_without_memory() noexcept {
  if (done()) return;
  timeline_.reset();
  buffers.clear();
  complete(internal_status(std::bad_alloc()));
}

void Operation::complete(Status status) {
  try {
    if (timeline_ != nullptr) record(status);
  } catch (const std::exception&) {}  // no memory for the record
  std::vector<uint8_t>().swap(submission.object);
  submission.scratch.reset();
  std::lock_guard lock(mutex_);
  status_ = std::move(status);
  done_.store(true, std::memory_order_release);
  changed_.notify_all();
  signal_fd();
}

}  // namespace hvd::collective
