// Reads heartbeats in place, and writes the three numbers in which answers differ.
#include "wire/heartbeat.h"

#include <utility>

#include "base/status.h"
#include "wire/messages.h"

namespace hvd::wire {
namespace {

constexpr size_t kLongest = 4096;  // an ordinary one has some 200 bytes

uint8_t* place_of(Bytes& bytes, const void* table, flatbuffers::voffset_t field) {
  const uint8_t* at = static_cast<const flatbuffers::Table*>(table)->GetAddressOf(field);
  if (at == nullptr) throw Error(HVD_INTERNAL, "the answer to a heartbeat lacks a field");
  return bytes.data() + (at - bytes.data());
}

}  // namespace

const Envelope* heartbeat_in(std::span<const uint8_t> bytes) {
  constexpr size_t kSmallest = sizeof(flatbuffers::uoffset_t) + flatbuffers::kFileIdentifierLength;
  if (bytes.size() <= kSmallest || bytes.size() > kLongest ||
      reinterpret_cast<uintptr_t>(bytes.data()) % alignof(uint64_t) != 0 ||
      !EnvelopeBufferHasIdentifier(bytes.data())) {
    return nullptr;
  }
  flatbuffers::Verifier verifier(bytes.data(), bytes.size());
  if (!VerifyEnvelopeBuffer(verifier)) return nullptr;
  const Envelope* envelope = GetEnvelope(bytes.data());
  return envelope->body_type() == Body::Heartbeat ? envelope : nullptr;
}

HeartbeatAnswer::HeartbeatAnswer(std::string job, uint64_t term, std::chrono::milliseconds interval)
    : term_(term), interval_(interval) {
  HeartbeatAckT answer;
  answer.sent_ns = -1;  // a number that is 0 would have no place
  answer.interval_ms = interval.count();
  EnvelopeT message = envelope(std::move(job), ~uint64_t{0}, 0, std::move(answer));
  message.sequence = ~uint64_t{0};
  message.term = term;
  bytes_ = encode(message);
  const Envelope* root = GetEnvelope(bytes_.data());
  worker_ = place_of(bytes_, root, Envelope::VT_WORKER);
  sequence_ = place_of(bytes_, root, Envelope::VT_SEQUENCE);
  sent_ = place_of(bytes_, root->body_as_HeartbeatAck(), HeartbeatAck::VT_SENT_NS);
}

std::span<const uint8_t> HeartbeatAnswer::to(uint64_t worker, uint64_t sequence, int64_t sent_ns) {
  flatbuffers::WriteScalar(worker_, worker);
  flatbuffers::WriteScalar(sequence_, sequence);
  flatbuffers::WriteScalar(sent_, sent_ns);
  return bytes_;
}

}  // namespace hvd::wire
