// Delivers the context's events: to listeners, from a thread that does nothing else, and to a queue with
// a file descriptor for programs with an event loop of their own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/callback.h"
#include "base/log.h"
#include "base/status.h"

namespace hvd::elastic {

inline constexpr size_t kEventQueue = 256;

/// Thread-safe.
class NotificationManager {
 public:
  explicit NotificationManager(LoggerPtr logger) : logger_(std::move(logger)) {}
  NotificationManager(const NotificationManager&) = delete;
  NotificationManager& operator=(const NotificationManager&) = delete;
  ~NotificationManager();

  /// Queues an event for everybody who wants it; never blocks. sequence and lost are filled in here.
  void post(hvd_event event);

  uint64_t add(hvd_event_kind kinds, Callback<hvd_listener_fn> listener);
  /// Waits for a call in flight, unless called from within it. Throws Error(HVD_INVALID) if unknown.
  void remove(uint64_t id);

  /// Descriptor that is readable while next() has an event; queues from the first call on.
  int event_fd();
  bool next(hvd_event* ret_event);

  /// Delivers what is queued, then ends the thread; later events are dropped. Not from a listener.
  void close();
  /// True in the thread that calls listeners.
  bool in_listener() const;

 private:
  struct Listener {
    hvd_event_kind kinds = 0;
    Callback<hvd_listener_fn> call;
  };
  struct Queue {
    std::deque<hvd_event> events;
    uint32_t lost = 0;
    void push(const hvd_event& event);
    hvd_event pop();
  };
  void run();

  const LoggerPtr logger_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, std::shared_ptr<Listener>> listeners_;
  Queue dispatch_, polled_;
  uint64_t next_listener_ = 1;
  uint64_t next_sequence_ = 1;
  uint64_t calling_ = 0;  // listener whose call is in flight
  int fd_ = -1;
  bool closed_ = false;
  std::thread::id listening_;  // the thread that calls listeners, until it is joined
  std::mutex join_;            // of whoever closes; taken before mutex_
  std::thread thread_;         // started with the mutex held, joined once it is closed
};

}  // namespace hvd::elastic
