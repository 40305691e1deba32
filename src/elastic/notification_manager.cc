// The events' thread, the queue for hvd_next_event, and its descriptor.
#include "elastic/notification_manager.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/thread.h"

namespace hvd::elastic {

void NotificationManager::Queue::push(const hvd_event& event) {
  if (events.size() == kEventQueue) {
    events.pop_front();
    ++lost;
  }
  try {
    events.push_back(event);
  } catch (const std::exception&) { ++lost; }  // no memory for it
}

hvd_event NotificationManager::Queue::pop() {
  hvd_event event = events.front();
  events.pop_front();
  event.lost = lost;
  lost = 0;
  return event;
}

NotificationManager::~NotificationManager() {
  close();
  if (fd_ >= 0) ::close(fd_);
}

void NotificationManager::post(hvd_event event) {
  std::lock_guard lock(mutex_);
  if (closed_) return;
  event.struct_size = sizeof(event);
  event.sequence = next_sequence_++;
  if (!listeners_.empty()) {
    dispatch_.push(event);
    changed_.notify_all();
  }
  if (fd_ >= 0) {
    polled_.push(event);
    const uint64_t one = 1;
    if (::write(fd_, &one, sizeof(one)) < 0) logger_->warning("event descriptor: {}", std::strerror(errno));
  }
}

uint64_t NotificationManager::add(hvd_event_kind kinds, Callback<hvd_listener_fn> listener) {
  if (kinds == 0) throw Error(HVD_INVALID, "kinds is 0: expected HVD_EVENT_... or-ed");
  if (!listener) throw Error(HVD_INVALID, "listener is NULL");
  std::lock_guard lock(mutex_);
  if (closed_) throw Error(HVD_CLOSED, "the context is closed");
  if (!thread_.joinable()) {
    thread_ = start_thread("hvd-listen", [this] { run(); });
    listening_ = thread_.get_id();
  }
  const uint64_t id = next_listener_++;
  listeners_.emplace(id, std::make_shared<Listener>(Listener{kinds, std::move(listener)}));
  return id;
}

void NotificationManager::remove(uint64_t id) {
  std::shared_ptr<Listener> dying;  // destroyed after the lock is released: destroy is the program's code
  std::unique_lock lock(mutex_);
  auto found = listeners_.find(id);
  if (found == listeners_.end()) throw Error(HVD_INVALID, fmt::format("no listener {} is registered", id));
  dying = std::move(found->second);
  listeners_.erase(found);
  if (std::this_thread::get_id() != listening_) {
    changed_.wait(lock, [&] { return calling_ != id; });
  }
}

int NotificationManager::event_fd() {
  std::lock_guard lock(mutex_);
  if (closed_) throw Error(HVD_CLOSED, "the context is closed");
  if (fd_ < 0) {
    fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd_ < 0) {
      Status status(HVD_UNAVAILABLE, fmt::format("eventfd: {}", std::strerror(errno)));
      status.vendor_code = errno;
      throw Error(status);
    }
  }
  return fd_;
}

bool NotificationManager::next(hvd_event* ret_event) {
  std::lock_guard lock(mutex_);
  if (fd_ < 0)
    throw Error(HVD_INVALID, "events are queued from the first call of hvd_get_event_fd on: call it first");
  if (polled_.events.empty()) return false;
  *ret_event = polled_.pop();
  if (polled_.events.empty()) {
    uint64_t count = 0;
    if (::read(fd_, &count, sizeof(count)) < 0 && errno != EAGAIN) {
      logger_->warning("event descriptor: {}", std::strerror(errno));
    }
  }
  return true;
}

void NotificationManager::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  std::map<uint64_t, std::shared_ptr<Listener>> dying;
  std::lock_guard joins(join_);
  if (thread_.joinable()) thread_.join();  // nobody starts it any more
  std::lock_guard lock(mutex_);
  listening_ = {};
  dying.swap(listeners_);
}

bool NotificationManager::in_listener() const {
  std::lock_guard lock(mutex_);
  return listening_ == std::this_thread::get_id();
}

void NotificationManager::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closed_ || !dispatch_.events.empty(); });
    if (dispatch_.events.empty()) return;
    const hvd_event event = dispatch_.pop();
    // Listeners that one of them adds hear of later events alone. No list of them is made, as that takes
    // memory: some may be removed while another is called.
    const uint64_t end = next_listener_;
    for (auto found = listeners_.begin(); found != listeners_.end() && found->first < end;) {
      const uint64_t id = found->first;
      if ((found->second->kinds & event.kind) == 0) {
        ++found;
        continue;
      }
      std::shared_ptr<Listener> listener = found->second;
      calling_ = id;
      lock.unlock();
      listener->call(&event);
      lock.lock();
      // A thread that removes it, and waits for this call, then has the last copy, and destroys it before it
      // returns.
      if (listener.use_count() > 1) listener.reset();
      calling_ = 0;
      changed_.notify_all();
      lock.unlock();
      listener.reset();  // the last copy if it was removed from within: destroy runs with no lock held
      lock.lock();
      found = listeners_.upper_bound(id);
    }
  }
}

}  // namespace hvd::elastic
