// The engine when something goes wrong: lost peers, silence, time-outs, and everything at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "collective/calls.h"
#include "collective/cluster.h"

namespace hvd::collective {
namespace {

using testing::allreduce;
using testing::Cluster;
using testing::ClusterConfig;
using testing::expect_all;
using testing::InProcessHub;
using testing::kDeadline;
using testing::named;

Submission barrier(const std::string& name) { return named(name, Kind::kBarrier); }

/// Until the engine has seen what another thread brings; fails after the deadline.
template <class Condition>
void eventually(const char* what, Condition condition) {
  for (const Time deadline = now() + kDeadline; !condition(); std::this_thread::yield()) {
    ASSERT_LT(now(), deadline) << what;
  }
}

/// Small data goes through the backend as well.
ClusterConfig in_backend(int32_t size, const std::string& backend = "threads") {
  ClusterConfig config;
  config.size = size;
  config.backend = backend;
  config.small_data = 0;
  return config;
}

Status lost() {
  Status status(HVD_PEER_LOST, "rank 1 on host h0 lost: connection closed");
  return status.at_rank(1);
}

// Contract 3: every pending and every later operation returns the reason.
TEST(EngineFailure, FailCompletesWhatIsPendingAndWhatComesLater) {
  Cluster cluster{in_backend(2)};
  std::vector<float> in(10), out(10);
  const auto unmatched = cluster.engine(0).submit(barrier("unmatched"));
  cluster.hub.hold(true);
  const auto running =
      cluster.submit([&](int32_t) { return allreduce("running", in, in, HVD_DTYPE_FLOAT32); });
  eventually("rank 0's part is in the backend", [&] { return cluster.hub.in_flight() == 1; });
  cluster.engine(0).fail(lost());
  EXPECT_TRUE(unmatched->done());
  for (const auto& op : {unmatched, running[0], cluster.engine(0).submit(barrier("later"))}) {
    expect_all({op}, HVD_PEER_LOST);
    EXPECT_EQ(op->status().message, lost().message);
    EXPECT_EQ(op->status().rank, 1);
    EXPECT_EQ(op->status().generation, 7u);
    EXPECT_EQ(op->waiting_for(), "");
  }
  cluster.engine(0).fail(Status(HVD_CLOSED, "second"));
  EXPECT_EQ(cluster.engine(0).submit(barrier("later"))->status().code, HVD_PEER_LOST)
      << "the first reason stays";
  EXPECT_EQ(cluster.engine(0).failure().message, lost().message);
}

TEST(EngineFailure, ABackendsFailureEndsTheGeneration) {
  Cluster cluster{in_backend(2)};
  std::vector<float> in(10);
  cluster.hub.hold(true);
  const auto unmatched = cluster.engine(0).submit(barrier("unmatched"));
  const auto running =
      cluster.submit([&](int32_t) { return allreduce("running", in, in, HVD_DTYPE_FLOAT32); });
  eventually("both parts are in the backend", [&] { return cluster.hub.in_flight() == 1; });
  EXPECT_TRUE(cluster.engine(0).failure().ok());
  eventually("operation fails", [&] {
    cluster.hub.fail_operations(0, lost());
    return running[0]->done();
  });
  EXPECT_EQ(cluster.engine(0).failure().rank, 1) << "whose operation has failed may ask for whom it has lost";
  for (const auto& op : {running[0], unmatched, cluster.engine(0).submit(barrier("later"))}) {
    expect_all({op}, HVD_PEER_LOST);
    EXPECT_EQ(op->status().rank, 1);
  }
  EXPECT_FALSE(running[1]->done());
}

TEST(EngineFailure, TheDestructorWaitsForTheBackend) {
  std::vector<float> in(10);
  std::shared_ptr<Operation> op;
  {
    Cluster cluster{in_backend(2)};
    cluster.hub.hold(true);
    const auto ops = cluster.submit([&](int32_t) { return allreduce("x", in, in, HVD_DTYPE_FLOAT32); });
    eventually("in the backend", [&] { return cluster.hub.in_flight() == 1; });
    op = ops[1];
  }
  ASSERT_TRUE(op->done());
  EXPECT_EQ(op->status().code, HVD_CLOSED);
  EXPECT_EQ(op->waiting_for(), "");
}

// Contract 12.
TEST(EngineFailure, TimeoutNamesWhoDidNotCall) {
  Cluster cluster{{4}};
  auto ops = cluster.submit([](int32_t) { return barrier("epoch"); }, {0, 2});
  eventually("rank 0 knows", [&] {
    return ops[0]->waiting_for() == "ranks 1 (host h0), 3 (host h1) have not called 'epoch'";
  });
  EXPECT_EQ(ops[2]->waiting_for(), "waiting for the other ranks to call 'epoch'");
  EXPECT_FALSE(ops[2]->wait(Duration::zero()));
  cluster.run_timers(0);
  expect_all(ops, HVD_TIMEOUT);
  EXPECT_EQ(ops[2]->status().message, ops[0]->status().message);
  EXPECT_EQ(ops[0]->status().message,
            "barrier 'epoch': ranks 1 (host h0), 3 (host h1) have not called it within 600 s");
  expect_all(cluster.submit([](int32_t) { return barrier("epoch"); }, {1, 3}), HVD_TIMEOUT);
  expect_all(cluster.submit([](int32_t) { return barrier("epoch"); }));
}

TEST(EngineFailure, WrongNamesAreAMismatch) {
  Cluster cluster{{2}};
  auto ops = cluster.submit([](int32_t r) { return barrier(r == 0 ? "x" : "y"); });
  expect_all(cluster.submit([](int32_t) { return barrier("both"); }));  // after it rank 0 knows of y
  cluster.run_timers(0);
  expect_all(ops, HVD_MISMATCH);
  for (const auto& op : ops) {
    EXPECT_EQ(
        op->status().message,
        "every rank waits, but not for the same operation: rank 0 (host h0) in 'x', rank 1 (host h0) in 'y'");
  }
}

TEST(EngineFailure, StallsAreReportedToWhoeverWaits) {
  Cluster cluster{{3, "threads", seconds(60), true}};
  auto ops = cluster.submit([](int32_t) { return barrier("s"); }, {1, 2});
  expect_all(cluster.submit([](int32_t) { return barrier("after"); }));  // after it rank 0 knows of both
  for (int tick = 0; tick < 3 && cluster.lines().empty(); ++tick) cluster.engine(0).tick(cluster.wake(0));
  eventually("the stall notice comes",
             [&] { return ops[2]->waiting_for() == "rank 0 (host h0) has not called 's'"; });
  const auto lines = cluster.lines();
  EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
    return line.find("barrier 's': rank 0 (host h0) has not called it for") == 0;
  }));
  ops[0] = cluster.engine(0).submit(barrier("s"));
  expect_all(ops);
}

TEST(EngineFailure, ASilentCoordinatorIsATimeout) {
  Cluster cluster{{2}};
  cluster.hub.mute(1);
  std::vector<float> in(1);
  const auto op = cluster.engine(1).submit(allreduce("x", in, in, HVD_DTYPE_FLOAT32));
  EXPECT_EQ(cluster.wakes(1), 1);
  cluster.engine(1).tick(now() + seconds(609));
  EXPECT_FALSE(op->done());
  EXPECT_EQ(cluster.wakes(1), 2) << "armed again";
  cluster.engine(1).tick(cluster.wake(1));
  ASSERT_TRUE(op->done());
  EXPECT_EQ(op->status().code, HVD_TIMEOUT);
  EXPECT_EQ(op->status().rank, 0);
  EXPECT_EQ(op->status().message,
            "allreduce 'x': rank 0 (host h0), which coordinates, has not answered within 610 s");
  EXPECT_EQ(cluster.wakes(1), 2) << "nothing is pending";
}

// Contract 19: what the others said while this process was stopped is still to be read.
TEST(EngineFailure, WhoWasHeldUpGivesTheOthersTheTimeThatItMissed) {
  Cluster cluster{{3, "threads", seconds(60), true}};
  auto ops = cluster.submit([](int32_t) { return barrier("x"); }, {0, 1});
  expect_all(cluster.submit([](int32_t) { return barrier("after"); }));
  cluster.engine(0).tick(cluster.wake(0) + seconds(1000));
  EXPECT_FALSE(ops[0]->done());
  EXPECT_TRUE(cluster.lines().empty()) << cluster.lines()[0];
  const auto late = cluster.engine(1).submit(barrier("late"));
  cluster.engine(1).tick(cluster.wake(1) + seconds(1000));
  EXPECT_FALSE(ops[1]->done() || late->done());
  ops[2] = cluster.engine(2).submit(barrier("x"));
  expect_all(ops);
  expect_all(cluster.submit([](int32_t) { return barrier("heard"); }));  // after it rank 0 knows of it
  cluster.run_timers(0);
  expect_all({nullptr, late}, HVD_TIMEOUT);
}

// Contract 12: nor does who is late each time wait for ever.
TEST(EngineFailure, WhoIsAlwaysLateGivesUpInTheEnd) {
  Cluster cluster{{2, "threads", Duration(0), true}};
  const auto op = cluster.engine(0).submit(barrier("x"));
  for (int tick = 0; tick < 3 && !op->done(); ++tick) cluster.engine(0).tick(cluster.wake(0) + seconds(5));
  expect_all({op}, HVD_TIMEOUT);
}

/// Lines of the log that have this in them.
size_t count_lines(Cluster& cluster, const std::string& part) {
  const auto lines = cluster.lines();
  return static_cast<size_t>(std::count_if(lines.begin(), lines.end(), [&](const std::string& line) {
    return line.find(part) != std::string::npos;
  }));
}

// Neither a full log nor the process' end: the generation's, by whoever sends what makes no sense.
TEST(EngineFailure, WhoSendsWhatMakesNoSenseAgainAndAgainIsLost) {
  for (const auto& [to, from] : {std::pair(0, 2), std::pair(1, 0)}) {
    std::atomic<int> broken{-1};
    ClusterConfig config{3};
    config.broken = [&broken, to = to](int32_t rank, const Status& why) {
      if (rank == to) broken = why.rank;
    };
    Cluster cluster{config};
    const auto op = cluster.engine(to).submit(barrier("x"));
    const std::vector<uint8_t> junk{1, 2, 3};
    for (int i = 0; i < 999; ++i) cluster.engine(to).deliver(from, junk);
    EXPECT_FALSE(op->done());
    EXPECT_EQ(broken, -1);
    EXPECT_GE(count_lines(cluster, "dropped a message of 3 bytes"), 1U);
    EXPECT_LT(count_lines(cluster, "dropped a message of 3 bytes"), 500U);
    cluster.engine(to).deliver(from, junk);
    expect_all({op}, HVD_PEER_LOST);
    EXPECT_EQ(op->status().rank, from);
    EXPECT_EQ(op->status().message.find("1000 messages of rank " + std::to_string(from)), 0U)
        << op->status().message;
    EXPECT_EQ(broken, from);
    const size_t lines = cluster.lines().size();
    for (int i = 0; i < 100; ++i) cluster.engine(to).deliver(from, junk);
    EXPECT_EQ(cluster.lines().size(), lines) << "it is over";
  }
}

TEST(EngineFailure, WhoHasFinishedAndGoesOnCallingIsLost) {
  Cluster cluster{{3}};
  const auto op = cluster.engine(0).submit(named("pair", Kind::kAgree));
  Encoder encoder;
  cluster.engine(0).deliver(2, encoder.encode(FinishMessage{}));
  expect_all({op}, HVD_PEER_LOST);
  Submission of_two = barrier("of two");
  of_two.members = {0, 1};
  const auto pending = cluster.engine(0).submit(of_two);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(pending->done()) << i;
    cluster.engine(0).deliver(2, encoder.encode(testing::call("after")));
  }
  expect_all({pending}, HVD_PEER_LOST);
  EXPECT_EQ(pending->status().rank, 2);
  EXPECT_LT(count_lines(cluster, "has finished and yet calls 'after'"), 500U);
}

// The caller alone hears of it, and nothing is lost.
TEST(EngineFailure, TooManyOperationsUnderWayAreTheCallersError) {
  ClusterConfig config{2};
  config.most_under_way = 100;
  Cluster cluster{config};
  for (size_t i = 0; i < config.most_under_way; ++i) {
    ASSERT_FALSE(cluster.engine(1).submit(barrier(std::to_string(i)))->done()) << i;
  }
  const size_t sent = cluster.hub.messages();
  const auto refused = cluster.engine(1).submit(barrier("one more"));
  expect_all({refused}, HVD_INVALID);
  EXPECT_EQ(refused->status().message,
            "barrier 'one more': rank 1 (host h0) has 100 operations under way: expected at most 100");
  EXPECT_EQ(cluster.hub.messages(), sent);
  expect_all({cluster.engine(0).submit(barrier("0"))});
  eventually("there is room again", [&] { return !cluster.engine(1).submit(barrier("one more"))->done(); });
}

// Once an operation runs its memory is the backend's, whatever rank 0 says.
TEST(EngineFailure, AnOperationIsAnsweredOnce) {
  Cluster cluster{in_backend(2)};
  std::vector<float> in(10);
  cluster.hub.hold(true);
  const auto ops = cluster.submit([&](int32_t) { return allreduce("x", in, in, HVD_DTYPE_FLOAT32); });
  eventually("both parts are in the backend", [&] {
    return cluster.engine(1).waiting_for(ops[1]->ticket).find("on its way") != std::string::npos;
  });
  const auto outcome = std::make_shared<Outcome>();
  outcome->status = Status(HVD_TIMEOUT, "a lie");
  Encoder encoder;
  cluster.engine(1).deliver(0, encoder.encode(OutcomeMessage{ops[1]->ticket, {}, outcome, {}}));
  expect_all({nullptr, ops[1]}, HVD_PEER_LOST);
  EXPECT_EQ(ops[1]->status().message, "allreduce 'x': outcome refused: it was answered before");
  EXPECT_EQ(ops[1]->status().rank, 0);
}

TEST(EngineFailure, NoOperationIsTwiceInABatch) {
  Cluster cluster{in_backend(2)};
  std::vector<float> in(10);
  const auto op = cluster.engine(1).submit(allreduce("x", in, in, HVD_DTYPE_FLOAT32));
  const auto outcome = std::make_shared<Outcome>();
  outcome->sequence = 1;
  Encoder encoder;
  cluster.engine(1).deliver(0, encoder.encode(OutcomeMessage{op->ticket, {op->ticket}, outcome, {}}));
  expect_all({nullptr, op}, HVD_PEER_LOST);
  EXPECT_EQ(op->status().message, "allreduce 'x': outcome refused: it names an operation twice");
}

// One question must not bring many answers: they may be long.
TEST(EngineFailure, ACallIsDescribedAnewOnce) {
  Cluster cluster{{2}};
  const auto op = cluster.engine(1).submit(barrier("x"));
  const size_t sent = cluster.hub.messages();
  Encoder encoder;
  for (int i = 0; i < 10; ++i) cluster.engine(1).deliver(0, encoder.encode(ResendMessage{op->ticket}));
  EXPECT_EQ(cluster.hub.messages(), sent + 1);
  EXPECT_EQ(count_lines(cluster, "it asks twice for a call"), 9U);
  expect_all({op, cluster.engine(0).submit(barrier("x"))});
}

TEST(EngineFailure, AnAnswerAfterGivingUpBreaksTheGeneration) {
  Cluster cluster{in_backend(2)};
  std::vector<float> a(1), b(1);
  const auto given_up = cluster.engine(1).submit(allreduce("x", a, a, HVD_DTYPE_FLOAT32));
  cluster.engine(1).tick(cluster.wake(1));
  expect_all({nullptr, given_up}, HVD_TIMEOUT);
  const auto op = cluster.engine(0).submit(allreduce("x", b, b, HVD_DTYPE_FLOAT32));
  eventually("rank 1 leaves the generation",
             [&] { return cluster.engine(1).submit(barrier("y"))->status().code == HVD_PEER_LOST; });
  EXPECT_FALSE(op->done()) << "that is the driver's to end";
}

TEST(EngineFailure, FinishedRanksAreNotWaitedFor) {
  Cluster cluster{{3}};
  auto ops = cluster.submit([](int32_t) { return barrier("x"); }, {0, 1});
  cluster.engine(2).finish();
  expect_all(ops, HVD_PEER_LOST);
  EXPECT_EQ(ops[1]->status().message, "rank 2 (host h1) has finished and will not call 'x'");
  EXPECT_EQ(ops[1]->status().rank, 2);
  EXPECT_EQ(cluster.engine(2).submit(barrier("y"))->status().code, HVD_CLOSED);
  cluster.engine(0).finish();
  ops = cluster.submit([](int32_t) { return barrier("z"); }, {1});
  expect_all(ops, HVD_PEER_LOST);
}

TEST(EngineFailure, WhatWasCalledBeforeFinishCounts) {
  Cluster cluster{{3}};
  std::vector<std::shared_ptr<Operation>> ops;
  for (int i = 0; i < 20; ++i) ops.push_back(cluster.engine(2).submit(barrier(std::to_string(i))));
  cluster.engine(2).finish();
  for (int32_t r : {0, 1}) {
    for (int i = 19; i >= 0; --i) ops.push_back(cluster.engine(r).submit(barrier(std::to_string(i))));
  }
  // Rank 0 may learn of the finish only after its own calls; those are complete by then all the same.
  expect_all(ops);
}

TEST(EngineFailure, NothingIsArmedWhileNothingWaits) {
  Cluster cluster{{2}};
  EXPECT_EQ(cluster.wakes(0) + cluster.wakes(1), 0);
  for (int i = 0; i < 50; ++i) expect_all(cluster.submit([](int32_t) { return barrier("x"); }));
  EXPECT_LE(cluster.wakes(0), 1) << "one wake-up serves all";
  EXPECT_LE(cluster.wakes(1), 1);
  const int before = cluster.wakes(0);
  cluster.engine(0).tick(now() + seconds(100000));
  cluster.engine(1).tick(now() + seconds(100000));
  EXPECT_EQ(cluster.wakes(0), before);
}

/// By transport.
struct EngineRaces : ::testing::TestWithParam<std::string> {};

// Operations of many threads in orders of their own; handles are dropped at any time.
TEST_P(EngineRaces, ManyThreadsManyNames) {
  const int32_t size = 3, threads = 4, rounds = 60;
  Cluster cluster{{size, GetParam()}};
  if (!cluster.open_status.ok()) GTEST_SKIP() << cluster.open_status.message;
  std::vector<std::thread> workers;
  for (int32_t r = 0; r < size; ++r) {
    for (int32_t t = 0; t < threads; ++t) {
      workers.emplace_back([&, r, t] {
        std::mt19937 random(static_cast<unsigned>(r * 100 + t));
        std::vector<int> order(8);
        std::vector<std::vector<int64_t>> data(order.size(), std::vector<int64_t>(5));
        for (int round = 0; round < rounds; ++round) {
          for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
          std::shuffle(order.begin(), order.end(), random);
          std::vector<std::shared_ptr<Operation>> ops;
          for (const int i : order) {
            const std::string name = std::to_string(t) + "." + std::to_string(i);
            auto& values = data[static_cast<size_t>(i)];
            values.assign(5, r + i);
            ops.push_back(cluster.engine(r).submit(allreduce(name, values, values, HVD_DTYPE_INT64)));
            cluster.engine(r).submit(barrier("dropped." + name + "." + std::to_string(round)));
          }
          expect_all(ops);
          for (const int i : order)
            ASSERT_EQ(data[static_cast<size_t>(i)], std::vector<int64_t>(5, 3 * i + 3));
        }
      });
    }
  }
  for (auto& w : workers) w.join();
}

// Contract 3: after fail, whoever waits returns, whatever is going on.
TEST_P(EngineRaces, FailAtAnyMoment) {
  for (int round = 0; round < 30; ++round) {
    const int32_t size = 3;
    std::vector<std::vector<float>> data(static_cast<size_t>(size * 2), std::vector<float>(1000));
    Cluster cluster{{size, GetParam()}};
    if (!cluster.open_status.ok()) GTEST_SKIP() << cluster.open_status.message;
    std::atomic<int> busy{0};
    std::vector<std::thread> workers;
    for (int32_t r = 0; r < size; ++r) {
      for (int32_t t = 0; t < 2; ++t) {
        workers.emplace_back([&, r, t] {
          auto& values = data[static_cast<size_t>(r * 2 + t)];
          for (int i = 0;; ++i) {
            const auto op = cluster.engine(r).submit(
                allreduce("x" + std::to_string(t), values, values, HVD_DTYPE_FLOAT32));
            const auto word = cluster.engine(r).submit(named("w" + std::to_string(t), Kind::kAgree));
            (void)op->waiting_for();
            ASSERT_TRUE(op->wait(kDeadline)) << "rank " << r;
            ASSERT_TRUE(word->wait(kDeadline)) << "rank " << r;
            if (i == 5) ++busy;
            if (!op->status().ok() || !word->status().ok()) {
              if (i < 5) ++busy;
              break;
            }
          }
        });
      }
    }
    eventually("they are busy", [&] { return busy == 2 * size; });
    std::vector<std::thread> killers;
    for (int32_t r = 0; r < size; ++r) {
      killers.emplace_back([&, r] { cluster.engine(r).fail(lost()); });
      killers.emplace_back([&, r] { cluster.engine(r).tick(now() + seconds(round % 2 == 0 ? 0 : 1000)); });
      killers.emplace_back([&, r] { cluster.engine(r).finish(); });
    }
    for (auto& k : killers) k.join();
    for (auto& w : workers) w.join();
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, EngineRaces, ::testing::Values("threads", "gloo"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace hvd::collective
