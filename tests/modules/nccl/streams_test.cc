// Module nccl and what is around it, over the doubles of its libraries: the caller's stream, context, device
// and memory.
#include <set>

#include "modules/nccl/cluster.h"
#include "modules/nccl/values.h"

namespace hvd::backend::test {
namespace {

// contract of an op on device memory: after what the stream was given before, before what it is given after,
// and the host waits for nothing.
TEST(NcclStreams, TheCallersStreamIsRespectedAndTheHostIsNotBlocked) {
  NcclCluster cluster(2);
  std::vector<std::unique_ptr<DeviceMemory>> in, out;
  for (int rank = 0; rank < 2; ++rank) {
    in.push_back(std::make_unique<DeviceMemory>(64 * 4, rank));
    out.push_back(std::make_unique<DeviceMemory>(64 * 4, rank));
  }
  std::promise<void> go;
  const std::shared_future<void> may_go = go.get_future().share();
  std::vector<std::vector<uint8_t>> seen(2);
  cluster.each([&](int rank, NcclWorker& worker) {
    uint8_t* const input = in[static_cast<size_t>(rank)]->data;
    uint8_t* const output = out[static_cast<size_t>(rank)]->data;
    // The program's kernel: it makes the input, much later.
    hvddouble::enqueue(worker.stream, [=] {
      may_go.wait();
      fill(HVD_DTYPE_FLOAT32, input, rank, 0, 64);
    });
    for (uint64_t sequence = 1; sequence <= 3; ++sequence) {  // several in flight
      Pending pending;
      hvd_backend_op op = worker.op(pending, HVD_COLLECTIVE_ALLREDUCE, sequence);
      op.dtype = HVD_DTYPE_FLOAT32;
      op.reduction = HVD_REDUCTION_SUM;
      op.input = input;
      op.output = output;
      op.count = 64;
      expect_ok(run(*worker.instance, op, pending));  // done, with the stream still held
    }
    hvddouble::enqueue(worker.stream,
                       [&, rank, output] { seen[static_cast<size_t>(rank)].assign(output, output + 256); });
  });
  for (const auto& data : seen) EXPECT_TRUE(data.empty());
  go.set_value();
  for (int rank = 0; rank < 2; ++rank) {
    cluster[rank].synchronize();
    EXPECT_EQ(seen[static_cast<size_t>(rank)], expected(HVD_DTYPE_FLOAT32, HVD_REDUCTION_SUM, {0, 1}, 0, 64));
  }
}

TEST(NcclStreams, TheCurrentContextIsLeftAsItWas) {
  NcclCluster cluster(2);
  cluster.each([&](int rank, NcclWorker& worker) {
    for (const hvddouble::CuContext own : {hvddouble::CuContext(nullptr), hvddouble::context_of(1 - rank)}) {
      hvddouble::set_current_context(own);
      DeviceMemory data(16, worker.device);
      Pending pending;
      hvd_backend_op op = worker.op(pending, HVD_COLLECTIVE_BROADCAST, own == nullptr ? 1 : 2);
      op.dtype = HVD_DTYPE_UINT8;
      op.output = data.data;
      op.count = 16;
      expect_ok(run(*worker.instance, op, pending));
      EXPECT_EQ(hvddouble::current_context(), own);
      op.output = nullptr;
      EXPECT_EQ(worker.instance->submit(op).code, HVD_INVALID);
      EXPECT_EQ(hvddouble::current_context(), own);
      worker.synchronize();
    }
    hvddouble::set_current_context(nullptr);
  });
}

// Whether it is two ranks' calls, mixed in whichever way, with each rank's in the order of `one`.
bool is_two_of(const std::string& one, const std::string& mixed) {
  std::set<size_t> firsts{0};  // how many of those seen may be the first rank's
  for (size_t seen = 0; seen < mixed.size(); ++seen) {
    std::set<size_t> next;
    for (const size_t first : firsts) {
      const size_t second = seen - first;
      if (first < one.size() && one[first] == mixed[seen]) next.insert(first + 1);
      if (second < one.size() && one[second] == mixed[seen]) next.insert(first);
    }
    firsts = std::move(next);
  }
  return mixed.size() == 2 * one.size() && !firsts.empty();
}

// In the order of the real calls: the caller's stream is marked at submit, the group begins after the wait
// for it, and the caller's stream waits for what comes after the group is on the stream.
TEST(NcclStreams, EventsStandAroundTheGroup) {
  NcclCluster cluster(2);
  const auto all = [&](uint64_t sequence) {
    cluster.each([&](int, NcclWorker& worker) {
      DeviceMemory data(16, worker.device);
      Pending pending;
      hvd_backend_op op = worker.op(pending, HVD_COLLECTIVE_BROADCAST, sequence);
      op.dtype = HVD_DTYPE_UINT8;
      op.output = data.data;
      op.count = 16;
      expect_ok(run(*worker.instance, op, pending));
      worker.synchronize();
    });
  };
  all(1);  // the communicator
  hvddouble::reset();
  all(2);
  std::string order;
  for (const std::string& call : hvddouble::calls()) {
    if (call == "cuEventRecord") order += 'r';
    if (call == "cuStreamWaitEvent") order += 'w';
    if (call == "ncclGroupStart") order += '(';
    if (call == "ncclGroupEnd") order += ')';
  }
  EXPECT_TRUE(is_two_of("rw()rw", order)) << order;
}

TEST(NcclStreams, BarrierHoldsTheStream) {
  NcclCluster cluster(2);
  std::atomic<int> before{0};
  cluster.each([&](int rank, NcclWorker& worker) {
    Pending pending;
    hvddouble::enqueue(worker.stream, [&] { ++before; });
    expect_ok(run(*worker.instance, worker.op(pending, HVD_COLLECTIVE_BARRIER, 1), pending));
    int seen = 0;
    hvddouble::enqueue(worker.stream, [&] { seen = before; });
    worker.synchronize();
    EXPECT_EQ(seen, 2) << rank;
  });
}

TEST(NcclStreams, WhatIsNotOfTheDeviceIsRefused) {
  NcclCluster cluster(2);
  NcclWorker& worker = cluster[0];
  DeviceMemory own(16, 0), other(16, 1);
  uint8_t host[16];
  const auto refused = [&](void* data, void* stream, int device) {
    Pending pending;
    hvd_backend_op op = worker.op(pending, HVD_COLLECTIVE_BROADCAST, 1);
    op.dtype = HVD_DTYPE_UINT8;
    op.output = data;
    op.count = 16;
    op.stream = stream;
    op.device = device;
    const Status status = worker.instance->submit(op);
    EXPECT_EQ(status.code, HVD_INVALID) << status.message;
    return status.message;
  };
  EXPECT_NE(refused(host, worker.stream, 0).find("no memory of a CUDA device"), std::string::npos);
  EXPECT_NE(refused(other.data, worker.stream, 0).find("memory of device 1: expected memory of device 0"),
            std::string::npos);
  EXPECT_NE(refused(own.data, worker.stream, 7).find("CUDA device 7"), std::string::npos);
  EXPECT_NE(refused(own.data, reinterpret_cast<void*>(2), 0).find("CU_STREAM_PER_THREAD"), std::string::npos);
  hvddouble::set_capturing(worker.stream, true);
  EXPECT_NE(refused(own.data, worker.stream, 0).find("captured"), std::string::npos);
  hvddouble::set_capturing(worker.stream, false);
}

// One device a worker: what the others do can't depend on where this rank's tensors are.
TEST(NcclStreams, AnotherDeviceIsRefusedWithinAGeneration) {
  NcclCluster cluster(2);
  const auto on = [&](int rank, int device, uint64_t sequence) {
    NcclWorker& worker = cluster[rank];
    DeviceMemory data(16, device);
    const auto stream = hvddouble::make_stream(device);
    Pending pending;
    hvd_backend_op op = worker.op(pending, HVD_COLLECTIVE_BROADCAST, sequence);
    op.dtype = HVD_DTYPE_UINT8;
    op.output = data.data;
    op.count = 16;
    op.device = device;
    op.stream = stream;
    const Status status = run(*worker.instance, op, pending);
    hvddouble::drop_stream(stream);
    return status;
  };
  on_all(2, [&](int rank) { expect_ok(on(rank, rank, 1)); });
  const Status status = on(0, 1, 2);
  EXPECT_EQ(status.code, HVD_INVALID);
  EXPECT_NE(status.message.find("expected one device a worker"), std::string::npos) << status.message;
  for (int rank = 0; rank < 2; ++rank) cluster[rank].instance->abort(1);
  cluster.connect(2);  // in another generation it may be another one
  on_all(2, [&](int rank) { expect_ok(on(rank, 1 - rank, 3)); });
}

// Nothing of CUDA or NCCL is called for a generation that has no operation on device memory.
TEST(NcclStreams, AGenerationWithoutDeviceTensorsCostsNothing) {
  NcclCluster cluster(2);
  for (int rank = 0; rank < 2; ++rank) cluster[rank].instance->disconnect();
  cluster.connect(2);
  EXPECT_EQ(hvddouble::call_count(), 0);
}

}  // namespace
}  // namespace hvd::backend::test
