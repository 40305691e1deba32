// Reducescatter and alltoall: parts of any sizes, none among them, to any set of ranks.
#include <numeric>

#include "modules/cluster.h"
#include "modules/host/values.h"
#include "numeric/dtype.h"

namespace hvd::backend::test {
namespace {

using Counts = std::vector<size_t>;

constexpr size_t kSegment = 65536;  // bytes: small, so that the pipelines have many of them

size_t sum(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), size_t{0}); }

// Every shape of parts that matters for n members.
std::vector<Counts> shapes(size_t n) {
  std::vector<Counts> all{Counts(n, 0), Counts(n, 1), Counts(n, 77)};
  Counts growing;
  Counts one_has_all(n, 0);
  Counts one_has_none(n, 1000);
  for (size_t i = 0; i < n; ++i) growing.push_back(i * 1001);
  one_has_all[n - 1] = 4099;
  one_has_none[n / 2] = 0;
  all.insert(all.end(), {growing, one_has_all, one_has_none});
  return all;
}

class Parts : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    size_ = GetParam();
    workers_ = make_workers(size_, {{"interface", "127.0.0.1"}, {"segment_bytes", std::to_string(kSegment)}});
    connect_all(workers_, 1);
  }

  Instance& instance(int rank) { return *workers_[static_cast<size_t>(rank)]->instance; }
  std::vector<int> everyone() const {
    std::vector<int> all(static_cast<size_t>(size_));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  // One reducescatter among `ranks`, of which `rank` is the me-th, against values computed here.
  void reducescatter(int rank, size_t me, const std::vector<int>& ranks, hvd_dtype dtype,
                     hvd_reduction reduction, const Counts& counts, uint64_t sequence) {
    const size_t element = dtype_size(dtype);
    const size_t count = sum(counts);
    const size_t first =
        std::accumulate(counts.begin(), counts.begin() + static_cast<ptrdiff_t>(me), size_t{0});
    std::vector<uint8_t> input(count * element);
    for (size_t i = 0; i < count; ++i) store(dtype, &input[i * element], value_at(dtype, rank, i));
    const std::vector<uint8_t> before = input;
    std::vector<uint8_t> expected(counts[me] * element);
    for (size_t i = 0; i < counts[me]; ++i) {
      store(dtype, &expected[i * element], expected_at(dtype, reduction, ranks, first + i));
    }
    std::vector<uint8_t> output(counts[me] * element, 0xee);
    Pending pending;
    hvd_backend_op op = pending.op(HVD_COLLECTIVE_REDUCESCATTER, sequence);
    op.dtype = dtype;
    op.reduction = reduction;
    op.count = count;
    op.counts = counts.data();
    const bool in_place = sequence % 2 == 0;  // in its own part of the input
    op.input = input.data();
    op.output = in_place ? input.data() + first * element : output.data();
    op.ranks = ranks.data();
    op.rank_count = static_cast<int32_t>(ranks.size());
    const Status status = run(instance(rank), op, pending);
    if (dtype == HVD_DTYPE_BOOL && reduction == HVD_REDUCTION_AVERAGE) {
      ASSERT_EQ(status.code, HVD_UNSUPPORTED);
      return;
    }
    ASSERT_TRUE(status.ok()) << status.message;
    // A third and a fifth have no exact value that the narrow floats of this test could give.
    const bool narrow = dtype == HVD_DTYPE_FLOAT16 || dtype == HVD_DTYPE_BFLOAT16;
    if (reduction == HVD_REDUCTION_AVERAGE && narrow && ranks.size() % 2 == 1 && ranks.size() > 1) return;
    if (in_place) {
      const auto at = input.begin() + static_cast<ptrdiff_t>(first * element);
      output.assign(at, at + static_cast<ptrdiff_t>(expected.size()));
      std::copy(before.begin() + static_cast<ptrdiff_t>(first * element),
                before.begin() + static_cast<ptrdiff_t>(first * element + expected.size()), at);
    }
    ASSERT_EQ(output, expected) << dtype_name(dtype) << " reduction " << reduction << " count " << count;
    ASSERT_EQ(input, before) << "the others' parts of the input were written to";
  }

  // One alltoall in which member i sends matrix[i][j] elements to member j.
  template <class T>
  void alltoall(int rank, size_t me, const std::vector<int>& ranks, hvd_dtype dtype,
                const std::vector<Counts>& matrix, uint64_t sequence) {
    const auto value = [](size_t from, size_t to, size_t i) {
      return static_cast<T>(from * 101 + to * 11 + i * 7 + i / 251);
    };
    Counts counts = matrix[me];
    std::vector<T> input;
    std::vector<T> expected;
    for (size_t other = 0; other < ranks.size(); ++other) {
      for (size_t i = 0; i < matrix[me][other]; ++i) input.push_back(value(me, other, i));
    }
    for (size_t other = 0; other < ranks.size(); ++other) {
      counts.push_back(matrix[other][me]);
      for (size_t i = 0; i < matrix[other][me]; ++i) expected.push_back(value(other, me, i));
    }
    std::vector<T> output(expected.size());
    Pending pending;
    hvd_backend_op op = pending.op(HVD_COLLECTIVE_ALLTOALL, sequence);
    op.dtype = dtype;
    op.count = input.size();
    op.counts = counts.data();
    op.input = input.data();
    op.output = output.data();
    op.ranks = ranks.data();
    op.rank_count = static_cast<int32_t>(ranks.size());
    const Status status = run(instance(rank), op, pending);
    ASSERT_TRUE(status.ok()) << status.message;
    ASSERT_EQ(output, expected) << "sequence " << sequence;
  }

  int size_ = 0;
  Workers workers_;
};

TEST_P(Parts, ReducescatterOfEveryDtypeReductionAndShape) {
  const std::vector<int> ranks = everyone();
  on_all(size_, [&](int rank) {
    uint64_t sequence = 0;
    for (hvd_dtype dtype = HVD_DTYPE_UINT8; dtype <= HVD_DTYPE_BOOL; ++dtype) {
      for (hvd_reduction reduction = HVD_REDUCTION_SUM; reduction <= HVD_REDUCTION_PRODUCT; ++reduction) {
        for (const Counts& counts : shapes(ranks.size())) {
          reducescatter(rank, static_cast<size_t>(rank), ranks, dtype, reduction, counts, ++sequence);
          if (HasFatalFailure()) return;
        }
      }
    }
  });
}

TEST_P(Parts, ReducescatterAroundTheSegments) {
  const std::vector<int> ranks = everyone();
  on_all(size_, [&](int rank) {
    uint64_t sequence = 0;
    for (const size_t segments : {1, 4, 5, 17}) {
      for (const size_t more : {-1, 0, 1}) {
        const size_t part = segments * kSegment / sizeof(float) + more;
        Counts counts(ranks.size(), part);
        counts[0] = part / 3;
        for (const hvd_dtype dtype : {HVD_DTYPE_FLOAT32, HVD_DTYPE_FLOAT16}) {
          reducescatter(rank, static_cast<size_t>(rank), ranks, dtype, HVD_REDUCTION_SUM, counts, ++sequence);
          if (HasFatalFailure()) return;
        }
      }
    }
  });
}

TEST_P(Parts, ReducescatterRoundsNarrowFloatsOnce) {
  // 2048 is followed by 2050 in float16: adding 1 on each of several ranks is lost unless sums are wide.
  on_all(size_, [&](int rank) {
    const Counts counts(static_cast<size_t>(size_), 5);
    std::vector<uint16_t> values(sum(counts), to_half(rank == 0 ? 2048.F : 1.F));
    std::vector<uint16_t> output(5);
    Pending pending;
    hvd_backend_op op = pending.op(HVD_COLLECTIVE_REDUCESCATTER, 1);
    op.dtype = HVD_DTYPE_FLOAT16;
    op.reduction = HVD_REDUCTION_SUM;
    op.count = values.size();
    op.counts = counts.data();
    op.input = values.data();
    op.output = output.data();
    ASSERT_TRUE(run(instance(rank), op, pending).ok());
    const float exact = 2048.F + static_cast<float>(size_ - 1);
    ASSERT_EQ(output, std::vector<uint16_t>(5, to_half(2.F * std::nearbyint(exact / 2.F))));
  });
}

TEST_P(Parts, ReducescatterAddsInTheOrderOfRanks) {
  on_all(size_, [&](int rank) {
    const Counts counts(static_cast<size_t>(size_), 40000);
    const auto value = [](int r, size_t i) {
      const uint32_t state = (static_cast<uint32_t>(i) * 1664525U + static_cast<uint32_t>(r)) * 1013904223U;
      return std::ldexp(static_cast<float>(state >> 8), static_cast<int>(state % 40) - 40);
    };
    std::vector<float> input(sum(counts));
    for (size_t i = 0; i < input.size(); ++i) input[i] = value(rank, i);
    std::vector<float> expected(40000);
    for (size_t i = 0; i < expected.size(); ++i) {
      const size_t at = static_cast<size_t>(rank) * 40000 + i;
      expected[i] = value(0, at);
      for (int r = 1; r < size_; ++r) expected[i] += value(r, at);
    }
    std::vector<float> output(40000);
    Pending pending;
    hvd_backend_op op = pending.op(HVD_COLLECTIVE_REDUCESCATTER, 1);
    op.dtype = HVD_DTYPE_FLOAT32;
    op.reduction = HVD_REDUCTION_SUM;
    op.count = input.size();
    op.counts = counts.data();
    op.input = input.data();
    op.output = output.data();
    ASSERT_TRUE(run(instance(rank), op, pending).ok());
    ASSERT_EQ(output, expected);
  });
}

TEST_P(Parts, AlltoallOfEveryShape) {
  const std::vector<int> ranks = everyone();
  const size_t n = ranks.size();
  on_all(size_, [&](int rank) {
    uint64_t sequence = 0;
    const auto each = [&](auto count) {
      std::vector<Counts> matrix(n, Counts(n));
      for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < n; ++j) matrix[i][j] = count(i, j);
      }
      const auto me = static_cast<size_t>(rank);
      alltoall<uint8_t>(rank, me, ranks, HVD_DTYPE_UINT8, matrix, ++sequence);
      alltoall<int16_t>(rank, me, ranks, HVD_DTYPE_BFLOAT16, matrix, ++sequence);
      alltoall<double>(rank, me, ranks, HVD_DTYPE_FLOAT64, matrix, ++sequence);
    };
    each([](size_t, size_t) { return size_t{0}; });
    each([](size_t, size_t) { return size_t{1}; });
    each([](size_t i, size_t j) { return i * 1000 + j; });
    each([](size_t i, size_t j) { return i == j ? size_t{0} : size_t{333}; });
    each([&](size_t i, size_t j) { return i == 0 && j + 1 == n ? size_t{5000} : size_t{0}; });  // one to one
    each([](size_t i, size_t) { return i == 0 ? size_t{9000} : size_t{0}; });                   // one to all
    each([](size_t, size_t j) { return j == 0 ? size_t{9000} : size_t{0}; });                   // all to one
    for (const size_t segments : {1, 9, 20}) {
      for (const size_t more : {-1, 0, 1}) {
        each([&](size_t i, size_t j) {
          return (segments * kSegment + more) / sizeof(double) * (i + 1) / (j + 1);
        });
      }
    }
  });
}

TEST_P(Parts, OfSubsetsAtTheSameTime) {
  // Even and odd ranks, each with its own ops.
  on_all(size_, [&](int rank) {
    std::vector<int> ranks;
    for (int r = rank % 2; r < size_; r += 2) ranks.push_back(r);
    const auto me = static_cast<size_t>(rank / 2);
    const size_t n = ranks.size();
    uint64_t sequence = 0;
    for (int round = 0; round < 10; ++round) {
      for (const Counts& counts : shapes(n)) {
        const uint64_t number = ++sequence * 4 + static_cast<uint64_t>(rank % 2);
        reducescatter(rank, me, ranks, HVD_DTYPE_INT32, HVD_REDUCTION_SUM, counts, number);
        alltoall<int32_t>(rank, me, ranks, HVD_DTYPE_INT32, std::vector<Counts>(n, counts), number + 2);
        if (HasFatalFailure()) return;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Parts, testing::Values(1, 2, 3, 4, 5));

TEST(HostParts, ThatMakeNoSenseAreRefused) {
  Workers workers = make_workers(1);
  connect_all(workers, 1);
  Instance& instance = *workers[0]->instance;
  float values[2] = {1, 2};
  float output[2] = {};
  Pending pending;
  hvd_backend_op good = pending.op(HVD_COLLECTIVE_REDUCESCATTER, 1);
  good.dtype = HVD_DTYPE_FLOAT32;
  good.reduction = HVD_REDUCTION_SUM;
  good.count = 2;
  const Counts counts{2, 2};
  good.counts = counts.data();
  good.input = values;
  good.output = output;
  const auto refused = [&](auto change) {
    hvd_backend_op op = good;
    change(op);
    return instance.submit(op).code;
  };
  const Counts other{2, 1};
  const Counts huge{SIZE_MAX / 2, 1};
  const auto alltoall = [](auto& op) { op.collective = HVD_COLLECTIVE_ALLTOALL; };
  EXPECT_EQ(refused([](auto& op) { op.counts = nullptr; }), HVD_INVALID);
  EXPECT_EQ(refused([](auto& op) { op.count = 3; }), HVD_INVALID);
  EXPECT_EQ(refused([](auto& op) { op.reduction = 0; }), HVD_INVALID);
  EXPECT_EQ(refused([](auto& op) { op.output = nullptr; }), HVD_INVALID);
  EXPECT_EQ(refused([](auto& op) { op.sequence = UINT64_MAX; }), HVD_INVALID);
  EXPECT_EQ(refused([&](auto& op) {
              op.counts = huge.data();
              op.count = SIZE_MAX / 2;
            }),
            HVD_INVALID);
  EXPECT_EQ(refused([&](auto& op) {
              alltoall(op);
              op.counts = other.data();  // sends itself two and receives one
            }),
            HVD_INVALID);
  EXPECT_EQ(refused([&](auto& op) {
              alltoall(op);
              op.count = 1;
            }),
            HVD_INVALID);
  EXPECT_TRUE(run(instance, good, pending).ok());
  EXPECT_EQ(output[1], 2.F);
  Pending second;
  hvd_backend_op op = second.op(HVD_COLLECTIVE_ALLTOALL, 2);
  op.dtype = HVD_DTYPE_FLOAT32;
  op.count = 2;
  op.counts = counts.data();
  op.input = values;
  op.output = output;
  EXPECT_TRUE(run(instance, op, second).ok());
}

}  // namespace
}  // namespace hvd::backend::test
