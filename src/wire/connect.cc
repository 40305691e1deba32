// Resolves, dials and authenticates, until a deadline.
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <asio/error.hpp>
#include <cerrno>
#include <utility>
#include <vector>

#include "wire/socket.h"
#include "wire/tls.h"
#include "wire/tls_stream.h"

namespace hvd::wire {
namespace {

constexpr Duration kFirstDelay = std::chrono::milliseconds(10);
constexpr Duration kLongestDelay = std::chrono::seconds(1);
constexpr int kMostPatience = 16;
constexpr Duration kAttempt = std::chrono::seconds(3);  // for one address, while others wait to be tried

using OnConnected = std::function<void(std::shared_ptr<Channel>, const Status&)>;
using ErrorCode = asio::error_code;

/// Nobody listens there: the system gave this end the very port that it dialed.
bool reaches_itself(const Tcp::socket& socket) {
  ErrorCode e;
  const Tcp::endpoint own = socket.local_endpoint(e), peer = socket.remote_endpoint(e);
  return !e && own == peer;
}

// Tries the addresses of all endpoints one by one, again and again with growing pauses, until one answers or
// the time is over. Only an answer that can't change, a handshake refused by each endpoint, ends it earlier:
// where a driver has gone another service may listen.
class Connector : public std::enable_shared_from_this<Connector> {
 public:
  Connector(Loop& loop, std::string endpoint, const ChannelLimits& limits, Duration timeout, OnConnected done)
      : loop_(loop),
        name_(std::move(endpoint)),
        limits_(limits),
        timeout_(timeout),
        done_(std::move(done)),
        deadline_(loop),
        timer_(loop),
        resolver_(io_of(loop)) {}

  void start(const std::string& secret, const std::string& identity) {
    try {
      for (size_t begin = 0; begin <= name_.size();) {
        const size_t end = std::min(name_.find(',', begin), name_.size());
        names_.push_back(name_.substr(begin, end - begin));
        endpoints_.push_back(parse_endpoint(names_.back()));
        begin = end + 1;
      }
      tls_ = make_client_context(secret, identity);
    } catch (const Error& e) { return end(nullptr, e.status()); }
    deadline_.start(timeout_, [self = shared_from_this()] { self->out_of_time(); });
    resolve();
  }

 private:
  void resolve() {
    refused_.assign(endpoints_.size(), false);
    resolve(0);
  }

  /// Of all endpoints, from this one on; then the addresses are tried.
  void resolve(size_t index) {
    if (!done_) return;
    for (; index < endpoints_.size(); ++index) {
      const Endpoint& endpoint = endpoints_[index];
      ErrorCode not_numeric;
      const auto address = asio::ip::make_address(endpoint.host, not_numeric);
      if (not_numeric) break;
      addresses_.push_back({{address, static_cast<uint16_t>(std::stoul(endpoint.port))}, index});
    }
    if (index == endpoints_.size()) return next_address();
    phase_ = "looking up its name";
    resolver_.async_resolve(
        endpoints_[index].host, endpoints_[index].port,
        [self = shared_from_this(), index](const ErrorCode& e, Tcp::resolver::results_type found) {
          if (!self->done_) return;
          if (e) self->last_failure_ = e.message();
          for (const auto& entry : found) self->addresses_.push_back({entry.endpoint(), index});
          self->resolve(index + 1);
        });
  }

  void next_address() {
    if (addresses_.empty()) return end_round();
    const Tcp::endpoint address = addresses_.front().address;
    index_ = addresses_.front().index;
    addresses_.erase(addresses_.begin());
    phase_ = "connecting";
    stream_.reset();
    // Not by asio: a process that another thread starts at this moment must not inherit the socket.
    const int fd = ::socket(address.data()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return failed(ErrorCode(errno, asio::error::get_system_category()));
    Tcp::socket socket(io_of(loop_));
    ErrorCode e;
    socket.assign(address.protocol(), fd, e);
    if (e) {
      ::close(fd);
      return failed(e);
    }
    try {
      stream_ = std::make_shared<TlsStream>(std::move(socket), tls_.get(), TlsStream::Role::kClient);
    } catch (const Error& error) { return end(nullptr, error.status()); }
    ++attempt_;
    timer_.start(kAttempt * patience_,
                 [self = shared_from_this()] { self->failed(ErrorCode(asio::error::timed_out)); });
    stream_->socket().async_connect(
        address, [self = shared_from_this(), stream = stream_, attempt = attempt_](const ErrorCode& e) {
          if (!self->done_ || attempt != self->attempt_) return;
          if (e) return self->failed(e);
          if (reaches_itself(stream->socket())) {
            ErrorCode ignored;  // the port is to be free at once for who may listen there
            stream->socket().set_option(asio::socket_base::linger(true, 0), ignored);
            return self->failed(asio::error::connection_refused);
          }
          self->handshake();
        });
  }

  void handshake() {
    phase_ = "in the handshake";
    answered_ = false;
    ErrorCode ignored;
    stream_->socket().set_option(Tcp::no_delay(true), ignored);
    // A driver that is stopped takes connections and says nothing: the one that has taken over may be
    // the next.
    timer_.start(patience_ * (addresses_.empty() ? limits_.handshake_timeout
                                                 : std::min(limits_.handshake_timeout, kAttempt)),
                 [self = shared_from_this()] { self->failed(ErrorCode(asio::error::timed_out)); });
    async_handshake(stream_, [self = shared_from_this(), attempt = attempt_](const TlsStream::Failure* why) {
      if (self->done_ && attempt == self->attempt_) self->handshake_done(why);
    });
  }

  void handshake_done(const TlsStream::Failure* why) {
    if (why != nullptr && why->kind == TlsStream::Failure::Kind::kTls) return refused(why->text);
    if (why != nullptr) return failed(why->text);  // too busy a driver hangs up without an answer
    if (!is_authenticated(stream_->ssl())) return refused("it did not use the secret");
    end(make_channel(loop_, std::move(stream_), limits_), Status());
  }

  void failed(const ErrorCode& e) { failed(e.message()); }
  void failed(const std::string& why) {
    ++attempt_;  // operations under way on this stream are ignored from here on
    if (stream_) close_socket(*stream_);
    last_failure_ = why;
    next_address();
  }

  void end_round() {
    const bool by_all = std::all_of(refused_.begin(), refused_.end(), [](bool refused) { return refused; });
    if (by_all) return end(nullptr, refusal_);
    answered_ = last_failure_ != ErrorCode(asio::error::timed_out).message();
    // Thousands that come at once wait in the driver's queue. Who gives up its place and comes again
    // makes it longer.
    if (!answered_) patience_ = std::min(patience_ * 2, kMostPatience);
    timer_.start(delay_, [self = shared_from_this()] { self->resolve(); });
    delay_ = std::min<Duration>(delay_ * 2, kLongestDelay);
  }

  void refused(const std::string& why) {
    refused_[index_] = true;
    refusal_ = Status(HVD_REFUSED,
                      fmt::format("the driver at {} refused the job's secret ({})", names_[index_], why));
    failed(refusal_.message);
  }

  void out_of_time() {
    const double waited = to_seconds(timeout_);
    Status why(HVD_TIMEOUT,
               fmt::format("the driver at {} has not answered within {:g} s ({})", name_, waited, phase_));
    if (!last_failure_.empty() && answered_) {
      why = Status(HVD_DRIVER_LOST, fmt::format("the driver at {} can't be reached: {} (tried for {:g} s)",
                                                name_, last_failure_, waited));
    }
    if (!refusal_.ok() && refusal_.message != last_failure_) why.message += "; " + refusal_.message;
    end(nullptr, why);
  }

  void end(std::shared_ptr<Channel> channel, const Status& why) {
    OnConnected done = std::exchange(done_, nullptr);
    deadline_.cancel();
    timer_.cancel();
    resolver_.cancel();
    if (stream_) close_socket(*stream_);
    if (done) done(std::move(channel), why);
  }

  Loop& loop_;
  const std::string name_;
  const ChannelLimits limits_;
  const Duration timeout_;
  OnConnected done_;                // empty once it was called
  std::vector<std::string> names_;  // of each endpoint
  std::vector<Endpoint> endpoints_;
  Loop::Timer deadline_, timer_;
  Tcp::resolver resolver_;
  TlsContext tls_;
  struct Address {
    Tcp::endpoint address;
    size_t index;  // of its endpoint
  };
  std::vector<Address> addresses_;  // still to be tried in this round
  size_t index_ = 0;                // of the one that is tried
  std::vector<bool> refused_;       // by endpoint, in this round
  Status refusal_;                  // the last one
  std::shared_ptr<TlsStream> stream_;
  uint64_t attempt_ = 0;
  Duration delay_ = kFirstDelay;
  int patience_ = 1;       // times the usual, after rounds in which nobody answered in time
  bool answered_ = false;  // the last failure was an answer, not silence
  std::string last_failure_;
  const char* phase_ = "connecting";
};

}  // namespace

void connect_channel(Loop& loop, const std::string& endpoint, const std::string& secret,
                     const std::string& identity, const ChannelLimits& limits, Duration timeout,
                     OnConnected done) {
  auto connector = std::make_shared<Connector>(loop, endpoint, limits, timeout, std::move(done));
  loop.post([connector, secret, identity] { connector->start(secret, identity); });
}

}  // namespace hvd::wire
