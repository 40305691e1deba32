// Fuzzes the page of --http over real connections: whatever is asked, each answer is whole and of a known
// status, the handler sees no more than paths, and the next one who asks is served.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <set>

#include "cli/http_server.h"
#include "fuzz.h"

namespace hvd::fuzz {
namespace {

constexpr char kPage[] = "the page";
constexpr int kPatienceMs = 60000;

std::atomic<uint64_t> handled = 0;

cli::HttpServer& server() {
  // Never destroyed: its thread outlives the last input.
  static auto* const one = new cli::HttpServer("127.0.0.1:0", [](const std::string& path) -> cli::HttpAnswer {
    HVD_PROMISE(path.find_first_of("?#") == std::string::npos && path.size() <= 8 << 10);
    ++handled;
    if (path == "/") return {200, "text/html; charset=utf-8", kPage};
    if (path == "/broken") throw std::runtime_error("it can't be told");
    return {404, "text/plain; charset=utf-8", "no such page\n"};
  });
  return *one;
}

int connection() {
  static const int port = [] {
    const std::string url = server().url();
    return std::stoi(url.substr(url.rfind(':') + 1));
  }();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  while (true) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
    HVD_PROMISE(errno == EINTR);  // libFuzzer looks at its clock by a signal
    ::close(fd);
  }
}

/// What comes back until the server hangs up, which it does when nothing more can come.
std::string answer_to(std::span<const uint8_t> request) {
  const int fd = connection();
  (void)!::send(fd, request.data(), request.size(), MSG_NOSIGNAL);
  ::shutdown(fd, SHUT_WR);
  std::string all;
  char piece[4096];
  while (true) {
    pollfd readable{fd, POLLIN, 0};
    HVD_PROMISE(TEMP_FAILURE_RETRY(::poll(&readable, 1, kPatienceMs)) == 1);
    const ssize_t n = TEMP_FAILURE_RETRY(::recv(fd, piece, sizeof piece, 0));
    if (n <= 0) break;
    all.append(piece, static_cast<size_t>(n));
    HVD_PROMISE(all.size() < 16 << 20);
  }
  ::close(fd);
  return all;
}

/// One answer after the other, nothing between them. The last may be cut off: the connection was reset under
/// it.
void must_be_answers(std::string_view all, bool may_lack_bodies) {
  static const std::set<int> kStatuses = {200, 400, 404, 405, 413, 421, 431, 500};
  while (!all.empty()) {
    const size_t end = all.find("\r\n\r\n");
    if (end == std::string_view::npos) return;
    const std::string_view head = all.substr(0, end + 2);
    HVD_PROMISE(head.starts_with("HTTP/1.1 ") || head.starts_with("HTTP/1.0 "));
    const int status = std::atoi(std::string(head.substr(9, 3)).c_str());
    HVD_PROMISE(kStatuses.contains(status));
    HVD_PROMISE(head.find("\r\nContent-Security-Policy: default-src 'none'") != std::string_view::npos);
    HVD_PROMISE(head.find("\r\nX-Content-Type-Options: nosniff\r\n") != std::string_view::npos);
    const size_t at = head.find("\r\nContent-Length: ");
    HVD_PROMISE(at != std::string_view::npos);
    const size_t length = std::strtoul(std::string(head.substr(at + 18)).c_str(), nullptr, 10);
    HVD_PROMISE(length > 0 && length < 4096);
    all.remove_prefix(end + 4);
    if (may_lack_bodies && (all.empty() || all.starts_with("HTTP/1."))) continue;
    all.remove_prefix(std::min(length, all.size()));
  }
}

}  // namespace

void one_input(std::span<const uint8_t> data) {
  const std::string text(data.begin(), data.end());
  must_be_answers(answer_to(data), text.find("HEAD") != std::string::npos);
  static uint64_t asked = 0;
  if (++asked % 16 != 0) return;
  const uint64_t before = handled;
  const std::string page =
      answer_to(bytes_of("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
  HVD_PROMISE(page.starts_with("HTTP/1.1 200 ") && page.ends_with(kPage) && handled == before + 1);
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> result;
  const std::string host = "Host: 127.0.0.1:80\r\n";
  for (const std::string& text :
       {"GET / HTTP/1.1\r\n" + host + "\r\n", "HEAD /nothing?x#y HTTP/1.1\r\n" + host + "\r\n",
        "GET /broken HTTP/1.0\r\n" + host + "Connection: keep-alive\r\n\r\n",
        "GET / HTTP/1.1\r\n" + host + "\r\nGET / HTTP/1.1\r\n" + host + "\r\n",
        "POST / HTTP/1.1\r\n" + host + "Content-Length: 4\r\n\r\nbody",
        "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n4;x=y\r\nbody\r\n0\r\nA: b\r\n\r\n",
        "POST / HTTP/1.1\r\n" + host +
            "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nffffffffffffffff\r\n",
        "GET / HTTP/1.1\r\n" + host + "Content-Length: 18446744073709551615\r\n\r\n",
        "GET / HTTP/1.1\r\n" + host + "Expect: 100-continue\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
        std::string("GET / HTTP/1.1\r\nHost: [::1]:9\r\nX: ") + std::string(9000, 'x') + "\r\n\r\n",
        std::string("GET http://evil/ HTTP/1.1\r\nHost: evil\r\n\r\n"),
        std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), std::string("\x16\x03\x01\x02\x00\x01", 6)}) {
    result.push_back(bytes_of(text));
  }
  return result;
}

}  // namespace hvd::fuzz
