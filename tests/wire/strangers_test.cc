// Contract 13: whoever does not know the secret gets past nothing, and disturbs nobody who does.
#include "wire/strangers.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "wire/messages.h"
#include "wire/support.h"
#include "wire/tls.h"

namespace hvd::wire {
namespace {

using test::connect;
using test::Context;
using test::Fd;
using test::hung_up;
using test::kSecret;
using test::raw_connect;
using test::raw_connection;
using test::raw_socket;
using test::Server;
using test::Ssl;
using test::StrangersTest;
using test::tls_over;

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

}  // namespace
}  // namespace hvd::wire
