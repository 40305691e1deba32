// Many thousand histories from a seed: whatever a driver sends, in whatever order, the promises of
// session.h hold.
#include <cstdlib>
#include <random>

#include "session/core_support.h"

namespace hvd::session {
namespace {

class History {
 public:
  explicit History(uint64_t seed) : random_(seed) {}

  void run() {
    check(core_.connected(seconds(5), time_));
    // Usually a welcome comes first; now and then anything does.
    if (below(20) != 0) deliver(0, welcome(1000, 10000, below(4)));
    for (int i = 0; i < 60 && !testing::Test::HasFailure(); ++i) step();
    check(core_.close(Duration(0), time_));
    EXPECT_EQ(ends_, 1);
    EXPECT_FALSE(core_.next_tick().has_value());
    EXPECT_TRUE(open_gets_.empty() || ends_ == 1);
  }

  static inline uint64_t delivered_in_all = 0, aborted_in_all = 0, updates_in_all = 0;

 private:
  uint64_t below(uint64_t n) { return random_() % n; }

  // Near the newest generation: stale, current, next, far ahead.
  uint64_t some_generation() {
    return std::max<int64_t>(0, static_cast<int64_t>(delivered_) + static_cast<int64_t>(below(5)) - 2);
  }

  template <class Table>
  void deliver(uint64_t generation, Table body) {
    const bool foreign = below(15) == 0;
    auto e = wire::envelope(foreign && below(2) != 0 ? "other" : "job", kWorker, generation, std::move(body));
    if (foreign && e.job == "job") e.worker = below(3);
    const bool repeated = below(15) == 0;
    e.sequence = repeated ? below(seen_ + 1) : (sequence_ += 1 + below(2));
    quiet_ = foreign || repeated;
    const bool early_refusal = e.body.type == wire::Body::Refused && !core_.welcomed();
    if (foreign && early_refusal) quiet_ = repeated;
    if (!quiet_) seen_ = e.sequence;
    incoming_generation_ = generation;
    const bool was_ended = core_.ended();
    auto actions = below(2) != 0 ? core_.received(e, time_) : core_.frame(wire::encode(e), time_);
    if (was_ended || quiet_) {
      // Contract 11: nothing but a line in the log.
      for (const auto& action : actions) EXPECT_TRUE(std::holds_alternative<LogLine>(action));
    }
    check(std::move(actions));
  }

  void step() {
    switch (below(16)) {
      case 0:
      case 1: return deliver(some_generation(), some_assignment());
      case 2:
      case 3: return deliver(some_generation(), wire::AbortT{});
      case 4:
      case 5: return deliver(some_generation(), hosts(below(12), below(2) != 0));
      case 6: return deliver(some_generation(), wire::HeartbeatAckT{});
      case 7: return kv();
      case 8: return check(core_.ready({}, time_));
      case 9:
      case 10:
        if (waiting_ != 0) {
          const uint64_t g = std::exchange(waiting_, 0);
          taken_ = g;
          check(core_.taken(g, time_));
        }
        return;
      case 11: return tick();
      case 12: return check(core_.synced(some_generation(), 1, time_));
      case 13: return check(core_.failure(some_generation(), 1, "broken", random_() % 2 == 0, time_));
      case 14:
        if (below(10) == 0) return deliver(0, welcome());
        return check(core_.done(1, time_));
      default: return rare();
    }
  }

  void rare() {
    switch (below(40)) {
      case 0: return deliver(0, wire::JobEndedT{});
      case 1: {
        wire::RefusedT refused;
        refused.code = static_cast<wire::Refusal>(below(10));
        return deliver(0, refused);
      }
      case 2: return check(core_.channel_closed(Status(HVD_CLOSED, "gone"), time_));
      case 3: return deliver(0, wire::HelloT{});  // not for a worker
      case 4: return check(core_.frame(std::vector<uint8_t>(below(50), 3), time_));
      default: return check(core_.leave("bye", time_));
    }
  }

  wire::AssignmentT some_assignment() {
    const uint64_t epoch = below(12);
    if (below(30) == 0) return members({1, 2}, epoch);  // without us
    return members({1, kWorker, 7}, epoch, static_cast<int32_t>(below(3)));
  }

  void tick() {
    time_ += milliseconds(static_cast<int64_t>(below(3000)));
    if (below(100) == 0) time_ += seconds(3600);
    check(core_.tick(time_));
  }

  void kv() {
    if (below(2) == 0) {
      const uint64_t id = ++last_get_;
      open_gets_.push_back(id);
      return check(core_.kv_get(id, some_generation(), "k", time_));
    }
    wire::KvValueT value;
    value.key = "k";
    deliver(some_generation(), value);
  }

  void check(SessionCore::Actions actions) {
    for (size_t i = 0; i < actions.size(); ++i) {
      EXPECT_TRUE(ends_ == 0 || std::holds_alternative<Close>(actions[i]) ||
                  std::holds_alternative<LogLine>(actions[i]))
          << "something after the end";
      std::visit([this](auto& a) { saw(a); }, actions[i]);
    }
    const uint64_t word = core_.epoch_word();
    EXPECT_GE(word / 2, word_ / 2) << "the epoch went back";
    word_ = word;
    EXPECT_EQ(core_.ended(), ends_ == 1);
  }

  void saw(Send& a) {
    EXPECT_EQ(a.envelope.sequence, ++sent_);
    EXPECT_EQ(a.envelope.job, "job");
    EXPECT_EQ(a.envelope.worker, kWorker);
    EXPECT_LE(a.envelope.generation, delivered_);
    wire::decode(wire::encode(a.envelope));
  }
  // No driver of these histories bears a term: its worker never looks for another one.
  void saw(Dial&) { ADD_FAILURE() << "dials again"; }
  void saw(StopDial&) { ADD_FAILURE() << "stops what it never began"; }
  void saw(Adopt&) { ADD_FAILURE() << "another connection"; }
  void saw(NotifyDriver&) { ADD_FAILURE() << "misses a driver that can't come back"; }
  void saw(NotifyWaiting& a) { EXPECT_FALSE(a.reason.empty()); }
  void saw(NotifyFeedWanted& a) { EXPECT_GT(a.generation, 0u); }
  void saw(NotifyFeed& a) { EXPECT_FALSE(a.info.endpoint.empty()); }
  void saw(Welcomed&) { EXPECT_EQ(++welcomes_, 1); }
  void saw(Deliver& a) {
    ++delivered_in_all;
    EXPECT_EQ(welcomes_, 1);
    EXPECT_GT(a.assignment.generation, delivered_) << "generations grow";
    EXPECT_EQ(a.assignment.generation, incoming_generation_);
    EXPECT_EQ(a.assignment.members.at(static_cast<size_t>(a.assignment.rank)).worker, kWorker);
    if (a.assignment.epoch >= word_ / 2) { EXPECT_EQ(core_.epoch_word(), a.assignment.epoch * 2); }
    delivered_ = waiting_ = a.assignment.generation;
  }
  void saw(NotifyAbort& a) {
    ++aborted_in_all;
    EXPECT_EQ(a.info.generation, taken_) << "told of a generation that join has not given out";
    EXPECT_GT(a.info.generation, aborted_) << "told twice";
    aborted_ = a.info.generation;
  }
  void saw(NotifyHosts& a) {
    ++updates_in_all;
    EXPECT_GT(a.update.epoch * 2 + (a.update.interrupt ? 1 : 0), word_);
    EXPECT_EQ(core_.epoch_word() / 2, a.update.epoch);
  }
  void saw(AnswerKv& a) { EXPECT_EQ(std::erase(open_gets_, a.id), 1u) << "answered twice"; }
  void saw(End&) { EXPECT_EQ(++ends_, 1) << "ended twice"; }
  void saw(Close&) { EXPECT_EQ(ends_, 1); }
  void saw(LogLine& a) { EXPECT_FALSE(a.text.empty()); }

  std::mt19937_64 random_;
  SessionCore core_{core_config()};
  Time time_{seconds(1000)};
  uint64_t sequence_ = 0, seen_ = 0, sent_ = 0, incoming_generation_ = 0;
  uint64_t delivered_ = 0, waiting_ = 0, taken_ = 0, aborted_ = 0, word_ = 0, last_get_ = 0;
  std::vector<uint64_t> open_gets_;
  int ends_ = 0, welcomes_ = 0;
  bool quiet_ = false;
};

TEST(Histories, PromisesHold) {
  const char* one = std::getenv("HVD_TEST_SEED");  // to replay one history
  const uint64_t first = one != nullptr ? std::strtoull(one, nullptr, 10) : 1;
  const uint64_t count = one != nullptr ? 1 : 10000;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE("HVD_TEST_SEED=" + std::to_string(seed));
    History(seed).run();
    ASSERT_FALSE(HasFailure());
  }
  if (one != nullptr) return;
  // The histories are worth something only if much happens in them.
  EXPECT_GT(History::delivered_in_all, count);
  EXPECT_GT(History::aborted_in_all, count / 10);
  EXPECT_GT(History::updates_in_all, count);
}

}  // namespace
}  // namespace hvd::session
