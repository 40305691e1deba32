// Real processes: starting, output, ends, guards.
#include "launch/launcher.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "base/status.h"
#include "launch/process.h"
#include "launch/process_handle.h"
#include "loop_support.h"

namespace hvd::launch {
namespace {

using test::Folder;
using test::on_loop;
using test::RecordedLog;
using test::Recorder;

TEST(LineSplitter, GivesLinesAndPieces) {
  std::vector<std::string> lines;
  const auto add = [&](std::string line) { lines.push_back(std::move(line)); };
  LineSplitter splitter(4);
  splitter.feed("ab", add);
  splitter.feed("c\n\nlonger", add);
  splitter.feed("!!\nfour\nx", add);
  EXPECT_EQ(lines, (std::vector<std::string>{"abc", "", "long", "er!!", "four"}));
  splitter.finish(add);
  EXPECT_EQ(lines.back(), "x");
}

TEST(Output, IsPrefixed) {
  EXPECT_EQ(prefixed({3, "a", 1, false, "hello"}), "[3] hello\n");
  EXPECT_EQ(prefixed({-1, "a", 1, true, "hello"}), "[a:1] hello\n");
}

TEST(ExitText, NamesStatusAndSignal) {
  EXPECT_EQ(exit_text(3), "exited with status 3");
  EXPECT_EQ(exit_text(256 + SIGKILL), "killed by signal 9 (SIGKILL)");
  EXPECT_EQ(exit_text(256 + 40), "killed by signal 40");
}

struct Exit {
  uint64_t worker;
  int32_t status;
};

/// Both ways of noticing an end: by pidfd and by polling.
class LocalLauncher : public ::testing::TestWithParam<bool> {
 protected:
  void make(const std::string& script, std::unique_ptr<Guard> guard = nullptr) {
    LocalLauncherConfig config;
    config.program = program;
    config.argv = {"/bin/sh", "-c", script};
    config.environment = merged_environment({"GREETING=hello"});
    config.output_directory = output_directory;
    config.poll_exit = GetParam();
    Launcher::Events events;
    events.failed = [this](uint64_t worker, const std::string& why) {
      failed.add(std::to_string(worker) + why);
    };
    events.exited = [this](uint64_t worker, int32_t status) { exits.add({worker, status}); };
    events.gone = [this](uint64_t worker) { gone.add(worker); };
    output =
        std::make_shared<OutputThread>([this](const OutputLine& line) { lines.add(line); }, log.logger());
    on_loop(loop, [&] {
      launcher = make_local_launcher(loop, std::move(config), output, std::move(guard), log.logger(),
                                     std::move(events));
    });
  }
  void start(uint64_t worker, const std::string& host = "a", int32_t slot = 0) {
    on_loop(loop, [&] { launcher->start({worker, host, slot, {"HVD_WORKER=" + std::to_string(worker)}}); });
  }
  int32_t exit_status() {
    EXPECT_TRUE(gone.wait_count(1)) << log.text();
    return exits.all().empty() ? -2 : exits.all().front().status;
  }
  std::string text(bool is_stderr) {
    std::string all;
    for (const OutputLine& line : lines.all()) {
      if (line.is_stderr == is_stderr) all += line.text + "\n";
    }
    return all;
  }
  pid_t pid_in(const std::string& file) {
    EXPECT_TRUE(
        test::eventually([&] { return test::read_file(folder.path(file)).find('\n') != std::string::npos; }));
    return std::stoi(test::read_file(folder.path(file)));
  }
  void TearDown() override {
    on_loop(loop, [&] { launcher.reset(); });
    output.reset();
  }

  Folder folder;
  RecordedLog log;
  Recorder<OutputLine> lines;
  Recorder<Exit> exits;
  Recorder<uint64_t> gone;
  Recorder<std::string> failed;
  std::string program = "/bin/sh";
  std::string output_directory;
  Loop loop{"test"};
  std::shared_ptr<OutputThread> output;
  std::unique_ptr<Launcher> launcher;
};

TEST_P(LocalLauncher, PassesOnWhatIsPrinted) {
  output_directory = folder.path("out");
  make("echo $GREETING $HVD_WORKER; echo bad >&2; printf partial; exit 3");
  start(4, "a", 1);
  EXPECT_EQ(exit_status(), 3);
  EXPECT_EQ(text(false), "hello 4\npartial\n");
  EXPECT_EQ(text(true), "bad\n");
  EXPECT_EQ(lines.all().front().host, "a");
  EXPECT_EQ(lines.all().front().slot, 1);
  EXPECT_EQ(lines.all().front().rank, -1);
  output.reset();
  TearDown();
  EXPECT_EQ(test::read_file(folder.path("out/a.1.4/stdout")), "hello 4\npartial");
  EXPECT_EQ(test::read_file(folder.path("out/a.1.4/stderr")), "bad\n");
}

TEST_P(LocalLauncher, OutputFilesAreTheUsersAloneAndNoLinkIsFollowed) {
  output_directory = folder.path("out");
  std::filesystem::create_directories(folder.path("out/a.1.4"));
  std::ofstream(folder.path("kept")) << "kept";
  std::filesystem::create_symlink(folder.path("kept"), folder.path("out/a.1.4/stdout"));
  make("echo to a link; echo mine >&2");
  start(4, "a", 1);
  EXPECT_EQ(exit_status(), 0);
  output.reset();
  TearDown();
  EXPECT_EQ(test::read_file(folder.path("kept")), "kept");
  EXPECT_TRUE(log.wait_for("out/a.1.4/stdout can't be opened")) << log.text();
  EXPECT_EQ(std::filesystem::status(folder.path("out/a.1.4/stderr")).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST_P(LocalLauncher, LosesNoOutput) {
  make("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done");
  start(1);
  EXPECT_EQ(exit_status(), 0);
  const auto all = lines.all();
  ASSERT_EQ(all.size(), 20000u);
  for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i].text, "line " + std::to_string(i));
}

TEST_P(LocalLauncher, LongLinesComeInPieces) {
  make("head -c 200000 /dev/zero | tr '\\0' x; echo");
  start(1);
  EXPECT_EQ(exit_status(), 0);
  size_t bytes = 0;
  for (const OutputLine& line : lines.all()) bytes += line.text.size();
  EXPECT_EQ(bytes, 200000u);
  EXPECT_EQ(lines.all().size(), 4u);  // 64 KiB each
}

TEST_P(LocalLauncher, TellsTheSignal) {
  make("kill -SEGV $$");
  start(1);
  EXPECT_EQ(exit_status(), 256 + SIGSEGV);
}

TEST_P(LocalLauncher, WorkersStartWithDefaultSignals) {
  make("grep -E 'Sig(Blk|Ign)' /proc/self/status; cat; echo end");  // stdin is empty
  start(1);
  EXPECT_EQ(exit_status(), 0);
  EXPECT_NE(text(false).find("SigBlk:\t0000000000000000"), std::string::npos) << text(false);
  // 32 and 33 are the C library's own.
  EXPECT_TRUE(text(false).find("SigIgn:\t0000000000000000") != std::string::npos ||
              text(false).find("SigIgn:\t0000000180000000") != std::string::npos)
      << text(false);
  EXPECT_NE(text(false).find("end"), std::string::npos);
}

TEST_P(LocalLauncher, WhatAWorkerLeavesBehindIsKilled) {
  make("sleep 1000 >/dev/null 2>&1 & echo $! > " + folder.path("child") + "\nexit 0");
  start(1);
  EXPECT_EQ(exit_status(), 0);
  const pid_t child = pid_in("child");
  EXPECT_TRUE(test::eventually([&] { return !test::alive(child); }));
}

TEST_P(LocalLauncher, AProcessThatHoldsThePipeDoesNotHoldUpTheEnd) {
  make("setsid sleep 1000 & echo $! > " + folder.path("child") + "\necho said\nsleep 0.2; exit 0");
  start(1);
  EXPECT_EQ(exit_status(), 0);
  EXPECT_EQ(text(false), "said\n");
  ::kill(pid_in("child"), SIGKILL);  // out of the group by its own will
}

TEST_P(LocalLauncher, StopAsksThenKillsTheGroup) {
  make("trap 'echo asked' TERM; sleep 1000 & echo $! > " + folder.path("child") +
       "\necho ready\nwhile true; do wait; done");
  start(1);
  ASSERT_TRUE(lines.wait_count(1));
  const pid_t child = pid_in("child");
  on_loop(loop, [&] { launcher->stop(1, milliseconds(300)); });
  EXPECT_EQ(exit_status(), 256 + SIGKILL);
  EXPECT_NE(text(false).find("asked"), std::string::npos);
  EXPECT_TRUE(test::eventually([&] { return !test::alive(child); }));
}

TEST_P(LocalLauncher, ClosingLeavesNobody) {
  make("echo $$ > " + folder.path("self") + "\nsleep 1000 & echo $! > " + folder.path("child") + "\nwait");
  start(1);
  const pid_t self = pid_in("self");
  const pid_t child = pid_in("child");
  on_loop(loop, [&] { launcher->close(Duration(0)); });
  EXPECT_TRUE(test::eventually([&] { return !test::alive(self) && !test::alive(child); }));
  EXPECT_TRUE(gone.all().empty());
}

TEST_P(LocalLauncher, SaysWhyAWorkerCanNotStart) {
  output_directory = "/dev/null/out";
  make("true");
  start(5);
  ASSERT_TRUE(failed.wait_count(1));
  EXPECT_NE(failed.all()[0].find("/dev/null/out"), std::string::npos);
}

TEST_P(LocalLauncher, AWorkerInTheGuardsChargeIsLikeAnyOther) {
  make("echo $0 $GREETING $HVD_WORKER; echo bad >&2; kill -SEGV $$",
       std::make_unique<Guard>(HVD_GUARD_FILE, milliseconds(200), log.logger()));
  start(4);
  EXPECT_EQ(exit_status(), 256 + SIGSEGV);
  EXPECT_EQ(text(false), "/bin/sh hello 4\n");
  EXPECT_EQ(text(true), "bad\n");
}

TEST_P(LocalLauncher, SaysWhyAProgramCanNotBegin) {
  program = folder.path("program");
  std::ofstream(program) << "no program";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  make("", std::make_unique<Guard>(HVD_GUARD_FILE, milliseconds(200), log.logger()));
  start(5);
  ASSERT_TRUE(failed.wait_count(1));
  EXPECT_NE(failed.all()[0].find(program + " can't be started: Exec format error"), std::string::npos)
      << failed.all()[0];
  on_loop(loop, [&] { EXPECT_FALSE(launcher->ended(5)); });
  EXPECT_TRUE(exits.all().empty());
  EXPECT_TRUE(gone.all().empty());
}

TEST_P(LocalLauncher, SeesWhetherAProcessRuns) {  // contract 19
  make("echo $$ > " + folder.path("self") + "\nsleep 1000 & echo $! > " + folder.path("child") + "\nwait");
  start(1);
  const pid_t child = pid_in("child");
  const pid_t self = pid_in("self");
  const auto life = [&](int64_t process) {
    Life found = Life::kUnknown;
    on_loop(loop, [&] { found = launcher->life(1, process); });
    return found;
  };
  EXPECT_EQ(life(child), Life::kRunning);
  EXPECT_EQ(life(0), Life::kRunning);
  ::kill(child, SIGSTOP);
  EXPECT_TRUE(test::eventually([&] { return life(child) == Life::kStopped; }));
  EXPECT_EQ(life(self), Life::kRunning);
  EXPECT_EQ(life(::getpid()), Life::kRunning) << "not of its group: what was started counts";
  ::kill(self, SIGSTOP);
  EXPECT_TRUE(test::eventually([&] { return life(0) == Life::kStopped; }));
  on_loop(loop, [&] { launcher->kill(1); });
  EXPECT_EQ(exit_status(), 256 + SIGKILL);
  EXPECT_EQ(life(child), Life::kEnded);
}

TEST_P(LocalLauncher, ASlowReaderHoldsUpWorkersOnly) {
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  make("i=0; while [ $i -lt 3000 ]; do head -c 4000 /dev/zero | tr '\\0' y; echo; i=$((i+1)); done");
  std::atomic<bool> reads{false};
  output = std::make_shared<OutputThread>(
      [this, released, &reads](const OutputLine& line) {
        reads = true;
        released.wait();
        lines.add(line);
      },
      log.logger(), size_t{100} << 10);
  LocalLauncherConfig config;
  config.program = "/bin/sh";
  config.argv = {"/bin/sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' y"};
  config.environment = merged_environment({});
  Launcher::Events events;
  events.failed = [](uint64_t, const std::string&) {};
  events.exited = [this](uint64_t worker, int32_t status) { exits.add({worker, status}); };
  events.gone = [this](uint64_t worker) { gone.add(worker); };
  on_loop(loop, [&] {
    launcher = make_local_launcher(loop, config, output, nullptr, log.logger(), std::move(events));
  });
  start(1);
  ASSERT_TRUE(test::eventually([&] { return reads.load(); }));
  on_loop(loop, [] {});  // the loop is free
  EXPECT_TRUE(exits.all().empty());
  release.set_value();
  EXPECT_EQ(exit_status(), 0);
  size_t bytes = 0;
  for (const OutputLine& line : lines.all()) bytes += line.text.size();
  EXPECT_EQ(bytes, 3000000u);
}

INSTANTIATE_TEST_SUITE_P(Noticing, LocalLauncher, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "ByPolling" : "ByPidfd"; });

// The end of a driver does not wait for it for ever, and what the reader uses lives until it returns.
TEST(OutputThread, AReaderThatDoesNotReturnIsToldNoMoreAndKeepsWhatItUses) {
  std::promise<void> reads, release;
  std::atomic<int> told{0};
  auto used = std::make_shared<int>();
  const std::weak_ptr<int> still_used = used;
  auto output = std::make_unique<OutputThread>(
      [&told, &reads, released = release.get_future().share(), used](const OutputLine&) {
        if (++told == 1) reads.set_value();
        released.wait();
      },
      std::make_shared<Logger>());
  used.reset();
  output->lines(std::make_shared<LineSplitter>(), {}, "one\ntwo\n");
  reads.get_future().wait();
  output.reset();
  EXPECT_FALSE(still_used.expired());
  release.set_value();
  EXPECT_TRUE(test::eventually([&] { return still_used.expired(); }));
  EXPECT_EQ(told, 1);
}

TEST(FindProgram, NamesWhatItTried) {
  EXPECT_EQ(find_program("/bin/sh"), "/bin/sh");
  EXPECT_NE(find_program("sh").find("/sh"), std::string::npos);
  try {
    find_program("no-such-program");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code, HVD_UNAVAILABLE);
    EXPECT_NE(std::string(error.what()).find("no-such-program"), std::string::npos);
  }
}

TEST(FindGuard, NamesWhatItTried) {
  try {
    find_guard("/nowhere/hvd-guard");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code, HVD_UNAVAILABLE);
    EXPECT_NE(std::string(error.what()).find("/nowhere/hvd-guard"), std::string::npos);
  }
}

/// A child that is in a group of its own and ends with the test.
pid_t start_group(const std::string& script) {
  SpawnSpec spec;
  spec.path = "/bin/sh";
  spec.argv = {"/bin/sh", "-c", script};
  spec.environment = merged_environment({});
  return spawn(spec);
}

TEST(Guard, EndsWhatIsLeftWhenTheDriverIsGone) {
  RecordedLog log;
  const Folder folder;
  const std::string ready = folder.path("ready");
  const pid_t polite = start_group("exec sleep 1000");
  const pid_t stubborn = start_group("trap '' TERM; echo > " + ready + "; while true; do sleep 1000; done");
  const pid_t removed = start_group("exec sleep 1000");
  ASSERT_TRUE(test::eventually([&] { return test::read_file(ready) == "\n"; }));
  {
    Guard guard(HVD_GUARD_FILE, milliseconds(200), log.logger());
    guard.add(polite);
    guard.add(stubborn);
    guard.add(removed);
    guard.remove(removed);
  }  // its socket is closed, as the kernel does for a driver that is killed
  int status = 0;
  EXPECT_EQ(::waitpid(polite, &status, 0), polite);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
  EXPECT_EQ(::waitpid(stubborn, &status, 0), stubborn);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_EQ(::waitpid(removed, &status, WNOHANG), 0) << "one that was removed is somebody else's";
  ::kill(-removed, SIGKILL);
  ::waitpid(removed, &status, 0);
}

/// What a driver does when it starts a worker, up to the moment at which it is killed.
pid_t killed_while_starting(const std::string& script, bool let_it_go) {
  std::array<int, 2> told{};
  EXPECT_EQ(::pipe2(told.data(), O_CLOEXEC), 0);
  const pid_t driver = ::fork();
  if (driver == 0) {
    SpawnSpec spec;
    spec.path = "/bin/sh";
    spec.argv = {"/bin/sh", "-c", script};
    const HeldChild child = spawn_held(spec, HVD_GUARD_FILE);
    if (let_it_go) let_go(child.gate);
    if (::write(told[1], &child.pid, sizeof child.pid) < 0) ::_exit(1);
    ::raise(SIGKILL);
  }
  ::close(told[1]);
  pid_t pid = -1;
  EXPECT_EQ(::read(told[0], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
  ::close(told[0]);
  ::waitpid(driver, nullptr, 0);
  return pid;
}

TEST(Guard, AWorkerOfADriverThatIsKilledMeanwhileNeverBegins) {
  const Folder folder;
  const std::string begun = folder.path("begun");
  const pid_t held = killed_while_starting("echo > " + begun, false);
  EXPECT_TRUE(test::eventually([&] { return !test::alive(held); }));
  EXPECT_EQ(test::read_file(begun), "");
  killed_while_starting("echo > " + begun, true);
  EXPECT_TRUE(test::eventually([&] { return test::read_file(begun) == "\n"; }));
}

TEST(ProcessHandle, IsNoLongerAnybodyOnceItIsReaped) {
  const pid_t leader = start_group("sleep 1000 & exec sleep 1000");
  const ProcessHandle handle(leader);
  EXPECT_TRUE(handle.signal(0));
  EXPECT_TRUE(handle.signal(SIGKILL));
  EXPECT_EQ(::waitpid(leader, nullptr, 0), leader);
  EXPECT_FALSE(handle.signal(0));
  EXPECT_EQ(errno, ESRCH);
  // Its group may have others still: then the group's number is nobody else's.
  handle.signal_group(SIGKILL);
  EXPECT_TRUE(test::eventually([&] { return !handle.signal_group(0); }));
}

TEST(Guard, ThatIsGoneIsReported) {
  RecordedLog log;
  Guard guard(HVD_GUARD_FILE, milliseconds(200), log.logger());
  ::kill(guard.pid(), SIGKILL);
  ASSERT_TRUE(test::eventually([&] { return !test::alive(guard.pid()); }));
  guard.add(1 << 30);
  EXPECT_TRUE(log.wait_for("hvd-guard")) << log.text();
}

}  // namespace
}  // namespace hvd::launch
