// Callbacks: called, destroyed exactly once.
#include "base/callback.h"

#include <gtest/gtest.h>

#include <vector>

namespace hvd {
namespace {

using Add = int32_t (*)(void* userdata, int32_t number);
int32_t add(void* userdata, int32_t number) { return *static_cast<int32_t*>(userdata) += number; }
void count(void* destroyed) { ++*static_cast<int*>(destroyed); }

TEST(Callback, PassesUserdataAndArguments) {
  int32_t sum = 1;
  const Callback<Add> callback(&add, &sum, nullptr);
  EXPECT_TRUE(callback);
  EXPECT_EQ(callback(4), 5);
  EXPECT_EQ(sum, 5);
}

TEST(Callback, EmptyIsFalse) {
  EXPECT_FALSE(Callback<Add>());
  EXPECT_FALSE(Callback<Add>(nullptr, nullptr, nullptr));
}

TEST(Callback, DestroyRunsOnceWithTheLastCopy) {
  int destroyed = 0;
  {
    std::vector<Callback<Add>> copies;
    {
      Callback<Add> first(&add, &destroyed, &count);
      copies.assign(3, first);
      Callback<Add> moved = std::move(first);
    }
    copies.pop_back();
    EXPECT_EQ(destroyed, 0);
  }
  EXPECT_EQ(destroyed, 1);
}

TEST(Callback, DestroyRunsThoughTheFunctionIsMissing) {
  int destroyed = 0;
  { const Callback<Add> callback(nullptr, &destroyed, &count); }
  EXPECT_EQ(destroyed, 1);
}

TEST(Callback, FunctionsBesideEachOtherShareTheUserdata) {
  int destroyed = 0;
  {
    Callback<hvd_destroy_fn> other;
    {
      const Callback<Add> callback(&add, &destroyed, &count);
      other = callback.beside<hvd_destroy_fn>([](void* userdata) { *static_cast<int*>(userdata) += 10; });
    }
    EXPECT_EQ(destroyed, 0);
    other();
    EXPECT_EQ(destroyed, 10);
  }
  EXPECT_EQ(destroyed, 11);
}

}  // namespace
}  // namespace hvd
