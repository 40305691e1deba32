// Runs operations in the thread that waits, or in the executor's own.
#include "local/executor.h"

#include "base/thread.h"
#include "local/generation.h"

namespace hvd::local {
namespace {
constexpr size_t kSpare = 64;
}

Executor::Executor(Run run) : run_(std::move(run)) {
  spare_.reserve(kSpare);  // what is done is put there without memory
  thread_ = start_thread("hvd-local-exec", [this] { loop(); });
}

Executor::~Executor() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::unique_ptr<Job> Executor::blank() {
  const std::lock_guard lock(mutex_);
  if (spare_.empty()) return std::make_unique<Job>();
  std::unique_ptr<Job> job = std::move(spare_.back());
  spare_.pop_back();
  return job;
}

void Executor::submit(std::unique_ptr<Job> job, bool later) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    waiting_ = true;
    wake = !later && asleep_ && !executing_;
  }
  if (wake) changed_.notify_one();
}

void Executor::execute(std::unique_lock<std::mutex>& lock, Time deadline) {
  executing_ = true;
  std::unique_ptr<Job> job = std::move(left_);
  if (job == nullptr) {
    job = std::move(jobs_.front());
    jobs_.pop_front();
  }
  waiting_ = !jobs_.empty();
  lock.unlock();
  const bool finished = run_(*job, deadline);
  if (finished) job->generation.reset();
  lock.lock();
  executing_ = false;
  if (ending_ && asleep_) changed_.notify_one();
  if (!finished) {
    left_ = std::move(job);
    waiting_ = true;
  } else if (spare_.size() < kSpare) {
    spare_.push_back(std::move(job));
  }
}

bool Executor::lend(Time deadline) {
  if (!waiting_.load()) return false;
  std::unique_lock lock(mutex_);
  if (executing_ || !any()) return false;
  execute(lock, deadline);
  return true;
}

void Executor::nudge() {
  if (!waiting_.load()) return;
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    wake = asleep_ && !executing_ && any();
  }
  if (wake) changed_.notify_one();
}

void Executor::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!executing_ && any()) {
      execute(lock, Time::max());
      continue;
    }
    if (ending_ && !any() && !executing_) return;
    asleep_ = true;
    changed_.wait(lock);
    asleep_ = false;
  }
}

}  // namespace hvd::local
