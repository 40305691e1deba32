// The parent's side: see ranks.h.
#include "modules/mpi_elastic/ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>

#include "backend/loader.h"
#include "hvd/hvd.h"
#include "modules/mpi_elastic/helper/rules.h"

extern char** environ;

namespace hvd::backend::test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Spawned {
  pid_t pid = -1;
  int in = -1, out = -1;
};

// with_errors: what it says on stderr comes through the same pipe.
Spawned spawn(const std::vector<std::string>& command, const std::map<std::string, std::string>& more,
              bool with_errors = false) {
  int to[2], from[2];
  EXPECT_EQ(pipe2(to, O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(from, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to[0], 0);
  posix_spawn_file_actions_adddup2(&actions, from[1], 1);
  if (with_errors) posix_spawn_file_actions_adddup2(&actions, from[1], 2);
  posix_spawnattr_t attributes;  // SIGPIPE as a program has it by default
  posix_spawnattr_init(&attributes);
  sigset_t defaults;
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGPIPE);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (!more.contains(text.substr(0, text.find('=')))) variables.push_back(text);
  }
  for (const auto& [name, value] : more) variables.push_back(name + "=" + value);
  std::vector<char*> arguments, environment;
  std::vector<std::string> words = command;
  for (std::string& word : words) arguments.push_back(word.data());
  for (std::string& variable : variables) environment.push_back(variable.data());
  arguments.push_back(nullptr);
  environment.push_back(nullptr);
  Spawned child;
  EXPECT_EQ(
      posix_spawnp(&child.pid, arguments[0], &actions, &attributes, arguments.data(), environment.data()), 0)
      << command[0];
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  close(to[0]);
  close(from[1]);
  child.in = to[1];
  child.out = from[0];
  return child;
}

// A line, without its end; nothing before the deadline or at the end of the file.
bool read_line(int fd, std::string& heard, std::string& line, Clock::time_point deadline, bool* ret_gone) {
  *ret_gone = false;
  for (;;) {
    if (const size_t end = heard.find('\n'); end != std::string::npos) {
      line = heard.substr(0, end);
      heard.erase(0, end + 1);
      return true;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd readable{fd, POLLIN, 0};
    if (left <= 0 || poll(&readable, 1, static_cast<int>(left)) <= 0) return false;
    std::array<char, 4096> buffer;
    const ssize_t size = read(fd, buffer.data(), buffer.size());
    if (size <= 0) {
      *ret_gone = true;
      return false;
    }
    heard.append(buffer.data(), static_cast<size_t>(size));
  }
}

}  // namespace

std::string module_name() {
  const char* const name = std::getenv("HVD_TEST_MPI");
  return name != nullptr ? name : "mpi_elastic";
}

MpiJob::MpiJob() {
  std::string name = (fs::temp_directory_path() / "hvd-mpi-XXXXXX").string();
  EXPECT_NE(mkdtemp(name.data()), nullptr);
  folder_ = name;
  if (module_name() != "mpi_elastic") return;
  const Options options;
  std::shared_ptr<Module> module;
  const Status status = find_module(options, module_name(), &module);
  EXPECT_TRUE(status.ok()) << status.message;
  std::vector<std::string> command = {"ompi-server", "--no-daemonize", "--report-uri", "+"};
  if (module != nullptr && module->description.version.starts_with("Open MPI 5")) {
    variable_ = "HVD_PMIX_SERVER";
    command = {fs::path(module->path).parent_path() / "hvd-pmix-server", module->path, folder_};
  }
  const Spawned server = spawn(command, {{"OMPI_MCA_oob_tcp_if_include", "lo"}}, true);
  close(server.in);
  server_ = server.pid;
  output_ = server.out;
  const Clock::time_point deadline = Clock::now() + kPatience;
  std::string heard, line;
  bool gone = false;
  while (uri_.empty() && read_line(output_, heard, line, deadline, &gone)) {
    if (const auto uri = hvdmpi::helper::uri_of(line)) uri_ = *uri;
  }
  EXPECT_FALSE(uri_.empty()) << command[0] << " did not say where it is; last: " << line;
}

MpiJob::~MpiJob() {
  if (server_ > 0) {
    ::kill(server_, SIGTERM);
    waitpid(server_, nullptr, 0);
    close(output_);
  }
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

MpiRank::MpiRank(const MpiJob& job, const RankOptions& options) {
  const Spawned child =
      spawn({"/proc/self/exe", "--mpi-rank", options.elastic ? "1" : "0",
             std::to_string(options.segment_bytes), job.folder().string()},
            {{job.server_variable(), job.server_uri()}, {"HVD_WORKER", std::to_string(job.next_worker())}});
  pid_ = child.pid;
  in_ = child.in;
  out_ = child.out;
}

MpiRank::~MpiRank() {
  if (pid_ > 0) kill();
  close(in_);
  close(out_);
}

void MpiRank::tell(const std::string& command) {
  const std::string line = command + "\n";
  // A rank that is gone is found out by hear.
  (void)!write(in_, line.data(), line.size());
}

std::string MpiRank::hear(std::chrono::milliseconds patience) {
  std::string line;
  bool gone = false;
  const Clock::time_point deadline = Clock::now() + patience;
  while (read_line(out_, heard_, line, deadline, &gone)) {
    if (line.starts_with(kAnswer)) return line.substr(std::strlen(kAnswer));
  }
  return gone ? "(gone)" : "(nothing)";
}

void MpiRank::kill() {
  ::kill(pid_, SIGKILL);
  wait();
}

int MpiRank::wait() {
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return status;
}

std::vector<std::string> ask_all(const Ranks& ranks, const std::string& command) {
  for (MpiRank* rank : ranks) rank->tell(command);
  std::vector<std::string> answers;
  for (MpiRank* rank : ranks) answers.push_back(rank->hear());
  return answers;
}

void expect_all(const Ranks& ranks, const std::string& command, const std::string& answer) {
  const std::vector<std::string> answers = ask_all(ranks, command);
  for (size_t rank = 0; rank < answers.size(); ++rank) {
    EXPECT_EQ(answers[rank], answer) << command << ": rank " << rank;
  }
}

std::vector<std::string> form(MpiJob& job, const Ranks& ranks, int timeout_ms) {
  std::string blobs;
  for (const std::string& blob : ask_all(ranks, "address")) blobs += " " + blob;
  const uint64_t generation = job.next_generation();
  int place = 0;
  for (MpiRank* rank : ranks) {
    rank->tell("connect " + std::to_string(generation) + " " + std::to_string(place++) + " " +
               std::to_string(ranks.size()) + " " + std::to_string(timeout_ms) + blobs);
  }
  std::vector<std::string> answers;
  for (MpiRank* rank : ranks) answers.push_back(rank->hear());
  return answers;
}

void must_form(MpiJob& job, const Ranks& ranks) {
  // A join may fail that waits within MPI for one who died in an earlier one; a driver forms another
  // generation then, and so does this.
  constexpr int kAttempts = 3;
  for (int attempt = 1;; ++attempt) {
    const std::vector<std::string> answers = form(job, ranks);
    const bool all =
        std::all_of(answers.begin(), answers.end(), [](const std::string& a) { return a == "ok"; });
    if (all) return;
    for (size_t rank = 0; rank < answers.size() && attempt == kAttempts; ++rank) {
      ASSERT_EQ(answers[rank], "ok") << "rank " << rank;
    }
    for (MpiRank* rank : ranks) rank->ask("abort");
  }
}

std::vector<RankPtr> start(const MpiJob& job, int count, const RankOptions& options) {
  std::vector<RankPtr> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(std::make_unique<MpiRank>(job, options));
  return ranks;
}

const std::string& why_apart() {
  static const std::string why = [] {
    MpiJob job;
    const std::vector<RankPtr> ranks = start(job, 2);
    const std::string unavailable = std::to_string(HVD_UNAVAILABLE) + " ";
    for (const std::string& answer : form(job, all_of(ranks))) {
      if (answer.starts_with(unavailable)) return answer.substr(unavailable.size());
    }
    return std::string();
  }();
  return why;
}

Ranks all_of(const std::vector<RankPtr>& ranks) {
  Ranks all;
  for (const RankPtr& rank : ranks) all.push_back(rank.get());
  return all;
}

}  // namespace hvd::backend::test

int main(int argc, char** argv) {
  int status = 0;
  if (hvd::backend::test::run_as_rank(argc, argv, &status)) return status;
  signal(SIGPIPE, SIG_IGN);  // of the pipes to a rank that was killed
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
