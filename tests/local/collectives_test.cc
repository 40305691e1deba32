// Each collective on one host, against a plain computation: dtypes, sizes around the boundaries, parts,
// uneven counts, subsets, operations one after the other.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "local/carried.h"
#include "local/collectives_ranks.h"
#include "local/team.h"

namespace hvd::local::test {
namespace {

constexpr hvd_dtype kDtypes[] = {HVD_DTYPE_UINT8,   HVD_DTYPE_INT8,     HVD_DTYPE_UINT16,  HVD_DTYPE_INT16,
                                 HVD_DTYPE_UINT32,  HVD_DTYPE_INT32,    HVD_DTYPE_UINT64,  HVD_DTYPE_INT64,
                                 HVD_DTYPE_FLOAT16, HVD_DTYPE_BFLOAT16, HVD_DTYPE_FLOAT32, HVD_DTYPE_FLOAT64,
                                 HVD_DTYPE_BOOL};

// One host, and hosts whose ranks are neighbours in rank order, are not, or are alone.
const std::vector<std::vector<int32_t>> kPlaces = {
    {0},       {0, 0},    {0, 0, 0},         {0, 0, 0, 0, 0}, {0, 0, 1, 1}, {0, 1, 0, 1, 1},
    {0, 0, 1}, {1, 0, 0}, {0, 1, 2, 2, 0, 1}};

class Places : public testing::TestWithParam<size_t> {
 protected:
  const std::vector<int32_t>& hosts() const { return kPlaces[GetParam()]; }
  std::vector<int32_t> all() const {
    std::vector<int32_t> ranks;
    for (size_t r = 0; r < hosts().size(); ++r) ranks.push_back(static_cast<int32_t>(r));
    return ranks;
  }
  // A participant that is the only one everywhere goes to the backend between the hosts, not here.
  bool served(const std::vector<int32_t>& ranks) const {
    if (ranks.size() == 1) return true;
    std::map<int32_t, int> per_host;
    for (int32_t rank : ranks) ++per_host[hosts()[static_cast<size_t>(rank)]];
    return std::any_of(per_host.begin(), per_host.end(), [](const auto& host) { return host.second > 1; });
  }
};

hvd_backend_op operation(hvd_collective collective, hvd_dtype dtype, uint64_t sequence) {
  hvd_backend_op op{};
  op.struct_size = sizeof(op);
  op.collective = collective;
  op.dtype = dtype;
  op.reduction = HVD_REDUCTION_SUM;
  op.memory = HVD_MEMORY_HOST;
  op.sequence = sequence;
  return op;
}

bool takes_part(const std::vector<int32_t>& ranks, int32_t rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// Bounds of parts: some empty, some of one element.
std::vector<size_t> cut(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<size_t> bounds = {0, count};
  for (int i = 0; i < 9; ++i) bounds.push_back(random() % (count + 1));
  bounds.push_back(std::min<size_t>(1, count));
  std::sort(bounds.begin(), bounds.end());
  return bounds;
}

/// Checks one allreduce of this rank.
void allreduce(Ranks& ranks, const std::vector<int32_t>& members, int32_t rank, hvd_dtype dtype,
               hvd_reduction reduction, size_t count, uint64_t sequence, bool in_place, bool parted) {
  const size_t element = dtype_size(dtype);
  std::vector<uint8_t> input = values(dtype, count, rank, sequence);
  const std::vector<uint8_t> before = input;
  std::vector<uint8_t> output(input.size(), 0x5a);
  uint8_t* const to = in_place ? input.data() : output.data();
  Call call{operation(HVD_COLLECTIVE_ALLREDUCE, dtype, sequence), {}, members, {}};
  call.op.reduction = reduction;
  call.op.input = input.data();
  call.op.output = to;
  call.op.count = count;
  if (parted) {
    const std::vector<size_t> bounds = cut(count, sequence);
    for (size_t i = 1; i < bounds.size(); ++i) {
      call.parts.push_back(
          {input.data() + bounds[i - 1] * element, to + bounds[i - 1] * element, bounds[i] - bounds[i - 1]});
    }
    call.op.input = call.op.output = nullptr;
    call.op.count = 0;
  }
  const Status status = ranks.run(rank, call);
  ASSERT_TRUE(status.ok()) << status.message;
  if (!in_place) { ASSERT_EQ(input, before) << "the input was written"; }
  for (size_t i = 0; i < count; ++i) {
    double expected = reduced(dtype, reduction, members, i, sequence);
    if (reduction == HVD_REDUCTION_AVERAGE && dtype != HVD_DTYPE_BOOL) {
      expected /= static_cast<double>(members.size());
      if (dtype <= HVD_DTYPE_INT64) expected = std::trunc(expected);
    }
    const double got = decode(dtype, to, i);
    const double slack = reduction == HVD_REDUCTION_AVERAGE && dtype >= HVD_DTYPE_FLOAT16 ? 0.02 : 0;
    if (std::abs(got - expected) <= slack) continue;
    FAIL() << got << " and not " << expected << ": rank " << rank << " element " << i << " of " << count
           << " dtype " << dtype_name(dtype) << " reduction " << reduction;
  }
}

TEST_P(Places, AllreduceOfEveryDtypeAndReduction) {
  if (!served(all())) GTEST_SKIP();
  Ranks ranks(hosts());
  ranks.each([&](int32_t rank) {
    uint64_t sequence = 0;
    for (hvd_dtype dtype : kDtypes) {
      for (hvd_reduction reduction : {HVD_REDUCTION_SUM, HVD_REDUCTION_AVERAGE, HVD_REDUCTION_MIN,
                                      HVD_REDUCTION_MAX, HVD_REDUCTION_PRODUCT}) {
        if (dtype == HVD_DTYPE_BOOL && reduction == HVD_REDUCTION_AVERAGE) continue;
        for (size_t count : {size_t{5}, size_t{9001}}) {
          ++sequence;
          allreduce(ranks, all(), rank, dtype, reduction, count, sequence, sequence % 3 == 0,
                    sequence % 2 == 0);
        }
      }
    }
  });
}

TEST_P(Places, AllreduceOfSizesAroundEveryBoundary) {
  if (!served(all())) GTEST_SKIP();
  Ranks ranks(hosts());
  const size_t floats = kSegmentBytes / 4;
  const size_t n = hosts().size();
  ranks.each([&](int32_t rank) {
    uint64_t sequence = 100;
    for (size_t count : {size_t{0}, size_t{1}, size_t{2047}, size_t{2048}, size_t{2049}, floats - 1, floats,
                         floats + 1, n * floats, n * floats + 1, 3 * n * floats + 17, 11 * floats - 3}) {
      for (bool parted : {false, true}) {
        allreduce(ranks, all(), rank, HVD_DTYPE_FLOAT32, HVD_REDUCTION_SUM, count, ++sequence, parted,
                  parted);
      }
    }
    allreduce(ranks, all(), rank, HVD_DTYPE_UINT8, HVD_REDUCTION_SUM, 2 * kSegmentBytes * n + 3, ++sequence,
              false, true);
  });
}

void broadcast(Ranks& ranks, const std::vector<int32_t>& members, int32_t rank, int32_t root, hvd_dtype dtype,
               size_t count, uint64_t sequence, bool parted) {
  const size_t element = dtype_size(dtype);
  std::vector<uint8_t> data = values(dtype, count, rank, sequence);
  Call call{operation(HVD_COLLECTIVE_BROADCAST, dtype, sequence), {}, members, {}};
  call.op.root = root;
  call.op.output = data.data();
  call.op.count = count;
  if (parted) {
    const std::vector<size_t> bounds = cut(count, sequence);
    for (size_t i = 1; i < bounds.size(); ++i) {
      call.parts.push_back({nullptr, data.data() + bounds[i - 1] * element, bounds[i] - bounds[i - 1]});
    }
    call.op.output = nullptr;
    call.op.count = 0;
  }
  const Status status = ranks.run(rank, call);
  ASSERT_TRUE(status.ok()) << status.message;
  ASSERT_EQ(data, values(dtype, count, root, sequence))
      << "rank " << rank << " root " << root << " count " << count;
  std::fill(data.begin(), data.end(), 0xee);  // the root's buffer is its own again
}

TEST_P(Places, BroadcastFromEveryRoot) {
  if (!served(all())) GTEST_SKIP();
  Ranks ranks(hosts());
  ranks.each([&](int32_t rank) {
    uint64_t sequence = 0;
    for (size_t count : {size_t{0}, size_t{1}, size_t{1000}, kSegmentBytes - 1, kSegmentBytes,
                         kSegmentBytes + 1, 9 * kSegmentBytes + 5}) {
      for (int32_t root = 0; root < ranks.size(); ++root) {
        ++sequence;
        broadcast(ranks, all(), rank, root, HVD_DTYPE_UINT8, count, sequence, sequence % 2 == 0);
      }
    }
    for (hvd_dtype dtype : kDtypes) {
      ++sequence;
      broadcast(ranks, all(), rank, ranks.size() - 1, dtype, 70001, sequence, sequence % 2 == 0);
    }
  });
}

void allgather(Ranks& ranks, const std::vector<int32_t>& members, int32_t rank, hvd_dtype dtype,
               const std::vector<size_t>& counts, uint64_t sequence, bool in_place) {
  const size_t element = dtype_size(dtype);
  std::vector<uint8_t> expected, input;
  size_t mine = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    const std::vector<uint8_t> part = values(dtype, counts[i], members[i], sequence);
    if (members[i] == rank) {
      input = part;
      mine = expected.size();
    }
    expected.insert(expected.end(), part.begin(), part.end());
  }
  std::vector<uint8_t> output(expected.size(), 0x5a);
  Call call{operation(HVD_COLLECTIVE_ALLGATHER, dtype, sequence), {}, members, counts};
  if (in_place && !input.empty()) std::memcpy(output.data() + mine, input.data(), input.size());
  call.op.input = in_place ? output.data() + mine : input.data();
  call.op.output = output.data();
  call.op.count = input.size() / element;
  const Status status = ranks.run(rank, call);
  ASSERT_TRUE(status.ok()) << status.message;
  ASSERT_EQ(output, expected) << "rank " << rank << " operation " << sequence;
}

void reducescatter(Ranks& ranks, const std::vector<int32_t>& members, int32_t rank, hvd_dtype dtype,
                   hvd_reduction reduction, const std::vector<size_t>& counts, uint64_t sequence) {
  size_t total = 0, first = 0, mine = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i] == rank) {
      first = total;
      mine = counts[i];
    }
    total += counts[i];
  }
  const std::vector<uint8_t> input = values(dtype, total, rank, sequence);
  std::vector<uint8_t> output(mine * dtype_size(dtype), 0x5a);
  Call call{operation(HVD_COLLECTIVE_REDUCESCATTER, dtype, sequence), {}, members, counts};
  call.op.reduction = reduction;
  call.op.input = input.data();
  call.op.output = output.data();
  call.op.count = total;
  const Status status = ranks.run(rank, call);
  ASSERT_TRUE(status.ok()) << status.message;
  for (size_t i = 0; i < mine; ++i) {
    const double got = decode(dtype, output.data(), i);
    const double expected = reduced(dtype, reduction, members, first + i, sequence);
    if (got == expected) continue;
    FAIL() << got << " and not " << expected << ": rank " << rank << " element " << i << " operation "
           << sequence;
  }
}

size_t exchanged(int32_t from, int32_t to, size_t scale) {
  return (static_cast<size_t>(from) * 3 + static_cast<size_t>(to) * 5) % 4 * scale;
}

void alltoall(Ranks& ranks, const std::vector<int32_t>& members, int32_t rank, hvd_dtype dtype, size_t scale,
              uint64_t sequence) {
  std::vector<size_t> counts;
  std::vector<uint8_t> input, expected;
  for (int32_t to : members) {
    counts.push_back(exchanged(rank, to, scale));
    const auto part = values(dtype, counts.back(), rank * 10 + to, sequence);
    input.insert(input.end(), part.begin(), part.end());
  }
  for (int32_t from : members) {
    counts.push_back(exchanged(from, rank, scale));
    const auto part = values(dtype, counts.back(), from * 10 + rank, sequence);
    expected.insert(expected.end(), part.begin(), part.end());
  }
  std::vector<uint8_t> output(expected.size(), 0x5a);
  Call call{operation(HVD_COLLECTIVE_ALLTOALL, dtype, sequence), {}, members, counts};
  call.op.input = input.data();
  call.op.output = output.data();
  call.op.count = input.size() / dtype_size(dtype);
  const Status status = ranks.run(rank, call);
  ASSERT_TRUE(status.ok()) << status.message;
  ASSERT_EQ(output, expected) << "rank " << rank << " operation " << sequence;
}

std::vector<size_t> uneven(size_t members, size_t scale, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<size_t> counts;
  for (size_t i = 0; i < members; ++i) counts.push_back(random() % 3 == 0 ? 0 : random() % (scale + 1));
  return counts;
}

TEST_P(Places, AllgatherReducescatterAndAlltoallOfUnevenParts) {
  if (!served(all())) GTEST_SKIP();
  Ranks ranks(hosts());
  ranks.each([&](int32_t rank) {
    uint64_t sequence = 0;
    for (size_t scale : {size_t{0}, size_t{1}, size_t{1000}, size_t{70000}, 3 * kSegmentBytes}) {
      for (hvd_dtype dtype : {HVD_DTYPE_UINT8, HVD_DTYPE_FLOAT16, HVD_DTYPE_FLOAT32, HVD_DTYPE_FLOAT64}) {
        if (scale > 100000 && dtype != HVD_DTYPE_UINT8) continue;
        ++sequence;
        allgather(ranks, all(), rank, dtype, uneven(hosts().size(), scale, sequence), sequence,
                  sequence % 2 == 0);
        ++sequence;
        reducescatter(ranks, all(), rank, dtype, HVD_REDUCTION_SUM, uneven(hosts().size(), scale, sequence),
                      sequence);
        alltoall(ranks, all(), rank, dtype, scale, ++sequence);
      }
    }
  });
}

TEST_P(Places, BarrierWaitsForAll) {
  if (!served(all())) GTEST_SKIP();
  Ranks ranks(hosts());
  std::atomic<int> arrived{0};
  ranks.each([&](int32_t rank) {
    for (int round = 1; round <= 50; ++round) {
      arrived.fetch_add(1);
      Call call{operation(HVD_COLLECTIVE_BARRIER, HVD_DTYPE_UINT8, static_cast<uint64_t>(round)), {}, {}, {}};
      const Status status = ranks.run(rank, call);
      ASSERT_TRUE(status.ok()) << status.message;
      ASSERT_GE(arrived.load(), round * ranks.size());
    }
  });
}

// Operations of many kinds among changing subsets: nothing waits between them, so fast ranks run ahead. In
// every second history threads leave what they execute, and others go on with it.
TEST_P(Places, AnyHistoryOfOperationsAmongSubsets) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Ranks ranks(hosts());
    if (seed % 2 == 0) ranks.leave = std::chrono::microseconds(30);
    ranks.each([&](int32_t rank) {
      std::mt19937_64 random(seed);  // the same decisions on every rank
      for (uint64_t sequence = 1; sequence <= 80; ++sequence) {
        std::vector<int32_t> members;
        while (members.empty()) {
          for (int32_t r = 0; r < ranks.size(); ++r) {
            if (random() % 3 != 0) members.push_back(r);
          }
        }
        const uint64_t kind = random() % 6;
        const size_t sizes[] = {1, 300, 3000, 40000, kSegmentBytes + 7};
        const size_t count = sizes[random() % 5];
        const int32_t root = members[random() % members.size()];
        const bool parted = random() % 2 == 0;
        if (!served(members) || !takes_part(members, rank)) continue;
        switch (kind) {
          case 0:
            allreduce(ranks, members, rank, HVD_DTYPE_FLOAT32, HVD_REDUCTION_SUM, count, sequence, !parted,
                      parted);
            break;
          case 1: broadcast(ranks, members, rank, root, HVD_DTYPE_INT16, count, sequence, parted); break;
          case 2:
            allgather(ranks, members, rank, HVD_DTYPE_UINT8, uneven(members.size(), count, sequence),
                      sequence, parted);
            break;
          case 3:
            reducescatter(ranks, members, rank, HVD_DTYPE_INT32, HVD_REDUCTION_MAX,
                          uneven(members.size(), count, sequence), sequence);
            break;
          case 4: alltoall(ranks, members, rank, HVD_DTYPE_UINT16, count / 4, sequence); break;
          default: {
            Call call{operation(HVD_COLLECTIVE_BARRIER, HVD_DTYPE_UINT8, sequence), {}, members, {}};
            const Status status = ranks.run(rank, call);
            ASSERT_TRUE(status.ok()) << status.message;
          }
        }
        if (testing::Test::HasFatalFailure()) return;
      }
    });
  }
}

// So large that no cache would keep them: such results are written in another way.
TEST(Large, BroadcastAllgatherAndAlltoallOfWhatIsWrittenPastTheCaches) {
  const std::vector<int32_t> all = {0, 1, 2};
  constexpr size_t kCount = (size_t{12} << 20) + 77;  // bytes
  Ranks ranks({0, 0, 0});
  ranks.each([&](int32_t rank) {
    const Team team{ranks.group(rank), 0, all, {}, 0, 0};
    ASSERT_TRUE(streams(team, kCount));
    ASSERT_FALSE(streams(team, kCount / 2));
    broadcast(ranks, all, rank, 0, HVD_DTYPE_UINT8, kCount, 1, false);
    broadcast(ranks, all, rank, 2, HVD_DTYPE_UINT8, kCount, 2, true);
    allgather(ranks, all, rank, HVD_DTYPE_UINT8, {kCount / 3, kCount / 2, kCount / 4}, 3, false);
    alltoall(ranks, all, rank, HVD_DTYPE_UINT8, kCount / 3, 4);
    allreduce(ranks, all, rank, HVD_DTYPE_UINT8, HVD_REDUCTION_SUM, kCount, 5, true, true);
  });
}

// Still larger: blocks of a whole segment, and inputs that are read several pages at a time.
TEST(Large, BroadcastAndExchangesOfWhatIsFetchedFromMemory) {
  const std::vector<int32_t> all = {0, 1, 2};
  constexpr size_t kCount = (size_t{44} << 20) + 77;  // bytes
  Ranks ranks({0, 0, 0});
  ranks.each([&](int32_t rank) {
    broadcast(ranks, all, rank, 1, HVD_DTYPE_UINT8, kCount, 1, true);
    allgather(ranks, all, rank, HVD_DTYPE_UINT8, {kCount / 3, kCount / 2, kCount / 4}, 2, false);
    alltoall(ranks, all, rank, HVD_DTYPE_UINT8, kCount / 3, 3);
  });
}

// More on a host than look at each other all by all.
TEST(Many, AllreduceOfSizesAroundEveryBoundaryAndBarriers) {
  constexpr int32_t kMany = kMostAmongAll + 5;
  Ranks ranks(std::vector<int32_t>(kMany, 0));
  std::vector<int32_t> all;
  for (int32_t r = 0; r < kMany; ++r) all.push_back(r);
  std::atomic<int> arrived{0};
  ranks.each([&](int32_t rank) {
    uint64_t sequence = 0;
    for (const size_t count :
         {size_t{0}, size_t{1}, size_t{1024}, size_t{1025}, size_t{2048}, size_t{2049}, size_t{100'000}}) {
      allreduce(ranks, all, rank, HVD_DTYPE_FLOAT32, HVD_REDUCTION_SUM, count, ++sequence, false,
                count % 2 == 0);
      ASSERT_TRUE(carried(ranks.group(rank), ranks.group(rank).settle()).ok());
      ++arrived;
      Call call{operation(HVD_COLLECTIVE_BARRIER, HVD_DTYPE_FLOAT32, ++sequence), {}, all, {}};
      ASSERT_TRUE(ranks.run(rank, call).ok());
      EXPECT_GE(arrived.load(), static_cast<int>(sequence / 2) * kMany);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Of, Places, testing::Range(size_t{0}, kPlaces.size()), [](const auto& info) {
  std::string name = "hosts";
  for (int32_t host : kPlaces[info.param]) name += "_" + std::to_string(host);
  return name;
});

}  // namespace
}  // namespace hvd::local::test
