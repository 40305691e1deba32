// Abort: at any moment, from any thread, and the next generation after it.
#include <dirent.h>

#include <cstring>

#include "modules/cluster.h"

namespace hvd::backend::test {
namespace {

int open_descriptors() {
  int count = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

void mark(std::vector<uint8_t>& bytes) { std::memset(bytes.data(), 0xaa, bytes.size()); }
bool all_marked(const std::vector<uint8_t>& bytes) {
  return bytes[0] == 0xaa && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

// A large allreduce that can't end, as one rank does not take part.
struct Stuck {
  std::vector<float> values = std::vector<float>(1 << 18, 1.F);
  Pending pending;
  hvd_backend_op op(uint64_t sequence) {
    hvd_backend_op op = pending.op(HVD_COLLECTIVE_ALLREDUCE, sequence);
    op.dtype = HVD_DTYPE_FLOAT32;
    op.reduction = HVD_REDUCTION_SUM;
    op.count = values.size();
    op.input = op.output = values.data();
    return op;
  }
};

// Of any collective, much data, with parts of the same size for everybody.
struct AnyOp {
  explicit AnyOp(size_t size, size_t part)
      : counts(2 * size, part), input(size * part, 1), output(size * part, 1) {}
  std::vector<size_t> counts;
  std::vector<uint8_t> input, output;
  Pending pending;
  hvd_backend_op op(hvd_collective collective, uint64_t sequence) {
    hvd_backend_op op = pending.op(collective, sequence);
    op.dtype = HVD_DTYPE_UINT8;
    op.reduction = HVD_REDUCTION_MAX;
    op.count = collective == HVD_COLLECTIVE_ALLGATHER ? counts[0] : input.size();
    op.counts = counts.data();
    op.input = input.data();
    op.output = output.data();
    return op;
  }
};

class HostAbortOf : public testing::TestWithParam<hvd_collective> {};

// contract 3: whoever is waited for.
TEST_P(HostAbortOf, EndsForTheOthersWhenOneGivesUp) {
  constexpr size_t kSize = 3;
  for (size_t victim = 0; victim < kSize; ++victim) {
    Workers workers(kSize);
    for (auto& worker : workers) {
      worker = std::make_unique<Worker>();
      Worker* self = worker.get();
      worker->inbox.on_failure = [self](const Inbox::Loss& loss) { self->instance->abort(loss.generation); };
    }
    connect_all(workers, 1);
    std::vector<std::unique_ptr<AnyOp>> ops;
    for (size_t rank = 0; rank < kSize; ++rank) {
      if (rank == victim) continue;
      ops.push_back(std::make_unique<AnyOp>(kSize, size_t{3} << 20));
      ASSERT_TRUE(workers[rank]->instance->submit(ops.back()->op(GetParam(), 1)).ok());
    }
    workers[victim]->instance->abort(1);
    for (size_t i = 0; i < ops.size(); ++i) {
      const hvd_status code = ops[i]->pending.wait().code;
      // The root of a broadcast need not wait for those that it does not send to.
      const bool may_end = GetParam() == HVD_COLLECTIVE_BROADCAST;
      EXPECT_TRUE(code == HVD_PEER_LOST || (may_end && code == HVD_OK))
          << "victim " << victim << ": " << code;
    }
    workers.clear();
  }
}

TEST_P(HostAbortOf, LeavesTheBuffersAlone) {
  // As BuffersAreUntouchedAfterDone, in the midst of the op on every rank.
  for (uint64_t generation = 1; generation <= 5; ++generation) {
    constexpr size_t kSize = 3;
    Workers workers = make_workers(kSize);
    connect_all(workers, generation);
    std::vector<std::unique_ptr<AnyOp>> ops;
    for (size_t rank = 0; rank < kSize; ++rank) {
      ops.push_back(std::make_unique<AnyOp>(kSize, size_t{4} << 20));
      ASSERT_TRUE(workers[rank]->instance->submit(ops[rank]->op(GetParam(), 1)).ok());
    }
    on_all(kSize, [&](int rank) {
      const auto r = static_cast<size_t>(rank);
      workers[r]->instance->abort(generation);
      EXPECT_NE(ops[r]->pending.wait().code, HVD_TIMEOUT);
      mark(ops[r]->output);
      ops[r]->input = {};
    });
    workers.clear();  // joined: what could still write has written
    for (const auto& op : ops) { ASSERT_TRUE(all_marked(op->output)); }
  }
}

INSTANTIATE_TEST_SUITE_P(Collectives, HostAbortOf,
                         testing::Values(HVD_COLLECTIVE_BROADCAST, HVD_COLLECTIVE_ALLREDUCE,
                                         HVD_COLLECTIVE_ALLGATHER, HVD_COLLECTIVE_REDUCESCATTER,
                                         HVD_COLLECTIVE_ALLTOALL));

// contract 3
TEST(HostAbort, EveryPendingAndEveryLaterOpEnds) {
  Workers workers = make_workers(3);
  connect_all(workers, 1);
  std::vector<std::unique_ptr<Stuck>> ops;
  for (int rank = 1; rank < 3; ++rank) {  // rank 0 never joins
    for (uint64_t i = 0; i < 4; ++i) {
      ops.push_back(std::make_unique<Stuck>());
      ASSERT_TRUE(workers[static_cast<size_t>(rank)]->instance->submit(ops.back()->op(i)).ok());
    }
  }
  for (int rank = 1; rank < 3; ++rank) {
    workers[static_cast<size_t>(rank)]->instance->abort(1);
    workers[static_cast<size_t>(rank)]->instance->abort(1);  // idempotent
  }
  for (auto& op : ops) EXPECT_EQ(op->pending.wait().code, HVD_PEER_LOST);
  Stuck late;
  EXPECT_EQ(workers[1]->instance->submit(late.op(9)).code, HVD_PEER_LOST);
  EXPECT_EQ(workers[1]->instance->send_message(2, {}).code, HVD_PEER_LOST);
  connect_all(workers, 2);
  on_all(3, [&](int rank) {
    Stuck op;
    EXPECT_TRUE(run(*workers[static_cast<size_t>(rank)]->instance, op.op(1), op.pending).ok());
    EXPECT_EQ(op.values[77], 3.F);
  });
}

TEST(HostAbort, AnAbortOfAnotherGenerationChangesNothing) {
  Workers workers = make_workers(2);
  connect_all(workers, 7);
  workers[0]->instance->abort(6);
  on_all(2, [&](int rank) {
    Stuck op;
    EXPECT_TRUE(run(*workers[static_cast<size_t>(rank)]->instance, op.op(1), op.pending).ok());
  });
}

TEST(HostAbort, BuffersAreUntouchedAfterDone) {
  // Ranks 0 and 1 abort in the midst of a large broadcast and write into their buffers at once: a late write
  // would be seen by the comparison (or by a sanitizer, as the buffers are freed then).
  for (uint64_t generation = 1; generation <= 10; ++generation) {
    Workers workers = make_workers(3);
    connect_all(workers, generation);
    std::vector<std::unique_ptr<Pending>> pending;
    std::vector<std::vector<uint8_t>> buffers(3, std::vector<uint8_t>(8 << 20, 1));
    for (size_t rank = 0; rank < 3; ++rank) {
      pending.push_back(std::make_unique<Pending>());
      hvd_backend_op op = pending.back()->op(HVD_COLLECTIVE_BROADCAST, 1);
      op.dtype = HVD_DTYPE_UINT8;
      op.count = buffers[rank].size();
      op.output = buffers[rank].data();
      ASSERT_TRUE(workers[rank]->instance->submit(op).ok());
    }
    on_all(3, [&](int rank) {
      const auto r = static_cast<size_t>(rank);
      if (rank > 0) workers[r]->instance->abort(generation);
      EXPECT_NE(pending[r]->wait().code, HVD_TIMEOUT);  // rank 0 is freed by its links
      mark(buffers[r]);
    });
    workers.clear();  // joined: what could still write has written
    for (const auto& buffer : buffers) { ASSERT_TRUE(all_marked(buffer)); }
  }
}

TEST(HostAbort, WhileConnectingToAnAbsentPeer) {
  Workers workers = make_workers(2);
  const std::vector<Member> members = members_of(workers);  // rank 1 has an address and never connects
  std::promise<Status> result;
  std::thread connecting(
      [&] { result.set_value(workers[0]->instance->connect(1, 0, members, seconds(600))); });
  workers[0]->instance->abort(1);  // before, during or after the start of connect: it must end in any case
  auto future = result.get_future();
  ASSERT_EQ(future.wait_for(kSoon), std::future_status::ready);
  EXPECT_EQ(future.get().code, HVD_PEER_LOST);
  connecting.join();
  connect_all(workers, 2);
}

TEST(HostAbort, ConnectTimesOutNamingWhoIsMissing) {
  Workers workers = make_workers(3);
  const std::vector<Member> members = members_of(workers);
  on_all(2, [&](int rank) {
    const Status status =
        workers[static_cast<size_t>(rank)]->instance->connect(1, rank, members, milliseconds(300));
    if (status.code == HVD_PEER_LOST) return;  // the other one's time ran out first
    EXPECT_EQ(status.code, HVD_TIMEOUT);
    EXPECT_NE(status.message.find("rank 2"), std::string::npos) << status.message;
  });
}

TEST(HostAbort, ConnectToAPeerThatIsGone) {
  Workers workers = make_workers(2);
  const std::vector<Member> members = members_of(workers);
  workers[0].reset();
  const Status status = workers[1]->instance->connect(1, 1, members, kSoon);
  EXPECT_EQ(status.code, HVD_PEER_LOST);
  EXPECT_EQ(status.rank, 0);
}

// Its pieces would be so many that the others' queues of them fill memory.
TEST(HostAbort, APeerThatWantsTinySegmentsIsRefused) {
  Workers workers = make_workers(2);
  std::vector<Member> members = members_of(workers);
  std::vector<uint8_t>& address = members[1].offers[0].address;
  std::fill(address.end() - 8, address.end(), uint8_t{0});
  address[address.size() - 8] = 1;  // little endian
  const Status status = workers[0]->instance->connect(1, 0, members, kSoon);
  EXPECT_EQ(status.code, HVD_INVALID);
  EXPECT_EQ(status.rank, 1);
  EXPECT_NE(status.message.find("member 1: segments of 1 bytes: expected at least 64"), std::string::npos)
      << status.message;
}

TEST(HostAbort, ConnectNeedsAFreshAddress) {
  Workers workers = make_workers(1);
  connect_all(workers, 1);
  Offer old;  // that this worker has made no address for since
  old.backend = workers[0]->instance->description().name;
  EXPECT_EQ(workers[0]->instance->connect(2, 0, {{1, "a", {old}}}, kSoon).code, HVD_INVALID);
  EXPECT_EQ(workers[0]->instance->connect(2, 0, {{1, "a", {}}}, kSoon).code, HVD_UNAVAILABLE)
      << "it does not bring the backend at all";
}

TEST(HostAbort, AlsoFromWithinTheFailureCallback) {
  Workers workers(2);
  for (auto& worker : workers) {
    worker = std::make_unique<Worker>();
    Worker* self = worker.get();
    worker->inbox.on_failure = [self](const Inbox::Loss& loss) { self->instance->abort(loss.generation); };
  }
  connect_all(workers, 1);
  Stuck op;
  ASSERT_TRUE(workers[1]->instance->submit(op.op(1)).ok());
  workers[0].reset();
  EXPECT_EQ(op.pending.wait().code, HVD_PEER_LOST);
  workers[1].reset();
}

TEST(HostAbort, RebuildsManyTimesWithOpsInFlight) {
  constexpr int kSize = 3;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr uint64_t kRounds = 60;
#else
  constexpr uint64_t kRounds = 300;
#endif
  Workers workers = make_workers(kSize);
  for (uint64_t generation = 1; generation <= kRounds; ++generation) {
    connect_all(workers, generation);
    std::vector<std::unique_ptr<Stuck>> ops;
    for (size_t rank = 0; rank < kSize; ++rank) {
      for (uint64_t i = 0; i < 3; ++i) {
        if (i == 2 && rank == generation % kSize) continue;  // the third can't end
        ops.push_back(std::make_unique<Stuck>());
        const Status status = workers[rank]->instance->submit(ops.back()->op(i));
        ASSERT_TRUE(status.ok()) << status.message;
      }
    }
    on_all(kSize, [&](int rank) { workers[static_cast<size_t>(rank)]->instance->abort(generation); });
    for (auto& op : ops) {
      const Status status = op->pending.wait();
      ASSERT_TRUE(status.ok() || status.code == HVD_PEER_LOST) << status.message;
    }
  }
}

TEST(HostAbort, LeavesNoDescriptorBehind) {
  int before = 0;
  for (uint64_t generation = 1; generation <= 200; ++generation) {
    Workers workers = make_workers(2);
    connect_all(workers, generation);
    if (generation % 2 == 0) {
      for (auto& worker : workers) worker->instance->abort(generation);
    } else {
      for (auto& worker : workers) worker->instance->disconnect();
    }
    workers.clear();
    if (generation == 1) before = open_descriptors();
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace hvd::backend::test
