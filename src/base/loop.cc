// The loop over Asio: posted functions, timers, descriptors.
#include "base/loop.h"

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <deque>
#include <mutex>
#include <thread>

#include "base/status.h"
#include "base/thread.h"

namespace hvd {

struct Loop::Impl {
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  std::mutex mutex;  // guards posted and stopped
  std::deque<std::function<void()>> posted;
  bool stopped = false;
  std::atomic<std::thread::id> id{};
  std::mutex join;
  std::thread thread;

  void run(const std::string& name) {
    id = std::this_thread::get_id();
    pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
    for (;;) {
      try {
        io.run();
        return;
      } catch (...) {
        // The function has failed; others on this loop, and the host process, go on (contract 10).
      }
    }
  }

  void run_posted() {
    std::function<void()> fn;
    {
      std::lock_guard lock(mutex);
      if (stopped || posted.empty()) return;
      fn = std::move(posted.front());
      posted.pop_front();
    }
    fn();
  }
};

Loop::Loop(std::string thread_name) : impl_(std::make_unique<Impl>()) {
  const SignalsBlocked blocked;
  try {
    impl_->thread = std::thread([impl = impl_.get(), name = std::move(thread_name)] { impl->run(name); });
  } catch (const std::system_error& e) {
    throw Error(HVD_UNAVAILABLE, std::string("can't start a thread: ") + e.what());
  }
}

Loop::~Loop() { stop(); }

void Loop::post(std::function<void()> fn) {
  std::unique_lock lock(impl_->mutex);
  if (impl_->stopped) {
    lock.unlock();
    return;  // fn is destroyed here, with no lock held
  }
  // In this order: without memory for either, nothing is left that has no turn.
  asio::post(impl_->io, [impl = impl_.get()] { impl->run_posted(); });
  impl_->posted.push_back(std::move(fn));
}

bool Loop::in_loop() const { return impl_->id.load() == std::this_thread::get_id(); }

void Loop::stop() {
  std::deque<std::function<void()>> dropped;
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stopped = true;
    impl_->posted.swap(dropped);
  }
  impl_->io.stop();
  {
    std::lock_guard lock(impl_->join);
    if (impl_->thread.joinable()) impl_->thread.join();
  }
}

void* Loop::native() { return &impl_->io; }

// A handler that asio has already queued can't be cancelled there; its count tells that it was.
struct Loop::Timer::Impl {
  explicit Impl(asio::io_context& io) : timer(io) {}
  asio::steady_timer timer;
  std::shared_ptr<uint64_t> count = std::make_shared<uint64_t>(0);
};

Loop::Timer::Timer(Loop& loop)
    : impl_(std::make_unique<Impl>(*static_cast<asio::io_context*>(loop.native()))) {}

Loop::Timer::~Timer() { cancel(); }

void Loop::Timer::start(Duration after, std::function<void()> fn) {
  const uint64_t started = ++*impl_->count;
  impl_->timer.expires_after(after);
  impl_->timer.async_wait([count = impl_->count, started, fn = std::move(fn)](const asio::error_code&) {
    if (*count == started) fn();
  });
}

void Loop::Timer::cancel() {
  ++*impl_->count;
  impl_->timer.cancel();
}

}  // namespace hvd
