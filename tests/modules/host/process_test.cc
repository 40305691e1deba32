// Ranks as processes of this program, where signals matter: SIGKILL of one, and SIGPIPE for the others.
#include "modules/process.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "modules/cluster.h"

namespace hvd::backend::test {
namespace {

constexpr size_t kBlob = 48;

// A rank: gives its address, takes all addresses, connects, and runs collectives until a peer is lost; then
// aborts, and says 'L'. Every answer goes to standard output, every order comes from standard input.
int child(int size, hvd_collective collective) {
  Inbox inbox;
  std::unique_ptr<Instance> instance;
  // As the core does: a rank that does not wait on the lost one is freed by the failure of its link.
  inbox.on_failure = [&](const Inbox::Loss& loss) { instance->abort(loss.generation); };
  if (!open_module(module_under_test(), {{"interface", "127.0.0.1"}}, inbox.handlers(), &instance).ok())
    return 91;
  for (uint64_t generation = 1;; ++generation) {
    std::vector<uint8_t> blob;
    if (!address_of(*instance, &blob).ok() || blob.size() != kBlob) return 92;
    write_all(1, blob.data(), blob.size());
    int32_t place[2];  // this rank's place in the generation, and its size; -1: end
    if (!read_all(0, place, sizeof(place))) return 93;
    if (place[0] < 0) return 0;
    std::vector<Member> members(static_cast<size_t>(place[1]));
    for (Member& member : members) {
      member = member_at(0, "", *instance, std::vector<uint8_t>(kBlob));
      if (!read_all(0, member.offers[0].address.data(), kBlob)) return 94;
    }
    if (!instance->connect(generation, place[0], members, kSoon).ok()) return 95;
    write_all(1, "C", 1);
    for (uint64_t sequence = 1;; ++sequence) {
      constexpr size_t kPart = 1 << 16;
      const auto n = static_cast<size_t>(place[1]);
      std::vector<float> values(kPart * n, 1.F);
      std::vector<float> results(kPart * n);
      const std::vector<size_t> counts(2 * n, kPart);
      Pending pending;
      hvd_backend_op op = pending.op(collective, sequence);
      op.dtype = HVD_DTYPE_FLOAT32;
      op.reduction = HVD_REDUCTION_SUM;
      op.count = values.size();
      op.counts = counts.data();
      op.input = values.data();
      op.output = results.data();
      const Status status = run(*instance, op, pending);
      if (status.ok()) {
        const float expected = collective == HVD_COLLECTIVE_ALLTOALL ? 1.F : static_cast<float>(place[1]);
        if (results[5] != expected || results[kPart - 1] != expected) return 97;
        if (sequence == 3) write_all(1, "R", 1);
        if (place[1] < size && sequence == 50) {  // the survivors' generation: leave together
          Pending barrier;
          if (!run(*instance, barrier.op(HVD_COLLECTIVE_BARRIER, 51), barrier).ok()) return 98;
          write_all(1, "D", 1);
          char go = 0;
          if (!read_all(0, &go, 1)) return 99;
          instance->disconnect();
          break;
        }
        continue;
      }
      if (status.code != HVD_PEER_LOST) return 100;
      instance->abort(generation);
      write_all(1, "L", 1);
      break;
    }
  }
}

void form(std::vector<Process*> processes) {
  std::vector<std::vector<char>> blobs;
  for (Process* p : processes) {
    blobs.emplace_back(kBlob);
    ASSERT_TRUE(read_all(p->out, blobs.back().data(), kBlob));
  }
  for (size_t i = 0; i < processes.size(); ++i) {
    const int32_t place[2] = {static_cast<int32_t>(i), static_cast<int32_t>(processes.size())};
    write_all(processes[i]->in, place, sizeof(place));
    for (const auto& blob : blobs) write_all(processes[i]->in, blob.data(), blob.size());
  }
  for (Process* p : processes) ASSERT_EQ(p->hear(), 'C');
}

class KillOneOf : public testing::TestWithParam<std::tuple<int, hvd_collective>> {};

// contract 3: and nobody dies of SIGPIPE, which is at its default action in these processes.
TEST_P(KillOneOf, TheOthersGoOn) {
  const auto [size, collective] = GetParam();
  for (int round = 0; round < 5; ++round) {
    std::vector<Process> processes(static_cast<size_t>(size));
    std::vector<Process*> all, survivors;
    const int victim = round % size;
    for (int rank = 0; rank < size; ++rank) {
      Process& p = processes[static_cast<size_t>(rank)];
      p.start({"--rank-of", std::to_string(size), std::to_string(collective)});
      all.push_back(&p);
      if (rank != victim) survivors.push_back(&p);
    }
    form(all);
    for (Process* p : all) ASSERT_EQ(p->hear(), 'R');
    Process& dead = processes[static_cast<size_t>(victim)];
    ASSERT_EQ(kill(dead.pid, SIGKILL), 0);
    dead.wait();
    for (Process* p : survivors) ASSERT_EQ(p->hear(), 'L') << "pid " << p->pid;
    form(survivors);
    for (Process* p : survivors) ASSERT_EQ(p->hear(), 'R');
    for (Process* p : survivors) ASSERT_EQ(p->hear(), 'D');
    for (Process* p : survivors) write_all(p->in, "x", 1);
    for (Process* p : survivors) {
      char blob[kBlob];
      ASSERT_TRUE(read_all(p->out, blob, kBlob));
      const int32_t end[2] = {-1, 0};
      write_all(p->in, end, sizeof(end));
    }
    for (Process* p : survivors) {
      const int status = p->wait();
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
          << (WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                                  : std::to_string(WEXITSTATUS(status)));
    }
  }
}

// contract 10: the program's signals stay with its threads, and SIGPIPE can't come from a write.
TEST(HostThreads, BlockEverySignal) {
  std::set<std::string> before;
  const auto threads = [] {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
      found.insert(entry.path());
    return found;
  };
  before = threads();
  Workers workers = make_workers(2);
  connect_all(workers, 1);
  int checked = 0;
  for (const std::string& thread : threads()) {
    if (before.contains(thread)) continue;
    std::ifstream status(thread + "/status");
    std::string line;
    while (std::getline(status, line)) {
      if (!line.starts_with("SigBlk:")) continue;
      const uint64_t blocked = std::stoull(line.substr(7), nullptr, 16);
      for (const int signal : {SIGPIPE, SIGTERM, SIGINT, SIGUSR1, SIGCHLD}) {
        EXPECT_NE(blocked >> (signal - 1) & 1, 0U) << thread << " signal " << signal;
      }
      ++checked;
    }
  }
  EXPECT_GE(checked, 4);  // of each instance: links, reaper
}

INSTANTIATE_TEST_SUITE_P(Ranks, KillOneOf,
                         testing::Combine(testing::Values(2, 3, 4),
                                          testing::Values(HVD_COLLECTIVE_ALLREDUCE,
                                                          HVD_COLLECTIVE_REDUCESCATTER,
                                                          HVD_COLLECTIVE_ALLTOALL)));

}  // namespace
int run_child(int size, int collective) { return child(size, collective); }
}  // namespace hvd::backend::test

int main(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "--rank-of") == 0)
    return hvd::backend::test::run_child(std::atoi(argv[2]), std::atoi(argv[3]));
  signal(SIGPIPE, SIG_IGN);  // of the pipes to a child that ended too early: a test's failure, not its end
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
