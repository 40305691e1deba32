// Waits for copies in their order, in one thread.
#include "state/copy_thread.h"

#include <utility>

#include "base/internal_status.h"
#include "base/thread.h"

namespace hvd::state {

CopyThread::CopyThread(std::shared_ptr<DeviceCopies> copies) : copies_(std::move(copies)) {
  thread_ = start_thread("hvd-copies", [this] { run(); });
}

bool CopyThread::end(Duration patience) {
  if (!thread_.joinable()) return !gave_up_;
  gave_up_ = !idle(now() + patience);
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
  return !gave_up_;
}

void CopyThread::watch(std::vector<DeviceCopies::Ticket> tickets, std::function<void(Status)> arrived,
                       std::function<Status()> work) {
  const std::lock_guard lock(mutex_);
  tickets_ = std::move(tickets);
  arrived_ = std::move(arrived);
  work_ = std::move(work);
  busy_ = true;
  changed_.notify_all();
}

bool CopyThread::idle(Time deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] { return !busy_; });
}

void CopyThread::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return busy_ || ending_; });
    if (!busy_) return;
    const auto tickets = std::move(tickets_);
    const auto arrived = std::exchange(arrived_, {});
    const auto work = std::exchange(work_, {});
    lock.unlock();
    Status first;
    try {
      if (work) first = work();
    } catch (const std::exception& error) { first = internal_status(error); }
    for (const DeviceCopies::Ticket& ticket : tickets) {  // all of them: until then the memory is in use
      Status status;
      try {
        status = copies_->wait(ticket, ending_);
      } catch (const std::exception& error) { status = internal_status(error); }
      if (first.ok()) first = std::move(status);
    }
    arrived(std::move(first));
    lock.lock();
    busy_ = false;
    changed_.notify_all();
    if (ending_) return;
  }
}

}  // namespace hvd::state
