// Finds the two numbers that differ, near the beginning of the bytes.
#include "wire/circular.h"

#include <utility>

#include "base/status.h"

namespace hvd::wire {

Circular::Circular(EnvelopeT message) {
  message.worker = message.sequence = ~uint64_t{0};  // a number that is 0 would have no place
  bytes_ = encode(message);
  const Envelope* envelope = GetEnvelope(bytes_.data());
  const auto* table = reinterpret_cast<const flatbuffers::Table*>(envelope);
  const auto place = [&](flatbuffers::voffset_t field) {
    const uint8_t* at = table->GetAddressOf(field);
    if (at == nullptr) throw Error(HVD_INTERNAL, "a message for many has no place for its receiver");
    return static_cast<size_t>(at - bytes_.data());
  };
  worker_ = place(Envelope::VT_WORKER);
  sequence_ = place(Envelope::VT_SEQUENCE);
}

void Circular::send(Channel& channel, uint64_t worker, uint64_t sequence) const {
  Bytes own = bytes_;
  flatbuffers::WriteScalar(own.data() + worker_, worker);
  flatbuffers::WriteScalar(own.data() + sequence_, sequence);
  channel.send(std::move(own));
}

}  // namespace hvd::wire
