// More ranks on a host than may look at each other all by all: whose boxes are mapped, and that nothing is
// lost by it.
#include <sched.h>

#include <fstream>
#include <set>

#include "local/bell.h"
#include "local/boxes.h"
#include "local/cluster.h"
#include "local/messages.h"

namespace hvd::local::test {
namespace {

constexpr int kMany = kMostAmongAll + 8;

/// All threads on one processor: ranks are a crowd on any machine.
class Crowd : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(sched_getaffinity(0, sizeof before_, &before_), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &before_)) continue;
      CPU_SET(cpu, &one);
      break;
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  }
  void TearDown() override { sched_setaffinity(0, sizeof before_, &before_); }

 private:
  cpu_set_t before_{};
};

Status run(Rank& rank, hvd_collective collective, uint64_t sequence, float* value) {
  Pending pending;
  hvd_backend_op op = pending.op(collective, sequence);
  if (value != nullptr) {
    op.dtype = HVD_DTYPE_FLOAT32;
    op.reduction = HVD_REDUCTION_SUM;
    op.input = op.output = value;
    op.count = 1;
  }
  return backend::test::run(*rank.instance, op, pending);
}

/// Of this process: each box that it made or opened, the descriptors' own apart.
size_t mapped_boxes() {
  std::ifstream maps("/proc/self/maps");
  std::set<std::string> first;  // a box is several mappings, its first begins at offset 0
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:hvd") != std::string::npos && line.find(" 00000000 ") != std::string::npos)
      first.insert(line.substr(0, line.find(' ')));
  }
  return first.size();
}

TEST(Neighbours, AreFewMutualAndReachAll) {
  for (const int32_t size : {1, 2, 3, 33, 100, 128}) {
    std::vector<std::vector<int32_t>> of;
    for (int32_t i = 0; i < size; ++i) {
      of.push_back(neighbours(i, size));
      if (i > 0) { EXPECT_LE(of.back().size(), 9U); }
    }
    for (int32_t i = 0; i < size; ++i) {
      const auto& mine = of[static_cast<size_t>(i)];
      for (const int32_t other : mine) {
        ASSERT_NE(other, i);
        const auto& theirs = of[static_cast<size_t>(other)];
        EXPECT_TRUE(std::find(theirs.begin(), theirs.end(), i) != theirs.end()) << other << " lacks " << i;
      }
      // Also when the first one is dead.
      std::set<int32_t> reached{i}, last{i};
      for (int step = 0; step < 12 && !last.empty(); ++step) {
        std::set<int32_t> next;
        for (const int32_t at : last) {
          for (const int32_t n : of[static_cast<size_t>(at)]) {
            if (n != 0 && reached.insert(n).second) next.insert(n);
          }
        }
        last = next;
      }
      reached.erase(0);
      if (i > 0) {
        EXPECT_EQ(reached.size(), static_cast<size_t>(size - 1)) << "from " << i << " of " << size;
      }
    }
  }
}

TEST(BoxesOnDemand, EachIsOpenedOnceAndALossIsToldOnce) {
  int opened = 0;
  std::vector<std::shared_ptr<Box>> own(3);
  own[1] = private_box();
  Boxes boxes(own, 1, [&](int32_t index, std::shared_ptr<Box>* ret_box, std::string* reason) {
    ++opened;
    if (index == 2) return *reason = "not there", Opening::kGone;
    *ret_box = private_box();
    return Opening::kDone;
  });
  EXPECT_EQ(boxes.known(0), nullptr);
  boxes.own().bells.message = kAsleep;
  Box* const first = boxes.reach(0);
  EXPECT_NE(first, nullptr);
  EXPECT_EQ(boxes.reach(0), first);
  EXPECT_EQ(boxes.known(0), first);
  EXPECT_EQ(opened, 1);
  EXPECT_FALSE(boxes.has_losses());
  EXPECT_EQ(boxes.own().bells.message & kState, kAsleep);
  EXPECT_EQ(boxes.reach(2), nullptr);
  EXPECT_EQ(boxes.reach(2), nullptr);
  EXPECT_EQ(opened, 2);
  EXPECT_NE(boxes.own().bells.message & kState, kAsleep) << "nobody is woken to tell it";
  ASSERT_TRUE(boxes.has_losses());
  const auto losses = boxes.take_losses();
  ASSERT_EQ(losses.size(), 1U);
  EXPECT_EQ(losses[0].index, 2);
  EXPECT_EQ(losses[0].reason, "not there");
  EXPECT_FALSE(boxes.has_losses());
}

TEST(BoxesOnDemand, ALossIsAFailureOfItsRank) {
  std::vector<std::shared_ptr<Box>> own(2);
  own[0] = private_box();
  const auto boxes = std::make_shared<Boxes>(own, 0, [](int32_t, std::shared_ptr<Box>*, std::string* reason) {
    return *reason = "not there", Opening::kGone;
  });
  Inbox inbox;
  const backend::HostHandlers handlers = inbox.handlers();
  Messages messages(5, boxes, {10, 11}, handlers, std::make_shared<Logger>());
  std::thread carrier([&] { messages.run(); });
  const Status status = messages.send(1, bytes_of("hello"));
  EXPECT_EQ(status.code, HVD_PEER_LOST);
  EXPECT_EQ(status.rank, 11);
  const Inbox::Loss loss = inbox.wait_failure();
  EXPECT_EQ(loss.generation, 5U);
  EXPECT_EQ(loss.peer, 11);
  EXPECT_NE(loss.text.find("not there"), std::string::npos) << loss.text;
  messages.stop(BoxState::kGaveUp);
  carrier.join();
}

TEST(BoxesOnDemand, ASenderThatWaitedForRoomAndHasLeftIsNoLoss) {
  std::vector<std::shared_ptr<Box>> own(2);
  own[0] = private_box();
  int opened = 0;
  const auto boxes =
      std::make_shared<Boxes>(own, 0, [&](int32_t, std::shared_ptr<Box>*, std::string* reason) {
        ++opened;
        return *reason = "not there", Opening::kGone;
      });
  Inbox inbox;
  const backend::HostHandlers handlers = inbox.handlers();
  Messages messages(5, boxes, {10, 11}, handlers, std::make_shared<Logger>());
  StreamWriter writer(own[0]->rings[1]);
  const std::vector<uint8_t> large(kRingBytes, 7);
  ASSERT_TRUE(writer.write(large));
  ASSERT_TRUE(writer.keeps()) << "it does not wait for room";
  messages.poll();
  EXPECT_EQ(opened, 1) << "the sender is not rung";
  ASSERT_TRUE(writer.flush() && !writer.keeps());
  while (messages.poll()) {}
  EXPECT_EQ(inbox.next_message().data, large);
  EXPECT_TRUE(inbox.losses().empty());
  messages.stop(BoxState::kLeft);
}

TEST_F(Crowd, OperationsAndMessagesMapFewBoxes) {
  Ranks ranks = make_ranks(kMany);
  connect_all(ranks, 1);
  on_all(kMany, [&](int rank) {
    float value = static_cast<float>(rank);
    Rank& mine = *ranks[static_cast<size_t>(rank)];
    EXPECT_EQ(mine.instance->board(), nullptr);
    EXPECT_TRUE(run(mine, HVD_COLLECTIVE_ALLREDUCE, 1, &value).ok());
    EXPECT_EQ(value, kMany * (kMany - 1) / 2);
    EXPECT_TRUE(run(mine, HVD_COLLECTIVE_BARRIER, 2, nullptr).ok());
    EXPECT_TRUE(run(mine, HVD_COLLECTIVE_BROADCAST, 3, &value).ok());
    if (rank == 0) return;
    EXPECT_TRUE(mine.instance->send_message(0, bytes_of("hello")).ok());
  });
  for (int i = 1; i < kMany; ++i) ranks[0]->inbox.next_message();
  // Their own, twice at most (each looks at its own as a peer would), the first one's of all, and nine each.
  EXPECT_LE(mapped_boxes(), static_cast<size_t>(kMany * (2 + 1 + 9)));
}

TEST_F(Crowd, AMessageComesFromARankThatWasNeverHeardOf) {
  Ranks ranks = make_ranks(kMany);
  connect_all(ranks, 1);
  expect_message(*ranks[10], 10, *ranks[12], 12);
  expect_message(*ranks[12], 12, *ranks[10], 10);
}

// A peer that writes wildly can take back who has sent; each sleep's end brings another look.
TEST_F(Crowd, AMessageWhoseSenderWasWipedOutComes) {
  Ranks ranks = make_ranks(kMany);
  const std::vector<backend::Member> members = members_of(ranks);
  const std::shared_ptr<Box> box = whole_box(members[12]);
  on_all(kMany, [&](int rank) {
    EXPECT_TRUE(ranks[static_cast<size_t>(rank)]->instance->connect(1, rank, members, kSoon).ok());
  });
  StreamWriter writer(box->rings[10]);
  ASSERT_TRUE(writer.write(bytes_of("hello")));  // and no word of it in `senders`
  const Inbox::Message message = ranks[12]->inbox.next_message();
  EXPECT_EQ(message.source, 10);
  EXPECT_EQ(message.data, bytes_of("hello"));
}

// Nobody but its neighbours looks at a rank; each that learns it gives up itself, as the engine does.
TEST_F(Crowd, AllLearnThatOneHasGivenUp) {
  Ranks ranks = make_ranks(kMany);
  for (const auto& rank : ranks) {
    rank->inbox.on_failure = [instance = rank->instance.get()](const Inbox::Loss& loss) {
      instance->abort(loss.generation);
    };
  }
  connect_all(ranks, 1);
  constexpr size_t kFirst = 17;
  ranks[kFirst]->instance->abort(1);
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i != kFirst) { EXPECT_EQ(ranks[i]->inbox.wait_failure().generation, 1U); }
  }
}

// The box of a rank whose instance is gone can't be opened any more: an operation keeps it until its readers
// have it.
TEST_F(Crowd, WhoeverLeavesRightAfterAnOperationTakesNothingAway) {
  for (uint64_t round = 1; round <= 3; ++round) {
    Ranks ranks = make_ranks(kMany);
    connect_all(ranks, round);
    on_all(kMany, [&](int rank) {
      Rank& mine = *ranks[static_cast<size_t>(rank)];
      float value = static_cast<float>(rank);
      hvd_collective collective = HVD_COLLECTIVE_BROADCAST;  // of rank 0, then of nobody's neighbour
      Pending pending;
      hvd_backend_op op = pending.op(collective, 1);
      op.dtype = HVD_DTYPE_FLOAT32;
      op.output = &value;
      op.count = 1;
      op.root = round == 1 ? 0 : 21;
      const Status status = backend::test::run(*mine.instance, op, pending);
      EXPECT_TRUE(status.ok()) << status.message;
      EXPECT_EQ(value, static_cast<float>(op.root));
      mine.instance->disconnect();
      mine.instance.reset();
    });
  }
}

}  // namespace
}  // namespace hvd::local::test
