// hvdrun as its users meet it: arguments, exit statuses, signals, and nothing left behind.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "base/clock.h"
#include "launch/process.h"
#include "loop_support.h"

namespace hvd::launch {
namespace {

class Hvdrun : public ::testing::Test {
 protected:
  void start(std::vector<std::string> arguments, std::vector<std::string> environment = {}) {
    arguments.insert(arguments.begin(), "hvdrun");
    SpawnSpec spec;
    spec.path = HVDRUN_FILE;
    spec.argv = std::move(arguments);
    spec.environment = merged_environment(environment);
    out_ = ::open(folder.path("out").c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    err_ = ::open(folder.path("err").c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    spec.out = out_;
    spec.err = err_;
    pid = spawn(spec);
    ::close(out_);
    ::close(err_);
  }
  /// As a shell counts: 128 + signal for one that was killed.
  int wait() {
    int status = 0;
    const bool ended = test::eventually([&] { return ::waitpid(pid, &status, WNOHANG) == pid; });
    if (!ended) {
      ::kill(-pid, SIGKILL);
      ::waitpid(pid, &status, 0);
      ADD_FAILURE() << "hvdrun goes on: " << err();
    }
    pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  int run(std::vector<std::string> arguments, std::vector<std::string> environment = {}) {
    start(std::move(arguments), std::move(environment));
    return wait();
  }
  std::string out() const { return test::read_file(folder.path("out")); }
  std::string err() const { return test::read_file(folder.path("err")); }
  bool printed(const std::string& part) {
    return test::eventually([&] { return out().find(part) != std::string::npos; });
  }
  std::string last_line() const {
    std::string text = err();
    if (!text.empty() && text.back() == '\n') text.pop_back();
    return text.substr(text.rfind('\n') + 1);
  }
  void TearDown() override {
    if (pid > 0) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }

  test::Folder folder;
  pid_t pid = -1;

 private:
  int out_ = -1, err_ = -1;
};

TEST_F(Hvdrun, TellsItsVersion) {
  EXPECT_EQ(run({"--version"}), 0);
  EXPECT_NE(out().find("hvdrun " HVD_VERSION_STRING), std::string::npos);
}

TEST_F(Hvdrun, HelpListsTheOptions) {
  EXPECT_EQ(run({"--help"}), 0);
  for (const char* part : {"--min-np", "--host-discovery-script", "heartbeat_interval"}) {
    EXPECT_NE(out().find(part), std::string::npos) << part;
  }
}

struct Wrong {
  std::vector<std::string> arguments;
  std::string message;
};
class HvdrunUsage : public Hvdrun, public ::testing::WithParamInterface<Wrong> {};

TEST_P(HvdrunUsage, IsRefusedWithTheReason) {
  EXPECT_EQ(run(GetParam().arguments), 2) << err();
  EXPECT_NE(err().find(GetParam().message), std::string::npos) << err();
  EXPECT_EQ(out(), "");
}

INSTANTIATE_TEST_SUITE_P(
    Errors, HvdrunUsage,
    ::testing::Values(Wrong{{}, "no command"}, Wrong{{"-np", "2"}, "no command"},
                      Wrong{{"-np", "x", "true"}, "np"}, Wrong{{"--bogus", "true"}, "--bogus"},
                      Wrong{{"-np", "2", "--min-np", "3", "true"}, "min_np is 3"},
                      Wrong{{"-H", "a:1,a:1", "true"}, "named twice"},
                      Wrong{{"-H", "a:1", "--host-discovery-script", "x", "true"}, "discovery_script"},
                      Wrong{{"--set", "nonsense=1", "true"}, "nonsense"},
                      Wrong{{"--set", "np", "true"}, "KEY=VALUE"},
                      Wrong{{"--set", "secret=0123456789", "true"}, "HVD_SECRET"},
                      Wrong{{"-x", "HVD_SECRET=0123456789", "true"}, "list of processes"},
                      Wrong{{"-x", "SURELY_NOT_SET", "true"}, "SURELY_NOT_SET"},
                      Wrong{{"--blocklist-cooldown-range", "5", "1", "true"}, "blocklist_cooldown_min is 5"},
                      Wrong{{"--heartbeat-timeout", "1", "true"}, "heartbeat_timeout is 1"}));

TEST_F(Hvdrun, CommandNotFound) {
  EXPECT_EQ(run({"-np", "2", "no-such-program"}), 75);
  EXPECT_NE(last_line().find("hvdrun: job failed: command not found: no-such-program"), std::string::npos)
      << err();
}

TEST_F(Hvdrun, GivesTheCommandItsArguments) {
  // What follows the command is the command's, also where it looks like an option of hvdrun.
  start({"-np", "1", "-x", "MINE=a b", "sh", "-c", "echo \"$# $1 $2 $MINE $HVD_SLOT\"; sleep 1000", "sh",
         "-np", "--verbose"});
  EXPECT_TRUE(printed("[localhost:0] 2 -np --verbose a b 0\n")) << out() << err();
  ::kill(pid, SIGTERM);
  wait();
}

TEST_F(Hvdrun, WorkersThatNeverJoinAreAFailure) {  // contract 8: an exit status of 0 is not success
  EXPECT_EQ(run({"-np", "2", "--set", "restart=false", "--elastic-timeout", "0.3", "--set", "join_settle=0",
                 "true"}),
            75);
  EXPECT_EQ(last_line().rfind("hvdrun: job failed: ", 0), 0u) << err();
  EXPECT_NE(last_line().find("exited with status 0"), std::string::npos) << err();
}

TEST_F(Hvdrun, VerboseTellsWhatHappens) {
  EXPECT_EQ(run({"-n", "1", "--verbose", "--set", "restart=false", "--elastic-timeout", "0.3", "--set",
                 "join_settle=0", "false"}),
            75);
  EXPECT_NE(err().find("hvdrun: job job-"), std::string::npos) << err();
  const size_t end = err().find("job failed: ");
  EXPECT_NE(end, std::string::npos) << err();
  EXPECT_EQ(err().find("job failed: ", end + 1), std::string::npos) << "said twice:\n" << err();
}

TEST_F(Hvdrun, MergesTimelines) {
  std::ofstream(folder.path("a")) << R"([
{"ph":"M","pid":1,"tid":1024,"ts":0.000,"name":"hvd_clock","args":{"wall_offset_ns":5,"worker":1}},
{"ph":"i","pid":1,"tid":1025,"ts":7.000,"name":"x"},
{"ph":"i","pid":1,"tid)";
  EXPECT_EQ(run({"--merge-timeline", folder.path("merged"), folder.path("a")}), 0) << err();
  EXPECT_NE(test::read_file(folder.path("merged")).find(R"("ts":7.000,"name":"x")"), std::string::npos);
  EXPECT_NE(err().find("1 lines are no whole events"), std::string::npos) << err();
  EXPECT_EQ(run({"--merge-timeline", folder.path("merged"), folder.path("missing")}), 1);
  EXPECT_NE(last_line().find("missing: No such file"), std::string::npos) << err();
}

class HvdrunSignal : public Hvdrun, public ::testing::WithParamInterface<int> {};

TEST_P(HvdrunSignal, EndsTheJobAndItsWorkers) {
  start({"--np", "2", "--stop-grace", "1", "sh", "-c", "echo pid $$; exec sleep 1000"});
  ASSERT_TRUE(printed("[localhost:0] pid") && printed("[localhost:1] pid")) << err();
  ::kill(pid, GetParam());
  EXPECT_EQ(wait(), 128 + GetParam());
  EXPECT_NE(last_line().find("hvdrun: job failed: "), std::string::npos) << err();
  EXPECT_NE(last_line().find("stopped by SIG"), std::string::npos) << err();
  const std::string text = out();
  for (size_t at = text.find("pid "); at != std::string::npos; at = text.find("pid ", at + 1)) {
    EXPECT_FALSE(test::alive(std::stoi(text.substr(at + 4))));
  }
}

INSTANTIATE_TEST_SUITE_P(Signals, HvdrunSignal, ::testing::Values(SIGINT, SIGTERM, SIGHUP));

TEST_F(Hvdrun, ASecondSignalDoesNotWait) {
  start({"-np", "1", "--stop-grace", "3600", "sh", "-c",
         "trap '' TERM; echo pid $$; while true; do sleep 1000; done"});
  ASSERT_TRUE(printed("pid ")) << err();
  ::kill(pid, SIGINT);
  // The first is taken when the driver has told the worker to end; another one may come at any time.
  ASSERT_TRUE(test::eventually([&] {
    ::kill(pid, SIGINT);
    int status = 0;
    const bool ended = ::waitpid(pid, &status, WNOHANG) == pid;
    if (ended) { EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 130) << status; }
    return ended;
  })) << err();
  pid = -1;
  EXPECT_FALSE(test::alive(std::stoi(out().substr(out().find("pid ") + 4))));
}

TEST_F(Hvdrun, KilledLeavesNoWorker) {  // F9: hvd-guard ends them
  start({"-np", "2", "--stop-grace", "0.3", "sh", "-c",
         "trap '' TERM; echo pid $$; while true; do sleep 1000; done"});
  ASSERT_TRUE(printed("[localhost:0] pid") && printed("[localhost:1] pid")) << err();
  ::kill(pid, SIGKILL);
  EXPECT_EQ(wait(), 128 + SIGKILL);
  const std::string text = out();
  size_t workers = 0;
  for (size_t at = text.find("pid "); at != std::string::npos; at = text.find("pid ", at + 1)) {
    const pid_t worker = std::stoi(text.substr(at + 4));
    EXPECT_TRUE(test::eventually([&] { return !test::alive(worker); })) << worker << " lives on";
    ++workers;
  }
  EXPECT_EQ(workers, 2u);
}

/// Processes whose environment has `entry`.
std::vector<pid_t> processes_with(const std::string& entry) {
  std::vector<pid_t> found;
  for (const auto& folder : std::filesystem::directory_iterator("/proc")) {
    const pid_t process = std::atoi(folder.path().filename().c_str());
    const std::string environment = '\0' + test::read_file(folder.path() / "environ");
    if (process > 0 && environment.find('\0' + entry + '\0') != std::string::npos) found.push_back(process);
  }
  return found;
}

TEST_F(Hvdrun, KilledWhileItStartsWorkersLeavesNone) {  // F9, at any moment
  const std::string mark = "HVD_TEST_MARK=" + folder.path("mark");
  const auto begin = [&] {
    start({"-np", "8", "--stop-grace", "0.05", "-x", mark, "sh", "-c", "echo pid $$; exec sleep 1000"});
  };
  begin();
  const Time began = now();
  for (int slot = 0; slot < 8; ++slot) ASSERT_TRUE(printed(fmt::format("[localhost:{}] pid", slot))) << err();
  const Duration startup = now() - began;
  constexpr int kMoments = 40;
  for (int i = 0; i < kMoments; ++i) {
    ::kill(pid, SIGKILL);
    EXPECT_EQ(wait(), 128 + SIGKILL);
    std::vector<pid_t> left;
    const bool none = test::eventually([&] { return (left = processes_with(mark)).empty(); });
    for (const pid_t process : left) ::kill(process, SIGKILL);
    ASSERT_TRUE(none) << left.size() << " live on, killed at moment " << i << " of " << kMoments;
    begin();
    std::this_thread::sleep_for(startup * i / kMoments);  // where it is by then differs: no matter
  }
}

TEST_F(Hvdrun, CheckBuildTellsOfEveryBackend) {
  const std::string modules = HVD_TEST_MODULES;
  EXPECT_EQ(run({"--check-build", "--set", "plugin_path=" + modules}), 0) << err();
  const std::string text = out();
  const auto row = [&](const std::string& file) {
    const size_t at = text.find(file);
    if (at == std::string::npos) return "no " + file + " in\n" + text;
    const size_t begin = text.rfind('\n', at) + 1;
    size_t end = text.find('\n', at) + 1;
    while (text.compare(end, 8, "        ") == 0) end = text.find('\n', end) + 1;
    return text.substr(begin, end - begin);
  };
  const auto has = [](const std::string& row, const std::string& part) {
    EXPECT_NE(row.find(part), std::string::npos) << part << " is not in\n" << row;
  };
  EXPECT_EQ(text.find("libhvd " HVD_VERSION_STRING), 0U) << text;
  has(row("built in"), "yes     self");
  const std::string tiny = row("libhvd_tiny.so");
  EXPECT_EQ(tiny.find("yes     tiny"), 0U) << tiny;
  for (const char* part : {"  1  ", "host", "dtypes: float32\n", "collectives: barrier\n",
                           "backend ABI version 2; at most 2 in a process\n"}) {
    has(tiny, part);
  }
  EXPECT_EQ(row("libhvd_away.so").find("no      away"), 0U) << row("libhvd_away.so");
  has(row("libhvd_away.so"), "not usable: the device is on holiday\n");
  has(row("libhvd_old.so"), "another version");
  EXPECT_EQ(run({"--check-build", "--set", "plugin_pat=x"}), 2);
}

// A library without modules: what is built in serves a worker that is alone, and no job.
TEST_F(Hvdrun, CheckBuildFailsWhereNoJobCanRun) {
  const std::string library = std::filesystem::canonical(HVD_LIBRARY_FILE);
  std::filesystem::copy(library, folder.path("libhvd.so.1"));
  std::filesystem::copy(HVD_TEST_MODULES "/libhvd_away.so", folder.path("libhvd_away.so"));
  const int status =
      run({"--check-build"}, {"LD_LIBRARY_PATH=" + folder.path(""), "HVD_PLUGIN_PATH=" + folder.path("")});
  // An installed library's modules are found as well.
  const bool any = std::filesystem::exists(HVD_INSTALL_MODULE_DIR "/libhvd_tcp.so");
  EXPECT_EQ(status, any ? 0 : 1) << out() << err();
  EXPECT_EQ(out().find("No backend can serve a job") == std::string::npos, any) << out();
}

TEST_F(Hvdrun, VerboseTellsWhichBackendsWorkersUseAndWhy) {
  ASSERT_EQ(run({"-v", "-np", "2", "--backend", "gloo", HVD_STANDALONE_WORKER}), 0) << err();
  for (const char* worker : {"worker 1", "worker 2"}) {
    const size_t at = err().find(std::string(worker) + " on host localhost uses ");
    ASSERT_NE(at, std::string::npos) << err();
    const std::string line = err().substr(at, err().find('\n', at) - at);
    EXPECT_NE(line.find("gloo for host memory (option backend is gloo), none for CUDA memory ("),
              std::string::npos)
        << line;
  }
}

TEST_F(Hvdrun, SaysWhyNoGenerationWasConnected) {
  EXPECT_EQ(run({"-np", "2", "--set", "restart=false", "--set", "plugin_path=" HVD_TEST_MODULES, "--backend",
                 "numb", "--set", "local=off", "--set", "init_timeout=2.5", "--set", "join_settle=0",
                 HVD_STANDALONE_WORKER}),
            75);
  const std::string said = out() + err();
  for (const char* part : {"no generation was connected within ", " attempts failed, the last (generation ",
                           "nobody has come"}) {
    EXPECT_NE(said.find(part), std::string::npos) << part << " is not in\n" << said;
  }
}

TEST_F(Hvdrun, KeepsOutputInFiles) {
  run({"-np", "1", "--set", "restart=false", "--elastic-timeout", "0.3", "--set", "join_settle=0",
       "--output-filename", folder.path("logs"), "sh", "-c", "echo kept"});
  EXPECT_EQ(test::read_file(folder.path("logs/localhost.0.1/stdout")), "kept\n");
}

}  // namespace
}  // namespace hvd::launch
