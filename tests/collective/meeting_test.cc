// Meeting on the board, case by case.
#include <gtest/gtest.h>

#include "collective/simulation.h"

namespace hvd::collective {
namespace {

using testing::Simulation;
using Meeting = Engine::Meeting;

struct Ranks {
  explicit Ranks(int32_t size, EngineConfig config = {}, std::function<uint64_t(int32_t)> word = {})
      : simulation(size, 1) {
    simulation.use_board();
    config.generation = 3;
    config.hosts.assign(static_cast<size_t>(size), "h");
    for (int32_t r = 0; r < size; ++r) {
      if (word) config.word = [word, r] { return word(r); };
      simulation.add_engine(config);
    }
    for (auto& engine : simulation.engines) engine->start();
    values.resize(static_cast<size_t>(size));
    large.resize(static_cast<size_t>(size));
  }
  Engine& operator[](int32_t r) { return *simulation.engines[static_cast<size_t>(r)]; }
  int32_t size() const { return static_cast<int32_t>(values.size()); }

  Submission sum(int32_t r, const std::string& name = "x") {
    values[static_cast<size_t>(r)] = r + 1;
    Submission s;
    s.name = name;
    s.kind = Kind::kAllreduce;
    s.inputs = {{&values[static_cast<size_t>(r)], HVD_DTYPE_INT32, {1}}};
    s.outputs = s.inputs;
    return s;
  }
  Submission large_sum(int32_t r, const std::string& name = "large", size_t elements = 5000) {
    auto& data = large[static_cast<size_t>(r)];
    data.assign(elements, r + 1);
    Submission s = sum(r, name);
    s.inputs = {{data.data(), HVD_DTYPE_INT32, {static_cast<int64_t>(data.size())}}};
    s.outputs = s.inputs;
    return s;
  }
  Status by_message(Engine& engine, Submission s) {
    const auto operation = engine.submit(std::move(s));
    EXPECT_TRUE(operation->wait(seconds(10)));
    return operation->status();
  }
  /// As a caller that waits does it, but for the waiting; the operations of those that did not meet.
  std::vector<std::shared_ptr<Operation>> call(const std::string& name = "x") {
    std::vector<std::shared_ptr<Operation>> operations;
    for (int32_t r = 0; r < size(); ++r) {
      Submission s = sum(r, name);
      if (auto met = (*this)[r].arrive(s)) {  // a rank that has not heard yet that the slot is closed
        EXPECT_EQ((*this)[r].look(*met), Meeting::kClosed);
        EXPECT_FALSE((*this)[r].conclude(*met, Meeting::kClosed, s).has_value());
      }
      operations.push_back((*this)[r].submit(std::move(s)));
    }
    while (simulation.step()) {}
    for (const auto& operation : operations)
      EXPECT_TRUE(operation->status().ok()) << operation->status().message;
    return operations;
  }
  void grant(const std::string& name = "x") {
    call(name);
    call(name);
  }
  size_t sent() const {
    size_t all = 0;
    for (const auto& [rank, count] : simulation.sent) all += count;
    return all;
  }
  /// All ranks meet, and no message is sent.
  void meet(const std::string& name = "x") {
    const size_t before = sent();
    std::vector<Submission> submissions;
    std::vector<std::optional<Engine::Met>> met;
    for (int32_t r = 0; r < size(); ++r) {
      submissions.push_back(sum(r, name));
      met.push_back((*this)[r].arrive(submissions.back()));
      ASSERT_TRUE(met.back().has_value()) << "rank " << r;
    }
    for (int32_t r = 0; r < size(); ++r) {
      const auto i = static_cast<size_t>(r);
      ASSERT_EQ((*this)[r].look(*met[i]), Meeting::kMet);
      const auto status = (*this)[r].conclude(*met[i], Meeting::kMet, submissions[i]);
      ASSERT_TRUE(status.has_value());
      EXPECT_EQ(status->status.code, HVD_OK);
      EXPECT_EQ(values[i], size() * (size() + 1) / 2);
    }
    EXPECT_EQ(sent(), before);
  }

  void grant_large(const std::string& name, size_t elements) {
    for (int i = 0; i < 2; ++i) {  // by messages
      std::vector<std::shared_ptr<Operation>> operations;
      for (int32_t r = 0; r < size(); ++r) {
        Submission s = large_sum(r, name, elements);
        EXPECT_FALSE((*this)[r].arrive(s).has_value());
        operations.push_back((*this)[r].submit(std::move(s)));
      }
      while (simulation.step()) {}
      for (const auto& operation : operations) EXPECT_TRUE(operation->status().ok());
    }
  }
  /// All ranks meet and then run the operation, and no message is sent.
  void meet_and_run(const std::string& name, size_t elements) {
    const size_t before = sent();
    std::vector<Submission> submissions;
    std::vector<std::optional<Engine::Met>> met;
    for (int32_t r = 0; r < size(); ++r) {
      submissions.push_back(large_sum(r, name, elements));
      met.push_back((*this)[r].arrive(submissions.back()));
      ASSERT_TRUE(met.back().has_value());
    }
    std::vector<std::shared_ptr<Operation>> operations;
    for (size_t r = 0; r < met.size(); ++r) {
      Engine& engine = (*this)[static_cast<int32_t>(r)];
      ASSERT_EQ(engine.look(*met[r]), Meeting::kMet);
      const auto concluded = engine.conclude(*met[r], Meeting::kMet, submissions[r]);
      ASSERT_TRUE(concluded.has_value());
      ASSERT_NE(concluded->operation, nullptr);
      operations.push_back(concluded->operation);
    }
    while (simulation.step()) {}
    for (size_t r = 0; r < operations.size(); ++r) {
      EXPECT_TRUE(operations[r]->status().ok()) << operations[r]->status().message;
      EXPECT_EQ(large[r], std::vector<int32_t>(elements, size() * (size() + 1) / 2));
    }
    EXPECT_EQ(sent(), before);
  }

  Simulation simulation;
  std::vector<int32_t> values;
  std::vector<std::vector<int32_t>> large;
};

TEST(Meeting, WhatIsCalledTwiceInARowNeedsNoMessages) {
  Ranks ranks(3);
  ranks.grant();
  for (int i = 0; i < 5; ++i) ranks.meet();
  ranks.grant("y");
  ranks.meet("y");
  ranks.meet("x");
}

// What is too large for the board runs in the backend after the meeting, without messages.
TEST(Meeting, WhatIsLargeRunsOnceAllHaveMet) {
  Ranks ranks(3);
  ranks.grant_large("large", 5000);
  for (int i = 0; i < 3; ++i) ranks.meet_and_run("large", 5000);
}

// Data that fit into a large note move in the backend as well once all large slots are taken.
TEST(Meeting, WithoutALargeSlotDataMoveInTheBackend) {
  Ranks ranks(3);
  for (size_t i = 0; i < backend::kLargeSlots; ++i) ranks.grant_large(std::to_string(i), 13);
  for (const size_t elements : {size_t{13}, backend::kBoardBytes / sizeof(int32_t)}) {
    const std::string name = "more " + std::to_string(elements);
    ranks.grant_large(name, elements);
    for (int i = 0; i < 3; ++i) ranks.meet_and_run(name, elements);
  }
  ranks.grant();
  ranks.meet();
}

// Its place among the operations is fixed when rank 0 arrives: what others begin before that must come
// earlier.
TEST(Meeting, WhoBeginsSomethingElseMeanwhileEndsTheMeeting) {
  EngineConfig config;
  config.small_data = 0;
  Ranks ranks(3, config);
  for (int i = 0; i < 2; ++i) {
    for (int32_t r = 0; r < 3; ++r) {
      Submission s = ranks.large_sum(r);
      EXPECT_FALSE(ranks[r].arrive(s).has_value());
      EXPECT_FALSE(ranks[r].submit(std::move(s))->done());
    }
    while (ranks.simulation.step()) {}
  }
  std::vector<Submission> submissions(3);
  std::vector<std::optional<Engine::Met>> met(3);
  const auto arrive = [&](int32_t r) {
    const auto at = static_cast<size_t>(r);
    submissions[at] = ranks.large_sum(r);
    met[at] = ranks[r].arrive(submissions[at]);
    ASSERT_TRUE(met[at].has_value());
  };
  arrive(1);
  arrive(2);
  std::vector<std::shared_ptr<Operation>> apart;
  for (int32_t r = 1; r < 3; ++r) {
    Submission s = ranks.sum(r, "apart");
    s.set = "apart";
    s.members = {1, 2};
    apart.push_back(ranks[r].submit(std::move(s)));
  }
  while (ranks.simulation.step()) {}
  arrive(0);
  std::vector<std::shared_ptr<Operation>> operations;
  for (int32_t r = 0; r < 3; ++r) {
    const auto at = static_cast<size_t>(r);
    EXPECT_EQ(ranks[r].look(*met[at]), Meeting::kClosed);
    EXPECT_FALSE(ranks[r].conclude(*met[at], Meeting::kClosed, submissions[at]).has_value());
    operations.push_back(ranks[r].submit(std::move(submissions[at])));
  }
  while (ranks.simulation.step()) {}
  for (const auto& operation : apart) EXPECT_TRUE(operation->status().ok()) << operation->status().message;
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_TRUE(operations[r]->status().ok()) << operations[r]->status().message;
    EXPECT_EQ(ranks.large[r], std::vector<int32_t>(5000, 6));
  }
  EXPECT_EQ(ranks.values[1], 5);
}

TEST(Meeting, WhoDoesNotComeIsWaitedForByMessages) {
  Ranks ranks(2);
  ranks.grant();
  Submission first = ranks.sum(0);
  EXPECT_FALSE(ranks[0].meet(first).has_value());  // after a moment
  const auto operation = ranks[0].submit(std::move(first));
  EXPECT_NE(operation->waiting_for().find("rank 1 (host h) has not called 'x'"), std::string::npos);
  Submission second = ranks.sum(1);
  EXPECT_FALSE(ranks[1].meet(second).has_value());
  EXPECT_EQ(ranks.by_message(ranks[1], std::move(second)).code, HVD_OK);
  EXPECT_EQ(operation->status().code, HVD_OK);
  EXPECT_EQ(ranks.values[0], 3);
  ranks.call();
  ranks.meet();  // granted anew
}

// An operation to be waited for later goes by messages, for all; and a name in use stays in use.
TEST(Meeting, ACallByMessageEndsTheHabitForAll) {
  Ranks ranks(2);
  ranks.grant();
  Submission waits = ranks.sum(1);
  auto met = ranks[1].arrive(waits);
  ASSERT_TRUE(met.has_value());
  EXPECT_EQ(ranks[1].submit(ranks.sum(1))->status().message,
            "allreduce 'x': an operation of that name is still under way on this rank");
  ranks.values[1] = 2;
  EXPECT_EQ(ranks[1].look(*met), Meeting::kOpen);
  const auto later = ranks[0].submit(ranks.sum(0));
  EXPECT_EQ(ranks[1].look(*met), Meeting::kClosed) << "at once";
  Submission again = ranks.sum(0);
  EXPECT_FALSE(ranks[0].arrive(again).has_value());
  EXPECT_EQ(ranks[0].submit(std::move(again))->status().code, HVD_INVALID);
  EXPECT_FALSE(ranks[1].conclude(*met, Meeting::kClosed, waits).has_value());
  EXPECT_EQ(ranks.by_message(ranks[1], std::move(waits)).code, HVD_OK);
  EXPECT_EQ(later->status().code, HVD_OK);
}

// contract 9: the ranks that differ hear of it, and what differs twice is no agreement.
TEST(Meeting, WhatDiffersIsAMismatchEachTime) {
  Ranks ranks(2);
  ranks.grant();
  ranks.meet();
  for (int i = 0; i < 4; ++i) {
    Submission right = ranks.sum(0), wrong = ranks.sum(1);
    wrong.reduction = HVD_REDUCTION_MAX;
    EXPECT_FALSE(ranks[1].arrive(wrong).has_value()) << i;
    const auto other = ranks[1].submit(std::move(wrong));
    EXPECT_FALSE(ranks[0].meet(right).has_value()) << i;
    EXPECT_EQ(ranks.by_message(ranks[0], std::move(right)).code, HVD_MISMATCH);
    while (ranks.simulation.step()) {}
    EXPECT_EQ(other->status().code, HVD_MISMATCH);
  }
}

// contract 1: a call that one rank makes before a check and another after it proposes nothing.
TEST(Meeting, BetweenDifferentChecksNothingIsProposed) {
  Ranks ranks(2);
  ranks.grant();
  uint64_t word = 0;
  const size_t before = ranks.sent();
  EXPECT_TRUE(ranks[1].check(seconds(10), &word).ok());
  ranks.meet();
  EXPECT_TRUE(ranks[0].check(seconds(10), &word).ok());
  EXPECT_EQ(ranks.sent(), before) << "both knew from the calls before";
  // Neither knows the next one: rank 1 asks, and waits until rank 0 does.
  bool asked = false;
  ranks.simulation.advance = [&] {
    if (!asked) {
      asked = true;
      EXPECT_GT(ranks.sent(), before);
      EXPECT_TRUE(ranks[0].check(seconds(10), &word).ok());
      return true;
    }
    return ranks.simulation.step();
  };
  EXPECT_TRUE(ranks[1].check(seconds(10), &word).ok());
  EXPECT_TRUE(asked);
}

TEST(Meeting, ACheckAfterAMeetingNeedsNoMessages) {
  Ranks ranks(3);
  ranks.grant();
  for (int i = 0; i < 3; ++i) {
    ranks.meet();
    const size_t before = ranks.sent();
    uint64_t word = 0;
    for (int32_t r = 0; r < 3; ++r) EXPECT_TRUE(ranks[r].check(seconds(10), &word).ok());
    EXPECT_EQ(ranks.sent(), before);
  }
}

// contract 1: a rank that has left a call open can't know, and asks. The others know from the meeting and do
// not: rank 0 answers with what the meeting said, whether it has heard the question before or after.
TEST(Meeting, WhoCannotKnowIsToldWhatTheMeetingSaid) {
  for (const bool before : {false, true}) {
    EngineConfig config;
    config.word = [] { return uint64_t{7}; };
    Ranks ranks(2, config);
    ranks.grant();
    uint64_t word = 0;
    for (int32_t r = 0; r < 2; ++r) EXPECT_TRUE(ranks[r].check(seconds(10), &word).ok());
    Submission of_0 = ranks.sum(0), of_1 = ranks.sum(1);
    auto met_0 = ranks[0].arrive(of_0), met_1 = ranks[1].arrive(of_1);
    ASSERT_TRUE(met_0.has_value() && met_1.has_value());
    ASSERT_EQ(ranks[1].look(*met_1), Meeting::kMet);
    EXPECT_TRUE(ranks[1].conclude(*met_1, Meeting::kMet, of_1).has_value());
    const auto conclude_0 = [&] {
      ASSERT_EQ(ranks[0].look(*met_0), Meeting::kMet);
      EXPECT_TRUE(ranks[0].conclude(*met_0, Meeting::kMet, of_0).has_value());
    };
    if (!before) conclude_0();
    const auto open = ranks[1].submit(ranks.sum(1, "open"));
    bool concluded = !before;
    ranks.simulation.advance = [&] {
      if (ranks.simulation.step()) return true;
      return !std::exchange(concluded, true) && (conclude_0(), true);
    };
    word = 0;
    EXPECT_TRUE(ranks[1].check(milliseconds(200), &word).ok());
    EXPECT_EQ(word, 7U);
    const size_t sent = ranks.simulation.sent[0];
    EXPECT_TRUE(ranks[0].check(milliseconds(200), &word).ok());
    EXPECT_EQ(word, 7U);
    EXPECT_EQ(ranks.simulation.sent[0], sent);
  }
}

// contract 1: what is learned of a check in another order is the same. A word that is newer than the
// meeting's comes by a message while a rank has met and does not know it yet.
TEST(Meeting, AnOlderWordDoesNotReplaceANewerOne) {
  for (const int32_t late : {0, 1}) {
    const int32_t other = 1 - late;
    uint64_t words[] = {7, 7};
    Ranks ranks(2, {}, [&](int32_t r) { return words[r]; });
    ranks.grant();
    uint64_t word = 0;
    for (int32_t r = 0; r < 2; ++r) EXPECT_TRUE(ranks[r].check(seconds(10), &word).ok());
    const auto early = ranks[late].submit(ranks.sum(late, "y"));
    Submission mine = ranks.sum(late), theirs = ranks.sum(other);
    auto met = ranks[late].arrive(mine), their_met = ranks[other].arrive(theirs);
    ASSERT_TRUE(met.has_value() && their_met.has_value());
    ASSERT_EQ(ranks[other].look(*their_met), Meeting::kMet);
    EXPECT_TRUE(ranks[other].conclude(*their_met, Meeting::kMet, theirs).has_value());
    words[other] = 9;
    const auto last = ranks[other].submit(ranks.sum(other, "y"));
    while (ranks.simulation.step()) {}
    EXPECT_TRUE(early->done() && last->done());
    ASSERT_EQ(ranks[late].look(*met), Meeting::kMet);
    EXPECT_TRUE(ranks[late].conclude(*met, Meeting::kMet, mine).has_value());
    // One rank knows; the other can't, and asks.
    const auto open = ranks[1].submit(ranks.sum(1, "open"));
    for (int32_t r = 0; r < 2; ++r) {
      word = 0;
      EXPECT_TRUE(ranks[r].check(seconds(10), &word).ok());
      EXPECT_EQ(word, 9U) << "rank " << r << ", late is " << late;
    }
  }
}

TEST(Meeting, BroadcastsAndBarriersMeetAsWell) {
  Ranks ranks(3);
  for (const Kind kind : {Kind::kBroadcast, Kind::kBarrier}) {
    for (int i = 0; i < 4; ++i) {
      const size_t before = ranks.sent();
      std::vector<Submission> submissions(3);
      std::vector<std::optional<Engine::Met>> met(3);
      for (int32_t r = 0; r < 3; ++r) {
        Submission& s = submissions[static_cast<size_t>(r)];
        s = ranks.sum(r, kind == Kind::kBarrier ? "barrier" : "broadcast");
        s.kind = kind;
        s.root = kind == Kind::kBroadcast ? 1 : 0;
        s.inputs.clear();
        if (kind == Kind::kBarrier) s.outputs.clear();
        met[static_cast<size_t>(r)] = ranks[r].arrive(s);
        EXPECT_EQ(met[static_cast<size_t>(r)].has_value(), i >= 2);
      }
      for (int32_t r = 0; r < 3; ++r) {
        const auto at = static_cast<size_t>(r);
        if (!met[at]) {
          (void)ranks[r].submit(std::move(submissions[at]));
        } else {
          ASSERT_EQ(ranks[r].look(*met[at]), Meeting::kMet);
          EXPECT_TRUE(ranks[r].conclude(*met[at], Meeting::kMet, submissions[at]).has_value());
        }
      }
      while (ranks.simulation.step()) {}
      if (kind == Kind::kBroadcast) { EXPECT_EQ(ranks.values, (std::vector<int32_t>{2, 2, 2})); }
      if (i >= 2) { EXPECT_EQ(ranks.sent(), before); }
    }
  }
}

// Whoever has joined is not waited for; nothing is granted without it.
TEST(Meeting, JoinedRanksAreNotWaitedFor) {
  Ranks ranks(3);
  ranks.grant();
  Submission join;
  join.name = "hvd.join";
  join.kind = Kind::kJoin;
  const auto joined = ranks[2].submit(join);
  while (ranks.simulation.step()) {}
  for (int i = 0; i < 4; ++i) {
    std::vector<std::shared_ptr<Operation>> operations;
    for (int32_t r = 0; r < 2; ++r) {
      Submission s = ranks.sum(r);
      EXPECT_FALSE(ranks[r].meet(s).has_value()) << i;
      operations.push_back(ranks[r].submit(std::move(s)));
    }
    while (ranks.simulation.step()) {}
    for (const auto& operation : operations) EXPECT_EQ(operation->status().code, HVD_OK);
    EXPECT_EQ(ranks.values[0], 3);
  }
  for (int32_t r = 0; r < 2; ++r) (void)ranks[r].submit(join);
  while (ranks.simulation.step()) {}
  EXPECT_TRUE(joined->done());
  ranks.grant();
  ranks.meet();
}

// contract 3: a generation that is lost is lost for those who meet as well.
TEST(Meeting, AfterAFailureNobodyMeets) {
  Ranks ranks(2);
  ranks.grant();
  Submission waits = ranks.sum(0);
  auto met = ranks[0].arrive(waits);
  ASSERT_TRUE(met.has_value());
  Status lost(HVD_PEER_LOST, "rank 1 is lost");
  ranks[0].fail(lost);
  EXPECT_EQ(ranks[0].close(*met), Meeting::kClosed);
  EXPECT_FALSE(ranks[0].conclude(*met, Meeting::kClosed, waits).has_value());
  EXPECT_EQ(ranks[0].submit(std::move(waits))->status().message, "rank 1 is lost");
  Submission next = ranks.sum(0);
  EXPECT_FALSE(ranks[0].arrive(next).has_value());
}

// More names than slots, and names that never repeat.
TEST(Meeting, MoreNamesThanSlotsGoByMessages) {
  Ranks ranks(2);
  const size_t slots = backend::kBoardSlots - 1;  // and one for checks
  for (size_t i = 0; i < slots; ++i) ranks.grant("n" + std::to_string(i));
  for (int i = 0; i < 4; ++i) ranks.call("one more");
  for (int i = 0; i < 3000; ++i) ranks.call("once " + std::to_string(i));
  for (size_t i = 0; i < slots; ++i) ranks.meet("n" + std::to_string(i));
}

}  // namespace
}  // namespace hvd::collective
