// OpenSSL above a BIO of our own: writes raise no SIGPIPE, as those of its socket BIO would.
#include "wire/tls_stream.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/status.h"

namespace hvd::wire {
namespace {

constexpr size_t kBatch = size_t{32} << 10;  // of plain bytes, whose records leave in one call
constexpr size_t kKept = size_t{1} << 10;    // of a buffer that is empty

/// Of this thread, so that SSL_get_error tells of the next call alone.
void forget_errors() {
  if (ERR_peek_error() != 0) ERR_clear_error();
}

}  // namespace

struct TlsStream::Bio {
  static int write(BIO* bio, const char* data, int size) noexcept {
    auto* self = static_cast<TlsStream*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    try {
      const auto* bytes = reinterpret_cast<const uint8_t*>(data);
      self->out_.insert(self->out_.end(), bytes, bytes + size);
    } catch (const std::exception&) { return -1; }
    return size;
  }
  static int read(BIO* bio, char* data, int size) noexcept {
    auto* self = static_cast<TlsStream*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    ssize_t got = 0;
    do {
      got = ::recv(self->socket_.native_handle(), data, static_cast<size_t>(size), MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got > 0) return static_cast<int>(got);
    self->closed_ = got == 0;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      BIO_set_retry_read(bio);
    } else if (got < 0) {
      self->error_ = errno;
    }
    return static_cast<int>(got);
  }
  static long control(BIO*, int command, long, void*) noexcept { return command == BIO_CTRL_FLUSH ? 1 : 0; }

  static const BIO_METHOD* method() {
    struct Method {
      Method() : made(BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "hvd control channel")) {
        if (made == nullptr) return;
        BIO_meth_set_write(made, &Bio::write);
        BIO_meth_set_read(made, &Bio::read);
        BIO_meth_set_ctrl(made, &Bio::control);
      }
      ~Method() { BIO_meth_free(made); }
      Method(const Method&) = delete;
      Method& operator=(const Method&) = delete;
      BIO_METHOD* made;
    };
    static const Method method;
    return method.made;
  }
};

TlsStream::TlsStream(Tcp::socket socket, ssl_ctx_st* context, Role role)
    : socket_(std::move(socket)), ssl_(SSL_new(context)) {
  const BIO_METHOD* method = Bio::method();
  BIO* bio = ssl_ != nullptr && method != nullptr ? BIO_new(method) : nullptr;
  if (bio == nullptr) {
    SSL_free(ssl_);
    ERR_clear_error();
    throw Error(HVD_UNAVAILABLE, "OpenSSL can't make a connection");
  }
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_, bio, bio);
  if (role == Role::kServer) {
    SSL_set_accept_state(ssl_);
  } else {
    SSL_set_connect_state(ssl_);
  }
}

TlsStream::~TlsStream() { SSL_free(ssl_); }

TlsStream::Step TlsStream::end(Failure::Kind kind, std::string text) {
  failure_ = {kind, std::move(text)};
  return Step::kEnd;
}

TlsStream::Step TlsStream::ended(int result) {
  const int error = SSL_get_error(ssl_, result);
  if (error == SSL_ERROR_WANT_READ) return Step::kReads;
  if (error == SSL_ERROR_WANT_WRITE) return Step::kWrites;
  const unsigned long code = ERR_peek_error();
  ERR_clear_error();
  if (error_ != 0) return end(Failure::Kind::kSystem, std::strerror(error_));
  if (closed_ || error == SSL_ERROR_ZERO_RETURN) return end(Failure::Kind::kClosed, "the peer hung up");
  const char* reason = ERR_reason_error_string(code);
  return end(Failure::Kind::kTls, reason != nullptr ? reason : "unknown reason");
}

TlsStream::Step TlsStream::handshake() {
  forget_errors();
  error_ = 0;
  const int result = SSL_do_handshake(ssl_);
  const Step step = result == 1 ? Step::kDone : ended(result);
  if (step == Step::kEnd) {  // what the peer is told of it
    const Failure why = failure_;
    static_cast<void>(flush());
    failure_ = why;
    return step;
  }
  const Step flushed = flush();
  return flushed == Step::kDone ? step : flushed;
}

TlsStream::Step TlsStream::read(uint8_t* to, size_t room, size_t* ret_got) {
  forget_errors();
  error_ = 0;
  const int result = SSL_read_ex(ssl_, to, room, ret_got);
  if (result == 1) return Step::kDone;
  *ret_got = 0;
  const Step step = ended(result);
  // An answer to what the peer's TLS wants; if the socket is full, it goes with what is written next.
  if (step != Step::kEnd && !out_.empty() && flush() == Step::kEnd) return Step::kEnd;
  return step;
}

bool TlsStream::holds() const { return SSL_has_pending(ssl_) == 1; }

TlsStream::Step TlsStream::write(const uint8_t* from, size_t size, size_t* ret_taken) {
  forget_errors();
  error_ = 0;
  *ret_taken = 0;
  const size_t most = std::min(size, kBatch);
  out_.reserve(out_.size() + most + 256);
  while (*ret_taken < most) {
    size_t taken = 0;
    const int result = SSL_write_ex(ssl_, from + *ret_taken, most - *ret_taken, &taken);
    if (result != 1) return ended(result) == Step::kEnd ? Step::kEnd : end(Failure::Kind::kTls, "no record");
    *ret_taken += taken;
  }
  return flush();
}

TlsStream::Step TlsStream::flush() {
  while (sent_ < out_.size()) {
    const ssize_t sent = ::send(socket_.native_handle(), out_.data() + sent_, out_.size() - sent_,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      sent_ += static_cast<size_t>(sent);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Step::kWrites;
    return end(Failure::Kind::kSystem, std::strerror(errno));
  }
  sent_ = 0;
  out_.clear();
  if (out_.capacity() > kKept) std::vector<uint8_t>().swap(out_);
  return Step::kDone;
}

void async_handshake(const std::shared_ptr<TlsStream>& stream,
                     std::function<void(const TlsStream::Failure* why)> done) {
  const TlsStream::Step step = stream->handshake();
  if (step == TlsStream::Step::kDone) return done(nullptr);
  if (step == TlsStream::Step::kEnd) return done(&stream->failure());
  stream->socket().async_wait(
      step == TlsStream::Step::kReads ? Tcp::socket::wait_read : Tcp::socket::wait_write,
      [stream, done = std::move(done)](const asio::error_code& e) mutable {
        if (!e) return async_handshake(stream, std::move(done));
        const TlsStream::Failure failure{TlsStream::Failure::Kind::kSystem, e.message()};
        done(&failure);
      });
}

}  // namespace hvd::wire
