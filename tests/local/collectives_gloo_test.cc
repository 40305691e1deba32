// Two and three hosts, as their names say, in one process: shared memory within, Gloo over loopback between
// them. Many operations are under way at once.
#include <gtest/gtest.h>

#include "local/collectives_ranks.h"
#include "modules/cluster.h"

namespace hvd::local::test {
namespace {

using backend::test::kSoon;
using backend::test::on_all;
using backend::test::Pending;
using backend::test::Worker;
using backend::test::Workers;

class OverGloo : public testing::TestWithParam<std::vector<std::string>> {
 protected:
  void SetUp() override {
    workers_ = backend::test::make_workers(static_cast<int>(GetParam().size()));
    std::vector<backend::Member> members = backend::test::members_of(workers_);
    for (size_t i = 0; i < members.size(); ++i) members[i].host = GetParam()[i];
    on_all(size(), [&](int rank) {
      const Status status = instance(rank).connect(1, rank, members, kSoon);
      EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status.message;
    });
    for (int32_t rank = 0; rank < size(); ++rank) all_.push_back(rank);
  }

  int size() const { return static_cast<int>(GetParam().size()); }
  backend::Instance& instance(int rank) { return *workers_[static_cast<size_t>(rank)]->instance; }

  Workers workers_;
  std::vector<int32_t> all_;
};

struct Flight {
  Pending pending;
  hvd_collective collective = 0;
  int32_t root = 0;
  size_t count = 0;
  uint64_t sequence = 0;
  std::vector<uint8_t> input, output;
  std::vector<size_t> counts;
};

TEST_P(OverGloo, ManyOperationsUnderWay) {
  const auto ranks = static_cast<size_t>(size());
  on_all(size(), [&](int rank) {
    std::vector<std::unique_ptr<Flight>> flights;
    for (uint64_t sequence = 1; sequence <= 36; ++sequence) {
      flights.push_back(std::make_unique<Flight>());
      Flight& flight = *flights.back();
      flight.sequence = sequence;
      flight.collective = static_cast<hvd_collective>(HVD_COLLECTIVE_BROADCAST + sequence % 3);
      flight.root = static_cast<int32_t>(sequence) % size();
      const size_t sizes[] = {1, 1000, 70001, 1500007};
      flight.count = sizes[sequence / 3 % 4];
      flight.input = values(HVD_DTYPE_FLOAT32, flight.count, rank, sequence);
      hvd_backend_op op = flight.pending.op(flight.collective, sequence);
      op.dtype = HVD_DTYPE_FLOAT32;
      op.reduction = HVD_REDUCTION_SUM;
      op.memory = HVD_MEMORY_HOST;
      op.root = flight.root;
      op.input = flight.input.data();
      op.count = flight.count;
      if (flight.collective == HVD_COLLECTIVE_BROADCAST) {
        op.output = flight.input.data();
      } else {
        flight.output.resize(4 * flight.count * (flight.collective == HVD_COLLECTIVE_ALLGATHER ? ranks : 1));
        op.output = flight.output.data();
        flight.counts.assign(ranks, flight.count);
        op.counts = flight.counts.data();
      }
      const Status status = instance(rank).submit(op);
      ASSERT_TRUE(status.ok()) << status.message;
    }
    for (const auto& flight : flights) {
      const Status status = flight->pending.wait();
      ASSERT_TRUE(status.ok()) << "operation " << flight->sequence << ": " << status.message;
      std::vector<uint8_t> expected;
      if (flight->collective == HVD_COLLECTIVE_BROADCAST) {
        ASSERT_EQ(flight->input, values(HVD_DTYPE_FLOAT32, flight->count, flight->root, flight->sequence));
        continue;
      }
      if (flight->collective == HVD_COLLECTIVE_ALLGATHER) {
        for (int32_t from : all_) {
          const auto part = values(HVD_DTYPE_FLOAT32, flight->count, from, flight->sequence);
          expected.insert(expected.end(), part.begin(), part.end());
        }
      } else {
        expected.resize(4 * flight->count);
        for (size_t i = 0; i < flight->count; ++i) {
          encode(HVD_DTYPE_FLOAT32, expected.data(), i,
                 reduced(HVD_DTYPE_FLOAT32, HVD_REDUCTION_SUM, all_, i, flight->sequence));
        }
      }
      ASSERT_TRUE(flight->output == expected) << "operation " << flight->sequence << " rank " << rank;
    }
  });
}

// contract 3: one rank stays away; whatever link the others wait on, they are freed.
TEST_P(OverGloo, AbortFreesEverybody) {
  const int missing = size() - 1;
  on_all(size(), [&](int rank) {
    std::vector<uint8_t> input(8 << 20), output(8 << 20);
    Pending pending;
    hvd_backend_op op = pending.op(HVD_COLLECTIVE_ALLREDUCE, 1);
    op.dtype = HVD_DTYPE_FLOAT32;
    op.reduction = HVD_REDUCTION_SUM;
    op.memory = HVD_MEMORY_HOST;
    op.input = input.data();
    op.output = output.data();
    op.count = input.size() / 4;
    if (rank != missing) {
      const Status status = instance(rank).submit(op);
      if (status.ok()) {
        EXPECT_EQ(pending.wait().code, HVD_PEER_LOST);
      } else {
        EXPECT_EQ(status.code, HVD_PEER_LOST) << status.message;
      }
    } else {
      for (int other = 0; other < size(); ++other) instance(other).abort(1);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Hosts, OverGloo,
                         testing::Values(std::vector<std::string>{"a", "a", "b", "b"},
                                         std::vector<std::string>{"a", "b", "a", "b", "c"}));

}  // namespace
}  // namespace hvd::local::test
