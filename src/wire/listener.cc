// Accepts connections, bounds strangers, and finishes handshakes.
#include <fmt/format.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <list>
#include <utility>

#include "base/descriptors.h"
#include "wire/socket.h"
#include "wire/tls.h"
#include "wire/tls_stream.h"

namespace hvd::wire {
namespace {

constexpr size_t kMaxHandshakes = 256;
// For who says something, when there are so many; or longer, if those who know the secret need longer.
constexpr Duration kTalk = std::chrono::seconds(1);
constexpr int kAcceptBatch = 64;  // then others on the loop have their turn
constexpr int kSendBuffer =
    128 << 10;  // bytes in the kernel, of each of thousands that are sent the same at once
constexpr Duration kPause = std::chrono::milliseconds(200);

using ErrorCode = asio::error_code;

}  // namespace

struct Listener::Impl : std::enable_shared_from_this<Listener::Impl> {
  using Accepted = std::function<void(std::shared_ptr<Channel>)>;

  // A connection that has not proved yet that it knows the secret.
  struct Handshake {
    Handshake(Loop& loop, std::shared_ptr<TlsStream> s, std::string p)
        : stream(std::move(s)), peer(std::move(p)), timer(loop) {}
    std::shared_ptr<TlsStream> stream;
    std::string peer;
    Loop::Timer timer;
    const Time began = now();

    bool unread() const {
      ErrorCode ignored;
      return stream->socket().available(ignored) > 0;
    }
    bool silent() const { return SSL_get_state(stream->ssl()) == TLS_ST_BEFORE && !unread(); }
  };
  using Place = std::list<std::shared_ptr<Handshake>>::iterator;

  Impl(Loop& l, const std::string& secret, const ChannelLimits& channel_limits, LoggerPtr log,
       Accepted callback)
      : loop(l),
        limits(channel_limits),
        logger(std::move(log)),
        accepted(std::move(callback)),
        tls(make_server_context(secret)),
        acceptor(io_of(l)),
        pause(l) {}

  void adopt(int fd) {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
      const int error = errno;
      ::close(fd);
      throw Error(HVD_UNAVAILABLE, fmt::format("the socket that was handed over: {}", std::strerror(error)));
    }
    ErrorCode e;
    acceptor.assign(address.ss_family == AF_INET6 ? Tcp::v6() : Tcp::v4(), fd, e);
    if (e) ::close(fd);
    if (!e) acceptor.non_blocking(true, e);
    if (!e) bound = acceptor.local_endpoint(e);
    if (e) throw Error(HVD_UNAVAILABLE, fmt::format("the socket that was handed over: {}", e.message()));
  }

  void listen(const std::string& name) {
    const Endpoint endpoint = parse_endpoint(name);
    const auto check = [&name](const ErrorCode& e) {
      if (!e) return;
      Status why(HVD_UNAVAILABLE, fmt::format("can't listen at {}: {}", name, e.message()));
      why.vendor_code = e.value();
      throw Error(why);
    };
    ErrorCode e;
    const auto found =
        Tcp::resolver(io_of(loop)).resolve(endpoint.host, endpoint.port, Tcp::resolver::passive, e);
    check(e);
    const Tcp::endpoint address = found.begin()->endpoint();
    const int fd = ::socket(address.data()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) check(ErrorCode(errno, asio::error::get_system_category()));
    acceptor.assign(address.protocol(), fd, e);
    if (e) ::close(fd);
    check(e);
    acceptor.set_option(Tcp::acceptor::reuse_address(true), e);
    check(e);
    acceptor.bind(address, e);
    check(e);
    acceptor.listen(asio::socket_base::max_listen_connections, e);
    check(e);
    bound = acceptor.local_endpoint(e);
    check(e);
  }

  void wait() {
    if (closed) return;
    acceptor.async_wait(Tcp::acceptor::wait_read, [self = shared_from_this()](const ErrorCode& e) {
      if (self->closed || e == asio::error::operation_aborted) return;
      self->accept_batch();
    });
  }

  void accept_batch() {
    try {
      accept_some();
    } catch (const std::exception&) { pause_accepting(ENOMEM); }
  }

  void accept_some() {
    for (int i = 0; i < kAcceptBatch; ++i) {
      if (!make_room()) return;
      // Not by asio: a process that another thread starts at this moment must not inherit the socket, or
      // its connection would stay open after the worker's death.
      const int fd = ::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      const int error = errno;
      // With none left accept says so even if nobody waits: any other answer means that there are some again.
      const bool none_left =
          fd < 0 && (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM);
      if (none_left) return pause_accepting(error);
      const bool again = std::exchange(exhausted, false);
      if (fd >= 0) add(fd);
      if (again) logger->info("{} accepts connections again", to_text(bound));
      if (fd >= 0) continue;
      if (error == EAGAIN || error == EWOULDBLOCK) break;
      // ECONNABORTED, and errors of the network that accept passes on: of that one connection.
    }
    wait();
  }

  /// Many that come at once wait in the kernel, rather than that one of them is sent away: it may believe
  /// already that it is connected. Who says nothing gives way, and who takes too long. False: accepting goes
  /// on later.
  bool make_room() {
    if (handshakes.size() < share_of_descriptors(kMaxHandshakes)) return true;
    for (auto it = handshakes.begin(); it != handshakes.end(); ++it) {
      if (!(*it)->silent()) continue;
      refuse(it, "too many connections that say nothing");
      return true;
    }
    const Duration patience = std::min(std::max(kTalk, 4 * lately), limits.handshake_timeout);
    for (auto it = handshakes.begin(); it != handshakes.end(); ++it) {
      const Duration age = now() - (*it)->began;
      if (age < patience) return wait_for_room(patience - age);
      if ((*it)->unread()) continue;  // it waits for this thread
      refuse(it, "too many connections at once");
      return true;
    }
    return wait_for_room(kTalk);
  }

  bool wait_for_room(Duration time) {
    full = true;
    pause.start(time, [self = shared_from_this()] {
      self->full = false;
      if (!self->closed) self->accept_batch();
    });
    return false;
  }

  void have_room() {
    if (!full || closed) return;
    loop.post([self = shared_from_this()] {
      if (!self->closed) self->accept_batch();
    });
    full = false;
    pause.cancel();
  }

  void pause_accepting(int error) {
    pause.start(kPause, [self = shared_from_this()] {
      if (!self->closed) self->accept_batch();
    });
    if (!std::exchange(exhausted, true))
      logger->warning("{} accepts no connections for now: {}", to_text(bound),
                      ErrorCode(error, asio::error::get_system_category()).message());
  }

  void add(int fd) {
    Tcp::socket socket(io_of(loop));
    ErrorCode e = asio::error::no_memory;  // if it throws that
    try {
      socket.assign(bound.protocol(), fd, e);
    } catch (const std::exception&) {}
    if (e) {
      ::close(fd);
      return;
    }
    socket.set_option(Tcp::no_delay(true), e);
    socket.set_option(Tcp::socket::send_buffer_size(kSendBuffer), e);
    const Tcp::endpoint peer = socket.remote_endpoint(e);
    if (e) return;  // gone already
    std::shared_ptr<TlsStream> stream;
    try {
      stream = std::make_shared<TlsStream>(std::move(socket), tls.get(), TlsStream::Role::kServer);
    } catch (const Error& error) { return logger->warning("{}: {}", to_text(peer), error.what()); }
    auto handshake = std::make_shared<Handshake>(loop, std::move(stream), to_text(peer));
    const Place place = handshakes.insert(handshakes.end(), handshake);
    try {
      handshake->timer.start(limits.handshake_timeout, [self = shared_from_this(), place] {
        self->refuse(place, "no handshake in time");
      });
      async_handshake(handshake->stream,
                      [self = shared_from_this(), handshake, place](const TlsStream::Failure* why) {
                        if (!self->closed && handshake->stream->socket().is_open())
                          self->handshake_done(place, why);
                      });
    } catch (const std::exception&) {  // no memory: it would stay without an end
      handshake->timer.cancel();
      close_socket(*handshake->stream);
      handshakes.remove(handshake);  // unless it has ended at once
      throw;
    }
  }

  void handshake_done(Place place, const TlsStream::Failure* why) {
    const std::shared_ptr<Handshake> handshake = *place;
    if (why != nullptr) return refuse(place, why->text);
    if (!is_authenticated(handshake->stream->ssl())) return refuse(place, "it did not use the secret");
    handshake->timer.cancel();
    lately = std::max(now() - handshake->began, lately - lately / 8);
    handshakes.erase(place);
    ++counters.accepted;
    have_room();
    const Accepted callback = accepted;  // it may destroy the listener
    callback(make_channel(loop, handshake->stream, limits, lingering));
  }

  // Strangers must not fill the log: the first is named, then those whose count is a power of two.
  void refuse(Place place, const std::string& why) {
    const std::shared_ptr<Handshake> handshake = *place;
    handshake->timer.cancel();
    close_socket(*handshake->stream);  // its handler sees that and does nothing
    handshakes.erase(place);
    ++counters.refused;
    have_room();
    if ((counters.refused & (counters.refused - 1)) == 0)
      logger->warning("{} refused {} connection(s) so far, the last from {}: {}", to_text(bound),
                      counters.refused, handshake->peer, why);
  }

  void close() {
    closed = true;
    pause.cancel();
    ErrorCode ignored;
    acceptor.close(ignored);
    for (const auto& handshake : handshakes) {
      handshake->timer.cancel();
      close_socket(*handshake->stream);
    }
    handshakes.clear();
    accepted = nullptr;
  }

  Loop& loop;
  const ChannelLimits limits;
  const LoggerPtr logger;
  Accepted accepted;
  const TlsContext tls;
  Tcp::acceptor acceptor;
  Tcp::endpoint bound;
  Loop::Timer pause;
  std::list<std::shared_ptr<Handshake>> handshakes;  // oldest first
  const std::shared_ptr<Lingering> lingering = std::make_shared<Lingering>(limits);
  Counters counters{0, 0};
  bool exhausted = false, closed = false;
  bool full = false;   // nobody is accepted until a handshake is over
  Duration lately{0};  // that handshakes of those who know the secret took
};

Listener::Listener(Loop& loop, const std::string& endpoint, const std::string& secret,
                   const ChannelLimits& limits, LoggerPtr logger,
                   std::function<void(std::shared_ptr<Channel>)> accepted)
    : impl_(std::make_shared<Impl>(loop, secret, limits,
                                   logger ? std::move(logger) : std::make_shared<Logger>(),
                                   std::move(accepted))) {
  impl_->listen(endpoint);
  loop.post([impl = impl_] { impl->wait(); });
}

Listener::Listener(Loop& loop, int socket, const std::string& secret, const ChannelLimits& limits,
                   LoggerPtr logger, std::function<void(std::shared_ptr<Channel>)> accepted)
    : impl_(std::make_shared<Impl>(loop, secret, limits,
                                   logger ? std::move(logger) : std::make_shared<Logger>(),
                                   std::move(accepted))) {
  impl_->adopt(socket);
  loop.post([impl = impl_] { impl->wait(); });
}

int Listener::descriptor() const { return impl_->acceptor.native_handle(); }

Listener::~Listener() { impl_->close(); }

uint16_t Listener::port() const { return impl_->bound.port(); }

std::string Listener::address() const { return impl_->bound.address().to_string(); }

Listener::Counters Listener::counters() const { return impl_->counters; }

}  // namespace hvd::wire
