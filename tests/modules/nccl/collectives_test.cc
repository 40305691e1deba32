// Values of module nccl's collectives over the doubles of its libraries.
#include <numeric>

#include "modules/nccl/cluster.h"
#include "modules/nccl/values.h"
#include "numeric/dtype.h"

namespace hvd::backend::test {
namespace {

constexpr hvd_dtype kArithmetic[] = {HVD_DTYPE_UINT8,   HVD_DTYPE_INT8,     HVD_DTYPE_UINT32,
                                     HVD_DTYPE_INT32,   HVD_DTYPE_UINT64,   HVD_DTYPE_INT64,
                                     HVD_DTYPE_FLOAT16, HVD_DTYPE_BFLOAT16, HVD_DTYPE_FLOAT32,
                                     HVD_DTYPE_FLOAT64, HVD_DTYPE_BOOL};
constexpr hvd_reduction kReductions[] = {HVD_REDUCTION_SUM, HVD_REDUCTION_AVERAGE, HVD_REDUCTION_MIN,
                                         HVD_REDUCTION_MAX, HVD_REDUCTION_PRODUCT};

TEST(NcclCollectives, AllreduceOfEveryDtypeAndReduction) {
  NcclCluster cluster(4);  // averages of four are exact
  cluster.each([&](int rank, NcclWorker& worker) {
    uint64_t sequence = 0;
    for (const hvd_dtype dtype : kArithmetic) {
      for (const hvd_reduction reduction : kReductions) {
        if (dtype == HVD_DTYPE_BOOL && reduction == HVD_REDUCTION_AVERAGE) continue;
        constexpr size_t kCount = 37;
        DeviceMemory in(kCount * dtype_size(dtype), worker.device), out(in.size, worker.device);
        fill(dtype, in.data, rank, 0, kCount);
        Pending pending;
        hvd_backend_op op = worker.op(pending, HVD_COLLECTIVE_ALLREDUCE, ++sequence);
        op.dtype = dtype;
        op.reduction = reduction;
        op.input = in.data;
        op.output = sequence % 2 == 0 ? in.data : out.data;
        op.count = kCount;
        expect_ok(run(*worker.instance, op, pending));
        worker.synchronize();
        EXPECT_TRUE(same(static_cast<uint8_t*>(op.output), expected(dtype, reduction, range(4), 0, kCount)))
            << dtype_name(dtype) << " reduction " << reduction;
      }
    }
  });
}

TEST(NcclCollectives, BroadcastOfEveryDtypeMovesBytes) {
  NcclCluster cluster(3);
  cluster.each([&](int rank, NcclWorker& worker) {
    for (hvd_dtype dtype = HVD_DTYPE_UINT8; dtype <= HVD_DTYPE_BOOL; ++dtype) {
      DeviceMemory data(11 * dtype_size(dtype), worker.device);
      if (rank == 1) fill(dtype, data.data, 1, 0, 11);
      Pending pending;
      hvd_backend_op op = worker.op(pending, HVD_COLLECTIVE_BROADCAST, static_cast<uint64_t>(dtype));
      op.dtype = dtype;
      op.root = 1;
      op.output = data.data;
      op.count = 11;
      expect_ok(run(*worker.instance, op, pending));
      worker.synchronize();
      std::vector<uint8_t> wanted(data.size);
      fill(dtype, wanted.data(), 1, 0, 11);
      EXPECT_TRUE(same(data.data, wanted)) << dtype_name(dtype);
    }
  });
}

// The parts of one op are launched together, in the same group on every rank.
TEST(NcclCollectives, PartsTravelInOneGroup) {
  NcclCluster cluster(2);
  cluster.each([&](int rank, NcclWorker& worker) {
    const size_t counts[] = {5, 0, 300, 1};
    std::vector<std::unique_ptr<DeviceMemory>> memory;
    std::vector<Part> parts;
    for (const size_t count : counts) {
      memory.push_back(std::make_unique<DeviceMemory>(count * 4, worker.device));
      fill(HVD_DTYPE_FLOAT32, memory.back()->data, rank, 0, count);
      parts.push_back({memory.back()->data, memory.back()->data, count});
    }
    Pending pending;
    hvd_backend_op op = worker.op(pending, HVD_COLLECTIVE_ALLREDUCE, 1);
    op.dtype = HVD_DTYPE_FLOAT32;
    op.reduction = HVD_REDUCTION_SUM;
    expect_ok(worker.instance->submit(op, parts));
    expect_ok(pending.wait());
    worker.synchronize();
    for (size_t i = 0; i < parts.size(); ++i) {
      EXPECT_TRUE(same(memory[i]->data, expected(HVD_DTYPE_FLOAT32, HVD_REDUCTION_SUM, {0, 1}, 0, counts[i])))
          << "part " << i;
    }
  });
  const auto calls = hvddouble::calls();
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "ncclGroupStart"), 2);
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "ncclAllReduce"), 6);
}

class Counts : public testing::TestWithParam<std::vector<size_t>> {};

TEST_P(Counts, Allgather) {
  const std::vector<size_t> counts = GetParam();
  const auto n = static_cast<int>(counts.size());
  NcclCluster cluster(n);
  cluster.each([&](int rank, NcclWorker& worker) {
    const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
    const size_t mine = counts[static_cast<size_t>(rank)];
    DeviceMemory in(mine * 2, worker.device), out(total * 2, worker.device);
    fill(HVD_DTYPE_INT16, in.data, rank, 0, mine);
    Pending pending;
    hvd_backend_op op = worker.op(pending, HVD_COLLECTIVE_ALLGATHER, 1);
    op.dtype = HVD_DTYPE_INT16;
    op.input = in.data;
    op.output = out.data;
    op.count = mine;
    op.counts = counts.data();
    expect_ok(run(*worker.instance, op, pending));
    worker.synchronize();
    std::vector<uint8_t> wanted(total * 2);
    size_t at = 0;
    for (int r = 0; r < n; ++r) {
      fill(HVD_DTYPE_INT16, wanted.data() + at * 2, r, 0, counts[static_cast<size_t>(r)]);
      at += counts[static_cast<size_t>(r)];
    }
    EXPECT_TRUE(same(out.data, wanted));
  });
}

TEST_P(Counts, Reducescatter) {
  const std::vector<size_t> counts = GetParam();
  const auto n = static_cast<int>(counts.size());
  NcclCluster cluster(n);
  cluster.each([&](int rank, NcclWorker& worker) {
    const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
    size_t first = 0;
    for (int r = 0; r < rank; ++r) first += counts[static_cast<size_t>(r)];
    const size_t mine = counts[static_cast<size_t>(rank)];
    for (const bool in_place : {false, true}) {
      DeviceMemory in(total * 8, worker.device), out(mine * 8, worker.device);
      fill(HVD_DTYPE_INT64, in.data, rank, 0, total);
      Pending pending;
      hvd_backend_op op = worker.op(pending, HVD_COLLECTIVE_REDUCESCATTER, in_place ? 2 : 1);
      op.dtype = HVD_DTYPE_INT64;
      op.reduction = HVD_REDUCTION_AVERAGE;
      op.input = in.data;
      op.output = in_place ? in.data + first * 8 : out.data;
      op.count = total;
      op.counts = counts.data();
      expect_ok(run(*worker.instance, op, pending));
      worker.synchronize();
      EXPECT_TRUE(same(static_cast<uint8_t*>(op.output),
                       expected(HVD_DTYPE_INT64, HVD_REDUCTION_AVERAGE, range(n), first, mine)));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(EvenAndNot, Counts,
                         testing::Values(std::vector<size_t>{6, 6, 6}, std::vector<size_t>{7, 6, 6},
                                         std::vector<size_t>{0, 9, 0, 2}, std::vector<size_t>{5}));

TEST(NcclCollectives, AlltoallWithAnySplits) {
  constexpr int kRanks = 4;
  NcclCluster cluster(kRanks);
  const auto sent = [](int from, int to) { return static_cast<size_t>((from * 3 + to * 5) % 4); };
  cluster.each([&](int rank, NcclWorker& worker) {
    std::vector<size_t> counts;
    for (int to = 0; to < kRanks; ++to) counts.push_back(sent(rank, to));
    for (int from = 0; from < kRanks; ++from) counts.push_back(sent(from, rank));
    const size_t out_count = std::accumulate(counts.begin(), counts.begin() + kRanks, size_t{0});
    const size_t in_count = std::accumulate(counts.begin() + kRanks, counts.end(), size_t{0});
    DeviceMemory in(out_count * 2 + 1, worker.device), out(in_count * 2 + 1, worker.device);
    std::vector<uint8_t> wanted(in_count * 2);
    size_t at = 0;
    for (int to = 0; to < kRanks; ++to) {
      std::memset(in.data + at, 16 * rank + to, sent(rank, to) * 2);
      at += sent(rank, to) * 2;
    }
    at = 0;
    for (int from = 0; from < kRanks; ++from) {
      std::memset(wanted.data() + at, 16 * from + rank, sent(from, rank) * 2);
      at += sent(from, rank) * 2;
    }
    Pending pending;
    hvd_backend_op op = worker.op(pending, HVD_COLLECTIVE_ALLTOALL, 1);
    op.dtype = HVD_DTYPE_UINT16;
    op.input = in.data;
    op.output = out.data;
    op.count = out_count;
    op.counts = counts.data();
    expect_ok(run(*worker.instance, op, pending));
    worker.synchronize();
    EXPECT_TRUE(same(out.data, wanted));
  });
}

// Overlapping sets, in the same order on their members: each has a communicator of its own, made once.
TEST(NcclCollectives, SetsOfRanksHaveTheirOwnCommunicators) {
  NcclCluster cluster(4);
  const std::vector<std::vector<int32_t>> sets = {{0, 1}, {1, 3}, {0, 2, 3}, {2}, {0, 1, 2, 3}};
  cluster.each([&](int rank, NcclWorker& worker) {
    uint64_t sequence = 0;
    for (int round = 0; round < 3; ++round) {
      for (const auto& set : sets) {
        ++sequence;
        if (std::find(set.begin(), set.end(), rank) == set.end()) continue;
        DeviceMemory in(16 * 4, worker.device), out(16 * 4, worker.device);
        fill(HVD_DTYPE_INT32, in.data, rank, 0, 16);
        Pending pending;
        hvd_backend_op op = worker.op(pending, HVD_COLLECTIVE_ALLREDUCE, sequence);
        op.dtype = HVD_DTYPE_INT32;
        op.reduction = HVD_REDUCTION_SUM;
        op.input = in.data;
        op.output = out.data;
        op.count = 16;
        op.ranks = set.data();
        op.rank_count = static_cast<int32_t>(set.size());
        expect_ok(run(*worker.instance, op, pending));
        worker.synchronize();
        EXPECT_TRUE(
            same(out.data, expected(HVD_DTYPE_INT32, HVD_REDUCTION_SUM, {set.begin(), set.end()}, 0, 16)));
      }
    }
  });
  const auto calls = hvddouble::calls();
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "ncclCommInitRankConfig"), 2 + 2 + 3 + 4);
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "ncclGetUniqueId"), 4);
}

TEST(NcclCollectives, WhatNcclCantAddIsRefusedOnEveryRank) {
  NcclCluster cluster(2);
  cluster.each([&](int, NcclWorker& worker) {
    DeviceMemory data(16, worker.device);
    for (const hvd_dtype dtype : {HVD_DTYPE_UINT16, HVD_DTYPE_INT16}) {
      Pending pending;
      hvd_backend_op op = worker.op(pending, HVD_COLLECTIVE_ALLREDUCE, 1);
      op.dtype = dtype;
      op.reduction = HVD_REDUCTION_SUM;
      op.input = op.output = data.data;
      op.count = 8;
      const Status status = worker.instance->submit(op);
      EXPECT_EQ(status.code, HVD_UNSUPPORTED);
      EXPECT_NE(status.message.find(dtype_name(dtype)), std::string::npos) << status.message;
    }
  });
}

TEST(NcclCollectives, GenerationsFollowOneAnotherInPeace) {
  NcclCluster cluster(3);
  for (uint64_t generation = 1; generation <= 4; ++generation) {
    if (generation > 1) cluster.connect(generation);
    cluster.each([&](int rank, NcclWorker& worker) {
      DeviceMemory data(16 * 4, worker.device);
      fill(HVD_DTYPE_INT32, data.data, rank, 0, 16);
      Pending pending;
      hvd_backend_op op = worker.op(pending, HVD_COLLECTIVE_ALLREDUCE, 1);
      op.dtype = HVD_DTYPE_INT32;
      op.reduction = HVD_REDUCTION_SUM;
      op.input = op.output = data.data;
      op.count = 16;
      expect_ok(run(*worker.instance, op, pending));
      worker.synchronize();
      EXPECT_TRUE(same(data.data, expected(HVD_DTYPE_INT32, HVD_REDUCTION_SUM, {0, 1, 2}, 0, 16)));
      worker.instance->disconnect();
    });
  }
  for (int rank = 0; rank < 3; ++rank) cluster.drop(rank);
  const auto calls = hvddouble::calls();
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "ncclCommDestroy"), 12);
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "ncclCommAbort"), 0);
}

TEST(NcclCollectives, DifferentVersionsAreToldOfEachOperationAndDisturbNothingElse) {
  Store store;
  Inbox inbox;
  std::unique_ptr<Instance> instance;
  expect_ok(open_nccl(inbox, store, doubles(), &instance));
  std::vector<Offer> mine;
  expect_ok(instance->offers(&mine));
  std::vector<Offer> other = mine, none = mine;
  other[0].address[8] ^= 1;
  none[0].address = {1, 2, 3};
  expect_ok(instance->connect(1, 0, {{1, "a", mine}, {2, "b", other}}, kSoon));
  Pending pending;
  hvd_backend_op op = pending.op(HVD_COLLECTIVE_BARRIER, 1);
  op.memory = HVD_MEMORY_CUDA;
  const Status status = instance->submit(op);
  EXPECT_EQ(status.code, HVD_UNSUPPORTED);
  EXPECT_NE(status.message.find("rank 0 has NCCL 2.28.9 and rank 1 has 2.28.8"), std::string::npos)
      << status.message;
  EXPECT_EQ(instance->connect(2, 0, {{1, "a", mine}, {2, "b", none}}, kSoon).code, HVD_INVALID);
}

}  // namespace
}  // namespace hvd::backend::test
