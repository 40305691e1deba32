// Contract 13: who knows the secret and sends nonsense, or never hangs up, costs the others nothing.
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "wire/messages.h"
#include "wire/strangers.h"
#include "wire/support.h"
#include "wire/tls.h"

namespace hvd::wire {
namespace {

using test::connect;
using test::Context;
using test::Fd;
using test::kSecret;
using test::raw_connection;
using test::run_on;
using test::Server;
using test::Ssl;
using test::StrangersTest;
using test::tls_over;

// Peers that do know the secret but send nonsense as frames.
class InsiderTest : public StrangersTest {
 protected:
  Context context{make_client_context(kSecret, kJobIdentity).release()};
};

/// Megabytes of this process in memory.
size_t resident() {
  std::ifstream file("/proc/self/statm");
  size_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE)) >> 20;
}

TEST_F(InsiderTest, AHeaderSetsNoMemoryAside) {
  Server server({}, true);
  std::vector<std::pair<Fd, Ssl>> open;
  const size_t before = resident();
  constexpr size_t kConnections = 64;
  const Bytes sixteen_mib{1, 0, 0, 0}, some(1000, 7);
  for (size_t i = 0; i < kConnections; ++i) {
    Fd fd = raw_connection(server.listener->port());
    Ssl ssl = tls_over(fd, context.get());
    ASSERT_EQ(SSL_connect(ssl.get()), 1);
    ASSERT_GT(SSL_write(ssl.get(), sixteen_mib.data(), 4), 0);
    ASSERT_GT(SSL_write(ssl.get(), some.data(), static_cast<int>(some.size())), 0);
    open.emplace_back(std::move(fd), std::move(ssl));
  }
  // A later connection is served after what these have sent was read.
  for (int i = 0; i < 3; ++i) expect_good_client_works(server);
  EXPECT_LT(resident(), before + kConnections) << "MiB: each of them announced 16";
}

TEST_F(InsiderTest, ALongFrameNeedsTrust) {
  Server server({}, false, "127.0.0.1:0", false);
  auto client = connect(loop, server.endpoint());
  client->send(Bytes(64 << 10, 1));
  ASSERT_TRUE(server.peer(0)->wait_frames(1));
  client->send(Bytes((64 << 10) + 1, 1));
  ASSERT_TRUE(server.peer(0)->wait_closed());
  EXPECT_NE(server.peer(0)->closed->message.find("expected 1 to 65536"), std::string::npos)
      << server.peer(0)->closed->message;
}

TEST_F(InsiderTest, EmptyAndHugeFramesEndTheConnection) {
  Server server;
  size_t i = 0;
  for (const Bytes& header : {Bytes{0, 0, 0, 0}, Bytes{0xff, 0xff, 0xff, 0xff}, Bytes{1, 0, 0, 1}}) {
    Fd fd = raw_connection(server.listener->port());
    Ssl ssl = tls_over(fd, context.get());
    ASSERT_EQ(SSL_connect(ssl.get()), 1);
    ASSERT_GT(SSL_write(ssl.get(), header.data(), static_cast<int>(header.size())), 0);
    auto peer = server.peer(i++);
    ASSERT_TRUE(peer->wait_closed());
    EXPECT_NE(peer->closed->message.find("expected 1 to"), std::string::npos) << peer->closed->message;
    EXPECT_TRUE(peer->frames.empty());
  }
}

TEST_F(InsiderTest, TruncatedFrameIsNotDelivered) {
  Server server;
  {
    Fd fd = raw_connection(server.listener->port());
    Ssl ssl = tls_over(fd, context.get());
    ASSERT_EQ(SSL_connect(ssl.get()), 1);
    const Bytes whole_and_half{0, 0, 0, 1, 9, 0, 0, 0, 100, 1, 2, 3};
    ASSERT_GT(SSL_write(ssl.get(), whole_and_half.data(), static_cast<int>(whole_and_half.size())), 0);
  }
  auto peer = server.peer(0);
  ASSERT_TRUE(peer->wait_closed());
  ASSERT_EQ(peer->frames.size(), 1u);
  EXPECT_EQ(peer->frames[0], Bytes{9});
}

TEST_F(InsiderTest, ResetIsReportedAfterTheLastFrame) {
  Server server;
  {
    Fd fd = raw_connection(server.listener->port());
    Ssl ssl = tls_over(fd, context.get());
    ASSERT_EQ(SSL_connect(ssl.get()), 1);
    const Bytes frame{0, 0, 0, 1, 9};
    ASSERT_GT(SSL_write(ssl.get(), frame.data(), static_cast<int>(frame.size())), 0);
    ASSERT_TRUE(server.peer(0)->wait_frames(1));
    const linger reset{1, 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  }
  auto peer = server.peer(0);
  ASSERT_TRUE(peer->wait_closed());
  EXPECT_EQ(peer->closed->code, HVD_CLOSED);
  EXPECT_EQ(peer->closed_calls, 1);
}

/// Peers that are refused and don't hang up would keep a descriptor each for as long as the last words may
/// take.
class LingeringTest : public testing::Test {
 protected:
  LingeringTest() {
    limits.most_lingering = 8;
    limits.most_lingering_of_one = 2;
    listener = std::make_unique<Listener>(
        loop, "127.0.0.1:0", kSecret, limits, nullptr, [this](const std::shared_ptr<Channel>& channel) {
          if (trust) channel->trust();
          size_t number = 0;
          events.change([&] { number = accepted++; });
          channel->close_then(std::chrono::hours(1),
                              [this, number] { events.change([&] { closed.insert(number); }); });
        });
  }
  ~LingeringTest() override {
    loop.stop();
    client.stop();
    listener.reset();
  }
  /// One that never reads, and so does not see that it is over.
  void come(const std::string& identity) {
    const std::string endpoint = "127.0.0.1:" + std::to_string(listener->port());
    size_t before = 0;
    events.change([&] { before = come_.size(); });
    connect_channel(client, endpoint, kSecret, identity, {}, seconds(30),
                    [this](std::shared_ptr<Channel> channel, const Status&) {
                      events.change([&] { come_.push_back(std::move(channel)); });
                    });
    ASSERT_TRUE(events.wait([&] { return come_.size() > before; }));
    ASSERT_NE(events.read([&] { return come_.back(); }), nullptr);
    ASSERT_TRUE(events.wait([&] { return accepted > before; }));
  }
  std::set<size_t> closed_when(size_t count) {
    EXPECT_TRUE(events.wait([&] { return closed.size() >= count; }));
    run_on(loop, [] { return 0; });  // nothing more is on its way
    return events.read([&] { return closed; });
  }

  ChannelLimits limits;
  bool trust = false;
  test::Events events;
  std::set<size_t> closed;
  size_t accepted = 0;
  Loop loop{"server"}, client{"client"};
  std::unique_ptr<Listener> listener;
  std::vector<std::shared_ptr<Channel>> come_;
};

TEST_F(LingeringTest, OldestOfTheRefusedGiveWay) {
  for (int i = 0; i < 13; ++i) ASSERT_NO_FATAL_FAILURE(come(worker_identity(static_cast<uint64_t>(i))));
  EXPECT_EQ(closed_when(5), (std::set<size_t>{0, 1, 2, 3, 4}));
}

TEST_F(LingeringTest, OneIdentityDoesNotPushOthersOut) {
  trust = true;
  for (uint64_t i = 1; i <= 12; ++i) ASSERT_NO_FATAL_FAILURE(come(worker_identity(i)));
  EXPECT_EQ(closed_when(0), (std::set<size_t>{}));
  for (int i = 0; i < 4; ++i) ASSERT_NO_FATAL_FAILURE(come(worker_identity(3)));
  EXPECT_EQ(closed_when(3), (std::set<size_t>{2, 12, 13}));
}

TEST(Identities, AgentsHaveOneForEveryHost) {
  EXPECT_EQ(agent_identity("node1.cluster"), "agent/node1.cluster");
  const std::vector<std::string> odd = {"fe80::1%eth0", std::string(253, 'n'), "_x",
                                        agent_identity("fe80::1%eth0").substr(6)};
  std::set<std::string> seen;
  for (const std::string& host : odd) {
    const std::string identity = agent_identity(host);
    EXPECT_EQ(identity.rfind("agent/_", 0), 0u) << host;
    EXPECT_TRUE(seen.insert(identity).second) << host;
    EXPECT_TRUE(is_key(key_text(std::string(64, 's'), identity)));
  }
}

}  // namespace
}  // namespace hvd::wire
