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
  Exchange exchange_{kPatience};
};

TEST_F(PmixExchange, PortsOfKeys) {
  EXPECT_EQ(port_of("365.0:34:accept"), "365.0:34");
  EXPECT_EQ(port_of("365.0:34:nextcid:send:0"), "365.0:34");
  for (const char* all : {"365.0:34", "name", ""}) EXPECT_EQ(port_of(all), all);
}

TEST_F(PmixExchange, ALookUpFindsWhatWasPublishedBeforeAndWaitsForWhatWillBe) {
  EXPECT_TRUE(exchange_.publish("a", "1.0:2:accept", text("A"), true).empty());
  Answers answers = exchange_.look_up("b", "1.0:2:accept", 1, true, kStart);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].ticket, 1u);
  EXPECT_EQ(answers[0].result, Result::kFound);
  EXPECT_EQ(answers[0].owner, "a");
  EXPECT_EQ(text_of(answers[0]), "A");
  EXPECT_TRUE(exchange_.look_up("a", "1.0:2:connect", 2, true, kStart).empty());
  answers = exchange_.publish("b", "1.0:2:connect", text("B"), true);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].ticket, 2u);
  EXPECT_EQ(text_of(answers[0]), "B");
  EXPECT_FALSE(exchange_.next().has_value());
}

TEST_F(PmixExchange, WhatIsReadOnceIsGoneAndTheRestStays) {
  exchange_.publish("a", "once", text("1"), true);
  exchange_.publish("a", "often", text("2"), false);
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
  const Answers answers = exchange_.publish("a", "once", text("1"), true);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].ticket, 1u) << "who came first";
  EXPECT_EQ(exchange_.look_up("d", "once", 3, false, kStart)[0].result, Result::kAbsent);
}

TEST_F(PmixExchange, WhoWaitsForADeadPartnerIsToldAtOnce) {
  exchange_.publish("a", "1.0:2:accept", text("A"), true);
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
  exchange_.publish("a", "1.0:2:accept", text("A"), true);
  exchange_.look_up("a", "1.0:2:connect", 1, true, kStart);
  exchange_.publish("b", "5.0:6:accept", text("B"), false);
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

}  // namespace
}  // namespace hvd::pmix_server::test
