// Commit, restore and the registry of a state.
#include "state/state.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>

#include "state/allocations.h"
#include "state/message.h"
#include "state/objects.h"

namespace hvd::state {
namespace {

collective::Tensor tensor_of(std::vector<float>& values) {
  return {values.data(), HVD_DTYPE_FLOAT32, {static_cast<int64_t>(values.size())}};
}

Status refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) { return e.status(); }
  return {};
}

struct Registry : ::testing::Test {
  State state{nullptr};
  std::vector<float> values = std::vector<float>(12, 1.F);
  uint64_t step = 7;

  void expect_refused(const std::function<void()>& call, std::initializer_list<const char*> parts) {
    const Status status = refused(call);
    EXPECT_EQ(status.code, HVD_INVALID) << status.message;
    EXPECT_TRUE(says(status.message, parts));
  }
};

TEST_F(Registry, KeysHaveOneTo255BytesAndAreUniqueAmongAllKinds) {
  expect_refused([&] { state.add_value("", &step, 8); }, {"expected 1 to 255"});
  expect_refused([&] { state.add_value(std::string(256, 'k'), &step, 8); }, {"256", "expected 1 to 255"});
  state.add_value(std::string(255, 'k'), &step, 8);
  state.add_tensor("w", tensor_of(values));
  expect_refused([&] { state.add_value("w", &step, 8); }, {"'w'", "tensor float32[12]"});
  TestObject object;
  expect_refused([&] { object.add_to(state, "w"); }, {"'w'"});
  expect_refused([&] { state.remove("nothing"); }, {"'nothing'"});
  state.remove("w");
  object.add_to(state, "w");
}

TEST_F(Registry, ValuesHaveOneTo65536Bytes) {
  std::vector<uint8_t> blob(65537);
  expect_refused([&] { state.add_value("v", blob.data(), 0); }, {"'v'", "0 bytes", "1 to 65536"});
  expect_refused([&] { state.add_value("v", blob.data(), 65537); }, {"65537", "1 to 65536"});
  expect_refused([&] { state.add_value("v", blob.data(), std::numeric_limits<size_t>::max()); },
                 {"1 to 65536"});
  expect_refused([&] { state.add_value("v", nullptr, 8); }, {"'v'", "NULL"});
  state.add_value("v", blob.data(), 65536);
}

TEST_F(Registry, TensorsAreChecked) {
  float* data = values.data();
  expect_refused([&] { state.add_tensor("t", {data, 0, {3}}); }, {"'t'", "dtype is 0"});
  expect_refused([&] { state.add_tensor("t", {data, 99, {3}}); }, {"dtype is 99"});
  expect_refused([&] { state.add_tensor("t", {data, HVD_DTYPE_FLOAT32, {3, -1}}); }, {"[3,-1]"});
  expect_refused(
      [&] {
        state.add_tensor("t", {data, HVD_DTYPE_FLOAT32, std::vector<int64_t>(9, 1)});
      },
      {"9 dimensions"});
  expect_refused([&] { state.add_tensor("t", {data, HVD_DTYPE_FLOAT64, {int64_t{1} << 62}}); }, {"float64"});
  expect_refused(
      [&] {
        state.add_tensor("t", {data, HVD_DTYPE_UINT8, {int64_t{1} << 32, int64_t{1} << 32}});
      },
      {"'t'"});
  expect_refused([&] { state.add_tensor("t", {nullptr, HVD_DTYPE_FLOAT32, {3}}); }, {"NULL"});
  state.add_tensor("empty", {nullptr, HVD_DTYPE_FLOAT32, {int64_t{1} << 62, 0, int64_t{1} << 62}});
  state.add_tensor("scalar", {data, HVD_DTYPE_FLOAT32, {}});
  EXPECT_TRUE(state.save().ok());
  EXPECT_EQ(state.statistics().bytes, 4U);
  EXPECT_TRUE(state.restore().ok());
}

TEST_F(Registry, ObjectsNeedBothCallbacks) {
  TestObject object;
  expect_refused([&] { state.add_object("o", object.save(), {}); }, {"'o'", "load"});
  expect_refused([&] { state.add_object("o", {}, object.load()); }, {"save"});
}

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

TEST(Lent, IsCopiedWhenTheCallReturns) {
  std::mt19937 random(1);
  for (const size_t lends : {size_t{100}, size_t{70000}, size_t{3} << 20}) {
    State state(nullptr);
    TestObject object, written;
    object.lends = lends;
    object.add_to(state, "o");
    State same(nullptr);
    written.add_to(same, "o");
    for (const size_t size : {0, 1, 25, 100000, 5 << 20, 5000000, 9 << 20, 9000000, 2 << 20, 7, 9 << 20}) {
      if (lends == 100 && size > 100000) continue;
      object.bytes.resize(size);
      for (uint8_t& byte : object.bytes) byte = static_cast<uint8_t>(random());
      const std::vector<uint8_t> wanted = object.bytes;
      ASSERT_TRUE((random() % 2 == 0 ? state.save() : state.begin()).ok());
      object.end();
      ASSERT_TRUE(state.settle().ok());
      written.bytes = wanted;
      ASSERT_TRUE(same.save().ok());
      EXPECT_EQ(state.summary().digest, same.summary().digest) << size << " bytes by " << lends;
      EXPECT_EQ(state.statistics().bytes, size);
      object.bytes.assign(3, 0);
      ASSERT_TRUE(state.restore().ok());
      EXPECT_TRUE(object.bytes == wanted) << size << " bytes by " << lends;
    }
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

TEST(Callbacks, MayNotChangeTheStateThatCallsThem) {
  State state(nullptr);
  uint64_t step = 1;
  TestObject object;
  std::vector<hvd_status> seen;
  object.during = [&] {
    seen.push_back(refused([&] { state.add_value("new", &step, 8); }).code);
    seen.push_back(refused([&] { state.remove("o"); }).code);
    seen.push_back(state.save().code);
    seen.push_back(state.refresh().code);
    seen.push_back(state.restore().code);
    EXPECT_LE(state.revision(), 1U);
  };
  object.add_to(state, "o");
  ASSERT_TRUE(state.save().ok());
  ASSERT_TRUE(state.restore().ok());
  EXPECT_EQ(seen, std::vector<hvd_status>(10, HVD_INVALID));
  EXPECT_EQ(state.revision(), 1U);
}

TEST(Callbacks, AreDestroyedOnceWhenTheKeyGoes) {
  int destroyed = 0;
  const hvd_destroy_fn destroy = [](void* count) { ++*static_cast<int*>(count); };
  const hvd_save_fn save = [](void*, hvd_write_fn, void*) { return 0; };
  const hvd_load_fn load = [](void*, const void*, size_t) { return 0; };
  {
    State state(nullptr);
    Callback<hvd_save_fn> callback(save, &destroyed, destroy);
    state.add_object("o", callback, callback.beside(load));
    EXPECT_NE(refused([&] { state.add_object("o", callback, callback.beside(load)); }).code, HVD_OK);
    callback = {};
    EXPECT_EQ(destroyed, 0);
    state.remove("o");
    EXPECT_EQ(destroyed, 1);
    state.add_object("o", Callback<hvd_save_fn>(save, &destroyed, destroy),
                     Callback<hvd_load_fn>(load, nullptr, nullptr));
  }
  EXPECT_EQ(destroyed, 2);
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
