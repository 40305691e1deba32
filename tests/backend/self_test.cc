// The built-in backend of a worker that is alone.
#include "modules/cluster.h"

namespace hvd::backend::test {
namespace {

TEST(Self, CollectivesAreCopies) {
  auto instance = make_self_instance();
  EXPECT_EQ(instance->description().name, "self");
  EXPECT_EQ(instance->description().path, "");
  std::vector<Offer> offers;
  ASSERT_TRUE(instance->offers(&offers).ok());
  ASSERT_TRUE(instance->connect(0, 0, {{1, "here", offers}}, kSoon).ok());
  for (hvd_collective collective : {HVD_COLLECTIVE_ALLREDUCE, HVD_COLLECTIVE_ALLGATHER}) {
    const std::vector<int32_t> input{1, 2, 3};
    std::vector<int32_t> output(3);
    const size_t counts[] = {3};
    Pending pending;
    hvd_backend_op op = pending.op(collective, 1);
    op.dtype = HVD_DTYPE_INT32;
    op.reduction = HVD_REDUCTION_AVERAGE;
    op.count = 3;
    op.counts = counts;
    op.input = input.data();
    op.output = output.data();
    ASSERT_TRUE(run(*instance, op, pending).ok());
    EXPECT_EQ(output, input);
  }
  Pending barrier;
  EXPECT_TRUE(run(*instance, barrier.op(HVD_COLLECTIVE_BARRIER, 2), barrier).ok());
  Pending unknown;
  EXPECT_EQ(instance->submit(unknown.op(HVD_COLLECTIVE_ALLTOALL + 10, 3)).code, HVD_UNSUPPORTED);
}

TEST(Self, ServesOneRankOnly) {
  auto instance = make_self_instance();
  const Status status = instance->connect(1, 0, {{1, "a", {}}, {2, "b", {}}}, kSoon);
  EXPECT_EQ(status.code, HVD_INVALID);
  EXPECT_NE(status.message.find("rank 0 of 2"), std::string::npos) << status.message;
  EXPECT_EQ(instance->send_message(1, {}).code, HVD_INVALID);
}

TEST(Self, NothingAfterAbort) {
  auto instance = make_self_instance();
  Pending pending;
  EXPECT_EQ(instance->submit(pending.op(HVD_COLLECTIVE_BARRIER, 1)).code, HVD_PEER_LOST);
  ASSERT_TRUE(instance->connect(5, 0, {{1, "a", {}}}, kSoon).ok());
  instance->abort(4);  // another generation
  EXPECT_TRUE(run(*instance, pending.op(HVD_COLLECTIVE_BARRIER, 1), pending).ok());
  instance->abort(5);
  Pending late;
  EXPECT_EQ(instance->submit(late.op(HVD_COLLECTIVE_BARRIER, 2)).code, HVD_PEER_LOST);
}

}  // namespace
}  // namespace hvd::backend::test
