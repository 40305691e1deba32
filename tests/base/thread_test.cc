// Threads of the library, and the signals of whoever starts them.
#include "base/thread.h"

#include <gtest/gtest.h>

#include <system_error>

namespace hvd {
namespace {

sigset_t mask() {
  sigset_t now;
  pthread_sigmask(SIG_SETMASK, nullptr, &now);
  return now;
}

bool blocks(const sigset_t& set, int signal) { return sigismember(&set, signal) == 1; }

TEST(Thread, TakesNoSignalsButThoseOfItsOwnFaults) {
  sigset_t inside;
  sigemptyset(&inside);
  const sigset_t before = mask();
  start_thread("hvd-test", [&] { inside = mask(); }).join();
  for (const int signal : {SIGINT, SIGTERM, SIGPIPE, SIGUSR1, SIGCHLD}) {
    EXPECT_TRUE(blocks(inside, signal)) << signal;
    EXPECT_EQ(blocks(mask(), signal), blocks(before, signal)) << signal;
  }
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) EXPECT_FALSE(blocks(inside, fault)) << fault;
}

// Contract 10: where the system has no thread left, the program keeps its signals.
TEST(Thread, ACallerThatGetsNoneKeepsItsSignals) {
  pthread_attr_t usual, huge;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(pthread_attr_init(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 56), 0);  // more than there are addresses
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  EXPECT_THROW(start_thread("hvd-test", [] {}), std::system_error);
  ASSERT_EQ(pthread_setattr_default_np(&usual), 0);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) EXPECT_FALSE(blocks(mask(), signal)) << signal;
  pthread_attr_destroy(&usual);
  pthread_attr_destroy(&huge);
}

}  // namespace
}  // namespace hvd
