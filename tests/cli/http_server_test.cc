// hvdrun's HTTP server without memory, at every allocation: later clients are served.
#include "cli/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "patience.h"
#include "starved.h"

namespace hvd::cli {
namespace {

using test::Starved;

/// Whether there is an answer. Takes no memory itself.
bool get(uint16_t port, std::chrono::milliseconds patience) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval most{patience.count() / 1000, patience.count() % 1000 * 1000};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof(most));
  const char request[] = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  char answer[4096];
  ssize_t got = -1;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    (void)!::send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL);
    got = ::recv(fd, answer, sizeof(answer), 0);
  }
  ::close(fd);
  return got > 9 && std::memcmp(answer, "HTTP/1.1 ", 9) == 0;
}

TEST(HttpWithoutMemory, ServesThoseWhoComeLater) {
  constexpr size_t kMost = 1000;
  const auto patience = test::patient(std::chrono::milliseconds(30000));
  const HttpServer server("127.0.0.1:0", [](const std::string&) {
    return HttpAnswer{200, "text/plain; charset=utf-8", std::string(100, 'x')};
  });
  const std::string url = server.url();
  const auto port = static_cast<uint16_t>(std::stoul(url.substr(url.rfind(':') + 1)));
  bool failed = true;
  for (size_t at = 0; failed && at < kMost; ++at) {
    {
      const Starved starved(at, Starved::Whose::kAnybodys);
      (void)get(port, std::chrono::milliseconds(300));  // it may get none
      failed = Starved::has_failed();
    }
    ASSERT_TRUE(get(port, patience)) << at;
  }
  EXPECT_FALSE(failed);
}

}  // namespace
}  // namespace hvd::cli
