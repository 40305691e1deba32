// The end of an instance's generations: whoever is in the midst of one is waited for.
#include "modules/kit/generations.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "patience.h"

namespace hvdkit {
namespace {

const auto kSoon = hvd::test::patient(std::chrono::seconds(30));

// A generation whose abort takes as long as the test wants.
struct Slow {
  std::promise<void> in_abort;
  std::shared_future<void> may_end;
  std::atomic<int> left{0}, aborted{0}, torn_down{0};

  void assign(const hvd_backend_group&) {}
  void connect(const hvd_backend_group& group) {
    if (group.timeout_ns < 0) throw Failure(HVD_TIMEOUT, "nobody came");
  }
  void leave() { ++left; }
  void abort() {
    if (++aborted == 1) in_abort.set_value();
    may_end.wait();
  }
  void teardown() { ++torn_down; }
};

struct Fixture {
  std::promise<void> may_end;
  std::shared_ptr<Slow> slow = std::make_shared<Slow>();
  std::unique_ptr<Generations<Slow>> generations;

  Fixture() {
    slow->may_end = may_end.get_future().share();
    generations = std::make_unique<Generations<Slow>>([this] { return slow; });
    generations->next();
  }
  static hvd_backend_group group(int64_t timeout_ns = 0) {
    hvd_backend_group group{};
    group.generation = 1;
    group.timeout_ns = timeout_ns;
    return group;
  }
  // Destroys them while `ender` is in the midst of an end.
  template <class End>
  void destroy_while(End end) {
    std::thread ender(end);
    ASSERT_EQ(slow->in_abort.get_future().wait_for(kSoon), std::future_status::ready);
    auto destroyed = std::async(std::launch::async, [this] { generations.reset(); });
    EXPECT_EQ(destroyed.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout)
        << "nobody waited for the end that is under way";
    may_end.set_value();
    EXPECT_EQ(destroyed.wait_for(kSoon), std::future_status::ready);
    ender.join();
    EXPECT_EQ(slow->torn_down, 1);
    EXPECT_EQ(slow->aborted, 1);
  }
};

TEST(Generations, AnAbortUnderWayIsWaitedFor) {
  Fixture f;
  f.generations->connect(Fixture::group());
  Generations<Slow>* const all = f.generations.get();
  f.destroy_while([all] { all->abort(1); });
}

TEST(Generations, ADisconnectUnderWayIsWaitedFor) {
  Fixture f;
  f.generations->connect(Fixture::group());
  Generations<Slow>* const all = f.generations.get();
  f.destroy_while([all] { all->disconnect(); });
  EXPECT_EQ(f.slow->left, 1);
}

TEST(Generations, AConnectThatFailsIsWaitedFor) {
  Fixture f;
  Generations<Slow>* const all = f.generations.get();
  f.destroy_while([all] {
    try {
      all->connect(Fixture::group(-1));
      ADD_FAILURE() << "it has connected";
    } catch (const Failure& failure) { EXPECT_EQ(failure.status, HVD_TIMEOUT); }
  });
}

TEST(Generations, EachIsEndedOnce) {
  Fixture f;
  f.may_end.set_value();
  f.generations->connect(Fixture::group());
  f.generations->abort(1);
  f.generations->abort(1);
  f.generations->disconnect();
  f.generations.reset();
  EXPECT_EQ(f.slow->aborted, 1);
  EXPECT_EQ(f.slow->torn_down, 1);
  EXPECT_EQ(f.slow->left, 0);
}

}  // namespace
}  // namespace hvdkit
