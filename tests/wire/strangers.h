// Connections that are made by hand, and a server that goes on whatever they do.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "wire/support.h"

namespace hvd::test {

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

inline Fd raw_socket() {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit{60, 0};  // no read of a test lasts for ever
  if (fd.get() >= 0) setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return fd;
}

inline bool raw_connect(const Fd& fd, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

inline Fd raw_connection(uint16_t port) {
  Fd fd = raw_socket();
  EXPECT_TRUE(raw_connect(fd, port)) << strerror(errno);
  return fd;
}

/// Reads until the other side hangs up; false if it does not.
inline bool hung_up(const Fd& fd) {
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

inline Ssl tls_over(const Fd& fd, SSL_CTX* context) {
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

}  // namespace hvd::test
