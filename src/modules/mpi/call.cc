// Runs one blocking MPI call in a thread that may be left behind.
#include "modules/mpi/call.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "modules/kit/net.h"

namespace hvdmpi {
namespace {
std::atomic<int> stuck_calls{0};
}  // namespace

void give_way(int thread) {
  // A stuck call polls for ever.
  if (thread > 0) setpriority(PRIO_PROCESS, static_cast<id_t>(thread), 19);
}

std::shared_ptr<Call> Call::start(std::function<void()> body, std::function<void(bool)> ended) {
  auto call = std::make_shared<Call>();
  const hvdkit::BlockSignals block;
  std::thread([call, body = std::move(body), ended = std::move(ended)] { call->run(body, ended); }).detach();
  return call;
}

void Call::run(const std::function<void()>& body, const std::function<void(bool)>& ended) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    thread_ = static_cast<int>(syscall(SYS_gettid));
    if (abandoned_) give_way(thread_);
  }
  std::exception_ptr error;
  try {
    body();
  } catch (...) { error = std::current_exception(); }
  std::lock_guard<std::mutex> lock(mutex_);
  ended_ = true;
  error_ = error;
  if (abandoned_) {
    --stuck_calls;
  } else if (ended) {
    ended(error != nullptr);
  }
  changed_.notify_all();
}

bool Call::wait(Clock::time_point deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_until(lock, deadline, [this] { return ended_ || abandoned_; });
  return ended_;
}

bool Call::succeeded() {
  std::lock_guard<std::mutex> lock(mutex_);
  return ended_ && error_ == nullptr;
}

void Call::rethrow() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
}

void Call::abandon() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (ended_ || abandoned_) return;
  abandoned_ = true;
  ++stuck_calls;
  give_way(thread_);
  changed_.notify_all();
}

int Call::stuck() { return stuck_calls.load(); }

}  // namespace hvdmpi
