// A worker that is fed before its first sync: what it has need not move, whatever it is, and what it has
// wrongly moves.
#include "state/feed.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "state/fabric.h"
#include "state/objects.h"
#include "state/pieces.h"
#include "state/state.h"

namespace hvd::state {
namespace {

Settings reading(bool others) {
  Settings settings;
  settings.reads_others = others;
  return settings;
}

struct Worker {
  Worker(bool reads, uint8_t fill, size_t large_bytes = 6 * kPiece + 5)
      : state(nullptr, nullptr, nullptr, reading(reads)),
        large(large_bytes, fill),
        middle(100'000, fill),
        small(1000, fill) {
    for (auto* tensor : {&large, &middle, &small}) {
      const char* const key = tensor == &large ? "large" : tensor == &middle ? "middle" : "small";
      state.add_tensor(key, {tensor->data(), HVD_DTYPE_UINT8, {static_cast<int64_t>(tensor->size())}});
    }
    state.add_value("step", &step, sizeof(step));
    object.bytes.assign(kPiece + 77, fill);
    object.add_to(state, "object");
  }
  auto live() const { return std::tuple(large, middle, small, step, object.bytes); }
  size_t bytes() const {
    return large.size() + middle.size() + small.size() + sizeof(step) + object.bytes.size();
  }
  void fill(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (auto* tensor : {&large, &middle, &small, &object.bytes}) {
      for (uint8_t& byte : *tensor) byte = static_cast<uint8_t>(random());
    }
    step = seed;
  }

  State state;
  TestObject object;
  std::vector<uint8_t> large, middle, small;
  uint64_t step = 0;
};

/// What a source has goes into a cache, as a feeder would take it.
void feed(const FeedSource& source, FeedCache* cache) {
  FeedCommit commit;
  ASSERT_TRUE(source.commit(&commit));
  cache->fit(commit);
  for (const FeedCache::Piece& piece : cache->lacking(commit)) {
    std::vector<uint8_t> bytes;
    ASSERT_TRUE(source.piece(commit.items[piece.item].key, piece.index, &bytes));
    ASSERT_EQ(bytes.size(), piece.size);
    std::memcpy(cache->room(commit, piece), bytes.data(), bytes.size());
    cache->arrived(commit, piece);
  }
  EXPECT_TRUE(cache->lacking(commit).empty());
}

std::vector<Summary> summaries(const std::vector<Worker*>& workers) {
  std::vector<Summary> known;
  for (const Worker* worker : workers) known.push_back(worker->state.summary());
  return known;
}

std::vector<SyncResult> sync(const std::vector<Worker*>& workers, const std::vector<Summary>& known) {
  Fabric fabric(static_cast<int32_t>(workers.size()));
  std::vector<SyncResult> results(workers.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const auto r = static_cast<int32_t>(rank);
      const Status status =
          workers[rank]->state.sync(fabric.engine(r), r, fabric.size(), known, seconds(60), &results[rank]);
      EXPECT_TRUE(status.ok()) << rank << ": " << status.message;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

class Feed : public ::testing::TestWithParam<bool> {  // option local: ranks read each other's memory
 protected:
  void SetUp() override {
    a.fill(1);
    b.fill(1);
    sync({&a, &b}, {});
    ASSERT_TRUE(a.state.save().ok());
    ASSERT_TRUE(b.state.save().ok());
  }
  void expect_joined(Worker& newcomer) {
    EXPECT_TRUE(newcomer.live() == a.live());
    EXPECT_EQ(newcomer.state.summary().digest, a.state.summary().digest);
    newcomer.fill(99);
    ASSERT_TRUE(newcomer.state.restore().ok());
    EXPECT_TRUE(newcomer.live() == a.live()) << "its last commit";
    ASSERT_TRUE(newcomer.state.refresh().ok());
    EXPECT_EQ(newcomer.state.summary().digest, a.state.summary().digest);
  }

  Worker a{GetParam(), 1}, b{GetParam(), 1};
};

TEST_P(Feed, WhatANewcomerWasFedDoesNotMove) {
  Worker c(GetParam(), 3);
  FeedCache cache;
  feed(*a.state.feed(), &cache);
  EXPECT_EQ(cache.bytes(), a.bytes());
  c.state.take_fed(std::move(cache));
  const auto results = sync({&a, &b, &c}, summaries({&a, &b, &c}));
  EXPECT_EQ(results[2].received_bytes, 0u);
  EXPECT_EQ(results[0].sent_bytes + results[1].sent_bytes, 0u);
  EXPECT_EQ(c.state.statistics().fed_bytes, a.bytes());
  EXPECT_EQ(c.object.loads, 1);
  expect_joined(c);
}

TEST_P(Feed, WhatHasChangedSinceMovesAlone) {
  Worker c(GetParam(), 3);
  FeedCache cache;
  feed(*a.state.feed(), &cache);
  for (Worker* worker : {&a, &b}) {
    worker->large[2 * kPiece + 1] ^= 1;
    worker->step = 7;
    ASSERT_TRUE(worker->state.save().ok());
  }
  c.state.take_fed(std::move(cache));
  const auto results = sync({&a, &b, &c}, summaries({&a, &b, &c}));
  EXPECT_EQ(results[2].received_bytes, kPiece + sizeof(a.step));
  EXPECT_EQ(results[2].revision, a.state.revision());
  expect_joined(c);
}

TEST_P(Feed, AFeedIsFollowedAndTakesOnlyWhatHasChanged) {
  FeedCache cache;
  feed(*a.state.feed(), &cache);
  a.large[5 * kPiece] ^= 1;
  ASSERT_TRUE(a.state.save().ok());
  FeedCommit commit;
  ASSERT_TRUE(a.state.feed()->commit(&commit));
  EXPECT_EQ(commit.revision, a.state.revision());
  cache.fit(commit);
  const auto lacking = cache.lacking(commit);
  ASSERT_EQ(lacking.size(), 1u);
  EXPECT_EQ(lacking[0].index, 5u);
  EXPECT_EQ(bytes_of(lacking), kPiece);
}

TEST_P(Feed, WhatWasTornOrNeverCameMoves) {
  Worker c(GetParam(), 3);
  FeedCache cache;
  feed(*a.state.feed(), &cache);
  FeedCommit commit;
  ASSERT_TRUE(a.state.feed()->commit(&commit));
  // Two pieces of the large one: one is of no commit, one never arrived.
  const size_t large = 0;
  ASSERT_EQ(commit.items[large].key, "large");
  cache.room(commit, {large, 1, kPiece})[77] ^= 1;
  cache.arrived(commit, {large, 1, kPiece});
  cache.room(commit, {large, 3, kPiece})[0] ^= 1;
  c.state.take_fed(std::move(cache));
  const auto results = sync({&a, &b, &c}, summaries({&a, &b, &c}));
  EXPECT_EQ(results[2].received_bytes, 2 * kPiece);
  expect_joined(c);
}

TEST_P(Feed, AnObjectMovesWholeUnlessAllOfItIsRight) {
  for (const bool torn : {false, true}) {
    Worker c(GetParam(), 3);
    FeedCache cache;
    feed(*a.state.feed(), &cache);
    if (torn) {
      FeedCommit commit;
      ASSERT_TRUE(a.state.feed()->commit(&commit));
      ASSERT_EQ(commit.items[2].key, "object");
      cache.room(commit, {2, 1, 77})[5] ^= 1;
    } else {
      for (Worker* worker : {&a, &b}) {
        worker->object.bytes.push_back(1);
        ASSERT_TRUE(worker->state.save().ok());
      }
    }
    c.state.take_fed(std::move(cache));
    const auto results = sync({&a, &b, &c}, summaries({&a, &b, &c}));
    EXPECT_EQ(results[2].received_bytes, a.object.bytes.size());
    EXPECT_EQ(c.state.statistics().fed_bytes, a.bytes() - a.object.bytes.size());
    EXPECT_EQ(c.object.loads, 1);
    expect_joined(c);
  }
}

TEST_P(Feed, AnObjectThatRefusesItLeavesItForTheNextSync) {
  Worker c(GetParam(), 3);
  FeedCache cache;
  feed(*a.state.feed(), &cache);
  c.state.take_fed(std::move(cache));
  c.object.load_code = 5;
  {
    Fabric fabric(3);
    std::vector<Worker*> workers = {&a, &b, &c};
    const auto known = summaries(workers);
    std::vector<Status> statuses(3);
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        SyncResult result;
        const auto r = static_cast<size_t>(rank);
        statuses[r] = workers[r]->state.sync(fabric.engine(rank), rank, 3, known, seconds(60), &result);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(statuses[2].code, HVD_CALLBACK_FAILED);
  }
  c.object.load_code = 0;
  const auto results = sync({&a, &b, &c}, summaries({&a, &b, &c}));
  EXPECT_EQ(results[2].received_bytes, 0U);
  expect_joined(c);
}

TEST_P(Feed, AnotherProgramsStateIsNoUse) {
  Worker c(GetParam(), 3);
  Worker other(GetParam(), 4, 3 * kPiece);  // another shape of the same key
  ASSERT_TRUE(other.state.save().ok());
  sync({&other}, {});
  FeedCache cache;
  feed(*other.state.feed(), &cache);
  c.state.take_fed(std::move(cache));
  const auto results = sync({&a, &b, &c}, summaries({&a, &b, &c}));
  EXPECT_GE(results[2].received_bytes, a.large.size());
  expect_joined(c);
}

TEST_P(Feed, ANewcomerThatWasFedHelpsAnotherOne) {
  Worker c(GetParam(), 3), d(GetParam(), 4);
  FeedCache cache;
  feed(*a.state.feed(), &cache);
  c.state.take_fed(std::move(cache));
  sync({&a, &b, &c, &d}, summaries({&a, &b, &c, &d}));
  EXPECT_TRUE(c.live() == a.live());
  expect_joined(d);
}

TEST_P(Feed, IfNobodyElseHasStateItsOwnValuesCount) {
  // Those that had it were lost: it begins with what it has registered.
  Worker c(GetParam(), 3);
  FeedCache cache;
  feed(*a.state.feed(), &cache);
  c.state.take_fed(std::move(cache));
  const auto own = c.live();
  sync({&c}, {});
  EXPECT_TRUE(c.live() == own);
  ASSERT_TRUE(c.state.restore().ok());
  EXPECT_TRUE(c.live() == own);
}

TEST_P(Feed, NothingIsFedBeforeTheFirstSyncNorAfterTheEnd) {
  std::shared_ptr<FeedSource> source;
  {
    Worker c(GetParam(), 3);
    source = c.state.feed();
    uint64_t revision = 0;
    FeedCommit commit;
    ASSERT_TRUE(c.state.save().ok());
    EXPECT_FALSE(source->revision(&revision));
    EXPECT_FALSE(source->commit(&commit));
    sync({&c}, {});
    EXPECT_TRUE(source->revision(&revision));
    EXPECT_EQ(revision, 1u);
    std::vector<uint8_t> bytes;
    EXPECT_TRUE(source->piece("large", 6, &bytes));
    EXPECT_EQ(bytes.size(), 5u);
    EXPECT_FALSE(source->piece("large", 7, &bytes));
    EXPECT_FALSE(source->piece("strange", 0, &bytes));
    c.state.remove("large");
    EXPECT_FALSE(source->piece("large", 0, &bytes));
  }
  std::vector<uint8_t> bytes;
  EXPECT_FALSE(source->piece("small", 0, &bytes));
}

TEST_P(Feed, WhoWatchesIsToldOfEachCommit) {
  const std::shared_ptr<FeedSource> source = a.state.feed();
  std::atomic<int> told{0}, others{0};  // by the thread that copies
  source->watch(&told, [&] { ++told; });
  source->watch(&others, [&] { ++others; });
  uint64_t before = 0, revision = 0;
  ASSERT_TRUE(source->revision(&before));
  ASSERT_TRUE(a.state.save().ok());
  EXPECT_EQ(told, 1);
  ASSERT_TRUE(a.state.begin().ok());
  const int meanwhile = told;                      // the copy may be over by now
  static_cast<void>(source->revision(&revision));  // there may be no commit to feed at this moment
  EXPECT_GE(revision, before + static_cast<uint64_t>(meanwhile)) << "a commit is told once it can be had";
  ASSERT_TRUE(a.state.end().ok());
  EXPECT_EQ(told, 2);
  source->unwatch(&told);
  ASSERT_TRUE(a.state.save().ok());
  EXPECT_EQ(told, 2);
  EXPECT_EQ(others, 3);
}

TEST_P(Feed, IsReadWhileCommitsGoOn) {
  // Whatever a piece is read between, it is of one commit: all its bytes are the same.
  std::atomic<bool> ended{false};
  std::atomic<uint64_t> read{0};
  std::memset(a.large.data(), 1, a.large.size());
  ASSERT_TRUE(a.state.save().ok());
  std::thread reader([&] {
    std::vector<uint8_t> bytes;
    for (size_t i = 0; !ended || read < 10; ++i) {
      if (!a.state.feed()->piece("large", i % 7, &bytes)) continue;
      ASSERT_TRUE(std::all_of(bytes.begin(), bytes.end(), [&](uint8_t b) { return b == bytes[0]; }));
      ++read;
    }
  });
  for (int i = 0; i < 60; ++i) {
    std::memset(a.large.data(), i, a.large.size());
    if (i % 3 == 0) {
      ASSERT_TRUE(a.state.begin().ok());
      ASSERT_TRUE(a.state.end().ok());
    } else {
      ASSERT_TRUE(a.state.save().ok());
    }
  }
  ended = true;
  reader.join();
}

INSTANTIATE_TEST_SUITE_P(ByMessagesAndByReading, Feed, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Reading" : "Messages"; });

TEST(FeedProgress, MayJoinWhenTheRestMovesWithinThePause) {
  FeedProgress progress(milliseconds(100));
  EXPECT_FALSE(progress.may_join(1000, 0, Duration(0)));        // nothing is known of the rate
  EXPECT_FALSE(progress.may_join(500, 1000, seconds(1)));       // half a second of work is left
  EXPECT_TRUE(progress.may_join(100, 500, milliseconds(500)));  // a tenth of one
  EXPECT_TRUE(progress.may_join(100'000, 500, seconds(1))) << "once it may it may";
}

TEST(FeedProgress, MayJoinAtOnceWhenNothingLacks) {
  EXPECT_TRUE(FeedProgress(Duration(0)).may_join(0, 0, Duration(0)));
}

TEST(FeedProgress, DoesNotTryForEverWhereEverythingChanges) {
  FeedProgress progress(milliseconds(1));
  EXPECT_FALSE(progress.may_join(1000, 0, Duration(0)));
  int passes = 1;
  while (!progress.may_join(1000, 1000, seconds(1))) ASSERT_LT(++passes, 10);
  EXPECT_GE(passes, 3);
}

TEST(FeedProgress, GoesOnAsLongAsItComesCloser) {
  FeedProgress progress(Duration(0));
  uint64_t lacking = 1'000'000'000;
  EXPECT_FALSE(progress.may_join(lacking, 0, Duration(0)));
  for (int i = 0; i < 20; ++i) {
    lacking /= 2;
    EXPECT_FALSE(progress.may_join(lacking, lacking, seconds(1))) << i;
  }
}

FeedItem item(const std::string& key, uint64_t bytes, uint64_t digests) {
  FeedItem item;
  item.key = key;
  item.bytes = bytes;
  item.digests.resize(digests);
  return item;
}

std::string objection(std::vector<FeedItem> items) {
  FeedCommit commit;
  commit.items = std::move(items);
  try {
    check(commit);
  } catch (const Error& error) { return error.what(); }
  return "";
}

/// What would have a worker write beyond its memory, or make room for more than there is.
TEST(FeedCheck, ACommitThatNobodyCanHaveIsRefused) {
  EXPECT_EQ(objection({item("a", 5, 1), item("b", kPiece + 1, 2)}), "");
  EXPECT_EQ(objection({item("a", 5, 1), item("a", 4 * kPiece, 4)}), "a commit that has key 'a' twice");
  EXPECT_NE(objection({item("a", kPiece, 2)}).find("2 digests of the 1048576 bytes of key 'a': expected 1"),
            std::string::npos);
  EXPECT_NE(objection({item("a", 0, 0)}).find("0 bytes of key 'a'"), std::string::npos);
  EXPECT_NE(objection({item("a", 5, 1), item("b", ~uint64_t{0}, 1)}).find("beside 5 of others"),
            std::string::npos);
  EXPECT_NE(objection({item("b", uint64_t{1} << 47, 0)}).find("half of this machine's memory"),
            std::string::npos);
}

}  // namespace
}  // namespace hvd::state
