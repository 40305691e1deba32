// Reads and writes of a socket, in the clear and by OpenSSL.
#include "modules/kit/socket.h"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "hvd/backend.hpp"

namespace hvdkit {
namespace {

constexpr char kCipher[] = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kCipherId[] = {0x13, 0x01};
constexpr char kIdentity[] = "hvd-link";
constexpr size_t kRecord = size_t{16} << 10;            // of plain bytes: the longest that TLS has
constexpr size_t kBatch = size_t{128} << 10;            // of records that go out in one call
constexpr size_t kReadAhead = size_t{128} << 10;        // of what comes in
constexpr uint64_t kRecordsPerKey = uint64_t{1} << 22;  // RFC 8446, 5.5: AES-GCM takes 2^24.5 full records

Failure openssl_failure(const char* what) {
  char text[256] = "unknown reason";
  if (const unsigned long code = ERR_get_error(); code != 0) ERR_error_string_n(code, text, sizeof(text));
  ERR_clear_error();
  return {HVD_UNAVAILABLE, std::string("OpenSSL can't ") + what + ": " + text};
}

}  // namespace

/// The records of one connection. OpenSSL writes them to `out`, which leaves in few and large calls.
struct Socket::Tls {
  SSL* ssl = nullptr;
  Key key{};
  int fd = -1;
  std::vector<uint8_t> out;
  size_t sent = 0;       // of out
  uint64_t records = 0;  // since the last change of keys

  Tls() = default;
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;
  ~Tls() {
    SSL_free(ssl);
    OPENSSL_cleanse(key.data(), key.size());
  }

  static SSL_SESSION* session_of(SSL* ssl) {
    const auto* self = static_cast<const Tls*>(SSL_get_app_data(ssl));
    const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kCipherId);
    SSL_SESSION* session = SSL_SESSION_new();
    if (self != nullptr && cipher != nullptr && session != nullptr &&
        SSL_SESSION_set1_master_key(session, self->key.data(), self->key.size()) == 1 &&
        SSL_SESSION_set_cipher(session, cipher) == 1 &&
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
      return session;
    }
    SSL_SESSION_free(session);
    return nullptr;
  }
  static int use_session(SSL* ssl, const EVP_MD*, const unsigned char** id, size_t* size,
                         SSL_SESSION** session) {
    *session = session_of(ssl);
    *id = reinterpret_cast<const unsigned char*>(kIdentity);
    *size = sizeof(kIdentity) - 1;
    return *session != nullptr ? 1 : 0;
  }
  static int find_session(SSL* ssl, const unsigned char* id, size_t size, SSL_SESSION** session) {
    *session = nullptr;
    if (size != sizeof(kIdentity) - 1 || std::memcmp(id, kIdentity, size) != 0) return 1;  // none: refused
    *session = session_of(ssl);
    return *session != nullptr ? 1 : 0;
  }

  static SSL_CTX* make_context(bool server) {
    SSL_CTX* context = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());
    if (context == nullptr || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(context, kCipher) != 1 || SSL_CTX_set_num_tickets(context, 0) != 1) {
      SSL_CTX_free(context);
      throw openssl_failure("set up TLS 1.3");
    }
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_clear_options(context, SSL_OP_ALLOW_NO_DHE_KEX);  // forward secrecy
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_default_read_buffer_len(context, kReadAhead);
    if (server) {
      SSL_CTX_set_psk_find_session_callback(context, find_session);
    } else {
      // An end that shows a certificate instead of the key must not pass: nobody is trusted.
      SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
      SSL_CTX_set_psk_use_session_callback(context, use_session);
    }
    return context;
  }
  static SSL_CTX* context(bool server) {
    static SSL_CTX* const contexts[2] = {make_context(false), make_context(true)};
    return contexts[server ? 1 : 0];
  }

  // The BIO below OpenSSL. Writes go without SIGPIPE, which its own socket BIO would raise.
  static int bio_write(BIO* bio, const char* data, int size) {
    auto* self = static_cast<Tls*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    try {
      self->out.insert(self->out.end(), data, data + size);
    } catch (const std::exception&) {
      ::shutdown(self->fd, SHUT_RDWR);  // no memory for a record: whoever reads, at either end, sees the end
      return -1;
    }
    return size;
  }
  static int bio_read(BIO* bio, char* data, int size) {
    auto* self = static_cast<Tls*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    const ssize_t got = ::recv(self->fd, data, static_cast<size_t>(size), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) BIO_set_retry_read(bio);
    return static_cast<int>(got);
  }
  static long bio_control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }
  static const BIO_METHOD* bio_method() {
    static const BIO_METHOD* const made = [] {
      BIO_METHOD* m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "hvd socket");
      if (m == nullptr) throw openssl_failure("make a BIO");
      BIO_meth_set_write(m, bio_write);
      BIO_meth_set_read(m, bio_read);
      BIO_meth_set_ctrl(m, bio_control);
      return m;
    }();
    return made;
  }
};

Socket::Socket() = default;
Socket::Socket(Fd fd) : fd_(std::move(fd)) {}
Socket::Socket(Socket&&) noexcept = default;
Socket& Socket::operator=(Socket&&) noexcept = default;
Socket::~Socket() = default;

void Socket::close() {
  tls_.reset();
  fd_.reset();
}

void Socket::encrypt(bool server, const Key& key) {
  auto tls = std::make_unique<Tls>();
  tls->key = key;
  tls->fd = fd_.get();
  tls->ssl = SSL_new(Tls::context(server));
  BIO* bio = tls->ssl != nullptr ? BIO_new(Tls::bio_method()) : nullptr;
  if (bio == nullptr) throw openssl_failure("make a connection");
  BIO_set_data(bio, tls.get());
  BIO_set_init(bio, 1);
  SSL_set_bio(tls->ssl, bio, bio);
  if (SSL_set_app_data(tls->ssl, tls.get()) != 1) throw openssl_failure("make a connection");
  if (server) {
    SSL_set_accept_state(tls->ssl);
  } else {
    SSL_set_connect_state(tls->ssl);
  }
  tls_ = std::move(tls);
}

ssize_t Socket::end(const std::string& why) {
  if (why_.empty()) why_ = why;
  return kEnd;
}

ssize_t Socket::end_of_tls(int result, const char* what) {
  const int error = SSL_get_error(tls_->ssl, result);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return kNothing;
  if (error == SSL_ERROR_ZERO_RETURN || (error == SSL_ERROR_SYSCALL && ERR_peek_error() == 0)) {
    ERR_clear_error();
    return end(errno != 0 ? std::string("link broke: ") + std::strerror(errno)
                          : "closed its link: its process is gone");
  }
  const unsigned long code = ERR_peek_error();
  const char* reason = ERR_reason_error_string(code);
  const bool eof = ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
  ERR_clear_error();
  if (eof) return end("closed its link: its process is gone");
  return end(std::string(what) + ": " + (reason != nullptr ? reason : "unknown reason"));
}

ssize_t Socket::read(void* data, size_t size) {
  if (tls_ == nullptr) {
    ssize_t got = 0;
    do { got = ::recv(fd_.get(), data, size, MSG_DONTWAIT); } while (got < 0 && errno == EINTR);
    if (got > 0) return got;
    if (got == 0) return end("closed its link: its process is gone");
    if (errno == EAGAIN || errno == EWOULDBLOCK) return kNothing;
    return end(std::string("link broke: ") + std::strerror(errno));
  }
  auto* to = static_cast<char*>(data);
  size_t done = 0;
  while (done < size) {
    ERR_clear_error();
    errno = 0;
    const bool shaken = SSL_is_init_finished(tls_->ssl) != 0;
    const size_t most = std::min(size - done, size_t{1} << 30);
    const int got = SSL_read(tls_->ssl, to + done, static_cast<int>(most));
    if (!shaken) {
      if (SSL_is_init_finished(tls_->ssl) != 0 && SSL_session_reused(tls_->ssl) != 1)
        return end("did not prove to know the key");
      if (flush() == kEnd) return kEnd;
    }
    drained_ = got <= 0;
    if (got > 0) {
      done += static_cast<size_t>(got);
      continue;
    }
    const ssize_t result = end_of_tls(got, "sent what is not encrypted with the key of this link");
    return done > 0 ? static_cast<ssize_t>(done) : result;
  }
  return static_cast<ssize_t>(done);
}

ssize_t Socket::write(const iovec* parts, int count) {
  full_ = false;
  if (tls_ == nullptr) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts);
    message.msg_iovlen = static_cast<size_t>(count);
    ssize_t sent = 0;
    do {
      sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    if (sent > 0) return sent;
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
      return end(std::string("link broke: ") + std::strerror(errno));
    full_ = true;
    return kNothing;
  }
  if (flush() == kEnd) return kEnd;
  if (holds()) return kNothing;
  size_t taken = 0;
  uint8_t record[kRecord];
  int part = 0;
  size_t offset = 0;
  while (part < count && tls_->out.size() < kBatch) {
    // Where parts are small they share a record. A large one is encrypted from where it lies.
    const uint8_t* from = static_cast<const uint8_t*>(parts[part].iov_base) + offset;
    size_t size = std::min(parts[part].iov_len - offset, kRecord);
    int next = part;
    size_t next_offset = offset + size;
    if (size < kRecord && part + 1 < count) {
      size = 0;
      next_offset = offset;
      while (next < count && size < kRecord) {
        const size_t piece = std::min(parts[next].iov_len - next_offset, kRecord - size);
        if (piece > 0) {
          std::memcpy(record + size, static_cast<const uint8_t*>(parts[next].iov_base) + next_offset, piece);
        }
        size += piece;
        next_offset += piece;
        if (next_offset < parts[next].iov_len) break;
        ++next;
        next_offset = 0;
      }
      from = record;
    } else if (next_offset == parts[part].iov_len) {
      ++next;
      next_offset = 0;
    }
    if (size > 0) {
      ERR_clear_error();
      errno = 0;
      if (++tls_->records % kRecordsPerKey == 0) SSL_key_update(tls_->ssl, SSL_KEY_UPDATE_NOT_REQUESTED);
      const int done = SSL_write(tls_->ssl, from, static_cast<int>(size));
      if (done <= 0) {
        const ssize_t result = end_of_tls(done, "can't be written to");
        if (result == kEnd) return kEnd;
        break;  // the handshake waits for the peer
      }
      taken += size;  // whole records: the BIO takes all
    }
    part = next;
    offset = next_offset;
  }
  if (flush() == kEnd) return kEnd;
  return static_cast<ssize_t>(taken);
}

bool Socket::holds() const { return tls_ != nullptr && !tls_->out.empty(); }

ssize_t Socket::flush() {
  if (!holds()) return kNothing;
  while (tls_->sent < tls_->out.size()) {
    const ssize_t sent = ::send(fd_.get(), tls_->out.data() + tls_->sent, tls_->out.size() - tls_->sent,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
      return end(std::string("link broke: ") + std::strerror(errno));
    full_ = sent < 0;
    if (full_) return kNothing;
    tls_->sent += static_cast<size_t>(sent);
  }
  tls_->out.clear();
  tls_->sent = 0;
  full_ = false;
  return kNothing;
}

bool Socket::buffered() const { return tls_ != nullptr && !drained_ && SSL_has_pending(tls_->ssl) != 0; }

}  // namespace hvdkit
