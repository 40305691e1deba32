// Session over real connections, against a driver that does what each test tells it.
#include "session/session.h"

#include <sys/socket.h>

#include <atomic>
#include <deque>
#include <future>
#include <thread>

#include "session/core_support.h"
#include "wire/support.h"

namespace hvd::session {
namespace {

using test::Events;
using test::kDeadline;
using test::kSecret;
using test::LogLines;
using test::run_on;

/// Answers hello and heartbeats if told so; everything else is the test's.
class Driver {
 public:
  Driver() {
    listener_ =
        std::make_unique<wire::Listener>(loop_, "127.0.0.1:0", kSecret, wire::ChannelLimits{}, nullptr,
                                         [this](std::shared_ptr<wire::Channel> c) { accept(std::move(c)); });
  }
  ~Driver() {
    loop_.stop();
    channel_.reset();
    listener_.reset();
  }

  std::string endpoint() const { return "127.0.0.1:" + std::to_string(listener_->port()); }

  template <class Table>
  void send(uint64_t generation, Table body) {
    auto e = std::make_shared<wire::EnvelopeT>(wire::envelope("job", kWorker, generation, std::move(body)));
    loop_.post([this, e] {
      e->sequence = ++sequence_;
      if (channel_) channel_->send(wire::encode(*e));
    });
  }
  void hang_up(Duration linger) {
    run_on(loop_, [&] { channel_->close(linger); });
  }
  /// The next message of this kind; what comes before it is dropped.
  std::unique_ptr<wire::EnvelopeT> next(wire::Body type) {
    std::unique_ptr<wire::EnvelopeT> result;
    const bool found = events_.wait([&] {
      while (!received_.empty() && !result) {
        if (received_.front()->body.type == type) result = std::move(received_.front());
        received_.pop_front();
      }
      return result != nullptr;
    });
    if (!found) throw std::runtime_error(std::string("the worker never sent ") + wire::EnumNameBody(type));
    return result;
  }
  [[nodiscard]] bool wait_closed() {
    return events_.wait([this] { return closed_; });
  }

  [[nodiscard]] bool wait_connections(int count) {
    return events_.wait([this, count] { return connections_ >= count; });
  }

  bool answer_hello = true, answer_heartbeats = true;
  wire::WelcomeT welcome_message = welcome(50, 60000, 1);

 private:
  void accept(std::shared_ptr<wire::Channel> channel) {
    channel_ = std::move(channel);
    received_sequence_ = 0;
    events_.change([this] { ++connections_; });
    channel_->set_handlers({[this](std::span<const uint8_t> frame) { receive(frame); },
                            [this](const Status&) { events_.change([this] { closed_ = true; }); }});
  }
  void receive(std::span<const uint8_t> frame) {
    auto e = std::make_unique<wire::EnvelopeT>(wire::decode(frame));
    EXPECT_EQ(e->sequence, ++received_sequence_);
    if (e->body.type == wire::Body::Hello && answer_hello) send(0, welcome_message);
    if (e->body.type == wire::Body::Heartbeat && answer_heartbeats) {
      wire::HeartbeatAckT ack;
      ack.sent_ns = e->body.AsHeartbeat()->sent_ns;
      send(0, ack);
    }
    events_.change([&] { received_.push_back(std::move(e)); });
  }

  Loop loop_{"driver"};
  std::unique_ptr<wire::Listener> listener_;
  std::shared_ptr<wire::Channel> channel_;
  uint64_t sequence_ = 0, received_sequence_ = 0;
  Events events_;
  std::deque<std::unique_ptr<wire::EnvelopeT>> received_;
  bool closed_ = false;
  int connections_ = 0;
};

const Duration kLong = test::patient(std::chrono::seconds(60));

class SessionTest : public testing::Test {
 protected:
  ~SessionTest() override {
    session.reset();
    EXPECT_LE(ends.size(), 1u);
  }

  void make(const std::string& endpoint, Duration connect_timeout = kLong,
            const std::string& secret = kSecret) {
    SessionConfig config;
    config.driver = endpoint;
    config.secret = secret;
    config.job = "job";
    config.host = "a";
    config.worker = kWorker;
    config.connect_timeout = connect_timeout;
    config.driver_timeout = driver_timeout;
    config.logger = log.logger;
    SessionEvents e;
    e.aborted = [this](const AbortInfo& info) { events.change([&] { aborts.push_back(info); }); };
    e.hosts_updated = [this](const HostsUpdate& update) {
      events.change([&] { updates.push_back(update); });
    };
    e.ended = [this](const Status& why) { events.change([&] { ends.push_back(why); }); };
    e.driver_changed = driver_changed;
    session = std::make_unique<Session>(std::move(config), std::move(e));
  }
  void start() {
    make(driver.endpoint());
    const Status status = session->start();
    ASSERT_EQ(status.code, HVD_OK) << status.message;
  }
  void become_member(uint64_t generation, uint64_t epoch = 1) {
    auto joined = std::async(std::launch::async, [this] { return session->join({}, kLong, &assignment); });
    driver.next(wire::Body::Ready);
    driver.send(generation, members({3, kWorker}, epoch));
    const Status status = joined.get();
    ASSERT_EQ(status.code, HVD_OK) << status.message;
    ASSERT_EQ(assignment.generation, generation);
  }
  Duration driver_timeout = seconds(60);
  Status wait_end() {
    if (!events.wait([this] { return !ends.empty(); })) return Status(HVD_INTERNAL, "it never ended");
    return events.read([this] { return ends[0]; });
  }

  std::function<void(const DriverChange&)> driver_changed;
  Driver driver;
  LogLines log;
  Events events;
  std::vector<AbortInfo> aborts;
  std::vector<HostsUpdate> updates;
  std::vector<Status> ends;
  Assignment assignment;
  std::unique_ptr<Session> session;
};

TEST_F(SessionTest, HelloReadyAssignmentSynced) {
  start();
  auto hello = driver.next(wire::Body::Hello);
  EXPECT_EQ(hello->job, "job");
  EXPECT_EQ(hello->body.AsHello()->host, "a");
  EXPECT_EQ(session->local_address(), "127.0.0.1");
  EXPECT_EQ(session->epoch_word(), 2u);
  become_member(4, 6);
  EXPECT_EQ(assignment.rank, 1);
  EXPECT_EQ(assignment.members.size(), 2u);
  EXPECT_EQ(session->epoch_word(), 12u);
  session->report_synced(4, 17);
  auto synced = driver.next(wire::Body::Synced);
  EXPECT_EQ(synced->generation, 4u);
  EXPECT_EQ(synced->body.AsSynced()->revision, 17u);
  session->set_revision(18);
  while (driver.next(wire::Body::Heartbeat)->body.AsHeartbeat()->revision != 18) {}
}

TEST_F(SessionTest, AbortReachesTheWorkerAndTheNextGenerationForms) {  // contract 3
  start();
  become_member(1);
  session->report_failure(1, 0, "connection reset");
  auto failure = driver.next(wire::Body::Failure);
  EXPECT_EQ(failure->generation, 1u);
  EXPECT_EQ(failure->body.AsFailure()->message, "connection reset");
  wire::AbortT abort;
  abort.reason = "rank 0 on host h3 lost: connection closed";
  abort.rank = 0;
  driver.send(1, abort);
  ASSERT_TRUE(events.wait([this] { return aborts.size() == 1; }));
  EXPECT_EQ(aborts[0].generation, 1u);
  EXPECT_EQ(aborts[0].reason, abort.reason);
  ASSERT_TRUE(session->abort_of(1).has_value());
  EXPECT_EQ(session->abort_of(1)->reason, abort.reason);
  EXPECT_FALSE(session->abort_of(2).has_value());
  become_member(2);
}

TEST_F(SessionTest, AbortOfAGenerationNobodyHasTakenYetIsNotLost) {
  start();
  const Status status = session->join({}, milliseconds(1), &assignment);
  ASSERT_EQ(status.code, HVD_TIMEOUT);
  driver.next(wire::Body::Ready);
  driver.send(1, members({kWorker}));
  driver.send(1, wire::AbortT{});
  driver.send(1, hosts(9, true));  // behind them, so that both have come
  ASSERT_TRUE(events.wait([this] { return updates.size() == 1; }));
  EXPECT_TRUE(events.read([this] { return aborts.empty(); }));
  ASSERT_EQ(session->join({}, kLong, &assignment).code, HVD_OK);
  EXPECT_EQ(assignment.generation, 1u);
  ASSERT_TRUE(events.wait([this] { return aborts.size() == 1; }));
}

TEST_F(SessionTest, HostsUpdatedRaisesTheWord) {  // contract 1, 2
  start();
  become_member(1, 3);
  driver.send(1, hosts(4, false));
  driver.send(1, hosts(5, true));
  ASSERT_TRUE(events.wait([this] { return updates.size() == 2; }));
  EXPECT_EQ(session->epoch_word(), 11u);
  EXPECT_EQ(updates[1].added, std::vector<std::string>{"b"});
}

TEST_F(SessionTest, JoinThatTimesOutSaysWhatItWaitedForAndMayBeRepeated) {  // contract 12
  start();
  const Status status = session->join({}, milliseconds(10), &assignment);
  EXPECT_EQ(status.code, HVD_TIMEOUT);
  EXPECT_NE(status.message.find(driver.endpoint()), std::string::npos) << status.message;
  EXPECT_NE(status.message.find("worker 5 on host a"), std::string::npos) << status.message;
  driver.next(wire::Body::Ready);
  become_member(1);
}

TEST_F(SessionTest, FinishWaitsForTheJobsEnd) {  // contract 8
  start();
  become_member(1);
  auto finished = std::async(std::launch::async, [this] { return session->finish(3, kLong); });
  EXPECT_EQ(driver.next(wire::Body::Done)->body.AsDone()->revision, 3u);
  wire::JobEndedT ended;
  ended.success = true;
  driver.send(1, ended);
  EXPECT_EQ(finished.get().code, HVD_OK);
  EXPECT_EQ(wait_end().code, HVD_OK);
  EXPECT_TRUE(driver.wait_closed());
  EXPECT_EQ(session->finish(3, kLong).code, HVD_OK);
  EXPECT_EQ(session->join({}, kLong, &assignment).code, HVD_REMOVED);  // success is not an assignment
}

TEST_F(SessionTest, FinishTimesOut) {
  start();
  become_member(1);
  const Status status = session->finish(3, milliseconds(10));
  EXPECT_EQ(status.code, HVD_TIMEOUT);
  EXPECT_NE(status.message.find("other members"), std::string::npos) << status.message;
}

TEST_F(SessionTest, FailedJobEndsJoinWithTheDriversSentence) {
  start();
  auto joined = std::async(std::launch::async, [this] { return session->join({}, kLong, &assignment); });
  driver.next(wire::Body::Ready);
  wire::JobEndedT ended;
  ended.reason = "reset limit of 3 exceeded";
  driver.send(0, ended);
  const Status status = joined.get();
  EXPECT_EQ(status.code, HVD_JOB_FAILED);
  EXPECT_EQ(status.message, "reset limit of 3 exceeded");
}

TEST_F(SessionTest, LeaveIsFlushedByClose) {
  start();
  become_member(1);
  session->leave("training failed");
  session->close(kLong);
  EXPECT_EQ(driver.next(wire::Body::Leave)->body.AsLeave()->message, "training failed");
  EXPECT_EQ(wait_end().code, HVD_CLOSED);
}

TEST_F(SessionTest, KeysAreSetAndAsked) {
  start();
  become_member(1);
  const std::vector<uint8_t> value{1, 2, 3};
  EXPECT_EQ(session->kv_set(1, "id", value).code, HVD_OK);
  auto set = driver.next(wire::Body::KvSet);
  EXPECT_EQ(set->generation, 1u);
  EXPECT_EQ(set->body.AsKvSet()->value, value);
  EXPECT_EQ(session->kv_set(1, "id", value).code, HVD_OK);  // the same again
  EXPECT_EQ(session->kv_set(1, "id", std::vector<uint8_t>{9}).code, HVD_INVALID);
  EXPECT_EQ(session->kv_set(2, "id", value).code, HVD_INVALID);
  EXPECT_EQ(session->kv_set(1, "big", std::vector<uint8_t>(16 << 20)).code, HVD_INVALID);

  std::vector<uint8_t> got;
  auto asked = std::async(std::launch::async, [&] { return session->kv_get(1, "id", kLong, &got); });
  EXPECT_EQ(driver.next(wire::Body::KvGet)->body.AsKvGet()->key, "id");
  wire::KvValueT answer;
  answer.key = "id";
  answer.value = value;
  driver.send(1, answer);
  EXPECT_EQ(asked.get().code, HVD_OK);
  EXPECT_EQ(got, value);

  const Status late = session->kv_get(1, "never", milliseconds(10), &got);
  EXPECT_EQ(late.code, HVD_TIMEOUT);
  EXPECT_NE(late.message.find("\"never\""), std::string::npos);
  driver.next(wire::Body::KvGet);

  asked = std::async(std::launch::async, [&] { return session->kv_get(1, "lost", kLong, &got); });
  driver.next(wire::Body::KvGet);
  driver.send(1, wire::AbortT{});
  const Status lost = asked.get();
  EXPECT_EQ(lost.code, HVD_PEER_LOST);
  EXPECT_EQ(lost.generation, 1u);
  EXPECT_EQ(session->kv_get(1, "id", kLong, &got).code, HVD_PEER_LOST);
  EXPECT_EQ(session->kv_set(1, "other", value).code, HVD_PEER_LOST);
}

TEST_F(SessionTest, DriverThatVanishesIsLostAtOnce) {
  start();
  become_member(1);
  auto joined = std::async(std::launch::async, [this] { return session->join({}, kLong, &assignment); });
  driver.next(wire::Body::Ready);
  driver.hang_up(Duration(0));
  EXPECT_EQ(joined.get().code, HVD_DRIVER_LOST);
  const Status why = wait_end();
  EXPECT_EQ(why.code, HVD_DRIVER_LOST);
  EXPECT_NE(why.message.find(driver.endpoint()), std::string::npos) << why.message;
  EXPECT_EQ(session->finish(1, kLong).code, HVD_DRIVER_LOST);
}

TEST_F(SessionTest, WhatACallThrowsCutsOffNothingThatFollows) {  // contract 10, 14
  driver.welcome_message.term = 1;
  driver_changed = [](const DriverChange&) { throw std::bad_alloc(); };
  start();
  become_member(1);
  driver.answer_hello = false;
  driver.hang_up(Duration(0));
  EXPECT_TRUE(driver.wait_connections(2)) << "it never dialled again";
}

TEST_F(SessionTest, SilentDriverIsLostAfterTheTimeOut) {
  driver.welcome_message = welcome(20, 100);
  driver.answer_heartbeats = false;
  driver_timeout = milliseconds(200);
  start();
  const Status why = wait_end();
  EXPECT_EQ(why.code, HVD_DRIVER_LOST);
  EXPECT_NE(why.message.find("silent for"), std::string::npos) << why.message;
  EXPECT_TRUE(driver.wait_closed());
}

TEST_F(SessionTest, EvictedWorkerIsToldWhy) {
  start();
  become_member(1);
  wire::RefusedT refused;
  refused.code = wire::Refusal::Evicted;
  refused.reason = "no heartbeat for 10 s";
  driver.send(1, refused);
  driver.hang_up(kLong);
  const Status why = wait_end();
  EXPECT_EQ(why.code, HVD_REMOVED);
  EXPECT_NE(why.message.find("no heartbeat for 10 s"), std::string::npos) << why.message;
}

TEST_F(SessionTest, RefusedHelloIsTheOutcomeOfStart) {
  driver.answer_hello = false;
  make(driver.endpoint());
  auto started = std::async(std::launch::async, [this] { return session->start(); });
  driver.next(wire::Body::Hello);
  wire::RefusedT refused;
  refused.code = wire::Refusal::Job;
  refused.reason = "this is job \"other\"";
  driver.send(0, refused);
  const Status status = started.get();
  EXPECT_EQ(status.code, HVD_REFUSED);
  EXPECT_NE(status.message.find("job \"other\""), std::string::npos) << status.message;
  session->close(Duration(0));
  EXPECT_TRUE(ends.empty());  // it never began
}

TEST_F(SessionTest, WrongSecretNoDriverAndNoAnswerAreToldApart) {
  make(driver.endpoint(), kLong, std::string(40, 'x'));
  EXPECT_EQ(session->start().code, HVD_REFUSED);
  make("127.0.0.1:1", milliseconds(100));
  EXPECT_EQ(session->start().code, HVD_DRIVER_LOST);
  driver.answer_hello = false;
  make(driver.endpoint(), milliseconds(100));
  const Status status = session->start();
  EXPECT_EQ(status.code, HVD_TIMEOUT);
  EXPECT_NE(status.message.find("hello"), std::string::npos) << status.message;
  EXPECT_EQ(session->start().code, HVD_INVALID);  // once per session
  EXPECT_NE(session->join({}, kLong, &assignment).code, HVD_OK);
}

TEST_F(SessionTest, CloseFreesWhoeverIsBlocked) {  // contract 10
  start();
  become_member(1);
  std::vector<uint8_t> value;
  Assignment ignored;
  auto joined = std::async(std::launch::async, [&] { return session->join({}, kLong, &ignored); });
  auto asked = std::async(std::launch::async, [&] { return session->kv_get(1, "k", kLong, &value); });
  auto finished = std::async(std::launch::async, [&] { return session->finish(1, kLong); });
  driver.next(wire::Body::Done);
  std::thread one([&] { session->close(Duration(0)); });
  std::thread two([&] { session->close(Duration(0)); });
  EXPECT_EQ(joined.get().code, HVD_CLOSED);
  EXPECT_EQ(asked.get().code, HVD_CLOSED);
  EXPECT_EQ(finished.get().code, HVD_CLOSED);
  one.join();
  two.join();
  EXPECT_EQ(wait_end().code, HVD_CLOSED);
  EXPECT_EQ(session->join({}, kLong, &ignored).code, HVD_CLOSED);
  EXPECT_EQ(session->kv_set(1, "k", {}).code, HVD_CLOSED);
  session->report_failure(1, 0, "too late");
  session->close(kLong);
}

TEST_F(SessionTest, CloseWhileStartIsConnecting) {
  make("127.0.0.1:1");
  auto started = std::async(std::launch::async, [this] { return session->start(); });
  session->close(Duration(0));
  EXPECT_EQ(started.get().code, HVD_CLOSED);
}

TEST_F(SessionTest, SecondJoinAtTheSameTimeIsABug) {
  start();
  auto joined = std::async(std::launch::async, [this] { return session->join({}, kLong, &assignment); });
  driver.next(wire::Body::Ready);
  Assignment other;
  EXPECT_EQ(session->join({}, kLong, &other).code, HVD_INVALID);
  driver.send(1, members({kWorker}));
  EXPECT_EQ(joined.get().code, HVD_OK);
}

TEST_F(SessionTest, ClosesAtAnyMoment) {
  for (int i = 0; i < 30; ++i) {
    Driver own;
    make(own.endpoint());
    std::thread other([&] {
      Assignment ignored;
      if (session->start().ok()) session->join({}, kLong, &ignored);
    });
    if (i % 3 == 1) own.next(wire::Body::Hello);
    if (i % 3 == 2) own.next(wire::Body::Ready);
    session->close(i % 2 == 0 ? Duration(0) : seconds(1));
    other.join();
    ends.clear();
  }
}

}  // namespace
}  // namespace hvd::session
