// Contract 13: whoever does not know the secret gets past nothing, and disturbs nobody who does.
#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "wire/messages.h"
#include "wire/support.h"
#include "wire/tls.h"

namespace hvd::wire {
namespace {

using test::connect;
using test::kSecret;
using test::run_on;
using test::Server;

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

Fd raw_socket() {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit{60, 0};  // no read of a test lasts for ever
  if (fd.get() >= 0) setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return fd;
}

bool raw_connect(const Fd& fd, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

Fd raw_connection(uint16_t port) {
  Fd fd = raw_socket();
  EXPECT_TRUE(raw_connect(fd, port)) << strerror(errno);
  return fd;
}

/// Reads until the other side hangs up; false if it does not.
bool hung_up(const Fd& fd) {
  char bytes[4096];
  for (;;) {
    const ssize_t n = ::read(fd.get(), bytes, sizeof bytes);
    if (n > 0) continue;
    return n == 0 || errno == ECONNRESET;
  }
}

struct SslFree {
  void operator()(SSL_CTX* p) const { SSL_CTX_free(p); }
  void operator()(SSL* p) const { SSL_free(p); }
};
using Context = std::unique_ptr<SSL_CTX, SslFree>;
using Ssl = std::unique_ptr<SSL, SslFree>;

Ssl tls_over(const Fd& fd, SSL_CTX* context) {
  Ssl ssl(SSL_new(context));
  SSL_set_fd(ssl.get(), fd.get());
  return ssl;
}

class StrangersTest : public testing::Test {
 protected:
  void expect_good_client_works(Server& server) {
    auto client = connect(loop, server.endpoint());
    ASSERT_TRUE(client->connected) << client->closed->message;
    client->send({1, 2, 3});
    ASSERT_TRUE(client->wait_frames(1));
    client->close(Duration(0));
  }
  Loop loop{"client"};
};

TEST_F(StrangersTest, GarbageIsRefused) {
  Server server({}, true);
  std::mt19937_64 random(3);
  for (int i = 0; i < 50; ++i) {
    Fd fd = raw_connection(server.listener->port());
    std::string bytes(1 + random() % 3000, '\0');
    for (auto& b : bytes) b = static_cast<char>(random());
    // Half of them look like a TLS record at first, some of them of the largest length.
    if (i % 2 == 0)
      bytes.replace(0, 5,
                    std::string("\x16\x03\x01", 3) + (i % 4 == 0 ? "\xff\xff" : std::string("\x01\0", 2)));
    ASSERT_EQ(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    ::shutdown(fd.get(), SHUT_WR);
    EXPECT_TRUE(hung_up(fd)) << i;
  }
  expect_good_client_works(server);
  EXPECT_EQ(server.counters().refused, 50u);
  EXPECT_EQ(server.counters().accepted, 1u);
}

TEST_F(StrangersTest, PlaintextFrameReachesNoParser) {
  Server server;
  Fd fd = raw_connection(server.listener->port());
  const Bytes message = encode(envelope("job", 1, 0, HelloT{}));
  Bytes frame{0, 0, 0, static_cast<uint8_t>(message.size())};
  frame.insert(frame.end(), message.begin(), message.end());
  ASSERT_GT(::send(fd.get(), frame.data(), frame.size(), MSG_NOSIGNAL), 0);
  EXPECT_TRUE(hung_up(fd));
  EXPECT_EQ(server.counters().refused, 1u);
  EXPECT_EQ(server.counters().accepted, 0u);
  EXPECT_TRUE(server.log.wait_for("refused 1 connection(s) so far"));
}

TEST_F(StrangersTest, WrongSecretAndNoSecretAreRefused) {
  Server server({}, true);
  for (int i = 0; i < 10; ++i) {
    auto client =
        connect(loop, server.endpoint(), {}, "another secret of enough length " + std::to_string(i));
    ASSERT_TRUE(client->closed.has_value());
    EXPECT_EQ(client->closed->code, HVD_REFUSED) << client->closed->message;
  }
  for (int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    Context context(SSL_CTX_new(TLS_client_method()));
    SSL_CTX_set_max_proto_version(context.get(), version);
    Fd fd = raw_connection(server.listener->port());
    Ssl ssl = tls_over(fd, context.get());
    EXPECT_NE(SSL_connect(ssl.get()), 1);
  }
  expect_good_client_works(server);
  EXPECT_EQ(server.counters().refused, 12u);
}

int none_of_ours(SSL*, const EVP_MD*, const unsigned char** id, size_t* size, SSL_SESSION** session) {
  *id = nullptr, *size = 0, *session = nullptr;
  return 1;
}

TEST_F(StrangersTest, RightKeyForAnotherIdentityIsNone) {
  Server server;
  Context context(make_client_context(kSecret, kJobIdentity).release());
  SSL_CTX_set_psk_use_session_callback(context.get(), none_of_ours);
  Fd fd = raw_connection(server.listener->port());
  Ssl ssl = tls_over(fd, context.get());
  EXPECT_NE(SSL_connect(ssl.get()), 1);
}

// A false driver that ignores the key and shows a certificate must not pass for the job's.
TEST_F(StrangersTest, DriverWithACertificateInsteadOfTheSecretIsRefused) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("127.0.0.1"), -1, -1, 0);
  X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
  X509_sign(certificate, key, EVP_sha256());
  Context context(SSL_CTX_new(TLS_server_method()));
  ASSERT_EQ(SSL_CTX_use_certificate(context.get(), certificate), 1);
  ASSERT_EQ(SSL_CTX_use_PrivateKey(context.get(), key), 1);
  X509_free(certificate);
  EVP_PKEY_free(key);

  Fd listening = raw_socket();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(listening.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listening.get(), 5), 0);
  socklen_t size = sizeof address;
  getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address), &size);

  std::thread impostor([&] {
    Fd fd(::accept(listening.get(), nullptr, nullptr));
    Ssl ssl = tls_over(fd, context.get());
    SSL_accept(ssl.get());
    char byte = 0;
    SSL_read(ssl.get(), &byte, 1);
  });
  auto client = connect(loop, "127.0.0.1:" + std::to_string(ntohs(address.sin_port)));
  impostor.join();
  ASSERT_TRUE(client->closed.has_value());
  EXPECT_EQ(client->closed->code, HVD_REFUSED) << client->closed->message;
  EXPECT_FALSE(client->connected);
}

TEST_F(StrangersTest, SilentDriverMeansTimeout) {
  Fd listening = raw_socket();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(listening.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listening.get(), 5), 0);
  socklen_t size = sizeof address;
  getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address), &size);
  auto client =
      connect(loop, "127.0.0.1:" + std::to_string(ntohs(address.sin_port)), {}, kSecret, milliseconds(300));
  ASSERT_TRUE(client->closed.has_value());
  EXPECT_EQ(client->closed->code, HVD_TIMEOUT) << client->closed->message;
  EXPECT_NE(client->closed->message.find("handshake"), std::string::npos) << client->closed->message;
}

TEST_F(StrangersTest, HandshakeHasADeadline) {
  ChannelLimits limits;
  limits.handshake_timeout = milliseconds(50);
  Server server(limits);
  Fd fd = raw_connection(server.listener->port());
  EXPECT_TRUE(hung_up(fd));
  EXPECT_EQ(server.counters().refused, 1u);
}

TEST_F(StrangersTest, IdleConnectionsByTheThousandDisturbNobody) {
  ChannelLimits limits;
  limits.handshake_timeout = seconds(600);  // only the bound on their number ends them
  Server server(limits, true);
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  const size_t wanted = 5000;
  const size_t count = std::min<size_t>(wanted, files.rlim_cur > 1000 ? files.rlim_cur - 700 : 100);
  if (count < wanted)
    std::printf("only %zu idle connections: %zu descriptors\n", count, size_t{files.rlim_cur});

  auto good = connect(loop, server.endpoint());
  ASSERT_TRUE(good->connected);
  std::vector<Fd> idle;
  size_t echoed = 0;
  for (size_t i = 0; i < count; ++i) {
    idle.push_back(raw_connection(server.listener->port()));
    if (i % 100 == 0) {
      good->send({static_cast<uint8_t>(i)});
      ASSERT_TRUE(good->wait_frames(++echoed)) << "after " << i << " idle connections";
    }
    if (i % 1000 == 999) expect_good_client_works(server);
  }
  EXPECT_TRUE(hung_up(idle.front()));  // the oldest gave way
  expect_good_client_works(server);
  // Those that were closed by the bound, at least.
  EXPECT_GE(server.counters().refused, count > 256 ? count - 256 : 0);
  EXPECT_LT(server.log.count("refused"), 20);  // and the log was not filled
}

/// A process with few descriptors: what it must open itself can be opened.
TEST_F(StrangersTest, WhoSaysNothingLeavesDescriptors) {
  Server server({}, true);
  expect_good_client_works(server);
  ASSERT_TRUE(server.peer(0)->wait_closed());
  const rlim_t open = static_cast<rlim_t>(raw_socket().get());  // the next number
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  constexpr rlim_t kIdle = 100;  // this process's as well
  rlimit low = before;
  low.rlim_cur = open + kIdle + 90;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  std::vector<Fd> idle;
  for (rlim_t i = 0; i < kIdle; ++i) {
    idle.push_back(raw_socket());
    EXPECT_TRUE(raw_connect(idle.back(), server.listener->port()));
  }
  EXPECT_TRUE(hung_up(idle.front()));
  std::vector<Fd> more;
  for (int i = 0; i < 30; ++i) {
    more.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    EXPECT_GE(more.back().get(), 0) << i << ": " << strerror(errno);
  }
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(server.log.count("accepts no connections"), 0);
}

/// Who has finished its handshake believes that it is connected: of many that come at once nobody is hung up
/// on.
TEST_F(StrangersTest, ACrowdOfFriendsIsLetInWhole) {
  ChannelLimits limits;
  limits.handshake_timeout = seconds(60);
  Server server(limits);
  constexpr size_t kCrowd = 700;
  std::vector<std::shared_ptr<test::Peer>> crowd;
  for (size_t i = 0; i < kCrowd; ++i) {
    auto peer = std::make_shared<test::Peer>(loop);
    connect_channel(loop, server.endpoint(), kSecret, kJobIdentity, limits, seconds(120),
                    [peer](std::shared_ptr<Channel> channel, const Status& why) {
                      if (channel) return peer->use(std::move(channel));
                      peer->failed(why);
                    });
    crowd.push_back(std::move(peer));
  }
  for (const auto& peer : crowd) {
    ASSERT_TRUE(peer->events.wait([&] { return peer->connected || peer->closed.has_value(); }));
  }
  ASSERT_TRUE(server.events.wait([&] { return server.peers.size() >= kCrowd; }));
  for (const auto& peer : crowd) {
    EXPECT_FALSE(peer->events.read([&] { return peer->closed.has_value(); }));
  }
}

TEST_F(StrangersTest, RunningOutOfDescriptorsPausesAndRecovers) {
  Server server({}, true);
  expect_good_client_works(server);
  ASSERT_TRUE(server.peer(0)->wait_closed());  // else its descriptors come free in the middle of this
  Fd late = raw_socket();
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit low = before;
  low.rlim_cur = 64 + static_cast<rlim_t>(late.get());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  std::vector<Fd> hoard;
  for (;;) {
    Fd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (fd.get() < 0) break;
    hoard.push_back(std::move(fd));
  }
  EXPECT_TRUE(raw_connect(late, server.listener->port()));
  EXPECT_TRUE(server.log.wait_for("accepts no connections for now"));
  setrlimit(RLIMIT_NOFILE, &before);
  hoard.clear();
  EXPECT_TRUE(server.log.wait_for("accepts connections again"));
  expect_good_client_works(server);
  EXPECT_EQ(server.log.count("accepts no connections for now"), 1);
}

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
  // What these have sent has been read when a later connection is served.
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
