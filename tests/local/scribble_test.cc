// A peer that writes wild: whatever words it leaves in shared memory, and whenever, a survivor returns as
// soon as the generation is given up (contracts 3 and 12).
#include <sys/wait.h>

#include <future>

#include "local/bell.h"
#include "local/carried.h"
#include "local/cluster.h"
#include "local/host_group.h"
#include "local/messages.h"

namespace hvd::local::test {
namespace {

constexpr int kHistories = 1000;

void busy(uint64_t microseconds) {
  const Time until = now() + std::chrono::microseconds(microseconds);
  while (now() < until) {}
}

/// Writes random words into one box, the likely ones often, until it is told to end.
class Scribbler {
 public:
  Scribbler(Box& box, uint64_t seed) : random_(seed) {
    thread_ = std::thread([this, &box] {
      while (!over_.load(std::memory_order_relaxed)) {
        std::atomic<uint32_t>& bell = random_() % 2 == 0 ? box.bells.exec : box.bells.message;
        switch (random_() % 8) {
          case 0: box.holds.value[random_() % kSegments] = random_(); break;
          case 1: box.taken[random_() % 4].value[random_() % kSegments] = random_(); break;
          case 2: bell = static_cast<uint32_t>(random_()); break;
          default: bell = static_cast<uint32_t>(random_() % 4); break;
        }
        if (random_() % 4 == 0) busy(random_() % 50);
      }
    });
  }
  ~Scribbler() {
    over_ = true;
    thread_.join();
  }

 private:
  std::mt19937_64 random_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

/// Runs `wait` in a thread and `end` after a random while; fails, and ends the test program, if `wait` does
/// not return.
template <class Wait, class End>
void survives(uint64_t seed, Wait wait, End end) {
  std::promise<void> begun;
  std::future<void> survivor = std::async(std::launch::async, [&] {
    begun.set_value();
    wait();
  });
  begun.get_future().wait();
  busy(std::mt19937_64(seed)() % 400);
  end();
  if (survivor.wait_for(kSoon) != std::future_status::ready) {
    ADD_FAILURE() << "seed " << seed << ": the survivor sleeps on";
    std::quick_exit(1);  // its thread can't be joined
  }
}

TEST(Scribbled, ASurvivorOfAnOperationReturns) {
  const std::shared_ptr<Box> own = private_box(), peer = private_box();
  for (uint64_t seed = 1; seed <= kHistories; ++seed) {
    HostGroup group({own, peer}, {0, 1}, 0);
    {
      const Scribbler scribbler(*own, seed);
      survives(
          seed, [&] { EXPECT_EQ(waited_in_vain(group, 1).code, HVD_PEER_LOST); }, [&] { group.abort(); });
    }
    own->bells.exec = kAwake;
  }
}

// The last word stands when the survivor has just gone to sleep, and nobody writes any more.
TEST(Scribbled, AWordAtTheWorstMomentIsOvercome) {
  const std::shared_ptr<Box> own = private_box(), peer = private_box();
  for (const uint32_t word : {kAwake, kClosed, kClosed + kRung, 77u}) {
    HostGroup group({own, peer}, {0, 1}, 0);
    survives(
        word, [&] { EXPECT_EQ(waited_in_vain(group, 1).code, HVD_PEER_LOST); },
        [&] {
          while (own->bells.exec != kAsleep) std::this_thread::yield();
          busy(200);  // asleep in the kernel, most likely
          own->bells.exec = word;
          group.abort();
        });
  }
}

TEST(Scribbled, TheMessageThreadReturns) {
  const std::shared_ptr<Box> own = private_box(), peer = private_box();
  const backend::HostHandlers handlers;
  for (uint64_t seed = 1; seed <= kHistories; ++seed) {
    Messages messages(1, {own, peer}, {0, 1}, 0, handlers, std::make_shared<Logger>());
    {
      const Scribbler scribbler(*own, seed);
      survives(
          seed, [&] { messages.run(); }, [&] { messages.stop(BoxState::kGaveUp); });
    }
    own->bells.message = kAwake;
    own->state = static_cast<uint32_t>(BoxState::kOpen);
  }
}

// What only the owner writes ends nothing when another has written it.
TEST(Scribbled, AForeignClosedDoesNotEndMessages) {
  Ranks ranks = make_ranks(2);
  const std::vector<backend::Member> members = members_of(ranks);
  const std::shared_ptr<Box> box = whole_box(members[0]);
  on_all(2, [&](int rank) {
    EXPECT_TRUE(ranks[static_cast<size_t>(rank)]->instance->connect(1, rank, members, kSoon).ok());
  });
  for (int i = 0; i < 5; ++i) {
    expect_message(*ranks[1], 1, *ranks[0], 0);
    box->bells.message = kClosed;
    wake_sleeper(box->bells.message);
  }
  expect_message(*ranks[1], 1, *ranks[0], 0);
}

// Data loaders fork. The child has the instance, but neither its memory nor its threads.
TEST(Forked, AChildIsRefusedAndHarmsNobody) {
  Ranks ranks = make_ranks(2);
  connect_all(ranks, 1);
  const pid_t child = fork();
  if (child == 0) {
    backend::Instance& instance = *ranks[0]->instance;
    const std::atomic<bool> never{false};
    hvd_backend_op op{};
    op.struct_size = sizeof op;
    op.collective = HVD_COLLECTIVE_BARRIER;
    op.done = [](void*, hvd_status, const hvd_error*) {};
    std::vector<Offer> offers;
    const bool refused = instance.send_message(1, bytes_of("from the child")).code == HVD_INVALID &&
                         instance.submit(op).code == HVD_INVALID &&
                         instance.offers(&offers).code == HVD_INVALID;
    instance.progress(never, now() + kSoon);
    instance.abort(1);
    instance.disconnect();
    _exit(refused ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  int how = 0;
  ASSERT_EQ(waitpid(child, &how, 0), child);
  EXPECT_TRUE(WIFEXITED(how)) << "signal " << (WIFSIGNALED(how) ? WTERMSIG(how) : 0);
  EXPECT_EQ(how, 0);
  expect_message(*ranks[0], 0, *ranks[1], 1);
  expect_message(*ranks[1], 1, *ranks[0], 0);
}

}  // namespace
}  // namespace hvd::local::test
