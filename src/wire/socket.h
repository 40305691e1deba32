// Sockets as asio knows them. Private to wire's .cc files: the one header that includes asio.
#pragma once

#include <asio/ip/tcp.hpp>
#include <asio/ssl/context.hpp>
#include <asio/ssl/stream.hpp>
#include <memory>
#include <string>

#include "wire/channel.h"

namespace hvd::wire {

using Tcp = asio::ip::tcp;
/// Operations under way refer to it: their handlers hold it, too.
using Stream = asio::ssl::stream<Tcp::socket>;

inline asio::io_context& io_of(Loop& loop) { return *static_cast<asio::io_context*>(loop.native()); }

/// Closes and keeps quiet about errors: nobody is left to act on them.
void close_socket(Stream& stream);

/// "host:port" or "[v6 address]:port". Throws Error(HVD_INVALID).
struct Endpoint {
  std::string host, port;
};
Endpoint parse_endpoint(const std::string& text);

std::string to_text(const Tcp::endpoint& endpoint);  // "127.0.0.1:4711", "[::1]:4711"

/// Channel over a stream that has finished its handshake.
std::shared_ptr<Channel> make_channel(Loop& loop, std::shared_ptr<Stream> stream,
                                      const ChannelLimits& limits);

}  // namespace hvd::wire
