// Processes that mpirun has started: the group that it made of them, and their end.
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

#include "backend/loader.h"
#include "modules/cluster.h"
#include "modules/mpi/checks.h"

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

// The generation's members tell each other their addresses by files.
Status meet(Instance& instance, const fs::path& folder, uint64_t generation, int32_t rank, int32_t size) {
  std::vector<uint8_t> mine;
  if (Status status = address_of(instance, &mine); !status.ok()) return status;
  const auto path_of = [&](int32_t r) {
    return folder / (std::to_string(generation) + "." + std::to_string(r));
  };
  const std::string draft = path_of(rank).string() + ".draft";
  std::ofstream(draft, std::ios::binary)
      .write(reinterpret_cast<const char*>(mine.data()), static_cast<std::streamsize>(mine.size()));
  fs::rename(draft, path_of(rank));
  std::vector<Member> members(static_cast<size_t>(size));
  for (int32_t r = 0; r < size; ++r) {
    wait_until([&] { return fs::exists(path_of(r)); });
    std::ifstream file(path_of(r), std::ios::binary);
    members[static_cast<size_t>(r)] =
        member_at(0, "", instance, std::vector<uint8_t>(std::istreambuf_iterator<char>(file), {}));
  }
  return instance.connect(generation, rank, members, kSoon);
}

// One of the processes. Ranks other than 0 close first, and rank 0 goes on: it must not be ended with them.
int launched(const fs::path& folder) {
  const Options options;
  std::shared_ptr<Module> module;
  if (const Status status = find_module(options, "mpi", &module); !status.ok()) return failed(status.message);
  const hvd_backend_table& table = module->table;
  if (module->description.local) return failed("the module says that it is the fastest inside a host");
  int32_t rank = -1, size = -1;
  hvd_error error = HVD_ERROR_INIT;
  if (table.world(30 * HVD_SECOND, &rank, &size, &error) != HVD_OK) return failed(error.message);
  if (std::to_string(size) != std::getenv("OMPI_COMM_WORLD_SIZE")) return failed("the group's size is wrong");
  std::string text = rank == 0 ? "what rank 0 knows" : "-----------------";
  if (table.world_broadcast(text.data(), text.size(), 30 * HVD_SECOND, &error) != HVD_OK)
    return failed(error.message);
  if (text != "what rank 0 knows") return failed("rank 0 was heard to say '" + text + "'");

  // They are one world already: no ompi-server is needed.
  Inbox inbox;
  std::unique_ptr<Instance> instance;
  if (const Status status =
          open_module("mpi", {{"interface", "127.0.0.1"}, {"elastic", "0"}}, inbox.handlers(), &instance);
      !status.ok()) {
    return failed(status.message);
  }
  if (const Status status = meet(*instance, folder, 1, rank, size); !status.ok())
    return failed(status.message);
  uint64_t sequence = 0;
  if (const std::string answer = check(*instance, {rank, size}, &sequence); answer != "ok")
    return failed(answer);
  instance->disconnect();
  instance.reset();
  const auto closed = [&](int32_t r) { return folder / (std::to_string(r) + ".closed"); };
  std::ofstream(closed(rank)) << "closed";
  for (int32_t r = 1; r < size && rank == 0; ++r) {
    wait_until([&] { return fs::exists(closed(r)); });
    if (!fs::exists(closed(r))) return failed("rank " + std::to_string(r) + " does not close its instance");
  }
  if (rank == 0) std::ofstream(folder / "last") << "alive";
  return 0;
}

// Two processes of a fault-tolerant run. Rank 0 begins an op to which rank 1 does not come, and gives it up
// at many moments: the call within MPI blocks, and nothing but a revoke ends it.
int revoking(const fs::path& folder) {
  const Options options;
  std::shared_ptr<Module> module;
  if (const Status status = find_module(options, "mpi", &module); !status.ok()) return failed(status.message);
  int32_t rank = -1, size = -1;
  hvd_error error = HVD_ERROR_INIT;
  if (module->table.world(30 * HVD_SECOND, &rank, &size, &error) != HVD_OK) return failed(error.message);
  Inbox inbox;
  std::unique_ptr<Instance> instance;
  if (const Status status =
          open_module("mpi", {{"interface", "127.0.0.1"}, {"elastic", "0"}}, inbox.handlers(), &instance);
      !status.ok()) {
    return failed(status.message);
  }
  uint64_t generation = 0;
  std::vector<std::unique_ptr<Pending>> given_up;
  std::vector<float> memory(1 << 20, 1.F);
  for (int moment = 0; moment < 8; ++moment) {
    const Status met = meet(*instance, folder, ++generation, rank, size);
    if (!met.ok()) return failed("generation " + std::to_string(generation) + ": " + met.message);
    // Neither gives up what the other has not come to.
    const auto told = [&](int32_t r) {
      return folder / ("met." + std::to_string(generation) + "." + std::to_string(r));
    };
    std::ofstream(told(rank)) << "met";
    wait_until([&] { return fs::exists(told(1 - rank)); });
    if (rank == 0) {
      given_up.push_back(std::make_unique<Pending>());
      hvd_backend_op op = given_up.back()->op(HVD_COLLECTIVE_ALLREDUCE, 1);
      op.dtype = HVD_DTYPE_FLOAT32;
      op.reduction = HVD_REDUCTION_SUM;
      op.count = memory.size();
      op.input = op.output = memory.data();
      if (const Status status = instance->submit(op); !status.ok()) return failed(status.message);
      const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(moment);
      while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    }
    instance->abort(generation);
    if (rank == 0 && given_up.back()->wait().code != HVD_PEER_LOST) return failed("the op was not given up");
  }
  if (const Status met = meet(*instance, folder, ++generation, rank, size); !met.ok())
    return failed(met.message);
  uint64_t sequence = 0;
  if (const std::string answer = check(*instance, {rank, size}, &sequence); answer != "ok")
    return failed(answer);
  instance->disconnect();
  return 0;
}

std::string version() {
  std::shared_ptr<Module> module;
  const Status status = find_module(Options(), "mpi", &module);
  EXPECT_TRUE(status.ok()) << status.message;
  return module == nullptr ? "" : module->description.version;
}

// mpirun's status.
int run(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t pid = -1;
  EXPECT_EQ(posix_spawnp(&pid, "mpirun", nullptr, nullptr, arguments.data(), environ), 0);
  int status = -1;
  waitpid(pid, &status, 0);
  return status;
}

class MpiWorld : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(folder_.data()), nullptr); }
  void TearDown() override { fs::remove_all(folder_); }
  std::string folder_ = (fs::temp_directory_path() / "hvd-mpi-XXXXXX").string();
  const std::string self_ = fs::read_symlink("/proc/self/exe").string();
};

TEST_F(MpiWorld, ProcessesOfOneLaunchMeetAndCloseOneByOne) {
  std::vector<std::string> words = {"mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3"};
  // Open MPI 5 finds no loopback to talk to itself by, and on one host does not talk.
  if (!version().starts_with("Open MPI 5")) words.insert(words.end(), {"--mca", "oob_tcp_if_include", "lo"});
  words.insert(words.end(), {self_, "--launched", folder_});
  const int status = run(words);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_TRUE(fs::exists(fs::path(folder_) / "last")) << "rank 0 was ended with the others";
}

TEST_F(MpiWorld, WhereMpiIsFaultTolerantABlockingCallThatIsGivenUpEnds) {
  if (!version().starts_with("Open MPI 5")) GTEST_SKIP() << version() << " has no ULFM";
  const int status = run({"mpirun", "--allow-run-as-root", "--oversubscribe", "--with-ft", "ulfm", "-n", "2",
                          self_, "--revoking", folder_});
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(MpiWorld, AProcessThatWasStartedApartIsInNone) {
  const Options options;
  std::shared_ptr<Module> module;
  const Status status = find_module(options, "mpi", &module);
  ASSERT_TRUE(status.ok()) << status.message;
  EXPECT_FALSE(module->description.local);
  int32_t rank = -1, size = -1;
  hvd_error error = HVD_ERROR_INIT;
  EXPECT_EQ(module->table.world(HVD_SECOND, &rank, &size, &error), HVD_UNAVAILABLE);
  EXPECT_STREQ(error.message, "this process was not started by a launcher of MPI");
}

}  // namespace

int run_launched(const char* folder) { return launched(folder); }
int run_revoking(const char* folder) { return revoking(folder); }

}  // namespace hvd::backend::test

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--launched") return hvd::backend::test::run_launched(argv[2]);
  if (argc == 3 && std::string(argv[1]) == "--revoking") return hvd::backend::test::run_revoking(argv[2]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
