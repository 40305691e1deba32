// Processes that mpirun has started: the group that it made of them, and their end.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

#include "backend/cluster.h"
#include "backend/loader.h"
#include "backend/mpi_checks.h"

extern char** environ;

namespace hvd::backend::test {
namespace {

namespace fs = std::filesystem;

int failed(const std::string& text) {
  std::cerr << text << std::endl;
  return 1;
}

// Deaths of other processes of this host can be asked for, not waited for.
void wait_until(const std::function<bool()>& holds) {
  const auto deadline = std::chrono::steady_clock::now() + kSoon;
  while (!holds() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// One of the processes. Ranks other than 0 leave at once, and rank 0 when they are gone: it must live till then.
int launched(const fs::path& folder) {
  const Options options;
  std::shared_ptr<Module> module;
  if (const Status status = find_module(options, "mpi", &module); !status.ok()) return failed(status.message);
  const hvd_backend_table& table = module->table;
  int32_t rank = -1, size = -1;
  hvd_error error = HVD_ERROR_INIT;
  if (table.world(30000, &rank, &size, &error) != HVD_OK) return failed(error.message);
  if (std::to_string(size) != std::getenv("OMPI_COMM_WORLD_SIZE")) return failed("the group's size is wrong");
  std::string text = rank == 0 ? "what rank 0 knows" : "-----------------";
  if (table.world_broadcast(text.data(), text.size(), 30000, &error) != HVD_OK) return failed(error.message);
  if (text != "what rank 0 knows") return failed("rank 0 was heard to say '" + text + "'");

  // They are one world already: no ompi-server is needed.
  Inbox inbox;
  std::unique_ptr<Instance> instance;
  if (const Status status =
          open_module("mpi", {{"interface", "127.0.0.1"}, {"elastic", "0"}}, inbox.handlers(), &instance);
      !status.ok()) {
    return failed(status.message);
  }
  std::vector<uint8_t> mine;
  if (const Status status = instance->address(&mine); !status.ok()) return failed(status.message);
  std::vector<Member> members(static_cast<size_t>(size));
  for (int32_t r = 0; r < size; ++r) {
    const fs::path path = folder / std::to_string(r);
    if (r == rank) {
      std::ofstream(path.string() + ".draft", std::ios::binary)
          .write(reinterpret_cast<const char*>(mine.data()), static_cast<std::streamsize>(mine.size()));
      std::ofstream(path.string() + ".pid") << getpid();
      fs::rename(path.string() + ".draft", path);
    }
  }
  for (int32_t r = 0; r < size; ++r) {
    const fs::path path = folder / std::to_string(r);
    wait_until([&] { return fs::exists(path); });
    std::ifstream file(path, std::ios::binary);
    members[static_cast<size_t>(r)].address.assign(std::istreambuf_iterator<char>(file), {});
  }
  if (const Status status = instance->connect(1, rank, members, kSoon); !status.ok())
    return failed(status.message);
  uint64_t sequence = 0;
  if (const std::string answer = check(*instance, {rank, size}, &sequence); answer != "ok")
    return failed(answer);
  instance->disconnect();
  instance.reset();
  for (int32_t r = 1; r < size && rank == 0; ++r) {
    pid_t pid = 0;
    std::ifstream(folder / (std::to_string(r) + ".pid")) >> pid;
    wait_until([&] { return kill(pid, 0) != 0; });
    if (kill(pid, 0) == 0) return failed("rank " + std::to_string(r) + " does not end");
  }
  if (rank == 0) std::ofstream(folder / "last") << "alive";
  return 0;
}

TEST(MpiWorld, ProcessesOfOneLaunchMeetAndLeaveOneByOne) {
  std::string folder = (fs::temp_directory_path() / "hvd-mpi-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string self = fs::read_symlink("/proc/self/exe").string();
  std::vector<std::string> words = {"mpirun",
                                    "--allow-run-as-root",
                                    "--oversubscribe",
                                    "--mca",
                                    "oob_tcp_if_include",
                                    "lo",
                                    "-n",
                                    "3",
                                    self,
                                    "--launched",
                                    folder};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t pid = -1;
  ASSERT_EQ(posix_spawnp(&pid, "mpirun", nullptr, nullptr, arguments.data(), environ), 0);
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_TRUE(fs::exists(fs::path(folder) / "last")) << "rank 0 was ended with the others";
  fs::remove_all(folder);
}

TEST(MpiWorld, AProcessThatWasStartedApartIsInNone) {
  const Options options;
  std::shared_ptr<Module> module;
  const Status status = find_module(options, "mpi", &module);
  ASSERT_TRUE(status.ok()) << status.message;
  EXPECT_FALSE(module->description.local);
  int32_t rank = -1, size = -1;
  hvd_error error = HVD_ERROR_INIT;
  EXPECT_EQ(module->table.world(1000, &rank, &size, &error), HVD_UNAVAILABLE);
  EXPECT_STREQ(error.message, "this process was not started by a launcher of MPI");
}

}  // namespace

int run_launched(const char* folder) { return launched(folder); }

}  // namespace hvd::backend::test

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--launched") return hvd::backend::test::run_launched(argv[2]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
