// Collectives on device memory, with a double of a device and of its backend: nothing here says anything
// about CUDA.
#include <gtest/gtest.h>

#include <atomic>

#include "collective/cluster.h"
#include "collective/fusion.h"
#include "device_memory.h"

namespace hvd::collective::testing {
namespace {

using hvd::testing::DeviceMemory;

class Device : public ::testing::Test {
 protected:
  ClusterConfig config() {
    ClusterConfig c;
    c.device = &memory;
    c.aborting = [this](int32_t) { ++aborts; };
    return c;
  }
  /// Of a rank: each has its own numbers for devices and streams.
  Tensor on(int32_t rank, void* data, std::vector<int64_t> shape, hvd_dtype dtype = HVD_DTYPE_FLOAT32,
            int stream = 0) {
    return {data, dtype, std::move(shape), HVD_MEMORY_CUDA, rank, &streams[rank][stream]};
  }
  Tensor values(int32_t rank, const std::vector<float>& of, int stream = 0) {
    return on(rank, memory.put(of), {static_cast<int64_t>(of.size())}, HVD_DTYPE_FLOAT32, stream);
  }
  Tensor room(int32_t rank, int64_t count, int stream = 0) {
    return on(rank, memory.allocate(static_cast<size_t>(count) * 4), {count}, HVD_DTYPE_FLOAT32, stream);
  }
  std::vector<float> read(const Tensor& t) {
    return memory.get<float>(t.data, static_cast<size_t>(t.elements()));
  }
  Submission sum(const std::string& name, const Tensor& in, const Tensor& out) {
    Submission s = named(name, Kind::kAllreduce);
    s.inputs = {in};
    s.outputs = {out};
    return s;
  }
  static void settled(Cluster& cluster) {
    const Time deadline = now() + kDeadline;
    while (cluster.hub.in_flight() > 0 && now() < deadline) std::this_thread::yield();
    ASSERT_EQ(cluster.hub.in_flight(), 0U);
  }

  DeviceMemory memory;
  char streams[8][4] = {};
  std::atomic<int> aborts{0};
};

TEST_F(Device, EveryCollectiveRunsInTheBackendHoweverSmallAndIsDoneBeforeItRuns) {
  Cluster cluster(config());
  std::vector<Tensor> sums, roots, gathered, scattered, exchanged;
  for (int32_t r = 0; r < 3; ++r) {
    sums.push_back(room(r, 2));
    roots.push_back(values(r, {float(r), float(r)}));
    gathered.push_back(room(r, 6));
    scattered.push_back(room(r, 1));
    exchanged.push_back(room(r, 3));
  }
  cluster.hub.hold(true);
  const auto f = [](int32_t r) { return static_cast<float>(r); };
  expect_all(cluster.submit([&](int32_t r) { return sum("sum", values(r, {f(r), 1}), sums[size_t(r)]); }));
  expect_all(cluster.submit([&](int32_t r) {
    Submission s = named("root", Kind::kBroadcast);
    s.root = 2;
    s.outputs = {roots[size_t(r)]};
    return s;
  }));
  expect_all(cluster.submit([&](int32_t r) {
    Submission s = named("gather", Kind::kAllgather);
    s.inputs = {values(r, std::vector<float>(size_t(r) + 1, f(r)))};
    s.outputs = {gathered[size_t(r)]};
    return s;
  }));
  expect_all(cluster.submit([&](int32_t r) {
    Submission s = named("scatter", Kind::kReducescatter);
    s.inputs = {values(r, {f(r), 10 * f(r), 100 * f(r)})};
    s.outputs = {scattered[size_t(r)]};
    return s;
  }));
  const auto all = cluster.submit([&](int32_t r) {
    Submission s = named("exchange", Kind::kAlltoall);
    s.inputs = {values(r, {10 * f(r), 10 * f(r) + 1, 10 * f(r) + 2})};
    s.outputs = {exchanged[size_t(r)]};
    return s;
  });
  expect_all(all);
  EXPECT_EQ(all[1]->output().memory, HVD_MEMORY_CUDA);
  EXPECT_EQ(all[1]->output().device, 1);
  EXPECT_EQ(all[1]->output().data, exchanged[1].data);
  EXPECT_EQ(cluster.hub.in_flight(), 5U) << "done means queued";
  cluster.hub.hold(false);
  settled(cluster);
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(read(sums[r]), (std::vector<float>{3, 3}));
    EXPECT_EQ(read(roots[r]), (std::vector<float>{2, 2}));
    EXPECT_EQ(read(gathered[r]), (std::vector<float>{0, 1, 1, 2, 2, 2}));
    EXPECT_EQ(read(scattered[r]), (std::vector<float>{r == 0 ? 3.F : r == 1 ? 30.F : 300.F}));
    EXPECT_EQ(read(exchanged[r]), (std::vector<float>{float(r), 10 + float(r), 20 + float(r)}));
    for (const auto& [device, stream] : cluster.backend_of(int32_t(r)).places()) {
      EXPECT_EQ(device, int32_t(r));
      EXPECT_EQ(stream, &streams[r][0]);
    }
  }
}

TEST_F(Device, HostAndDeviceGoSideBySide) {
  Cluster cluster(config());
  std::vector<std::shared_ptr<Operation>> pending;
  std::vector<std::vector<float>> host(3, std::vector<float>{1, 2});
  std::vector<Tensor> device;
  for (int32_t r = 0; r < 3; ++r) device.push_back(values(r, {1, 2}));
  for (int i = 0; i < 20; ++i) {
    const std::string n = std::to_string(i);
    const auto d =
        cluster.submit([&](int32_t r) { return sum("d" + n, device[size_t(r)], device[size_t(r)]); });
    const auto h = cluster.submit(
        [&](int32_t r) { return allreduce("h" + n, host[size_t(r)], host[size_t(r)], HVD_DTYPE_FLOAT32); });
    expect_all(d);
    expect_all(h);
    expect_all(cluster.submit([&](int32_t) { return named("b" + n, Kind::kBarrier); }));
  }
  settled(cluster);
  for (size_t r = 0; r < 3; ++r) { EXPECT_EQ(read(device[r]), host[r]); }
}

TEST_F(Device, WhoIsAloneHasItsBackendMoveIt) {
  Cluster cluster(config());
  const Tensor in = values(1, {5, 6}), out = room(1, 2), gathered = room(1, 2);
  Submission s = sum("one", in, out);
  s.set = "only";
  s.members = {1};
  Submission g = named("gather", Kind::kAllgather);
  g.set = "only";
  g.members = {1};
  g.inputs = {in};
  g.outputs = {gathered};
  const std::vector<std::shared_ptr<Operation>> ops = {cluster.engine(1).submit(s),
                                                       cluster.engine(1).submit(g)};
  expect_all(ops);
  settled(cluster);
  EXPECT_EQ(read(out), (std::vector<float>{5, 6}));
  EXPECT_EQ(read(gathered), (std::vector<float>{5, 6}));
  // The same when the others have joined.
  auto joined = cluster.submit([&](int32_t) { return named("hvd.join", Kind::kJoin); }, {0, 2});
  const Tensor after = room(1, 2);
  expect_all({cluster.engine(1).submit(sum("after", in, after))});
  joined[1] = cluster.engine(1).submit(named("hvd.join", Kind::kJoin));
  expect_all(joined);
  settled(cluster);
  EXPECT_EQ(read(after), (std::vector<float>{5, 6}));
}

TEST_F(Device, GroupsTravelTogetherAndSoDoCallsOfOneStream) {
  ClusterConfig c = config();
  c.size = 2;
  Cluster cluster(c);
  cluster.hub.hold(true);
  std::vector<std::vector<Tensor>> outs(2);
  const auto group = cluster.submit([&](int32_t r) {
    Submission s = named("group", Kind::kAllreduce);
    for (int i = 0; i < 3; ++i) {
      s.inputs.push_back(values(r, {float(i), 1}));
      s.outputs.push_back(room(r, 2));
      outs[size_t(r)].push_back(s.outputs.back());
    }
    return s;
  });
  expect_all(group);
  cluster.hub.hold(false);
  settled(cluster);
  EXPECT_EQ(cluster.hub.ran(HVD_COLLECTIVE_ALLREDUCE), 1U);
  for (size_t r = 0; r < 2; ++r) {
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(read(outs[r][i]), (std::vector<float>{2 * float(i), 2}));
  }
}

// A backend that takes parts of host memory may still pack a device's.
TEST_F(Device, LargeTensorsOfAGroupTravelAlone) {
  ClusterConfig c = config();
  c.size = 2;
  c.takes_parts = true;
  Cluster cluster(c);
  constexpr size_t kLarge = 50'000;
  std::vector<std::vector<Tensor>> outs(2);
  expect_all(cluster.submit([&](int32_t r) {
    Submission s = named("group", Kind::kAllreduce);
    for (const size_t count : {kLarge, size_t{2}, kLarge}) {
      s.inputs.push_back(values(r, std::vector<float>(count, 1.5F)));
      s.outputs.push_back(room(r, static_cast<int64_t>(count)));
      outs[size_t(r)].push_back(s.outputs.back());
    }
    return s;
  }));
  settled(cluster);
  EXPECT_EQ(cluster.hub.ran(HVD_COLLECTIVE_ALLREDUCE), 3U);
  for (const std::vector<Tensor>& of_rank : outs) {
    for (const Tensor& out : of_rank)
      EXPECT_EQ(read(out), std::vector<float>(static_cast<size_t>(out.elements()), 3));
  }
}

TEST_F(Device, OnlyCallsOfOnePlaceOnEveryRankTravelTogether) {
  const auto item = [](hvd_memory memory, std::vector<uint32_t> places) {
    auto call = std::make_shared<Signature>();
    call->kind = Kind::kAllreduce;
    call->memory = memory;
    call->specs = {{HVD_DTYPE_FLOAT32, {4}}};
    Fusion::Item i;
    i.call = call;
    i.participants = {0, 1};
    i.places = std::move(places);
    i.alone = false;
    return i;
  };
  const Fusion::Item a = item(HVD_MEMORY_CUDA, {1, 1});
  EXPECT_TRUE(Fusion::together(a, item(HVD_MEMORY_CUDA, {1, 1})));
  EXPECT_FALSE(Fusion::together(a, item(HVD_MEMORY_CUDA, {1, 2}))) << "rank 1 has another stream";
  EXPECT_FALSE(Fusion::together(a, item(HVD_MEMORY_HOST, {})));
  // Numbers of devices and streams are a rank's own, and stay.
  Places places;
  const Tensor first = values(0, {1}), second = values(0, {1}, 1), other = values(1, {1});
  EXPECT_EQ(places.of(sum("a", first, first)), 1U);
  EXPECT_EQ(places.of(sum("b", second, second)), 2U);
  EXPECT_EQ(places.of(sum("c", other, other)), 3U);
  EXPECT_EQ(places.of(sum("d", first, first)), 1U);
  EXPECT_EQ(places.of(named("e", Kind::kBarrier)), 0U);
}

TEST_F(Device, OtherMemoryIsAMismatchWithRanksAndValues) {  // contract 9
  Cluster cluster(config());
  std::vector<float> host{1, 2};
  const auto ops = cluster.submit([&](int32_t r) {
    if (r == 1) return allreduce("x", host, host, HVD_DTYPE_FLOAT32);
    return sum("x", values(r, {1, 2}), room(r, 2));
  });
  expect_all(ops, HVD_MISMATCH);
  EXPECT_NE(ops[0]->status().message.find("host memory on rank 1 (host h0)"), std::string::npos)
      << ops[0]->status().message;
  EXPECT_NE(ops[0]->status().message.find("device memory (CUDA) on ranks 0 (host h0), 2 (host h1)"),
            std::string::npos)
      << ops[0]->status().message;
  EXPECT_EQ(ops[0]->status().message, ops[1]->status().message);
  expect_all(cluster.submit([&](int32_t r) { return sum("y", values(r, {1}), room(r, 1)); }));
}

TEST_F(Device, TooSmallARoomIsToldToAllBeforeAnybodyBegins) {
  Cluster cluster(config());
  const auto gather = cluster.submit([&](int32_t r) {
    Submission s = named("gather", Kind::kAllgather);
    s.inputs = {values(r, {1, 2})};
    s.outputs = {room(r, r == 1 ? 5 : 6)};
    return s;
  });
  expect_all(gather, HVD_INVALID);
  for (const char* part : {"'gather'", "5 rows", "rank 1 (host h0)", "6 are needed"}) {
    EXPECT_NE(gather[2]->status().message.find(part), std::string::npos) << gather[2]->status().message;
  }
  const auto exchange = cluster.submit([&](int32_t r) {
    Submission s = named("exchange", Kind::kAlltoall);
    s.inputs = {values(r, {1, 2, 3})};
    s.outputs = {room(r, r == 2 ? 2 : 3)};
    return s;
  });
  expect_all(exchange, HVD_INVALID);
  EXPECT_NE(exchange[0]->status().message.find("2 rows on rank 2"), std::string::npos)
      << exchange[0]->status().message;
  Submission scatter = named("scatter", Kind::kReducescatter);
  scatter.inputs = {values(0, {1, 2, 3, 4})};
  scatter.outputs = {room(0, 1)};
  const auto alone = cluster.engine(0).submit(scatter);
  ASSERT_TRUE(alone->done()) << "this rank knows its rows";
  EXPECT_EQ(alone->status().code, HVD_INVALID);
  EXPECT_EQ(cluster.hub.ran(HVD_COLLECTIVE_ALLGATHER), 0U);
  EXPECT_EQ(aborts, 0);
}

TEST_F(Device, WhatCantBeServedIsRefusedAtOnce) {
  ClusterConfig c = config();
  c.size = 2;
  Cluster cluster(c);
  std::vector<float> host{1, 2};
  const auto refused = [&](Submission s, hvd_status code, const std::vector<std::string>& parts) {
    const auto op = cluster.engine(0).submit(std::move(s));
    ASSERT_TRUE(op->done());
    EXPECT_EQ(op->status().code, code) << op->status().message;
    for (const std::string& part : parts) {
      EXPECT_NE(op->status().message.find(part), std::string::npos) << op->status().message;
    }
  };
  Submission mixed = sum("mixed", values(0, {1, 2}), tensor(host, HVD_DTYPE_FLOAT32));
  refused(mixed, HVD_INVALID, {"'mixed'", "device memory (CUDA) of device 0", "output in host memory"});
  refused(sum("devices", values(0, {1, 2}), room(1, 2)), HVD_INVALID, {"of device 0", "of device 1"});
  refused(sum("streams", values(0, {1, 2}), room(0, 2, 1)), HVD_INVALID, {"stream"});
  Submission scaled = sum("scaled", values(0, {1, 2}), room(0, 2));
  scaled.postscale = 0.5;
  refused(scaled, HVD_UNSUPPORTED, {"'scaled'", "postscale 0.5", "device memory (CUDA)"});
  Submission gather = named("gather", Kind::kAllgather);
  gather.inputs = {values(0, {1, 2})};
  refused(gather, HVD_UNSUPPORTED, {"'gather'", "allocates no device memory"});
  gather.outputs.emplace_back();
  refused(gather, HVD_UNSUPPORTED, {"'gather'", "allocates no device memory"});
  ClusterConfig none;
  none.size = 1;
  Cluster host_only(none);
  const auto op = host_only.engine(0).submit(sum("x", values(0, {1}), room(0, 1)));
  ASSERT_TRUE(op->done());
  EXPECT_EQ(op->status().code, HVD_UNSUPPORTED);
}

TEST_F(Device, NothingIsTakenAtAllWhereThereIsNothing) {
  Cluster cluster(config());
  expect_all(cluster.submit([&](int32_t r) {
    Submission s = named("gather", Kind::kAllgather);
    s.inputs = {on(r, nullptr, {0})};
    s.outputs = {on(r, nullptr, {0})};
    return s;
  }));
  std::vector<Tensor> outs;
  for (int32_t r = 0; r < 3; ++r) outs.push_back(r == 0 ? room(r, 1) : on(r, nullptr, {0}));
  expect_all(cluster.submit([&](int32_t r) {
    Submission s = named("scatter", Kind::kReducescatter);
    s.inputs = {values(r, {2})};
    s.outputs = {outs[size_t(r)]};
    return s;
  }));
  settled(cluster);
  EXPECT_EQ(read(outs[0]), std::vector<float>{6});
}

TEST_F(Device, AFailureSaysSoBeforeItAborts) {  // contract 3
  Cluster cluster(config());
  cluster.hub.hold(true);
  expect_all(cluster.submit([&](int32_t r) { return sum("x", values(r, {1}), room(r, 1)); }));
  const auto waiting =
      cluster.submit([&](int32_t r) { return sum("y", values(r, {1}), room(r, 1)); }, {0, 1});
  for (int32_t r = 0; r < 3; ++r) cluster.engine(r).fail(Status(HVD_PEER_LOST, "gone"));
  expect_all(waiting, HVD_PEER_LOST);
  EXPECT_EQ(aborts, 3);
}

}  // namespace
}  // namespace hvd::collective::testing
