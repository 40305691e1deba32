// What ranks send each other for the engine: as it was written, refused where it lies or does not fit.
#include "collective/messages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "collective/calls.h"
#include "collective/cluster.h"

namespace hvd::collective {
namespace {

using testing::allreduce;
using testing::Cluster;
using testing::expect_all;
using testing::kDeadline;
using testing::named;

Submission barrier(const std::string& name) { return named(name, Kind::kBarrier); }

// Contract 13: bad bytes are dropped with a log line, and nothing else happens.
TEST(Messages, BadBytes) {
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
  outcome.payload = std::vector<uint8_t>{1, 2, 3};
  outcome.participants = {0, 2};
  outcome.status.message = "text";
  seeds.push_back(encode(OutcomeMessage{1, {2, 3}, std::make_shared<Outcome>(outcome), {3, 4}}));
  Outcome plain;
  plain.payload = std::vector<uint8_t>{1, 2, 3};
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
  outcome->payload = std::vector<uint8_t>{1, 2, 3};
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
  outcome->payload = std::vector<uint8_t>(64, 3);
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

TEST(Messages, DataAreSentFromWhereTheyWereMadeAndReadWhereTheyCame) {
  Encoder encoder;
  const auto outcome = std::make_shared<Outcome>();
  uint8_t* const made = outcome->payload.make(8);
  for (uint8_t i = 0; i < 8; ++i) made[i] = i;
  for (const auto& more : {std::vector<uint64_t>{}, {2}}) {
    const auto bytes = encoder.encode(OutcomeMessage{1, more, outcome, {}});
    const uint8_t* const end = bytes.data() + bytes.size();
    EXPECT_EQ(end == made + 8, more.empty());  // tickets have no room there
    const auto read = std::get<OutcomeMessage>(decode(bytes, 0, 3));
    EXPECT_EQ(read.more, more);
    EXPECT_EQ(read.outcome->payload, outcome->payload);
    EXPECT_EQ(read.outcome->payload.data(), end - 8);
    const OutcomePtr own = kept(read.outcome);
    EXPECT_EQ(own->payload, outcome->payload);
    EXPECT_NE(own->payload.data(), end - 8);
    EXPECT_EQ(kept(own), own);
  }
  encoder.encode(OutcomeMessage{1, {}, outcome, {}});
  EXPECT_EQ(std::get<OutcomeMessage>(decode(encoder.encode(OutcomeMessage{7, {}, outcome, {}}), 0, 3)).ticket,
            7u);
}

// What has to wait here keeps its data: the message's memory is its bringer's again.
TEST(Messages, AnOutcomeThatWaitsKeepsItsData) {
  Cluster cluster{{.size = 2, .start = false}};
  std::vector<float> in(4, 1), out(4);
  const auto op = cluster.engine(1).submit(allreduce("x", in, out, HVD_DTYPE_FLOAT32));
  const auto outcome = std::make_shared<Outcome>();
  outcome->carries = true;
  const std::vector<float> sums = {1, 2, 3, 4};
  std::memcpy(outcome->payload.make(16), sums.data(), 16);
  Encoder encoder;
  const auto encoded = encoder.encode(OutcomeMessage{1, {}, outcome, {}});
  std::vector<uint8_t> bytes(encoded.begin(), encoded.end());
  cluster.engine(1).deliver(0, bytes);
  std::fill(bytes.begin(), bytes.end(), 255);
  EXPECT_FALSE(op->done());
  cluster.engine(1).start();
  expect_all({op});
  EXPECT_EQ(out, sums);
}

// What rank 0 sends is held against the call before a byte is copied.
TEST(Messages, OutcomesThatDoNotFitAreRefused) {
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
      o.payload = std::vector<uint8_t>(bytes, 1);
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

TEST(Messages, NamesAreUtf8) {
  Cluster cluster{{1}};
  EXPECT_EQ(cluster.engine(0).submit(barrier("gradient α"))->status().code, HVD_OK);
  const Status status = cluster.engine(0).submit(barrier("a\xff\xfe"))->status();
  EXPECT_EQ(status.code, HVD_INVALID);
  EXPECT_EQ(status.message, "barrier 'a\?\?': byte 1 of the name is 0xff, expected UTF-8");
}

}  // namespace
}  // namespace hvd::collective
