// TLS 1.3 with an external pre-shared key (RFC 8446, 4.2.11) for both ends of a channel. Each peer has a key
// of its own, derived from the job's secret and the peer's identity, so that no worker can play another one
// or the driver. No certificate is ever sent or accepted.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

struct ssl_ctx_st;
struct ssl_st;

namespace hvd::wire {

/// Whoever holds the job's secret itself and has no other identity.
inline constexpr char kJobIdentity[] = "job";

/// A worker that no driver started and that asks to be let in.
inline constexpr char kAdmissionIdentity[] = "admission";

/// Whoever asks and steers a job that runs (hvdrun ctl).
inline constexpr char kOperatorIdentity[] = "operator";

/// "worker/7".
std::string worker_identity(uint64_t worker);

/// "agent/node1" of the agent of a host; a host whose name is no word, or is long, stands by its digest.
std::string agent_identity(const std::string& host);

/// Whether an identity is an agent's.
bool is_agent(const std::string& identity);

/// The key of one identity as text ("hvd-key:worker/7:" and 64 digits): it stands where a secret does and
/// serves that identity alone. `secret`: the job's, 32 to 512 characters. Throws Error(HVD_INVALID) for one
/// of unfit length.
std::string key_text(const std::string& secret, const std::string& identity);

/// Whether a text is such a key, and so no job's secret.
bool is_key(const std::string& text);

/// What shows that somebody who holds the job's secret has named this term, as a driver does and no worker
/// can: 64 hexadecimal digits. `secret`: as for key_text.
std::string term_proof(const std::string& secret, const std::string& job, uint64_t term);

/// Whether it is that proof; takes as long for any `proof` of its length.
bool proves_term(const std::string& proof, const std::string& secret, const std::string& job, uint64_t term);

struct FreeTlsContext {
  void operator()(ssl_ctx_st* context) const;
};
using TlsContext = std::unique_ptr<ssl_ctx_st, FreeTlsContext>;

/// The driver's end: any identity, each by its own key. Throws Error: HVD_INVALID for a secret of unfit
/// length or a key, HVD_UNAVAILABLE if OpenSSL refuses.
TlsContext make_server_context(const std::string& secret);

/// The other end, as `identity`. `secret`: the job's, or the key of that identity (HVD_INVALID if it is
/// another's).
TlsContext make_client_context(const std::string& secret, const std::string& identity);

/// After the handshake: whether both ends have proved that they know the key.
bool is_authenticated(ssl_st* ssl);

/// At the driver's end, after the handshake: whose key the peer knows.
std::string identity_of(ssl_st* ssl);

}  // namespace hvd::wire
