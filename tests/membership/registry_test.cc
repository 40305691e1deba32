// The registry's memory of workers that have ended, in a job that restarts them for months.
#include <gtest/gtest.h>

#include "membership/worker_registry.h"

namespace hvd::membership {
namespace {

TEST(Registry, LongGoneWorkersAreForgottenButNotThoseThatAreDone) {
  WorkerStateRegistry workers;
  const Name host("a");
  const uint64_t done = workers.start(host, 0, Time()).id;
  workers.end(done, Ending::kDone, "");
  constexpr uint64_t kMany = 20000;
  uint64_t newest = 0;
  for (uint64_t i = 0; i < kMany; ++i) {
    newest = workers.start(host, 0, Time()).id;
    workers.end(newest, i % 2 == 0 ? Ending::kLost : Ending::kStopped, "it is gone");
  }
  EXPECT_NE(workers.objection(newest).find("it is gone"), std::string::npos);
  EXPECT_NE(workers.objection(newest - 1000).find("it is gone"), std::string::npos);
  EXPECT_EQ(workers.objection(done + 1), "worker 2 is unknown to this job");
  EXPECT_EQ(workers.ending(done), Ending::kDone);
  EXPECT_EQ(workers.next(), newest + 1) << "no identity is used twice";
}

}  // namespace
}  // namespace hvd::membership
