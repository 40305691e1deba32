// What the driver does for workers that use Open MPI: ompi-server, private directories, nothing left behind.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "base/loop.h"
#include "driver/mpi_rules.h"
#include "driver/mpi_server.h"
#include "launch/job_directory.h"
#include "patience.h"

namespace hvd::driver::test {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;
const auto kPatience = hvd::test::patient(std::chrono::seconds(20));

// ---- rules ----

TEST(MpiRules, WorkersNeedAServerWhereTheyUseMpi) {
  for (const char* yes : {"mpi", "mpi,nccl", "nccl+mpi"}) EXPECT_TRUE(meets_through_ompi_server(yes)) << yes;
  for (const char* no : {"", "auto", "gloo", "mpich", "nccl", "xmpi"})
    EXPECT_FALSE(meets_through_ompi_server(no)) << no;
  EXPECT_EQ(backend_of_workers("gloo", {"A=b"}), "gloo");
  EXPECT_EQ(backend_of_workers("gloo", {"HVD_BACKEND=mpi"}), "mpi") << "their own variable wins";
}

TEST(MpiRules, AddressIsToldFromOtherLines) {
  EXPECT_EQ(uri_of("1067384832.0;tcp://127.0.0.1:54007\n"), "1067384832.0;tcp://127.0.0.1:54007");
  EXPECT_EQ(uri_of("7.0;tcp://10.0.0.1:5;tcp6://[::1]:6"), "7.0;tcp://10.0.0.1:5;tcp6://[::1]:6");
  for (const char* no :
       {"", "7", "7.0", ".0;tcp://x", "7.;tcp", "warning: 7.0;tcp://127.0.0.1:5", "7.0;usock"}) {
    EXPECT_FALSE(uri_of(no)) << no;
  }
}

TEST(MpiRules, WhichMpiMeetsThroughWhat) {
  for (const char* own : {"Open MPI 5.0.11", "Open MPI 6.1.0", "Open MPI 10.0.0"})
    EXPECT_TRUE(meets_through_pmix_server(own)) << own;
  for (const char* other : {"Open MPI 4.1.4", "Open MPI", "MPICH 5.0.2", ""})
    EXPECT_FALSE(meets_through_pmix_server(other)) << other;
  EXPECT_EQ(uri_of("hvd-pmix: PMIX_NAMESPACE=hvd7|PMIX_RANK=0\n"), "PMIX_NAMESPACE=hvd7|PMIX_RANK=0");
  MpiPlace place{"PMIX_NAMESPACE=hvd7", "/tmp/s", "/dev/shm/s", true, true};
  const Strings workers = mpi_worker_environment(place, [](const std::string&) { return false; });
  const auto has = [&](const char* entry) {
    return std::find(workers.begin(), workers.end(), entry) != workers.end();
  };
  EXPECT_TRUE(has("HVD_PMIX_SERVER=PMIX_NAMESPACE=hvd7"));
  EXPECT_TRUE(has("OMPI_MCA_btl_sm_backing_directory=/dev/shm/s"));
}

TEST(MpiRules, WorkersOnOtherHostsReachTheServerWhereTheyReachTheDriver) {
  EXPECT_EQ(pmix_address("127.0.0.1:0"), "");
  EXPECT_EQ(pmix_address("[::1]:7"), "");
  EXPECT_EQ(pmix_address("10.0.0.1:7000"), "10.0.0.1");
  EXPECT_EQ(pmix_address("0.0.0.0:0"), "any");
  EXPECT_EQ(pmix_address("[fd00::1]:0"), "any");
  EXPECT_EQ(pmix_address("node1:0"), "any");
}

TEST(MpiRules, WhatTheUserHasSetStays) {
  MpiPlace place{"7.0;tcp://127.0.0.1:5", "/tmp/s", "/dev/shm/s", true};
  const auto environment = [&](const Strings& set) {
    return mpi_worker_environment(
        place, [&](const std::string& name) { return std::find(set.begin(), set.end(), name) != set.end(); });
  };
  const auto has = [](const Strings& list, const std::string& entry) {
    return std::find(list.begin(), list.end(), entry) != list.end();
  };
  const Strings all = environment({});
  EXPECT_TRUE(has(all, "OMPI_MCA_pmix_server_uri=7.0;tcp://127.0.0.1:5"));
  EXPECT_TRUE(has(all, "OMPI_MCA_orte_tmpdir_base=/tmp/s"));
  EXPECT_TRUE(has(all, "OMPI_MCA_btl_vader_backing_directory=/dev/shm/s"));
  EXPECT_TRUE(has(all, "OMPI_MCA_opal_signal=")) << "contract 10: no signal handler";
  EXPECT_TRUE(has(all, "OMPI_MCA_btl_tcp_if_include=lo"));
  const Strings less = environment({"OMPI_MCA_mpi_yield_when_idle", "OMPI_MCA_btl_tcp_if_exclude"});
  EXPECT_EQ(less.size(), all.size() - 2);
  EXPECT_FALSE(has(less, "OMPI_MCA_btl_tcp_if_include=lo")) << "include and exclude exclude each other";
  place.shared.clear();
  EXPECT_FALSE(has(environment({}), "OMPI_MCA_orte_tmpdir_base=/tmp/s"))
      << "workers elsewhere have no such directory";
}

TEST(MpiRules, ADriverUnderALauncherLeavesItsVariablesToItself) {
  const Strings given = {"PATH=/bin",
                         "PMIX_RANK=0",
                         "OMPI_COMM_WORLD_SIZE=1",
                         "OMPI_MCA_ess_base_jobid=3",
                         "OMPI_MCA_orte_hnp_uri=x",
                         "OMPI_MCA_btl=tcp"};
  EXPECT_EQ(without_launcher(given), (Strings{"PATH=/bin", "OMPI_MCA_btl=tcp"}));
  const Strings own = {"PATH=/bin", "OMPI_MCA_orte_tmpdir_base=/fast", "OMPI_MCA_pmix_server_uri=file:/x"};
  EXPECT_EQ(without_launcher(own), own) << "what the user sets without a launcher is meant";
  const Strings allocation = {"SLURM_JOBID=7",   "SLURM_JOB_ID=7", "SLURM_NODELIST=a",
                              "SLURM_STEP_ID=0", "SLURM_STEPID=0", "SLURM_JOB_NODELIST=a"};
  EXPECT_EQ(without_launcher(allocation), (Strings{"SLURM_JOB_ID=7", "SLURM_JOB_NODELIST=a"}));
  EXPECT_EQ(ompi_server_environment({"", "/tmp/s", "", false}, own),
            (Strings{"PATH=/bin", "OMPI_MCA_orte_tmpdir_base=/tmp/s"}));
}

// ---- directories ----

TEST(JobDirectory, IsRemovedWithWhatIsInItAndNothingElse) {
  const std::string foreign = launch::make_job_directory("/tmp");
  const std::string ours = launch::make_job_directory("/tmp");
  ASSERT_FALSE(ours.empty());
  struct stat info {};
  ASSERT_EQ(::stat(ours.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  std::ofstream(foreign + "/kept") << "x";
  fs::create_directories(ours + "/ompi.host.0/pid.1/0");
  std::ofstream(ours + "/ompi.host.0/pid.1/hwloc.sm") << "x";
  fs::create_directory_symlink(foreign, ours + "/link");
  EXPECT_EQ(launch::remove_job_directories({ours}, std::chrono::milliseconds(0)), Strings{});
  EXPECT_FALSE(fs::exists(ours));
  EXPECT_TRUE(fs::exists(foreign + "/kept")) << "a link is not followed";

  const std::string other = foreign + "/other";  // not by our name
  fs::create_directory(other);
  const std::string link = foreign + "/hvd-job.link";
  fs::create_directory_symlink(other, link);
  launch::remove_job_directories({other, link, "/", ""}, std::chrono::milliseconds(0));
  EXPECT_TRUE(fs::exists(other));
  EXPECT_TRUE(fs::exists(link));
  EXPECT_EQ(launch::remove_job_directories({foreign}, std::chrono::milliseconds(0)), Strings{});
}

/// A program called orted that outlives its worker: a copy of sleep, with the variable by which it is known.
pid_t start_daemon(const std::string& folder, const std::string& sessions) {
  if (!fs::exists(folder + "/orted")) fs::copy_file(launch::find_program("sleep"), folder + "/orted");
  launch::SpawnSpec spec;
  spec.path = folder + "/orted";
  spec.argv = {"sleep", "1000"};
  spec.environment = {"OMPI_MCA_orte_tmpdir_base=" + sessions};
  return launch::spawn(spec);
}

TEST(JobDirectory, DaemonsThatStayAreEndedAndThoseOfOthersAreNot) {
  const std::string ours = launch::make_job_directory("/tmp");
  const std::string foreign = launch::make_job_directory("/tmp");
  const pid_t stays = start_daemon(foreign, ours);
  const pid_t other = start_daemon(foreign, foreign);
  while (launch::daemons_in(ours).empty() || launch::daemons_in(foreign).empty())
    ::usleep(1000);  // until both have begun
  EXPECT_EQ(launch::daemons_in(ours), std::vector<pid_t>{stays});
  std::thread reaper([&] { ::waitpid(stays, nullptr, 0); });
  EXPECT_EQ(launch::remove_job_directories({ours}, std::chrono::milliseconds(50)), Strings{});
  reaper.join();
  EXPECT_FALSE(fs::exists(ours));
  EXPECT_EQ(launch::daemons_in(foreign), std::vector<pid_t>{other});
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
  launch::remove_job_directories({foreign}, std::chrono::milliseconds(0));
}

// ---- the server ----

/// A program in place of ompi-server.
class Server : public testing::Test {
 protected:
  void SetUp() override { folder_ = launch::make_job_directory("/tmp"); }
  void TearDown() override {
    run([&] { server_.reset(); });
    launch::remove_job_directories({folder_}, std::chrono::milliseconds(0));
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
    const std::string path = folder_ + "/ompi-server";
    std::ofstream(path) << "#!/bin/sh\n" << script;
    fs::permissions(path, fs::perms::owner_all);
    MpiServerConfig config;
    config.program = path;
    config.timeout = timeout;
    return start(config);
  }

  Status start(const MpiServerConfig& config) {
    run([&] {
      MpiServer::Events events;
      events.started = [this](const Status& status) { started_.set_value(status); };
      events.died = [this](const std::string& why) { died_.set_value(why); };
      server_ =
          std::make_unique<MpiServer>(loop_, config, nullptr, std::make_shared<Logger>(), std::move(events));
    });
    std::future<Status> told = started_.get_future();
    if (told.wait_for(kPatience) != std::future_status::ready) return {HVD_TIMEOUT, "nothing was told"};
    return told.get();
  }

  std::string folder_;
  std::promise<Status> started_;
  std::promise<std::string> died_;
  Loop loop_{"test"};
  std::unique_ptr<MpiServer> server_;
};

TEST_F(Server, TellsItsAddressAndLeavesNothing) {
  const Status status = start("echo a warning >&2; echo '7.0;tcp://127.0.0.1:5' >&2; exec sleep 1000\n");
  ASSERT_TRUE(status.ok()) << status.message;
  const MpiPlace place = server_->place();
  EXPECT_EQ(place.uri, "7.0;tcp://127.0.0.1:5");
  for (const std::string& directory : {place.sessions, place.shared}) {
    EXPECT_TRUE(fs::exists(directory));
    std::ofstream(directory + "/vader_segment.host.0.1") << "x";
  }
  run([&] { server_.reset(); });
  EXPECT_FALSE(fs::exists(place.sessions));
  EXPECT_FALSE(fs::exists(place.shared));
}

TEST_F(Server, ItsDeathIsTold) {
  std::future<std::string> died = died_.get_future();
  const std::string gate = folder_ + "/gate";
  ASSERT_EQ(::mkfifo(gate.c_str(), 0600), 0);
  ASSERT_TRUE(start("echo '7.0;tcp://127.0.0.1:5' >&2; read line < " + gate + "; kill -9 $$\n").ok());
  std::ofstream(gate) << "go\n";
  ASSERT_EQ(died.wait_for(kPatience), std::future_status::ready);
  EXPECT_NE(died.get().find("killed by signal 9"), std::string::npos);
}

TEST_F(Server, OneThatEndsBeforeItServesIsAnErrorWithItsWords) {
  const Status status = start("echo no network here >&2; exit 3\n");
  EXPECT_EQ(status.code, HVD_UNAVAILABLE);
  EXPECT_NE(status.message.find("exited with status 3"), std::string::npos) << status.message;
  EXPECT_NE(status.message.find("no network here"), std::string::npos) << status.message;
}

TEST_F(Server, OneThatSaysNothingIsAnErrorAtTheDeadline) {
  const Status status = start("exec sleep 1000\n", milliseconds(50));
  EXPECT_EQ(status.code, HVD_UNAVAILABLE);
  EXPECT_NE(status.message.find("did not report its address"), std::string::npos) << status.message;
}

// The program itself, with the system's libpmix.
TEST_F(Server, OfPmixServesAndSaysWhatItDoesNotFind) {
#ifdef HVD_PMIX_SERVER_FILE
  MpiServerConfig config;
  config.pmix = true;
  config.program = HVD_PMIX_SERVER_FILE;
  config.library = "libc.so.6";
  Status status = start(config);
  EXPECT_EQ(status.code, HVD_UNAVAILABLE);
  EXPECT_NE(status.message.find("libc.so.6 brings no PMIx"), std::string::npos) << status.message;
  run([&] { server_.reset(); });
  config.library = "libpmix.so.2";
  if (::dlopen(config.library.c_str(), RTLD_LAZY) == nullptr) GTEST_SKIP() << ::dlerror();
  started_ = {};
  status = start(config);
  ASSERT_TRUE(status.ok()) << status.message;
  EXPECT_TRUE(server_->place().uri.starts_with("PMIX_NAMESPACE=")) << server_->place().uri;
  EXPECT_NE(server_->place().uri.find("|PMIX_SERVER_URI"), std::string::npos) << server_->place().uri;
#else
  GTEST_SKIP() << "hvd-pmix-server is not built: PMIx's headers were not found";
#endif
}

TEST(PmixServer, IsBesideTheModuleAndSaidToBeAbsent) {
  const std::string folder = launch::make_job_directory("/tmp");
  const std::string program = folder + "/hvd-pmix-server";
  std::ofstream(program) << "#!/bin/sh\n";
  fs::permissions(program, fs::perms::owner_all);
  EXPECT_EQ(find_pmix_server("", folder + "/libhvd_mpi.so"), program);
  EXPECT_EQ(find_pmix_server(program, "/nonesuch/libhvd_mpi.so"), program);
  launch::remove_job_directories({folder}, std::chrono::milliseconds(0));
  try {
    find_pmix_server("", "/nonesuch/libhvd_mpi.so");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code, HVD_UNAVAILABLE);
    EXPECT_NE(std::string(error.what()).find("libpmix-dev"), std::string::npos) << error.what();
  }
}

TEST(OmpiServer, AnAbsentOneIsAnErrorThatNamesThePackage) {
  try {
    find_ompi_server("/nonesuch/ompi-server");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code, HVD_UNAVAILABLE);
    EXPECT_NE(std::string(error.what()).find("openmpi-bin"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace hvd::driver::test
