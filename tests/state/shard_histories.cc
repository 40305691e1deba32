// Each begins with a job of its own, and ends when every element is as its steps give it.
#include "state/shard_histories.h"

#include <random>

namespace hvd::state {

void ShardHistories::change_sizes(int32_t kept) {
  SCOPED_TRACE(kept);
  start(4, kept);
  ASSERT_TRUE(ok(sync()));
  expect_step(0);
  uint64_t step = 0;
  for (const size_t size : {3U, 5U, 2U, 1U, 4U}) {
    for (const bool hidden : {false, true}) {
      const auto committed = commit(hidden);
      ASSERT_TRUE(ok(committed)) << text(committed);
      expect_step(++step);
    }
    // One is lost; of the others those beyond the new size leave and hand over what they alone have.
    if (workers.size() > 1) lose({step % workers.size()});
    restore();
    if (workers.size() > size) {
      form();
      ASSERT_TRUE(ok(sync()));
      for (auto& worker : workers) {
        if (worker->at.first != 0) continue;  // one of them knows
        for (size_t rank = size; rank < workers.size(); ++rank)
          worker->leaving.push_back(static_cast<int32_t>(rank));
      }
      const auto handed = all([](Worker& worker) { return worker.state.hand_over(); });
      ASSERT_TRUE(ok(handed)) << text(handed);
      while (workers.size() > size) lose({workers.size() - 1});
    }
    while (workers.size() < size) add(static_cast<int32_t>(size));
    form();
    const auto synced = sync();
    ASSERT_TRUE(ok(synced)) << text(synced);
    expect_step(step);
  }
}

void ShardHistories::cut_off_commits(int32_t kept) {
  SCOPED_TRACE(kept);
  for (const bool hidden : {false, true}) {
    std::vector<int> outcomes(3, 0);
    int last = 1000;
    for (int cut = 0; cut < last; ++cut) {
      for (size_t victim = 0; victim < 3; ++victim) {
        SCOPED_TRACE("cut off after " + std::to_string(cut) + ", rank " + std::to_string(victim) +
                     " is lost");
        start(3, kept);
        ASSERT_TRUE(ok(sync()));
        ASSERT_TRUE(ok(commit(hidden)));
        form();
        ASSERT_TRUE(ok(sync()));
        const int before = fabric->deliveries();
        fabric->break_after_deliveries(cut);
        const auto committed = commit(hidden);
        if (ok(committed)) last = std::min(last, fabric->deliveries() - before);
        for (const Status& status : committed) {
          EXPECT_TRUE(status.ok() || status.code == HVD_PEER_LOST) << status.message;
        }
        // A worker that was told so goes on at once, and writes where no other may look any more.
        if (committed[victim].ok() && !ok(committed)) {
          workers[victim]->train();
          EXPECT_FALSE(workers[victim]->state.save().ok());
        }
        lose({victim});
        restore();
        form();
        const auto synced = sync();
        ASSERT_TRUE(ok(synced)) << text(synced);
        const uint64_t step = workers[0]->step;
        expect_step(step);
        ASSERT_TRUE(step == 1 || step == 2);
        for (size_t rank = 0, survivor = 0; rank < committed.size(); ++rank) {
          if (rank == victim) continue;
          EXPECT_TRUE(!committed[rank].ok() || step == 2) << "who was told so has it, rank " << survivor++;
        }
        ++outcomes[step];
        ASSERT_TRUE(ok(commit(hidden)));
        expect_step(step + 1);
      }
    }
    EXPECT_GT(outcomes[1], 0);
    EXPECT_GT(outcomes[2], 3);
  }
}

void ShardHistories::cut_off_syncs(size_t every) {
  for (int cut = 0;; ++cut) {
    bool through = false;
    for (size_t victim = 0; victim < 4; victim += every) {
      SCOPED_TRACE("cut off after " + std::to_string(cut) + ", rank " + std::to_string(victim) + " is lost");
      start(4, 2);
      ASSERT_TRUE(ok(sync()));
      ASSERT_TRUE(ok(commit()));
      lose({1});
      restore();
      add(4);
      form(cut);
      through = ok(sync());
      lose({victim});  // one of the survivors, or the newcomer
      restore();
      form();
      const auto synced = sync();
      ASSERT_TRUE(ok(synced)) << text(synced);
      expect_step(1);
      ASSERT_TRUE(ok(commit()));
      expect_step(2);
    }
    if (through) return;
    ASSERT_LT(cut, 1000);
  }
}

void ShardHistories::give_up(int32_t kept) {
  SCOPED_TRACE(kept);
  for (int cut = 0;; ++cut) {
    SCOPED_TRACE("cut off after " + std::to_string(cut));
    start(4, kept);
    ASSERT_TRUE(ok(sync()));
    ASSERT_TRUE(ok(commit()));
    ASSERT_TRUE(ok(commit()));
    lose({3});
    for (auto& worker : workers) {
      worker->spoil();
      ASSERT_TRUE(worker->state.restore(false).ok());
    }
    add(4);
    form(cut);
    const bool through = ok(sync());
    fabric.reset();
    workers.pop_back();
    for (auto& worker : workers) {
      worker->fabric = nullptr;
      ASSERT_TRUE(worker->state.restore().ok());
      EXPECT_EQ(worker->resharded, 0);
    }
    expect_step(2);
    // It is whole: with another, all goes on.
    add(4);
    restore();
    form();
    const auto synced = sync();
    ASSERT_TRUE(ok(synced)) << text(synced);
    expect_step(2);
    if (through) return;
    ASSERT_LT(cut, 1000);
  }
}

void ShardHistories::lose_two(int32_t kept, bool in_commit) {
  SCOPED_TRACE(kept);
  int sentences = 0;
  bool through = false;
  for (int cut = 0; !through; ++cut) {
    ASSERT_LT(cut, 1000);
    for (size_t first = 0; first < 4; ++first) {
      for (size_t second = first + 1; second < 4; ++second) {
        SCOPED_TRACE("cut off after " + std::to_string(cut) + ", ranks " + std::to_string(first) + " and " +
                     std::to_string(second) + " are lost");
        start(4, kept);
        ASSERT_TRUE(ok(sync()));
        ASSERT_TRUE(ok(commit()));
        if (in_commit) {
          fabric->break_after_deliveries(cut);
          through = ok(commit());
        } else {
          form(cut);
          through = ok(sync());
        }
        lose({first, second});
        restore();
        form();
        const auto synced = sync();
        if (kept == 1 && !ok(synced)) {
          for (const Status& status : synced) {
            EXPECT_EQ(status.code, HVD_JOB_FAILED) << status.message;
            EXPECT_EQ(status.message, synced[0].message);
            EXPECT_NE(status.message.find("of state key 'm' are lost: rank "), std::string::npos)
                << status.message;
            EXPECT_NE(status.message.find(" held them, rank "), std::string::npos) << status.message;
            EXPECT_NE(status.message.find("and none of it is left"), std::string::npos) << status.message;
          }
          ++sentences;
          continue;
        }
        ASSERT_TRUE(ok(synced)) << text(synced);
        const uint64_t step = workers[0]->step;
        ASSERT_TRUE(step == 1 || (in_commit && step == 2));
        expect_step(step);
      }
    }
  }
  EXPECT_EQ(sentences > 0, kept == 1);
}

void ShardHistories::leave_and_lose(int32_t kept, int32_t size) {
  SCOPED_TRACE(kept);
  const auto ranks = static_cast<size_t>(size);
  const size_t may = kept > 0 ? static_cast<size_t>(kept) : 1;
  for (size_t leaver = 0; leaver < ranks; ++leaver) {
    for (size_t first = 0; first < ranks; ++first) {
      for (size_t second = may == 2 ? first + 1 : first; second < (may == 2 ? ranks : first + 1); ++second) {
        if (first == leaver || second == leaver) continue;
        SCOPED_TRACE("rank " + std::to_string(leaver) + " leaves, ranks " + std::to_string(first) + " and " +
                     std::to_string(second) + " are lost");
        start(size, kept);
        ASSERT_TRUE(ok(sync()));
        ASSERT_TRUE(ok(commit()));
        workers[leaver]->leaving = {static_cast<int32_t>(leaver)};
        const auto handed = all([](Worker& worker) { return worker.state.hand_over(); });
        ASSERT_TRUE(ok(handed)) << text(handed);
        std::vector<size_t> lost = {leaver, first};
        if (may == 2) lost.push_back(second);
        lose(lost);
        restore();
        form();
        const auto synced = sync();
        ASSERT_TRUE(ok(synced)) << text(synced);
        expect_step(1);
      }
    }
  }
}

void ShardHistories::random_histories(uint32_t seeds) {
  for (uint32_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto any = [&](size_t below) { return static_cast<size_t>(random() % below); };
    const auto kept = std::vector<int32_t>{1, 2, parity_of(2), parity_of(3)}[any(4)];
    const int32_t copies = std::max(kept, 1);  // as many may be lost
    start(static_cast<int32_t>(2 + any(3)), kept);
    ASSERT_TRUE(ok(sync()));
    const auto some_move = [&] {
      for (auto& worker : workers) {
        if (any(3) == 0) worker->move();
      }
    };
    for (int round = 0; round < 8; ++round) {
      some_move();
      fabric->break_after_deliveries(static_cast<int>(any(30)));
      for (int i = 0; i < 3 && ok(commit(any(2) == 0)); ++i) {}
      auto left = std::min(static_cast<size_t>(copies), workers.size() - 1);
      std::vector<Status> synced;
      do {  // as many are lost as there are copies, now or while the others recover
        const size_t lost = std::min(any(left + 1), workers.size() - 1);
        left -= lost;
        for (size_t i = 0; i < lost; ++i) lose({any(workers.size())});
        fabric.reset();
        restore();
        some_move();
        const size_t size = std::max(workers.size(), 1 + any(5));
        while (workers.size() < size) add(static_cast<int32_t>(size));
        form(left > 0 ? static_cast<int>(any(60)) : -1);
        synced = sync();
        for (const Status& status : synced)
          ASSERT_TRUE(status.ok() || status.code == HVD_PEER_LOST) << text(synced);
      } while (!ok(synced));
      const uint64_t step = workers[0]->step;
      expect_step(step);
    }
    if (HasFatalFailure()) return;
  }
}

}  // namespace hvd::state
