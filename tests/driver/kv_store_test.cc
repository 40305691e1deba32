// The key-value store: waiting, fencing, bounds.
#include "driver/kv_store.h"

#include <gtest/gtest.h>

namespace hvd::driver {
namespace {

using Bytes = std::vector<uint8_t>;
using Answers = std::vector<KvStore::Answer>;

TEST(KvStore, GivesWhatWasPutInTheGeneration) {
  KvStore store;
  store.begin(3);
  Answers answers;
  EXPECT_TRUE(store.set(3, "a", {1, 2}, &answers).ok());
  EXPECT_TRUE(answers.empty());
  const auto found = store.get(7, 3, "a");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->worker, 7u);
  EXPECT_EQ(found->status, HVD_OK);
  EXPECT_EQ(found->value, (Bytes{1, 2}));
}

TEST(KvStore, AnswersThoseWhoWaitWhenTheValueComes) {
  KvStore store;
  store.begin(1);
  EXPECT_FALSE(store.get(1, 1, "a"));
  EXPECT_FALSE(store.get(2, 1, "a"));
  EXPECT_FALSE(store.get(2, 1, "a"));  // asked twice, answered once
  EXPECT_FALSE(store.get(3, 1, "b"));
  Answers answers;
  EXPECT_TRUE(store.set(1, "a", {9}, &answers).ok());
  ASSERT_EQ(answers.size(), 2u);
  for (const auto& answer : answers) EXPECT_EQ(answer.value, Bytes{9});
  answers.clear();
  store.set(1, "b", {1}, &answers);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].worker, 3u);
}

TEST(KvStore, PutsOnce) {  // contract 11
  KvStore store;
  store.begin(1);
  Answers answers;
  EXPECT_TRUE(store.set(1, "a", {1}, &answers).ok());
  EXPECT_TRUE(store.set(1, "a", {1}, &answers).ok());
  const Status status = store.set(1, "a", {2}, &answers);
  EXPECT_EQ(status.code, HVD_INVALID);
  EXPECT_NE(status.message.find("'a'"), std::string::npos);
  EXPECT_EQ(store.get(1, 1, "a")->value, Bytes{1});
}

TEST(KvStore, DropsEverythingWithItsGeneration) {  // contract 11
  KvStore store;
  store.begin(1);
  Answers answers;
  store.set(1, "a", {1}, &answers);
  EXPECT_FALSE(store.get(5, 1, "b"));
  answers = store.begin(0);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].worker, 5u);
  EXPECT_EQ(answers[0].status, HVD_PEER_LOST);
  EXPECT_EQ(store.bytes(), 0u);
  EXPECT_EQ(store.get(5, 1, "a")->status, HVD_PEER_LOST);
  EXPECT_EQ(store.set(1, "a", {1}, &answers).code, HVD_PEER_LOST);
  store.begin(2);
  EXPECT_EQ(store.get(5, 1, "a")->status, HVD_PEER_LOST);
  EXPECT_FALSE(store.get(5, 2, "a"));
  EXPECT_EQ(store.set(0, "a", {1}, &answers).code, HVD_PEER_LOST);
}

TEST(KvStore, IsBounded) {
  KvStore store(KvStore::kNode + 10, 2);
  store.begin(1);
  EXPECT_FALSE(store.get(1, 1, "long"));
  Answers answers;
  EXPECT_TRUE(store.set(1, "k", Bytes(9), &answers).ok());
  EXPECT_EQ(store.set(1, "long", Bytes(1), &answers).code, HVD_UNAVAILABLE);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].status, HVD_UNAVAILABLE);
}

TEST(KvStore, CountsWhatAnEntryTakesBesidesItsBytes) {
  KvStore store(10 * (KvStore::kNode + 2));
  store.begin(1);
  Answers answers;
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(store.set(1, "k" + std::to_string(i), {}, &answers).ok()) << i;
  EXPECT_EQ(store.set(1, "more", {}, &answers).code, HVD_UNAVAILABLE);
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
  Answers answers;
  store.set(1, "x", {}, &answers);
  EXPECT_EQ(answers.size(), 4u);
  for (const char* key : {"a", "b"}) EXPECT_FALSE(store.get(1, 1, key)) << "what was answered holds no place";
}

TEST(KvStore, ForgetsAWorkerThatWaits) {
  KvStore store;
  store.begin(1);
  EXPECT_FALSE(store.get(1, 1, "a"));
  EXPECT_FALSE(store.get(2, 1, "a"));
  store.forget(1);
  Answers answers;
  store.set(1, "a", {}, &answers);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].worker, 2u);
}

}  // namespace
}  // namespace hvd::driver
