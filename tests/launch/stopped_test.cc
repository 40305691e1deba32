// Processes beside the driver that are stopped (SIGSTOP): its loop goes on, and nothing that they are told is
// lost.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <future>
#include <optional>
#include <string>

#include "base/descriptor_store.h"
#include "launch/guard.h"
#include "launch/keeper.h"
#include "launch/launcher.h"
#include "launch/process.h"
#include "loop_support.h"

namespace hvd::launch {
namespace {

using test::Folder;
using test::kDeadline;
using test::on_loop;
using test::RecordedLog;
using test::Recorder;

constexpr int kMany = 1000;  // more messages than a socket takes
constexpr size_t kSome = 600;

/// Of a process or thread, by its file `stat`: 'T' is stopped, 'S' asleep.
char state_in(const std::string& file) {
  const std::string stat = test::read_file(file);
  const size_t end = stat.rfind(')');
  return end != std::string::npos && end + 2 < stat.size() ? stat[end + 2] : '?';
}

bool stop(pid_t pid) {
  ::kill(pid, SIGSTOP);
  return test::eventually([&] { return state_in("/proc/" + std::to_string(pid) + "/stat") == 'T'; });
}

/// Whether the loop gets through it while `stopped` is stopped; if not that goes on, for the test to end.
template <class Function>
bool goes_through(Loop& loop, pid_t stopped, Function fn) {
  std::promise<void> done;
  loop.post([&] {
    fn();
    done.set_value();
  });
  std::future<void> told = done.get_future();
  const bool through = told.wait_for(kDeadline) == std::future_status::ready;
  if (!through) ::kill(stopped, SIGCONT);
  told.wait();
  return through;
}

pid_t start_group() {
  SpawnSpec spec;
  spec.path = "/bin/sh";
  spec.argv = {"/bin/sh", "-c", "exec sleep 1000"};
  spec.environment = merged_environment({});
  return spawn(spec);
}

int end_of(pid_t pid) {
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

class StoppedGuard : public ::testing::Test {
 protected:
  void SetUp() override {
    guard = std::make_shared<Guard>(HVD_GUARD_FILE, milliseconds(200), log.logger());
    pid = guard->pid();
    ASSERT_TRUE(stop(pid));
  }
  void TearDown() override {
    ::kill(pid, SIGCONT);
    on_loop(loop, [&] { guard.reset(); });
  }
  void fill() const {
    for (int i = 0; i < kMany; ++i) guard->add_directory("/nowhere/" + std::to_string(i));
  }

  RecordedLog log;
  Loop loop{"test"};
  std::shared_ptr<Guard> guard;
  pid_t pid = -1;
};

TEST_F(StoppedGuard, HoldsUpNoLoopAndLearnsAllLater) {
  const pid_t early = start_group(), late = start_group(), taken_back = start_group(),
              removed = start_group();
  Recorder<pid_t> known;
  const auto add = [&](pid_t group) { guard->add(group, [&known, group] { known.add(group); }); };
  EXPECT_TRUE(goes_through(loop, pid, [&] {
    guard->run_on(loop);
    add(early);
    add(removed);
    fill();
    guard->remove(removed);
    add(taken_back);
    add(late);
    guard->remove(taken_back);
  }));
  EXPECT_EQ(known.all(), (std::vector<pid_t>{early, removed})) << "of the others it can't know";
  EXPECT_TRUE(log.wait_for("hvd-guard does not read")) << log.text();
  ::kill(pid, SIGCONT);
  EXPECT_TRUE(known.wait_count(3));
  EXPECT_EQ(known.all(), (std::vector<pid_t>{early, removed, late}));
  on_loop(loop, [&] { guard.reset(); });  // as if the driver had ended
  EXPECT_EQ(end_of(early), SIGTERM);
  EXPECT_EQ(end_of(late), SIGTERM);
  for (const pid_t left : {taken_back, removed}) {
    EXPECT_EQ(::waitpid(left, nullptr, WNOHANG), 0) << "one that was removed is somebody else's";
    ::kill(-left, SIGKILL);
    ::waitpid(left, nullptr, 0);
  }
}

TEST_F(StoppedGuard, AWorkerBeginsOnceItIsInTheGuardsCharge) {
  Recorder<std::string> lines;
  Recorder<uint64_t> gone;
  const auto output =
      std::make_shared<OutputThread>([&](const OutputLine& line) { lines.add(line.text); }, log.logger());
  std::unique_ptr<Launcher> launcher;
  EXPECT_TRUE(goes_through(loop, pid, [&] {
    fill();
    LocalLauncherConfig config;
    config.program = "/bin/sh";
    config.argv = {"/bin/sh", "-c", "echo begun"};
    config.environment = merged_environment({});
    Launcher::Events events;
    events.failed = [](uint64_t, const std::string& why) { ADD_FAILURE() << why; };
    events.exited = [](uint64_t, int32_t) {};
    events.gone = [&](uint64_t worker) { gone.add(worker); };
    launcher = make_local_launcher(loop, std::move(config), output, guard, log.logger(), std::move(events));
    launcher->start({1, "a", 0, {}});
  }));
  EXPECT_TRUE(lines.all().empty()) << "if this process ended now nobody would end that worker";
  ::kill(pid, SIGCONT);
  EXPECT_TRUE(gone.wait_count(1)) << log.text();
  EXPECT_EQ(lines.all(), std::vector<std::string>{"begun"});
  on_loop(loop, [&] { launcher.reset(); });
}

/// Keeps what it is told until "last" is; says then what it has.
class KeeperProcess {
 public:
  KeeperProcess() {
    std::array<int, 2> pair{}, pipe{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()), 0);
    EXPECT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
    pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(pair[0]);
      run(pair[1], pipe[1]);
    }
    ::close(pair[1]);
    ::close(pipe[1]);
    socket = pair[0];
    from = pipe[0];
  }
  ~KeeperProcess() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    ::close(from);
  }
  std::string says() const {
    std::string all;
    char buffer[4096];
    pollfd something{from, POLLIN, 0};
    while (::poll(&something, 1, static_cast<int>(kDeadline.count())) == 1) {
      const ssize_t n = ::read(from, buffer, sizeof buffer);
      if (n <= 0) break;
      all.append(buffer, static_cast<size_t>(n));
    }
    return all;
  }

  pid_t pid = -1;
  int socket = -1, from = -1;

 private:
  [[noreturn]] static void run(int socket, int to) {
    store::send(socket, {store::Kind::kBegin, "", "0", {}});
    std::map<std::string, std::string> kept;
    while (const auto message = store::receive(socket, false)) {
      kept.erase(message->name);
      if (message->kind == store::Kind::kDrop) continue;
      // The descriptors can be read: each has the name in it.
      std::string read(100, 0);
      for (const int fd : message->descriptors) {
        read.resize(static_cast<size_t>(std::max<ssize_t>(::pread(fd, read.data(), read.size(), 0), 0)));
        ::close(fd);
      }
      kept[message->name] = message->text + (read == message->name ? "" : " without its file");
      if (message->name == "last") break;
    }
    std::string all;
    for (const auto& [name, text] : kept) all += name + ":" + text + "\n";
    ::_exit(::write(to, all.data(), all.size()) == static_cast<ssize_t>(all.size()) ? 0 : 1);
  }
};

TEST(StoppedKeeper, HoldsUpNoLoopAndLearnsAllLater) {
  const KeeperProcess process;
  const Folder folder;
  RecordedLog log;
  Keeper keeper(process.socket, log.logger());
  ASSERT_TRUE(stop(process.pid));
  Loop loop("test");
  const auto keep = [&](const std::string& name, const std::string& text) {
    const int file = ::open(folder.path(name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    EXPECT_EQ(::write(file, name.data(), name.size()), static_cast<ssize_t>(name.size()));
    keeper.keep(name, text, {file});
    ::close(file);
  };
  EXPECT_TRUE(goes_through(loop, process.pid, [&] {
    keeper.watch(loop);
    keep("dropped", "early");
    keep("changed", "early");
    for (size_t i = 0; i < kSome; ++i) keep("worker." + std::to_string(i), "1");
    keeper.drop("dropped");
    keep("changed", "late");
    keep("worker.gone", "1");
    keeper.drop("worker.gone");
    keep("last", "1");
  }));
  EXPECT_TRUE(log.wait_for("hvdrun's first process does not read")) << log.text().substr(0, 1000);
  ::kill(process.pid, SIGCONT);
  std::map<std::string, std::string> expected{{"changed", "late"}, {"last", "1"}};
  for (size_t i = 0; i < kSome; ++i) expected["worker." + std::to_string(i)] = "1";
  std::string text;
  for (const auto& [name, value] : expected) text += name + ":" + value + "\n";
  const std::string said = process.says();
  EXPECT_TRUE(said == text) << said.size() << " bytes of " << text.size();
  on_loop(loop, [&] { keeper.stop_watching(); });
}

// The loop's end of the socket and that by which hvdrun says that the job is over are one.
TEST(StoppedKeeper, IsToldThatTheJobIsOver) {
  std::array<int, 2> pair{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()), 0);
  ASSERT_EQ(::fcntl(pair[0], F_SETFL, O_NONBLOCK), 0);
  int sent = 0;
  while (store::send(pair[0], {store::Kind::kDrop, "name", "", {}}, true)) ++sent;
  ASSERT_EQ(errno, EAGAIN);
  std::promise<pid_t> begun;
  std::future<bool> told = std::async(std::launch::async, [&] {
    begun.set_value(::gettid());
    return store::send(pair[0], {store::Kind::kOver, "", "3", {}});
  });
  const std::string sender = "/proc/self/task/" + std::to_string(begun.get_future().get()) + "/stat";
  ASSERT_TRUE(test::eventually([&] {
    return told.wait_for(std::chrono::seconds(0)) == std::future_status::ready || state_in(sender) == 'S';
  }));
  for (int i = 0; i < sent; ++i) ASSERT_TRUE(store::receive(pair[1], false));
  ASSERT_TRUE(told.get());
  const auto over = store::receive(pair[1], false);
  EXPECT_TRUE(over && over->kind == store::Kind::kOver && over->text == "3");
  for (const int end : pair) ::close(end);
}

}  // namespace
}  // namespace hvd::launch
