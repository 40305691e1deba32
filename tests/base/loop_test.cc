// The loop: order, timers, exceptions, stopping.
#include "base/loop.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <thread>

#include "base/loop_wait.h"
#include "wire/support.h"

namespace hvd {
namespace {

using test::Events;
using test::run_on;

TEST(Loop, RunsInOrderOnOneThread) {
  Loop loop("loop");
  std::vector<int> seen;
  for (int i = 0; i < 1000; ++i) loop.post([&seen, i] { seen.push_back(i); });
  EXPECT_TRUE(run_on(loop, [&] { return loop.in_loop(); }));
  EXPECT_FALSE(loop.in_loop());
  ASSERT_EQ(seen.size(), 1000u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
}

TEST(Loop, ThreadTakesNoSignalsOfTheHostProcess) {  // contract 10
  sigset_t before, after, inside;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  Loop loop("a name longer than fifteen characters");
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  std::string name = run_on(loop, [&] {
    pthread_sigmask(SIG_SETMASK, nullptr, &inside);
    char text[16] = {};
    pthread_getname_np(pthread_self(), text, sizeof text);
    return std::string(text);
  });
  EXPECT_EQ(name, "a name longer t");
  for (int s : {SIGTERM, SIGINT, SIGCHLD, SIGPIPE, SIGUSR1, SIGALRM}) {
    EXPECT_EQ(sigismember(&inside, s), 1) << strsignal(s);
    EXPECT_EQ(sigismember(&after, s), sigismember(&before, s)) << strsignal(s);
  }
  EXPECT_EQ(sigismember(&inside, SIGSEGV), 0);
}

TEST(Loop, AWaitEndsHoweverTheFunctionDoes) {
  Loop loop("loop");
  bool ran = false;
  run_and_wait(loop, [&] {
    ran = true;
    throw std::runtime_error("expected");
  });
  EXPECT_TRUE(ran);
  loop.stop();
  run_and_wait(loop, [&] { ran = false; });
  EXPECT_TRUE(ran) << "the loop had stopped";
}

TEST(Loop, StopDropsWhatWasPosted) {
  auto held = std::make_shared<int>(0);
  std::weak_ptr<int> watch = held;
  std::atomic<bool> ran_late{false};
  Loop loop("loop");
  std::promise<void> running, go;
  loop.post([&, wait = go.get_future().share()] {
    running.set_value();
    wait.wait();
  });
  running.get_future().wait();
  std::thread stopper([&] { loop.stop(); });
  // From here on the loop is busy in its first function; whether this comes before or after stop, it is
  // either run before stop or dropped.
  go.set_value();
  stopper.join();
  loop.post([held = std::move(held), &ran_late] { ran_late = true; });
  EXPECT_TRUE(watch.expired());
  EXPECT_FALSE(ran_late);
  loop.stop();  // again
}

TEST(Loop, PendingFunctionIsDestroyedByStop) {
  auto held = std::make_shared<int>(0);
  std::weak_ptr<int> watch = held;
  Loop loop("loop");
  std::promise<void> running, go;
  loop.post([&, wait = go.get_future().share()] {
    running.set_value();
    wait.wait();
  });
  running.get_future().wait();
  loop.post([held = std::move(held)] {});
  std::thread stopper([&] { loop.stop(); });
  go.set_value();
  stopper.join();
  EXPECT_TRUE(watch.expired());
}

TEST(Loop, AnExceptionEndsNeitherThreadNorProcess) {
  Loop loop("loop");
  loop.post([] { throw std::runtime_error("a handler failed"); });
  EXPECT_EQ(run_on(loop, [] { return 5; }), 5);
}

TEST(Timer, FiresAfterItsTimeAndNotBefore) {
  Loop loop("loop");
  Events events;
  bool fired = false;
  const Time began = now();
  Time at{};
  auto timer = run_on(loop, [&] {
    auto t = std::make_shared<Loop::Timer>(loop);
    t->start(milliseconds(20), [&] { events.change([&] { fired = true, at = now(); }); });
    return t;
  });
  ASSERT_TRUE(events.wait([&] { return fired; }));
  EXPECT_GE(at - began, milliseconds(20));
  run_on(loop, [&] { timer.reset(); });
}

TEST(Timer, CancelledAfterItExpiredItStillNeverFires) {
  Loop loop("loop");
  bool first_fired = false, second_fired = false;
  Events events;
  std::unique_ptr<Loop::Timer> first, second, last;
  run_on(loop, [&] {
    first = std::make_unique<Loop::Timer>(loop);
    second = std::make_unique<Loop::Timer>(loop);
    last = std::make_unique<Loop::Timer>(loop);
    // All three have expired when the loop looks at its timers; the first one to run stops the others.
    const Time until = now() + milliseconds(20);
    first->start(milliseconds(1), [&] {
      first_fired = true;
      second->cancel();
      last.reset();
    });
    second->start(milliseconds(2), [&] { second_fired = true; });
    last->start(milliseconds(3), [&] { second_fired = true; });
    while (now() < until) {}
  });
  run_on(loop, [&] {
    auto done = std::make_shared<Loop::Timer>(loop);
    done->start(milliseconds(20), [&, done] { events.change([&] { EXPECT_TRUE(first_fired); }); });
  });
  Events end;
  bool over = false;
  run_on(loop, [&] {
    last = std::make_unique<Loop::Timer>(loop);
    last->start(milliseconds(40), [&] { end.change([&] { over = true; }); });
  });
  ASSERT_TRUE(end.wait([&] { return over; }));
  run_on(loop, [&] {
    EXPECT_TRUE(first_fired);
    EXPECT_FALSE(second_fired);
    first.reset(), second.reset(), last.reset();
  });
}

TEST(Timer, StartingAgainReplaces) {
  Loop loop("loop");
  Events events;
  int fired = 0;
  auto timer = run_on(loop, [&] {
    auto t = std::make_shared<Loop::Timer>(loop);
    t->start(milliseconds(1), [&] { events.change([&] { fired += 100; }); });
    t->start(milliseconds(30), [&] { events.change([&] { fired += 1; }); });
    return t;
  });
  ASSERT_TRUE(events.wait([&] { return fired != 0; }));
  EXPECT_EQ(fired, 1);
  run_on(loop, [&] { timer.reset(); });
}

}  // namespace
}  // namespace hvd
