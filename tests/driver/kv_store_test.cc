// The key-value store: waiting, fencing, bounds.
#include "driver/kv_store.h"

#include <gtest/gtest.h>

namespace hvd::driver {
namespace {

using Bytes = std::vector<uint8_t>;
using Answer = std::optional<KvStore::Answer>;
using Workers = std::vector<uint64_t>;

TEST(KvStore, GivesWhatWasPutInTheGeneration) {
  KvStore store;
  store.begin(3);
  Answer answer;
  EXPECT_TRUE(store.set(3, "a", {1, 2}, &answer).ok());
  EXPECT_FALSE(answer);
  const auto found = store.get(7, 3, "a");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->workers, Workers{7});
  EXPECT_EQ(found->status, HVD_OK);
  EXPECT_EQ(*found->value, (Bytes{1, 2}));
}

TEST(KvStore, AnswersThoseWhoWaitWhenTheValueComes) {
  KvStore store;
  store.begin(1);
  EXPECT_FALSE(store.get(1, 1, "a"));
  EXPECT_FALSE(store.get(2, 1, "a"));
  EXPECT_FALSE(store.get(2, 1, "a"));  // asked twice, answered once
  EXPECT_FALSE(store.get(3, 1, "b"));
  Answer answer;
  EXPECT_TRUE(store.set(1, "a", {9}, &answer).ok());
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->workers, (Workers{1, 2}));
  EXPECT_EQ(*answer->value, Bytes{9});
  EXPECT_EQ(answer->value, store.get(4, 1, "a")->value) << "held once, however many receive it";
  answer.reset();
  store.set(1, "b", {1}, &answer);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->workers, Workers{3});
}

TEST(KvStore, PutsOnce) {  // contract 11
  KvStore store;
  store.begin(1);
  Answer answer;
  EXPECT_TRUE(store.set(1, "a", {1}, &answer).ok());
  EXPECT_TRUE(store.set(1, "a", {1}, &answer).ok());
  const Status status = store.set(1, "a", {2}, &answer);
  EXPECT_EQ(status.code, HVD_INVALID);
  EXPECT_NE(status.message.find("'a'"), std::string::npos);
  EXPECT_EQ(*store.get(1, 1, "a")->value, Bytes{1});
}

TEST(KvStore, DropsEverythingWithItsGeneration) {  // contract 11
  KvStore store;
  store.begin(1);
  Answer answer;
  store.set(1, "a", {1}, &answer);
  EXPECT_FALSE(store.get(5, 1, "b"));
  const auto lost = store.begin(0);
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].workers, Workers{5});
  EXPECT_EQ(lost[0].status, HVD_PEER_LOST);
  EXPECT_EQ(store.bytes(), 0u);
  EXPECT_EQ(store.get(5, 1, "a")->status, HVD_PEER_LOST);
  EXPECT_EQ(store.set(1, "a", {1}, &answer).code, HVD_PEER_LOST);
  store.begin(2);
  EXPECT_EQ(store.get(5, 1, "a")->status, HVD_PEER_LOST);
  EXPECT_FALSE(store.get(5, 2, "a"));
  EXPECT_EQ(store.set(0, "a", {1}, &answer).code, HVD_PEER_LOST);
}

TEST(KvStore, IsBounded) {
  KvStore store(KvStore::kNode + 10, 2);
  store.begin(1);
  EXPECT_FALSE(store.get(1, 1, "long"));
  Answer answer;
  EXPECT_TRUE(store.set(1, "k", Bytes(9), &answer).ok());
  EXPECT_EQ(store.set(1, "long", Bytes(1), &answer).code, HVD_UNAVAILABLE);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, HVD_UNAVAILABLE);
}

TEST(KvStore, CountsWhatAnEntryTakesBesidesItsBytes) {
  KvStore store(10 * (KvStore::kNode + 2));
  store.begin(1);
  Answer answer;
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(store.set(1, "k" + std::to_string(i), {}, &answer).ok()) << i;
  EXPECT_EQ(store.set(1, "more", {}, &answer).code, HVD_UNAVAILABLE);
}

TEST(KvStore, NoWorkerTakesThePlacesOfOthersThatWait) {
  KvStore store(4 * (KvStore::kNode + 1), 2);
  store.begin(1);
  EXPECT_FALSE(store.get(1, 1, "x"));
  EXPECT_FALSE(store.get(1, 1, "y"));
  EXPECT_EQ(store.get(1, 1, "z")->status, HVD_UNAVAILABLE) << "two are its share";
  EXPECT_FALSE(store.get(2, 1, "x"));
  EXPECT_FALSE(store.get(3, 1, "x"));
  EXPECT_EQ(store.get(4, 1, "x")->status, HVD_UNAVAILABLE) << "no memory is left";
  store.forget(1);
  EXPECT_FALSE(store.get(4, 1, "x"));
  EXPECT_FALSE(store.get(1, 1, "x"));
  Answer answer;
  store.set(1, "x", {}, &answer);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->workers, (Workers{1, 2, 3, 4}));
  for (const char* key : {"a", "b"}) EXPECT_FALSE(store.get(1, 1, key)) << "what was answered holds no place";
}

TEST(KvStore, ForgetsAWorkerThatWaits) {
  KvStore store;
  store.begin(1);
  EXPECT_FALSE(store.get(1, 1, "a"));
  EXPECT_FALSE(store.get(2, 1, "a"));
  store.forget(1);
  Answer answer;
  store.set(1, "a", {}, &answer);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->workers, Workers{2});
}

}  // namespace
}  // namespace hvd::driver
