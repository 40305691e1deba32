// The check of operations: what is wrong is named before anything is touched, and what is borrowed is copied.
#include "modules/kit/task.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>

#include "hvd/backend.hpp"

namespace hvdkit {
namespace {

void done(void*, hvd_status, const hvd_error*) {}

float g_data[64];

hvd_backend_op op_of(hvd_collective collective, size_t count = 4) {
  hvd_backend_op op{};
  op.struct_size = sizeof(op);
  op.collective = collective;
  op.dtype = HVD_DTYPE_FLOAT32;
  op.reduction = HVD_REDUCTION_SUM;
  op.input = op.output = g_data;
  op.count = count;
  op.done = done;
  op.sequence = 9;
  return op;
}

// Rank 1 of 3.
std::string refusal(const hvd_backend_op& op, hvd_memory memory = HVD_MEMORY_HOST) {
  try {
    checked(op, memory, 1, 3);
  } catch (const Failure& failure) { return std::to_string(failure.status) + " " + failure.what(); }
  return "";
}
std::string invalid(const std::string& text) { return std::to_string(HVD_INVALID) + " op 9: " + text; }
std::string unsupported(const std::string& text) { return std::to_string(HVD_UNSUPPORTED) + " " + text; }

TEST(KitTask, EveryCollectiveHasItsOwnRules) {
  const size_t counts[] = {3, 4, 5, 2, 4, 6};
  for (const hvd_collective c :
       {HVD_COLLECTIVE_BROADCAST, HVD_COLLECTIVE_ALLREDUCE, HVD_COLLECTIVE_BARRIER, HVD_COLLECTIVE_ALLGATHER,
        HVD_COLLECTIVE_REDUCESCATTER, HVD_COLLECTIVE_ALLTOALL}) {
    hvd_backend_op op = op_of(c, c == HVD_COLLECTIVE_REDUCESCATTER || c == HVD_COLLECTIVE_ALLTOALL ? 12 : 4);
    op.counts = counts;
    EXPECT_EQ(refusal(op), "") << c;
    const Task task = checked(op, HVD_MEMORY_HOST, 1, 3);
    EXPECT_EQ(task.ranks, (std::vector<int>{0, 1, 2}));
    EXPECT_EQ(task.me, 1);
    EXPECT_EQ(task.op.counts, nullptr);
    const bool whole = c == HVD_COLLECTIVE_BROADCAST || c == HVD_COLLECTIVE_ALLREDUCE;
    EXPECT_EQ(task.parts.size(), whole ? 1U : 0U);
    const size_t parts = whole || c == HVD_COLLECTIVE_BARRIER ? 0 : c == HVD_COLLECTIVE_ALLTOALL ? 6 : 3;
    EXPECT_EQ(task.counts.size(), parts);
    op.output = nullptr;
    EXPECT_EQ(refusal(op), c == HVD_COLLECTIVE_BARRIER ? "" : invalid("input or output is NULL")) << c;
  }
}

TEST(KitTask, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(refusal(op_of(HVD_COLLECTIVE_JOIN)),
            unsupported("collective " + std::to_string(HVD_COLLECTIVE_JOIN) + " is not supported"));
  hvd_backend_op op = op_of(HVD_COLLECTIVE_ALLREDUCE);
  op.memory = HVD_MEMORY_CUDA;
  EXPECT_EQ(refusal(op), unsupported("memory of kind 1 is not supported"));
  EXPECT_EQ(refusal(op_of(HVD_COLLECTIVE_ALLREDUCE), HVD_MEMORY_CUDA),
            unsupported("host memory is not supported"));
  op = op_of(HVD_COLLECTIVE_ALLREDUCE);
  op.dtype = 99;
  EXPECT_EQ(refusal(op), unsupported("dtype 99 is not supported"));
  op = op_of(HVD_COLLECTIVE_ALLREDUCE);
  op.reduction = 77;
  EXPECT_EQ(refusal(op), invalid("reduction 77"));
  op.dtype = HVD_DTYPE_BOOL;
  op.reduction = HVD_REDUCTION_AVERAGE;
  EXPECT_EQ(refusal(op), unsupported("the average of bool is not supported"));
  op = op_of(HVD_COLLECTIVE_BROADCAST);
  op.done = nullptr;
  EXPECT_EQ(refusal(op), invalid("done is NULL"));
  op = op_of(HVD_COLLECTIVE_BROADCAST);
  op.sequence = uint64_t{1} << 63;
  EXPECT_EQ(refusal(op),
            std::to_string(HVD_INVALID) + " op 9223372036854775808: the sequence is beyond 2^63");
}

TEST(KitTask, RanksAscendAndHaveThisOneAndTheRoot) {
  const auto with = [](std::vector<int32_t> ranks, int32_t root) {
    hvd_backend_op op = op_of(HVD_COLLECTIVE_BROADCAST);
    op.rank_count = static_cast<int32_t>(ranks.size());
    ranks.reserve(1);  // NULL would mean all
    op.ranks = ranks.data();
    op.root = root;
    return refusal(op);
  };
  EXPECT_EQ(with({1, 2}, 2), "");
  EXPECT_EQ(with({1, 2}, 0), invalid("root 0 takes no part in it"));
  EXPECT_EQ(with({0, 2}, 2), invalid("rank 1 takes no part in it"));
  for (const auto& ranks : {std::vector<int32_t>{1, 1}, {2, 1}, {-1, 1}, {1, 3}}) {
    EXPECT_EQ(with(ranks, 1), invalid("ranks must ascend and be below 3"));
  }
  EXPECT_EQ(with({}, 1), invalid("rank 1 takes no part in it"));
}

TEST(KitTask, CountsAgreeWithCountAndFitIntoMemory) {
  hvd_backend_op op = op_of(HVD_COLLECTIVE_ALLGATHER, 5);
  EXPECT_EQ(refusal(op), invalid("counts is NULL"));
  size_t counts[] = {3, 4, 5, 2, 4, 6};
  op.counts = counts;
  EXPECT_EQ(refusal(op), invalid("count must be this rank's entry of counts (count is 5)"));
  op = op_of(HVD_COLLECTIVE_REDUCESCATTER, 11);
  op.counts = counts;
  EXPECT_EQ(refusal(op),
            invalid("count must be the sum of counts' first entries, one for each rank (count is 11)"));
  op = op_of(HVD_COLLECTIVE_ALLTOALL, 12);
  op.counts = counts;
  counts[4] = 3;
  EXPECT_EQ(refusal(op), invalid("this rank sends to itself what it receives from itself (count is 12)"));
  counts[0] = std::numeric_limits<size_t>::max() / 4;
  EXPECT_EQ(refusal(op), invalid("counts are more than memory can hold"));
  op = op_of(HVD_COLLECTIVE_ALLREDUCE, std::numeric_limits<size_t>::max() / 4 + 1);
  EXPECT_EQ(refusal(op), invalid("a count of " + std::to_string(op.count) + " is more than memory can hold"));
}

TEST(KitTask, PartsAreForDeviceMemory) {
  hvd_backend_part parts[] = {{g_data, g_data, 2}, {nullptr, nullptr, 0}, {g_data + 2, g_data + 2, 3}};
  hvd_backend_op op = op_of(HVD_COLLECTIVE_ALLREDUCE, 5);
  op.input = nullptr;
  op.output = nullptr;
  op.parts = parts;
  op.part_count = 3;
  EXPECT_EQ(refusal(op), invalid("parts of host memory: they are for device memory alone"));
  op.memory = HVD_MEMORY_CUDA;
  const Task task = checked(op, HVD_MEMORY_CUDA, 1, 3);
  ASSERT_EQ(task.parts.size(), 3U);
  EXPECT_EQ(task.parts[2].input, g_data + 2);
  EXPECT_EQ(task.op.parts, nullptr);
  parts[1].count = std::numeric_limits<size_t>::max() / 4;
  EXPECT_EQ(refusal(op, HVD_MEMORY_CUDA),
            invalid("a count of " + std::to_string(parts[1].count) + " is more than memory can hold"));
  parts[1].count = 1;
  EXPECT_EQ(refusal(op, HVD_MEMORY_CUDA), invalid("input or output is NULL"));
  op.parts = nullptr;
  EXPECT_EQ(refusal(op, HVD_MEMORY_CUDA), invalid("parts is NULL"));
}

TEST(KitTask, AnOlderLibrarysOpHasNoParts) {
  alignas(hvd_backend_op) uint8_t room[sizeof(hvd_backend_op)];
  std::memset(room, 0xee, sizeof(room));
  hvd_backend_op op = op_of(HVD_COLLECTIVE_ALLREDUCE);
  op.struct_size = offsetof(hvd_backend_op, parts);
  std::memcpy(room, &op, op.struct_size);  // what follows is not the op's
  const auto* old = reinterpret_cast<const hvd_backend_op*>(room);
  const Task task = checked(*old, HVD_MEMORY_HOST, 1, 3);
  EXPECT_EQ(task.parts.size(), 1U);
  op.struct_size = 40;
  EXPECT_EQ(refusal(op), std::to_string(HVD_INVALID) + " an op of struct_size 40");
}

}  // namespace
}  // namespace hvdkit
