// Ranks whose commits differ are named, by majority, and nobody else is.
#include "state/divergence.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "state/fabric.h"
#include "state/flight.h"
#include "state/message.h"
#include "state/objects.h"
#include "state/state.h"

namespace hvd::state {
namespace {

using Rows = std::vector<std::vector<Version>>;

Version version(uint64_t what, uint64_t size = 8) { return {{what, what}, size}; }

TEST(Divergence, NamesThoseThatDifferFromMoreThanHalf) {
  const Version a = version(1), b = version(2), c = version(3);
  EXPECT_TRUE(find_divergence({}).empty());
  EXPECT_TRUE(find_divergence({{a, b}}).empty());
  EXPECT_TRUE(find_divergence({{a, b}, {a, b}, {a, b}}).empty());
  const auto found = find_divergence({{a, b}, {a, c}, {a, b}});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].variable, 1U);
  EXPECT_TRUE(found[0].majority);
  EXPECT_EQ(found[0].odd, (std::vector<size_t>{1}));
  const auto first = find_divergence({{b}, {a}, {a}, {c}, {a}});
  EXPECT_EQ(first.at(0).odd, (std::vector<size_t>{0, 3}));
}

TEST(Divergence, WithoutAMajorityAllAreNamed) {
  const Version a = version(1), b = version(2), c = version(3);
  for (const Rows& rows :
       {Rows{{a}, {b}}, Rows{{a}, {a}, {b}, {b}}, Rows{{a}, {b}, {c}}, Rows{{a}, {a}, {b}, {c}}}) {
    const auto found = find_divergence(rows);
    ASSERT_EQ(found.size(), 1U);
    EXPECT_FALSE(found[0].majority);
    EXPECT_EQ(found[0].odd.size(), rows.size());
  }
}

TEST(Divergence, HistoriesNameExactlyWhoWasChanged) {
  std::mt19937_64 random(7);
  for (int history = 0; history < 20000; ++history) {
    const size_t ranks = 2 + random() % 7, variables = 1 + random() % 5;
    Rows rows(ranks);
    for (auto& row : rows) {
      for (size_t v = 0; v < variables; ++v) row.push_back(version(v, v == 2 ? 0 : 8));
    }
    const size_t odd = random() % ((ranks + 1) / 2), variable = random() % variables;
    for (size_t i = 0; i < odd; ++i) rows[i][variable] = version(100 + random() % 2, 8);
    const auto found = find_divergence(rows);
    ASSERT_EQ(found.size(), odd == 0 ? 0U : 1U);
    if (odd == 0) continue;
    ASSERT_TRUE(found[0].majority);
    ASSERT_EQ(found[0].variable, variable);
    ASSERT_EQ(found[0].odd.size(), odd);
    ASSERT_EQ(found[0].odd.back(), odd - 1);
  }
}

struct Worker {
  Worker() {
    state.add_tensor("w", {w.data(), HVD_DTYPE_FLOAT32, {static_cast<int64_t>(w.size())}});
    state.add_tensor("v", {v.data(), HVD_DTYPE_FLOAT32, {static_cast<int64_t>(v.size())}});
    object.bytes = {1, 2, 3};
    object.add_to(state, "object");
  }
  std::vector<float> w = std::vector<float>(1000, 1.F), v = std::vector<float>(10, 2.F);
  TestObject object;
  State state{nullptr};
};

struct Job {
  explicit Job(size_t size) : workers(size), fabric(static_cast<int32_t>(size)) {}
  template <class Call>
  void all(Call call) {
    std::vector<std::thread> threads;
    for (size_t r = 0; r < workers.size(); ++r) {
      threads.emplace_back([&, r] { call(workers[r], static_cast<int32_t>(r)); });
    }
    for (auto& thread : threads) thread.join();
  }
  std::vector<Diverged> commit_and_compare() {
    std::vector<std::vector<Diverged>> found(workers.size());
    all([&](Worker& worker, int32_t rank) {
      EXPECT_TRUE(worker.state.save().ok());
      const Status status = worker.state.find_diverged(fabric.engine(rank), rank, seconds(60),
                                                       &found[static_cast<size_t>(rank)]);
      EXPECT_TRUE(status.ok()) << status.message;
    });
    for (const auto& other : found) {
      EXPECT_EQ(other.size(), found[0].size());
      for (size_t i = 0; i < std::min(other.size(), found[0].size()); ++i) {
        EXPECT_EQ(other[i].text, found[0][i].text) << "the same on every rank";
      }
    }
    return found[0];
  }
  void sync() {
    all([&](Worker& worker, int32_t rank) {
      const Status status =
          worker.state.sync(fabric.engine(rank), rank, fabric.size(), {}, seconds(60), nullptr);
      EXPECT_TRUE(status.ok()) << status.message;
    });
  }
  std::vector<Worker> workers;
  Fabric fabric;
};

TEST(Divergence, AFlippedBitIsNamedAtThatCommit) {
  Job job(4);
  job.sync();
  EXPECT_TRUE(job.commit_and_compare().empty());
  reinterpret_cast<uint8_t*>(&job.workers[2].w[500])[0] ^= 4;
  const auto found = job.commit_and_compare();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].ranks, (std::vector<int32_t>{2}));
  EXPECT_TRUE(found[0].majority);
  EXPECT_TRUE(says(found[0].text, {"revision 2", "'w'", "float32[1000]", "rank 2", "the other 3"}));
}

TEST(Divergence, IsNotSeenIn100000CommitsOfTheSame) {
  constexpr int kCommits = 100000;
  Job job(2);
  job.sync();
  std::atomic<int> alarms{0};
  job.all([&](Worker& worker, int32_t rank) {
    std::vector<Diverged> found;
    for (int commit = 0; commit < kCommits && found.empty(); ++commit) {
      worker.w[static_cast<size_t>(commit) % worker.w.size()] += static_cast<float>(commit);
      worker.object.bytes[0] = static_cast<uint8_t>(commit);
      Status status = worker.state.save();
      if (status.ok())
        status = worker.state.find_diverged(job.fabric.engine(rank), rank, seconds(60), &found);
      ASSERT_TRUE(status.ok()) << status.message;
    }
    if (!found.empty()) ++alarms;
  });
  EXPECT_EQ(alarms, 0);
  EXPECT_EQ(job.workers[0].state.revision(), static_cast<uint64_t>(kCommits));
}

TEST(Divergence, OfTwoRanksBothAreNamed) {
  Job job(2);
  job.sync();
  job.workers[0].object.bytes = {9};
  const auto found = job.commit_and_compare();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].ranks, (std::vector<int32_t>{0, 1}));
  EXPECT_FALSE(found[0].majority);
  EXPECT_TRUE(says(found[0].text, {"'object'", "ranks 0, 1", "no majority"}));
}

TEST(Divergence, WhoIsDisownedTakesTheOthersState) {
  Job job(3);
  job.sync();
  EXPECT_TRUE(job.commit_and_compare().empty());
  job.workers[0].v[3] = 77;  // rank 0 would be the root
  job.workers[0].object.bytes = {5};
  ASSERT_EQ(job.commit_and_compare().size(), 2U);
  job.workers[0].state.disown();
  job.sync();
  for (Worker& worker : job.workers) {
    EXPECT_EQ(worker.v, std::vector<float>(10, 2.F));
    EXPECT_EQ(worker.object.bytes, (std::vector<uint8_t>{1, 2, 3}));
    EXPECT_EQ(worker.state.revision(), 2U);
  }
  EXPECT_TRUE(job.commit_and_compare().empty());
}

TEST(Divergence, OtherRevisionsAreAMismatchThatNamesThem) {
  Job job(2);
  job.sync();
  ASSERT_TRUE(job.workers[1].state.save().ok());
  job.all([&](Worker& worker, int32_t rank) {
    std::vector<Diverged> found;
    const Status status = worker.state.find_diverged(job.fabric.engine(rank), rank, seconds(60), &found);
    EXPECT_EQ(status.code, HVD_MISMATCH);
    EXPECT_TRUE(says(status.message, {"rank 0 commits revision 0", "rank 1 revision 1"}));
  });
}

/// Rank 1 says what it likes; the others compare their commits.
Status compared_with_a_liar(size_t heads, uint64_t named, std::vector<Diverged>* ret_found) {
  Job job(3);
  job.sync();
  struct Head {
    uint64_t rank, revision, variables;
    Digest digest;
  };
  Status of_rank_0;
  job.all([&](Worker& worker, int32_t rank) {
    EXPECT_TRUE(worker.state.save().ok());
    std::vector<Diverged> found;
    if (rank != 1) {
      const Status status = worker.state.find_diverged(job.fabric.engine(rank), rank, seconds(5), &found);
      if (rank != 0) return;
      of_rank_0 = status;
      *ret_found = found;
      return;
    }
    const Time deadline = now() + seconds(5);
    const std::vector<Head> lie(heads, Head{named, worker.state.revision(), 3, {1, 2}});
    std::vector<uint8_t> all;
    static_cast<void>(gather(job.fabric.engine(1), deadline, "hvd.divergence.head", lie.data(),
                             lie.size() * sizeof(Head), &all));
    if (heads != 1) return job.fabric.engine(1).fail({HVD_PEER_LOST, "it goes"});
    const std::vector<Version> row(3, version(99));
    static_cast<void>(gather(job.fabric.engine(1), deadline, "hvd.divergence.digests", row.data(),
                             row.size() * sizeof(Version), &all));
    const uint8_t known = 1;
    static_cast<void>(gather(job.fabric.engine(1), deadline, "hvd.divergence.known", &known, 1, &all));
  });
  return of_rank_0;
}

TEST(Divergence, ARankThatNamesItselfAnotherIsNamedItself) {
  std::vector<Diverged> found;
  const Status status = compared_with_a_liar(1, 2, &found);
  ASSERT_TRUE(status.ok()) << status.message;
  ASSERT_EQ(found.size(), 3U);
  for (const Diverged& diverged : found) {
    EXPECT_EQ(diverged.ranks, (std::vector<int32_t>{1}));
    EXPECT_TRUE(diverged.majority);
  }
}

TEST(Divergence, OneRankIsNoMajorityBySpeakingOften) {
  std::vector<Diverged> found;
  const Status status = compared_with_a_liar(5, 1, &found);
  EXPECT_EQ(status.code, HVD_INTERNAL);
  EXPECT_EQ(status.rank, 1);
  EXPECT_TRUE(says(status.message, {"rank 1 says 200 bytes of its commit: expected 40"}));
  EXPECT_TRUE(found.empty());
}

TEST(Divergence, WhatIsHandedRoundOfThisRankIsItsOwn) {
  Job job(3);
  job.sync();
  job.fabric.forge([](int32_t to, int, uint8_t* gathered) {
    if (to == 1) gathered[40 + 24] ^= 1;  // rank 1's digest
  });
  job.all([&](Worker& worker, int32_t rank) {
    EXPECT_TRUE(worker.state.save().ok());
    std::vector<Diverged> found;
    const Status status = worker.state.find_diverged(job.fabric.engine(rank), rank, seconds(5), &found);
    if (rank != 1) return;
    job.fabric.engine(rank).fail({HVD_PEER_LOST, "it goes"});
    EXPECT_EQ(status.code, HVD_INTERNAL);
    EXPECT_TRUE(says(status.message, {"of this rank's commit is not its own"}));
  });
}

}  // namespace
}  // namespace hvd::state
