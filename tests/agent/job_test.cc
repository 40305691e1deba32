// Workers run under their agents, print, and end as the driver or their agent says.
#include <signal.h>

#include <set>

#include "agent/job_fixture.h"

namespace hvd::agent {
namespace {

TEST_F(AgentJob, WorkersRunUnderTheirAgentsAndEndWithTheJob) {
  start_driver({"sh", "-c", "echo \"$HVD_SLOT $MINE\"; exec sleep 1000"}, "2");
  Agent* const a = agent("a");
  Agent* const b = agent("b");
  ASSERT_TRUE(wait_lines(2));
  EXPECT_EQ(std::set<std::string>(lines_.begin(), lines_.end()),
            (std::set<std::string>{"a: 0 yes", "b: 0 yes"}));
  driver_->stop("enough");
  EXPECT_EQ(driver_->wait(kDeadline).code, HVD_JOB_FAILED);
  driver_.reset();
  EXPECT_EQ(a->wait(kDeadline).code, HVD_JOB_FAILED);
  EXPECT_EQ(b->wait(kDeadline).code, HVD_JOB_FAILED);
}

TEST_F(AgentJob, AllThatAWorkerPrintsArrivesInOrder) {
  start_driver({"sh", "-c", "seq 300000; exec sleep 1000"}, "1");
  agent("a");
  ASSERT_TRUE(wait_lines(300000));
  events_.read([&] {
    for (size_t i = 0; i < lines_.size(); ++i) {
      if (lines_[i] != "a: " + std::to_string(i + 1)) {
        ADD_FAILURE() << "line " << i + 1 << " is " << lines_[i];
        break;
      }
    }
    return 0;
  });
}

TEST_F(AgentJob, AnAgentThatIsDestroyedLeavesNothingBehind) {
  start_driver({"sh", "-c", "trap '' TERM; echo $$; while true; do sleep 1; done"}, "1");
  agent("a");
  ASSERT_TRUE(wait_lines(1));
  const pid_t worker = std::stoi(lines_[0].substr(3));
  agents_.clear();
  EXPECT_NE(::kill(worker, 0), 0);
}

TEST_F(AgentJob, AnAgentThatIsToldToStopEndsItsWorkersAndSaysSo) {
  start_driver({"sh", "-c", "echo $$; exec sleep 1000"}, "1");
  Agent* const a = agent("a");
  ASSERT_TRUE(wait_lines(1));
  a->stop("a test");
  const Status status = a->wait(kDeadline);
  EXPECT_EQ(status.code, HVD_CLOSED);
  EXPECT_EQ(status.message, "a test");
  EXPECT_TRUE(log_.wait_for("the agent of host a has left: a test"));
}

TEST_F(AgentJob, ASecondAgentOfAHostWaitsAndGivesUp) {
  start_driver({"sh", "-c", "echo here; exec sleep 1000"}, "1");
  agent("a");
  ASSERT_TRUE(wait_lines(1));
  Agent* const again = agent("a", "0.5");
  const Status status = again->wait(kDeadline);
  EXPECT_EQ(status.code, HVD_DRIVER_LOST);
  EXPECT_NE(status.message.find("has another agent"), std::string::npos) << status.message;
}

}  // namespace
}  // namespace hvd::agent
