// Process sets through histories of memberships: whom a set means, by each rule, in each generation.
#include "elastic/process_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace hvd::elastic {
namespace {

struct Worker {
  uint64_t id;
  std::string host;
};

/// A job's members through its generations: some die, some come, survivors keep their order (contract 7).
class History {
 public:
  explicit History(uint64_t seed) : random_(seed) {
    const auto count = below(12) + 1;
    for (uint64_t i = 0; i < count; ++i) add();
  }

  void next() {
    ++generation_;
    const size_t before = workers_.size();
    std::erase_if(workers_, [&](const Worker&) { return below(4) == 0; });
    const bool anybody = !workers_.empty();
    const auto newcomers = below(4) + (anybody ? 0 : 1);
    for (uint64_t i = 0; i < newcomers; ++i) add();
    ASSERT_GT(workers_.size() + before, 0U);
  }

  /// As the rank-th member gets it.
  session::Assignment assignment(int32_t rank) const {
    session::Assignment result;
    result.generation = generation_;
    result.rank = rank;
    std::map<std::string, int32_t> on_host;
    for (const Worker& worker : workers_) {
      Member member;
      member.worker = worker.id;
      member.host = worker.host;
      member.local_rank = on_host[worker.host]++;
      result.members.push_back(member);
    }
    return result;
  }

  uint64_t below(uint64_t bound) { return std::uniform_int_distribution<uint64_t>(0, bound - 1)(random_); }
  int32_t size() const { return static_cast<int32_t>(workers_.size()); }
  uint64_t generation() const { return generation_; }
  const std::vector<Worker>& workers() const { return workers_; }

  std::vector<int32_t> some_ranks() {
    std::vector<int32_t> ranks;
    for (int32_t rank = 0; rank < size(); ++rank) {
      if (below(2) == 0) ranks.push_back(rank);
    }
    if (ranks.empty()) ranks.push_back(static_cast<int32_t>(below(static_cast<uint64_t>(size()))));
    std::shuffle(ranks.begin(), ranks.end(), random_);
    return ranks;
  }

 private:
  void add() { workers_.push_back({next_id_++, std::string(1, static_cast<char>('a' + below(4)))}); }

  std::mt19937_64 random_;
  std::vector<Worker> workers_;
  uint64_t next_id_ = 1;
  uint64_t generation_ = 1;
};

/// Runs `check(history, rank)` for every rank of every generation of many histories.
template <class Check>
void through_histories(Check check) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    History history(seed);
    check(history);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(ProcessSets, WorkersKeepTheirIdentities) {
  through_histories([](History& history) {
    const std::vector<int32_t> ranks = history.some_ranks();
    std::set<uint64_t> ids;
    for (const int32_t rank : ranks) ids.insert(history.workers()[static_cast<size_t>(rank)].id);
    // rule 0 is HVD_SET_RULE_WORKERS
    ProcessSet set("some", history.below(2) == 0 ? 0 : HVD_SET_RULE_WORKERS, ranks, history.assignment(0));
    for (int step = 0; step < 8; ++step, history.next()) {
      std::vector<int32_t> expected;
      for (int32_t i = 0; i < history.size(); ++i) {
        if (ids.contains(history.workers()[static_cast<size_t>(i)].id)) expected.push_back(i);
      }
      EXPECT_EQ(set.in(history.assignment(0))->ranks, expected);
    }
  });
}

TEST(ProcessSets, RanksKeepTheirNumbers) {
  through_histories([](History& history) {
    const std::vector<int32_t> ranks = history.some_ranks();
    ProcessSet set("some", HVD_SET_RULE_RANKS, ranks, history.assignment(0));
    for (int step = 0; step < 8; ++step) {
      std::vector<int32_t> expected = ranks;
      std::sort(expected.begin(), expected.end());
      std::erase_if(expected, [&](int32_t rank) { return rank >= history.size(); });
      EXPECT_EQ(set.in(history.assignment(0))->ranks, expected);
      history.next();
    }
  });
}

TEST(ProcessSets, LocalAndCrossFollowTheWorker) {
  through_histories([](History& history) {
    // The worker may get another rank in each generation, while it lives.
    const uint64_t id = history.workers()[history.below(static_cast<uint64_t>(history.size()))].id;
    std::optional<ProcessSet> local;
    std::optional<ProcessSet> cross;
    for (int step = 0; step < 8; ++step, history.next()) {
      int32_t rank = 0;
      while (rank < history.size() && history.workers()[static_cast<size_t>(rank)].id != id) ++rank;
      if (rank == history.size()) return;
      const session::Assignment assignment = history.assignment(rank);
      if (!local) {
        local.emplace("host", HVD_SET_RULE_LOCAL, std::nullopt, assignment);
        cross.emplace("column", HVD_SET_RULE_CROSS, std::nullopt, assignment);
      }
      const Member& self = assignment.members[static_cast<size_t>(rank)];
      std::vector<int32_t> on_host;
      std::vector<int32_t> across;
      for (int32_t i = 0; i < history.size(); ++i) {
        const Member& member = assignment.members[static_cast<size_t>(i)];
        if (member.host == self.host) on_host.push_back(i);
        if (member.local_rank == self.local_rank) across.push_back(i);
      }
      const auto here = local->member_of(assignment);
      EXPECT_EQ(here->ranks, on_host);
      EXPECT_EQ(here->rank, self.local_rank);
      EXPECT_EQ(here->local_rank, self.local_rank);
      EXPECT_EQ(here->local_size, static_cast<int32_t>(on_host.size()));
      EXPECT_EQ(here->cross_rank, 0);
      EXPECT_EQ(here->cross_size, 1);
      const auto there = cross->member_of(assignment);
      EXPECT_EQ(there->ranks, across);
      EXPECT_EQ(there->local_rank, 0) << "one of each host";
      EXPECT_EQ(there->local_size, 1);
      EXPECT_EQ(there->cross_rank, there->rank);
      EXPECT_EQ(there->cross_size, static_cast<int32_t>(across.size()));
    }
  });
}

TEST(ProcessSets, EndsWithItsGeneration) {
  through_histories([](History& history) {
    const std::vector<int32_t> ranks = history.some_ranks();
    ProcessSet set("short", HVD_SET_RULE_END, ranks, history.assignment(0));
    EXPECT_EQ(set.in(history.assignment(0))->ranks.size(), ranks.size());
    history.next();
    try {
      set.in(history.assignment(0));
      FAIL() << "it did not end";
    } catch (const Error& error) {
      EXPECT_EQ(error.status().code, HVD_INVALID);
      EXPECT_NE(error.status().message.find("'short' ended with generation 1"), std::string::npos)
          << error.status().message;
    }
  });
}

// Every member finds the same members, places that are different, and numbers that fit each other.
TEST(ProcessSets, MembersAgreeOnTheirPlaces) {
  through_histories([](History& history) {
    const std::vector<int32_t> ranks = history.some_ranks();
    std::map<uint64_t, std::unique_ptr<ProcessSet>> sets;  // by worker
    for (int32_t rank = 0; rank < history.size(); ++rank) {
      sets[history.workers()[static_cast<size_t>(rank)].id] =
          std::make_unique<ProcessSet>("some", HVD_SET_RULE_WORKERS, ranks, history.assignment(rank));
    }
    for (int step = 0; step < 8; ++step, history.next()) {
      std::optional<std::vector<int32_t>> agreed;
      std::set<std::pair<std::string, int32_t>> seats;     // (host, local rank)
      std::set<std::pair<int32_t, int32_t>> cross_places;  // (local rank, cross rank)
      for (int32_t rank = 0; rank < history.size(); ++rank) {
        const auto found = sets.find(history.workers()[static_cast<size_t>(rank)].id);
        if (found == sets.end()) continue;
        const session::Assignment assignment = history.assignment(rank);
        const auto place = found->second->in(assignment);
        if (!agreed) agreed = place->ranks;
        EXPECT_EQ(place->ranks, *agreed);
        EXPECT_EQ(place->generation, history.generation());
        const auto position = std::find(agreed->begin(), agreed->end(), rank);
        if (position == agreed->end()) {
          EXPECT_EQ(place->rank, -1);
          EXPECT_EQ(place->local_rank, -1);
          EXPECT_EQ(place->cross_rank, -1);
          EXPECT_EQ(place->local_size + place->cross_size, 0);
          EXPECT_THROW(found->second->member_of(assignment), Error);
          continue;
        }
        EXPECT_EQ(place->rank, position - agreed->begin());
        EXPECT_LT(place->local_rank, place->local_size);
        EXPECT_LT(place->cross_rank, place->cross_size);
        const std::string& host = history.workers()[static_cast<size_t>(rank)].host;
        EXPECT_TRUE(seats.emplace(host, place->local_rank).second);
        EXPECT_TRUE(cross_places.emplace(place->local_rank, place->cross_rank).second);
      }
    }
  });
}

TEST(ProcessSets, BadDefinitionsAreNamed) {
  const History history(7);
  const session::Assignment now = history.assignment(0);
  const auto message = [&](hvd_set_rule rule, std::optional<std::vector<int32_t>> ranks) -> std::string {
    try {
      const ProcessSet set("team", rule, std::move(ranks), now);
    } catch (const Error& error) {
      EXPECT_EQ(error.status().code, HVD_INVALID);
      return error.status().message;
    }
    return "accepted";
  };
  const int32_t size = history.size();
  EXPECT_EQ(message(6, std::vector<int32_t>{0}),
            "rule of process set 'team' is 6: expected one of hvd_set_rule, 1 to 5");
  EXPECT_EQ(message(HVD_SET_RULE_RANKS, std::nullopt),
            "process set 'team' has no ranks: expected one or more");
  EXPECT_EQ(message(HVD_SET_RULE_RANKS, std::vector<int32_t>{0, size}),
            fmt::format("process set 'team' has rank {}: expected 0 to {}", size, size - 1));
  EXPECT_EQ(message(HVD_SET_RULE_END, std::vector<int32_t>{-1}),
            fmt::format("process set 'team' has rank -1: expected 0 to {}", size - 1));
  EXPECT_EQ(message(HVD_SET_RULE_WORKERS, std::vector<int32_t>{0, 0}), "process set 'team' has rank 0 twice");
  EXPECT_EQ(
      message(HVD_SET_RULE_LOCAL, std::vector<int32_t>{0}),
      "ranks of process set 'team' are given: expected NULL and a count of 0 with rule HVD_SET_RULE_LOCAL");
}

TEST(ProcessSets, WhoIsNoMemberIsToldWhoIs) {
  session::Assignment assignment;
  assignment.generation = 3;
  assignment.rank = 1;
  for (uint64_t i = 0; i < 40; ++i) {
    Member member;
    member.worker = i + 1;
    member.host = "a";
    member.local_rank = static_cast<int32_t>(i);
    assignment.members.push_back(member);
  }
  const auto message = [&](std::vector<int32_t> ranks) {
    ProcessSet set("team", HVD_SET_RULE_RANKS, std::move(ranks), assignment);
    try {
      set.member_of(assignment);
    } catch (const Error& error) { return error.status().message; }
    return std::string("accepted");
  };
  EXPECT_EQ(message({4, 2}),
            "rank 1 is no member of process set 'team': its members in generation 3 are 2, 4");
  std::vector<int32_t> many;
  for (int32_t rank = 2; rank < 40; ++rank) many.push_back(rank);
  EXPECT_NE(message(many).find("16, 17, ... (38 in all)"), std::string::npos) << message(many);
}

}  // namespace
}  // namespace hvd::elastic
