// HTTP/1.1 by Boost.Beast, on one thread: bounded connections, bounded time, bounded requests.
#include "cli/http_server.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <list>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/thread.h"

namespace hvd::cli {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Tcp = asio::ip::tcp;

constexpr size_t kMostConnections = 64;   // the one that was idle for longest gives way
constexpr size_t kFewDescriptors = 1024;  // below that fewer
constexpr uint32_t kMostHeader = 8 << 10;
constexpr uint64_t kMostBody = 1 << 10;  // no request has one; more than this is not read
constexpr std::chrono::seconds kRequestTime{10}, kIdleTime{30};
constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

class Connection;
using Connections = std::list<std::shared_ptr<Connection>>;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Tcp::socket socket, const HttpHandler& handler, bool loopback, Connections& all)
      : stream_(std::move(socket)), handler_(handler), loopback_(loopback), all_(all) {}

  void read() {
    go_on([this] {
      parser_.emplace();
      parser_->header_limit(kMostHeader);
      parser_->body_limit(kMostBody);
      stream_.expires_after(served_ ? kIdleTime : kRequestTime);
      http::async_read(stream_, buffer_, *parser_, [self = shared_from_this()](beast::error_code e, size_t) {
        self->go_on([&] { self->have(e); });
      });
    });
  }

  void close() {
    beast::error_code ignored;
    stream_.socket().shutdown(Tcp::socket::shutdown_both, ignored);
    stream_.close();
  }

 private:
  // Without memory for a step there is none after it, and the client would wait.
  template <class Step>
  void go_on(Step step) {
    try {
      step();
    } catch (const std::exception&) { end(); }
  }

  void have(beast::error_code e) {
    if (e == http::error::header_limit) return refuse(http::status::request_header_fields_too_large);
    if (e == http::error::body_limit) return refuse(http::status::payload_too_large);
    if (e && e.category() == http::make_error_code(http::error::end_of_stream).category() &&
        e != http::error::end_of_stream && e != http::error::partial_message) {
      return refuse(http::status::bad_request);
    }
    if (e) return end();
    // The one that was used last stands last.
    const auto self = shared_from_this();
    all_.remove(self);
    all_.push_back(self);
    answer(parser_->get());
  }

  void refuse(http::status status) {
    respond({static_cast<unsigned>(status), "text/plain; charset=utf-8",
             std::string(http::obsolete_reason(status)) + "\n"},
            false, false, 11);
  }

  void answer(const http::request<http::string_body>& request) {
    const bool head = request.method() == http::verb::head;
    const bool stays = request.keep_alive();
    const auto plain = [&](unsigned status, const char* text) {
      respond({status, "text/plain; charset=utf-8", text}, head, stays, request.version());
    };
    if (loopback_ && !is_local_host(std::string(request[http::field::host]))) {
      return plain(421, "this address serves names of this machine alone: use localhost or the address\n");
    }
    if (!head && request.method() != http::verb::get) return plain(405, "GET and HEAD alone are served\n");
    const std::string target(request.target());
    HttpAnswer answer;
    try {
      answer = handler_(target.substr(0, target.find_first_of("?#")));
    } catch (const std::exception& error) {
      answer = {500, "text/plain; charset=utf-8", std::string(error.what()) + "\n"};
    }
    respond(std::move(answer), head, stays, request.version());
  }

  void respond(HttpAnswer answer, bool head, bool stays, unsigned version) {
    served_ = true;
    response_.emplace(static_cast<http::status>(answer.status), version);
    response_->set(http::field::content_type, answer.type);
    response_->set(http::field::cache_control, "no-store");
    response_->set("X-Content-Type-Options", "nosniff");
    response_->set("Content-Security-Policy", kPolicy);
    response_->set("Referrer-Policy", "no-referrer");
    response_->set("Cross-Origin-Resource-Policy", "same-origin");
    if (answer.status == 405) response_->set(http::field::allow, "GET, HEAD");
    response_->keep_alive(stays);
    const size_t size = answer.body.size();
    if (!head) response_->body() = std::move(answer.body);
    response_->prepare_payload();
    if (head) response_->content_length(size);
    stream_.expires_after(kRequestTime);
    const auto written = [self = shared_from_this(), stays](beast::error_code e, size_t) {
      if (e || !stays) return self->end();
      self->read();
    };
    if (head) {
      // The length is that of the body which GET would bring, and no body follows.
      serializer_.emplace(*response_);
      return http::async_write_header(stream_, *serializer_, written);
    }
    http::async_write(stream_, *response_, written);
  }

  void end() {
    close();
    all_.remove(shared_from_this());
  }

  beast::tcp_stream stream_;
  const HttpHandler& handler_;
  const bool loopback_;
  Connections& all_;
  bool served_ = false;
  beast::flat_buffer buffer_{kMostHeader + kMostBody};
  std::optional<http::request_parser<http::string_body>> parser_;
  std::optional<http::response<http::string_body>> response_;
  std::optional<http::response_serializer<http::string_body>> serializer_;
};

Tcp::endpoint parse(const std::string& text) {
  const auto unfit = [&] {
    return std::runtime_error("--http " + text +
                              ": expected ADDRESS:PORT, [IPv6]:PORT or PORT, with a numeric address");
  };
  const size_t colon = text.rfind(':');
  std::string address = colon == std::string::npos ? "" : text.substr(0, colon);
  const std::string port = colon == std::string::npos ? text : text.substr(colon + 1);
  if (address.size() > 2 && address.front() == '[' && address.back() == ']') {
    address = address.substr(1, address.size() - 2);
  } else if (address.find(':') != std::string::npos) {
    throw unfit();
  }
  if (address.empty() || address == "localhost") address = "127.0.0.1";
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != std::string::npos)
    throw unfit();
  const unsigned long number = std::stoul(port);
  beast::error_code e;
  const asio::ip::address parsed = asio::ip::make_address(address, e);
  if (e || number > 65535) throw unfit();
  return {parsed, static_cast<uint16_t>(number)};
}

}  // namespace

bool is_local_host(const std::string& header) {
  std::string host = header;
  if (!host.empty() && host.front() == '[') {
    const size_t close = host.find(']');
    if (close == std::string::npos) return false;
    host = host.substr(1, close - 1);
  } else if (const size_t colon = host.find(':'); colon != std::string::npos) {
    host = host.substr(0, colon);
  }
  std::transform(host.begin(), host.end(), host.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (host == "localhost" || host.ends_with(".localhost")) return true;
  beast::error_code e;
  asio::ip::make_address(host, e);
  return !e;  // an address needs no name service that could lie
}

/// The driver of the job runs in this process: what strangers hold must leave it descriptors.
size_t most_connections() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kFewDescriptors) return kMostConnections;
  return std::max<size_t>(limit.rlim_cur / (kFewDescriptors / kMostConnections), 2);
}

struct HttpServer::Impl {
  Impl(const std::string& text, HttpHandler h) : handler(std::move(h)), acceptor(io), retry(io) {
    const Tcp::endpoint endpoint = parse(text);
    loopback = endpoint.address().is_loopback();
    try {
      // Workers that are started later must not inherit it, nor what it accepts.
      const int fd = ::socket(endpoint.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      if (fd < 0) throw boost::system::system_error(errno, boost::system::system_category());
      acceptor.assign(endpoint.protocol(), fd);
      acceptor.set_option(asio::socket_base::reuse_address(true));
      acceptor.bind(endpoint);
      acceptor.listen();
    } catch (const boost::system::system_error& error) {
      throw std::runtime_error("--http " + text + ": " + error.code().message());
    }
    accept();
    thread = hvd::start_thread("hvdrun-http", [this] {
      while (true) {
        try {
          io.run();
          return;
        } catch (const std::exception&) {
          // A request that could not be served ends alone.
        }
      }
    });
  }

  ~Impl() {
    asio::post(io, [this] {
      beast::error_code ignored;
      acceptor.close(ignored);
      retry.cancel();
      for (const auto& connection : Connections(connections)) connection->close();
      connections.clear();
    });
    // Whoever is answered at this moment is answered; nobody is waited for.
    asio::post(io, [this] { io.stop(); });
    thread.join();
  }

  void accept() {
    acceptor.async_wait(Tcp::acceptor::wait_read, [this](beast::error_code e) {
      if (e == asio::error::operation_aborted) return;
      const int fd = ::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
        // A moment later there may be some.
        retry.expires_after(std::chrono::milliseconds(100));
        return retry.async_wait([this](beast::error_code cancelled) {
          if (!cancelled) accept();
        });
      }
      accept();  // first: without memory for this connection there are others
      if (fd >= 0) serve(fd);
    });
  }

  void serve(int fd) {
    Tcp::socket socket(io);
    beast::error_code e = asio::error::no_memory;  // if it throws that
    try {
      socket.assign(acceptor.local_endpoint().protocol(), fd, e);
    } catch (const std::exception&) {}
    if (e) {
      ::close(fd);
      return;
    }
    if (connections.size() >= most_connections()) {
      const auto oldest = connections.front();
      connections.pop_front();
      oldest->close();
    }
    connections.push_back(std::make_shared<Connection>(std::move(socket), handler, loopback, connections));
    connections.back()->read();
  }

  const HttpHandler handler;
  asio::io_context io{1};
  Tcp::acceptor acceptor;
  asio::steady_timer retry;
  Connections connections;  // the one that was idle for longest first
  bool loopback = true;
  std::thread thread;
};

HttpServer::HttpServer(const std::string& endpoint, HttpHandler handler)
    : impl_(std::make_unique<Impl>(endpoint, std::move(handler))) {}
HttpServer::~HttpServer() = default;

std::string HttpServer::url() const {
  const Tcp::endpoint endpoint = impl_->acceptor.local_endpoint();
  const std::string address = endpoint.address().to_string();
  return "http://" + (endpoint.address().is_v6() ? "[" + address + "]" : address) + ":" +
         std::to_string(endpoint.port()) + "/";
}

}  // namespace hvd::cli
