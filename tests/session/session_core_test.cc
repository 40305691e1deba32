// The worker's session as a pure class: messages and time in, actions out.
#include "session/session_core.h"

#include "session/core_support.h"
#include "wire/member.h"

namespace hvd::session {
namespace {

TEST_F(CoreTest, SaysHelloOnceAndWaitsForWelcome) {
  auto sent = of<Send>(core.connected(seconds(5), time));
  ASSERT_EQ(sent.size(), 1u);
  const wire::HelloT* hello = sent[0].envelope.body.AsHello();
  ASSERT_NE(hello, nullptr);
  EXPECT_EQ(hello->protocol, wire::kProtocol);
  EXPECT_EQ(hello->host, "a");
  EXPECT_EQ(sent[0].envelope.worker, kWorker);
  EXPECT_EQ(sent[0].envelope.sequence, 1u);
  EXPECT_TRUE(core.connected(seconds(5), time).empty());
  EXPECT_TRUE(core.ready({}, time).empty());  // not yet
  EXPECT_EQ(of<Welcomed>(receive(0, welcome(1000, 10000, 7))).size(), 1u);
  EXPECT_EQ(core.epoch_word(), 14u);
}

TEST_F(CoreTest, UnansweredHelloTimesOut) {
  core.connected(seconds(5), time);
  EXPECT_EQ(*core.next_tick(), time + seconds(5));
  EXPECT_TRUE(core.tick(time + seconds(4.9)).empty());
  EXPECT_EQ(end_of(core.tick(time + seconds(5))).code, HVD_TIMEOUT);
}

TEST_F(CoreTest, RefusalsHaveTheirStatus) {
  const std::pair<wire::Refusal, hvd_status> expected[] = {
      {wire::Refusal::Protocol, HVD_REFUSED}, {wire::Refusal::Job, HVD_REFUSED},
      {wire::Refusal::Unknown, HVD_REFUSED},  {wire::Refusal::Stale, HVD_REFUSED},
      {wire::Refusal::Busy, HVD_REFUSED},     {wire::Refusal::Evicted, HVD_REMOVED},
      {wire::Refusal::Removed, HVD_REMOVED},  {wire::Refusal::Ended, HVD_JOB_FAILED}};
  for (const auto& [code, status] : expected) {
    SessionCore fresh(core_config());
    fresh.connected(seconds(5), time);
    wire::RefusedT refused;
    refused.code = code;
    refused.reason = "because";
    auto e = wire::envelope("another job", 0, 0, refused);  // it need not know us
    e.sequence = 1;
    const Status why = end_of(fresh.received(e, time));
    EXPECT_EQ(why.code, status) << wire::EnumNameRefusal(code);
    EXPECT_NE(why.message.find("because"), std::string::npos) << why.message;
  }
}

TEST_F(CoreTest, StaleMessageOfOursEndsNothing) {
  become_welcome();
  wire::RefusedT stale;
  stale.code = wire::Refusal::Stale;
  stale.reason = "ready for generation 3";
  EXPECT_TRUE(of<End>(receive(0, stale)).empty());
  // But if the driver then hangs up, that is why.
  EXPECT_EQ(end_of(core.channel_closed(Status(HVD_CLOSED, "closed"), time)).code, HVD_REFUSED);
}

TEST_F(CoreTest, WelcomeIsChecked) {
  for (auto [interval, timeout] :
       {std::pair<int64_t, int64_t>{0, 10}, {-1, 10}, {10, 10}, {10, 5}, {1, INT64_MAX}}) {
    SessionCore fresh(core_config());
    fresh.connected(seconds(5), time);
    auto e = wire::envelope("job", kWorker, 0, welcome(interval, timeout));
    e.sequence = 1;
    EXPECT_EQ(end_of(fresh.received(e, time)).code, HVD_DRIVER_LOST) << interval << " " << timeout;
  }
}

TEST_F(CoreTest, ForeignMessagesAreDropped) {  // contract 11
  become_welcome();
  become_member(1);
  for (auto [job, worker] : {std::pair<std::string, uint64_t>{"other", kWorker}, {"job", kWorker + 1}}) {
    wire::JobEndedT ended;
    auto e = wire::envelope(job, worker, 1, ended);
    e.sequence = ++sequence;
    Actions actions = core.received(e, time);
    EXPECT_EQ(actions.size(), 1u);
    EXPECT_EQ(of<LogLine>(std::move(actions)).size(), 1u);
    EXPECT_FALSE(core.ended());
  }
}

TEST_F(CoreTest, RepeatedSequenceIsDropped) {  // contract 11
  become_welcome();
  become_member(1);
  --sequence;
  EXPECT_TRUE(of<NotifyHosts>(receive(1, hosts(5, true))).empty());
  EXPECT_EQ(of<NotifyHosts>(receive(1, hosts(6, true))).size(), 1u);
}

TEST_F(CoreTest, OwnSequenceGrowsByOne) {
  become_welcome();
  uint64_t last = 1;  // hello
  for (int i = 0; i < 5; ++i) {
    auto sent = of<Send>(core.ready({}, time));
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].envelope.sequence, ++last);
  }
}

TEST_F(CoreTest, ReadyCarriesWhatTheWorkerBrings) {
  become_welcome();
  become_member(4);
  ReadyInfo info;
  info.cause = Cause::kPeerLost;
  info.has_state = true;
  info.revision = 77;
  info.digest = {1, 2};
  info.offers = {{"gloo", "", 1, 2, 4, {9, 9}}};
  info.settings = {{"local", "on"}};
  info.backends = "gloo for host memory";
  auto sent = of<Send>(core.ready(info, time));
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].envelope.generation, 4u);  // the one it left
  const wire::ReadyT* ready = sent[0].envelope.body.AsReady();
  ASSERT_NE(ready, nullptr);
  EXPECT_EQ(ready->cause, wire::Cause::PeerLost);
  EXPECT_TRUE(ready->has_state);
  EXPECT_EQ(ready->revision, 77u);
  EXPECT_EQ(wire::to_digest(ready->digest.get()), (Digest{1, 2}));
  ASSERT_EQ(ready->addresses.size(), 1u);
  EXPECT_EQ(wire::read_offers(ready->addresses), info.offers);
  EXPECT_EQ(wire::read_settings(ready->settings), info.settings);
  EXPECT_EQ(ready->backends, info.backends);
}

TEST_F(CoreTest, AssignmentTellsTheRank) {
  become_welcome();
  core.ready({}, time);
  auto delivered = of<Deliver>(receive(8, members({3, 9, kWorker}, 6, 1)));
  ASSERT_EQ(delivered.size(), 1u);
  EXPECT_EQ(delivered[0].assignment.rank, 2);
  EXPECT_EQ(delivered[0].assignment.root, 1);
  EXPECT_EQ(delivered[0].assignment.generation, 8u);
  EXPECT_EQ(delivered[0].assignment.members.size(), 3u);
  EXPECT_EQ(core.epoch_word(), 12u);
}

TEST_F(CoreTest, ImpossibleAssignmentsEndTheSession) {
  const auto changed = [](auto change) {
    auto a = members({3, kWorker, 9});
    change(a);
    return a;
  };
  std::vector<std::pair<wire::AssignmentT, const char*>> cases;
  cases.emplace_back(members({3, 9}), "no place for worker 5");
  cases.emplace_back(members({}), "0 members");
  cases.emplace_back(members({kWorker, 3, kWorker}), "worker 5 twice");
  cases.emplace_back(members({3, kWorker, 3}), "worker 3 twice");
  cases.emplace_back(members({3, kWorker}, 1, 2), "root 2 of 2");
  cases.emplace_back(members({3, kWorker}, 1, -1), "root -1");
  cases.emplace_back(changed([](auto& a) { a.members[0]->local_rank = 1; }), "local rank");
  cases.emplace_back(changed([](auto& a) { a.members[0]->host = a.members[1]->host; }), "local rank 0 twice");
  cases.emplace_back(changed([](auto& a) { a.epoch = ~uint64_t{0}; }), "epoch");
  for (auto& [assignment, what] : cases) {
    SessionCore fresh(core_config());
    fresh.connected(seconds(5), time);
    auto e = wire::envelope("job", kWorker, 0, welcome());
    e.sequence = 1;
    fresh.received(e, time);
    auto bad = wire::envelope("job", kWorker, 1, std::move(assignment));
    bad.sequence = 2;
    const Status why = end_of(fresh.received(bad, time));
    EXPECT_EQ(why.code, HVD_DRIVER_LOST) << what;
    EXPECT_NE(why.message.find(what), std::string::npos) << why.message;
  }
}

TEST_F(CoreTest, OlderAssignmentIsDropped) {  // contract 11
  become_welcome();
  become_member(3);
  core.ready({}, time);
  EXPECT_TRUE(of<Deliver>(receive(3, members({kWorker}))).empty());
  EXPECT_TRUE(of<Deliver>(receive(2, members({kWorker}))).empty());
  EXPECT_EQ(of<Deliver>(receive(4, members({kWorker}))).size(), 1u);
}

TEST_F(CoreTest, AbortOfTheCurrentGenerationAndNoOther) {  // contract 3, 11
  become_welcome();
  become_member(3);
  wire::AbortT abort;
  abort.reason = "rank 2 lost";
  abort.rank = 2;
  abort.silence_ns = 12;
  EXPECT_TRUE(of<NotifyAbort>(receive(2, abort)).empty());
  EXPECT_TRUE(of<NotifyAbort>(receive(4, abort)).empty());
  auto told = of<NotifyAbort>(receive(3, abort));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].info.rank, 2);
  EXPECT_EQ(told[0].info.reason, "rank 2 lost");
  EXPECT_EQ(told[0].info.silence, Duration(12));
  EXPECT_EQ(told[0].info.received, time);
  EXPECT_TRUE(of<NotifyAbort>(receive(3, abort)).empty());  // once
}

TEST_F(CoreTest, AbortWaitsUntilJoinHasGivenTheGenerationOut) {
  become_welcome();
  core.ready({}, time);
  receive(1, members({kWorker}));
  EXPECT_TRUE(of<NotifyAbort>(receive(1, wire::AbortT{})).empty());
  EXPECT_EQ(of<NotifyAbort>(core.taken(1, time)).size(), 1u);
  EXPECT_TRUE(of<NotifyAbort>(core.taken(1, time)).empty());
}

TEST_F(CoreTest, AbortOfAGenerationThatJoinSkipsIsDropped) {
  become_welcome();
  core.ready({}, time);
  receive(1, members({kWorker}));
  receive(1, wire::AbortT{});
  EXPECT_EQ(of<Deliver>(receive(2, members({kWorker}))).size(), 1u);
  EXPECT_TRUE(of<NotifyAbort>(core.taken(2, time)).empty());
}

TEST_F(CoreTest, GenerationReplacedUnderAWorkerIsLostToIt) {  // contract 3
  become_welcome();
  become_member(1);
  Actions actions = receive(2, members({kWorker}));
  ASSERT_GE(actions.size(), 2u);
  ASSERT_NE(std::get_if<NotifyAbort>(&actions[0]), nullptr);
  EXPECT_EQ(std::get<NotifyAbort>(actions[0]).info.generation, 1u);
  EXPECT_NE(std::get_if<Deliver>(&actions[1]), nullptr);
}

TEST_F(CoreTest, EpochWordIsTheNewestAndTheAssignmentItsFloor) {  // contract 1, 2
  become_welcome();
  become_member(1, 4);
  EXPECT_EQ(core.epoch_word(), 8u);
  EXPECT_EQ(of<NotifyHosts>(receive(1, hosts(5, false))).size(), 1u);
  EXPECT_EQ(core.epoch_word(), 10u);
  EXPECT_EQ(of<NotifyHosts>(receive(1, hosts(6, true))).size(), 1u);
  EXPECT_EQ(core.epoch_word(), 13u);
  EXPECT_TRUE(of<NotifyHosts>(receive(1, hosts(5, true))).empty());  // older
  EXPECT_TRUE(of<NotifyHosts>(receive(1, hosts(6, true))).empty());  // the same
  EXPECT_EQ(core.epoch_word(), 13u);
  core.ready({}, time);
  receive(2, members({kWorker}, 6));  // takes account of epoch 6: nobody is to be interrupted for it again
  EXPECT_EQ(core.epoch_word(), 12u);
  EXPECT_TRUE(of<NotifyHosts>(receive(2, hosts(6, true))).empty());
  core.taken(2, time);
  receive(2, hosts(9, true));
  core.ready({}, time);
  receive(3, members({kWorker}, 8));  // formed before epoch 9 was seen
  EXPECT_EQ(core.epoch_word(), 19u);
}

TEST_F(CoreTest, HeartbeatsCarryRevisionAndEpoch) {
  become_welcome();
  become_member(2, 3);
  core.set_revision(44);
  EXPECT_EQ(*core.next_tick(), time + seconds(1));
  EXPECT_TRUE(of<Send>(core.tick(time + seconds(0.5))).empty());
  auto sent = of<Send>(core.tick(time + seconds(1)));
  ASSERT_EQ(sent.size(), 1u);
  const wire::HeartbeatT* beat = sent[0].envelope.body.AsHeartbeat();
  ASSERT_NE(beat, nullptr);
  EXPECT_EQ(beat->revision, 44u);
  EXPECT_EQ(beat->epoch, 3u);
  EXPECT_EQ(sent[0].envelope.generation, 2u);
  EXPECT_EQ(*core.next_tick(), time + seconds(2));
}

// Runs the timer as a loop would, for `span`.
std::vector<Status> run_clock(SessionCore& core, Time* time, Duration span) {
  std::vector<Status> ends;
  const Time until = *time + span;
  while (core.next_tick() && *core.next_tick() <= until) {
    *time = std::max(*time, *core.next_tick());
    for (auto& action : core.tick(*time))
      if (auto* e = std::get_if<End>(&action)) ends.push_back(e->why);
  }
  *time = until;
  return ends;
}

TEST_F(CoreTest, SilentDriverIsLostWhenPatienceIsOver) {
  become_welcome();
  EXPECT_TRUE(run_clock(core, &time, seconds(59.9)).empty());
  const auto ends = run_clock(core, &time, seconds(3));
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].code, HVD_DRIVER_LOST);
  EXPECT_NE(ends[0].message.find("driver:1"), std::string::npos) << ends[0].message;
  EXPECT_NE(ends[0].message.find("silent for 61 s"), std::string::npos) << ends[0].message;
  EXPECT_NE(ends[0].message.find("driver_timeout is 60 s"), std::string::npos) << ends[0].message;
}

TEST_F(CoreTest, SilenceOfADriverIsSaidOnceAndOver) {
  become_welcome();
  const auto warnings = [&](Duration span) {
    size_t count = 0;
    for (const Time until = time + span; core.next_tick() && *core.next_tick() <= until;) {
      time = *core.next_tick();
      for (const LogLine& line : of<LogLine>(core.tick(time)))
        count += line.text.find("silent for 10 s: this worker goes on") != std::string::npos;
    }
    return count;
  };
  EXPECT_EQ(warnings(seconds(30)), 1u);
  receive(0, wire::HeartbeatAckT{});
  EXPECT_EQ(warnings(seconds(9)), 0u);
  EXPECT_EQ(warnings(seconds(30)), 1u) << "silent again";
}

TEST_F(CoreTest, AnyMessageIsASignOfLife) {
  become_welcome();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(run_clock(core, &time, seconds(8)).empty());
    receive(0, wire::HeartbeatAckT{});
  }
}

/// As a driver of ten thousand does.
TEST_F(CoreTest, ADriverThatAnswersEachSecondHeartbeatIsNotMissed) {
  become_welcome();
  wire::HeartbeatAckT ack;
  ack.interval_ms = 3333;
  receive(0, ack);
  size_t beats = 0;
  while (beats < 100) {
    time = *core.next_tick() + milliseconds(900);  // both ends are late
    const Actions actions = core.tick(time);
    ASSERT_TRUE(of<LogLine>(actions).empty() && of<Dial>(actions).empty());
    for (size_t sent = of<Send>(actions).size(); sent > 0; --sent) {
      if (++beats % 2 == 0) receive(0, ack);
    }
  }
}

TEST_F(CoreTest, ADriverOfManyHearsMoreSeldom) {
  become_welcome();
  Time last_heard = time;
  const auto beats = [&](Duration during) {
    size_t count = 0;
    for (const Time until = time + during; time < until; time += milliseconds(10)) {
      for (const Send& send : of<Send>(core.tick(time))) count += send.envelope.body.AsHeartbeat() != nullptr;
      if (time - last_heard > seconds(5)) {
        receive(0, wire::HeartbeatAckT{});
        last_heard = time;
      }
    }
    return count;
  };
  const auto told = [&](int64_t interval_ms) {
    wire::HeartbeatAckT ack;
    ack.interval_ms = interval_ms;
    return receive(0, std::move(ack));
  };
  EXPECT_NEAR(static_cast<double>(beats(seconds(30))), 30, 1);
  told(3000);
  EXPECT_NEAR(static_cast<double>(beats(seconds(30))), 10, 1);
  told(0);
  EXPECT_NEAR(static_cast<double>(beats(seconds(30))), 10, 1) << "0 says nothing";
  EXPECT_EQ(of<LogLine>(told(10'000)).size(), 1u) << "no heartbeat would come in time";
  EXPECT_EQ(of<LogLine>(told(-1)).size(), 1u);
  EXPECT_EQ(of<LogLine>(told(std::numeric_limits<int64_t>::max())).size(), 1u);
  EXPECT_NEAR(static_cast<double>(beats(seconds(30))), 10, 1);
  told(500);
  EXPECT_NEAR(static_cast<double>(beats(seconds(30))), 60, 1);
}

TEST_F(CoreTest, AfterAStopWhatHasArrivedIsReadFirst) {
  become_welcome();
  time += seconds(3600);  // SIGSTOP ... SIGCONT
  EXPECT_TRUE(of<End>(core.tick(time)).empty());
  wire::RefusedT evicted;
  evicted.code = wire::Refusal::Evicted;
  evicted.reason = "silent for 10 s";
  const Status why = end_of(receive(0, evicted));
  EXPECT_EQ(why.code, HVD_REMOVED);
  EXPECT_NE(why.message.find("silent for 10 s"), std::string::npos);
}

TEST_F(CoreTest, StoppedAgainBeforeTheVerdictItIsPutOffAgain) {
  become_welcome();
  for (int i = 0; i < 3; ++i) {
    time += seconds(3600);
    EXPECT_TRUE(of<End>(core.tick(time)).empty()) << i;
  }
  EXPECT_EQ(run_clock(core, &time, seconds(2)).size(), 1u);
}

TEST_F(CoreTest, ClosedConnectionIsALostDriver) {
  become_welcome();
  const Status why =
      end_of(core.channel_closed(Status(HVD_CLOSED, "127.0.0.1:1 closed the connection"), time));
  EXPECT_EQ(why.code, HVD_DRIVER_LOST);
  EXPECT_NE(why.message.find("closed the connection"), std::string::npos);
  EXPECT_TRUE(core.channel_closed(Status(HVD_CLOSED, "again"), time).empty());
}

TEST_F(CoreTest, JobEndsEitherWay) {  // contract 8
  for (bool success : {true, false}) {
    SessionCore fresh(core_config());
    fresh.connected(seconds(5), time);
    auto e = wire::envelope("job", kWorker, 0, welcome());
    e.sequence = 1;
    fresh.received(e, time);
    EXPECT_EQ(of<Send>(fresh.done(9, time)).size(), 1u);
    wire::JobEndedT ended;
    ended.success = success;
    ended.reason = "the sentence";
    auto last = wire::envelope("job", kWorker, 0, ended);
    last.sequence = 2;
    const Status why = end_of(fresh.received(last, time));
    EXPECT_EQ(why.code, success ? HVD_OK : HVD_JOB_FAILED);
    EXPECT_EQ(why.message, "the sentence");
  }
}

TEST_F(CoreTest, BytesThatAreNoMessageEndTheSession) {
  become_welcome();
  const Status why = end_of(core.frame(std::vector<uint8_t>(100, 1), time));
  EXPECT_EQ(why.code, HVD_DRIVER_LOST);
  EXPECT_NE(why.message.find("identifier"), std::string::npos) << why.message;
}

TEST_F(CoreTest, ReportsOfOtherGenerationsAreNotSent) {
  become_welcome();
  become_member(2);
  EXPECT_TRUE(core.synced(1, 1, time).empty());
  EXPECT_TRUE(core.failure(3, 1, "", false, time).empty());
  EXPECT_EQ(of<Send>(core.synced(2, 1, time)).size(), 1u);
  EXPECT_EQ(of<Send>(core.failure(2, 1, "", false, time)).size(), 1u);
  receive(2, wire::AbortT{});
  EXPECT_TRUE(core.failure(2, 1, "", false, time).empty());
  // That a rank does not fit is as true when another loss was faster.
  const auto sent = of<Send>(core.failure(2, 1, "other options", true, time));
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_TRUE(sent[0].envelope.body.AsFailure()->unfit);
  core.ready({}, time);
  EXPECT_TRUE(core.failure(2, 1, "other options", true, time).empty());
}

TEST_F(CoreTest, KeysAreAnsweredOrFailWithTheirGeneration) {
  become_welcome();
  EXPECT_EQ(of<AnswerKv>(core.kv_get(1, 1, "k", time))[0].status.code, HVD_INVALID);
  become_member(1);
  EXPECT_EQ(of<Send>(core.kv_get(2, 1, "k", time)).size(), 1u);
  core.kv_get(3, 1, "other", time);
  core.kv_get(4, 1, "forgotten", time);
  core.kv_forget(4);
  wire::KvValueT value;
  value.key = "k";
  value.value = {1, 2};
  EXPECT_TRUE(of<AnswerKv>(receive(9, value)).empty());  // of another generation
  auto answers = of<AnswerKv>(receive(1, value));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].id, 2u);
  EXPECT_EQ(answers[0].value, (std::vector<uint8_t>{1, 2}));
  value.key = "other";
  value.status = 12345;
  EXPECT_EQ(of<AnswerKv>(receive(1, value))[0].status.code, HVD_INTERNAL);
  core.kv_get(5, 1, "late", time);
  answers = of<AnswerKv>(receive(1, wire::AbortT{}));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].id, 5u);
  EXPECT_EQ(answers[0].status.code, HVD_PEER_LOST);
  EXPECT_EQ(answers[0].status.generation, 1u);
  EXPECT_EQ(of<AnswerKv>(core.kv_get(6, 1, "k", time))[0].status.code, HVD_PEER_LOST);
}

TEST_F(CoreTest, CloseEndsOnceAndNothingFollows) {
  become_welcome();
  become_member(1);
  EXPECT_EQ(end_of(core.close(seconds(1), time)).code, HVD_CLOSED);
  EXPECT_TRUE(core.close(seconds(1), time).empty());
  EXPECT_TRUE(receive(2, members({kWorker})).empty());
  EXPECT_TRUE(core.ready({}, time).empty());
  EXPECT_TRUE(core.tick(time + seconds(100)).empty());
  EXPECT_FALSE(core.next_tick().has_value());
}

}  // namespace
}  // namespace hvd::session
