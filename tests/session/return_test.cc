// A session that outlives its driver: it misses it, dials, takes a newer one and refuses an older one
// (contract 14).
#include <algorithm>

#include "session/core_support.h"
#include "session/session_core.h"
#include "wire/member.h"

namespace hvd::session {
namespace {

class Return : public CoreTest {
 protected:
  /// A member of generation 1 under a driver of this term.
  void become_member_under(uint64_t term) {
    core.connected(seconds(5), time);
    wire::WelcomeT first = welcome();
    first.term = term;
    receive(0, first);
    ASSERT_TRUE(core.welcomed());
    ASSERT_EQ(core.term(), term);
    become_member(1);
  }
  Actions candidate(wire::WelcomeT body, uint64_t term) {
    body.term = term;
    auto e = wire::envelope("job", kWorker, 0, std::move(body));
    e.sequence = 1;
    return core.candidate_received(e, time);
  }
  static std::vector<DriverChange> changes(Actions actions) {
    std::vector<DriverChange> result;
    for (auto& notified : of<NotifyDriver>(std::move(actions))) result.push_back(notified.change);
    return result;
  }
};

TEST_F(Return, ALostDriverIsDialledAgainAndEndsNothing) {
  become_member_under(1);
  Actions actions = core.channel_closed(Status(HVD_CLOSED, "closed"), time);
  EXPECT_TRUE(of<End>(actions).empty());
  EXPECT_EQ(of<Dial>(actions).size(), 1u);
  const auto told = changes(actions);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(told[0].lost);
  EXPECT_TRUE(core.missing_driver());
  // Each attempt that fails is followed by another one, until driver_timeout.
  EXPECT_TRUE(of<End>(core.dial_failed(Status(HVD_UNAVAILABLE, "nobody listens"), time)).empty());
  time += milliseconds(10);
  EXPECT_EQ(of<Dial>(core.tick(time)).size(), 1u);
}

TEST_F(Return, WithoutATermADriversEndIsTheWorkers) {
  become_member_under(0);
  EXPECT_EQ(end_of(core.channel_closed(Status(HVD_CLOSED, "closed"), time)).code, HVD_DRIVER_LOST);
}

TEST_F(Return, ANewerDriverIsToldWhereTheWorkerStands) {
  become_member_under(1);
  core.set_revision(7);
  core.synced(1, 7, time);
  core.channel_closed(Status(HVD_CLOSED, "closed"), time);
  const auto hello = of<Send>(core.dialled(time));
  ASSERT_EQ(hello.size(), 1u);
  EXPECT_TRUE(hello[0].candidate);
  EXPECT_NE(hello[0].envelope.body.AsHello(), nullptr);
  EXPECT_EQ(hello[0].envelope.term, 1u);
  Actions actions = candidate(welcome(), 2);
  EXPECT_EQ(of<Adopt>(actions).size(), 1u);
  EXPECT_EQ(core.term(), 2u);
  EXPECT_FALSE(core.missing_driver());
  EXPECT_EQ(core.generation(), 1u);
  const auto told = changes(actions);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_FALSE(told[0].lost);
  EXPECT_EQ(told[0].term, 2u);
  const auto sent = of<Send>(actions);
  ASSERT_EQ(sent.size(), 1u);
  const wire::ResumeT* where = sent[0].envelope.body.AsResume();
  ASSERT_NE(where, nullptr);
  EXPECT_EQ(where->rank, 1);
  EXPECT_EQ(where->size, 3);
  EXPECT_EQ(where->revision, 7u);
  EXPECT_TRUE(where->synced);
  EXPECT_FALSE(where->lost);
}

/// contract 14: nobody else tells a new driver whom a peer has seen die while there was none.
TEST_F(Return, ANewDriverIsToldWhichLinkBroke) {
  become_member_under(1);
  core.channel_closed(Status(HVD_CLOSED, "closed"), time);
  EXPECT_TRUE(of<Send>(core.failure(1, 2, "connection reset", false, time)).empty());
  ReadyInfo ready;
  ready.cause = Cause::kPeerLost;
  core.ready(ready, time);
  core.dialled(time);
  const auto suspect_told_to = [&](uint64_t term) {
    const auto sent = of<Send>(candidate(welcome(), term));
    EXPECT_EQ(std::count_if(sent.begin(), sent.end(),
                            [](const Send& s) { return s.envelope.body.AsFailure() != nullptr; }),
              0)
        << "it has left the generation";
    const wire::ResumeT& where = *sent.at(0).envelope.body.AsResume();
    EXPECT_TRUE(where.left);
    EXPECT_TRUE(where.closed);
    return where.suspect;
  };
  EXPECT_EQ(suspect_told_to(2), 2);
  // And the driver after that one.
  core.channel_closed(Status(HVD_CLOSED, "closed"), time);
  core.dialled(time);
  EXPECT_EQ(suspect_told_to(3), 2);
}

TEST_F(Return, AnOlderDriverIsRefused) {
  become_member_under(3);
  core.channel_closed(Status(HVD_CLOSED, "closed"), time);
  EXPECT_EQ(of<Send>(core.dialled(time))[0].envelope.term,
            3u);  // by which it learns that it is the older one
  Actions actions = candidate(welcome(), 2);
  EXPECT_TRUE(of<Adopt>(actions).empty());
  EXPECT_TRUE(of<End>(actions).empty());
  EXPECT_EQ(of<StopDial>(actions).size(), 1u);
  EXPECT_EQ(core.term(), 3u);
  EXPECT_TRUE(core.missing_driver());
  // It looks further.
  time += seconds(1);
  EXPECT_EQ(of<Dial>(core.tick(time)).size(), 1u);
}

TEST_F(Return, AnOlderDriverIsShownWhatProvesTheNewer) {
  become_member_under(1);
  // The first one stands still, its connection is there.
  const Time limit = time + seconds(60);
  bool dials = false;
  while (!dials) {
    time = *core.next_tick();
    ASSERT_LT(time, limit);
    dials = !of<Dial>(core.tick(time)).empty();
  }
  core.dialled(time);
  const auto show = [](wire::WelcomeT body, uint64_t term, std::string proof) {
    body.term = term;
    auto e = wire::envelope("job", kWorker, 0, std::move(body));
    e.sequence = 1;
    e.term_proof = std::move(proof);
    return e;
  };
  Actions actions = core.candidate_received(show(welcome(), 2, "proof of 2"), time);
  ASSERT_EQ(of<Adopt>(actions).size(), 1u);
  const auto sent = of<Send>(actions);
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_NE(sent[0].envelope.body.AsHeartbeat(), nullptr);  // over the connection to the first one
  EXPECT_EQ(sent[0].envelope.term, 2u);
  EXPECT_EQ(sent[0].envelope.term_proof, "proof of 2");
  // And whoever it dials next.
  core.channel_closed(Status(HVD_CLOSED, "closed"), time);
  EXPECT_EQ(of<Send>(core.dialled(time)).at(0).envelope.term_proof, "proof of 2");
  core.candidate_received(show(welcome(), 1, "proof of 1"), time);  // the older one's says nothing
  time += seconds(1);
  core.tick(time);
  EXPECT_EQ(of<Send>(core.dialled(time)).at(0).envelope.term_proof, "proof of 2");
}

TEST_F(Return, WhoAnswersForAnotherJobIsNoDriver) {
  become_member_under(1);
  core.channel_closed(Status(HVD_CLOSED, "closed"), time);
  core.dialled(time);
  wire::WelcomeT body = welcome();
  body.term = 9;
  auto e = wire::envelope("another job", kWorker, 0, body);
  e.sequence = 1;
  EXPECT_TRUE(of<Adopt>(core.candidate_received(e, time)).empty());
  EXPECT_EQ(core.term(), 1u);
  const std::vector<uint8_t> garbage(64, 0xff);
  time += seconds(1);
  core.tick(time);
  core.dialled(time);
  EXPECT_EQ(of<StopDial>(core.candidate_frame(garbage, time)).size(), 1u);
  EXPECT_FALSE(core.ended());
}

TEST_F(Return, WhenNobodyComesBackItEndsAndSaysForHowLong) {
  become_member_under(1);
  core.channel_closed(Status(HVD_CLOSED, "closed"), time);
  core.dial_failed(Status(HVD_UNAVAILABLE, "nobody listens"), time);
  const Status why = end_of(core.tick(time + seconds(60)));
  EXPECT_EQ(why.code, HVD_DRIVER_LOST);
  EXPECT_NE(why.message.find("60 s (driver_timeout)"), std::string::npos) << why.message;
}

// contract 19
TEST_F(Return, AProcessThatWasStoppedDialsOnceMore) {
  become_member_under(1);
  core.channel_closed(Status(HVD_CLOSED, "closed"), time);
  core.dial_failed(Status(HVD_UNAVAILABLE, "nobody listens"), time);
  time += seconds(3600);
  Actions actions = core.tick(time);
  EXPECT_TRUE(of<End>(actions).empty()) << "it was stopped for an hour";
  const std::vector<Dial> dials = of<Dial>(actions);
  ASSERT_EQ(dials.size(), 1u);
  EXPECT_GT(dials[0].timeout, seconds(1));
  core.dialled(time);
  EXPECT_EQ(of<Adopt>(candidate(welcome(), 2)).size(), 1u);

  core.channel_closed(Status(HVD_CLOSED, "closed"), time);
  core.dial_failed(Status(HVD_UNAVAILABLE, "nobody listens"), time);
  time += seconds(3600);
  core.tick(time);
  int dialled = 0;
  for (Time last = time + seconds(30); time < last && !core.ended(); time = *core.next_tick()) {
    core.dial_failed(Status(HVD_UNAVAILABLE, "nobody listens"), time);
    dialled += static_cast<int>(of<Dial>(core.tick(time)).size());
    if (core.ended()) break;
  }
  EXPECT_TRUE(core.ended()) << "nor is it for ever";
  EXPECT_GT(dialled, 0);
}

}  // namespace
}  // namespace hvd::session
