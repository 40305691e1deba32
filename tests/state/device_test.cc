// States with tensors in device memory, on a double of a device: nothing here says anything about CUDA.
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <optional>
#include <thread>

#include "state/device_copies.h"
#include "state/device_double.h"
#include "state/fabric.h"
#include "state/message.h"
#include "state/objects.h"
#include "state/state.h"

namespace hvd::state {
namespace {

constexpr size_t kCount = 5000;

std::vector<float> ramp(float from) {
  std::vector<float> values(kCount);
  std::iota(values.begin(), values.end(), from);
  return values;
}

/// One rank: a device with a tensor, a host tensor, a value and an object, all of which show which step they
/// are of.
struct Rank {
  explicit Rank(float step, Duration timeout = std::chrono::seconds(60))
      : copies(std::make_shared<DeviceCopies>(timeout)) {
    copies->open(device);
    weights = device.memory.put(ramp(step));
    bias = device.memory.put(std::vector<float>{step});
    set(step);
    state.emplace(nullptr, nullptr, copies);
    state->add_tensor("weights", on_device(weights, kCount));
    state->add_tensor("bias", on_device(bias, 1));
    state->add_tensor("empty", on_device(nullptr, 0));
    state->add_tensor("host", {host.data(), HVD_DTYPE_FLOAT32, {static_cast<int64_t>(host.size())}});
    state->add_value("step", &step_value, sizeof(step_value));
    object.add_to(*state, "object");
  }
  ~Rank() {
    device.hold(false);
    state.reset();
    EXPECT_EQ(device.pinned(), 0U) << "host memory of the device was not given back";
    copies->close();
  }

  collective::Tensor on_device(void* data, size_t count) {
    return {data, HVD_DTYPE_FLOAT32, {static_cast<int64_t>(count)}, HVD_MEMORY_CUDA, 3, device.stream()};
  }
  /// All live values become those of a step: the device's by a kernel on its stream.
  void set(float step) {
    device.launch([this, step] {
      std::memcpy(device.memory.view(weights), ramp(step).data(), kCount * sizeof(float));
      *device.memory.view<float>(bias) = step;
    });
    host.assign(100, step);
    step_value = step;
    object.bytes.assign(10, static_cast<uint8_t>(step));
  }
  void expect(float step) {
    device.synchronize();
    EXPECT_EQ(device.memory.get<float>(weights, kCount), ramp(step));
    EXPECT_EQ(*device.memory.view<float>(bias), step);
    EXPECT_EQ(host, std::vector<float>(100, step));
    EXPECT_EQ(step_value, step);
    EXPECT_EQ(object.bytes, std::vector<uint8_t>(10, static_cast<uint8_t>(step)));
  }

  DeviceDouble device;
  std::shared_ptr<DeviceCopies> copies;
  void* weights = nullptr;
  void* bias = nullptr;
  std::vector<float> host;
  float step_value = 0;
  TestObject object;
  std::optional<State> state;
};

TEST(DeviceState, NeedsABackendThatCopiesItsMemory) {
  DeviceDouble device;
  const collective::Tensor tensor{
      device.memory.allocate(4), HVD_DTYPE_FLOAT32, {1}, HVD_MEMORY_CUDA, 3, device.stream()};
  State none(nullptr);
  try {
    none.add_tensor("w", tensor);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code, HVD_UNSUPPORTED);
    EXPECT_TRUE(says(error.what(), {"'w'", "device memory (CUDA)"}));
  }
  Fabric fabric(1);
  const auto copies = std::make_shared<DeviceCopies>(seconds(1));
  copies->open(fabric.instance(0));
  State host_only(nullptr, nullptr, copies);
  try {
    host_only.add_tensor("w", tensor);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code, HVD_UNSUPPORTED);
    EXPECT_TRUE(says(error.what(), {"'w'", "memory", "device memory (CUDA)"}));
  }
}

TEST(DeviceState, CommitTakesWhatItsStreamHadBeenGivenAndWaitsForNothing) {
  Rank rank(1);
  rank.device.hold(true);
  rank.set(2);  // not run yet
  ASSERT_TRUE(rank.state->save().ok());
  EXPECT_EQ(rank.state->revision(), 1U);
  EXPECT_EQ(rank.state->summary().revision, 0U) << "it has not arrived";
  EXPECT_EQ(rank.state->statistics().commits, 0U);
  rank.set(3);
  rank.device.hold(false);
  ASSERT_TRUE(rank.state->settle().ok());
  EXPECT_EQ(rank.state->summary().revision, 1U);
  EXPECT_EQ(rank.state->statistics().commits, 1U);
  EXPECT_EQ(rank.state->statistics().bytes, (kCount + 1 + 100 + 1) * sizeof(float) + 10);
  rank.expect(3);
  ASSERT_TRUE(rank.state->restore().ok());
  rank.expect(2);
}

TEST(DeviceState, NoStreamWaitsForAHiddenCommit) {
  Rank rank(1);
  ASSERT_TRUE(rank.state->save().ok());
  ASSERT_TRUE(rank.state->settle().ok());
  EXPECT_EQ(rank.device.asides(), 0U) << "after save() the program writes at once";
  rank.set(2);
  ASSERT_TRUE(rank.state->begin().ok());
  EXPECT_EQ(rank.device.asides(), 1U);
  ASSERT_TRUE(rank.state->end().ok());
  rank.set(3);
  ASSERT_TRUE(rank.state->restore().ok());
  rank.expect(2);
}

TEST(DeviceState, DigestsOfLargeTensorsAreThoseOnTheHost) {  // taken by several threads
  constexpr size_t kLarge = (40 << 18) + 7;
  DeviceDouble device;
  const auto copies = std::make_shared<DeviceCopies>(std::chrono::seconds(30));
  copies->open(device);
  std::vector<float> values(kLarge);
  for (size_t i = 0; i < kLarge; ++i) values[i] = static_cast<float>(i);
  {
    State there(nullptr, nullptr, copies), here(nullptr);
    const std::vector<int64_t> shape = {static_cast<int64_t>(kLarge)};
    there.add_tensor(
        "x", {device.memory.put(values), HVD_DTYPE_FLOAT32, shape, HVD_MEMORY_CUDA, 3, device.stream()});
    here.add_tensor("x", {values.data(), HVD_DTYPE_FLOAT32, shape});
    ASSERT_TRUE(there.save().ok());
    ASSERT_TRUE(there.settle().ok());
    ASSERT_TRUE(here.save().ok());
    EXPECT_EQ(there.summary().digest, here.summary().digest);
  }
  copies->close();
}

TEST(DeviceState, DigestsAreThoseOfTheSameBytesOnTheHost) {
  Rank rank(4);
  ASSERT_TRUE(rank.state->save().ok());
  ASSERT_TRUE(rank.state->settle().ok());
  std::vector<float> weights = ramp(4), bias = {4}, host(100, 4.F);
  State same(nullptr);
  same.add_tensor("weights", {weights.data(), HVD_DTYPE_FLOAT32, {kCount}});
  same.add_tensor("bias", {bias.data(), HVD_DTYPE_FLOAT32, {1}});
  same.add_tensor("empty", {nullptr, HVD_DTYPE_FLOAT32, {0}});
  same.add_tensor("host", {host.data(), HVD_DTYPE_FLOAT32, {100}});
  same.add_value("step", &rank.step_value, sizeof(float));
  rank.object.add_to(same, "object");
  ASSERT_TRUE(same.save().ok());
  EXPECT_EQ(same.summary().digest, rank.state->summary().digest);
}

TEST(DeviceState, TheNextCommitWaitsForTheOneUnderWay) {
  Rank rank(1);
  ASSERT_TRUE(rank.state->save().ok());
  ASSERT_TRUE(rank.state->settle().ok());
  rank.device.hold(true);
  rank.set(2);
  ASSERT_TRUE(rank.state->save().ok());
  rank.set(3);
  std::atomic<bool> done = false;
  std::thread next([&] {
    EXPECT_TRUE(rank.state->save().ok());
    done = true;
  });
  EXPECT_EQ(rank.device.calls(), 2U);
  EXPECT_FALSE(done) << "it would take the buffers of the last commit, or of the one under way";
  rank.device.hold(false);
  next.join();
  ASSERT_TRUE(rank.state->settle().ok());
  EXPECT_EQ(rank.state->summary().revision, 3U);
  rank.set(4);
  ASSERT_TRUE(rank.state->restore().ok());
  rank.expect(3);
}

TEST(DeviceState, ACopyThatFailsLeavesAllOfTheLastCommit) {
  for (const bool told_by_restore : {false, true}) {
    Rank rank(1);
    ASSERT_TRUE(rank.state->save().ok());
    ASSERT_TRUE(rank.state->settle().ok());
    const Summary before = rank.state->summary();
    rank.set(2);
    rank.device.fail_later(0);
    ASSERT_TRUE(rank.state->save().ok()) << "it is not known yet";
    rank.set(3);
    if (!told_by_restore) {
      const Status next = rank.state->save();
      EXPECT_EQ(next.code, HVD_INTERNAL);
      EXPECT_TRUE(says(next.message, {"revision 2", "the double lost the copy", "revision 1 is still"}));
      EXPECT_TRUE(rank.state->settle().ok()) << "it is told once";
    }
    const Status restored = rank.state->restore();
    EXPECT_EQ(restored.code, told_by_restore ? HVD_INTERNAL : HVD_OK) << restored.message;
    if (told_by_restore) { EXPECT_TRUE(says(restored.message, {"revision 2", "revision 1 is still"})); }
    rank.expect(1);
    EXPECT_EQ(rank.state->revision(), 1U);
    EXPECT_EQ(rank.state->summary().digest, before.digest);
    rank.set(5);
    ASSERT_TRUE(rank.state->save().ok());
    ASSERT_TRUE(rank.state->settle().ok());
    EXPECT_EQ(rank.state->revision(), 2U);
    rank.set(6);
    ASSERT_TRUE(rank.state->restore().ok());
    rank.expect(5);
  }
}

TEST(DeviceState, TheFirstCommitThatFailsIsNone) {
  Rank rank(1);
  rank.device.fail_later(0);
  ASSERT_TRUE(rank.state->save().ok());
  const Status status = rank.state->restore();
  EXPECT_EQ(status.code, HVD_INTERNAL);
  EXPECT_TRUE(says(status.message, {"revision 1", "there is no commit before it"}));
  EXPECT_FALSE(rank.state->has_commit());
  EXPECT_EQ(rank.state->restore().code, HVD_INVALID);
}

TEST(DeviceState, AWaitForACopyThatRunsOutOfMemoryFailsTheCommit) {
  Rank rank(1);
  rank.device.starve_wait(0);
  ASSERT_TRUE(rank.state->save().ok());
  const Status status = rank.state->settle();
  EXPECT_EQ(status.code, HVD_INTERNAL);
  EXPECT_TRUE(says(status.message, {"revision 1", "out of memory"}));
  ASSERT_TRUE(rank.state->save().ok());
  EXPECT_TRUE(rank.state->settle().ok());
}

TEST(DeviceState, WhatCantBeStartedChangesNothing) {
  Rank rank(1);
  rank.device.fail_alloc(1);
  const Status memory = rank.state->save();
  EXPECT_EQ(memory.code, HVD_INTERNAL);
  EXPECT_TRUE(says(memory.message, {"'weights'", "no pinned memory"}));
  EXPECT_FALSE(rank.state->has_commit());
  ASSERT_TRUE(rank.state->save().ok());
  ASSERT_TRUE(rank.state->settle().ok());
  rank.set(2);
  rank.device.fail_start(0);
  const Status start = rank.state->save();
  EXPECT_EQ(start.code, HVD_INTERNAL);
  EXPECT_TRUE(says(start.message, {"can't start"}));
  rank.object.save_code = 5;
  EXPECT_EQ(rank.state->save().code, HVD_CALLBACK_FAILED);
  EXPECT_EQ(rank.state->revision(), 1U);
  ASSERT_TRUE(rank.state->restore().ok());
  rank.expect(1);
}

TEST(DeviceState, ALostGenerationTakesTheCommitUnderWayWithIt) {
  Rank rank(1);
  ASSERT_TRUE(rank.state->save().ok());
  ASSERT_TRUE(rank.state->settle().ok());
  rank.device.hold(true);
  rank.set(2);
  ASSERT_TRUE(rank.state->save().ok());
  EXPECT_EQ(rank.state->revision(), 2U);
  rank.copies->lost();  // a collective before the copy on the stream is about to be cut off
  rank.device.hold(false);
  const Status status = rank.state->settle();
  EXPECT_EQ(status.code, HVD_PEER_LOST);
  EXPECT_TRUE(says(status.message, {"revision 2", "lost", "revision 1 is still"}));
  EXPECT_EQ(rank.state->revision(), 1U);
  rank.set(3);
  const size_t calls = rank.device.calls();
  EXPECT_EQ(rank.state->save().code, HVD_PEER_LOST);
  EXPECT_EQ(rank.device.calls(), calls);
  ASSERT_TRUE(rank.state->restore().ok());
  rank.expect(1);
  rank.copies->renewed();
  rank.set(4);
  ASSERT_TRUE(rank.state->save().ok());
  ASSERT_TRUE(rank.state->settle().ok());
  EXPECT_EQ(rank.state->revision(), 2U);
}

TEST(DeviceState, RestoreThatCantWriteSaysSo) {
  for (const bool at_once : {true, false}) {
    Rank rank(1);
    ASSERT_TRUE(rank.state->save().ok());
    ASSERT_TRUE(rank.state->settle().ok());
    rank.set(2);
    if (at_once) {
      rank.device.fail_start(0);
    } else {
      rank.device.fail_later(0);
    }
    const Status status = rank.state->restore();
    EXPECT_EQ(status.code, HVD_INTERNAL);
    EXPECT_TRUE(says(status.message, {"can't be written", "the double"}));
    EXPECT_EQ(rank.step_value, 2.F);
    EXPECT_EQ(rank.state->statistics().restores, 0U);
    ASSERT_TRUE(rank.state->restore().ok());
    rank.expect(1);
  }
}

TEST(DeviceState, AStreamThatIsStuckIsATimeoutAndNothingIsTouchedMeanwhile) {
  Rank rank(1, milliseconds(1));
  rank.device.hold(true);
  ASSERT_TRUE(rank.state->save().ok());
  EXPECT_EQ(rank.state->restore().code, HVD_TIMEOUT);
  EXPECT_EQ(rank.state->save().code, HVD_TIMEOUT);
  EXPECT_EQ(rank.state->settle().code, HVD_TIMEOUT);
  EXPECT_THROW(rank.state->remove("weights"), Error);
  EXPECT_EQ(rank.state->revision(), 1U) << "it is still under way";
  rank.device.hold(false);
  rank.device.synchronize();
}

TEST(DeviceState, WhatIsRemovedIsLeftAlone) {
  Rank rank(1);
  rank.device.hold(true);
  ASSERT_TRUE(rank.state->save().ok());
  std::thread release([&] { rank.device.hold(false); });
  rank.state->remove("weights");
  release.join();
  rank.state->remove("bias");
  rank.state->remove("empty");
  EXPECT_EQ(rank.device.pinned(), 0U);
  rank.set(2);
  ASSERT_TRUE(rank.state->save().ok()) << "all that is left is on the host";
  EXPECT_EQ(rank.state->summary().revision, 2U);
  rank.step_value = 7;
  ASSERT_TRUE(rank.state->restore().ok());
  EXPECT_EQ(rank.step_value, 2.F);
}

TEST(DeviceState, AClosedContextIsTold) {
  Rank rank(1);
  ASSERT_TRUE(rank.state->save().ok());
  ASSERT_TRUE(rank.state->settle().ok());
  rank.set(2);
  rank.copies->stop();
  EXPECT_EQ(rank.state->save().code, HVD_CLOSED);
  EXPECT_EQ(rank.state->restore().code, HVD_CLOSED);
  EXPECT_EQ(rank.step_value, 2.F);
  rank.state.reset();  // frees nothing of an instance that may be gone
  EXPECT_EQ(rank.device.pinned(), 2U);
  rank.device.forget_pinned();
}

TEST(DeviceState, AStateThatGoesWaitsForItsCopies) {
  Rank rank(1);
  rank.device.hold(true);
  ASSERT_TRUE(rank.state->save().ok());
  std::thread release([&] { rank.device.hold(false); });
  rank.state.reset();
  release.join();
  EXPECT_EQ(rank.device.pinned(), 0U);
}

// ---- Sync -------------------------------------------------------------------------------------------

std::vector<Status> sync_all(Fabric& fabric, std::vector<Rank*> ranks) {
  std::vector<Status> statuses(ranks.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks.size(); ++r) {
    threads.emplace_back([&, r] {
      const auto rank = static_cast<int32_t>(r);
      statuses[r] = ranks[r]->state->sync(fabric.engine(rank), rank, fabric.size(), {}, seconds(60), nullptr);
    });
  }
  for (auto& thread : threads) thread.join();
  return statuses;
}

TEST(DeviceSync, TheNewestCommitReachesEveryDevice) {  // contract 5
  Rank a(1), b(7);
  Fabric fabric(2);
  for (const Status& status : sync_all(fabric, {&a, &b})) ASSERT_TRUE(status.ok()) << status.message;
  a.expect(1);
  b.expect(1);
  b.set(8);
  ASSERT_TRUE(b.state->save().ok());  // under way: the sync waits for it
  for (const Status& status : sync_all(fabric, {&a, &b})) ASSERT_TRUE(status.ok()) << status.message;
  a.expect(8);
  b.expect(8);
  EXPECT_EQ(a.state->summary().digest, b.state->summary().digest);
  EXPECT_EQ(a.state->revision(), 1U);
  a.set(9);
  ASSERT_TRUE(a.state->restore().ok());
  a.expect(8);
}

TEST(DeviceSync, ADeviceThatCantTakeItKeepsWhatItHad) {
  Rank a(1), b(7);
  Fabric fabric(2);
  ASSERT_TRUE(b.state->refresh().ok());
  ASSERT_TRUE(b.state->settle().ok());
  b.device.fail_later(0);
  const std::vector<Status> statuses = sync_all(fabric, {&a, &b});
  EXPECT_TRUE(statuses[0].ok()) << statuses[0].message;
  EXPECT_EQ(statuses[1].code, HVD_INTERNAL);
  EXPECT_TRUE(says(statuses[1].message, {"can't be written"}));
  b.expect(7);
  b.set(9);
  ASSERT_TRUE(b.state->restore().ok());
  b.expect(7);
}

TEST(DeviceSync, ACopyThatFailsIsToldToAll) {
  Rank a(1), b(7);
  Fabric fabric(2);
  b.device.fail_later(0);
  const std::vector<Status> statuses = sync_all(fabric, {&a, &b});
  EXPECT_EQ(statuses[0].code, HVD_PEER_LOST);
  EXPECT_TRUE(says(statuses[0].message, {"rank 1 could not save"}));
  EXPECT_EQ(statuses[1].code, HVD_INTERNAL);
  EXPECT_TRUE(says(statuses[1].message, {"the double lost the copy"}));
}

}  // namespace
}  // namespace hvd::state
