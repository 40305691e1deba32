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
  store.begin(3, 4);
  Answer answer;
  EXPECT_TRUE(store.set(1, 3, "a", {1, 2}, &answer).ok());
  EXPECT_FALSE(answer);
  const auto found = store.get(7, 3, "a");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->workers, Workers{7});
  EXPECT_EQ(found->status, HVD_OK);
  EXPECT_EQ(*found->value, (Bytes{1, 2}));
}

TEST(KvStore, AnswersThoseWhoWaitWhenTheValueComes) {
  KvStore store;
  store.begin(1, 4);
  EXPECT_FALSE(store.get(1, 1, "a"));
  EXPECT_FALSE(store.get(2, 1, "a"));
  EXPECT_FALSE(store.get(2, 1, "a"));  // asked twice, answered once
  EXPECT_FALSE(store.get(3, 1, "b"));
  Answer answer;
  EXPECT_TRUE(store.set(1, 1, "a", {9}, &answer).ok());
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->workers, (Workers{1, 2}));
  EXPECT_EQ(*answer->value, Bytes{9});
  EXPECT_EQ(answer->value, store.get(4, 1, "a")->value) << "held once, however many receive it";
  answer.reset();
  store.set(1, 1, "b", {1}, &answer);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->workers, Workers{3});
}

TEST(KvStore, PutsOnce) {  // contract 11
  KvStore store;
  store.begin(1, 4);
  Answer answer;
  EXPECT_TRUE(store.set(1, 1, "a", {1}, &answer).ok());
  EXPECT_TRUE(store.set(1, 1, "a", {1}, &answer).ok());
  const Status status = store.set(1, 1, "a", {2}, &answer);
  EXPECT_EQ(status.code, HVD_INVALID);
  EXPECT_NE(status.message.find("'a'"), std::string::npos);
  EXPECT_EQ(*store.get(1, 1, "a")->value, Bytes{1});
}

TEST(KvStore, DropsEverythingWithItsGeneration) {  // contract 11
  KvStore store;
  store.begin(1, 4);
  Answer answer;
  store.set(1, 1, "a", {1}, &answer);
  EXPECT_FALSE(store.get(5, 1, "b"));
  const auto lost = store.begin(0, 0);
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].workers, Workers{5});
  EXPECT_EQ(lost[0].status, HVD_PEER_LOST);
  EXPECT_EQ(store.bytes(), 0u);
  EXPECT_EQ(store.get(5, 1, "a")->status, HVD_PEER_LOST);
  EXPECT_EQ(store.set(1, 1, "a", {1}, &answer).code, HVD_PEER_LOST);
  store.begin(2, 4);
  EXPECT_EQ(store.get(5, 1, "a")->status, HVD_PEER_LOST);
  EXPECT_FALSE(store.get(5, 2, "a"));
  EXPECT_EQ(store.set(1, 0, "a", {1}, &answer).code, HVD_PEER_LOST);
}

TEST(KvStore, IsBounded) {
  KvStore store(KvStore::kNode + 10, 2);
  store.begin(1, 1);
  EXPECT_FALSE(store.get(1, 1, "long"));
  Answer answer;
  EXPECT_TRUE(store.set(1, 1, "k", Bytes(9), &answer).ok());
  EXPECT_EQ(store.set(1, 1, "long", Bytes(1), &answer).code, HVD_UNAVAILABLE);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, HVD_UNAVAILABLE);
}

TEST(KvStore, CountsWhatAnEntryTakesBesidesItsBytes) {
  KvStore store(10 * (KvStore::kNode + 2));
  store.begin(1, 1);
  Answer answer;
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(store.set(1, 1, "k" + std::to_string(i), {}, &answer).ok()) << i;
  EXPECT_EQ(store.set(1, 1, "more", {}, &answer).code, HVD_UNAVAILABLE);
}

constexpr size_t kPlace = KvStore::kNode + 2;  // of a key with two characters and no value

std::string key_of(int n) { return {static_cast<char>('a' + n / 26), static_cast<char>('a' + n % 26)}; }

TEST(KvStore, NoMemberTakesTheMemoryOfOthers) {
  KvStore store(16 * kPlace);
  store.begin(1, 4);  // two entries for each of them, and eight for all
  Answer answer;
  int taken = 0;
  while (store.set(1, 1, key_of(taken), {}, &answer).ok()) ++taken;
  EXPECT_EQ(taken, 10);
  const Status refused = store.set(1, 1, "zz", Bytes(5), &answer);
  EXPECT_EQ(refused.code, HVD_UNAVAILABLE);
  EXPECT_NE(refused.message.find("1300 of 2080 in use, 1300 by this worker"), std::string::npos)
      << refused.message;
  for (uint64_t worker = 2; worker <= 4; ++worker) {
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(store.set(worker, 1, key_of(taken++), {}, &answer).ok()) << worker;
    }
    EXPECT_EQ(store.set(worker, 1, "zz", {}, &answer).code, HVD_UNAVAILABLE) << worker;
  }
  EXPECT_EQ(store.bytes(), 16 * kPlace);
  EXPECT_EQ(store.set(5, 1, "zz", {}, &answer).code, HVD_UNAVAILABLE) << "all is bounded, whoever comes";
  store.begin(2, 1);
  for (int i = 0; i < 16; ++i) EXPECT_TRUE(store.set(1, 2, key_of(i), {}, &answer).ok()) << i;
}

TEST(KvStore, OneMemberLeavesMemoryToAllOthersOfALargeGeneration) {
  constexpr uint64_t kMembers = 4096;
  KvStore store;
  store.begin(1, kMembers);
  Answer answer;
  while (store.set(1, 1, "of 1/" + std::to_string(store.bytes()), Bytes(1 << 20), &answer).ok()) {}
  for (int i = 0; store.get(1, 1, std::string(1000, 'x') + std::to_string(i)) == std::nullopt; ++i) {}
  for (uint64_t worker = 2; worker <= kMembers; ++worker) {
    const std::string key = "ncclUniqueId/" + std::to_string(worker);
    ASSERT_FALSE(store.get(worker, 1, std::string(1000, 'y'))) << "a place to wait in";
    ASSERT_TRUE(store.set(worker, 1, key, Bytes(128), &answer).ok()) << worker;
  }
}

TEST(KvStore, NoWorkerTakesThePlacesOfOthersThatWait) {
  KvStore store(16 * kPlace, 11);
  store.begin(1, 4);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(store.get(1, 1, key_of(i)));
  EXPECT_EQ(store.get(1, 1, "zz")->status, HVD_UNAVAILABLE) << "its part and what is common";
  for (uint64_t worker = 2; worker <= 4; ++worker) {
    for (int i = 0; i < 2; ++i) EXPECT_FALSE(store.get(worker, 1, key_of(i))) << worker;
    EXPECT_EQ(store.get(worker, 1, "zz")->status, HVD_UNAVAILABLE) << worker;
  }
  Answer answer;
  store.set(2, 1, key_of(0), {}, &answer);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->workers, (Workers{1, 2, 3, 4}));
  EXPECT_FALSE(store.get(1, 1, "zz")) << "what was answered holds no place";
  store.forget(1);
  for (int i = 1; i <= 8; ++i) EXPECT_FALSE(store.get(2, 1, key_of(i))) << "nor what was forgotten";
}

TEST(KvStore, KeysThatAWorkerWaitsForAreCounted) {
  KvStore store(size_t{1} << 20, 2);
  store.begin(1, 1);
  for (const char* key : {"x", "y"}) EXPECT_FALSE(store.get(1, 1, key));
  EXPECT_EQ(store.get(1, 1, "z")->status, HVD_UNAVAILABLE);
}

TEST(KvStore, ForgetsAWorkerThatWaits) {
  KvStore store;
  store.begin(1, 4);
  EXPECT_FALSE(store.get(1, 1, "a"));
  EXPECT_FALSE(store.get(2, 1, "a"));
  store.forget(1);
  Answer answer;
  store.set(1, 1, "a", {}, &answer);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->workers, Workers{2});
}

}  // namespace
}  // namespace hvd::driver
