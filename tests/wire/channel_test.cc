// Channels: frames, bounds, wrong keys, slow readers.
#include "wire/channel.h"

#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <random>
#include <set>

#include "wire/circular.h"
#include "wire/socket.h"
#include "wire/support.h"

namespace hvd::wire {
namespace {

using test::connect;
using test::kSecret;
using test::Peer;
using test::run_on;
using test::Server;

Bytes pattern(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  for (auto& b : bytes) b = static_cast<uint8_t>(random() >> 56);
  return bytes;
}

class ChannelTest : public testing::Test {
 protected:
  ~ChannelTest() override {
    // A broken connection must not leave a SIGPIPE behind, not even a blocked one (contract 10).
    EXPECT_FALSE(run_on(loop, [] {
      sigset_t pending;
      sigpending(&pending);
      return sigismember(&pending, SIGPIPE) == 1;
    }));
    loop.stop();
  }
  Loop loop{"client"};
};

TEST_F(ChannelTest, FramesOfAllSizesArriveInOrder) {
  Server server({}, true);
  auto client = connect(loop, server.endpoint());
  ASSERT_TRUE(client->connected);
  std::vector<Bytes> sent;
  for (size_t size : {1, 2, 3, 4, 5, 100, 16383, 16384, 16385, 131071, 131072, 131073, 1 << 20, 16 << 20})
    sent.push_back(pattern(size, size));
  for (size_t i = 0; i < 2000; ++i) sent.push_back(pattern(1 + i % 97, i));
  for (const auto& frame : sent) client->send(frame);
  ASSERT_TRUE(client->wait_frames(sent.size()));
  // One by one, so that none waits for another one to be written; and behind one that is being written.
  for (size_t i = 0; i < 200; ++i) {
    sent.push_back(pattern(1 + i, i));
    client->with_channel([&](Channel& channel) { channel.send_copy(sent.back()); });
  }
  client->with_channel([&](Channel& channel) {
    sent.push_back(pattern(16 << 20, 7));  // more than a socket takes at once
    channel.send(sent.back());
    for (size_t i = 0; i < 200; ++i) {
      sent.push_back(pattern(1 + i * 40, i));
      i % 3 == 0 ? channel.send(sent.back()) : channel.send_copy(sent.back());
    }
  });
  ASSERT_TRUE(client->wait_frames(sent.size()));
  EXPECT_TRUE(client->events.read([&] { return client->frames == sent; }));
  EXPECT_TRUE(server.peer(0)->events.read([&] { return server.peers[0]->frames == sent; }));
}

/// What is encoded once reads as if it had been encoded for each, between frames of its own kind and others.
TEST_F(ChannelTest, ACircularReachesEachUnderItsOwnName) {
  Server server;
  AssignmentT assignment;
  assignment.epoch = 7;
  for (uint64_t worker = 1; worker <= 3000; ++worker) {
    auto member = std::make_unique<MemberT>();
    member->worker = worker;
    member->host = "host";
    assignment.members.push_back(std::move(member));
  }
  EnvelopeT message = envelope("job", 0, 9, std::move(assignment));
  std::vector<std::shared_ptr<Peer>> clients;
  for (uint64_t i = 0; i < 3; ++i) clients.push_back(connect(loop, server.endpoint()));
  for (size_t i = 0; i < 3; ++i) ASSERT_NE(server.peer(i), nullptr);
  {
    const auto circular = std::make_unique<Circular>(message);
    for (uint64_t i = 0; i < 3; ++i) {
      server.peer(i)->with_channel([&](Channel& channel) {
        channel.send({1, 2, 3});
        circular->send(channel, 100 + i, 5 + i);
        channel.send({4});
        circular->send(channel, 200 + i, 6 + i);
      });
    }
  }  // what is under way lives on
  std::set<uint64_t> seen;
  for (const auto& client : clients) {
    ASSERT_TRUE(client->wait_frames(4));
    const auto frames = client->events.read([&] { return client->frames; });
    EXPECT_EQ(frames[0], Bytes({1, 2, 3}));
    EXPECT_EQ(frames[2], Bytes({4}));
    for (const size_t at : {size_t{1}, size_t{3}}) {
      const EnvelopeT read = decode(frames[at]);
      seen.insert(read.worker);
      message.worker = read.worker;
      message.sequence = read.sequence;
      EXPECT_EQ(read.sequence, read.worker % 100 + (at == 1 ? 5 : 6));
      EXPECT_EQ(frames[at], encode(message));
    }
  }
  EXPECT_EQ(seen, (std::set<uint64_t>{100, 101, 102, 200, 201, 202}));
}

TEST_F(ChannelTest, FramesBeforeTheEndComeFirst) {
  Server server;
  auto client = connect(loop, server.endpoint());
  for (int i = 0; i < 500; ++i) client->send(pattern(1000, i));
  client->close(seconds(30));
  auto peer = server.peer(0);
  ASSERT_TRUE(peer->wait_closed());
  peer->events.read([&] {
    EXPECT_EQ(peer->frames.size(), 500u);
    EXPECT_EQ(peer->closed->message.substr(0, 10), "127.0.0.1:");
    EXPECT_NE(peer->closed->message.find("closed the connection"), std::string::npos)
        << peer->closed->message;
  });
  EXPECT_FALSE(client->closed.has_value());  // it was its own doing
}

// What is sent before close arrives even if the peer talks on meanwhile: unread bytes must not turn the
// end into a reset that overtakes the last frame.
TEST_F(ChannelTest, LastWordsSurviveAPeerThatTalksOn) {
  for (int round = 0; round < 20; ++round) {
    Server server;
    auto client = connect(loop, server.endpoint());
    auto peer = server.peer(0);
    for (int i = 0; i < 50; ++i) client->send(pattern(5000, i));
    peer->send({'b', 'y', 'e'});
    peer->close(seconds(10));
    for (int i = 0; i < 50; ++i) client->send(pattern(5000, i));
    ASSERT_TRUE(client->wait_closed());
    client->events.read([&] {
      ASSERT_EQ(client->frames.size(), 1u) << client->closed->message;
      EXPECT_EQ(client->frames[0], (Bytes{'b', 'y', 'e'}));
      EXPECT_EQ(client->closed_calls, 1);
    });
  }
}

TEST_F(ChannelTest, CloseThenTellsWhenTheSocketIsClosed) {
  Server server;
  std::promise<void> closed;
  connect_channel(loop, server.endpoint(), kSecret, kJobIdentity, {}, seconds(30),
                  [&](std::shared_ptr<Channel> channel, const Status& why) {
                    ASSERT_TRUE(channel) << why.message;
                    channel->send({1, 2, 3});
                    channel->close_then(seconds(30), [&] { closed.set_value(); });
                  });
  ASSERT_EQ(closed.get_future().wait_for(test::kDeadline), std::future_status::ready);
  ASSERT_TRUE(server.peer(0)->wait_frames(1));
}

TEST_F(ChannelTest, AddressesAreTold) {
  Server server;
  std::promise<std::pair<std::string, std::string>> told;
  connect_channel(loop, server.endpoint(), kSecret, kJobIdentity, {}, seconds(30),
                  [&](std::shared_ptr<Channel> channel, const Status& why) {
                    ASSERT_TRUE(channel) << why.message;
                    told.set_value({channel->peer(), channel->local_address()});
                  });
  const auto [peer, local] = told.get_future().get();
  EXPECT_EQ(peer, server.endpoint());
  EXPECT_EQ(local, "127.0.0.1");
  EXPECT_EQ(server.listener->address(), "127.0.0.1");
}

TEST_F(ChannelTest, FrameBeyondTheReadersLimitEndsTheConnection) {
  ChannelLimits small;
  small.max_frame = 1000;
  Server server(small);
  auto client = connect(loop, server.endpoint());
  client->send(pattern(1000, 1));
  client->send(pattern(1001, 2));
  auto peer = server.peer(0);
  ASSERT_TRUE(peer->wait_closed());
  peer->events.read([&] {
    EXPECT_EQ(peer->frames.size(), 1u);
    EXPECT_NE(peer->closed->message.find("frame of 1001 bytes"), std::string::npos) << peer->closed->message;
  });
  ASSERT_TRUE(client->wait_closed());
}

TEST_F(ChannelTest, FrameThatNobodyMayTakeIsNotSent) {
  Server server;
  auto client = connect(loop, server.endpoint());
  client->send({});
  ASSERT_TRUE(client->wait_closed());
  EXPECT_NE(client->closed->message.find("frame of 0 bytes"), std::string::npos) << client->closed->message;
}

TEST_F(ChannelTest, SlowReaderIsCutOff) {
  Loop server_loop("server");
  std::shared_ptr<Channel> deaf;  // nobody sets its handlers: nothing is read
  auto listener =
      std::make_unique<Listener>(server_loop, "127.0.0.1:0", kSecret, ChannelLimits{}, nullptr,
                                 [&](std::shared_ptr<Channel> channel) { deaf = std::move(channel); });
  ChannelLimits limits;
  limits.max_queued = 4 << 20;
  auto client = connect(loop, "127.0.0.1:" + std::to_string(listener->port()), limits);
  ASSERT_TRUE(client->connected);
  for (int i = 0; i < 200; ++i) client->send(Bytes(1 << 20, 7));
  ASSERT_TRUE(client->wait_closed());
  EXPECT_NE(client->closed->message.find("reader too slow"), std::string::npos) << client->closed->message;
  server_loop.stop();
  deaf.reset();
  listener.reset();
}

TEST_F(ChannelTest, HandlersMayCloseFromWithin) {
  Server server({}, true);
  std::promise<void> gone;
  std::weak_ptr<Channel> watch;
  connect_channel(loop, server.endpoint(), kSecret, kJobIdentity, {}, seconds(30),
                  [&](std::shared_ptr<Channel> channel, const Status&) {
                    ASSERT_TRUE(channel);
                    watch = channel;
                    channel->set_handlers({[channel, &gone](std::span<const uint8_t>) {
                                             channel->close(Duration(0));
                                             gone.set_value();
                                           },
                                           [](const Status&) { ADD_FAILURE() << "closed was called"; }});
                    channel->send({1});
                    channel->send({2});
                  });
  ASSERT_EQ(gone.get_future().wait_for(test::kDeadline), std::future_status::ready);
  ASSERT_TRUE(server.peer(0)->wait_closed());
  // Handlers and channel held each other; closing has let go.
  for (int i = 0; i < 100 && !watch.expired(); ++i) run_on(loop, [] {});
  EXPECT_TRUE(watch.expired());
}

// Nothing would be read of it any more, and nobody told.
TEST_F(ChannelTest, AHandlerWithoutMemoryEndsItsConnection) {
  Server server;
  auto client = connect(loop, server.endpoint());
  auto peer = server.peer(0);
  peer->with_channel([&](Channel& channel) {
    channel.set_handlers({[](std::span<const uint8_t>) { throw std::bad_alloc(); },
                          [peer](const Status& why) { peer->failed(why); }});
  });
  client->send({1, 2, 3});
  ASSERT_TRUE(peer->wait_closed());
  EXPECT_EQ(peer->closed->code, HVD_INTERNAL);
  EXPECT_EQ(peer->closed->message, "out of memory");
  EXPECT_TRUE(client->wait_closed());
}

TEST_F(ChannelTest, NobodyListensMeansDriverLost) {
  std::string endpoint;
  {
    Server server;
    endpoint = server.endpoint();
  }
  auto client = connect(loop, endpoint, {}, kSecret, milliseconds(300));
  ASSERT_TRUE(client->closed.has_value());
  EXPECT_EQ(client->closed->code, HVD_DRIVER_LOST) << client->closed->message;
  EXPECT_NE(client->closed->message.find(endpoint), std::string::npos) << client->closed->message;
  EXPECT_NE(client->closed->message.find("Connection refused"), std::string::npos) << client->closed->message;
}

/// A network of its own for the calling thread, which gives out one port first. False: not here.
bool give_out(uint16_t port) {
  if (::unshare(CLONE_NEWNET) != 0) return false;
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq loopback{};
  std::strcpy(loopback.ifr_name, "lo");
  loopback.ifr_flags = IFF_UP;
  const bool up = ::ioctl(fd, SIOCSIFFLAGS, &loopback) == 0;
  ::close(fd);
  std::ofstream range("/proc/sys/net/ipv4/ip_local_port_range");
  range << port << ' ' << port + 1 << std::flush;
  return up && range.good();
}

TEST_F(ChannelTest, WhoReachesItselfHasNotReachedTheDriver) {
  if (!run_on(loop, [] { return give_out(40000); })) GTEST_SKIP() << "no network of its own here";
  auto client = connect(loop, "127.0.0.1:40000", {}, kSecret, milliseconds(300));
  ASSERT_TRUE(client->closed.has_value());
  EXPECT_EQ(client->closed->code, HVD_DRIVER_LOST) << client->closed->message;
  EXPECT_NE(client->closed->message.find("Connection refused"), std::string::npos) << client->closed->message;
}

TEST_F(ChannelTest, DriverThatStartsLaterIsFound) {
  std::string endpoint;
  {
    Server server;
    endpoint = server.endpoint();
  }
  auto client = std::make_shared<Peer>(loop);
  connect_channel(loop, endpoint, kSecret, kJobIdentity, {}, seconds(60),
                  [&](std::shared_ptr<Channel> channel, const Status& why) {
                    if (channel) return client->use(std::move(channel));
                    client->failed(why);
                  });
  run_on(loop, [] {});  // the first attempt is under way
  Server late({}, true, endpoint);
  ASSERT_TRUE(client->events.wait([&] { return client->connected || client->closed; }));
  ASSERT_TRUE(client->connected) << client->closed->message;
  client->send({1});
  ASSERT_TRUE(client->wait_frames(1));
}

TEST_F(ChannelTest, WrongSecretIsRefused) {
  Server server;
  auto client = connect(loop, server.endpoint(), {}, std::string(32, 'x'));
  ASSERT_TRUE(client->closed.has_value());
  EXPECT_EQ(client->closed->code, HVD_REFUSED);
  EXPECT_NE(client->closed->message.find("refused the job's secret"), std::string::npos)
      << client->closed->message;
  EXPECT_NE(client->closed->message.find(server.endpoint()), std::string::npos) << client->closed->message;
}

// Where a driver was that another one has followed, another job's may listen by now.
TEST_F(ChannelTest, ARefusalIsFinalOnceEachEndpointHasRefused) {
  Server foreign({}, true, "127.0.0.1:0", true, std::string(32, 'x')), server({}, true);
  std::string nobody;
  {
    Server gone;
    nobody = gone.endpoint();
  }
  EXPECT_TRUE(connect(loop, foreign.endpoint() + "," + server.endpoint())->connected);
  auto refused = connect(loop, foreign.endpoint() + "," + foreign.endpoint());
  ASSERT_TRUE(refused->closed.has_value());
  EXPECT_EQ(refused->closed->code, HVD_REFUSED) << refused->closed->message;
  auto lost = connect(loop, foreign.endpoint() + "," + nobody, {}, kSecret, milliseconds(300));
  ASSERT_TRUE(lost->closed.has_value());
  EXPECT_EQ(lost->closed->code, HVD_DRIVER_LOST) << lost->closed->message;
  EXPECT_NE(lost->closed->message.find(foreign.endpoint() + " refused the job's secret"), std::string::npos)
      << lost->closed->message;
}

TEST_F(ChannelTest, SecretsOfEveryLengthWork) {
  for (size_t length : {32, 33, 48, 64, 65, 511, 512}) {
    const std::string secret(length, 'k');
    Loop server_loop("server");
    auto listener = std::make_unique<Listener>(server_loop, "127.0.0.1:0", secret, ChannelLimits{}, nullptr,
                                               [](std::shared_ptr<Channel>) {});
    const std::string endpoint = "127.0.0.1:" + std::to_string(listener->port());
    EXPECT_TRUE(connect(loop, endpoint, {}, secret)->connected) << length;
    // One character more or less is another secret, also where a hash would pad it.
    for (size_t other : {length - 1, length + 1}) {
      if (other < 32 || other > 512) continue;
      EXPECT_FALSE(connect(loop, endpoint, {}, std::string(other, 'k'))->connected) << length << " " << other;
    }
    server_loop.stop();
    listener.reset();
  }
}

TEST_F(ChannelTest, UnfitArgumentsAreNamed) {
  for (const char* endpoint :
       {"", "host", ":1", "host:", "host:port", "host:70000", "::1:80", "[::1]", "[]:1", "h:1x"}) {
    auto client = connect(loop, endpoint);
    ASSERT_TRUE(client->closed.has_value()) << endpoint;
    EXPECT_EQ(client->closed->code, HVD_INVALID) << endpoint;
    EXPECT_NE(client->closed->message.find("expected host:port"), std::string::npos)
        << client->closed->message;
  }
  auto client = connect(loop, "127.0.0.1:1", {}, "short");
  EXPECT_EQ(client->closed->code, HVD_INVALID);
  EXPECT_NE(client->closed->message.find("5 characters, expected 32 to 512"), std::string::npos);
  EXPECT_EQ(client->closed->message.find("short"), std::string::npos);  // the secret itself is not told
}

TEST_F(ChannelTest, NamesAndV6AddressesWork) {
  Server server;
  EXPECT_TRUE(connect(loop, "localhost:" + std::to_string(server.listener->port()))->connected);
  std::unique_ptr<Server> v6;
  try {
    v6 = std::make_unique<Server>(ChannelLimits{}, false, "[::1]:0");
  } catch (const Error& e) { GTEST_SKIP() << "no IPv6 loopback here: " << e.what(); }
  EXPECT_TRUE(connect(loop, "[::1]:" + std::to_string(v6->listener->port()))->connected);
  EXPECT_EQ(v6->listener->address(), "::1");
}

TEST_F(ChannelTest, TakenPortIsNamed) {
  Server server;
  try {
    Server second({}, false, server.endpoint());
    FAIL() << "two listeners on one port";
  } catch (const Error& e) {
    EXPECT_EQ(e.status().code, HVD_UNAVAILABLE);
    EXPECT_NE(std::string(e.what()).find(server.endpoint()), std::string::npos) << e.what();
  }
}

TEST_F(ChannelTest, ManyConnectionsComeAndGo) {
  Server server({}, true);
  for (int i = 0; i < 100; ++i) {
    auto client = connect(loop, server.endpoint());
    ASSERT_TRUE(client->connected) << i;
    client->send(pattern(100, i));
    ASSERT_TRUE(client->wait_frames(1));
    client->close(i % 2 == 0 ? Duration(0) : seconds(10));
    ASSERT_TRUE(server.peer(i)->wait_closed());
  }
  EXPECT_EQ(server.counters().accepted, 100u);
  EXPECT_EQ(server.counters().refused, 0u);
}

TEST_F(ChannelTest, LoopMayStopInTheMiddleOfEverything) {
  Server server({}, true);
  for (int i = 0; i < 20; ++i) {
    auto own = std::make_unique<Loop>("short-lived");
    std::shared_ptr<Channel> kept;
    connect_channel(*own, server.endpoint(), kSecret, kJobIdentity, {}, seconds(30),
                    [&kept](std::shared_ptr<Channel> channel, const Status&) {
                      kept = std::move(channel);
                      if (kept) kept->send(Bytes(1 << 20, 1));
                    });
    for (int turns = 0; turns < i; ++turns) run_on(*own, [] {});
    own->stop();
    kept.reset();
  }
}

}  // namespace
}  // namespace hvd::wire
