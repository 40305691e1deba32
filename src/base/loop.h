// One thread that runs posted functions, timers and socket events, in order.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"

namespace hvd {

class Loop {
 public:
  explicit Loop(std::string thread_name);
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  ~Loop();  // stop()

  /// Runs fn on the loop's thread. Any thread. After stop it is dropped (and destroyed).
  void post(std::function<void()> fn);

  /// A timer; destroying or cancelling it before it fires means that fn never runs. Create, cancel and
  /// destroy on the loop's thread only.
  class Timer {
   public:
    explicit Timer(Loop& loop);
    ~Timer();
    void start(Duration after, std::function<void()> fn);  // replaces what was started before
    void cancel();

   private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  bool in_loop() const;  // true on the loop's thread

  /// Ends the thread after the function that is running; idempotent. Not from the loop's thread.
  void stop();

  /// asio::io_context*, for the files that include asio.
  void* native();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hvd
