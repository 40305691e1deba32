// The thread that makes communicators and submits to NCCL.
#include "modules/nccl/generation.h"

#include <signal.h>

#include <algorithm>
#include <utility>

namespace hvdnccl {

namespace {

using namespace std::chrono_literals;
constexpr auto kSettle = 60ms;  // what abort gives an operation that is on its way to the device
constexpr auto kLaunch = 300s;  // the last resort: the first operation may have to connect the ranks' devices
constexpr auto kStuck = 30s;    // for the end of earlier generations
constexpr auto kDrain = 5s;     // for what is left on the device after NCCL's abort

}  // namespace

Generation::Generation(std::shared_ptr<Host> host, Place place,
                       std::vector<std::shared_ptr<Generation>> older)
    : host_(std::move(host)), place_(std::move(place)), older_(std::move(older)) {}

Generation::~Generation() {
  if (thread_.joinable()) thread_.detach();  // release() was not called: open's own failure
}

int Generation::device() const {
  const std::lock_guard lock(mutex_);
  return device_ != nullptr ? device_->ordinal() : -1;
}

Failure Generation::lost() const {
  return {HVD_PEER_LOST, fmt::format("generation {} was given up", place_.generation)};
}

void Generation::submit(Task task, const std::shared_ptr<Device>& device) {
  const std::lock_guard lock(mutex_);
  if (aborted_ || leaving_) throw lost();
  if (broken_ != nullptr) throw *broken_;
  if (device_ != nullptr && device_->ordinal() != device->ordinal()) {
    throw Failure(
        HVD_INVALID,
        fmt::format(
            "op {} is on device {}, earlier ones of generation {} on device {}: expected one device a "
            "worker",
            task.op.sequence, device->ordinal(), place_.generation, device_->ordinal()));
  }
  if (device_ == nullptr) device_ = device;  // the thread reads it from here on
  if (!started_) {
    // Signals are the program's own: this thread, and those that NCCL starts from it, take none.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread_ = std::thread([self = shared_from_this()] { self->run(); });
    } catch (...) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    started_ = true;
  }
  queue_.push_back(std::make_shared<Task>(std::move(task)));
  changed_.notify_all();
}

void Generation::complete(const Task& task, const Failure* failure) {
  if (failure == nullptr) {
    task.op.done(task.op.done_context, HVD_OK, nullptr);
  } else {
    hvd_error error = HVD_ERROR_INIT;
    hvdkit::write_error(kName, &error, *failure, place_.generation);
    task.op.done(task.op.done_context, failure->status, &error);
  }
}

// By the thread, unless abort has completed it.
void Generation::settle(const TaskPtr& task, const Failure* failure) {
  {
    const std::lock_guard lock(mutex_);
    if (current_ != task || task == nullptr) return;
    current_ = nullptr;
    launching_ = false;
  }
  changed_.notify_all();
  const Failure given_up = lost();
  complete(*task, aborted_ ? &given_up : failure);
}

void Generation::abort() {
  std::deque<TaskPtr> given_up;
  {
    std::unique_lock lock(mutex_);
    aborted_ = true;  // before anything of NCCL is told: after its abort a stream looks as if all was well
    given_up.swap(queue_);
    changed_.notify_all();
    // The device may be at work on this one: its memory is the caller's again when the communicator is gone.
    const bool own = std::this_thread::get_id() == thread_.get_id();  // from within a call of the host's
    if (launching_ && !own) changed_.wait_for(lock, kSettle, [this] { return current_ == nullptr; });
    if (current_ != nullptr && !(launching_ && own)) {
      given_up.push_front(current_);
      current_ = nullptr;
      launching_ = false;
    }
  }
  const Failure failure = lost();
  for (const TaskPtr& task : given_up) complete(*task, &failure);
}

void Generation::leave() {
  leaving_ = true;
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

bool Generation::wait_finished(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [this] { return finished_ || !started_; });
}

void Generation::release() {
  std::unique_lock lock(mutex_);
  if (!thread_.joinable()) return;
  const bool finished = finished_;
  lock.unlock();
  if (finished) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void Generation::pause(Clock::duration most) {
  std::unique_lock lock(mutex_);
  if (aborted_) return;
  changed_.wait_for(lock, most, [this] { return aborted_.load(); });
}

// ---- The thread ----

void Generation::run() {
  std::unique_ptr<Device::Current> current;
  try {
    current = std::make_unique<Device::Current>(*device_);
    await_older();
    work();
  } catch (const Aborted&) {
  } catch (const Failure& failure) { fail(failure); } catch (const std::exception& e) {
    fail(Failure(HVD_INTERNAL, e.what()));
  }
  older_.clear();
  try {
    take_apart();
  } catch (const std::exception& e) {
    host_->log(HVD_LOG_WARNING, "the end of generation {}: {}", place_.generation, e.what());
  }
  running_.clear();
  current.reset();
  const std::lock_guard lock(mutex_);
  device_.reset();
  finished_ = true;
  changed_.notify_all();
}

void Generation::await_older() {
  const auto deadline = Clock::now() + kStuck;
  for (const auto& older : older_) {
    while (!older->wait_finished(Clock::now() + 20ms)) {
      if (aborted_) throw Aborted{};
      if (Clock::now() < deadline) continue;
      throw Failure(
          HVD_INTERNAL,
          fmt::format("NCCL has not given back the communicators of generation {} for {} seconds: this "
                      "process must be started again",
                      older->place().generation, std::chrono::seconds(kStuck).count()));
    }
  }
  older_.clear();
}

void Generation::work() {
  for (;;) {
    TaskPtr task;
    {
      std::unique_lock lock(mutex_);
      const auto wake = [this] { return aborted_ || leaving_ || !queue_.empty(); };
      if (running_.empty()) {
        changed_.wait(lock, wake);
        idle_looks_ = 0;
      } else {
        // Something is on the device: look after it, more and more seldom.
        changed_.wait_for(lock, std::min<Clock::duration>(100us * (1 << std::min(idle_looks_, 8)), 20ms),
                          wake);
      }
      if (aborted_) throw Aborted{};
      if (!queue_.empty()) {
        task = std::move(queue_.front());
        queue_.pop_front();
        current_ = task;
        launching_ = false;
      } else if (leaving_) {
        return;
      }
    }
    if (task != nullptr) {
      idle_looks_ = 0;
      issue(task);
    } else {
      ++idle_looks_;
    }
    watch();
  }
}

void Generation::issue(const TaskPtr& task) {
  Device& device = *device_;
  CuStream stream = device.work_stream();
  NcclComm communicator = nullptr;
  if (needs_communicator(*task)) communicator = this->communicator(task->ranks);
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) throw Aborted{};
    launching_ = true;
  }
  device.wait(stream, task->before);
  if (communicator != nullptr || task->ranks.size() < 2) {
    const NcclResult result = launch(device, *task, communicator, scratch_, stream);
    if (result == kNcclInProgress) await(communicator, "an operation", Clock::now() + kLaunch);
  }
  Device::Event after = device.record(stream);
  device.wait(static_cast<CuStream>(task->op.stream), after);
  running_.push_back({std::move(after), communicator, task->op.sequence});
  settle(task, nullptr);
}

// Until it is no longer in progress. Throws Failure, or Aborted as soon as the flag is up.
void Generation::await(NcclComm communicator, const char* what, Clock::time_point deadline) {
  Libraries& libraries = device_->libraries();
  for (int look = 0;; ++look) {
    NcclResult state = kNcclSuccess;
    const NcclResult result = libraries.nccl.ncclCommGetAsyncError(communicator, &state);
    if (result != kNcclSuccess) throw_nccl(libraries, result, "ncclCommGetAsyncError");
    if (state == kNcclSuccess) return;
    if (state != kNcclInProgress) throw_nccl(libraries, state, what);
    if (aborted_) throw Aborted{};
    if (Clock::now() >= deadline) {
      throw Failure(HVD_TIMEOUT, fmt::format("{} of NCCL in generation {}: not all ranks came in time", what,
                                             place_.generation));
    }
    if (look < 64) {
      std::this_thread::yield();
    } else {
      pause(std::min<Clock::duration>(20us * (1 << std::min((look - 64) / 8, 6)), 1ms));
    }
  }
}

// Operations on the device: forgets those that are done and reports those that have failed.
void Generation::watch() {
  while (!running_.empty() && device_->reached(running_.front().after)) running_.pop_front();
  if (running_.empty()) return;
  Libraries& libraries = device_->libraries();
  const Running& oldest = running_.front();
  if (oldest.communicator == nullptr) return;
  NcclResult state = kNcclSuccess;
  const NcclResult result = libraries.nccl.ncclCommGetAsyncError(oldest.communicator, &state);
  if (result != kNcclSuccess) throw_nccl(libraries, result, "ncclCommGetAsyncError");
  if (state != kNcclSuccess && state != kNcclInProgress) {
    throw_nccl(libraries, state, fmt::format("op {} on the device", oldest.sequence).c_str());
  }
}

void Generation::order_behind(const Task& task) {
  try {
    const Device::Event after = device_->record(device_->work_stream());
    device_->wait(static_cast<CuStream>(task.op.stream), after);
  } catch (const Failure&) {}  // a device that takes nothing any more runs nothing any more
}

// The generation can't go on. Told at once, so that nobody waits for this rank; then waits to be given up.
void Generation::fail(const Failure& failure) {
  std::deque<TaskPtr> tasks;
  TaskPtr current;
  {
    const std::lock_guard lock(mutex_);
    if (!aborted_) broken_ = std::make_unique<Failure>(failure);
    tasks.swap(queue_);
    current = current_;
  }
  host_->failure(place_.generation, failure.what());
  abort_communicators();
  if (current != nullptr) {
    order_behind(*current);
    settle(current, &failure);
  }
  for (const TaskPtr& task : tasks) complete(*task, &failure);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return aborted_ || leaving_; });
}

void Generation::take_apart() {
  if (!aborted_) finish_in_peace();
  abort_communicators();
  TaskPtr current;
  {
    const std::lock_guard lock(mutex_);
    current = current_;
  }
  if (current != nullptr) {
    order_behind(*current);
    const Failure failure = lost();
    settle(current, &failure);
  }
  // Without communicators nothing of theirs goes on for long.
  const auto deadline = Clock::now() + kDrain;
  while (!running_.empty() && Clock::now() < deadline) {
    if (device_->reached(running_.front().after)) {
      running_.pop_front();
    } else {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, 1ms, [] { return false; });
    }
  }
  if (!running_.empty()) {
    host_->log(HVD_LOG_WARNING, "op {} of generation {} is still on device {} after NCCL's abort",
               running_.front().sequence, place_.generation, device_->ordinal());
  }
  if (scratch_ != 0) device_->libraries().cuda.cuMemFree_v2(std::exchange(scratch_, 0));
}

}  // namespace hvdnccl
