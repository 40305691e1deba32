// Lines wait in a bounded queue for a thread that calls the program's log.
#include "base/queued_log.h"

#include <condition_variable>
#include <deque>
#include <thread>
#include <utility>

#include "base/thread.h"

namespace hvd {
namespace {

class Queue {
 public:
  Queue(LoggerPtr logger, Duration patience, size_t most)
      : shared_(std::make_shared<Shared>()), patience_(patience), most_(most) {
    shared_->logger = std::move(logger);
    thread_ = start_thread("hvd-log", [shared = shared_] { run(*shared); });
  }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  ~Queue() {
    {
      std::unique_lock lock(shared_->mutex);
      shared_->closed = true;
      shared_->changed.notify_all();
      // A callback that never returns keeps its thread, and what that uses; nobody waits for it longer than
      // this.
      if (!shared_->changed.wait_for(lock, patience_, [&] { return shared_->ended; })) {
        shared_->lines.clear();
        thread_.detach();
        return;
      }
    }
    thread_.join();
  }

  static void add(void* self, hvd_log_level level, const char* line) {
    auto& queue = *static_cast<Queue*>(self);
    Shared& shared = *queue.shared_;
    {
      const std::lock_guard lock(shared.mutex);
      if (shared.lines.size() >= queue.most_) {
        ++shared.dropped;
        return;
      }
      try {
        shared.lines.emplace_back(level, line);
      } catch (const std::exception&) {  // no memory for it
        ++shared.dropped;
        return;
      }
    }
    shared.changed.notify_all();
  }
  static void destroy(void* self) { delete static_cast<Queue*>(self); }

 private:
  struct Shared {
    LoggerPtr logger;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::pair<hvd_log_level, std::string>> lines;
    uint64_t dropped = 0;
    bool closed = false, ended = false;
  };

  static bool tell_dropped(Logger& logger, uint64_t count) try {
    logger.warning("{} lines of the log were dropped: its callback is slow, or no memory was left", count);
    return true;
  } catch (const std::exception&) {
    return false;  // no memory for that line: behind a later one
  }

  static void run(Shared& shared) {
    std::unique_lock lock(shared.mutex);
    while (true) {
      shared.changed.wait(lock, [&] { return shared.closed || !shared.lines.empty(); });
      if (shared.lines.empty()) break;
      auto [level, line] = std::move(shared.lines.front());
      shared.lines.pop_front();
      const uint64_t dropped = shared.lines.empty() ? std::exchange(shared.dropped, 0) : 0;
      lock.unlock();
      shared.logger->write(level, line);
      const bool told = dropped == 0 || tell_dropped(*shared.logger, dropped);
      lock.lock();
      if (!told) shared.dropped += dropped;
    }
    shared.ended = true;
    shared.changed.notify_all();
  }

  const std::shared_ptr<Shared> shared_;
  const Duration patience_;
  const size_t most_;
  std::thread thread_;
};

}  // namespace

LoggerPtr queue_log(LoggerPtr logger, Duration patience, size_t most) {
  const hvd_log_level level = logger->level();
  if (level == HVD_LOG_OFF) return logger;  // it writes nothing
  return std::make_shared<Logger>(
      level,
      Callback<hvd_log_fn>(&Queue::add, new Queue(std::move(logger), patience, most), &Queue::destroy));
}

}  // namespace hvd
