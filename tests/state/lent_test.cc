// Memory that save callbacks lend.
#include <gtest/gtest.h>

#include <random>
#include <utility>

#include "state/message.h"
#include "state/objects.h"
#include "state/state.h"

namespace hvd::state {
namespace {

using enum hvd::state::Lent;

/// A history of commits with objects of many sizes: each is what one that is written would be.
void expect_same(std::mt19937& random, size_t lends, hvd::state::Lent how) {
  State state(nullptr);
  TestObject object, written;
  object.lends = lends;
  object.how = how;
  object.add_to(state, "o");
  State same(nullptr);
  written.add_to(same, "o");
  for (const size_t size : {0, 1, 25, 100000, 5 << 20, 5000000, 9 << 20, 9000000, 2 << 20, 7, 9 << 20}) {
    if (lends == 100 && size > 100000) continue;
    object.bytes.resize(size);
    for (uint8_t& byte : object.bytes) byte = static_cast<uint8_t>(random());
    const std::vector<uint8_t> wanted = object.bytes;
    ASSERT_TRUE((random() % 2 == 0 ? state.save() : state.begin()).ok());
    if (how == kForCall) object.end();
    ASSERT_TRUE(state.settle().ok());
    object.end();
    written.bytes = wanted;
    ASSERT_TRUE(same.save().ok());
    EXPECT_EQ(state.summary().digest, same.summary().digest) << size << " bytes by " << lends;
    EXPECT_EQ(state.statistics().bytes, size);
    object.bytes.assign(3, 0);
    ASSERT_TRUE(state.restore().ok());
    EXPECT_TRUE(object.bytes == wanted) << size << " bytes by " << lends;
  }
}

TEST(Lent, IsCopiedWhenTheCallReturnsOrUntilTheEnd) {
  std::mt19937 random(1);
  for (const size_t lends : {size_t{100}, size_t{70000}, size_t{3} << 20}) {
    for (const hvd::state::Lent how : {kForCall, kUntilEnd}) expect_same(random, lends, how);
  }
}

TEST(Lent, UntilTheEndIsCheckedAtTheEnd) {
  Settings settings;
  settings.check_commits = true;
  for (const hvd::state::Lent how : {kUntilEnd, kForCall}) {
    State state(nullptr, nullptr, nullptr, settings);
    TestObject object;
    object.lends = 1 << 20;
    object.how = how;
    object.bytes.assign(3 << 20, 1);
    object.add_to(state, "o");
    ASSERT_TRUE(state.begin().ok());
    ASSERT_TRUE(state.end().ok());
    ASSERT_TRUE(state.begin().ok());
    ASSERT_TRUE(state.rest().ok());
    object.lent[1][5] = 2;
    const Status status = state.end();
    EXPECT_EQ(status.code, how == kUntilEnd ? HVD_INVALID : HVD_OK);
    if (how == kUntilEnd) {
      EXPECT_TRUE(says(status.message, {"'o'", "object was written between the begin of commit 2"}));
    }
  }
}

// Most of it is not copied yet when it is written.
TEST(Lent, WhatIsWrittenBeforeItIsCopiedIsFoundToo) {
  Settings settings;
  settings.check_commits = true;
  constexpr size_t kSize = 64 << 20;
  std::vector<uint8_t> tensor(kSize, 1);
  State state(nullptr, nullptr, nullptr, settings);
  TestObject object;
  object.lends = kSize;
  object.how = kUntilEnd;
  object.bytes.assign(kSize, 1);
  object.add_to(state, "o");
  state.add_tensor("t", {tensor.data(), HVD_DTYPE_UINT8, {int64_t{kSize}}});
  for (int commit = 0; commit < 3; ++commit) {
    ASSERT_TRUE(state.begin().ok());
    if (commit == 1) object.lent[0][kSize - 100] ^= 1;
    if (commit == 2) tensor[kSize - 1] ^= 1;
    const Status status = state.end();
    ASSERT_EQ(status.code, commit == 0 ? HVD_OK : HVD_INVALID) << status.message;
    if (commit == 0) continue;
    EXPECT_TRUE(says(status.message, {commit == 1 ? "'o'" : "'t'"})) << status.message;
  }
}

TEST(Hidden, MemoryThatIsTheProgramsAgainMayBeWritten) {
  Settings settings;
  settings.check_commits = true;
  std::vector<uint8_t> before(100, 1), after(100, 2);
  State state(nullptr, nullptr, nullptr, settings);
  state.add_tensor("t", {before.data(), HVD_DTYPE_UINT8, {100}});
  ASSERT_TRUE(state.begin().ok());
  state.set_data("t", after.data());
  before[0] = after[0] = 9;
  EXPECT_TRUE(state.end().ok());
}

TEST(Lent, BothWaysInOneObjectAreCopiedAtOnce) {
  static std::vector<uint8_t> first, second;
  const auto save = [](void*, hvd_write_fn, void* sink) {
    const void *one = first.data(), *two = second.data();
    const size_t size = first.size();
    return lend(sink, &one, &size, 1, kUntilEnd) + lend(sink, &two, &size, 1);
  };
  static bool is_whole;
  const auto load = [](void*, const void* data, size_t size) {
    const auto* const bytes = static_cast<const uint8_t*>(data);
    is_whole = size == 6'000'000 && std::count(bytes, bytes + size, 1) == 6'000'000;
    return 0;
  };
  State state(nullptr);
  state.add_object("o", Callback<hvd_save_fn>(save, nullptr, nullptr),
                   Callback<hvd_load_fn>(load, nullptr, nullptr));
  for (int i = 0; i < 4; ++i) {
    first.assign(3'000'000, 1);
    second.assign(3'000'000, 1);
    ASSERT_TRUE(state.begin().ok());
    first.assign(3'000'000, 9);
    second.assign(3'000'000, 9);
    ASSERT_TRUE(state.end().ok());
    is_whole = false;
    ASSERT_TRUE(state.restore().ok());
    EXPECT_TRUE(is_whole);
  }
}

TEST(Lent, IsCopiedByAllCores) {
  State state(nullptr);
  TestObject object;
  object.lends = 950001;
  object.bytes.resize((48 << 20) + 77);
  for (size_t i = 0; i < object.bytes.size(); i += 3) object.bytes[i] = static_cast<uint8_t>(i * 31);
  object.add_to(state, "o");
  const std::vector<uint8_t> wanted = object.bytes;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(state.save().ok());
  object.end();
  object.bytes.clear();
  ASSERT_TRUE(state.restore().ok());
  EXPECT_TRUE(object.bytes == wanted);
}

TEST(Lent, PiecesThatDidNotChangeAreNotWritten) {
  State state(nullptr);
  TestObject object;
  object.lends = 300000;
  object.bytes.assign(5 << 20, 1);
  object.add_to(state, "o");
  uint64_t before = 0;
  const auto written = [&] {
    EXPECT_TRUE(state.save().ok());
    const uint64_t now = state.statistics().written_bytes;
    return now - std::exchange(before, now);
  };
  EXPECT_EQ(written(), 5U << 20);
  EXPECT_EQ(written(), 5U << 20) << "it is not known yet that they stay the same";
  EXPECT_EQ(written(), 0U);
  object.bytes[(1 << 20) + 5] = 2;
  EXPECT_EQ(written(), 1U << 20);
  const std::vector<uint8_t> wanted = object.bytes;
  object.bytes.clear();
  ASSERT_TRUE(state.restore().ok());
  EXPECT_TRUE(object.bytes == wanted);
  // The two ways may take turns, and sizes change by a little.
  for (const size_t size : {5U << 20, (5U << 20) - 1, (5U << 20) + 1, 5U << 20}) {
    for (const size_t lends : {0, 0, 300000, 300000, 300000, 0}) {
      object.lends = lends;
      object.bytes.resize(size, 9);
      object.bytes[size / 2] += 1;
      const std::vector<uint8_t> now = object.bytes;
      ASSERT_TRUE(state.save().ok());
      object.bytes.clear();
      ASSERT_TRUE(state.restore().ok());
      ASSERT_TRUE(object.bytes == now) << size << " by " << lends;
    }
  }
}

// Its first pieces are known not to have changed, but the larger memory holds nothing of them yet.
TEST(Lent, AnObjectThatGrowsIsCopiedWhole) {
  State state(nullptr);
  TestObject object;
  object.lends = 300000;
  object.bytes.assign(5 << 20, 1);
  object.add_to(state, "o");
  for (const size_t size : {5'000'000, 5 << 20, 11 << 20}) {  // by the same number of pieces, and by more
    object.bytes.resize(size, 3);
    const std::vector<uint8_t> wanted = object.bytes;
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(state.save().ok());
      object.bytes.clear();
      ASSERT_TRUE(state.restore().ok());
      ASSERT_TRUE(object.bytes == wanted) << size << " bytes, commit " << i;
    }
  }
}

TEST(Lent, NothingWithoutASink) {
  const void* data = "x";
  const size_t size = 1;
  EXPECT_NE(lend(nullptr, &data, &size, 1), 0);
  State state(nullptr);
  const auto refuse = [](void*, hvd_write_fn, void* sink) {
    EXPECT_NE(lend(sink, nullptr, nullptr, 1), 0);
    return 0;
  };
  const auto load = [](void*, const void*, size_t) { return 0; };
  state.add_object("o", Callback<hvd_save_fn>(refuse, nullptr, nullptr),
                   Callback<hvd_load_fn>(load, nullptr, nullptr));
  const Status status = state.save();
  EXPECT_EQ(status.code, HVD_CALLBACK_FAILED);
  EXPECT_TRUE(says(status.message, {"'o'", "NULL"}));
}

}  // namespace
}  // namespace hvd::state
