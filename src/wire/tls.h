// TLS 1.3 with a key derived from the job's secret as external pre-shared key (RFC 8446, 4.2.11), for both
// ends of a channel. No certificate is ever sent or accepted.
#pragma once

#include <string>

struct ssl_ctx_st;
struct ssl_st;

namespace hvd::wire {

enum class TlsRole { kClient, kServer };

/// The caller owns the result (SSL_CTX_free). Throws Error: HVD_INVALID for a secret of unfit length,
/// HVD_UNAVAILABLE if OpenSSL refuses.
ssl_ctx_st* make_tls_context(const std::string& secret, TlsRole role);

/// After the handshake: whether both ends have proved that they know the secret.
bool is_authenticated(ssl_st* ssl);

}  // namespace hvd::wire
