// What hvd-pmix-server does with what MPI processes tell each other as they join.
#include "modules/mpi_elastic/pmix_server/exchange.h"

#include <gtest/gtest.h>

namespace hvd::pmix_server::test {
namespace {

using Result = Answer::Result;
const Time kStart{};
constexpr std::chrono::milliseconds kPatience{7000};

Value text(const char* words) { return std::make_shared<std::string>(words); }
std::string text_of(const Answer& answer) {
  return answer.value == nullptr ? "" : *static_cast<const std::string*>(answer.value.get());
}

class PmixExchange : public testing::Test {
 protected:
  Answers publish(const std::string& process, const std::string& key, Value value, bool once) {
    const auto answers = exchange_.publish(process, key, std::move(value), once);
    EXPECT_TRUE(answers.has_value()) << process << " " << key;
    return answers.value_or(Answers{});
  }
  Exchange exchange_{kPatience};
};

TEST(PmixNamespaces, AreAheadOfTheHighestNumberUpToABound) {
  EXPECT_EQ(namespaces_for(0), 512u);
  EXPECT_EQ(namespaces_for(512), 1024u);
  EXPECT_EQ(namespaces_for(65'000), 65'512u);
  EXPECT_EQ(namespaces_for(65'536), 65'536u);
  EXPECT_EQ(namespaces_for(~uint64_t{0}), 65'536u);
}

TEST_F(PmixExchange, PortsOfKeys) {
  EXPECT_EQ(port_of("365.0:34:accept"), "365.0:34");
  EXPECT_EQ(port_of("365.0:34:nextcid:send:0"), "365.0:34");
  for (const char* all : {"365.0:34", "name", ""}) EXPECT_EQ(port_of(all), all);
}

TEST_F(PmixExchange, ALookUpFindsWhatWasPublishedBeforeAndWaitsForWhatWillBe) {
  EXPECT_TRUE(publish("a", "1.0:2:accept", text("A"), true).empty());
  Answers answers = exchange_.look_up("b", "1.0:2:accept", 1, true, kStart);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].ticket, 1u);
  EXPECT_EQ(answers[0].result, Result::kFound);
  EXPECT_EQ(answers[0].owner, "a");
  EXPECT_EQ(text_of(answers[0]), "A");
  EXPECT_TRUE(exchange_.look_up("a", "1.0:2:connect", 2, true, kStart).empty());
  answers = publish("b", "1.0:2:connect", text("B"), true);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].ticket, 2u);
  EXPECT_EQ(text_of(answers[0]), "B");
  EXPECT_FALSE(exchange_.next().has_value());
}

TEST_F(PmixExchange, WhatIsReadOnceIsGoneAndTheRestStays) {
  publish("a", "once", text("1"), true);
  publish("a", "often", text("2"), false);
  for (const char* key : {"once", "often"}) exchange_.look_up("b", key, 1, false, kStart);
  EXPECT_EQ(exchange_.look_up("b", "once", 2, false, kStart)[0].result, Result::kAbsent);
  EXPECT_EQ(exchange_.look_up("b", "often", 3, false, kStart)[0].result, Result::kFound);
  exchange_.unpublish("b", "often");  // not b's
  EXPECT_EQ(exchange_.look_up("b", "often", 4, false, kStart)[0].result, Result::kFound);
  exchange_.unpublish("a", "often");
  EXPECT_EQ(exchange_.look_up("b", "often", 5, false, kStart)[0].result, Result::kAbsent);
}

TEST_F(PmixExchange, OneOfTwoThatWaitGetsWhatIsReadOnce) {
  exchange_.look_up("b", "once", 1, true, kStart);
  exchange_.look_up("c", "once", 2, true, kStart);
  const Answers answers = publish("a", "once", text("1"), true);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].ticket, 1u) << "who came first";
  EXPECT_EQ(exchange_.look_up("d", "once", 3, false, kStart)[0].result, Result::kAbsent);
}

TEST_F(PmixExchange, WhoWaitsForADeadPartnerIsToldAtOnce) {
  publish("a", "1.0:2:accept", text("A"), true);
  exchange_.look_up("b", "1.0:2:accept", 1, true, kStart);
  exchange_.look_up("b", "1.0:2:nextcid:send:0", 2, true, kStart);
  exchange_.look_up("c", "3.0:4:connect", 3, true, kStart);
  const Answers answers = exchange_.died("a");
  ASSERT_EQ(answers.size(), 1u) << "c waits for others";
  EXPECT_EQ(answers[0].ticket, 2u);
  EXPECT_EQ(answers[0].result, Result::kLost);
  const Answers later = exchange_.look_up("b", "1.0:2:nextcid:send:1", 4, true, kStart);
  ASSERT_EQ(later.size(), 1u) << "and does not begin to wait";
  EXPECT_EQ(later[0].result, Result::kLost);
}

TEST_F(PmixExchange, TheDeadGetNoAnswerAndLeaveNothing) {
  publish("a", "1.0:2:accept", text("A"), true);
  exchange_.look_up("a", "1.0:2:connect", 1, true, kStart);
  publish("b", "5.0:6:accept", text("B"), false);
  EXPECT_TRUE(exchange_.died("a").empty());
  EXPECT_TRUE(exchange_.died("b").empty());
  EXPECT_EQ(exchange_.size(), 0u);
}

TEST_F(PmixExchange, NobodyWaitsForLongerThanThePatience) {
  exchange_.look_up("a", "1.0:2:connect", 1, true, kStart);
  exchange_.look_up("b", "3.0:4:connect", 2, true, kStart + std::chrono::seconds(1));
  EXPECT_EQ(exchange_.next(), kStart + kPatience);
  EXPECT_TRUE(exchange_.expire(kStart + kPatience - std::chrono::milliseconds(1)).empty());
  const Answers answers = exchange_.expire(kStart + kPatience);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].ticket, 1u);
  EXPECT_EQ(answers[0].result, Result::kTimeout);
  EXPECT_EQ(exchange_.next(), kStart + kPatience + std::chrono::seconds(1));
}

TEST_F(PmixExchange, AKeyIsItsOwnersAlone) {
  publish("a", "1.0:2:accept", text("A"), true);
  EXPECT_FALSE(exchange_.publish("b", "1.0:2:accept", text("B"), true).has_value());
  const Answers answers = exchange_.look_up("c", "1.0:2:accept", 1, true, kStart);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(text_of(answers[0]), "A");
}

TEST_F(PmixExchange, WhatOneProcessMakesItRememberIsBounded) {
  size_t taken = 0;
  for (int i = 0; i < 1000; ++i)
    taken += exchange_.publish("wild", "key" + std::to_string(i), text("x"), false) ? 1 : 0;
  EXPECT_EQ(taken, Exchange::kMostValues);
  for (int i = 0; i < 1000; ++i)
    exchange_.look_up("lost", "1.0:" + std::to_string(i) + ":accept", i, false, kStart);
  EXPECT_LE(exchange_.size(), Exchange::kMostValues + 2 * Exchange::kMostPorts);
  size_t absent = 0;
  for (int i = 0; i < 1000; ++i) absent += exchange_.look_up("waits", "never", 2000 + i, true, kStart).size();
  EXPECT_EQ(absent, 1000 - Exchange::kMostWaiting);
  for (const char* process : {"wild", "lost", "waits"}) exchange_.died(process);
  EXPECT_EQ(exchange_.size(), 0u);
  EXPECT_FALSE(exchange_.next().has_value());
}

TEST_F(PmixExchange, TheNewestPortsAreRemembered) {
  for (size_t i = 0; i <= Exchange::kMostPorts; ++i)
    publish("a", "1.0:" + std::to_string(i) + ":accept", text("A"), true),
        exchange_.look_up("a", "1.0:" + std::to_string(i) + ":accept", i, false, kStart);
  exchange_.look_up("b", "1.0:" + std::to_string(Exchange::kMostPorts) + ":connect", 1, true, kStart);
  const Answers answers = exchange_.died("a");
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].result, Result::kLost);
}

}  // namespace
}  // namespace hvd::pmix_server::test
