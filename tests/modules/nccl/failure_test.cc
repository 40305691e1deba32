// What goes wrong: peers that are missing, libraries that fail at any call, aborts that hang. Each has an
// end, an error that says what happened, and nothing left behind.
#include "modules/host/values.h"
#include "modules/nccl/cluster.h"

namespace hvd::backend::test {
namespace {

using Clock = std::chrono::steady_clock;

hvd_backend_op sum_of(NcclWorker& worker, Pending& pending, DeviceMemory& data, uint64_t sequence) {
  hvd_backend_op op = worker.op(pending, HVD_COLLECTIVE_ALLREDUCE, sequence);
  op.dtype = HVD_DTYPE_FLOAT32;
  op.reduction = HVD_REDUCTION_SUM;
  op.input = op.output = data.data;
  op.count = data.size / 4;
  return op;
}

void expect_sums(NcclCluster& cluster, uint64_t sequence) {
  cluster.each([&](int rank, NcclWorker& worker) {
    DeviceMemory data(64, worker.device);
    for (size_t i = 0; i < 16; ++i) store(HVD_DTYPE_FLOAT32, data.data + 4 * i, rank + 1);
    Pending pending;
    const Status status = run(*worker.instance, sum_of(worker, pending, data, sequence), pending);
    EXPECT_TRUE(status.ok()) << status.message;
    worker.synchronize();
    float sum = 0;
    std::memcpy(&sum, data.data + 60, 4);
    EXPECT_EQ(sum, static_cast<float>(cluster.size() * (cluster.size() + 1) / 2));
  });
}

void lose(NcclCluster& cluster, uint64_t generation, int rank) {
  cluster.store.lose(generation);
  const auto began = Clock::now();
  cluster[rank].instance->abort(generation);
  EXPECT_LT(Clock::now() - began,
            std::chrono::seconds(10));  // a deadline; the contract's 100 ms is no test's business
}

// contract 3. The first operation: its communicator waits for a rank that never comes.
TEST(NcclAbort, WhileAPeerIsMissingFromTheCommunicator) {
  NcclCluster cluster(2);
  for (const int alone : {0, 1}) {
    const auto generation = static_cast<uint64_t>(alone + 1);
    if (generation > 1) cluster.connect(generation);
    DeviceMemory data(64, alone), more(64, alone);
    Pending first, second;
    ASSERT_TRUE(cluster[alone].instance->submit(sum_of(cluster[alone], first, data, 1)).ok());
    ASSERT_TRUE(cluster[alone].instance->submit(sum_of(cluster[alone], second, more, 2)).ok());
    lose(cluster, generation, alone);
    EXPECT_EQ(first.wait().code, HVD_PEER_LOST);
    EXPECT_EQ(second.wait().code, HVD_PEER_LOST);
    Pending later;
    EXPECT_EQ(cluster[alone].instance->submit(sum_of(cluster[alone], later, data, 3)).code, HVD_PEER_LOST);
    cluster[alone].synchronize();
    lose(cluster, generation, 1 - alone);
  }
  cluster.connect(5);
  expect_sums(cluster, 1);
}

// An operation that is queued on the device, where the peer's kernel never comes. Its op is done already: the
// stream is let go by the abort, and the loss is the next operation's status.
TEST(NcclAbort, WhileAPeerIsMissingOnTheDevice) {
  NcclCluster cluster(3);
  expect_sums(cluster, 1);
  std::vector<std::unique_ptr<DeviceMemory>> data;
  for (int rank = 0; rank < 2; ++rank) {
    data.push_back(std::make_unique<DeviceMemory>(64, rank));
    Pending pending;
    const Status status =
        run(*cluster[rank].instance, sum_of(cluster[rank], pending, *data.back(), 2), pending);
    EXPECT_TRUE(status.ok()) << status.message;
  }
  cluster.store.lose(1);
  for (int rank = 0; rank < 3; ++rank) lose(cluster, 1, rank);
  for (int rank = 0; rank < 2; ++rank) cluster[rank].synchronize();
  cluster.connect(2);
  expect_sums(cluster, 1);
}

// Several communicators of one device are given up in one group.
TEST(NcclAbort, OfSeveralCommunicators) {
  NcclCluster cluster(3);
  expect_sums(cluster, 1);
  on_all(2, [&](int rank) {
    const int32_t ranks[] = {0, 1};
    DeviceMemory data(64, rank);
    Pending pending;
    hvd_backend_op op = sum_of(cluster[rank], pending, data, 2);
    op.ranks = ranks;
    op.rank_count = 2;
    const Status status = run(*cluster[rank].instance, op, pending);
    EXPECT_TRUE(status.ok()) << status.message;
    cluster[rank].synchronize();
  });
  hvddouble::reset();
  for (int rank = 0; rank < 3; ++rank) lose(cluster, 1, rank);
  for (int rank = 0; rank < 3; ++rank) cluster.drop(rank);
  const auto calls = hvddouble::calls();
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "ncclCommAbort"), 5);
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "ncclGroupStart"), 2);
}

// Bounded: an abort that NCCL does not give back holds up neither abort nor close, and the operation has its
// end.
TEST(NcclAbort, ThatHangsInTheLibrary) {
  {
    NcclCluster cluster(2, false);
    cluster.connect(1);
    expect_sums(cluster, 1);
    hvddouble::hang_aborts(true);
    DeviceMemory data(64, 0);
    Pending pending;
    ASSERT_TRUE(run(*cluster[0].instance, sum_of(cluster[0], pending, data, 2), pending).ok());
    for (int rank = 0; rank < 2; ++rank) lose(cluster, 1, rank);
    cluster.connect(2);
    // The next generation waits for the old communicators' end: this too can be given up.
    Pending next;
    DeviceMemory more(64, 1);
    ASSERT_TRUE(cluster[1].instance->submit(sum_of(cluster[1], next, more, 1)).ok());
    for (int rank = 0; rank < 2; ++rank) lose(cluster, 2, rank);
    EXPECT_EQ(next.wait().code, HVD_PEER_LOST);
    const auto began = Clock::now();
    for (int rank = 0; rank < 2; ++rank) cluster[rank].instance.reset();
    EXPECT_LT(Clock::now() - began, std::chrono::seconds(20));
    hvddouble::hang_aborts(false);
    for (int rank = 0; rank < 2; ++rank) cluster[rank].synchronize();
    // The threads that were left to themselves come to their end, and with them what they held.
    const auto deadline = Clock::now() + kSoon;
    while (!hvddouble::alive().empty() && Clock::now() < deadline) std::this_thread::yield();
  }
}

// An error that NCCL finds by itself, while the program waits on its stream and calls nothing.
TEST(NcclFailure, OnTheDeviceIsToldByFailure) {
  NcclCluster cluster(2);
  expect_sums(cluster, 1);
  DeviceMemory data(64, 0);
  Pending pending;
  ASSERT_TRUE(run(*cluster[0].instance, sum_of(cluster[0], pending, data, 2), pending).ok());
  hvddouble::set_async_error(6);
  const Inbox::Loss loss = cluster[0].inbox.wait_failure();
  EXPECT_EQ(loss.generation, 1U);
  EXPECT_NE(loss.text.find("op 2 on the device: remote process exited"), std::string::npos) << loss.text;
  Pending later;
  const Status status = cluster[0].instance->submit(sum_of(cluster[0], later, data, 3));
  EXPECT_EQ(status.code, HVD_PEER_LOST);
  EXPECT_EQ(status.vendor_code, 6);
  EXPECT_EQ(status.backend, "nccl");
  hvddouble::set_async_error(0);
  for (int rank = 0; rank < 2; ++rank) lose(cluster, 1, rank);
  cluster[0].synchronize();
  cluster.connect(2);
  expect_sums(cluster, 1);
}

TEST(NcclFailure, TheThreadSleepsWhenNothingIsUnderWay) {
  NcclCluster cluster(2);
  expect_sums(cluster, 1);
  // What is over on the device is forgotten at the next look; then there are no more looks.
  int64_t before = -1;
  const auto deadline = Clock::now() + kSoon;
  for (int quiet = 0; quiet < 50 && Clock::now() < deadline;) {
    const int64_t now = hvddouble::call_count();
    quiet = now == before ? quiet + 1 : 0;
    before = now;
    std::this_thread::sleep_for(milliseconds(2));
  }
  EXPECT_LT(Clock::now(), deadline) << "the module goes on calling its libraries";
}

/// A worker's life: operations, copies and the end. The first error ends it, as the core does.
struct Life {
  Status first;
  int64_t oks = 0;
};

Life live(NcclCluster& cluster, int rank) {
  Life life;
  NcclWorker& worker = cluster[rank];
  Instance& instance = *worker.instance;
  const auto note = [&](const Status& status) {
    if (status.ok()) {
      ++life.oks;
    } else if (life.first.ok()) {
      life.first = status;
      for (int r = 0; r < cluster.size(); ++r) cluster[r].instance->abort(1);  // as the driver would have it
      cluster.store.lose(1);
    }
    return life.first.ok();
  };
  DeviceMemory data(128, worker.device), out(256, worker.device);
  uint64_t sequence = 0;
  const auto collective = [&](hvd_collective kind, const std::vector<size_t>& counts,
                              const std::vector<Part>& parts, bool pair = false) {
    if (!life.first.ok()) return;
    Pending pending;
    hvd_backend_op op = worker.op(pending, kind, ++sequence);
    op.dtype = HVD_DTYPE_INT32;
    op.reduction = HVD_REDUCTION_SUM;
    op.input = data.data;
    op.output = out.data;
    op.count = 8;
    if (!counts.empty()) {
      op.counts = counts.data();
      op.count = kind == HVD_COLLECTIVE_ALLGATHER ? counts[static_cast<size_t>(rank)] : counts[0] + counts[1];
    }
    static constexpr int32_t kPair[] = {0, 1};
    if (pair) {
      op.ranks = kPair;
      op.rank_count = 2;
    }
    Status status = instance.submit(op, parts);
    if (status.ok()) status = pending.wait();
    note(status);
  };
  const Part part{data.data, data.data, 4};
  collective(HVD_COLLECTIVE_ALLREDUCE, {}, {part, {data.data + 16, data.data + 16, 4}});
  collective(HVD_COLLECTIVE_ALLGATHER, {3, 4, 2}, {});
  void* memory = nullptr;
  void* ticket = nullptr;
  if (life.first.ok() && note(instance.host_alloc(HVD_MEMORY_CUDA, 64, &memory))) {
    const std::vector<hvd_backend_copy> copies = {{memory, data.data, 64}};
    if (note(instance.copy(HVD_MEMORY_CUDA, worker.device, worker.stream, false, copies, &ticket))) {
      note(instance.copy_wait(HVD_MEMORY_CUDA, ticket, kSoon));
    }
    instance.host_free(HVD_MEMORY_CUDA, memory);
  }
  if (rank < 2) collective(HVD_COLLECTIVE_REDUCESCATTER, {5, 3}, {}, true);
  collective(HVD_COLLECTIVE_BARRIER, {}, {});
  if (life.first.ok()) instance.disconnect();
  worker.synchronize();
  return life;
}

// Every call of both libraries fails in turn, of a whole life of three workers.
TEST(NcclFailure, OfAnyCallIsAClearErrorAndLeavesNothing) {
  int64_t calls = 0;
  {
    NcclCluster cluster(3);
    std::vector<Life> lives(3);
    on_all(3, [&](int rank) { lives[static_cast<size_t>(rank)] = live(cluster, rank); });
    for (const Life& life : lives) ASSERT_TRUE(life.first.ok()) << life.first.message;
    for (int rank = 0; rank < 3; ++rank) cluster.drop(rank);
    calls = hvddouble::call_count();
  }
  ASSERT_GT(calls, 150);
  // How often workers ask whether something is done depends on the machine, so not every life gets so far.
  int64_t reached = 0, failed = 0, missed = 0;
  std::map<std::string, int> messages;
  for (int64_t number = 0; number < calls && missed < 20; ++number) {
    SCOPED_TRACE("call " + std::to_string(number));
    NcclCluster cluster(3);
    hvddouble::fail_call(number);
    std::vector<Life> lives(3);
    on_all(3, [&](int rank) { lives[static_cast<size_t>(rank)] = live(cluster, rank); });
    const bool made = hvddouble::call_count() > number;
    reached += made ? 1 : 0;
    missed = made ? 0 : missed + 1;
    bool any = false;
    for (const Life& life : lives) {
      if (life.first.ok()) continue;
      any = true;
      EXPECT_FALSE(life.first.message.empty());
      EXPECT_EQ(life.first.backend, "nccl");
      EXPECT_TRUE(life.first.code == HVD_INTERNAL || life.first.code == HVD_PEER_LOST ||
                  life.first.code == HVD_UNAVAILABLE || life.first.code == HVD_INVALID)
          << status_name(life.first.code) << ": " << life.first.message;
      EXPECT_NE(life.first.code, HVD_TIMEOUT) << life.first.message;
      if (life.first.code != HVD_PEER_LOST) ++messages[life.first.message];
    }
    failed += any ? 1 : 0;
    if (HasFatalFailure()) return;
  }
  RecordProperty("failed", std::to_string(failed));
  EXPECT_GT(reached, 150);
  EXPECT_GT(failed, reached / 3);  // others fail where nobody is harmed: while something is freed
  for (const auto& [message, times] : messages) {
    EXPECT_NE(message.find("said by the double"), std::string::npos) << message;
    EXPECT_TRUE(message.find("cu") != std::string::npos || message.find("nccl") != std::string::npos ||
                message.find("NCCL") != std::string::npos ||
                message.find("communicator") != std::string::npos)
        << message;
  }
}

}  // namespace
}  // namespace hvd::backend::test
