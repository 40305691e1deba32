// The engine when something goes wrong: lost peers, silence, time-outs, bad bytes, and everything at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "collective/calls.h"
#include "collective/cluster.h"
#include "collective/messages.h"

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
}

TEST(EngineFailure, ABackendsFailureEndsTheGeneration) {
  Cluster cluster{in_backend(2)};
  std::vector<float> in(10);
  cluster.hub.hold(true);
  const auto unmatched = cluster.engine(0).submit(barrier("unmatched"));
  const auto running =
      cluster.submit([&](int32_t) { return allreduce("running", in, in, HVD_DTYPE_FLOAT32); });
  eventually("both parts are in the backend", [&] { return cluster.hub.in_flight() == 1; });
  eventually("operation fails", [&] {
    cluster.hub.fail_operations(0, lost());
    return running[0]->done();
  });
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
  cluster.engine(0).tick(now() + seconds(601));
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
  cluster.engine(0).tick(now() + seconds(601));
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
  eventually("the stall notice comes", [&] {
    cluster.engine(0).tick(now() + seconds(100));
    return ops[2]->waiting_for() == "rank 0 (host h0) has not called 's'";
  });
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
  cluster.engine(1).tick(now() + seconds(611));
  ASSERT_TRUE(op->done());
  EXPECT_EQ(op->status().code, HVD_TIMEOUT);
  EXPECT_EQ(op->status().rank, 0);
  EXPECT_EQ(op->status().message,
            "allreduce 'x': rank 0 (host h0), which coordinates, has not answered within 610 s");
  EXPECT_EQ(cluster.wakes(1), 2) << "nothing is pending";
}

TEST(EngineFailure, AnAnswerAfterGivingUpBreaksTheGeneration) {
  Cluster cluster{in_backend(2)};
  std::vector<float> a(1), b(1);
  const auto given_up = cluster.engine(1).submit(allreduce("x", a, a, HVD_DTYPE_FLOAT32));
  cluster.engine(1).tick(now() + seconds(611));
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

// Contract 13: bad bytes are dropped with a log line, and nothing else happens.
TEST(EngineFailure, BadBytes) {
  Cluster cluster{{3}};
  std::mt19937 random{7};
  std::vector<std::vector<uint8_t>> seeds;
  Encoder encoder;
  const auto bytes_of = [](std::span<const uint8_t> data) { return std::vector(data.begin(), data.end()); };
  const auto encode = [&](const auto& message) { return bytes_of(encoder.encode(message)); };
  testing::Call request = testing::call("fuzz", Kind::kBroadcast);
  const auto sent = [&] { return encode(Request(request)); };
  request.specs = {{HVD_DTYPE_FLOAT32, {2, 3}}, {HVD_DTYPE_INT8, {}}};
  seeds.push_back(sent());
  request.specs.resize(1);
  request.members = {0, 1, 2};
  seeds.push_back(sent());
  testing::Call scatter = testing::call("scatter", Kind::kAlltoall);
  scatter.specs = {{HVD_DTYPE_UINT8, {6}}};
  scatter.splits = {1, 2, 3};
  scatter.carries = true;
  scatter.bytes.assign(6, 1);
  scatter.set = "all";
  seeds.push_back(encode(Request(scatter)));
  seeds.push_back(bytes_of(encoder.encode(Request(scatter), 7, false)));
  Outcome outcome;
  outcome.rows = {1, 2, 3};
  outcome.sequence = 5;
  outcome.payload = {1, 2, 3};
  outcome.participants = {0, 2};
  outcome.status.message = "text";
  seeds.push_back(encode(OutcomeMessage{1, {2, 3}, std::make_shared<Outcome>(outcome), {3, 4}}));
  Outcome plain;
  plain.payload = {1, 2, 3};
  seeds.push_back(encode(OutcomeMessage{1, {2, 3}, std::make_shared<Outcome>(plain), {3, 4}}));
  seeds.push_back(encode(StallMessage{1, {0, 2}}));
  seeds.push_back(encode(ResendMessage{1}));
  for (int i = 0; i < 20000; ++i) {
    std::vector<uint8_t> bytes = seeds[random() % seeds.size()];
    for (size_t n = random() % 8 + 1; n > 0; --n) {
      bytes[random() % bytes.size()] = random() % 3 == 0 ? 255 : static_cast<uint8_t>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    // Not 8-aligned either.
    bytes.insert(bytes.begin(), 0);
    try {
      const Message message = decode(std::span(bytes).subspan(1), 1, 3);
      const auto* called = std::get_if<RequestMessage>(&message);
      if (called != nullptr && called->request.call != nullptr) validate(called->request, 1, 3);
    } catch (const Error& error) { EXPECT_EQ(error.status().code, HVD_INVALID); }
  }
  // Complete messages that lie.
  const auto refused = [](const std::vector<uint8_t>& bytes, int32_t source, int32_t size) {
    EXPECT_THROW(
        {
          const Message message = decode(bytes, source, size);
          validate(std::get<RequestMessage>(message).request, source, size);
        },
        Error);
  };
  request.members = {0, 2};
  refused(sent(), 1, 3);
  request.members = {0, 1, 3};
  refused(sent(), 1, 3);
  request.members = {0, 1};
  request.root = 2;
  refused(sent(), 1, 3);
  request.root = 0;
  request.specs[0].shape.assign(9, 1);
  refused(sent(), 1, 3);
  request.specs[0].shape.assign(2, -1);
  refused(sent(), 1, 3);
  request.specs[0].shape.assign(3, int64_t{1} << 30);
  refused(sent(), 1, 3);
  request.specs = {{99, {1}}};
  refused(sent(), 1, 3);
  request.specs = {{HVD_DTYPE_INT8, {1}}};
  request.name.assign(600, 'n');
  refused(sent(), 1, 3);
  scatter.splits = {1, 2};
  refused(encode(Request(scatter)), 1, 3);
  scatter.splits = {1, 2, 4};
  refused(encode(Request(scatter)), 1, 3);
  scatter.splits = {1, 7, -2};
  refused(encode(Request(scatter)), 1, 3);
  scatter.splits = {1, 2, 3};
  scatter.bytes.resize(5);
  refused(encode(Request(scatter)), 1, 3);
  scatter.carries = false;
  refused(encode(Request(scatter)), 1, 3);
  refused(bytes_of(encoder.encode(Request(scatter), kSignatures + 1, false)), 1, 3);
  outcome.rows = {1, -2};
  EXPECT_THROW((void)decode(encode(OutcomeMessage{1, {}, std::make_shared<Outcome>(outcome), {}}), 0, 3),
               Error);
  outcome.rows.clear();
  outcome.participants = {2, 0};
  EXPECT_THROW((void)decode(encode(OutcomeMessage{1, {}, std::make_shared<Outcome>(outcome), {}}), 0, 3),
               Error);
  EXPECT_THROW((void)decode(encode(StallMessage{1, {3}}), 0, 3), Error);
  // Through the engine: to the wrong rank, from the wrong rank, and noise.
  request.name = "n";
  cluster.engine(1).deliver(2, sent());
  cluster.engine(0).deliver(1, encode(StallMessage{1, {0}}));
  cluster.engine(0).deliver(17, encode(FinishMessage{}));
  cluster.engine(0).deliver(1, std::vector<uint8_t>(100, 0xff));
  cluster.engine(0).deliver(1, {});
  EXPECT_EQ(cluster.lines().size(), 5u);
  expect_all(cluster.submit([](int32_t) { return barrier("fine"); }));
}

// Nothing is lost on the way, in either encoding.
TEST(Messages, WhatIsKnownTravelsWithoutATable) {
  Encoder encoder;
  testing::Call call = testing::call("sum", Kind::kAllreduce);
  call.reduction = HVD_REDUCTION_SUM;
  call.specs = {{HVD_DTYPE_FLOAT32, {2}}};
  call.carries = true;
  call.bytes.assign(8, 5);
  Request request(call);
  request.ticket = 3;
  request.checks = 4;
  request.epoch = 5;
  request.word = 6;
  request.object_size = 7;
  request.meets = true;
  size_t table = 0;
  for (const bool in_full : {true, false}) {
    const auto bytes = encoder.encode(request, 9, in_full);
    if (in_full) table = bytes.size();
    EXPECT_TRUE(in_full || bytes.size() == 64 + 8) << bytes.size() << " bytes, a table has " << table;
    const auto read = std::get<RequestMessage>(decode(bytes, 1, 3));
    EXPECT_EQ(read.request.call != nullptr, in_full);
    EXPECT_EQ(read.digest, in_full ? 0 : request.call->digest);
    EXPECT_EQ(read.id, 9u);
    EXPECT_EQ(read.request.ticket, 3u);
    EXPECT_EQ(read.request.checks, 4u);
    EXPECT_EQ(read.request.epoch, 5u);
    EXPECT_EQ(read.request.word, 6u);
    EXPECT_EQ(read.request.object_size, 7u);
    EXPECT_TRUE(read.request.meets && read.request.carries);
    EXPECT_EQ(read.request.payload, request.payload);
  }
  const auto outcome = std::make_shared<Outcome>();
  outcome->sequence = 2;
  outcome->word = 3;
  outcome->object_size = 4;
  outcome->carries = true;
  outcome->payload = {1, 2, 3};
  outcome->checks = 5;
  outcome->grant = {6, 7, 8};
  for (const bool known : {true, false}) {
    if (!known) outcome->participants = {0, 2};
    for (const auto& more : {std::vector<uint64_t>{}, {11}, {11, 12}}) {
      const auto bytes =
          encoder.encode(OutcomeMessage{10, more, std::make_shared<Outcome>(*outcome), {13, 14}});
      const auto read = std::get<OutcomeMessage>(decode(bytes, 0, 3));
      EXPECT_EQ(read.ticket, 10u);
      EXPECT_EQ(read.more, more);
      EXPECT_EQ(read.proposal.check, 13u);
      EXPECT_EQ(read.proposal.word, 14u);
      EXPECT_EQ(read.outcome->sequence, 2u);
      EXPECT_EQ(read.outcome->word, 3u);
      EXPECT_EQ(read.outcome->object_size, 4u);
      EXPECT_TRUE(read.outcome->carries);
      EXPECT_EQ(read.outcome->payload, outcome->payload);
      EXPECT_EQ(read.outcome->checks, 5u);
      EXPECT_EQ(read.outcome->grant.slot, 6u);
      EXPECT_EQ(read.outcome->grant.number, 7u);
      EXPECT_EQ(read.outcome->grant.word, 8u);
      EXPECT_EQ(read.outcome->participants, outcome->participants);
    }
  }
}

// Lengths, kinds and flags of the shorter encoding are checked like those of tables.
TEST(Messages, ShortOnesThatLieAreRefused) {
  Encoder encoder;
  const auto bytes_of = [](std::span<const uint8_t> data) { return std::vector(data.begin(), data.end()); };
  const auto refused = [](std::vector<uint8_t> bytes, size_t at, uint8_t value) {
    if (at < bytes.size()) {
      bytes[at] = value;
    } else {
      bytes.resize(value);
    }
    EXPECT_THROW((void)decode(bytes, 1, 3), Error) << "byte " << at << " is " << int{value};
  };
  constexpr size_t kCut = 1000;  // not a byte, but how many there are
  const testing::Call call = testing::call("x", Kind::kBarrier);
  const auto request = bytes_of(encoder.encode(Request(call), 1, false));
  (void)decode(request, 1, 3);
  refused(request, 0, 3);         // type
  refused(request, 24 + 7, 255);  // checks
  refused(request, 56, 0);        // no id
  refused(request, 56 + 3, 1);    // id
  refused(request, 60, 4);        // flags
  refused(request, kCut, 63);
  const auto outcome = bytes_of(encoder.encode(OutcomeMessage{1, {2}, std::make_shared<Outcome>(), {}}));
  (void)decode(outcome, 0, 3);
  refused(outcome, 72 + 3, 1);    // slot
  refused(outcome, 76 + 3, 255);  // grant
  refused(outcome, 80, 2);        // more
  refused(outcome, 80 + 3, 255);
  refused(outcome, 84, 2);  // flags
  refused(outcome, kCut, 95);
  refused(outcome, kCut, 103);
  std::vector<uint8_t> long_one = outcome;
  long_one.resize(112 + kMaxPayload + 1);
  EXPECT_THROW((void)decode(long_one, 0, 3), Error);
}

TEST(Messages, AnOutcomeForSeveralRanksIsWrittenOnce) {
  Encoder encoder;
  const auto outcome = std::make_shared<Outcome>();
  outcome->sequence = 7;
  outcome->payload.assign(64, 3);
  const auto ticket_of = [](std::span<const uint8_t> bytes) {
    return std::get<OutcomeMessage>(decode(bytes, 0, 3));
  };
  const auto first = encoder.encode(OutcomeMessage{1, {2, 3}, outcome, {5, 6}});
  const std::vector<uint8_t> before(first.begin(), first.end());
  const auto second = encoder.encode(OutcomeMessage{10, {20, 30}, outcome, {5, 6}});
  EXPECT_EQ(second.data(), first.data());
  EXPECT_EQ(ticket_of(before).ticket, 1u);
  const OutcomeMessage read = ticket_of(second);
  EXPECT_EQ(read.ticket, 10u);
  EXPECT_EQ(read.more, (std::vector<uint64_t>{20, 30}));
  EXPECT_EQ(read.outcome->payload, outcome->payload);
  EXPECT_EQ(read.proposal.word, 6u);
  // Whatever else differs is written anew.
  EXPECT_EQ(ticket_of(encoder.encode(OutcomeMessage{11, {20, 30}, outcome, {5, 7}})).proposal.word, 7u);
  EXPECT_EQ(ticket_of(encoder.encode(OutcomeMessage{12, {20}, outcome, {5, 7}})).more.size(), 1u);
  (void)encoder.encode(ResendMessage{1});
  EXPECT_EQ(ticket_of(encoder.encode(OutcomeMessage{13, {20}, outcome, {5, 7}})).ticket, 13u);
  const auto other = std::make_shared<Outcome>(*outcome);
  other->sequence = 8;
  EXPECT_EQ(ticket_of(encoder.encode(OutcomeMessage{14, {20}, other, {5, 7}})).outcome->sequence, 8u);
}

// What rank 0 sends is held against the call before a byte is copied.
TEST(EngineFailure, OutcomesThatDoNotFitAreRefused) {
  const auto answered = [](Submission call, const std::function<void(Outcome&)>& lie) {
    Cluster cluster{{3}};
    const auto op = cluster.engine(1).submit(std::move(call));
    const auto outcome = std::make_shared<Outcome>();
    lie(*outcome);
    Encoder encoder;
    cluster.engine(1).deliver(0, encoder.encode(OutcomeMessage{1, {}, outcome, {}}));
    EXPECT_TRUE(op->wait(kDeadline));
    return op->status().message;
  };
  std::vector<float> in(4, 1), out(4);
  const auto broadcast = [&](int32_t root) {
    Submission s = named("x", Kind::kBroadcast);
    s.outputs = {testing::tensor(out, HVD_DTYPE_FLOAT32)};
    s.root = root;
    return s;
  };
  const auto carry = [](size_t bytes) {
    return [bytes](Outcome& o) {
      o.carries = true;
      o.payload.assign(bytes, 1);
    };
  };
  const std::string refused = " 'x': outcome refused: ";
  EXPECT_EQ(answered(broadcast(0), carry(15)), "broadcast" + refused + "its data is missing");
  EXPECT_EQ(answered(broadcast(1), carry(8)), "broadcast" + refused + "it brings data that nobody needs");
  EXPECT_EQ(answered(broadcast(0),
                     [](Outcome& o) {
                       o.participants = {1, 2};
                     }),
            "broadcast" + refused + "its root takes no part in it");
  EXPECT_EQ(answered(allreduce("x", in, out, HVD_DTYPE_FLOAT32), carry(12)),
            "allreduce" + refused + "its data is missing");
  EXPECT_EQ(answered(allreduce("x", in, out, HVD_DTYPE_FLOAT32),
                     [&](Outcome& o) {
                       carry(4)(o);
                       o.participants = {1};
                     }),
            "allreduce" + refused + "its data is missing");
  EXPECT_EQ(answered(barrier("x"), [](Outcome& o) { o.sequence = 1; }),
            "barrier" + refused + "it needs no backend");
  Submission scatter = named("x", Kind::kReducescatter);
  scatter.inputs = {testing::tensor(in, HVD_DTYPE_FLOAT32)};
  EXPECT_EQ(answered(scatter,
                     [](Outcome& o) {
                       o.participants = {0, 1};
                     }),
            "reducescatter" + refused + "it needs all of its ranks");
}

TEST(EngineFailure, NamesAreUtf8) {
  Cluster cluster{{1}};
  EXPECT_EQ(cluster.engine(0).submit(barrier("gradient α"))->status().code, HVD_OK);
  const Status status = cluster.engine(0).submit(barrier("a\xff\xfe"))->status();
  EXPECT_EQ(status.code, HVD_INVALID);
  EXPECT_EQ(status.message, "barrier 'a\?\?': byte 1 of the name is 0xff, expected UTF-8");
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
