// Waiting for what peers do in shared memory: nobody is forgotten asleep, and abort wakes everybody.
#include "local/host_group.h"

#include <gtest/gtest.h>

#include <future>
#include <random>
#include <thread>

#include "local/box.h"
#include "local/carried.h"
#include "local/inner.h"

namespace hvd::local {
namespace {

using test::carried;
using test::waited_in_vain;
using test::waiting;

struct Groups {
  explicit Groups(int32_t size) {
    std::vector<std::shared_ptr<Box>> boxes;
    std::vector<int32_t> ranks;
    for (int32_t i = 0; i < size; ++i) {
      boxes.push_back(private_box());
      ranks.push_back(10 * i);
    }
    for (int32_t i = 0; i < size; ++i) group.push_back(std::make_unique<HostGroup>(boxes, ranks, i));
  }
  std::vector<std::unique_ptr<HostGroup>> group;
};

void busy(std::chrono::microseconds time) {
  const Time until = now() + time;
  while (now() < until) {}
}

TEST(LocalGroup, KnowsItsRanks) {
  Groups groups(3);
  const HostGroup& group = *groups.group[1];
  EXPECT_EQ(group.size(), 3);
  EXPECT_EQ(group.index(), 1);
  EXPECT_EQ(group.rank(2), 20);
  EXPECT_EQ(group.index_of(20), 2);
  EXPECT_EQ(group.index_of(15), -1);
  EXPECT_EQ(group.index_of(30), -1);
}

// Now and then somebody is so late that the other has gone to sleep, at any moment of it.
TEST(LocalGroup, WhoSleepsIsWoken) {
  constexpr uint64_t kRounds = 3000;
  Groups groups(2);
  std::vector<std::thread> threads;
  for (int32_t me = 0; me < 2; ++me) {
    threads.emplace_back([&, me] {
      HostGroup& group = *groups.group[static_cast<size_t>(me)];
      std::mt19937 random(static_cast<uint32_t>(me) + 1);
      const int32_t peer = 1 - me;
      for (uint64_t round = 1; round <= kRounds; ++round) {
        const size_t segment = round % kSegments;
        if (random() % 8 == 0) busy(std::chrono::microseconds(90 + random() % 40));
        ASSERT_TRUE(carried(group, waiting(group, [&] { return group.released(segment); })).ok());
        group.segment(segment)[5] = static_cast<uint8_t>(round);
        group.put(segment, HostGroup::stamp(round, 0), {&peer, 1});
        const auto written = [&] { return group.holds(peer, segment) == HostGroup::stamp(round, 0); };
        ASSERT_TRUE(carried(group, waiting(group, written, peer)).ok());
        EXPECT_EQ(group.segment(peer, segment)[5], static_cast<uint8_t>(round));
        if (random() % 8 == 0) busy(std::chrono::microseconds(90 + random() % 40));
        group.take(peer, segment, HostGroup::stamp(round, 0));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(LocalGroup, ASegmentIsReleasedByAllItsReaders) {
  Groups groups(3);
  HostGroup& writer = *groups.group[0];
  const std::vector<int32_t> readers{1, 2};
  writer.put(4, 99, readers);
  EXPECT_FALSE(writer.released(4));
  EXPECT_TRUE(writer.released(5));
  groups.group[1]->take(0, 4, 99);
  EXPECT_FALSE(writer.released(4));
  groups.group[2]->take(0, 4, 98);  // what was there before
  EXPECT_FALSE(writer.released(4));
  groups.group[2]->take(0, 4, 99);
  EXPECT_TRUE(writer.released(4));
}

// contract 3: at any moment of its waiting, asleep or not.
TEST(LocalGroup, AbortEndsEveryWait) {
  std::mt19937 random(9);
  for (int round = 0; round < 300; ++round) {
    Groups groups(2);
    HostGroup& group = *groups.group[0];
    std::promise<void> begun;
    std::thread waiter([&] {
      begun.set_value();
      const Status status = waited_in_vain(group, 1);
      EXPECT_EQ(status.code, HVD_PEER_LOST);
      EXPECT_EQ(status.rank, 10);
      EXPECT_NE(status.message.find("rank 10"), std::string::npos) << status.message;
      EXPECT_EQ(carried(group, waiting(group, [] { return true; })).code, HVD_PEER_LOST)
          << "later ones as well";
    });
    begun.get_future().wait();
    busy(std::chrono::microseconds(random() % 250));
    group.abort();
    waiter.join();
  }
}

Task counted(HostGroup& group, std::atomic<int>& ready, int& done) {
  for (int next = 1; next <= 3; ++next) {
    Status status = co_await group.wait([&] { return ready >= next; }, 1);
    if (!status.ok()) co_return status;
    done = next;
  }
  co_return Status(HVD_INVALID, "three");
}

Task awaits(HostGroup& group, std::atomic<int>& ready, int& done) {
  Status status = co_await counted(group, ready, done);
  status.message += " counted";
  co_return status;
}

// contract 12: who lends itself leaves at its deadline, whatever the peers do.
TEST(LocalGroup, ATaskIsLeftAtTheDeadlineAndAnotherThreadGoesOn) {
  Groups groups(2);
  HostGroup& group = *groups.group[0];
  std::atomic<int> ready{1};
  int done = 0;
  Task task = awaits(group, ready, done);
  for (int next = 2; next <= 3; ++next) {
    EXPECT_FALSE(group.carry_on(task, now() + std::chrono::milliseconds(3)));
    EXPECT_FALSE(group.carry_on(task, now())) << "a deadline that has passed";
    EXPECT_EQ(done, next - 1);
    ready = next;
    if (next == 2)
      std::thread([&] { EXPECT_FALSE(group.carry_on(task, now() + std::chrono::milliseconds(3))); }).join();
  }
  std::thread([&] { EXPECT_TRUE(group.carry_on(task)); }).join();
  EXPECT_EQ(done, 3);
  EXPECT_EQ(task.outcome().message, "three counted");
}

// Peers that are never late keep nobody beyond the deadline either.
TEST(LocalGroup, ATaskThatNeverWaitsIsLeftAtTheDeadline) {
  Groups groups(1);
  HostGroup& group = *groups.group[0];
  uint64_t steps = 0;
  std::atomic<bool> last{false};
  const auto task_of = [](HostGroup& group, uint64_t& steps, std::atomic<bool>& last) -> Task {
    while (!last) {
      Status status = co_await group.wait([&] { return ++steps > 0; });
      if (!status.ok()) co_return status;
    }
    co_return Status();
  };
  Task task = task_of(group, steps, last);
  EXPECT_FALSE(group.carry_on(task, now() + std::chrono::milliseconds(1)));
  EXPECT_GT(steps, 0u);
  last = true;
  EXPECT_TRUE(group.carry_on(task));
  EXPECT_TRUE(task.outcome().ok());
}

// An exception from a look ends the task, whoever looked.
TEST(LocalGroup, ATaskFailsByWhatIsThrownWhileItWaits) {
  Groups groups(2);
  HostGroup& group = *groups.group[0];
  for (const int turn : {1, 2, 80}) {
    int looks = 0;
    Task task = waiting(group, [&] {
      if (++looks == turn) throw std::bad_alloc();
      return false;
    });
    EXPECT_TRUE(group.carry_on(task));
    EXPECT_THROW(static_cast<void>(task.outcome()), std::bad_alloc);
    EXPECT_EQ(looks, turn);
  }
}

// An operation of the backend between hosts ends while its waiter spins, sleeps, or has not come yet.
class Slow final : public backend::Instance {
 public:
  const backend::Description& description() const override { return description_; }
  Status offers(std::vector<Offer>*) override { return {}; }
  Status connect(uint64_t, int32_t, const std::vector<backend::Member>&, Duration) override { return {}; }
  using backend::Instance::submit;
  Status submit(const hvd_backend_op& op, std::span<const backend::Part>) override {
    if (op.count == 7) return {HVD_INVALID, "not seven"};
    sequences.push_back(op.sequence);
    op_ = op;
    return {};
  }
  Status send_message(int32_t, std::span<const uint8_t>) override { return {}; }
  void abort(uint64_t) override {}
  void disconnect() override {}
  std::string detail() const override { return ""; }
  void finish(hvd_status code) {
    hvd_error error = HVD_ERROR_INIT;
    Status(code, "as told").write_to(&error);
    op_.done(op_.done_context, code, code == HVD_OK ? nullptr : &error);
  }
  std::vector<uint64_t> sequences;

 private:
  backend::Description description_;
  hvd_backend_op op_{};
};

TEST(LocalInner, AWaiterLearnsTheOutcome) {
  std::mt19937 random(4);
  for (int round = 0; round < 200; ++round) {
    Groups groups(1);
    Slow slow;
    InnerOps ops(&slow, *groups.group[0], 6);
    InnerOps::Ticket* ticket = nullptr;
    ASSERT_TRUE(ops.submit({}, {}, 3, &ticket).ok());
    EXPECT_EQ(slow.sequences, std::vector<uint64_t>{(uint64_t{6} << 20) + 3});
    const hvd_status code = round % 2 == 0 ? HVD_OK : HVD_PEER_LOST;
    std::thread backend([&, time = random() % 250] {
      busy(std::chrono::microseconds(time));
      slow.finish(code);
    });
    const Status status = carried(*groups.group[0], ops.wait(*ticket));
    EXPECT_EQ(status.code, code);
    EXPECT_EQ(status.message, code == HVD_OK ? "" : "as told");
    backend.join();
  }
}

// Buffers are the inner backend's until it is done with them, abort or not.
TEST(LocalInner, ItDoesNotGoBeforeItsOperations) {
  for (int round = 0; round < 100; ++round) {
    Groups groups(1);
    Slow slow;
    std::atomic<bool> finished{false};
    std::thread backend;
    {
      InnerOps ops(&slow, *groups.group[0], 6);
      InnerOps::Ticket* ticket = nullptr;
      ASSERT_TRUE(ops.submit({}, {}, 1, &ticket).ok());
      groups.group[0]->abort();
      EXPECT_EQ(carried(*groups.group[0], ops.wait(*ticket)).code, HVD_PEER_LOST);
      backend = std::thread([&] {
        busy(std::chrono::microseconds(200));
        finished = true;
        slow.finish(HVD_PEER_LOST);
      });
    }
    EXPECT_TRUE(finished);
    backend.join();
  }
}

TEST(LocalInner, WhatIsRefusedIsNotWaitedFor) {
  Groups groups(1);
  Slow slow;
  InnerOps ops(&slow, *groups.group[0], 6);
  InnerOps::Ticket* ticket = nullptr;
  hvd_backend_op op{};
  op.count = 7;
  EXPECT_EQ(ops.submit(op, {}, 1, &ticket).code, HVD_INVALID);
  InnerOps none(nullptr, *groups.group[0], 6);
  EXPECT_EQ(none.submit({}, {}, 1, &ticket).code, HVD_INTERNAL);
}

}  // namespace
}  // namespace hvd::local
