// Threads that take none of the process's signals.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <functional>
#include <thread>

namespace hvd {

/// Blocks signals in the calling thread while it lives; threads that are started meanwhile keep them blocked.
/// So the program's handlers run in its own threads, and a broken socket raises no SIGPIPE in the library's
/// (contract 10). Signals that a fault of the thread itself raises stay as they are.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

/// The signals that the thread which makes this has blocked.
class SignalMask {
 public:
  SignalMask() { pthread_sigmask(SIG_SETMASK, nullptr, &blocked_); }

 private:
  friend class SignalsOf;
  sigset_t blocked_;
};

/// Gives the calling thread another one's signals while it lives. A process that a program's callback starts
/// inherits what the thread has blocked: SIGTERM could not end it.
class SignalsOf {
 public:
  explicit SignalsOf(const SignalMask& mask) { pthread_sigmask(SIG_SETMASK, &mask.blocked_, &before_); }
  SignalsOf(const SignalsOf&) = delete;
  SignalsOf& operator=(const SignalsOf&) = delete;
  ~SignalsOf() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

/// Starts a thread with signals blocked. name: at most 15 characters. Throws std::system_error if there is no
/// thread left; the caller's signals are then as before.
inline std::thread start_thread(const char* name, std::function<void()> run) {
  const SignalsBlocked blocked;
  std::thread thread(std::move(run));
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace hvd
