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

}  // namespace
}  // namespace hvdkit
