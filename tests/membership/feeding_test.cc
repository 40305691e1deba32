// Newcomers are fed before they join: who feeds whom, how long that may take, and who takes a lost one's
// place.
#include "membership/script.h"

namespace hvd::membership::test {
namespace {

ReadyEvent feeding(const std::string& host = "", uint64_t left = 0, bool has_state = false) {
  ReadyEvent event{left, has_state, 0, {}, host};
  event.feeds = true;
  return event;
}

/// Two members on host a, of a job that may have up to `most`.
Script two(int32_t most, double timeout = 30) {
  MembershipConfig config = sizes(2, 1, most);
  config.feed_timeout = seconds(timeout);
  Script s(config);
  s.hosts({{"a", 2}});
  for (uint64_t w : {1, 2}) s.ready_with(w, feeding("a"));
  s.all_synced({1, 2});
  return s;
}

bool interrupts(const Script& s) {
  const auto notes = s.all<Notify>();
  return !notes.empty() && notes.back().interrupt;
}

TEST(Feeding, ComesBeforeTheInterrupt) {
  Script s = two(3);
  s.hosts({{"a", 2}, {"b", 1}});
  s.ready_with(3, feeding("b"));
  EXPECT_FALSE(interrupts(s));
  const WantFeed want = s.one<WantFeed>();
  EXPECT_EQ(want.generation, 1u);
  s.offered(want.worker, {"a:1", "key", ""});
  const StartFeed start = s.one<StartFeed>();
  EXPECT_EQ(start.worker, 3u);
  EXPECT_EQ(start.source, want.worker);
  EXPECT_EQ(start.endpoint, "a:1");
  EXPECT_EQ(start.key, "key");
  EXPECT_FALSE(interrupts(s));
  s.fed(3, want.worker);
  EXPECT_TRUE(interrupts(s));
  for (uint64_t w : {1, 2}) s.ready_with(w, feeding("a", 1, true));
  EXPECT_EQ(s.members(), (Ids{1, 2, 3}));
}

TEST(Feeding, DoesNotLastForEver) {
  Script s = two(3, 4);
  s.hosts({{"a", 2}, {"b", 1}});
  s.ready_with(3, feeding("b"));
  s.offered(s.one<WantFeed>().worker, {"a:1", "key", ""});
  s.wait(3.9);
  EXPECT_FALSE(interrupts(s));
  s.wait(0.2);
  EXPECT_TRUE(interrupts(s));
}

TEST(Feeding, IsNotWaitedForWhereNobodyCan) {
  Script s = two(3);
  s.hosts({{"a", 2}, {"b", 1}});
  s.ready_with(3, feeding("b"));
  s.offered(s.one<WantFeed>().worker, {"", "", "it runs without a state"});
  EXPECT_TRUE(interrupts(s)) << "at once";

  Script old = running(sizes(2, 1, 3));  // members of an older library
  old.hosts({{"a", 2}, {"b", 1}});
  old.ready_with(3, feeding("b"));
  EXPECT_TRUE(interrupts(old));

  Script t = two(3);
  t.hosts({{"a", 2}, {"b", 1}});
  t.ready(3);  // a newcomer of one
  EXPECT_TRUE(interrupts(t));
}

TEST(Feeding, AFailureIsNoReasonToStayOutside) {
  Script s = two(3);
  s.hosts({{"a", 2}, {"b", 1}});
  s.ready_with(3, feeding("b"));
  const uint64_t source = s.one<WantFeed>().worker;
  s.offered(source, {"a:1", "key", ""});
  FedEvent failed;
  failed.source = source;
  failed.failure = "connection refused";
  s.fed_with(3, failed);
  EXPECT_TRUE(interrupts(s));
}

TEST(Feeding, ASourceOnTheSameHostIsAsked) {
  MembershipConfig config = sizes(2, 1, 4);
  config.feed_timeout = seconds(30);
  Script s(config);
  s.hosts({{"a", 1}, {"b", 1}});
  s.ready_with(1, feeding("a")).ready_with(2, feeding("b")).all_synced({1, 2});
  s.hosts({{"a", 1}, {"b", 2}});
  s.ready_with(3, feeding("b"));
  EXPECT_EQ(s.one<WantFeed>().worker, 2u);
}

TEST(Feeding, ALossDoesNotWaitForIt) {
  Script s = two(3);
  s.hosts({{"a", 2}, {"b", 1}});
  s.ready_with(3, feeding("b"));
  const uint64_t source = s.one<WantFeed>().worker;
  s.offered(source, {"a:1", "key", ""});
  const uint64_t other = 3 - source;
  s.lost(source);
  s.ready_with(other, feeding("a", 1, true));
  EXPECT_EQ(s.members(), (Ids{other})) << "who is not fed stays outside";
  s.synced(other);
  // And is fed by another one.
  const WantFeed want = s.one<WantFeed>();
  EXPECT_EQ(want.worker, other);
  EXPECT_EQ(want.generation, 2u);
  s.offered(other, {"a:2", "key2", ""});
  EXPECT_EQ(s.one<StartFeed>().endpoint, "a:2");
  s.fed(3, source);  // of the first one, and late
  EXPECT_FALSE(interrupts(s));
  s.fed(3, other);
  EXPECT_TRUE(interrupts(s));
}

TEST(Feeding, WhoIsNeededIsNotHeldBack) {
  MembershipConfig config = sizes(2, 2, 3);
  config.feed_timeout = seconds(30);
  Script s(config);
  s.hosts({{"a", 2}});
  for (uint64_t w : {1, 2}) s.ready_with(w, feeding("a"));
  s.all_synced({1, 2});
  s.hosts({{"a", 2}, {"b", 1}});
  s.ready_with(3, feeding("b"));
  s.lost(1);
  s.ready_with(2, feeding("a", 1, true));
  EXPECT_EQ(s.members(), (Ids{2, 3}));
}

TEST(Feeding, ASpareIsFedAndTakesALostOnesPlace) {
  MembershipConfig config = sizes(2, 1, 2);
  config.feed_timeout = seconds(30);
  config.spares = 2;
  config.restart = false;
  Script s(config);
  s.hosts({{"a", 4}});
  for (uint64_t w : {1, 2}) s.ready_with(w, feeding("a"));
  EXPECT_EQ(s.members(), (Ids{1, 2}));
  for (uint64_t w : {3, 4}) s.ready_with(w, feeding("a"));
  s.synced(1).synced(2);
  const Ids wanted = [&] {
    Ids ids;
    for (const WantFeed& want : s.all<WantFeed>()) ids.push_back(want.worker);
    return ids;
  }();
  ASSERT_EQ(wanted, (Ids{2, 1})) << "each feeds one";
  s.offered(2, {"a:2", "key", ""});
  EXPECT_EQ(s.one<StartFeed>().worker, 3u);
  s.offered(1, {"a:1", "key", ""});
  EXPECT_EQ(s.one<StartFeed>().worker, 4u);
  s.fed(4, 1);
  EXPECT_FALSE(interrupts(s)) << "it has no place yet";
  s.lost(2);
  s.ready_with(1, feeding("a", 1, true));
  EXPECT_EQ(s.members(), (Ids{1, 4})) << "the one that has the state";
  EXPECT_EQ(s.one<Assign>().spares, 1);
}

TEST(Feeding, CanBeSwitchedOff) {
  Script s = two(3, 0);
  s.hosts({{"a", 2}, {"b", 1}});
  s.ready_with(3, feeding("b"));
  EXPECT_TRUE(s.none<WantFeed>());
  EXPECT_TRUE(interrupts(s));
}

}  // namespace
}  // namespace hvd::membership::test
