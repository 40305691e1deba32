// A generation's end: with which of its reasons operations end.
#include "elastic/current_generation.h"

#include <gtest/gtest.h>

#include "collective/cluster.h"

namespace hvd::elastic {
namespace {

using collective::testing::Cluster;
using collective::testing::ClusterConfig;
using collective::testing::kDeadline;
using collective::testing::named;

const Status kLost(HVD_PEER_LOST, "rank 1 is lost"), kOver(HVD_JOB_FAILED, "not enough slots");

/// Rank 0 of two, which waits in a barrier for the other.
struct Waiting {
  Waiting() {
    session::Assignment assignment;
    assignment.generation = cluster.hub.generation;
    assignment.members.resize(2);
    current.begin(assignment, {}, cluster.engines[0]);
    operation = cluster.engine(0).submit(named("x", collective::Kind::kBarrier));
  }
  CurrentGeneration::Lost lose() { return current.lose(cluster.hub.generation, kLost, Duration(0), false); }
  hvd_status end() {
    EXPECT_TRUE(operation->wait(kDeadline));
    return operation->status().code;
  }

  Cluster cluster{ClusterConfig{.size = 2}};
  CurrentGeneration current;
  collective::OperationPtr operation;
};

TEST(CurrentGeneration, ItsEndEndsOperations) {
  Waiting waiting;
  waiting.current.fail(kOver);
  EXPECT_EQ(waiting.end(), HVD_JOB_FAILED);
}

// The driver tells of a job's end in one thread while the thread that saw the loss is still on its way.
TEST(CurrentGeneration, ALossThatCameFirstIsWhatOperationsEndWith) {
  Waiting waiting;
  ASSERT_EQ(waiting.lose(), CurrentGeneration::Lost::kNow);
  waiting.current.fail(kOver);
  EXPECT_EQ(waiting.end(), HVD_PEER_LOST);
}

TEST(CurrentGeneration, WithoutAnEngineNothingFails) {
  Waiting waiting;
  bool whole = false;
  waiting.current.take_engine(kLost, &whole);
  EXPECT_TRUE(whole);
  EXPECT_EQ(waiting.end(), HVD_PEER_LOST);
  waiting.current.fail(kOver);
  EXPECT_EQ(waiting.lose(), CurrentGeneration::Lost::kBefore);
}

}  // namespace
}  // namespace hvd::elastic
