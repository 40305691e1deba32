// Keeps a terminal's status line up to date while a job runs.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/thread.h"
#include "cli/screen.h"
#include "hvd/driver.h"

namespace hvd::cli {

class StatusLine {
 public:
  /// Both outlive it.
  StatusLine(hvd_driver* driver, Screen* screen)
      : driver_(driver), screen_(screen), thread_(start_thread("hvdrun-status", [this] { run(); })) {}
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;
  ~StatusLine() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, std::chrono::milliseconds(500), [this] { return stopping_; })) {
      lock.unlock();
      char* text = nullptr;
      if (hvd_driver_describe(driver_, HVD_DRIVER_FORMAT_LINE, &text, nullptr) == HVD_OK) {
        const std::unique_ptr<char, void (*)(void*)> owned(text, hvd_free);
        screen_->show(text);
      }
      lock.lock();
    }
  }

  hvd_driver* const driver_;
  Screen* const screen_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace hvd::cli
