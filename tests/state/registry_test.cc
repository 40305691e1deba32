// The registry of a state, and what its callbacks may do with it.
#include <gtest/gtest.h>

#include <limits>

#include "state/message.h"
#include "state/objects.h"
#include "state/state.h"

namespace hvd::state {
namespace {

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

TEST_F(Registry, MemoryThatIsElsewhereIsWhatCommitsAndRestoresTakeFromThenOn) {
  state.add_tensor("w", tensor_of(values));
  state.add_value("step", &step, sizeof(step));
  ASSERT_TRUE(state.save().ok());
  const Digest digest = state.summary().digest;
  std::vector<float> others(values.size(), 5.F);
  uint64_t other = 8;
  state.set_data("w", others.data());
  state.set_data("step", &other);
  EXPECT_EQ(state.summary().digest, digest) << "what was committed stays";
  values.assign(values.size(), 9.F);
  step = 99;
  ASSERT_TRUE(state.restore().ok());
  EXPECT_EQ(others, std::vector<float>(values.size(), 1.F));
  EXPECT_EQ(other, 7U);
  others[3] = 2.F;
  ASSERT_TRUE(state.save().ok());
  others[3] = 0.F;
  ASSERT_TRUE(state.restore().ok());
  EXPECT_EQ(others[3], 2.F);
  EXPECT_EQ(values, std::vector<float>(values.size(), 9.F)) << "the old memory is the program's alone";
  EXPECT_EQ(step, 99U);
}

TEST_F(Registry, MemoryThatIsElsewhereIsChecked) {
  TestObject object;
  object.add_to(state, "o");
  state.add_tensor("w", tensor_of(values));
  state.add_tensor("empty", {&step, HVD_DTYPE_FLOAT32, {0}});
  expect_refused([&] { state.set_data("nothing", values.data()); },
                 {"'nothing'", "expected one that was added"});
  expect_refused([&] { state.set_data("w", nullptr); }, {"'w'", "NULL", "48 bytes", "tensor float32[12]"});
  expect_refused([&] { state.set_data("o", values.data()); }, {"'o'", "object", "expected a tensor"});
  state.set_data("empty", nullptr);
  EXPECT_TRUE(state.save().ok());
}

TEST_F(Registry, ObjectsNeedBothCallbacks) {
  TestObject object;
  expect_refused([&] { state.add_object("o", object.save(), {}); }, {"'o'", "load"});
  expect_refused([&] { state.add_object("o", {}, object.load()); }, {"save"});
}

TEST(Callbacks, MayNotChangeTheStateThatCallsThem) {
  State state(nullptr);
  uint64_t step = 1;
  TestObject object;
  std::vector<hvd_status> seen;
  object.during = [&] {
    seen.push_back(refused([&] { state.add_value("new", &step, 8); }).code);
    seen.push_back(refused([&] { state.remove("o"); }).code);
    seen.push_back(refused([&] { state.set_data("o", &step); }).code);
    seen.push_back(state.save().code);
    seen.push_back(state.refresh().code);
    seen.push_back(state.restore().code);
    EXPECT_LE(state.revision(), 1U);
  };
  object.add_to(state, "o");
  ASSERT_TRUE(state.save().ok());
  ASSERT_TRUE(state.restore().ok());
  EXPECT_EQ(seen, std::vector<hvd_status>(12, HVD_INVALID));
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

}  // namespace
}  // namespace hvd::state
