// Around a backend that is fast inside a host by itself: messages travel by shared memory, operations are its
// own.
#include "local/cluster.h"

namespace hvd::local::test {
namespace {

TEST(LocalMessagesOnly, SaysWhatTheOtherBackendSays) {
  Rank rank(Shares::kMessages);
  const backend::Description& description = rank.instance->description();
  EXPECT_TRUE(description.messages);
  EXPECT_TRUE(description.local);
  EXPECT_EQ(description.collectives, 0U) << "Spy names none: nothing is served in its place";
}

TEST(LocalMessagesOnly, OneHostConnectsTheOtherBackendAsWell) {
  Ranks ranks = make_ranks(3, Shares::kMessages);
  connect_all(ranks, 4);
  EXPECT_EQ(ranks[1]->instance->detail(), "by spy, messages by shared memory among 3 ranks of this host");
  ASSERT_TRUE(ranks[0]->instance->send_message(2, bytes_of("near")).ok());
  const Inbox::Message message = ranks[2]->inbox.next_message();
  EXPECT_EQ(message.source, 0);
  EXPECT_EQ(message.generation, 4U);
  EXPECT_EQ(message.data, bytes_of("near"));
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank->notes->connected, std::vector<uint64_t>{4});
    ASSERT_EQ(rank->notes->members.size(), 3U);
    EXPECT_EQ(rank->notes->members[2].offers[0].address, (std::vector<uint8_t>{1, 42}));
    EXPECT_TRUE(rank->notes->messages.empty());
  }
  for (const auto& rank : ranks) rank->instance->disconnect();
  for (const auto& rank : ranks) EXPECT_EQ(rank->notes->disconnected, 1);
}

TEST(LocalMessagesOnly, OperationsGoToTheOtherBackendAsTheyAre) {
  Ranks ranks = make_ranks(3, Shares::kMessages);
  connect_all(ranks, 1);
  float in[6] = {}, out[6] = {};
  const int32_t members[] = {0, 2};
  const backend::Part parts[] = {{in, out, 4}, {in + 4, out + 4, 2}};
  Pending pending;
  hvd_backend_op op = pending.op(HVD_COLLECTIVE_ALLREDUCE, 9);
  op.dtype = HVD_DTYPE_FLOAT32;
  op.ranks = members;
  op.rank_count = 2;
  ASSERT_TRUE(ranks[2]->instance->submit(op, parts).ok());
  EXPECT_TRUE(pending.wait().ok());
  ASSERT_EQ(ranks[2]->notes->ops.size(), 1U);
  EXPECT_EQ(ranks[2]->notes->ops[0].sequence, 9U);
  EXPECT_EQ(ranks[2]->notes->op_ranks[0], (std::vector<int32_t>{0, 2}));
  ASSERT_EQ(ranks[2]->notes->op_parts[0].size(), 2U);
  EXPECT_EQ(ranks[2]->notes->op_parts[0][1].output, out + 4);
  EXPECT_EQ(ranks[2]->notes->op_parts[0][1].count, 2U);
}

// The thread that submits hands the operation over itself: nothing of this instance stands between.
TEST(LocalMessagesOnly, TheOrderOfSubmissionStays) {
  Ranks ranks = make_ranks(2, Shares::kMessages);
  connect_all(ranks, 1);
  std::vector<Pending> pending(50);
  for (uint64_t i = 0; i < pending.size(); ++i) {
    ASSERT_TRUE(ranks[0]->instance->submit(pending[i].op(HVD_COLLECTIVE_BARRIER, i + 1)).ok());
  }
  ASSERT_EQ(ranks[0]->notes->ops.size(), pending.size());
  for (uint64_t i = 0; i < pending.size(); ++i) EXPECT_EQ(ranks[0]->notes->ops[i].sequence, i + 1);
}

TEST(LocalMessagesOnly, MessagesToOtherHostsAreTheOtherBackends) {
  Ranks ranks = make_ranks(3, Shares::kMessages);
  connect_all(ranks, 1, {"a", "b", "a"});
  ASSERT_TRUE(ranks[0]->instance->send_message(1, bytes_of("far")).ok());
  ASSERT_TRUE(ranks[0]->instance->send_message(2, bytes_of("near")).ok());
  EXPECT_EQ(ranks[2]->inbox.next_message().data, bytes_of("near"));
  ASSERT_EQ(ranks[0]->notes->messages.size(), 1U);
  EXPECT_EQ(ranks[0]->notes->messages[0], std::pair(1, bytes_of("far")));
}

// A thread that waits for an operation carries messages meanwhile, and is free when the operation is done.
TEST(LocalMessagesOnly, AThreadThatWaitsLendsItselfToMessages) {
  Ranks ranks = make_ranks(2, Shares::kMessages);
  connect_all(ranks, 1);
  std::atomic<bool> done{false};
  std::thread sender([&] {
    EXPECT_TRUE(ranks[1]->instance->send_message(0, bytes_of("while it waits")).ok());
    done = ranks[0]->inbox.next_message().data == bytes_of("while it waits");
  });
  const Time deadline = now() + kSoon;
  while (!done && now() < deadline) ranks[0]->instance->progress(done, deadline);
  EXPECT_TRUE(done);
  sender.join();
}

TEST(LocalMessagesOnly, AbortEndsWhatTheOtherBackendHasAndIsToldToThePeers) {
  Ranks ranks = make_ranks(2, Shares::kMessages);
  for (const auto& rank : ranks) rank->notes->holds = true;
  connect_all(ranks, 6);
  Pending first, second;
  ASSERT_TRUE(ranks[0]->instance->submit(first.op(HVD_COLLECTIVE_BARRIER, 1)).ok());
  ASSERT_TRUE(ranks[1]->instance->submit(second.op(HVD_COLLECTIVE_BARRIER, 1)).ok());
  ranks[0]->instance->abort(6);
  EXPECT_EQ(first.wait().code, HVD_PEER_LOST);
  EXPECT_EQ(ranks[1]->inbox.wait_failure().peer, -1) << "who gives up is not to blame";
  ranks[1]->instance->abort(6);
  EXPECT_EQ(second.wait().code, HVD_PEER_LOST);
  for (const auto& rank : ranks) EXPECT_EQ(rank->notes->aborted, std::vector<uint64_t>{6});
  Pending later;
  EXPECT_EQ(ranks[0]->instance->submit(later.op(HVD_COLLECTIVE_BARRIER, 2)).code, HVD_PEER_LOST);
  for (const auto& rank : ranks) rank->notes->holds = false;
  connect_all(ranks, 7);
  Pending again;
  ASSERT_TRUE(ranks[0]->instance->submit(again.op(HVD_COLLECTIVE_BARRIER, 1)).ok());
  EXPECT_TRUE(again.wait().ok());
}

TEST(LocalMessagesOnly, WhatTravelsMustBeTheSameOnAllRanks) {
  Ranks ranks = make_ranks(1, Shares::kMessages);
  ranks.push_back(std::make_unique<Rank>());
  const std::vector<backend::Member> members = members_of(ranks);
  const Status status = ranks[0]->instance->connect(1, 0, members, kSoon);
  EXPECT_EQ(status.code, HVD_INVALID);
  EXPECT_EQ(status.rank, 1);
  EXPECT_EQ(status.message,
            "rank 1 (host) shares messages and data with the ranks of its host, this rank messages alone: "
            "option local must be the same on all workers");
  EXPECT_TRUE(ranks[0]->notes->connected.empty());
}

}  // namespace
}  // namespace hvd::local::test
