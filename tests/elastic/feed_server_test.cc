// A member that feeds, as seen by those who connect and lie.
#include "elastic/feed_server.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <future>
#include <string>

#include "state/fabric.h"
#include "state/feed.h"
#include "state/state.h"
#include "support.h"
#include "wire/messages.h"
#include "wire/tls.h"

namespace hvd::elastic {
namespace {

using test::kDeadline;

/// A worker that has the key of its own.
class Fed {
 public:
  Fed(Loop& loop, const std::string& endpoint, const std::string& key, uint64_t worker) : loop_(loop) {
    const std::string identity = wire::worker_identity(worker);
    loop_.post([this, endpoint, key = wire::key_text(key, identity), identity] {
      wire::connect_channel(
          loop_, endpoint, key, identity, {}, kDeadline,
          [this](std::shared_ptr<wire::Channel> made, const Status& why) {
            if (made == nullptr) return events.update([&](auto& e) { e.over = why.message; });
            channel_ = std::move(made);
            channel_->trust();
            channel_->set_handlers(
                {[this](std::span<const uint8_t>) { events.update([](auto& e) { ++e.frames; }); },
                 [this](const Status& ended) { events.update([&](auto& e) { e.over = ended.message; }); }});
            events.update([](auto& e) { e.connected = true; });
          });
    });
  }
  Fed(const Fed&) = delete;
  Fed& operator=(const Fed&) = delete;
  ~Fed() {
    std::promise<void> closed;
    loop_.post([&] {
      if (channel_) channel_->close(Duration(0));
      channel_.reset();
      closed.set_value();
    });
    closed.get_future().wait();
  }

  template <class Body>
  void say(Body body) {
    send(wire::encode(wire::envelope("", 1, 0, std::move(body))));
  }
  void send(wire::Bytes frame) {
    loop_.post([this, frame = std::move(frame)] { channel_->send(frame); });
  }
  [[nodiscard]] bool connected() {
    return events.wait([](const auto& e) { return e.connected || !e.over.empty(); }) &&
           events.get().connected;
  }
  [[nodiscard]] bool over() {
    return events.wait([](const auto& e) { return !e.over.empty(); });
  }
  /// Whether it is answered.
  [[nodiscard]] bool served() {
    const int before = events.get().frames;
    say(wire::FeedTakeT());
    return events.wait([&](const auto& e) { return e.frames > before || !e.over.empty(); }) &&
           events.get().frames > before;
  }

  struct Seen {
    bool connected = false;
    int frames = 0;
    std::string over;
  };
  test::Watched<Seen> events;

 private:
  Loop& loop_;
  std::shared_ptr<wire::Channel> channel_;
};

struct Feeding : testing::Test {
  void serve(const FeedLimits& limits, const std::string& address = "127.0.0.1") {
    server = std::make_unique<FeedServer>(
        source, address, log.logger(),
        [this](const std::string& endpoint, const std::string& key, const std::string& why) {
          reason = why;
          offer.set_value({endpoint, key});
        },
        limits);
    offered = offer.get_future().get();
  }
  /// A worker that is connected, and known to the server.
  std::unique_ptr<Fed> fed(uint64_t worker) {
    auto made = std::make_unique<Fed>(loop, offered.first, offered.second, worker);
    EXPECT_TRUE(made->connected() && made->served()) << "worker " << worker << " " << made->events.get().over;
    return made;
  }

  test::LogLines log;
  std::shared_ptr<state::FeedSource> source = std::make_shared<state::FeedSource>(false);  // has no commit
  std::promise<std::pair<std::string, std::string>> offer;
  std::pair<std::string, std::string> offered;
  std::string reason;
  Loop loop{"fed"};
  std::unique_ptr<FeedServer> server;
};

TEST_F(Feeding, OfTooManyTheOneThatWasSilentForLongestGivesWay) {
  FeedLimits limits;
  limits.channels = 3;
  serve(limits);
  const auto one = fed(1), two = fed(2), three = fed(3);
  EXPECT_TRUE(one->served());  // since then two is the oldest
  const auto four = fed(4);
  EXPECT_TRUE(two->over());
  for (const auto* each : {&one, &three, &four}) EXPECT_TRUE((*each)->served());
}

TEST_F(Feeding, OneWorkerTakesNoOthersPlaces) {
  FeedLimits limits;
  limits.channels = 4;
  serve(limits);
  const auto one = fed(1), two = fed(2);
  std::vector<std::unique_ptr<Fed>> liar;
  for (int i = 0; i < 10; ++i) liar.push_back(fed(3));
  for (size_t i = 0; i + limits.of_one < liar.size(); ++i) EXPECT_TRUE(liar[i]->over());
  EXPECT_TRUE(one->served() && two->served());
}

// As the links do: nobody reaches it by an address that was not meant.
TEST_F(Feeding, ItListensOnOneAddressAlone) {
  serve({}, "127.0.0.2");
  EXPECT_EQ(offered.first.find("127.0.0.2:"), 0U) << offered.first;
  EXPECT_TRUE(fed(1) != nullptr);
  sockaddr_in elsewhere{};
  elsewhere.sin_family = AF_INET;
  elsewhere.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  elsewhere.sin_port = htons(static_cast<uint16_t>(std::stoi(offered.first.substr(10))));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&elsewhere), sizeof(elsewhere)), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
  close(fd);
}

TEST_F(Feeding, AnInterfaceIsNamedByItsName) {
  serve({}, "lo");
  EXPECT_EQ(offered.first.find("127.0.0.1:"), 0U) << offered.first;
  EXPECT_TRUE(fed(1) != nullptr);
}

TEST_F(Feeding, WhereItCantListenItSaysWhy) {
  serve({}, "none0");
  EXPECT_EQ(offered.first, "");
  EXPECT_NE(reason.find("option interface is 'none0'"), std::string::npos) << reason;
}

// Whose key is another worker's is not let in.
TEST_F(Feeding, AWorkersKeyServesNoOther) {
  serve({});
  EXPECT_THROW(wire::make_client_context(wire::key_text(offered.second, wire::worker_identity(1)),
                                         wire::worker_identity(2)),
               Error);
}

TEST_F(Feeding, WhoSaysNothingIsLetGoAndWhoWaitsForACommitStays) {
  FeedLimits limits;
  limits.idle = seconds(2);
  serve(limits);
  const auto waits = std::make_unique<Fed>(loop, offered.first, offered.second, 1);
  ASSERT_TRUE(waits->connected());
  waits->say(wire::FeedAskT());
  const auto silent = fed(2);
  EXPECT_TRUE(silent->over());
  EXPECT_TRUE(waits->events.get().over.empty());
  EXPECT_TRUE(waits->served());
}

TEST_F(Feeding, WhoWaitsForACommitHasItOnceItIsMade) {
  state::Fabric alone(1);
  uint64_t step = 1;
  state::State state(nullptr, nullptr, nullptr, {});
  state.add_value("step", &step, sizeof(step));
  state::SyncResult result;
  ASSERT_TRUE(state.sync(alone.engine(0), 0, 1, std::vector{state.summary()}, kDeadline, &result).ok());
  source = state.feed();
  serve({});
  const auto one = fed(1), two = fed(2);
  uint64_t known = 0;  // one more than the revision that it has
  for (int commit = 0; commit < 5; ++commit) {
    wire::FeedAskT ask;
    ask.known = known;
    const int before = one->events.get().frames;
    one->say(ask);
    two->say(ask);
    if (commit > 0) {
      ASSERT_TRUE(fed(3)->served());  // later than what was asked before
      EXPECT_EQ(one->events.get().frames, before) << "what it has was sent again";
      ++step;
      ASSERT_TRUE(state.save().ok());
    }
    for (const auto* each : {&one, &two}) {
      ASSERT_TRUE((*each)->events.wait([&](const auto& e) { return e.frames > before; })) << commit;
    }
    known = state.summary().revision + 1;
  }
}

TEST_F(Feeding, WhoConnectsAndLiesAgainAndAgainDoesNotFillTheLog) {
  serve({});
  constexpr int kLies = 100;
  for (int i = 0; i < kLies; ++i) {
    Fed liar(loop, offered.first, offered.second, 1);
    ASSERT_TRUE(liar.connected());
    liar.send({'l', 'i', 'e'});
    ASSERT_TRUE(liar.over());
  }
  EXPECT_LT(log.lines.get().size(), static_cast<size_t>(kLies));
  EXPECT_TRUE(fed(2) != nullptr);
}

}  // namespace
}  // namespace hvd::elastic
