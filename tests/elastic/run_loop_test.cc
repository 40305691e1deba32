// The elastic loop of a worker that is alone: what a context that ends in it gives, and what a sync saves.
#include <gtest/gtest.h>

#include "base/options.h"
#include "elastic/run_loop.h"
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

}  // namespace
}  // namespace hvd::elastic
