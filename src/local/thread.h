// Threads that block all signals, so that the program's signals stay with the program.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <functional>
#include <thread>

namespace hvd::local {

/// A thread that takes none of the process's signals (contract 10).
inline std::thread start_thread(const char* name, std::function<void()> run) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(run));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace hvd::local
