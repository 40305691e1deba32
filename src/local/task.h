// A coroutine that executes a collective. Where it has to wait for peers it gives way to whoever carries it
// on (HostGroup::carry_on), which may stop there: another thread then goes on with it. By C++20's coroutines;
// a task awaits another by symmetric transfer.
#pragma once

#include <coroutine>
#include <exception>
#include <utility>

#include "base/status.h"

namespace hvd::local {

/// It begins when it is first carried on or awaited. What it was given by reference must outlive it.
class [[nodiscard]] Task {
 public:
  struct promise_type;  // the language's name
  using Handle = std::coroutine_handle<promise_type>;

  Task() = default;
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() {
    if (handle_ != nullptr) handle_.destroy();
  }

  /// False: there is none.
  explicit operator bool() const { return handle_ != nullptr; }
  bool done() const { return handle_.done(); }
  void begin() const { handle_.resume(); }
  /// Of a task that is done. Throws what it threw.
  Status outcome() const;

  struct Awaiter {
    bool await_ready() const noexcept { return false; }
    Handle await_suspend(std::coroutine_handle<> caller) const noexcept;
    Status await_resume() const { return task.outcome(); }
    const Task& task;
  };
  Awaiter operator co_await() const { return {*this}; }

 private:
  explicit Task(Handle handle) : handle_(handle) {}
  Handle handle_;
};

struct Task::promise_type {
  struct Return {
    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(Handle ended) const noexcept { return ended.promise().caller; }
    void await_resume() const noexcept {}
  };
  Task get_return_object() { return Task(Handle::from_promise(*this)); }
  std::suspend_always initial_suspend() const noexcept { return {}; }
  Return final_suspend() const noexcept { return {}; }
  void return_value(Status value) { status = std::move(value); }
  void unhandled_exception() noexcept { failure = std::current_exception(); }

  std::coroutine_handle<> caller = std::noop_coroutine();  // that awaits it
  Status status;
  std::exception_ptr failure;
};

inline Status Task::outcome() const {
  promise_type& promise = handle_.promise();
  if (promise.failure != nullptr) std::rethrow_exception(promise.failure);
  return std::move(promise.status);
}

inline Task::Handle Task::Awaiter::await_suspend(std::coroutine_handle<> caller) const noexcept {
  task.handle_.promise().caller = caller;
  return task.handle_;
}

}  // namespace hvd::local
