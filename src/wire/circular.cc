// Finds the two numbers that differ, near the beginning of the bytes.
#include "wire/circular.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace hvd::wire {

Circular::Circular(EnvelopeT message) {
  message.worker = message.sequence = ~uint64_t{0};  // a number that is 0 would have no place
  auto bytes = std::make_shared<const Bytes>(encode(message));
  const Envelope* envelope = GetEnvelope(bytes->data());
  const auto* table = reinterpret_cast<const flatbuffers::Table*>(envelope);
  const auto place = [&](flatbuffers::voffset_t field) {
    const uint8_t* at = table->GetAddressOf(field);
    if (at == nullptr) throw Error(HVD_INTERNAL, "a message for many has no place for its receiver");
    return static_cast<size_t>(at - bytes->data());
  };
  worker_ = place(Envelope::VT_WORKER);
  sequence_ = place(Envelope::VT_SEQUENCE);
  head_ = std::max(worker_, sequence_) + sizeof(uint64_t);
  bytes_ = std::move(bytes);
}

void Circular::send(Channel& channel, uint64_t worker, uint64_t sequence) const {
  Bytes head(bytes_->begin(), bytes_->begin() + static_cast<ptrdiff_t>(head_));
  flatbuffers::WriteScalar(head.data() + worker_, worker);
  flatbuffers::WriteScalar(head.data() + sequence_, sequence);
  channel.send_shared(std::move(head), bytes_, head_);
}

}  // namespace hvd::wire
