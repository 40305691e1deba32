// Waiting for what another thread's loop does.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <utility>

#include "base/loop.h"

namespace hvd {

/// Runs fn on the loop's thread and waits until it is over: it may have thrown, or was dropped as the loop
/// stopped. Not from the loop's thread.
inline void run_and_wait(Loop& loop, std::function<void()> fn) {
  auto task = std::make_shared<std::packaged_task<void()>>(std::move(fn));
  const std::future<void> over = task->get_future();
  loop.post([task = std::move(task)] { (*task)(); });
  over.wait();
}

}  // namespace hvd
