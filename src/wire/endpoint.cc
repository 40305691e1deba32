// Parses "host:port", and closes sockets quietly.
#include <fmt/format.h>

#include <charconv>

#include "wire/socket.h"
#include "wire/tls_stream.h"

namespace hvd::wire {

Endpoint parse_endpoint(const std::string& text) {
  const Error unfit(HVD_INVALID,
                    fmt::format("endpoint \"{}\", expected host:port or [v6 address]:port", text));
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) throw unfit;
  Endpoint endpoint{text.substr(0, colon), text.substr(colon + 1)};
  if (endpoint.host.front() == '[') {
    if (endpoint.host.size() < 3 || endpoint.host.back() != ']') throw unfit;
    endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
  } else if (endpoint.host.find(':') != std::string::npos) {
    throw unfit;  // whether the last group of a bare v6 address is a port can't be told
  }
  const char* end = endpoint.port.data() + endpoint.port.size();
  uint16_t port = 0;
  const auto [rest, e] = std::from_chars(endpoint.port.data(), end, port);
  if (e != std::errc() || rest != end) throw unfit;
  return endpoint;
}

std::string to_text(const Tcp::endpoint& endpoint) {
  const std::string address = endpoint.address().to_string();
  return endpoint.address().is_v6() ? fmt::format("[{}]:{}", address, endpoint.port())
                                    : fmt::format("{}:{}", address, endpoint.port());
}

void close_socket(TlsStream& stream) {
  asio::error_code ignored;
  stream.socket().close(ignored);
}

}  // namespace hvd::wire
