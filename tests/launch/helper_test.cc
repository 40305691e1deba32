// The program that a backend needs beside a job, and the directories that go with the job.
#include "launch/helper.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "launch/job_directory.h"
#include "patience.h"

namespace hvd::launch::test {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;
const auto kPatience = hvd::test::patient(std::chrono::seconds(20));

TEST(JobDirectory, IsRemovedWithWhatIsInItAndNothingElse) {
  const std::string foreign = make_job_directory("/tmp");
  const std::string ours = make_job_directory("/tmp");
  ASSERT_FALSE(ours.empty());
  struct stat info {};
  ASSERT_EQ(::stat(ours.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  std::ofstream(foreign + "/kept") << "x";
  fs::create_directories(ours + "/ompi.host.0/pid.1/0");
  std::ofstream(ours + "/ompi.host.0/pid.1/hwloc.sm") << "x";
  fs::create_directory_symlink(foreign, ours + "/link");
  EXPECT_EQ(remove_job_directories({ours}), Strings{});
  EXPECT_FALSE(fs::exists(ours));
  EXPECT_TRUE(fs::exists(foreign + "/kept")) << "a link is not followed";

  const std::string other = foreign + "/other";  // not by our name
  fs::create_directory(other);
  const std::string link = foreign + "/hvd-job.link";
  fs::create_directory_symlink(other, link);
  remove_job_directories({other, link, "/", ""});
  EXPECT_TRUE(fs::exists(other));
  EXPECT_TRUE(fs::exists(link));
  EXPECT_EQ(remove_job_directories({foreign}), Strings{});
}

class HelperTest : public testing::Test {
 protected:
  void SetUp() override { folder_ = make_job_directory("/tmp"); }
  void TearDown() override {
    run([&] { helper_.reset(); });
    remove_job_directories({folder_});
  }

  template <class F>
  void run(F fn) {
    std::promise<void> done;
    loop_.post([&] {
      fn();
      done.set_value();
    });
    done.get_future().get();
  }

  Status start(const std::string& script, Duration timeout = seconds(20)) {
    HelperConfig config;
    config.program = folder_ + "/helper";
    std::ofstream(config.program) << "#!/bin/sh\n" << script;
    fs::permissions(config.program, fs::perms::owner_all);
    config.timeout = timeout;
    config.environment = merged_environment({"GIVEN=yes", "HVD_SECRET=s3cret", "HVD_SECRET_FILE=/there"});
    config.listen = "127.0.0.1:0";
    run([&] {
      Helper::Events events;
      events.started = [this](const Status& status) { started_.set_value(status); };
      events.died = [this](const std::string& why) { died_.set_value(why); };
      helper_ =
          std::make_unique<Helper>(loop_, config, nullptr, std::make_shared<Logger>(), std::move(events));
    });
    std::future<Status> told = started_.get_future();
    if (told.wait_for(kPatience) != std::future_status::ready) return {HVD_TIMEOUT, "nothing was told"};
    return told.get();
  }

  std::string folder_;
  std::promise<Status> started_;
  std::promise<std::string> died_;
  Loop loop_{"test"};
  std::unique_ptr<Helper> helper_;
};

TEST_F(HelperTest, SaysWhatWorkersNeedAndLeavesNothing) {
  const Status status = start(
      "for word; do case $word in directory=*|memory=*) echo set ${word%%=*}=${word#*=}; touch ${word#*=}/left;; esac; done\n"
      "echo default GIVEN=no; echo default ADDED=a=b; echo unset GONE; echo set SECRET=$HVD_SECRET$HVD_SECRET_FILE.\n"
      "echo for people >&2; echo ready; echo set LATE=1; exec sleep 1000\n");
  ASSERT_TRUE(status.ok()) << status.message;
  const Strings added = helper_->variables().added_to({"GIVEN=yes", "GONE=1"});
  ASSERT_EQ(added.size(), 4u);
  Strings places;
  for (const std::string& entry : {added[0], added[1]}) places.push_back(entry.substr(entry.find('=') + 1));
  EXPECT_TRUE(added[0].starts_with("directory=/tmp/hvd-job.") || added[0].starts_with("directory="))
      << added[0];
  EXPECT_TRUE(added[1].starts_with("memory=/dev/shm/hvd-job.")) << added[1];
  EXPECT_EQ(added[2], "ADDED=a=b");
  EXPECT_EQ(added[3], "SECRET=.") << "the job's secret is not the helper's";
  EXPECT_EQ(helper_->variables().without({"GIVEN=yes", "GONE=1"}), Strings{"GIVEN=yes"});
  for (const std::string& place : places) EXPECT_TRUE(fs::exists(place + "/left")) << place;
  run([&] { helper_.reset(); });
  for (const std::string& place : places) EXPECT_FALSE(fs::exists(place)) << place;
}

TEST_F(HelperTest, IsAskedToEndAndHasAMomentForIt) {
  ASSERT_TRUE(
      start("trap 'echo bye > " + folder_ + "/bye; exit 0' TERM; echo ready; while :; do sleep 0.01; done\n")
          .ok());
  run([&] { helper_.reset(); });
  EXPECT_TRUE(fs::exists(folder_ + "/bye"));
}

TEST_F(HelperTest, ItsDeathIsTold) {
  std::future<std::string> died = died_.get_future();
  const std::string gate = folder_ + "/gate";
  ASSERT_EQ(::mkfifo(gate.c_str(), 0600), 0);
  ASSERT_TRUE(start("echo ready; read line < " + gate + "; echo no more power >&2; kill -9 $$\n").ok());
  std::ofstream(gate) << "go\n";
  ASSERT_EQ(died.wait_for(kPatience), std::future_status::ready);
  const std::string why = died.get();
  EXPECT_NE(why.find("killed by signal 9"), std::string::npos) << why;
  EXPECT_NE(why.find("no more power"), std::string::npos) << why;
}

TEST_F(HelperTest, OneThatEndsBeforeItIsReadyIsAnErrorWithItsWords) {
  const Status status = start("echo no network here >&2; exit 3\n");
  EXPECT_EQ(status.code, HVD_UNAVAILABLE);
  EXPECT_NE(status.message.find("exited with status 3"), std::string::npos) << status.message;
  EXPECT_NE(status.message.find("no network here"), std::string::npos) << status.message;
}

TEST_F(HelperTest, OneThatSaysNothingIsAnErrorAtTheDeadline) {
  const Status status = start("exec sleep 1000\n", milliseconds(50));
  EXPECT_EQ(status.code, HVD_UNAVAILABLE);
  EXPECT_NE(status.message.find("was not ready within"), std::string::npos) << status.message;
}

}  // namespace
}  // namespace hvd::launch::test
