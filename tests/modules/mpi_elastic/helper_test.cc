// What runs beside an elastic job on Open MPI: hvd-mpi-helper, its rules, the server that it starts, nothing
// left behind.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "launch/job_directory.h"
#include "launch/process.h"
#include "modules/mpi_elastic/helper/rules.h"
#include "modules/mpi_elastic/helper/sessions.h"

namespace hvdmpi::helper::test {
namespace {

namespace fs = std::filesystem;

// ---- rules ----

TEST(MpiRules, AddressIsToldFromOtherLines) {
  EXPECT_EQ(uri_of("1067384832.0;tcp://127.0.0.1:54007\n"), "1067384832.0;tcp://127.0.0.1:54007");
  EXPECT_EQ(uri_of("7.0;tcp://10.0.0.1:5;tcp6://[::1]:6"), "7.0;tcp://10.0.0.1:5;tcp6://[::1]:6");
  for (const char* no :
       {"", "7", "7.0", ".0;tcp://x", "7.;tcp", "warning: 7.0;tcp://127.0.0.1:5", "7.0;usock"}) {
    EXPECT_FALSE(uri_of(no)) << no;
  }
}

bool has(const Strings& lines, const std::string& line) {
  return std::find(lines.begin(), lines.end(), line) != lines.end();
}

TEST(MpiRules, WorkersOfOpenMpi5GetThePmixServersAddress) {
  EXPECT_EQ(uri_of("hvd-pmix: PMIX_NAMESPACE=hvd7|PMIX_RANK=0\n"), "PMIX_NAMESPACE=hvd7|PMIX_RANK=0");
  const Strings lines = worker_variables({"PMIX_NAMESPACE=hvd7", "/tmp/s", "/dev/shm/s", true, true}, {});
  EXPECT_TRUE(has(lines, "set HVD_PMIX_SERVER=PMIX_NAMESPACE=hvd7"));
  EXPECT_TRUE(has(lines, "default OMPI_MCA_btl_sm_backing_directory=/dev/shm/s"));
}

TEST(MpiRules, WorkersOnOtherHostsReachTheServerWhereTheyReachTheDriver) {
  EXPECT_EQ(pmix_address("127.0.0.1:0"), "");
  EXPECT_EQ(pmix_address("[::1]:7"), "");
  EXPECT_EQ(pmix_address("10.0.0.1:7000"), "10.0.0.1");
  EXPECT_EQ(pmix_address("0.0.0.0:0"), "any");
  EXPECT_EQ(pmix_address("[fd00::1]:0"), "any");
  EXPECT_EQ(pmix_address("node1:0"), "any");
}

TEST(MpiRules, WorkersOfOneHostStayOnItsLoopbackAndInTheJobsDirectories) {
  Place place{"7.0;tcp://127.0.0.1:5", "/tmp/s", "/dev/shm/s", true};
  const Strings all = worker_variables(place, {});
  EXPECT_TRUE(has(all, "set OMPI_MCA_pmix_server_uri=7.0;tcp://127.0.0.1:5"));
  EXPECT_TRUE(has(all, "default OMPI_MCA_orte_tmpdir_base=/tmp/s"));
  EXPECT_TRUE(has(all, "default OMPI_MCA_btl_vader_backing_directory=/dev/shm/s"));
  EXPECT_TRUE(has(all, "default OMPI_MCA_btl_tcp_if_include=lo"));
  const Strings less = worker_variables(place, {"OMPI_MCA_btl_tcp_if_exclude=eth0"});
  EXPECT_EQ(less.size(), all.size() - 1) << "include and exclude exclude each other";
  EXPECT_FALSE(has(less, "default OMPI_MCA_btl_tcp_if_include=lo"));
  place.shared.clear();
  EXPECT_FALSE(has(worker_variables(place, {}), "default OMPI_MCA_orte_tmpdir_base=/tmp/s"))
      << "workers elsewhere have no such directory";
}

TEST(MpiRules, AServerThatTheUserNamesIsUsed) {
  EXPECT_TRUE(names_server({"OMPI_MCA_pmix_server_uri=file:/x"}, false));
  EXPECT_FALSE(names_server({"OMPI_MCA_pmix_server_uri=file:/x"}, true));
  EXPECT_TRUE(names_server({"HVD_PMIX_SERVER=x"}, true));
  EXPECT_FALSE(names_server({"HVD_PMIX_SERVER=x", "HVD_WORKER=3"}, true)) << "that is another job's";
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
  EXPECT_EQ(left_by_launcher(allocation).size(), 4u);
}

TEST(MpiRules, TheServerGetsNeitherTheSecretNorAnotherServer) {
  EXPECT_EQ(server_environment({"", "/tmp/s", "", false}, {"PATH=/bin", "HVD_SECRET=x", "HVD_PMIX_SERVER=y",
                                                           "OMPI_MCA_orte_tmpdir_base=/fast"}),
            (Strings{"PATH=/bin", "OMPI_MCA_orte_tmpdir_base=/tmp/s"}));
}

// ---- what workers leave ----

/// A program called orted that outlives its worker: a copy of sleep, with the variable by which it is known.
pid_t start_daemon(const std::string& folder, const std::string& sessions) {
  if (!fs::exists(folder + "/orted")) fs::copy_file(hvd::launch::find_program("sleep"), folder + "/orted");
  hvd::launch::SpawnSpec spec;
  spec.path = folder + "/orted";
  spec.argv = {"sleep", "1000"};
  spec.environment = {"OMPI_MCA_orte_tmpdir_base=" + sessions};
  return hvd::launch::spawn(spec);
}

TEST(MpiSessions, DaemonsThatStayAreEndedAndThoseOfOthersAreNot) {
  const std::string ours = hvd::launch::make_job_directory("/tmp");
  const std::string foreign = hvd::launch::make_job_directory("/tmp");
  const pid_t stays = start_daemon(foreign, ours);
  const pid_t other = start_daemon(foreign, foreign);
  while (daemons_in(ours).empty() || daemons_in(foreign).empty()) ::usleep(1000);  // until both have begun
  EXPECT_EQ(daemons_in(ours), std::vector<pid_t>{stays});
  std::thread reaper([&] { ::waitpid(stays, nullptr, 0); });
  end_daemons(ours, std::chrono::milliseconds(50));
  reaper.join();
  EXPECT_EQ(daemons_in(foreign), std::vector<pid_t>{other});
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
  hvd::launch::remove_job_directories({ours, foreign});
}

// ---- the programs ----

/// Runs it with `variables` until it has ended or said a line that begins with `until`, and ends it then; all
/// that it said.
std::string run(const std::vector<std::string>& words, const Strings& variables,
                const std::string& until = "\n") {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  hvd::launch::SpawnSpec spec;
  spec.path = words[0];
  spec.argv = words;
  spec.environment = hvd::launch::merged_environment(variables);
  spec.out = spec.err = ends[1];
  const pid_t pid = hvd::launch::spawn(spec);
  close(ends[1]);
  std::string said, line;
  FILE* const output = fdopen(ends[0], "r");
  for (int c = 0; (c = fgetc(output)) != EOF;) {
    said += static_cast<char>(c);
    line += static_cast<char>(c);
    if (c != '\n') continue;
    if (line.rfind(until, 0) == 0) kill(pid, SIGTERM);
    line.clear();
  }
  fclose(output);
  waitpid(pid, nullptr, 0);
  return said;
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class MpiHelper : public testing::Test {
 protected:
  void SetUp() override { folder_ = hvd::launch::make_job_directory("/tmp"); }
  void TearDown() override { hvd::launch::remove_job_directories({folder_}); }

  std::string help(const std::string& script, const Strings& more = {}, const std::string& until = "ready") {
    const std::string path = folder_ + "/server";
    std::ofstream(path) << "#!/bin/sh\n" << script;
    fs::permissions(path, fs::perms::owner_all);
    Strings variables = {"HVD_OMPI_SERVER=" + path};
    variables.insert(variables.end(), more.begin(), more.end());
    return run({HVD_MPI_HELPER_FILE, "directory=" + folder_, "memory=" + folder_, "listen=127.0.0.1:0",
                "interface=", "local=1"},
               variables, until);
  }
  std::string folder_;
};

TEST_F(MpiHelper, SaysTheServersAddressAndEndsIt) {
  const std::string said = help("echo a warning >&2; echo $$ > " + folder_ +
                                "/pid; echo '7.0;tcp://127.0.0.1:5' >&2; exec sleep 1000\n");
  EXPECT_TRUE(holds(said, "=7.0;tcp://127.0.0.1:5\n")) << said;
  EXPECT_TRUE(holds(said, "default OMPI_MCA_orte_tmpdir_base=" + folder_ + "\n")) << said;
  EXPECT_TRUE(holds(said, "\nready\n")) << said;
  pid_t server = 0;
  std::ifstream(folder_ + "/pid") >> server;
  ASSERT_GT(server, 0);
  EXPECT_NE(kill(server, 0), 0) << "the server lives on";
}

TEST_F(MpiHelper, TheServersDeathIsItsOwn) {
  const std::string said = help("echo '7.0;tcp://127.0.0.1:5' >&2; kill -9 $$\n", {}, "(it ends by itself)");
  EXPECT_TRUE(holds(said, ") was killed by signal 9\n")) << said;
}

TEST_F(MpiHelper, TheServerHasNoSecret) {
  const std::string said =
      help("echo secret: ${HVD_SECRET:-none} >&2; echo '7.0;tcp://127.0.0.1:5' >&2; exec sleep 1000\n",
           {"HVD_SECRET=s3cret"});
  EXPECT_TRUE(holds(said, "secret: none\n")) << said;
}

TEST_F(MpiHelper, WhatALauncherHasLeftIsTakenFromTheWorkers) {
  const std::string said = help("echo '7.0;tcp://127.0.0.1:5' >&2; exec sleep 1000\n",
                                {"OMPI_COMM_WORLD_SIZE=2", "SLURM_JOBID=1"});
  EXPECT_TRUE(holds(said, "unset OMPI_COMM_WORLD_SIZE\n")) << said;
  EXPECT_TRUE(holds(said, "unset SLURM_JOBID\n")) << said;
}

TEST_F(MpiHelper, AnAbsentServerIsAnErrorThatNamesThePackage) {
  const std::string said = help("", {"HVD_OMPI_SERVER=/nonesuch/server"});
  EXPECT_TRUE(holds(said, "no program '/nonesuch/server'")) << said;
  EXPECT_TRUE(holds(said, "package ")) << said;
  EXPECT_FALSE(holds(said, "ready")) << said;
}

TEST_F(MpiHelper, WithoutAServerWorkersAreToldTheRest) {
  const std::string said = help("", {"HVD_OMPI_SERVER=off"});
  EXPECT_TRUE(holds(said, "ready\n")) << said;
  EXPECT_TRUE(holds(said, "default OMPI_MCA_btl_tcp_if_include=lo\n")) << said;
}

#ifdef HVD_PMIX_SERVER_FILE
// The program itself, with the system's libpmix.
TEST_F(MpiHelper, OfPmixServesAndSaysWhatItDoesNotFind) {
  const std::string without = run({HVD_PMIX_SERVER_FILE, "libc.so.6", folder_}, {});
  EXPECT_TRUE(holds(without, "libc.so.6 brings no PMIx")) << without;
  if (dlopen("libpmix.so.2", RTLD_LAZY) == nullptr) GTEST_SKIP() << dlerror();
  const std::string said = run({HVD_PMIX_SERVER_FILE, "libpmix.so.2", folder_}, {}, "hvd-pmix: ");
  EXPECT_TRUE(holds(said, "hvd-pmix: PMIX_NAMESPACE=")) << said;
  EXPECT_TRUE(holds(said, "|PMIX_SERVER_URI")) << said;
}
#endif

}  // namespace
}  // namespace hvdmpi::helper::test
