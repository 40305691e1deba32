// Sockets as asio knows them. Private to wire's .cc files: the one header that includes asio.
#pragma once

#include <asio/ip/tcp.hpp>
#include <functional>
#include <list>
#include <map>
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

/// The connections of a listener that linger, oldest first: those of strangers (under the name "") and of
/// each identity that was trusted. On the loop's thread.
class Lingering {
 public:
  using Place = std::list<std::function<void()>>::iterator;
  explicit Lingering(const ChannelLimits& limits) : limits_(limits) {}
  /// `finish` is called when it has to give way, and removes itself.
  Place add(const std::string& name, std::function<void()> finish);
  void remove(const std::string& name, Place place);

 private:
  const ChannelLimits limits_;
  std::map<std::string, std::list<std::function<void()>>> by_name_;
};

/// Channel over a stream that has finished its handshake. `lingering`: of its listener, if it has one.
std::shared_ptr<Channel> make_channel(Loop& loop, std::shared_ptr<TlsStream> stream,
                                      const ChannelLimits& limits,
                                      std::shared_ptr<Lingering> lingering = nullptr);

}  // namespace hvd::wire
