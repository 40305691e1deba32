// Copies between host and device memory: pinned memory, streams, tickets.
#include <algorithm>
#include <numeric>

#include "modules/nccl/cluster.h"

namespace hvd::backend::test {
namespace {

class NcclCopies : public testing::Test {
 protected:
  NcclCopies() : cluster(1) {}
  NcclWorker& worker() { return cluster[0]; }
  Instance& instance() { return *cluster[0].instance; }
  uint8_t* pinned(size_t size) {
    void* memory = nullptr;
    const Status status = instance().host_alloc(HVD_MEMORY_CUDA, size, &memory);
    EXPECT_TRUE(status.ok()) << status.message;
    return static_cast<uint8_t*>(memory);
  }
  void* start(bool to_device, const std::vector<hvd_backend_copy>& copies) {
    void* ticket = nullptr;
    const Status status = instance().copy(HVD_MEMORY_CUDA, 0, worker().stream, to_device, copies, &ticket);
    EXPECT_TRUE(status.ok()) << status.message;
    return ticket;
  }
  void finish(void* ticket) {
    const Status status = instance().copy_wait(HVD_MEMORY_CUDA, ticket, kSoon);
    EXPECT_TRUE(status.ok()) << status.message;
  }
  NcclCluster cluster;
};

TEST_F(NcclCopies, ThereAndBack) {
  DeviceMemory a(1000, 0), b(7, 0);
  uint8_t* const host = pinned(2048);
  std::iota(host, host + 1007, uint8_t{1});
  finish(start(true, {{a.data, host, 1000}, {b.data, host + 1000, 7}, {nullptr, nullptr, 0}}));
  EXPECT_EQ(std::memcmp(a.data, host, 1000), 0);
  EXPECT_EQ(std::memcmp(b.data, host + 1000, 7), 0);
  finish(start(false, {{host + 1007, b.data, 7}, {host + 1020, a.data, 1000}}));
  EXPECT_EQ(std::memcmp(host + 1007, b.data, 7), 0);
  EXPECT_EQ(std::memcmp(host + 1020, a.data, 1000), 0);
  instance().host_free(HVD_MEMORY_CUDA, host);
}

// After what the stream was given, before what it is given next: the next step may write what a commit reads.
TEST_F(NcclCopies, StandInTheStreamAndDoNotBlockTheHost) {
  DeviceMemory data(64, 0);
  uint8_t* const host = pinned(64);
  std::promise<void> go;
  auto may_go = go.get_future().share();
  hvddouble::enqueue(worker().stream, [&data, may_go] {
    may_go.wait();
    std::memset(data.data, 1, 64);
  });
  void* const ticket = start(false, {{host, data.data, 64}});
  hvddouble::enqueue(worker().stream, [&data] { std::memset(data.data, 2, 64); });
  EXPECT_EQ(instance().copy_wait(HVD_MEMORY_CUDA, ticket, Duration(0)).code, HVD_TIMEOUT);
  EXPECT_EQ(instance().copy_wait(HVD_MEMORY_CUDA, ticket, milliseconds(5)).code, HVD_TIMEOUT);
  go.set_value();
  finish(ticket);
  EXPECT_EQ(host[63], 1);
  worker().synchronize();
  EXPECT_EQ(data.data[63], 2);
}

// The program has promised to write nothing: its stream goes on.
TEST_F(NcclCopies, AsideTheStreamDoesNotWait) {
  DeviceMemory data(64, 0);
  uint8_t* const host = pinned(64);
  hvddouble::enqueue(worker().stream, [&data] { std::memset(data.data, 1, 64); });
  const std::vector<hvd_backend_copy> copies = {{host, data.data, 64}};
  const auto waits = [&](bool aside) {
    hvddouble::reset();
    void* ticket = nullptr;
    const Status status = aside
                              ? instance().copy_aside(HVD_MEMORY_CUDA, 0, worker().stream, copies, &ticket)
                              : instance().copy(HVD_MEMORY_CUDA, 0, worker().stream, false, copies, &ticket);
    EXPECT_TRUE(status.ok()) << status.message;
    finish(ticket);
    EXPECT_EQ(host[63], 1);
    const std::vector<std::string> calls = hvddouble::calls();
    return std::count(calls.begin(), calls.end(), "cuStreamWaitEvent");
  };
  EXPECT_EQ(waits(false), 2) << "the copies for the stream, and the stream for them";
  EXPECT_EQ(waits(true), 1) << "the copies for the stream";
}

TEST_F(NcclCopies, WorkAfterAnAbort) {
  instance().abort(1);
  DeviceMemory data(64, 0);
  uint8_t* const host = pinned(64);
  std::memset(host, 9, 64);
  finish(start(true, {{data.data, host, 64}}));
  EXPECT_EQ(data.data[0], 9);
}

TEST_F(NcclCopies, WhatIsNotOfTheDeviceIsRefused) {
  DeviceMemory data(64, 0);
  uint8_t host[64];
  void* ticket = nullptr;
  const std::vector<hvd_backend_copy> wrong = {{data.data, host, 64}};
  EXPECT_EQ(instance().copy(HVD_MEMORY_CUDA, 0, worker().stream, false, wrong, &ticket).code, HVD_INVALID);
  const std::vector<hvd_backend_copy> null = {{nullptr, data.data, 64}};
  EXPECT_EQ(instance().copy(HVD_MEMORY_CUDA, 0, worker().stream, false, null, &ticket).code, HVD_INVALID);
  EXPECT_EQ(instance().copy_wait(HVD_MEMORY_CUDA, host, kSoon).code, HVD_INVALID);
  EXPECT_EQ(ticket, nullptr);
}

// What is left is freed by close: the cluster looks for it.
TEST_F(NcclCopies, CloseFreesWhatIsLeft) {
  DeviceMemory data(64, 0);
  pinned(10);
  uint8_t* const host = pinned(64);
  start(true, {{data.data, host, 64}});
  worker().synchronize();  // `data` goes before the cluster does
}

// No context is made on a device that nobody uses.
TEST_F(NcclCopies, PinnedMemoryBelongsToTheDeviceInUse) {
  hvddouble::set_device_count(4);
  hvddouble::set_current_context(hvddouble::context_of(3));
  pinned(10);
  hvddouble::set_current_context(nullptr);
  EXPECT_EQ(hvddouble::alive(), "1 contexts, 2 streams, 1 blocks of pinned memory");
  EXPECT_EQ(hvddouble::retained(3), 1);
}

}  // namespace
}  // namespace hvd::backend::test
