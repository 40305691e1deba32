// The engine over a transport in one process: what each kind of operation does, and what is refused.
#include "collective/engine.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <cstring>
#include <numeric>

#include "collective/cluster.h"
#include "numeric/dtype.h"

namespace hvd::collective {
namespace {

using testing::allreduce;
using testing::Cluster;
using testing::expect_all;
using testing::kDeadline;
using testing::named;
using testing::tensor;

/// By number of ranks, transport, and whether small data travels with the matching.
struct Kinds : ::testing::TestWithParam<std::tuple<int, std::string, bool>> {
  void SetUp() override {
    if (std::get<1>(GetParam()) == "self" && std::get<0>(GetParam()) != 1)
      GTEST_SKIP() << "self serves one rank";
    testing::ClusterConfig config;
    config.size = size();
    config.backend = std::get<1>(GetParam());
    if (!std::get<2>(GetParam())) config.small_data = 0;
    cluster = std::make_unique<Cluster>(config);
    if (!cluster->open_status.ok()) GTEST_SKIP() << cluster->open_status.message;
  }
  int32_t size() const { return std::get<0>(GetParam()); }
  std::unique_ptr<Cluster> cluster;
};

TEST_P(Kinds, Allreduce) {
  std::vector<std::vector<double>> in, out;
  for (int r = 0; r < size(); ++r) in.push_back({1.0 * r, 2.0 * r, -1.0});
  out.resize(in.size(), std::vector<double>(3));
  const double n = size(), sum = n * (n - 1) / 2;
  const std::vector<std::pair<hvd_reduction, std::vector<double>>> expected = {
      {HVD_REDUCTION_SUM, {sum, 2 * sum, -n}},
      {HVD_REDUCTION_AVERAGE, {sum / n, 2 * sum / n, -1}},
      {HVD_REDUCTION_MIN, {0, 0, -1}},
      {HVD_REDUCTION_MAX, {n - 1, 2 * (n - 1), -1}}};
  for (const auto& [reduction, result] : expected) {
    expect_all(cluster->submit([&, how = reduction](int32_t r) {
      return allreduce("a", in[static_cast<size_t>(r)], out[static_cast<size_t>(r)], HVD_DTYPE_FLOAT64, how);
    }));
    for (const auto& got : out) EXPECT_EQ(got, result);
  }
  // In place, and of nothing.
  expect_all(cluster->submit([&](int32_t r) {
    return allreduce("a", in[static_cast<size_t>(r)], in[static_cast<size_t>(r)], HVD_DTYPE_FLOAT64);
  }));
  EXPECT_EQ(in.back(), expected[0].second);
  std::vector<double> nothing;
  expect_all(cluster->submit([&](int32_t) { return allreduce("a", nothing, nothing, HVD_DTYPE_FLOAT64); }));
}

template <class T>
void allreduce_of(Cluster& cluster, hvd_dtype dtype) {
  std::vector<std::vector<T>> in(static_cast<size_t>(cluster.size), {1, 2, 0}), out = in;
  expect_all(cluster.submit([&](int32_t r) {
    return allreduce("d", in[static_cast<size_t>(r)], out[static_cast<size_t>(r)], dtype, HVD_REDUCTION_MAX);
  }));
  for (const auto& got : out) EXPECT_EQ(got, in[0]) << dtype_name(dtype);
}

TEST_P(Kinds, EveryDtype) {
  allreduce_of<uint8_t>(*cluster, HVD_DTYPE_UINT8);
  allreduce_of<int8_t>(*cluster, HVD_DTYPE_INT8);
  allreduce_of<uint16_t>(*cluster, HVD_DTYPE_UINT16);
  allreduce_of<int16_t>(*cluster, HVD_DTYPE_INT16);
  allreduce_of<uint32_t>(*cluster, HVD_DTYPE_UINT32);
  allreduce_of<int32_t>(*cluster, HVD_DTYPE_INT32);
  allreduce_of<uint64_t>(*cluster, HVD_DTYPE_UINT64);
  allreduce_of<int64_t>(*cluster, HVD_DTYPE_INT64);
  allreduce_of<float>(*cluster, HVD_DTYPE_FLOAT32);
  allreduce_of<double>(*cluster, HVD_DTYPE_FLOAT64);
  allreduce_of<uint16_t>(*cluster, HVD_DTYPE_FLOAT16);  // tiny positive numbers: the largest bits win
  allreduce_of<uint16_t>(*cluster, HVD_DTYPE_BFLOAT16);
}

TEST_P(Kinds, BroadcastOfEveryDtype) {
  for (hvd_dtype dtype = HVD_DTYPE_UINT8; dtype <= HVD_DTYPE_BOOL; ++dtype) {
    const int32_t root = dtype % size();
    std::vector<std::vector<uint8_t>> data;
    for (int r = 0; r < size(); ++r) data.emplace_back(24, static_cast<uint8_t>(r == root));
    expect_all(cluster->submit([&](int32_t r) {
      Submission s = named("b", Kind::kBroadcast);
      s.root = root;
      s.outputs = {
          {data[static_cast<size_t>(r)].data(), dtype, {3, static_cast<int64_t>(8 / dtype_size(dtype))}}};
      return s;
    }));
    for (const auto& got : data) EXPECT_EQ(got, std::vector<uint8_t>(24, 1));
  }
}

TEST_P(Kinds, AllgatherAllocatesOrUsesTheRoom) {
  std::vector<int32_t> expected;
  std::vector<std::vector<int32_t>> in;
  for (int r = 0; r < size(); ++r) {
    in.emplace_back(static_cast<size_t>(2 * (r + 1) % 5 * 2), r);
    expected.insert(expected.end(), in.back().begin(), in.back().end());
  }
  const auto rows = static_cast<int64_t>(expected.size() / 2);
  const auto gather = [&](int32_t r) {
    Submission s = named("g", Kind::kAllgather);
    s.inputs = {tensor(in[static_cast<size_t>(r)], HVD_DTYPE_INT32,
                       {static_cast<int64_t>(in[static_cast<size_t>(r)].size() / 2), 2})};
    return s;
  };
  auto ops = cluster->submit(gather);
  expect_all(ops);
  for (const auto& op : ops) {
    EXPECT_EQ(op->output().shape, (std::vector<int64_t>{rows, 2}));
    ASSERT_EQ(op->buffer_size(), expected.size() * 4);
    const Buffer buffer = op->take_buffer();
    EXPECT_EQ(std::memcmp(buffer.get(), expected.data(), expected.size() * 4), 0);
    EXPECT_EQ(op->take_buffer(), nullptr) << "once";
  }
  // Room for more than is needed, and on the last rank for less.
  std::vector<std::vector<int32_t>> out(static_cast<size_t>(size()),
                                        std::vector<int32_t>(expected.size() + 2, -1));
  ops = cluster->submit([&](int32_t r) {
    Submission s = gather(r);
    s.outputs = {
        tensor(out[static_cast<size_t>(r)], HVD_DTYPE_INT32, {r == size() - 1 ? rows - 1 : rows + 1, 2})};
    return s;
  });
  for (int r = 0; r + 1 < size(); ++r) {
    const auto& op = ops[static_cast<size_t>(r)];
    ASSERT_TRUE(op->wait(kDeadline));
    ASSERT_TRUE(op->status().ok()) << op->status().message;
    EXPECT_EQ(op->output().shape, (std::vector<int64_t>{rows, 2}));
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), out[static_cast<size_t>(r)].begin()));
    EXPECT_EQ(out[static_cast<size_t>(r)].back(), -1);
  }
  ASSERT_TRUE(ops.back()->wait(kDeadline));
  EXPECT_EQ(ops.back()->status().code, HVD_INVALID);
  EXPECT_NE(ops.back()->status().message.find(std::to_string(rows) + " are needed"), std::string::npos)
      << ops.back()->status().message;
  EXPECT_EQ(out.back()[0], -1);
  ops.clear();
  expect_all(cluster->submit(gather));  // nothing was harmed
  std::vector<int32_t> none;
  ops = cluster->submit([&](int32_t) {
    Submission s = named("g", Kind::kAllgather);
    s.inputs = {tensor(none, HVD_DTYPE_INT32, {0, 2})};
    return s;
  });
  expect_all(ops);
  EXPECT_EQ(ops[0]->output().shape, (std::vector<int64_t>{0, 2}));
}

TEST_P(Kinds, BarrierAndAgreement) {
  expect_all(cluster->submit([](int32_t) { return named("b", Kind::kBarrier); }));
  auto ops = cluster->submit([](int32_t r) {
    Submission s = named("w", Kind::kAgree);
    s.word = uint64_t{1} << (40 + r);
    return s;
  });
  expect_all(ops);
  for (const auto& op : ops) EXPECT_EQ(op->word(), uint64_t{1} << (40 + size() - 1));
}

TEST_P(Kinds, VariablesSmallAndLarge) {
  const std::vector<size_t> sizes = {1, 0, 100000, 7, 65536, 65535, 3, 200000, 1};
  const int32_t root = size() - 1;
  std::vector<std::vector<std::vector<uint8_t>>> data(static_cast<size_t>(size()));
  for (int32_t r = 0; r < size(); ++r) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      data[static_cast<size_t>(r)].emplace_back(sizes[i], static_cast<uint8_t>(r == root ? i + 1 : 0));
    }
  }
  expect_all(cluster->submit([&](int32_t r) {
    Submission s = named("v", Kind::kBroadcast);
    s.root = root;
    for (auto& v : data[static_cast<size_t>(r)]) s.outputs.push_back(tensor(v, HVD_DTYPE_UINT8));
    return s;
  }));
  for (const auto& of_rank : data) EXPECT_EQ(of_rank, data.back());
  // Many: more than one pack.
  const size_t many = 300;
  std::vector<std::vector<float>> floats(static_cast<size_t>(size()), std::vector<float>(many * 10000));
  std::iota(floats.back().begin(), floats.back().end(), 1.0f);
  expect_all(cluster->submit([&](int32_t r) {
    Submission s = named("v", Kind::kBroadcast);
    s.root = root;
    for (size_t i = 0; i < many; ++i) {
      s.outputs.push_back({floats[static_cast<size_t>(r)].data() + i * 10000, HVD_DTYPE_FLOAT32, {100, 100}});
    }
    return s;
  }));
  for (const auto& of_rank : floats) EXPECT_TRUE(of_rank == floats.back());
}

TEST_P(Kinds, ObjectsOfAnySize) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{32768}, size_t{32769}, size_t{3000000}}) {
    std::vector<uint8_t> object(bytes);
    std::iota(object.begin(), object.end(), uint8_t{0});
    auto ops = cluster->submit([&](int32_t r) {
      Submission s = named("o", Kind::kBroadcastObject);
      if (r == 0) s.object = object;
      return s;
    });
    expect_all(ops);
    for (int32_t r = 0; r < size(); ++r) {
      const auto& op = ops[static_cast<size_t>(r)];
      EXPECT_EQ(op->buffer_size(), bytes);
      const Buffer buffer = op->take_buffer();
      if (r == 0 || bytes == 0) {
        EXPECT_EQ(buffer, nullptr) << "the root keeps its own; of nothing there is nothing";
      } else {
        EXPECT_EQ(std::memcmp(buffer.get(), object.data(), bytes), 0);
      }
    }
  }
}

TEST_P(Kinds, TransferGoesToSomeOnly) {
  if (size() < 3) GTEST_SKIP() << "some of at least three";
  const std::vector<int32_t> ranks = {1, size() - 1};
  std::vector<std::vector<uint8_t>> data;
  for (int r = 0; r < size(); ++r) data.emplace_back(70000, static_cast<uint8_t>(r));
  auto ops = cluster->submit(
      [&](int32_t r) {
        Submission s = named("t", Kind::kBroadcast);
        s.root = size() - 1;
        s.members = ranks;
        s.outputs = {tensor(data[static_cast<size_t>(r)], HVD_DTYPE_UINT8)};
        return s;
      },
      ranks);
  expect_all(ops);
  EXPECT_EQ(data[1], data.back());
  EXPECT_EQ(data[0][0], 0);
  expect_all(cluster->submit([](int32_t) { return named("b", Kind::kBarrier); }));
}

// Contract 9: the same message on every rank, and the generation goes on.
TEST_P(Kinds, MismatchHarmsNothing) {
  if (size() < 2) GTEST_SKIP() << "two must disagree";
  std::vector<std::vector<float>> in(static_cast<size_t>(size())), out;
  for (int r = 0; r < size(); ++r) in[static_cast<size_t>(r)].resize(r == 0 ? 3 : 4);
  out = in;
  auto ops = cluster->submit([&](int32_t r) {
    return allreduce("m", in[static_cast<size_t>(r)], out[static_cast<size_t>(r)], HVD_DTYPE_FLOAT32);
  });
  expect_all(ops, HVD_MISMATCH);
  for (const auto& op : ops) EXPECT_EQ(op->status().message, ops[0]->status().message);
  EXPECT_EQ(ops[0]->status().message.find("allreduce 'm': shape [3] on rank 0 (host h0), [4] on rank"), 0u);
  expect_all(cluster->submit([](int32_t) { return named("m", Kind::kBarrier); }));
}

INSTANTIATE_TEST_SUITE_P(Engine, Kinds,
                         ::testing::Combine(::testing::Values(1, 2, 3, 5),
                                            ::testing::Values("threads", "self", "gloo"), ::testing::Bool()),
                         [](const auto& info) {
                           return std::get<1>(info.param) + std::to_string(std::get<0>(info.param)) +
                                  (std::get<2>(info.param) ? "small" : "");
                         });

// ---- What is refused at once ----------------------------------------------------------------------

struct Refusals : ::testing::Test {
  Cluster cluster{{1}};
  std::vector<float> a = std::vector<float>(8), b = std::vector<float>(8);

  std::string refused(Submission s, hvd_status code = HVD_INVALID) {
    const auto op = cluster.engine(0).submit(std::move(s));
    EXPECT_TRUE(op->done());
    EXPECT_EQ(op->status().code, code) << op->status().message;
    EXPECT_EQ(op->status().generation, op->done() && !op->status().ok() ? 7u : 0u);
    return op->status().message;
  }
};

TEST_F(Refusals, BadArguments) {
  const auto good = [&] { return allreduce("x", a, b, HVD_DTYPE_FLOAT32); };
  Submission s = good();
  s.name.clear();
  refused(s);
  s.name.assign(513, 'n');
  refused(s);
  s = good();
  s.inputs[0].dtype = 99;
  EXPECT_EQ(refused(s), "allreduce 'x': input has the unknown dtype 99");
  s = good();
  s.outputs[0].dtype = HVD_DTYPE_INT32;
  EXPECT_EQ(refused(s), "allreduce 'x': input is float32, output int32");
  s = good();
  s.outputs[0].shape = {2, 4};
  EXPECT_EQ(refused(s), "allreduce 'x': input has shape [8], output [2, 4]");
  s = good();
  s.inputs[0].shape = {-1};
  EXPECT_EQ(refused(s), "allreduce 'x': input has the negative shape [-1]");
  s = good();
  s.inputs[0].shape = {int64_t{1} << 40, int64_t{1} << 40};
  refused(s);
  EXPECT_THROW(Shape(std::vector<int64_t>(9, 1)), Error);
  s = good();
  s.inputs[0].data = nullptr;
  EXPECT_EQ(refused(s), "allreduce 'x': input of shape [8] has no data (NULL)");
  s = good();
  s.reduction = 6;
  EXPECT_EQ(refused(s), "allreduce 'x': unknown reduction 6");
  s = good();
  s.outputs[0].data = a.data() + 1;
  refused(s);
  s = good();
  s.inputs[0].dtype = s.outputs[0].dtype = HVD_DTYPE_BOOL;
  s.reduction = HVD_REDUCTION_AVERAGE;
  refused(s, HVD_UNSUPPORTED);
  cluster.backend_of(0).description_.dtypes = dtype_bit(HVD_DTYPE_INT32);
  EXPECT_EQ(refused(good(), HVD_UNSUPPORTED), "allreduce 'x': backend threads does not support float32");
  cluster.backend_of(0).description_.collectives = 0;
  EXPECT_EQ(refused(good(), HVD_UNSUPPORTED), "allreduce 'x': backend threads has no allreduce");
}

TEST_F(Refusals, BadBroadcastsAndGathers) {
  Submission s = named("x", Kind::kBroadcast);
  s.outputs = {tensor(a, HVD_DTYPE_FLOAT32)};
  s.root = 1;
  EXPECT_EQ(refused(s), "broadcast 'x': root is 1, expected 0 to 0");
  s.root = -1;
  refused(s);
  s = named("x", Kind::kAllgather);
  s.inputs = {{a.data(), HVD_DTYPE_FLOAT32, {}}};
  EXPECT_EQ(refused(s), "allgather 'x': input is a scalar, expected at least one dimension");
  s.inputs = {{a.data(), HVD_DTYPE_FLOAT32, {2, 2}}};
  s.outputs = {{b.data(), HVD_DTYPE_FLOAT32, {2, 3}}};
  refused(s);
  s.outputs = {{a.data() + 1, HVD_DTYPE_FLOAT32, {3, 2}}};
  EXPECT_EQ(refused(s), "allgather 'x': input and output overlap");
  s = named("x", Kind::kBroadcast);
  s.outputs.resize(20000, {a.data(), HVD_DTYPE_FLOAT32, {1, 1, 1, 1, 1, 1, 1, 1}});
  refused(s);
  s = named("x", Kind::kBroadcast);
  s.outputs = {tensor(a, HVD_DTYPE_FLOAT32)};
  s.members = {0, 0};
  refused(s);
  s.members = {0};
  EXPECT_TRUE(cluster.engine(0).submit(s)->status().ok());
}

// A backend that works on tensors where they lie gets one operation for each dtype in a row; another one gets
// large tensors by themselves, so that it need not pack them.
TEST(Engine, LargeTensorsOfAGroupTravelTogetherWhereTheBackendTakesParts) {
  for (const bool takes_parts : {false, true}) {
    testing::ClusterConfig config;
    config.size = 2;
    config.takes_parts = takes_parts;
    Cluster cluster{config};
    const std::vector<size_t> counts = {100'000, 3, 200'000, 0, 70'000};
    std::vector<std::vector<std::vector<float>>> data(2);
    std::vector<std::vector<double>> wide(2, std::vector<double>(50'000, 2));
    for (auto& of_rank : data) {
      for (const size_t count : counts) of_rank.emplace_back(count, 1.5F);
    }
    expect_all(cluster.submit([&](int32_t r) {
      Submission s = named("group", Kind::kAllreduce);
      for (auto& v : data[static_cast<size_t>(r)]) s.outputs.push_back(tensor(v, HVD_DTYPE_FLOAT32));
      s.outputs.push_back(tensor(wide[static_cast<size_t>(r)], HVD_DTYPE_FLOAT64));
      s.inputs = s.outputs;
      return s;
    }));
    for (size_t r = 0; r < 2; ++r) {
      for (size_t i = 0; i < counts.size(); ++i)
        EXPECT_EQ(data[r][i], std::vector<float>(counts[i], 3.0F)) << r << " " << i;
      EXPECT_EQ(wide[r], std::vector<double>(50'000, 4));
    }
    EXPECT_EQ(cluster.hub.ran(HVD_COLLECTIVE_ALLREDUCE), takes_parts ? 2U : 5U);
  }
}

TEST(Engine, ANameInUseIsRefusedAndFreeAfterwards) {
  Cluster cluster{{2}};
  const auto first = cluster.engine(0).submit(named("n", Kind::kBarrier));
  const auto second = cluster.engine(0).submit(named("n", Kind::kBarrier));
  ASSERT_TRUE(second->done());
  EXPECT_EQ(second->status().code, HVD_INVALID);
  EXPECT_EQ(second->status().message,
            "barrier 'n': an operation of that name is still under way on this rank");
  for (int i = 0; i < 200; ++i) {
    const auto other = cluster.engine(1).submit(named("n", Kind::kBarrier));
    const auto again = i == 0 ? first : cluster.engine(0).submit(named("n", Kind::kBarrier));
    expect_all({again, other});
  }
}

TEST(Engine, AnOperationsDescriptorTellsOfItsEnd) {
  Cluster cluster{{2}};
  const auto ended = [](const std::shared_ptr<Operation>& op, int timeout_ms) {
    pollfd what{op->completion_fd(), POLLIN, 0};
    return poll(&what, 1, timeout_ms) == 1;
  };
  const auto good = cluster.engine(0).submit(named("good", Kind::kBarrier));
  EXPECT_FALSE(ended(good, 0));
  expect_all({cluster.engine(1).submit(named("good", Kind::kBarrier))});
  EXPECT_TRUE(ended(good, 60'000));
  EXPECT_TRUE(good->done());

  const auto bad = cluster.engine(0).submit(named("bad", Kind::kBarrier));
  EXPECT_FALSE(ended(bad, 0));
  cluster.engine(0).fail(Status(HVD_PEER_LOST, "rank 1 is gone"));
  EXPECT_TRUE(ended(bad, 60'000));
  EXPECT_TRUE(ended(cluster.engine(0).submit(named("late", Kind::kBarrier)), 0));
}

TEST(Engine, AnswersToWhoeverCallsBeforeStart) {
  Cluster cluster{{3, "threads", seconds(60), false}};
  const auto make = [](int32_t) { return named("early", Kind::kBarrier); };
  auto ops = cluster.submit(make);
  cluster.engine(2).start();
  cluster.engine(1).start();
  EXPECT_FALSE(ops[1]->done());
  cluster.engine(0).start();
  expect_all(ops);
}

}  // namespace
}  // namespace hvd::collective
