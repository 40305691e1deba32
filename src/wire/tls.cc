#include "wire/tls.h"

#include <fmt/format.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/ssl.h>

#include <array>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/status.h"

namespace hvd::wire {
namespace {

constexpr std::string_view kIdentity = "hvd";
constexpr char kCipher[] = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kCipherId[] = {0x13, 0x01};
constexpr size_t kShortestSecret = 32, kLongestSecret = 512;

struct Key {
  std::array<unsigned char, 32> bytes{};
  Key() = default;
  Key(const Key&) = delete;
  Key& operator=(const Key&) = delete;
  ~Key() { OPENSSL_cleanse(bytes.data(), bytes.size()); }
};

struct Free {
  void operator()(SSL_CTX* p) const { SSL_CTX_free(p); }
  void operator()(SSL_SESSION* p) const { SSL_SESSION_free(p); }
  void operator()(EVP_KDF* p) const { EVP_KDF_free(p); }
  void operator()(EVP_KDF_CTX* p) const { EVP_KDF_CTX_free(p); }
};
template <class T>
using Owned = std::unique_ptr<T, Free>;

Error openssl_error(const char* what) {
  char text[256] = "unknown reason";
  if (const unsigned long code = ERR_get_error(); code != 0) ERR_error_string_n(code, text, sizeof text);
  ERR_clear_error();
  return Error(HVD_UNAVAILABLE, fmt::format("OpenSSL can't {}: {}", what, text));
}

// HKDF with SHA-256 (RFC 5869): a secret of any length becomes a key of 32 bytes that serves nothing else.
void derive(const std::string& secret, Key* ret_key) {
  Owned<EVP_KDF> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  Owned<EVP_KDF_CTX> context(kdf ? EVP_KDF_CTX_new(kdf.get()) : nullptr);
  char digest[] = "SHA256", salt[] = "libhvd", info[] = "control channel, TLS 1.3 pre-shared key";
  std::string input = secret;
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, input.data(), input.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, salt, sizeof salt - 1),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info, sizeof info - 1),
      OSSL_PARAM_construct_end()};
  const bool derived =
      context && EVP_KDF_derive(context.get(), ret_key->bytes.data(), ret_key->bytes.size(), parameters) == 1;
  OPENSSL_cleanse(input.data(), input.size());
  if (!derived) throw openssl_error("derive the key from the job's secret");
}

void free_key(void*, void* key, CRYPTO_EX_DATA*, int, long, void*) { delete static_cast<Key*>(key); }

// The key lives with the context, since connections outlive the listener that made it.
int key_index() {
  static const int index = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, free_key);
  return index;
}

SSL_SESSION* make_session(SSL* ssl) {
  const Key* key = static_cast<const Key*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), key_index()));
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kCipherId);
  Owned<SSL_SESSION> session(SSL_SESSION_new());
  if (key == nullptr || cipher == nullptr || !session) return nullptr;
  const bool made = SSL_SESSION_set1_master_key(session.get(), key->bytes.data(), key->bytes.size()) == 1 &&
                    SSL_SESSION_set_cipher(session.get(), cipher) == 1 &&
                    SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) == 1;
  return made ? session.release() : nullptr;
}

int use_session(SSL* ssl, const EVP_MD*, const unsigned char** id, size_t* id_size, SSL_SESSION** session) {
  *session = make_session(ssl);
  *id = reinterpret_cast<const unsigned char*>(kIdentity.data());
  *id_size = kIdentity.size();
  return *session != nullptr ? 1 : 0;
}

int find_session(SSL* ssl, const unsigned char* identity, size_t size, SSL_SESSION** session) {
  *session = nullptr;
  if (std::string_view(reinterpret_cast<const char*>(identity), size) != kIdentity)
    return 1;  // none: refused
  *session = make_session(ssl);
  return *session != nullptr ? 1 : 0;
}

}  // namespace

ssl_ctx_st* make_tls_context(const std::string& secret, TlsRole role) {
  if (secret.size() < kShortestSecret || secret.size() > kLongestSecret)
    throw Error(HVD_INVALID, fmt::format("the job's secret has {} characters, expected {} to {}",
                                         secret.size(), kShortestSecret, kLongestSecret));
  auto key = std::make_unique<Key>();
  derive(secret, key.get());

  Owned<SSL_CTX> owned(SSL_CTX_new(role == TlsRole::kClient ? TLS_client_method() : TLS_server_method()));
  SSL_CTX* context = owned.get();
  if (context == nullptr || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context, kCipher) != 1 || SSL_CTX_set_num_tickets(context, 0) != 1 ||
      SSL_CTX_set_ex_data(context, key_index(), key.get()) != 1)
    throw openssl_error("set up TLS 1.3");
  static_cast<void>(key.release());  // the context's from here on
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_clear_options(context, SSL_OP_ALLOW_NO_DHE_KEX);  // forward secrecy
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  // A driver that ignores the key and shows a certificate instead must not pass: nobody is trusted.
  if (role == TlsRole::kClient) {
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_psk_use_session_callback(context, use_session);
  } else {
    SSL_CTX_set_psk_find_session_callback(context, find_session);
  }
  return owned.release();
}

bool is_authenticated(ssl_st* ssl) { return SSL_session_reused(ssl) == 1; }

}  // namespace hvd::wire
