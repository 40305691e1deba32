// Who is told of a process' end, and who is not: killed, let go, stopped, forked, replaced by exec.
#include "base/life.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>

namespace hvd {
namespace {

constexpr std::chrono::seconds kSoon{20};

// A process that holds its life and does what it is told by a byte. A test makes its children before its
// watch, which has threads: a sanitizer's allocator may be locked by one of them while this one forks, and
// then is so in the child for ever.
struct Child {
  pid_t pid = 0;
  int to = -1, from = -1;
  int descriptor = -1;
  Digest token;

  Child() {
    int down[2], up[2];
    EXPECT_EQ(pipe2(down, O_CLOEXEC) | pipe2(up, O_CLOEXEC), 0);
    pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::unique_ptr<Life> life;
      const Status status = Life::hold(&life);
      const int number = status.ok() ? life->descriptor() : -1;
      const Digest mine = status.ok() ? life->token() : Digest{};
      say(up[1], &number, sizeof(number));
      say(up[1], &mine, sizeof(mine));
      for (char what = 0; read(down[0], &what, 1) == 1;) {
        if (what == 'l') life.reset();
        if (what == 'f' && fork() == 0) _exit(0);
        if (what == 'f') wait(nullptr);
        if (what == 'e') execl("/bin/sleep", "sleep", "1000", nullptr);
        say(up[1], &what, 1);
      }
      _exit(0);
    }
    close(down[0]);
    close(up[1]);
    to = down[1];
    from = up[0];
    EXPECT_EQ(read(from, &descriptor, sizeof(descriptor)), static_cast<ssize_t>(sizeof(descriptor)));
    EXPECT_EQ(read(from, &token, sizeof(token)), static_cast<ssize_t>(sizeof(token)));
  }
  ~Child() {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    close(to);
    close(from);
  }
  static void say(int descriptor, const void* data, size_t size) { (void)!write(descriptor, data, size); }
  void perform(char what) {
    say(to, &what, 1);
    char done = 0;
    EXPECT_EQ(read(from, &done, 1), 1);
  }
};

struct Told {
  std::promise<void> promise;
  std::future<void> future = promise.get_future();
  bool watch(LifeWatch& watch, uint64_t key, const Child& child) {
    return watch.watch(key, child.pid, child.descriptor, child.token, [this] { promise.set_value(); });
  }
  bool soon() { return future.wait_for(kSoon) == std::future_status::ready; }
  bool already() { return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
};

// The watch is told of this one's end after everything that came before it.
void pass(LifeWatch& watch, const Child& last) {
  Told told;
  ASSERT_TRUE(told.watch(watch, 1000, last));
  kill(last.pid, SIGKILL);
  ASSERT_TRUE(told.soon());
  watch.forget(1000);
}

TEST(LookPace, RestsAfterManyShortWaitsInARow) {
  LookPace pace;
  const auto rests = [&](int count, Duration waited) {
    std::vector<int64_t> all;
    for (int i = 0; i < count; ++i) all.push_back(pace.rest_after(waited) / std::chrono::milliseconds(1));
    return all;
  };
  EXPECT_EQ(rests(16, Duration(0)), std::vector<int64_t>(16, 0));
  EXPECT_EQ(rests(8, std::chrono::milliseconds(9)), (std::vector<int64_t>{1, 2, 4, 8, 16, 32, 32, 32}));
  EXPECT_EQ(rests(1000, Duration(0)), std::vector<int64_t>(1000, 32));
  EXPECT_EQ(rests(1, std::chrono::milliseconds(10)), std::vector<int64_t>{0}) << "nobody hurries it now";
  EXPECT_EQ(rests(15, Duration(0)), std::vector<int64_t>(15, 0));
  EXPECT_EQ(rests(2, Duration(0)), (std::vector<int64_t>{1, 2}));
}

TEST(Life, TheEndOfEachOfManyIsToldOnce) {
  constexpr size_t kMany = 140;  // more than one thread waits for
  std::vector<Told> told(kMany);
  const std::vector<Child> children(kMany);
  LifeWatch watch;
  for (size_t i = 0; i < kMany; ++i) ASSERT_TRUE(told[i].watch(watch, i + 1, children[i]));
  for (const size_t i : {size_t{139}, size_t{0}, size_t{77}}) {
    kill(children[i].pid, SIGKILL);
    ASSERT_TRUE(told[i].soon()) << i;
  }
  EXPECT_FALSE(told[1].already());
}

TEST(Life, AKeyThatIsInUseIsNotTakenAgain) {
  Told first, second;
  const Child child;
  LifeWatch watch;
  ASSERT_TRUE(first.watch(watch, 1, child));
  ASSERT_FALSE(second.watch(watch, 1, child)) << "the key is in use";
  kill(child.pid, SIGKILL);
  EXPECT_TRUE(first.soon());
}

TEST(Life, WhoLetsGoIsStoppedOrForksIsNotDead) {
  Told of_it, of_stopped, of_fork;
  Child lets_go, stopped, forks;
  const Child first, second;
  LifeWatch watch;
  ASSERT_TRUE(of_it.watch(watch, 1, lets_go));
  ASSERT_TRUE(of_stopped.watch(watch, 2, stopped));
  ASSERT_TRUE(of_fork.watch(watch, 3, forks));
  lets_go.perform('l');
  kill(stopped.pid, SIGSTOP);
  forks.perform('f');
  pass(watch, first);
  EXPECT_FALSE(of_it.already() || of_stopped.already() || of_fork.already());
  kill(lets_go.pid, SIGKILL);
  pass(watch, second);
  EXPECT_FALSE(of_it.already()) << "it had let go in peace";
  kill(stopped.pid, SIGKILL);
  kill(forks.pid, SIGKILL);
  EXPECT_TRUE(of_stopped.soon() && of_fork.soon());
}

TEST(Life, OfAProgramThatIsReplacedByAnotherEnds) {
  Told told;
  const Child child;
  LifeWatch watch;
  ASSERT_TRUE(told.watch(watch, 1, child));
  Child::say(child.to, "e", 1);
  EXPECT_TRUE(told.soon());
}

TEST(Life, WhoIsForgottenIsNotTold) {
  Told told;
  const Child child, last;
  LifeWatch watch;
  ASSERT_TRUE(told.watch(watch, 1, child));
  watch.forget(1);
  kill(child.pid, SIGKILL);
  pass(watch, last);
  EXPECT_FALSE(told.already());
}

TEST(Life, AWordThatThereIsNoMemoryForEndsNeitherTheProcessNorTheWatch) {
  const Child child, last;
  LifeWatch watch;
  std::promise<void> told;
  ASSERT_TRUE(watch.watch(1, child.pid, child.descriptor, child.token, [&] {
    told.set_value();
    throw std::bad_alloc();
  }));
  kill(child.pid, SIGKILL);
  ASSERT_EQ(told.get_future().wait_for(kSoon), std::future_status::ready);
  pass(watch, last);
}

TEST(Life, WithoutAThreadNothingIsWatchedUntilThereIsOne) {
  const Child child;
  LifeWatch watch;
  Told vain, told;
  pthread_attr_t before, huge;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(pthread_getattr_default_np(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 50), 0);  // more than can be mapped
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  EXPECT_FALSE(vain.watch(watch, 1, child));
  ASSERT_EQ(pthread_setattr_default_np(&before), 0);
  ASSERT_TRUE(told.watch(watch, 1, child));
  kill(child.pid, SIGKILL);
  EXPECT_TRUE(told.soon());
  EXPECT_FALSE(vain.already());
}

TEST(Life, NothingThatIsSaidOfItIsBelieved) {
  const Child child;
  LifeWatch watch;
  const auto can = [&](int64_t process, int descriptor, Digest token) {
    return watch.watch(1, process, descriptor, token, [] {});
  };
  Digest other = child.token;
  ++other.low;
  EXPECT_FALSE(can(child.pid, child.descriptor, other));
  EXPECT_FALSE(can(child.pid, 0, child.token));
  EXPECT_FALSE(can(child.pid, 9999, child.token));
  EXPECT_FALSE(can(child.pid, -1, child.token));
  EXPECT_FALSE(can(0, child.descriptor, child.token));
  EXPECT_FALSE(can(-5, child.descriptor, child.token));
  EXPECT_FALSE(can(getpid(), child.descriptor, child.token));
  EXPECT_TRUE(can(child.pid, child.descriptor, child.token));
}

}  // namespace
}  // namespace hvd
