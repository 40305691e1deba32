// The engine: process sets, factors, checks, joins and fusion, one by one.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "collective/cluster.h"
#include "collective/engine.h"

namespace hvd::collective {
namespace {

using testing::allreduce;
using testing::Cluster;
using testing::expect_all;
using testing::kDeadline;
using testing::named;
using testing::tensor;

TEST(Engine, MembersMustAgreeAndBeMembers) {
  Cluster cluster{{3}};
  const auto with = [](std::vector<int32_t> members) {
    Submission s = named("s", Kind::kBarrier);
    s.set = "some";
    s.members = std::move(members);
    return s;
  };
  const auto outsider = cluster.engine(1).submit(with({0, 2}));
  ASSERT_TRUE(outsider->done());
  EXPECT_EQ(outsider->status().code, HVD_INVALID);
  EXPECT_EQ(outsider->status().message, "barrier 's': called by rank 1, which is not among its ranks");
  auto ops = cluster.submit([&](int32_t r) {
    return with(r == 0 ? std::vector{0, 2} : std::vector{0, 1, 2});
  });
  expect_all(ops, HVD_MISMATCH);
  EXPECT_EQ(
      ops[1]->status().message,
      "barrier 's': participants {0, 2} on rank 0 (host h0), {0, 1, 2} on ranks 1 (host h0), 2 (host h1)");
  // Sets of one name with other lowest members are other sets.
  ops = cluster.submit([&](int32_t r) { return with(r == 0 ? std::vector{0} : std::vector{1, 2}); });
  expect_all(ops);
}

TEST(Engine, FactorsMustAgreeAndAreApplied) {
  for (const size_t small : {size_t{0}, size_t{64 << 10}}) {
    testing::ClusterConfig config;
    config.small_data = small;
    Cluster cluster{config};
    std::vector<std::vector<float>> in(3, {1, 2}), out = in;
    const auto scaled = [&](int32_t r, double prescale, double postscale) {
      Submission s =
          allreduce("f", in[static_cast<size_t>(r)], out[static_cast<size_t>(r)], HVD_DTYPE_FLOAT32);
      s.prescale = prescale;
      s.postscale = postscale;
      return s;
    };
    expect_all(cluster.submit([&](int32_t r) { return scaled(r, 0.5, 10); }));
    for (const auto& got : out) EXPECT_EQ(got, (std::vector<float>{15, 30}));
    EXPECT_EQ(in[0], (std::vector<float>{1, 2})) << "the input is left alone";
    auto ops = cluster.submit([&](int32_t r) { return scaled(r, r == 1 ? 2 : 1, 1); });
    expect_all(ops, HVD_MISMATCH);
    EXPECT_EQ(ops[0]->status().message,
              "allreduce 'f': prescale 1 on ranks 0 (host h0), 2 (host h1), 2 on rank 1 (host h0)");
  }
}

// Contract 1.
TEST(Engine, ACheckRidesOnTheOperationsBeforeIt) {
  std::vector<std::atomic<uint64_t>> words(3);
  testing::ClusterConfig config;
  config.word = [&](int32_t r) { return words[static_cast<size_t>(r)].load(); };
  Cluster cluster{config};
  const auto check_all = [&] {
    std::vector<uint64_t> agreed(3);
    std::vector<std::thread> threads;
    for (int32_t r = 0; r < 3; ++r) {
      threads.emplace_back([&, r] {
        const Status status = cluster.engine(r).check(kDeadline, &agreed[static_cast<size_t>(r)]);
        EXPECT_TRUE(status.ok()) << status.message;
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(agreed[0], agreed[1]);
    EXPECT_EQ(agreed[0], agreed[2]);
    return agreed[0];
  };
  words[2] = 4;
  EXPECT_EQ(check_all(), 4u) << "by asking";
  words[1] = 6;
  expect_all(cluster.submit([](int32_t) { return named("step", Kind::kBarrier); }));
  words[0] = 8;  // too late for this check
  const size_t messages = cluster.hub.messages();
  EXPECT_EQ(check_all(), 6u);
  EXPECT_EQ(cluster.hub.messages(), messages) << "it costs no message";
  EXPECT_EQ(check_all(), 8u) << "nothing in between: by asking";
}

void joined_ranks_count(size_t small_data) {
  testing::ClusterConfig config;
  config.join_counts = true;
  config.small_data = small_data;
  Cluster cluster{config};
  const auto join = [](int32_t) { return named("hvd.join", Kind::kJoin); };
  std::vector<double> in = {6}, a(1), b(1);
  const auto average = [&](int32_t rank, std::vector<double>& out) {
    return cluster.engine(rank).submit(allreduce("x", in, out, HVD_DTYPE_FLOAT64, HVD_REDUCTION_AVERAGE));
  };
  expect_all({average(0, a), average(1, in), average(2, b)});
  EXPECT_EQ(a[0], 6) << "nobody has joined";
  auto joined = cluster.submit(join, {1});
  in = {6};
  expect_all({average(0, a), nullptr, average(2, b)});
  EXPECT_EQ(a[0], 4);
  EXPECT_EQ(b[0], 4);
  std::vector<int32_t> whole = {-7}, c(1), d(1);
  expect_all({cluster.engine(0).submit(allreduce("i", whole, c, HVD_DTYPE_INT32, HVD_REDUCTION_AVERAGE)),
              nullptr,
              cluster.engine(2).submit(allreduce("i", whole, d, HVD_DTYPE_INT32, HVD_REDUCTION_AVERAGE))});
  EXPECT_EQ(c[0], -4) << "integers round towards zero";
  const auto more = cluster.submit(join, {0});
  expect_all({nullptr, nullptr, average(2, b)});
  EXPECT_EQ(b[0], 2) << "one is left";
  joined[0] = more[0];
  joined[2] = cluster.submit(join, {2})[2];
  expect_all(joined);
}

TEST(Engine, JoinedRanksCountInAveragesByOption) {
  joined_ranks_count(64 << 10);  // with the matching
  joined_ranks_count(0);         // by the backend
}

TEST(Engine, JoinedRanksTakeNoPartUntilHostsChange) {
  std::vector<std::atomic<uint64_t>> words(3);
  testing::ClusterConfig config;
  config.word = [&](int32_t r) { return words[static_cast<size_t>(r)].load(); };
  config.interrupts = [](uint64_t word) {
    return word < 9 ? Status() : Status(HVD_HOSTS_UPDATED, "new hosts");
  };
  Cluster cluster{config};
  const auto join = [](int32_t) { return named("hvd.join", Kind::kJoin); };
  const auto joined = cluster.submit(join, {1});
  std::vector<double> in = {6}, a(1), b(1);
  expect_all({cluster.engine(0).submit(allreduce("x", in, a, HVD_DTYPE_FLOAT64, HVD_REDUCTION_AVERAGE)),
              nullptr,
              cluster.engine(2).submit(allreduce("x", in, b, HVD_DTYPE_FLOAT64, HVD_REDUCTION_AVERAGE))});
  EXPECT_EQ(a[0], 6);
  EXPECT_EQ(b[0], 6);
  const auto ops = cluster.submit(
      [&](int32_t) {
        Submission s = named("b", Kind::kBroadcast);
        s.outputs = {tensor(in, HVD_DTYPE_FLOAT64)};
        s.root = 1;
        return s;
      },
      {0, 2});
  expect_all(ops, HVD_MISMATCH);
  EXPECT_EQ(ops[0]->status().message, "broadcast 'b': the root, rank 1 (host h0), has joined");
  const auto exchange = cluster.submit(
      [&](int32_t r) {
        Submission s = named("e", Kind::kReducescatter);
        s.inputs = {tensor(r == 0 ? a : b, HVD_DTYPE_FLOAT64)};
        return s;
      },
      {0, 2});
  expect_all(exchange, HVD_INVALID);
  EXPECT_EQ(exchange[2]->status().message,
            "reducescatter 'e': rank 1 (host h0) has joined, and it needs all of its ranks");
  EXPECT_FALSE(joined[1]->done());
  auto others = cluster.submit(join, {0, 2});
  others[1] = joined[1];
  expect_all(others);
  EXPECT_EQ(others[1]->word(), others[0]->word());
  // Again, and hosts change meanwhile.
  const auto again = cluster.submit(join, {1});
  words[2] = 9;
  expect_all(cluster.submit([](int32_t) { return named("step", Kind::kBarrier); }, {0, 2}));
  expect_all(again, HVD_HOSTS_UPDATED);
  EXPECT_EQ(again[1]->status().message, "new hosts");
  expect_all(cluster.submit(join, {0}), HVD_HOSTS_UPDATED);
  uint64_t word = 0;
  EXPECT_TRUE(cluster.engine(2).check(kDeadline, &word).ok());
  EXPECT_EQ(word, 9u);
}

TEST(Engine, ReadyOperationsAreFusedWhileOthersRun) {
  testing::ClusterConfig config;
  config.small_data = 0;
  Cluster cluster{config};
  cluster.hub.hold(true);
  const int count = 20;
  std::vector<std::vector<std::vector<int64_t>>> data(
      3, std::vector<std::vector<int64_t>>(count, std::vector<int64_t>(3, 1)));
  std::vector<std::vector<std::shared_ptr<Operation>>> ops;
  for (int i = 0; i < count; ++i) {
    ops.push_back(cluster.submit([&](int32_t r) {
      auto& values = data[static_cast<size_t>(r)][static_cast<size_t>(i)];
      return allreduce("g" + std::to_string(i), values, values, HVD_DTYPE_INT64);
    }));
  }
  // All have called everything when a later one, which needs no backend, is complete.
  expect_all(cluster.submit([](int32_t) { return named("called", Kind::kBarrier); }));
  cluster.hub.hold(false);
  for (const auto& op : ops) expect_all(op);
  for (const auto& of_rank : data) {
    for (const auto& values : of_rank) EXPECT_EQ(values, std::vector<int64_t>(3, 3));
  }
  EXPECT_EQ(cluster.hub.ran(HVD_COLLECTIVE_ALLREDUCE), 3u) << "two at once, and then all others as one";
}

}  // namespace
}  // namespace hvd::collective
