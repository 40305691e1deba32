// Contexts, keys by HKDF, and callbacks of OpenSSL.
#include "wire/tls.h"

#include <fmt/format.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "base/digest.h"
#include "base/openssl.h"
#include "base/status.h"

namespace hvd::wire {
namespace {

constexpr std::string_view kKeyPrefix = "hvd-key:";
constexpr size_t kLongestIdentity = 80;
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

/// "job", "worker/7": a word, or two of which the second names one of the first kind.
bool is_identity(std::string_view text) {
  const auto word = [](std::string_view part) {
    return !part.empty() && std::all_of(part.begin(), part.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
             c == '_' || c == '-';
    });
  };
  if (text.size() > kLongestIdentity) return false;
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return word(text);
  return word(text.substr(0, slash)) && word(text.substr(slash + 1));
}

void check_secret(const std::string& secret) {
  if (secret.size() < kShortestSecret || secret.size() > kLongestSecret || is_key(secret))
    throw Error(HVD_INVALID,
                fmt::format("the job's secret has {} characters{}, expected {} to {}", secret.size(),
                            is_key(secret) ? " and is a worker's key" : "", kShortestSecret, kLongestSecret));
}

// HKDF with SHA-256 (RFC 5869): a secret of any length becomes 32 bytes that serve this purpose alone.
void derive_for(const std::string& secret, std::string info, Key* ret_key) {
  Owned<EVP_KDF> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  Owned<EVP_KDF_CTX> context(kdf ? EVP_KDF_CTX_new(kdf.get()) : nullptr);
  char digest[] = "SHA256", salt[] = "libhvd";
  std::string input = secret;
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, input.data(), input.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, salt, sizeof salt - 1),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info.data(), info.size()),
      OSSL_PARAM_construct_end()};
  const bool derived =
      context && EVP_KDF_derive(context.get(), ret_key->bytes.data(), ret_key->bytes.size(), parameters) == 1;
  OPENSSL_cleanse(input.data(), input.size());
  if (!derived) throw openssl_error("derive a key from the job's secret");
}

void derive(const std::string& secret, std::string_view identity, Key* ret_key) {
  derive_for(secret, fmt::format("control channel, TLS 1.3 pre-shared key of {}", identity), ret_key);
}

/// "hvd-key:worker/7:<64 digits>" to its key; throws Error(HVD_INVALID), which shows no digit.
void parse_key(const std::string& text, const std::string& identity, Key* ret_key) {
  const std::string_view rest = std::string_view(text).substr(kKeyPrefix.size());
  const size_t colon = rest.rfind(':');
  const std::string_view whose = rest.substr(0, std::min(colon, rest.size()));
  if (colon == std::string_view::npos || rest.size() - colon - 1 != 2 * ret_key->bytes.size())
    throw Error(HVD_INVALID,
                "the secret is a damaged key: expected hvd-key:<identity>:<64 hexadecimal digits>");
  if (whose != identity)
    throw Error(HVD_INVALID, fmt::format("the secret is the key of {}, and this is {}",
                                         whose.substr(0, kLongestIdentity), identity));
  for (size_t i = 0; i < ret_key->bytes.size(); ++i) {
    const char* digits = rest.data() + colon + 1 + 2 * i;
    const auto [end, error] = std::from_chars(digits, digits + 2, ret_key->bytes[i], 16);
    if (error != std::errc() || end != digits + 2)
      throw Error(HVD_INVALID, "the secret is a damaged key: expected 64 hexadecimal digits at its end");
  }
}

/// What the callbacks of a context need: for a client its identity and key, for a server the job's secret.
struct Credential {
  std::string identity, secret;
  Key key;
  Credential() = default;
  Credential(const Credential&) = delete;
  Credential& operator=(const Credential&) = delete;
  ~Credential() { OPENSSL_cleanse(secret.data(), secret.size()); }
};

void free_credential(void*, void* credential, CRYPTO_EX_DATA*, int, long, void*) {
  delete static_cast<Credential*>(credential);
}

// The credential lives with the context, since connections outlive the listener that made it.
int credential_index() {
  static const int index = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, free_credential);
  return index;
}

void free_identity(void*, void* identity, CRYPTO_EX_DATA*, int, long, void*) {
  delete static_cast<std::string*>(identity);
}

int identity_index() {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, free_identity);
  return index;
}

const Credential* credential_of(SSL* ssl) {
  return static_cast<const Credential*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), credential_index()));
}

SSL_SESSION* make_session(SSL* ssl, const Key& key) {
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kCipherId);
  Owned<SSL_SESSION> session(SSL_SESSION_new());
  if (cipher == nullptr || !session) return nullptr;
  const bool made = SSL_SESSION_set1_master_key(session.get(), key.bytes.data(), key.bytes.size()) == 1 &&
                    SSL_SESSION_set_cipher(session.get(), cipher) == 1 &&
                    SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) == 1;
  return made ? session.release() : nullptr;
}

int use_session(SSL* ssl, const EVP_MD*, const unsigned char** id, size_t* id_size, SSL_SESSION** session) {
  const Credential* own = credential_of(ssl);
  *session = own == nullptr ? nullptr : make_session(ssl, own->key);
  if (*session == nullptr) return 0;
  *id = reinterpret_cast<const unsigned char*>(own->identity.data());
  *id_size = own->identity.size();
  return 1;
}

// No exception may cross OpenSSL.
int find_session(SSL* ssl, const unsigned char* identity, size_t size, SSL_SESSION** session) noexcept {
  *session = nullptr;
  const std::string_view name(reinterpret_cast<const char*>(identity), size);
  const Credential* own = credential_of(ssl);
  if (own == nullptr || !is_identity(name)) return 1;  // none: refused
  try {
    Key key;
    derive(own->secret, name, &key);
    auto kept = std::make_unique<std::string>(name);
    delete static_cast<std::string*>(SSL_get_ex_data(ssl, identity_index()));
    if (SSL_set_ex_data(ssl, identity_index(), kept.get()) != 1) return 0;
    static_cast<void>(kept.release());  // the connection's from here on
    *session = make_session(ssl, key);
  } catch (const std::exception&) { return 0; }
  return *session != nullptr ? 1 : 0;
}

/// Before the first call to OpenSSL that another library with its names would not survive.
void check_openssl() {
  if (const char* file = nullptr; openssl_is_replaced(&file)) {
    throw Error(
        HVD_UNAVAILABLE,
        fmt::format("libhvd needs OpenSSL 3, and its calls reach another library of the same names in this "
                    "process ({}): load libhvd before that one, or with RTLD_DEEPBIND",
                    file != nullptr ? file : "unknown file"));
  }
}

TlsContext make_context(const SSL_METHOD* method, std::unique_ptr<Credential> credential) {
  TlsContext owned(SSL_CTX_new(method));
  SSL_CTX* context = owned.get();
  if (context == nullptr || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context, kCipher) != 1 || SSL_CTX_set_num_tickets(context, 0) != 1 ||
      SSL_CTX_set_ex_data(context, credential_index(), credential.get()) != 1)
    throw openssl_error("set up TLS 1.3");
  static_cast<void>(credential.release());  // the context's from here on
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_clear_options(context, SSL_OP_ALLOW_NO_DHE_KEX);  // forward secrecy
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_read_ahead(context, 1);
  return owned;
}

}  // namespace

std::string worker_identity(uint64_t worker) { return fmt::format("worker/{}", worker); }

std::string agent_identity(const std::string& host) {
  const std::string name = "agent/" + host;
  // What begins with _ is a digest, so that no name can be taken for another one's.
  if (is_identity(name) && !host.starts_with('_')) return name;
  const hvd::Digest name_digest = digest(host.data(), host.size());
  return fmt::format("agent/_{:016x}{:016x}", name_digest.high, name_digest.low);
}

bool is_agent(const std::string& identity) { return identity.starts_with("agent/"); }

std::string key_text(const std::string& secret, const std::string& identity) {
  check_secret(secret);
  Key key;
  derive(secret, identity, &key);
  std::string text = fmt::format("{}{}:", kKeyPrefix, identity);
  for (const unsigned char byte : key.bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::string term_proof(const std::string& secret, const std::string& job, uint64_t term) {
  check_secret(secret);
  Key key;
  derive_for(secret, fmt::format("term {} of job {}", term, job), &key);
  std::string text;
  for (const unsigned char byte : key.bytes) text += fmt::format("{:02x}", byte);
  return text;
}

bool proves_term(const std::string& proof, const std::string& secret, const std::string& job, uint64_t term) {
  if (proof.empty()) return false;
  const std::string expected = term_proof(secret, job, term);
  return proof.size() == expected.size() &&
         CRYPTO_memcmp(proof.data(), expected.data(), expected.size()) == 0;
}

bool is_key(const std::string& text) { return text.starts_with(kKeyPrefix); }

void FreeTlsContext::operator()(ssl_ctx_st* context) const { SSL_CTX_free(context); }

TlsContext make_server_context(const std::string& secret) {
  check_openssl();
  check_secret(secret);
  auto credential = std::make_unique<Credential>();
  credential->secret = secret;
  TlsContext context = make_context(TLS_server_method(), std::move(credential));
  SSL_CTX_set_psk_find_session_callback(context.get(), find_session);
  return context;
}

TlsContext make_client_context(const std::string& secret, const std::string& identity) {
  check_openssl();
  auto credential = std::make_unique<Credential>();
  credential->identity = identity;
  if (is_key(secret)) {
    parse_key(secret, identity, &credential->key);
  } else {
    check_secret(secret);
    derive(secret, identity, &credential->key);
  }
  TlsContext context = make_context(TLS_client_method(), std::move(credential));
  // A driver that ignores the key and shows a certificate instead must not pass: nobody is trusted.
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_psk_use_session_callback(context.get(), use_session);
  return context;
}

bool is_authenticated(ssl_st* ssl) { return SSL_session_reused(ssl) == 1; }

std::string identity_of(ssl_st* ssl) {
  const auto* identity = static_cast<const std::string*>(SSL_get_ex_data(ssl, identity_index()));
  return identity == nullptr ? std::string() : *identity;
}

}  // namespace hvd::wire
