// An instance around another one: who shares memory, what goes to the other backend, and how a generation
// ends.
#include <sys/resource.h>

#include <fstream>
#include <future>
#include <random>

#include "local/bell.h"
#include "local/cluster.h"

namespace hvd::local::test {
namespace {

// An op of nobody else's business but the executor's: it shows in which order things are done.
hvd_backend_op barrier(Pending& pending, uint64_t sequence) {
  return pending.op(HVD_COLLECTIVE_BARRIER, sequence);
}

void expect_barrier(const Ranks& ranks, uint64_t sequence) {
  on_all(static_cast<int>(ranks.size()), [&](int rank) {
    Pending pending;
    const Status status =
        backend::test::run(*ranks[static_cast<size_t>(rank)]->instance, barrier(pending, sequence), pending);
    EXPECT_TRUE(status.ok()) << status.message;
  });
}

TEST(LocalInstance, SaysWhatItIs) {
  Rank rank;
  const backend::Description& description = rank.instance->description();
  EXPECT_EQ(description.name, "spy");
  EXPECT_EQ(description.version, "7");
  EXPECT_TRUE(description.local);
  EXPECT_TRUE(description.messages);
  for (hvd_collective c : {HVD_COLLECTIVE_BROADCAST, HVD_COLLECTIVE_ALLREDUCE, HVD_COLLECTIVE_ALLGATHER,
                           HVD_COLLECTIVE_BARRIER, HVD_COLLECTIVE_REDUCESCATTER, HVD_COLLECTIVE_ALLTOALL}) {
    EXPECT_NE(description.collectives >> c & 1, 0U);
  }
  EXPECT_EQ(rank.instance->detail(), "by spy");
}

TEST(LocalInstance, OneHostNeedsNoOtherBackend) {
  Ranks ranks = make_ranks(4);
  connect_all(ranks, 1);
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank->instance->detail(), "shared memory among 4 ranks of this host");
    EXPECT_TRUE(rank->instance->takes_parts());
  }
  expect_barrier(ranks, 1);
  expect_message(*ranks[2], 2, *ranks[3], 3);
  for (const auto& rank : ranks) rank->instance->disconnect();
  for (const auto& rank : ranks) {
    EXPECT_FALSE(rank->instance->takes_parts()) << "without a generation";
    EXPECT_TRUE(rank->notes->connected.empty());
    EXPECT_TRUE(rank->notes->ops.empty());
    EXPECT_EQ(rank->notes->disconnected, 0);
  }
}

// A lack of this process itself is no other rank's fault.
TEST(LocalInstance, WhoHasNoDescriptorLeftBlamesNobody) {
  Ranks ranks = make_ranks(2);
  const std::vector<backend::Member> members = members_of(ranks);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{3, before.rlim_max};  // those that are open stay open
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const Status status = ranks[0]->instance->connect(1, 0, members, kSoon);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(status.code, HVD_PEER_LOST) << status.message;
  EXPECT_EQ(status.rank, -1) << status.message;
  connect_all(ranks, 2);  // without memory of this one
}

TEST(LocalInstance, SeveralHostsAreJoinedByTheOtherBackend) {
  Ranks ranks = make_ranks(4);
  connect_all(ranks, 3, {"a", "b", "a", "b"});
  EXPECT_EQ(ranks[1]->instance->detail(), "shared memory among 2 ranks of this host, by spy between hosts");
  expect_message(*ranks[0], 0, *ranks[2], 2);
  for (const auto& rank : ranks) {
    EXPECT_FALSE(rank->instance->takes_parts()) << "the other backend would have to pack them";
    EXPECT_EQ(rank->notes->connected, std::vector<uint64_t>{3});
    ASSERT_EQ(rank->notes->members.size(), 4U);
    // Each gets what the other's backend gave, and nothing of what was put around it.
    EXPECT_EQ(rank->notes->members[3].offers[0].address, (std::vector<uint8_t>{1, 42}));
    EXPECT_EQ(rank->notes->members[3].host, "b");
    EXPECT_TRUE(rank->notes->messages.empty());
  }
  ASSERT_TRUE(ranks[0]->instance->send_message(3, bytes_of("far")).ok());
  ASSERT_EQ(ranks[0]->notes->messages.size(), 1U);
  EXPECT_EQ(ranks[0]->notes->messages[0], std::pair(3, bytes_of("far")));
  for (const auto& rank : ranks) rank->instance->disconnect();
  for (const auto& rank : ranks) EXPECT_EQ(rank->notes->disconnected, 1);
}

// Of each host one rank alone: nothing is done to the operation but that its number leaves room for others.
TEST(LocalInstance, RanksThatAreAloneOnTheirHostsUseTheOtherBackend) {
  Ranks ranks = make_ranks(3);
  connect_all(ranks, 1, {"a", "a", "b"});
  const int32_t members[] = {1, 2};
  Pending pending;
  hvd_backend_op op = barrier(pending, 5);
  op.ranks = members;
  op.rank_count = 2;
  ASSERT_TRUE(backend::test::run(*ranks[1]->instance, op, pending).ok());
  ASSERT_EQ(ranks[1]->notes->ops.size(), 1U);
  EXPECT_EQ(ranks[1]->notes->ops[0].sequence, uint64_t{5} << 20);
  EXPECT_EQ(ranks[1]->notes->op_ranks[0], (std::vector<int32_t>{1, 2}));
}

TEST(LocalInstance, WhoSharesNoMemoryIsReachedByTheOtherBackend) {
  Ranks ranks = make_ranks(2);
  ranks.push_back(std::make_unique<Rank>(Shares::kNothing));
  connect_all(ranks, 1);
  EXPECT_EQ(ranks[2]->instance->detail(), "by spy");
  expect_message(*ranks[0], 0, *ranks[1], 1);
  ASSERT_TRUE(ranks[2]->instance->send_message(0, bytes_of("x")).ok());
  EXPECT_EQ(ranks[2]->notes->messages.size(), 1U);
  ASSERT_TRUE(ranks[0]->instance->send_message(2, bytes_of("x")).ok());
  EXPECT_EQ(ranks[0]->notes->messages.size(), 1U);
}

TEST(LocalInstance, WrongOperationsAreRefused) {
  Ranks ranks = make_ranks(2);
  Pending pending;
  EXPECT_EQ(ranks[0]->instance->submit(barrier(pending, 1)).code, HVD_PEER_LOST);
  connect_all(ranks, 1);
  backend::Instance& instance = *ranks[0]->instance;
  hvd_backend_op op = barrier(pending, 1);
  op.collective = 60;
  EXPECT_EQ(instance.submit(op).code, HVD_UNSUPPORTED);
  op = barrier(pending, 1);
  op.memory = 1;
  EXPECT_EQ(instance.submit(op).code, HVD_UNSUPPORTED);
  op = pending.op(HVD_COLLECTIVE_BROADCAST, 1);
  op.dtype = 99;
  EXPECT_EQ(instance.submit(op).code, HVD_UNSUPPORTED);
  op.dtype = HVD_DTYPE_FLOAT32;
  op.root = 2;
  EXPECT_EQ(instance.submit(op).code, HVD_INVALID);
  op = barrier(pending, 1);
  for (const std::vector<int32_t>& wrong : std::vector<std::vector<int32_t>>{{1}, {1, 0}, {0, 2}, {-1, 0}}) {
    op.ranks = wrong.data();
    op.rank_count = static_cast<int32_t>(wrong.size());
    EXPECT_EQ(instance.submit(op).code, HVD_INVALID);
  }
  op = pending.op(HVD_COLLECTIVE_ALLGATHER, 1);
  op.dtype = HVD_DTYPE_FLOAT32;
  EXPECT_EQ(instance.submit(op).code, HVD_INVALID) << "no counts";
}

TEST(LocalConnect, WithoutAnAddressItIsRefused) {
  Ranks ranks = make_ranks(2);
  const std::vector<backend::Member> members = members_of(ranks);
  ASSERT_TRUE(ranks[0]->instance->connect(1, 0, members, kSoon).ok());
  EXPECT_EQ(ranks[0]->instance->connect(2, 0, members, kSoon).code, HVD_INVALID);
}

TEST(LocalConnect, BadAddressesAreNamed) {
  for (int kind = 0; kind < 5; ++kind) {
    Ranks ranks = make_ranks(2);
    std::vector<backend::Member> members = members_of(ranks);
    std::vector<uint8_t>& address = members[1].offers.at(1).address;
    if (kind == 0) address.clear();
    if (kind == 1) address.pop_back();
    if (kind == 2) address.assign(40, 1);
    if (kind == 3) address[4] = 9;
    if (kind == 4) members[1].offers.pop_back();
    const Status status = ranks[0]->instance->connect(1, 0, members, kSoon);
    EXPECT_EQ(status.code, HVD_INVALID) << status.message;
    EXPECT_EQ(status.rank, 1);
    EXPECT_NE(status.message.find("rank 1"), std::string::npos) << status.message;
    // It goes on with the next.
    connect_all(ranks, 2);
  }
}

TEST(LocalConnect, AnAddressThatIsNotItsOwnIsRefused) {
  Ranks ranks = make_ranks(2);
  const std::vector<backend::Member> members = members_of(ranks);
  EXPECT_EQ(ranks[0]->instance->connect(1, 1, members, kSoon).code, HVD_INVALID);
}

TEST(LocalConnect, APeerThatWentOnIsLost) {
  Ranks ranks = make_ranks(2);
  const std::vector<backend::Member> members = members_of(ranks);
  std::vector<Offer> newer;
  ASSERT_TRUE(ranks[1]->instance->offers(&newer).ok());
  const Status status = ranks[0]->instance->connect(1, 0, members, kSoon);
  EXPECT_EQ(status.code, HVD_PEER_LOST) << status.message;
  EXPECT_EQ(status.rank, 1);
  connect_all(ranks, 2);
  EXPECT_EQ(ranks[0]->instance->detail(), "shared memory among 2 ranks of this host");
}

TEST(LocalConnect, AbortMayComeBefore) {
  Ranks ranks = make_ranks(2);
  const std::vector<backend::Member> members = members_of(ranks);
  ranks[0]->instance->abort(4);
  EXPECT_EQ(ranks[0]->instance->connect(4, 0, members, kSoon).code, HVD_PEER_LOST);
  connect_all(ranks, 5);
  expect_barrier(ranks, 1);
}

TEST(LocalEnd, AbortEndsEveryOperationAndIsToldToThePeers) {
  Ranks ranks = make_ranks(3);
  for (uint64_t generation = 1; generation <= 20; ++generation) {
    connect_all(ranks, generation);
    std::vector<Pending> pending(2);
    // Rank 2 does not come.
    for (size_t i = 0; i < 2; ++i) { ASSERT_TRUE(ranks[i]->instance->submit(barrier(pending[i], 1)).ok()); }
    ranks[2]->instance->abort(generation);
    for (size_t i = 0; i < 2; ++i) {
      const Inbox::Loss loss = ranks[i]->inbox.wait_failure();
      EXPECT_EQ(loss.generation, generation);
      EXPECT_EQ(loss.peer, -1) << "who gives up is not to blame";
      EXPECT_NE(loss.text.find("rank 2"), std::string::npos) << loss.text;
    }
    for (size_t i = 0; i < 2; ++i) {
      ranks[i]->instance->abort(generation);
      EXPECT_EQ(pending[i].wait().code, HVD_PEER_LOST);
      Pending later;
      EXPECT_EQ(ranks[i]->instance->submit(barrier(later, 2)).code, HVD_PEER_LOST);
      EXPECT_EQ(ranks[i]->instance->send_message(2, bytes_of("x")).code, HVD_PEER_LOST);
      ranks[i]->instance->abort(generation);
    }
    ranks = make_ranks(3);
  }
}

TEST(LocalEnd, APeerThatLeavesInPeaceIsNoFailure) {
  Ranks ranks = make_ranks(2);
  connect_all(ranks, 1);
  ASSERT_TRUE(ranks[0]->instance->send_message(1, bytes_of("last")).ok());
  ranks[0]->instance->disconnect();
  EXPECT_EQ(ranks[1]->inbox.next_message().data, bytes_of("last"));
  ranks[1]->instance->disconnect();
  ranks[1]->instance.reset();
  EXPECT_TRUE(ranks[1]->inbox.losses().empty());
}

TEST(LocalEnd, OperationsThatTheOtherBackendHasEndWithTheGeneration) {
  Ranks ranks = make_ranks(2);
  ranks[0]->notes->holds = true;
  connect_all(ranks, 1, {"a", "b"});
  Pending first, second;
  ASSERT_TRUE(ranks[0]->instance->submit(barrier(first, 1)).ok());
  ASSERT_TRUE(ranks[0]->instance->submit(barrier(second, 2)).ok());
  ranks[0]->instance->abort(1);
  EXPECT_EQ(first.wait().code, HVD_PEER_LOST);
  EXPECT_EQ(second.wait().code, HVD_PEER_LOST);
  EXPECT_EQ(ranks[0]->notes->aborted, std::vector<uint64_t>{1});
}

// contract 12: a peer that does not go on with an operation keeps nobody who lends itself beyond its
// deadline.
TEST(LocalLending, WhoLendsItselfLeavesAtItsDeadlineAndTheOperationGoesOn) {
  Ranks ranks = make_ranks(2);
  connect_all(ranks, 1);
  const std::atomic<bool> never{false};
  std::mt19937 random(3);
  for (uint64_t sequence = 1; sequence <= 30; ++sequence) {
    Pending first, second;
    ranks[0]->instance->lends(true);
    ASSERT_TRUE(ranks[0]->instance->submit(barrier(first, sequence)).ok());
    ranks[0]->instance->lends(false);
    for (int i = 0; i < 3; ++i)
      ranks[0]->instance->progress(never, now() + std::chrono::microseconds(random() % 4000));
    ASSERT_EQ(first.wait(Duration::zero()).code, HVD_TIMEOUT);
    ASSERT_TRUE(ranks[1]->instance->submit(barrier(second, sequence)).ok());
    ASSERT_TRUE(first.wait().ok());
    ASSERT_TRUE(second.wait().ok());
  }
}

// contract 12: nobody lends itself to a generation that has ended.
TEST(LocalLending, TheEndOfAGenerationEndsWhatWaitsForALender) {
  Ranks ranks = make_ranks(2);
  std::mt19937 random(3);
  for (uint64_t generation = 1; generation <= 300; ++generation) {
    connect_all(ranks, generation);
    std::atomic<bool> begun{false};
    std::thread aborter([&, moment = random() % 2000] {
      while (!begun) {}
      for (std::atomic<size_t> i{0}; i < moment; ++i) {}
      for (const auto& rank : ranks) rank->instance->abort(generation);
    });
    Pending pending;
    begun = true;
    ranks[0]->instance->lends(true);
    const Status submitted = ranks[0]->instance->submit(barrier(pending, 1));
    ranks[0]->instance->lends(false);
    aborter.join();
    ASSERT_EQ((submitted.ok() ? pending.wait() : submitted).code, HVD_PEER_LOST) << generation;
  }
}

TEST(LocalEnd, ClosingEndsEverything) {
  for (int round = 0; round < 50; ++round) {
    Ranks ranks = make_ranks(2);
    connect_all(ranks, 1);
    Pending pending;
    ASSERT_TRUE(ranks[0]->instance->submit(barrier(pending, 1)).ok());
    ranks[0]->instance.reset();
    EXPECT_EQ(pending.wait().code, HVD_PEER_LOST);
    EXPECT_EQ(ranks[1]->inbox.wait_failure().peer, -1);
  }
}

size_t count_maps() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("memfd:hvd") != std::string::npos ? 1 : 0;
  return count;
}

size_t count_threads() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(entry.path() / "comm");
    std::string name;
    count += std::getline(file, name) && name.starts_with("hvd-local") ? 1 : 0;
  }
  return count;
}

// Threads and old memory go a little later.
void expect_soon(size_t (*count)(), size_t expected) {
  const Time until = now() + kSoon;
  while (count() != expected && now() < until) std::this_thread::yield();
  EXPECT_EQ(count(), expected);
}

TEST(LocalEnd, GenerationsLeaveNothingBehind) {
  expect_soon(count_threads, 0);
  const size_t files_at_first = count_entries("/proc/self/fd");
  {
    Ranks ranks = make_ranks(3);
    for (uint64_t generation = 1; generation <= 300; ++generation) {
      connect_all(ranks, generation);
      if (generation % 3 == 0) expect_barrier(ranks, 1);
      if (generation % 4 == 0) {
        for (const auto& rank : ranks) rank->instance->disconnect();
      } else {
        const auto first = static_cast<size_t>(generation % 3);
        for (size_t i = 0; i < 3; ++i) ranks[(first + i) % 3]->instance->abort(generation);
      }
      if (generation % 50 != 0) continue;
      expect_soon(count_maps, 0);
      EXPECT_EQ(count_entries("/proc/self/fd"), files_at_first) << "after generation " << generation;
    }
    EXPECT_EQ(count_threads(), 6U);
  }
  expect_soon(count_threads, 0);
  EXPECT_EQ(count_entries("/proc/self/fd"), files_at_first);
  EXPECT_EQ(count_maps(), 0U);
}

// Abort at any moment of connecting, operations and messages.
TEST(LocalEnd, AbortAtAnyMoment) {
  std::mt19937 random(3);
  Ranks ranks = make_ranks(3);
  for (uint64_t generation = 1; generation <= 200; ++generation) {
    const std::vector<backend::Member> members = members_of(ranks);
    std::atomic<int> turn{0};
    const int moment = static_cast<int>(random() % 300);
    std::thread aborter([&] {
      while (turn < moment) std::this_thread::yield();
      for (const auto& rank : ranks) rank->instance->abort(generation);
    });
    on_all(3, [&](int rank) {
      backend::Instance& instance = *ranks[static_cast<size_t>(rank)]->instance;
      static_cast<void>(instance.connect(generation, rank, members, kSoon));
      for (uint64_t sequence = 1;; ++sequence) {
        ++turn;
        static_cast<void>(instance.send_message((rank + 1) % 3, bytes_of("x")));
        Pending pending;
        if (!backend::test::run(instance, barrier(pending, sequence), pending).ok()) break;
      }
      turn += 300;
    });
    aborter.join();
  }
}

// The memory of a rank is the others' to write to: whatever stands there is that rank's failure.
// A thread of the other backend's, whose failure the program answers with abort.
TEST(LocalEnd, ClosingWaitsForAnAbortThatIsUnderWay) {
  Ranks ranks = make_ranks(2);
  std::promise<void> in_abort, may_end;
  std::once_flag once;
  ranks[0]->notes->in_abort = [&] {
    std::call_once(once, [&] {
      in_abort.set_value();
      may_end.get_future().wait();
    });
  };
  connect_all(ranks, 1, {"a", "b"});
  backend::Instance* const instance = ranks[0]->instance.get();
  std::thread aborting([instance] { instance->abort(1); });
  ASSERT_EQ(in_abort.get_future().wait_for(kSoon), std::future_status::ready);
  auto closed = std::async(std::launch::async, [&] { ranks[0]->instance.reset(); });
  EXPECT_EQ(closed.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout)
      << "nobody waited for the abort";
  may_end.set_value();
  EXPECT_EQ(closed.wait_for(kSoon), std::future_status::ready);
  aborting.join();
}

TEST(LocalTrust, APeerWhoseMemoryIsBrokenIsLost) {
  for (const bool sending : {false, true}) {
    Ranks ranks = make_ranks(2);
    const std::vector<backend::Member> members = members_of(ranks);
    const std::vector<std::shared_ptr<Box>> boxes{whole_box(members[0]), whole_box(members[1])};
    on_all(2, [&](int rank) {
      EXPECT_TRUE(ranks[static_cast<size_t>(rank)]->instance->connect(1, rank, members, kSoon).ok());
    });
    expect_message(*ranks[0], 0, *ranks[1], 1);
    if (sending) {
      boxes[1]->rings[0].read.value = 1 << 20;
      EXPECT_EQ(ranks[0]->instance->send_message(1, bytes_of("x")).code, HVD_OK);
    } else {
      boxes[0]->rings[1].written.value = ~uint64_t{0};
      ring(boxes[0]->bells.message);
    }
    const Inbox::Loss loss = ranks[0]->inbox.wait_failure();
    EXPECT_EQ(loss.peer, 1);
    EXPECT_NE(loss.text.find("broken"), std::string::npos) << loss.text;
  }
}

}  // namespace
}  // namespace hvd::local::test
