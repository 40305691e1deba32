// Links between ranks: what they tell each other when they meet, steps, messages, strangers, deaths.
#include "modules/kit/links.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <future>

namespace hvdkit {
namespace {

constexpr std::chrono::seconds kPatience{20};

struct Rank {
  std::promise<std::string> message, failure, log;
  std::atomic<bool> failed{false}, logged{false};
  Links links{"127.0.0.1", LinkHooks{[this](int source, const void* data, size_t size) {
                                       message.set_value(std::to_string(source) + ":" +
                                                         std::string(static_cast<const char*>(data), size));
                                     },
                                     [this](int peer, const std::string& text) {
                                       if (!failed.exchange(true))
                                         failure.set_value(std::to_string(peer) + ":" + text);
                                     },
                                     [this](const std::string& text) {
                                       if (!logged.exchange(true)) log.set_value(text);
                                     }}};
};

struct Pair {
  Rank zero, one;
  std::vector<Greeting> of_zero, of_one;

  LinkGroup group(int rank) { return {7, rank, {zero.links.blob(), one.links.blob()}}; }
  void greet(Greeting from_zero, Greeting from_one) {
    const Clock::time_point deadline = Clock::now() + kPatience;
    auto other = std::async(std::launch::async, [&] {
      return one.links.greet(group(1), {std::move(from_one), {}}, deadline);
    });
    of_one = zero.links.greet(group(0), {{}, std::move(from_zero)}, deadline);
    of_zero = other.get();
  }
};

// Rank 1 of two, which may go before rank 0.
std::unique_ptr<Rank> greeted_by(Rank& zero) {
  auto one = std::make_unique<Rank>();
  LinkGroup group{7, 0, {zero.links.blob(), one->links.blob()}};
  LinkGroup other = group;
  other.rank = 1;
  const Clock::time_point deadline = Clock::now() + kPatience;
  auto greeted = std::async(std::launch::async, [&] { one->links.greet(other, {{}, {}}, deadline); });
  zero.links.greet(group, {{}, {}}, deadline);
  greeted.get();
  return one;
}

TEST(Links, GreetingsAreBytesOfAnyLength) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{193}, kMaxGreeting}) {
    Pair pair;
    const Greeting long_one(size, 0xa5);
    pair.greet(long_one, {1, 2, 3});
    EXPECT_EQ(pair.of_zero[0], long_one) << size;
    EXPECT_EQ(pair.of_one[1], (Greeting{1, 2, 3})) << size;
  }
}

TEST(Links, AGreetingBeyondTheBoundIsRefusedWhereItIsMade) {
  Pair pair;
  try {
    pair.zero.links.greet(pair.group(0), {{}, Greeting(kMaxGreeting + 1)}, Clock::now() + kPatience);
    FAIL() << "it was taken";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.status, HVD_INVALID);
    EXPECT_STREQ(failure.what(), "a greeting of 4097 bytes: expected at most 4096");
  }
}

TEST(Links, StepsAreCountedAndTheWaitForOneSaysWhatIsMissing) {
  Pair pair;
  pair.greet({}, {});
  pair.one.links.tell_step(0);
  pair.one.links.tell_step(0);
  pair.zero.links.wait_steps(1, 1, "shrink", Clock::now() + kPatience);
  pair.zero.links.wait_steps(1, 2, "join", Clock::now() + kPatience);
  try {
    pair.zero.links.wait_steps(1, 3, "join another world", Clock::now());
    FAIL() << "a third step was never told";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.status, HVD_TIMEOUT);
    EXPECT_STREQ(failure.what(), "rank 1 did not join another world before the deadline");
  }
}

TEST(Links, AnAbortFreesTheWaitForAStepOnBothSides) {
  Pair pair;
  pair.greet({}, {});
  auto waits = std::async(std::launch::async, [&] {
    hvd_status status = HVD_OK;
    try {
      pair.zero.links.wait_steps(1, 1, "come", Clock::now() + kPatience);
    } catch (const Failure& failure) { status = failure.status; }
    return status;
  });
  pair.one.links.abort();
  EXPECT_EQ(waits.get(), HVD_PEER_LOST);
}

TEST(Links, MessagesThatComeBeforeTheGenerationIsOpenWait) {
  Pair pair;
  pair.greet({}, {});
  pair.one.links.open();
  pair.one.links.send(0, "early", 5);
  pair.one.links.tell_step(0);
  auto message = pair.zero.message.get_future();
  pair.zero.links.open();
  ASSERT_EQ(message.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(message.get(), "1:early");
  // What came behind the message counts as well.
  pair.zero.links.wait_steps(1, 1, "come", Clock::now() + kPatience);
}

TEST(Links, APeerThatIsGoneIsReportedByItsRank) {
  Rank zero;
  std::unique_ptr<Rank> one = greeted_by(zero);
  zero.links.open();
  auto failure = zero.failure.get_future();
  one.reset();  // its sockets close without a word
  ASSERT_EQ(failure.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(failure.get(), "1:rank 1 closed its link: its process is gone");
}

TEST(Links, WhoGivesUpBehindAMessageThatWaitsIsNotToBlame) {
  Rank zero;
  std::unique_ptr<Rank> one = greeted_by(zero);
  one->links.open();
  one->links.send(0, "early", 5);
  one->links.abort();
  one.reset();
  try {
    zero.links.wait_steps(1, 1, "come", Clock::now() + kPatience);
    FAIL() << "no step was told";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.status, HVD_PEER_LOST);
    EXPECT_EQ(failure.rank, -1) << failure.what();
  }
}

TEST(Links, AStrangerIsRefusedAndDisturbsNobody) {
  Pair pair;
  const Clock::time_point deadline = Clock::now() + kPatience;
  auto log = pair.zero.log.get_future();
  auto zero = std::async(std::launch::async, [&] {
    return pair.zero.links.greet(pair.group(0), {{}, {}}, deadline);
  });
  // A rank with another group's token: it asks where rank 0 listens, as one of an older life would.
  Rank stranger;
  LinkGroup wrong{7, 1, {pair.zero.links.blob(), stranger.links.blob()}};
  wrong.members[0].token = random_token();
  const Clock::time_point soon = Clock::now() + std::chrono::milliseconds(300);  // it dials again until then
  EXPECT_THROW(stranger.links.greet(wrong, {Greeting(kMaxGreeting), {}}, soon), Failure);
  ASSERT_EQ(log.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(log.get(), "a connection that greeted with a wrong token was refused");
  pair.one.links.greet(pair.group(1), {{9}, {}}, deadline);
  EXPECT_EQ(zero.get()[1], Greeting{9});
}

TEST(Links, WhatComesBeforeTheGenerationIsOpenIsBounded) {
  Rank zero;
  std::unique_ptr<Rank> one = greeted_by(zero);
  one->links.open();
  const std::string message(kMaxMessage, 'm');
  for (int i = 0; i < 6; ++i) one->links.send(0, message.data(), message.size());
  try {
    zero.links.wait_steps(1, 1, "come", Clock::now() + kPatience);
    FAIL() << "no step was told";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.status, HVD_PEER_LOST);
    EXPECT_STREQ(failure.what(),
                 "rank 1 sent more than 4194304 bytes before this rank had opened the generation");
  }
}

LinkGroup group_of_two(int rank) {
  LinkGroup group{7, rank, std::vector<Blob>(2)};
  group.members[0].token.fill(3);
  group.members[1].token.fill(5);
  return group;
}

// Both ends of a greeting, with `change` made to the bytes of the n-th message. True if both came to their
// end.
template <class Change>
bool greets(int changed, Change change) {
  const LinkGroup zero = group_of_two(0), one = group_of_two(1);
  const std::vector<Greeting> mine{{}, {1, 2}};
  Handshake dialed(zero, mine), dials(one, 0, 0, {3, 4, 5});
  std::vector<uint8_t> bytes = dials.hello();
  for (int message = 0; message < 4; ++message) {
    if (message == changed) change(bytes);
    std::vector<uint8_t> answer;
    Handshake& to = message % 2 == 0 ? dialed : dials;
    for (size_t at = 0; at < bytes.size();) {  // as they come from a socket: at most what is asked for
      const size_t piece = std::min(to.wants(), bytes.size() - at);
      if (piece == 0 || !to.take(bytes.data() + at, piece, &answer)) return false;
      at += piece;
    }
    bytes = std::move(answer);
  }
  if (!dialed.done() || !dials.done()) return false;
  EXPECT_EQ(dials.theirs(), (Greeting{1, 2}));
  EXPECT_EQ(dialed.theirs(), (Greeting{3, 4, 5}));
  return true;
}

TEST(Greetings, AreTakenAsTheyAreAndWithOneByteChangedRefused) {
  EXPECT_TRUE(greets(-1, [](std::vector<uint8_t>&) {}));
  for (int message = 0; message < 4; ++message) {
    size_t size = 0;
    greets(message, [&](std::vector<uint8_t>& bytes) { size = bytes.size(); });
    for (size_t i = 0; i < size; ++i) {
      EXPECT_FALSE(greets(message, [&](std::vector<uint8_t>& bytes) { bytes[i] ^= 1; }))
          << "message " << message << ", byte " << i;
    }
  }
}

TEST(Greetings, BytesOfAnyKindAreRefusedOrTaken) {
  const LinkGroup zero = group_of_two(0);
  const std::vector<Greeting> mine(2);
  uint32_t state = 1;
  const auto random = [&] { return state = state * 1664525U + 1013904223U; };
  for (int round = 0; round < 20000; ++round) {
    Handshake dialed(zero, mine);
    std::vector<uint8_t> bytes = Handshake(group_of_two(1), 0, random() >> 28, {}).hello(), answer;
    bytes.resize(bytes.size() + (random() >> 24));
    for (uint32_t changes = random() >> 30; changes > 0; --changes)
      bytes[(random() >> 8) % bytes.size()] = static_cast<uint8_t>(random() >> 24);
    bool taken = true;
    for (size_t at = 0; taken && at < bytes.size() && dialed.wants() > 0;) {
      const size_t piece = std::min(dialed.wants(), bytes.size() - at);
      taken = dialed.take(bytes.data() + at, piece, &answer);
      at += piece;
    }
    EXPECT_FALSE(dialed.done());  // nobody has shown a proof
    EXPECT_NE(taken, !dialed.refusal().empty());
  }
}

}  // namespace
}  // namespace hvdkit
