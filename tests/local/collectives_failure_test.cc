// The collectives over shared memory when the generation is given up or the backend between hosts fails; and
// the bits of their results.
#include <gtest/gtest.h>

#include <random>

#include "local/collectives_ranks.h"

namespace hvd::local::test {
namespace {

constexpr hvd_collective kCollectives[] = {HVD_COLLECTIVE_BROADCAST,     HVD_COLLECTIVE_ALLREDUCE,
                                           HVD_COLLECTIVE_ALLGATHER,     HVD_COLLECTIVE_BARRIER,
                                           HVD_COLLECTIVE_REDUCESCATTER, HVD_COLLECTIVE_ALLTOALL};

/// A call of n ranks with buffers of its own, large enough for any collective of `each` elements a rank.
struct Prepared {
  Prepared(hvd_collective collective, size_t ranks, size_t each, uint64_t sequence)
      : input(ranks * each, 1.0F), output(ranks * each, 2.0F) {
    call.op.struct_size = sizeof(call.op);
    call.op.collective = collective;
    call.op.dtype = HVD_DTYPE_FLOAT32;
    call.op.reduction = HVD_REDUCTION_SUM;
    call.op.memory = HVD_MEMORY_HOST;
    call.op.sequence = sequence;
    call.op.input = input.data();
    call.op.output = output.data();
    call.op.count = collective == HVD_COLLECTIVE_ALLGATHER ? each : ranks * each;
    call.counts.assign(2 * ranks, each);
  }
  std::vector<float> input, output;
  Call call;
};

class Lost : public testing::TestWithParam<std::vector<int32_t>> {};

// contract 3: one rank never comes; whoever waits for it, at whatever place, is freed.
TEST_P(Lost, AbortFreesEveryoneWhoWaits) {
  for (hvd_collective collective : kCollectives) {
    for (size_t each : {size_t{10}, 5 * kSegmentBytes / 4}) {
      Ranks ranks(GetParam());
      const int32_t missing = 0;  // also the root
      std::atomic<int> waiting{ranks.size() - 1};
      ranks.each([&](int32_t rank) {
        if (rank == missing) {
          while (waiting.load() > 0) std::this_thread::yield();
          ranks.give_up();
          return;
        }
        Prepared prepared(collective, static_cast<size_t>(ranks.size()), each, 1);
        waiting.fetch_sub(1);
        const Status status = ranks.run(rank, prepared.call);
        EXPECT_EQ(status.code, HVD_PEER_LOST) << "collective " << collective << " rank " << rank;
        const Status later = ranks.run(rank, prepared.call);
        EXPECT_EQ(later.code, HVD_PEER_LOST) << "collective " << collective << " rank " << rank;
      });
    }
  }
}

TEST_P(Lost, AbortAtAnyMomentEndsEveryOperation) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Ranks ranks(GetParam());
    std::atomic<uint64_t> operations{0};
    std::thread killer([&] {
      std::mt19937_64 random(seed);
      const uint64_t after = random() % (12 * static_cast<uint64_t>(ranks.size()));
      while (operations.load() < after) std::this_thread::yield();
      for (uint64_t i = random() % 20000; i > 0; --i) operations.load();
      ranks.give_up();
    });
    ranks.each([&](int32_t rank) {
      for (uint64_t sequence = 1;; ++sequence) {
        std::mt19937_64 random(seed * 1000 + sequence);
        Prepared prepared(kCollectives[random() % 6], static_cast<size_t>(ranks.size()),
                          random() % 2 == 0 ? 100 : 150000, sequence);
        const Status status = ranks.run(rank, prepared.call);
        operations.fetch_add(1);
        if (!status.ok()) {
          EXPECT_EQ(status.code, HVD_PEER_LOST) << status.message;
          return;
        }
      }
    });
    killer.join();
  }
}

INSTANTIATE_TEST_SUITE_P(Of, Lost,
                         testing::Values(std::vector<int32_t>{0, 0}, std::vector<int32_t>{0, 0, 0, 0},
                                         std::vector<int32_t>{0, 0, 1, 1},
                                         std::vector<int32_t>{0, 1, 0, 1, 2}));

TEST(LocalCollectives, AbortFreesThoseWhoWaitForTheBackendBetweenHosts) {
  for (hvd_collective collective : kCollectives) {
    Ranks ranks({0, 0, 1, 1});
    ranks.meeting.hold();
    std::thread killer([&] {
      while (ranks.meeting.waiting() == 0) std::this_thread::yield();
      ranks.give_up();
    });
    ranks.each([&](int32_t rank) {
      Prepared prepared(collective, 4, size_t{1} << 18, 1);
      const Status status = ranks.run(rank, prepared.call);
      // Beside the root of a broadcast nobody needs another host.
      if (collective == HVD_COLLECTIVE_BROADCAST && rank == 1 && status.ok()) return;
      EXPECT_EQ(status.code, HVD_PEER_LOST) << "collective " << collective << " rank " << rank;
    });
    killer.join();
  }
}

TEST(LocalCollectives, FailureBetweenHostsIsTheOperationsStatus) {
  for (hvd_collective collective : kCollectives) {
    for (int operation : {1, 3}) {
      Ranks ranks({0, 0, 1, 1});
      ranks.meeting.fail(operation);
      std::atomic<int> told{0};
      ranks.each([&](int32_t rank) {
        Prepared prepared(collective, 4, size_t{1} << 18, 1);
        const Status status = ranks.run(rank, prepared.call);
        if (status.code == HVD_INTERNAL) told.fetch_add(1);
        if (ranks.meeting.operations() >= operation) {
          EXPECT_TRUE(status.code == HVD_INTERNAL || status.code == HVD_PEER_LOST || status.ok())
              << status.code;
        }
      });
      if (ranks.meeting.operations() >= operation) {
        EXPECT_GE(told.load(), 1) << "collective " << collective;
      }
    }
  }
}

// Floats whose sums depend on the order.
std::vector<float> rough(size_t count, int32_t rank) {
  std::mt19937 random(static_cast<unsigned>(rank) + 17);
  std::uniform_real_distribution<float> mantissa(-1.0F, 1.0F);
  std::vector<float> data(count);
  for (float& v : data) v = std::ldexp(mantissa(random), static_cast<int>(random() % 40) - 20);
  return data;
}

std::vector<std::vector<float>> allreduce_rough(Ranks& ranks, size_t count, uint64_t sequence) {
  std::vector<std::vector<float>> outputs(static_cast<size_t>(ranks.size()), std::vector<float>(count));
  ranks.each([&](int32_t rank) {
    const std::vector<float> input = rough(count, rank);
    Call call;
    call.op.collective = HVD_COLLECTIVE_ALLREDUCE;
    call.op.dtype = HVD_DTYPE_FLOAT32;
    call.op.reduction = HVD_REDUCTION_SUM;
    call.op.sequence = sequence;
    call.op.input = input.data();
    call.op.output = outputs[static_cast<size_t>(rank)].data();
    call.op.count = count;
    const Status status = ranks.run(rank, call);
    ASSERT_TRUE(status.ok()) << status.message;
  });
  return outputs;
}

TEST(LocalCollectives, OneHostsSumsAreThoseInRankOrder) {
  Ranks ranks({0, 0, 0, 0, 0});
  uint64_t sequence = 0;
  for (size_t count : {size_t{7}, size_t{2049}, size_t{100003}, size_t{1000003}}) {
    std::vector<std::vector<float>> inputs;
    std::vector<const void*> pointers;
    for (int32_t rank = 0; rank < ranks.size(); ++rank) inputs.push_back(rough(count, rank));
    for (const auto& input : inputs) pointers.push_back(input.data());
    std::vector<float> expected(count);
    reduce_many(HVD_DTYPE_FLOAT32, HVD_REDUCTION_SUM, expected.data(), pointers.data(), pointers.size(),
                count, 1);
    for (const auto& output : allreduce_rough(ranks, count, ++sequence)) {
      ASSERT_EQ(std::memcmp(output.data(), expected.data(), count * sizeof(float)), 0) << count;
    }
  }
}

TEST(LocalCollectives, SeveralHostsSumsAreTheSameEverywhereAndEveryTime) {
  Ranks ranks({0, 1, 0, 1, 1});
  uint64_t sequence = 0;
  for (size_t count : {size_t{7}, size_t{100003}, size_t{1000003}}) {
    const auto first = allreduce_rough(ranks, count, ++sequence);
    const auto second = allreduce_rough(ranks, count, ++sequence);
    for (size_t rank = 0; rank < first.size(); ++rank) {
      ASSERT_EQ(std::memcmp(first[rank].data(), first[0].data(), count * sizeof(float)), 0);
      ASSERT_EQ(std::memcmp(second[rank].data(), first[0].data(), count * sizeof(float)), 0);
    }
  }
}

// The average of large narrow floats is none too large, though their sum is.
TEST(LocalCollectives, AveragesOfSeveralHostsDoNotOverflowAndRoundTowardsZero) {
  Ranks ranks({0, 0, 1, 1, 1});
  ranks.each([&](int32_t rank) {
    std::vector<uint8_t> halves(2 * 3000), wholes(4 * 3000);
    for (size_t i = 0; i < 3000; ++i) {
      encode(HVD_DTYPE_FLOAT16, halves.data(), i, 40000);
      encode(HVD_DTYPE_INT32, wholes.data(), i, rank == 1 ? -4.0 : -1.0);
    }
    Call call;
    call.op.collective = HVD_COLLECTIVE_ALLREDUCE;
    call.op.reduction = HVD_REDUCTION_AVERAGE;
    call.op.dtype = HVD_DTYPE_FLOAT16;
    call.op.sequence = 1;
    call.op.input = call.op.output = halves.data();
    call.op.count = 3000;
    ASSERT_TRUE(ranks.run(rank, call).ok());
    call.op.dtype = HVD_DTYPE_INT32;
    call.op.sequence = 2;
    call.op.input = call.op.output = wholes.data();
    ASSERT_TRUE(ranks.run(rank, call).ok());
    for (size_t i = 0; i < 3000; ++i) {
      ASSERT_NEAR(decode(HVD_DTYPE_FLOAT16, halves.data(), i), 40000, 64);
      ASSERT_EQ(decode(HVD_DTYPE_INT32, wholes.data(), i), -1);  // -8 / 5
    }
  });
}

// More ranks than segments.
TEST(LocalCollectives, ManyRanksOnOneHost) {
  Ranks ranks(std::vector<int32_t>(19, 0));
  uint64_t sequence = 0;
  for (size_t count : {size_t{100}, size_t{50000}, size_t{1000000}}) {
    const auto outputs = allreduce_rough(ranks, count, ++sequence);
    for (const auto& output : outputs) {
      ASSERT_EQ(std::memcmp(output.data(), outputs[0].data(), count * sizeof(float)), 0) << count;
    }
  }
}

TEST(LocalCollectives, WhatMakesNoSenseIsRefusedWithAReason) {
  Ranks ranks({0, 0});
  const auto refused = [&](const std::function<void(Prepared&)>& spoil, hvd_status code) {
    Prepared prepared(HVD_COLLECTIVE_ALLGATHER, 2, 10, 1);
    spoil(prepared);
    Ranks fresh({0, 0});
    const Status status = fresh.run(0, prepared.call);
    EXPECT_EQ(status.code, code) << status.message;
    EXPECT_FALSE(status.message.empty());
  };
  refused([](Prepared& p) { p.call.counts.clear(); }, HVD_INVALID);
  refused([](Prepared& p) { p.call.op.dtype = 77; }, HVD_INVALID);
  refused([](Prepared& p) { p.call.op.collective = 9; }, HVD_UNSUPPORTED);
  refused(
      [](Prepared& p) {
        p.call.op.collective = HVD_COLLECTIVE_BROADCAST;
        p.call.op.root = 5;
      },
      HVD_INVALID);
}

}  // namespace
}  // namespace hvd::local::test
