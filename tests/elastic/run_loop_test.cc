// The elastic loop of a worker that is alone: what a context that ends in it gives, and what a sync saves.
#include "elastic/run_loop.h"

#include <gtest/gtest.h>

#include "base/options.h"
#include "support.h"

namespace hvd::elastic {
namespace {

struct Alone : ::testing::Test {
  Alone() {
    options.logger = std::make_shared<Logger>();
    worker = std::make_unique<Worker>(options);
    const Status status = worker->open(options, seconds(30));
    EXPECT_TRUE(status.ok()) << status.message;
  }
  Options options;
  std::unique_ptr<Worker> worker;
};

// A training function that gives on what its operations returned.
TEST_F(Alone, LossOfAContextThatIsAbortedGivesTheReason) {
  RunLoop loop(*worker, nullptr);
  bool again = false;
  ASSERT_TRUE(loop.next(HVD_OK, &again).ok());
  ASSERT_TRUE(again);
  worker->abort(Status(HVD_CLOSED, "the test aborts it"));
  const Status status = loop.next(HVD_PEER_LOST, &again);
  EXPECT_EQ(status.code, HVD_CLOSED);
  EXPECT_EQ(status.message, "the test aborts it");
}

TEST_F(Alone, LossAfterAShutdownGivesTheReason) {
  RunLoop loop(*worker, nullptr);
  bool again = false;
  ASSERT_TRUE(loop.next(HVD_OK, &again).ok());
  ASSERT_TRUE(worker->shutdown(seconds(30), false).ok());
  const Status status = loop.next(HVD_PEER_LOST, &again);
  EXPECT_EQ(status.code, HVD_CLOSED) << status.message;
}

// hvd.h: live values are saved first, and hvd_run calls it for each generation.
TEST_F(Alone, LiveValuesAreSavedBeforeTheFirstCall) {
  float weight = 1;
  ElasticState elastic(options.logger);
  elastic.state.add_tensor("weight", {&weight, HVD_DTYPE_FLOAT32, {1}});
  ASSERT_TRUE(sync_now(*worker, elastic).ok());
  for (const float written : {2.0F, 3.0F}) {
    weight = written;
    RunLoop loop(*worker, &elastic);
    bool again = false;
    ASSERT_TRUE(loop.next(HVD_OK, &again).ok());
    weight = -1;
    ASSERT_TRUE(elastic.state.restore().ok());
    EXPECT_EQ(weight, written);
    ASSERT_TRUE(loop.next(HVD_OK, &again).ok());
    EXPECT_FALSE(again);
  }
}

}  // namespace
}  // namespace hvd::elastic
