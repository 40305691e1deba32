// Ranks as processes that share memory: what is left when one is killed at any moment, and ranks of two
// hosts.
#include "modules/process.h"

#include <cstring>
#include <random>

#include "modules/cluster.h"
#include "selection/selection.h"
#include "wire/member.h"

namespace hvd::local::test {
namespace {

using backend::test::Inbox;
using backend::test::kSoon;
using backend::test::Pending;
using backend::test::Process;
using backend::test::read_all;
using backend::test::write_all;

void write_block(int fd, const std::vector<uint8_t>& bytes) {
  const auto size = static_cast<uint32_t>(bytes.size());
  write_all(fd, &size, sizeof(size));
  write_all(fd, bytes.data(), bytes.size());
}

bool read_block(int fd, std::vector<uint8_t>* ret_bytes) {
  uint32_t size = 0;
  if (!read_all(fd, &size, sizeof(size))) return false;
  ret_bytes->resize(size);
  return read_all(fd, ret_bytes->data(), size);
}

/// As they travel between a worker and its driver.
std::vector<uint8_t> bytes_of(const std::vector<Offer>& offers) {
  wire::ReadyT ready;
  ready.addresses = wire::write_offers(offers);
  wire::EnvelopeT envelope;
  envelope.body.Set(std::move(ready));
  const wire::Bytes bytes = wire::encode(envelope);
  return {bytes.begin(), bytes.end()};
}

std::vector<Offer> offers_of(const std::vector<uint8_t>& bytes) {
  return wire::read_offers(wire::decode(bytes).body.AsReady()->addresses);
}

/// What a rank is told for a generation; size 0: the end.
struct Order {
  int32_t rank = 0, size = 0, hosts = 1;  // rank % hosts is the number of its host
  int32_t rounds = 0;                     // operations before it leaves in peace; 0: until somebody is lost
};

// A rank: gives its address, takes an order and all addresses, connects ('C'), then allreduces and sends a
// message to the next rank. 'R' after some rounds, 'D' when it is through and 'L' when somebody was lost: it
// does what the core does when the driver says so, and is told so by a byte.
int child() {
  Inbox inbox;
  std::unique_ptr<backend::Instance> instance;
  if (!selection::open(Options(), "gloo", {{"interface", "127.0.0.1"}}, inbox.handlers(), &instance).ok())
    return 91;
  for (uint64_t generation = 1;; ++generation) {
    std::vector<Offer> offers;
    if (!instance->offers(&offers).ok()) return 92;
    write_block(1, bytes_of(offers));
    Order order;
    if (!read_all(0, &order, sizeof(order))) return 93;
    if (order.size == 0) return 0;
    std::vector<backend::Member> members(static_cast<size_t>(order.size));
    for (int32_t rank = 0; rank < order.size; ++rank) {
      backend::Member& member = members[static_cast<size_t>(rank)];
      member.host = "host" + std::to_string(rank % order.hosts);
      std::vector<uint8_t> blob;
      if (!read_block(0, &blob)) return 94;
      member.offers = offers_of(blob);
    }
    if (const Status status = instance->connect(generation, order.rank, members, kSoon); !status.ok()) {
      fprintf(stderr, "connect: %s\n", status.message.c_str());
      return 95;
    }
    write_all(1, "C", 1);
    // The word of the driver: give this generation up.
    std::thread driver;
    if (order.rounds == 0) {
      driver = std::thread([&] {
        char word = 0;
        if (!read_all(0, &word, 1)) std::_Exit(96);
        instance->abort(generation);
      });
    }
    std::mt19937 random(static_cast<uint32_t>(generation));
    Status status;
    for (uint64_t sequence = 1; status.ok() && (order.rounds == 0 || sequence <= uint64_t(order.rounds));
         ++sequence) {
      if (sequence == 20 && order.rounds == 0) write_all(1, "R", 1);
      std::vector<float> values(random() % 300000 + 1, 1.F);
      Pending pending;
      hvd_backend_op op = pending.op(HVD_COLLECTIVE_ALLREDUCE, sequence);
      op.dtype = HVD_DTYPE_FLOAT32;
      op.reduction = HVD_REDUCTION_SUM;
      op.count = values.size();
      op.input = op.output = values.data();
      const auto sequence_bytes = reinterpret_cast<const uint8_t*>(&sequence);
      if (order.size > 1) {
        static_cast<void>(
            instance->send_message((order.rank + 1) % order.size, {sequence_bytes, sizeof(sequence)}));
      }
      status = backend::test::run(*instance, op, pending);
      if (status.ok() && (values.front() != float(order.size) || values.back() != float(order.size)))
        return 97;
      if (!status.ok() || order.size == 1) continue;
      Inbox::Message message = inbox.next_message();
      // One of the generation before may have been under way when that was given up.
      while (message.generation > 0 && message.generation < generation) message = inbox.next_message();
      if (message.generation == generation && std::memcmp(message.data.data(), &sequence, 8) != 0) return 98;
    }
    if (driver.joinable()) driver.join();
    if (status.ok()) {
      write_all(1, "D", 1);
      char word = 0;
      if (!read_all(0, &word, 1)) return 99;
      instance->disconnect();
      continue;
    }
    if (order.rounds > 0) fprintf(stderr, "nobody was lost: %s\n", status.message.c_str());
    if (status.code != HVD_PEER_LOST) return 100;
    while (inbox.has_message()) inbox.next_message();
    write_all(1, "L", 1);
  }
}

void form(const std::vector<Process*>& processes, int hosts, int rounds) {
  std::vector<std::vector<uint8_t>> blobs(processes.size());
  for (size_t i = 0; i < processes.size(); ++i) ASSERT_TRUE(read_block(processes[i]->out, &blobs[i]));
  for (size_t i = 0; i < processes.size(); ++i) {
    const Order order{static_cast<int32_t>(i), static_cast<int32_t>(processes.size()), hosts, rounds};
    write_all(processes[i]->in, &order, sizeof(order));
    for (const auto& blob : blobs) write_block(processes[i]->in, blob);
  }
  for (Process* p : processes) ASSERT_EQ(p->hear(), 'C') << "pid " << p->pid;
}

struct Case {
  int size, hosts;
};
class KillOneOf : public testing::TestWithParam<Case> {};

// contract 3: with shared memory nothing tells that a peer has died but the driver, and then all are free.
TEST_P(KillOneOf, TheOthersGoOn) {
  const auto [size, hosts] = GetParam();
  for (int round = 0; round < 4; ++round) {
    std::vector<Process> processes(static_cast<size_t>(size));
    std::vector<Process*> all, survivors;
    const int victim = round % size;
    for (int rank = 0; rank < size; ++rank) {
      Process& p = processes[static_cast<size_t>(rank)];
      p.start({"--rank"});
      all.push_back(&p);
      if (rank != victim) survivors.push_back(&p);
    }
    form(all, hosts, 0);
    for (Process* p : all) ASSERT_EQ(p->hear(), 'R');
    Process& dead = processes[static_cast<size_t>(victim)];
    ASSERT_EQ(kill(dead.pid, SIGKILL), 0);
    dead.wait();
    for (Process* p : survivors) write_all(p->in, "a", 1);
    for (Process* p : survivors) ASSERT_EQ(p->hear(), 'L') << "pid " << p->pid;
    form(survivors, hosts, 30);
    for (Process* p : survivors) ASSERT_EQ(p->hear(), 'D');
    for (Process* p : survivors) write_all(p->in, "x", 1);
    std::vector<uint8_t> blob;
    const Order end;
    for (Process* p : survivors) {
      ASSERT_TRUE(read_block(p->out, &blob));
      write_all(p->in, &end, sizeof(end));
    }
    for (Process* p : survivors) {
      const int status = p->wait();
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
          << (WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                                  : std::to_string(WEXITSTATUS(status)));
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, KillOneOf,
                         testing::Values(Case{2, 1}, Case{3, 1}, Case{4, 1}, Case{4, 2}, Case{3, 2}),
                         [](const auto& each) {
                           return std::to_string(each.param.size) + "On" + std::to_string(each.param.hosts);
                         });

// A peer that is gone before its memory was mapped is a lost peer, and named.
TEST(LocalProcess, APeerThatDiedBeforeTheGenerationIsNamed) {
  Process peer;
  peer.start({"--rank"});
  std::vector<uint8_t> blob;
  ASSERT_TRUE(read_block(peer.out, &blob));
  backend::test::Inbox inbox;
  std::unique_ptr<backend::Instance> instance;
  ASSERT_TRUE(
      selection::open(Options(), "gloo", {{"interface", "127.0.0.1"}}, inbox.handlers(), &instance).ok());
  std::vector<backend::Member> members(2);
  members[0].host = members[1].host = "host";
  members[1].offers = offers_of(blob);
  ASSERT_TRUE(instance->offers(&members[0].offers).ok());
  kill(peer.pid, SIGKILL);
  peer.wait();
  const Status status = instance->connect(1, 0, members, kSoon);
  EXPECT_EQ(status.code, HVD_PEER_LOST) << status.message;
  EXPECT_EQ(status.rank, 1);
}

}  // namespace
int run_child() {
  const int status = child();
  if (status != 0) fprintf(stderr, "rank's process ends with %d\n", status);
  return status;
}
}  // namespace hvd::local::test

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--rank") == 0) return hvd::local::test::run_child();
  signal(SIGPIPE, SIG_IGN);  // of the pipes to a child that ended too early: a test's failure, not its end
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
