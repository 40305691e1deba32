// Control messages as objects. Nothing is read from bytes that the verifier has not passed (contract 13).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "control_generated.h"  // made by flatc in the build: EnvelopeT, BodyUnion, ...
#include "wire/bytes.h"
#include "wire/names.h"

namespace hvd::wire {

inline constexpr uint32_t kProtocol = 1;

/// Serialized envelope. `body` is a table object of control.fbs: encode(job, worker, generation, sequence,
/// DoneT{...}).
Bytes encode(const EnvelopeT& envelope);

/// Throws Error: HVD_INVALID says what is wrong with the bytes, HVD_INTERNAL that there is no memory for
/// them.
EnvelopeT decode(std::span<const uint8_t> bytes);

/// Envelope around one table object; the sequence is set by the sender of the connection.
template <class Table>
EnvelopeT envelope(std::string job, uint64_t worker, uint64_t generation, Table body) {
  EnvelopeT e;
  e.job = std::move(job);
  e.worker = worker;
  e.generation = generation;
  e.body.Set(std::move(body));
  return e;
}

/// "Ready", "Abort", ...: for logs and errors.
const char* body_name(const EnvelopeT& envelope);

inline hvd::Digest to_digest(const wire::Digest* d) {
  return d == nullptr ? hvd::Digest{} : hvd::Digest{d->low(), d->high()};
}

}  // namespace hvd::wire
