// Sockets as asio knows them. Private to wire's .cc files: the one header that includes asio.
#pragma once

#include <asio/ip/tcp.hpp>
#include <memory>
#include <string>

#include "wire/channel.h"

namespace hvd::wire {

using Tcp = asio::ip::tcp;
class TlsStream;

inline asio::io_context& io_of(Loop& loop) { return *static_cast<asio::io_context*>(loop.native()); }

/// Closes and keeps quiet about errors: nobody is left to act on them.
void close_socket(TlsStream& stream);

/// "host:port" or "[v6 address]:port". Throws Error(HVD_INVALID).
struct Endpoint {
  std::string host, port;
};
Endpoint parse_endpoint(const std::string& text);

std::string to_text(const Tcp::endpoint& endpoint);  // "127.0.0.1:4711", "[::1]:4711"

/// Channel over a stream that has finished its handshake.
std::shared_ptr<Channel> make_channel(Loop& loop, std::shared_ptr<TlsStream> stream,
                                      const ChannelLimits& limits);

}  // namespace hvd::wire
