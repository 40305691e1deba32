// Reports of operations that wait for somebody (contract 12, F7), as the session sends them.
#include "session/core_support.h"

namespace hvd::session {
namespace {

class Stalls : public CoreTest {
 protected:
  void become_welcome_by(bool takes_stalls) {
    core.connected(seconds(5), time);
    wire::WelcomeT message = welcome();
    message.takes_stalls = takes_stalls;
    receive(0, message);
    ASSERT_TRUE(core.welcomed());
  }
  std::vector<Send> report(uint64_t generation, const std::string& text = "'loss' waits") {
    return of<Send>(core.stall(generation, text, {1, 3}, seconds(2.5), time));
  }
};

TEST_F(Stalls, AreSentWithWhomTheyWaitFor) {
  become_welcome_by(true);
  become_member(7);
  const auto sent = report(7);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].envelope.generation, 7u);
  const wire::StallT* stall = sent[0].envelope.body.AsStall();
  ASSERT_NE(stall, nullptr);
  EXPECT_EQ(stall->message, "'loss' waits");
  EXPECT_EQ(stall->missing, (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(stall->waited_ms, 2500);
}

TEST_F(Stalls, OfAGenerationThatIsOverBlameNobody) {  // contract 11
  become_welcome_by(true);
  EXPECT_TRUE(report(0).empty());
  become_member(7);
  EXPECT_TRUE(report(6).empty());
  wire::AbortT abort;
  receive(7, abort);
  EXPECT_TRUE(report(7).empty()) << "lost already";
  become_member(8);
  EXPECT_TRUE(report(7).empty());
  EXPECT_EQ(report(8).size(), 1u);
}

TEST_F(Stalls, AreNotForADriverThatDoesNotKnowThem) {
  become_welcome_by(false);
  become_member(7);
  EXPECT_TRUE(report(7).empty());
}

TEST_F(Stalls, HaveATextOfBoundedLength) {
  become_welcome_by(true);
  become_member(7);
  std::string text = "a";  // so that a character of two bytes is cut by every even length
  while (text.size() < 100000) text += "\xc3\xa9";
  const std::string sent = report(7, text).at(0).envelope.body.AsStall()->message;
  EXPECT_EQ(sent.size(), 4095u);
  EXPECT_EQ(sent, text.substr(0, 4095));
}

}  // namespace
}  // namespace hvd::session
