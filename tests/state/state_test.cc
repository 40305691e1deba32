// Commit and restore.
#include "state/state.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>

#include "state/allocations.h"
#include "state/message.h"
#include "state/objects.h"

namespace hvd::state {
namespace {

TEST(Restore, GivesBackTheLastCommitBitForBit) {  // contract 4
  State state(nullptr);
  std::vector<float> values(300000);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t bits = 0x7FC00000U + static_cast<uint32_t>(i);  // NaNs, each with a payload of its own
    std::memcpy(&values[i], &bits, 4);
  }
  double small = -0.0;
  struct Point {
    int32_t a;
    char c;
  } point = {5, 'x'};
  TestObject object;
  object.bytes = {1, 2, 3};
  state.add_tensor("w", tensor_of(values));
  state.add_tensor("small", {&small, HVD_DTYPE_FLOAT64, {1, 1}});
  state.add_value("point", &point, sizeof(point));
  object.add_to(state, "o");
  const std::vector<float> before = values;
  ASSERT_TRUE(state.save().ok());
  std::fill(values.begin(), values.end(), 1.F);
  small = 3;
  point = {6, 'y'};
  object.bytes = {9};
  ASSERT_TRUE(state.restore().ok());
  EXPECT_EQ(std::memcmp(values.data(), before.data(), values.size() * 4), 0);
  EXPECT_TRUE(std::signbit(small) && small == 0);
  EXPECT_EQ(point.a, 5);
  EXPECT_EQ(point.c, 'x');
  EXPECT_EQ(object.bytes, (std::vector<uint8_t>{1, 2, 3}));
  EXPECT_EQ(state.revision(), 1U);
  EXPECT_EQ(state.statistics().restores, 1U);
}

/// So large in all that it is written past the caches; neither ends nor begins at a line.
TEST(Restore, GivesBackLargeTensorsOfAnyPlace) {
  constexpr size_t kLarge = (35 << 20) + 77, kSmall = 1000003;
  std::vector<uint8_t> memory(kLarge + kSmall + 100);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<uint8_t>(i * 2654435761U >> 24U);
  const std::vector<uint8_t> before = memory;
  State state(nullptr);
  state.add_tensor("large", {&memory[3], HVD_DTYPE_UINT8, {kLarge}});
  state.add_tensor("small", {&memory[3 + kLarge], HVD_DTYPE_UINT8, {kSmall}});
  ASSERT_TRUE(state.save().ok());
  std::fill(memory.begin() + 3, memory.begin() + 3 + kLarge + kSmall, uint8_t{1});
  ASSERT_TRUE(state.restore().ok());
  EXPECT_TRUE(memory == before);
}

TEST(Restore, NeedsACommit) {
  State state(nullptr);
  uint64_t step = 1;
  state.add_value("step", &step, sizeof(step));
  EXPECT_FALSE(state.has_commit());
  EXPECT_EQ(state.restore().code, HVD_INVALID);
  ASSERT_TRUE(state.refresh().ok());
  EXPECT_TRUE(state.has_commit());
  step = 2;
  ASSERT_TRUE(state.restore().ok());
  EXPECT_EQ(step, 1U);
}

TEST(Restore, LeavesKeysAddedSinceAlone) {
  State state(nullptr);
  uint64_t a = 1, b = 1;
  TestObject object;
  object.bytes = {1};
  state.add_value("a", &a, sizeof(a));
  ASSERT_TRUE(state.save().ok());
  const Digest before = state.summary().digest;
  state.add_value("b", &b, sizeof(b));
  object.add_to(state, "o");
  EXPECT_NE(state.summary().digest, before) << "nobody can agree about bytes that were never copied";
  a = b = 2;
  object.bytes = {2};
  ASSERT_TRUE(state.restore().ok());
  EXPECT_EQ(a, 1U);
  EXPECT_EQ(b, 2U);
  EXPECT_EQ(object.bytes, std::vector<uint8_t>{2});
  EXPECT_EQ(object.loads, 0);
  state.remove("b");
  state.remove("o");
  EXPECT_EQ(state.summary().digest, before);
}

TEST(Restore, FailingLoadLeavesTensorsAndValues) {
  State state(nullptr);
  uint64_t step = 1;
  TestObject good, bad;
  good.add_to(state, "a");
  bad.add_to(state, "b");
  state.add_value("step", &step, sizeof(step));
  ASSERT_TRUE(state.save().ok());
  step = 2;
  bad.load_code = 17;
  const Status status = state.restore();
  EXPECT_EQ(status.code, HVD_CALLBACK_FAILED);
  EXPECT_EQ(status.vendor_code, 17);
  EXPECT_TRUE(says(status.message, {"'b'", "load", "17"}));
  EXPECT_EQ(step, 2U);
  EXPECT_EQ(state.statistics().restores, 0U);
  bad.load_code = 0;
  EXPECT_TRUE(state.restore().ok());
  EXPECT_EQ(step, 1U);
}

TEST(Save, CountsRevisionsAndRefreshDoesNot) {
  State state(nullptr);
  uint64_t step = 1;
  state.add_value("step", &step, sizeof(step));
  ASSERT_TRUE(state.refresh().ok());
  EXPECT_EQ(state.revision(), 0U);
  const Digest first = state.summary().digest;
  ASSERT_TRUE(state.save().ok());
  EXPECT_EQ(state.revision(), 1U);
  EXPECT_EQ(state.summary().digest, first) << "the same bytes have the same digest whatever their revision";
  step = 2;
  ASSERT_TRUE(state.save().ok());
  EXPECT_EQ(state.revision(), 2U);
  EXPECT_NE(state.summary().digest, first);
  EXPECT_EQ(state.statistics().commits, 2U);
  EXPECT_EQ(state.statistics().bytes, 8U);
  EXPECT_FALSE(state.summary().has_state) << "it was part of no sync";
}

TEST(Save, DigestTellsKeysKindsShapesAndBytesApartButNotTheOrderOfRegistration) {
  std::vector<uint8_t> bytes(8, 3);
  const auto digest_of = [&](const std::function<void(State&)>& fill) {
    State state(nullptr);
    fill(state);
    EXPECT_TRUE(state.save().ok());
    return state.summary().digest;
  };
  const Digest value = digest_of([&](State& s) { s.add_value("k", bytes.data(), 8); });
  const Digest other_key = digest_of([&](State& s) { s.add_value("l", bytes.data(), 8); });
  const Digest tensor = digest_of([&](State& s) { s.add_tensor("k", {bytes.data(), HVD_DTYPE_UINT8, {8}}); });
  const Digest shape = digest_of([&](State& s) {
    s.add_tensor("k", {bytes.data(), HVD_DTYPE_UINT8, {2, 4}});
  });
  const Digest dtype = digest_of([&](State& s) { s.add_tensor("k", {bytes.data(), HVD_DTYPE_INT8, {8}}); });
  const Digest float8 = digest_of([&](State& s) {
    s.add_tensor("k", {bytes.data(), HVD_DTYPE_FLOAT8_E5M2, {8}});
  });
  const Digest complex64 = digest_of([&](State& s) {
    s.add_tensor("k", {bytes.data(), HVD_DTYPE_COMPLEX64, {1}});
  });
  const std::vector<Digest> all = {value, other_key, tensor, shape, dtype, float8, complex64};
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(all[i], all[j]) << i << " " << j;
  }
  EXPECT_EQ(digest_of([&](State& s) {
              s.add_value("a", bytes.data(), 4);
              s.add_value("b", bytes.data(), 8);
            }),
            digest_of([&](State& s) {
              s.add_value("b", bytes.data(), 8);
              s.add_value("a", bytes.data(), 4);
            }));
}

TEST(Save, FailingCallbackLeavesTheLastCommit) {
  for (const int how : {0, 1, 2, 3, 4, 5}) {
    State state(nullptr);
    uint64_t step = 1;
    TestObject first, object;
    first.bytes = {1};
    object.bytes = {1, 2, 3};
    first.add_to(state, "a");
    object.add_to(state, "o");
    state.add_value("step", &step, sizeof(step));
    ASSERT_TRUE(state.save().ok());
    const Summary before = state.summary();
    step = 2;
    first.bytes = {7};
    object.bytes = {4};
    if (how == 0) object.save_code = -3;
    if (how == 1) object.throw_in_save = true;
    if (how == 2) object.throw_int = true;
    if (how == 3) object.write_null = true;
    if (how >= 4) object.lends = 2;
    if (how == 4) object.lend_null = true;
    if (how == 5) object.save_code = 8;
    const Status status = state.save();
    EXPECT_EQ(status.code, HVD_CALLBACK_FAILED) << how;
    EXPECT_TRUE(says(status.message, {"'o'", "save"})) << how;
    EXPECT_EQ(state.summary().digest, before.digest) << how;
    EXPECT_EQ(state.revision(), 1U) << how;
    EXPECT_EQ(state.statistics().commits, 1U) << how;
    ASSERT_TRUE(state.restore().ok());
    EXPECT_EQ(step, 1U) << how;
    EXPECT_EQ(first.bytes, std::vector<uint8_t>{1}) << how;
    EXPECT_EQ(object.bytes, (std::vector<uint8_t>{1, 2, 3})) << how;
  }
}

TEST(Save, ObjectsMayBeEmptyAndChangeTheirSize) {
  State state(nullptr);
  TestObject object;
  object.add_to(state, "o");
  ASSERT_TRUE(state.save().ok());
  object.bytes = {5};
  ASSERT_TRUE(state.restore().ok());
  EXPECT_TRUE(object.bytes.empty());
  object.bytes.assign(100000, 6);
  ASSERT_TRUE(state.save().ok());
  EXPECT_EQ(state.statistics().bytes, 100000U);
  object.bytes.clear();
  ASSERT_TRUE(state.restore().ok());
  EXPECT_EQ(object.bytes, std::vector<uint8_t>(100000, 6));
}

TEST(Save, LaterCommitsAllocateNothing) {
  State state(nullptr);
  std::vector<float> large(3 << 20), small(10);
  uint64_t step = 0;
  state.add_tensor("large", tensor_of(large));
  state.add_tensor("small", tensor_of(small));
  state.add_value("step", &step, sizeof(step));
  ASSERT_TRUE(state.save().ok());
  const size_t before = allocations();
  for (int i = 0; i < 5; ++i) {
    ++step;
    EXPECT_TRUE(state.save().ok());
    EXPECT_TRUE(state.restore().ok());
  }
  EXPECT_EQ(allocations() - before, 0U);
  EXPECT_EQ(step, 5U);
}

TEST(Save, WithoutKeysIsFine) {
  State state(nullptr);
  EXPECT_TRUE(state.save().ok());
  EXPECT_TRUE(state.restore().ok());
  EXPECT_EQ(state.revision(), 1U);
}

TEST(Threads, MayAskForRevisionSummaryAndStatistics) {
  State state(nullptr);
  std::vector<float> values(1000);
  state.add_tensor("w", tensor_of(values));
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    uint64_t last = 0;
    while (!stop) {
      const uint64_t revision = state.revision();
      EXPECT_GE(revision, last);
      EXPECT_GE(state.summary().revision, revision);
      EXPECT_GE(state.statistics().commits, revision);
      last = revision;
    }
  });
  for (int i = 0; i < 200; ++i) {
    values[0] += 1;
    EXPECT_TRUE(state.save().ok());
    EXPECT_TRUE(state.restore().ok());
  }
  stop = true;
  reader.join();
  EXPECT_EQ(state.revision(), 200U);
}

}  // namespace
}  // namespace hvd::state
