// Verifies, weighs and unpacks control messages.
#include "wire/messages.h"

#include <fmt/format.h>

#include "base/status.h"

namespace hvd::wire {
namespace {

// An assignment of ten thousand workers with four backends each stays far below these.
constexpr size_t kMaxMessage = 64 << 20;
constexpr uint32_t kMaxDepth = 8;
constexpr uint32_t kMaxTables = 1 << 18;

Error invalid(const std::string& what) { return Error(HVD_INVALID, "message from the network: " + what); }

// A table or a text may be referred to any number of times in verified bytes, and each reference becomes
// an object of its own: a few bytes could ask for terabytes. What we send refers to each thing once, so
// what unpacks to more than was received is a forgery.
class Weight {
 public:
  explicit Weight(size_t limit) : limit_(limit) {}
  bool fits() const { return weight_ <= limit_; }

  template <class Vector>
  void add(const Vector* v) {
    if (v != nullptr) weight_ += v->size();
  }
  void add_strings(const flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>* strings) {
    if (strings == nullptr) return;
    for (const auto* s : *strings) {
      weight_ += 4;
      add(s);
      if (!fits()) return;
    }
  }
  void add_addresses(const flatbuffers::Vector<flatbuffers::Offset<Address>>* addresses) {
    if (addresses == nullptr) return;
    for (const Address* a : *addresses) {
      weight_ += 4;
      add(a->backend());
      add(a->blob());
      add(a->lacking());
      if (!fits()) return;
    }
  }

  void add_settings(const flatbuffers::Vector<flatbuffers::Offset<Setting>>* settings) {
    if (settings == nullptr) return;
    for (const Setting* s : *settings) {
      weight_ += 4;
      add(s->name());
      add(s->value());
      if (!fits()) return;
    }
  }

 private:
  const size_t limit_;
  size_t weight_ = 0;
};

bool weighs_no_more_than(size_t limit, const Envelope& envelope) {
  Weight weight(limit);
  const Ready* ready = envelope.body_as_Ready();
  if (const Resume* resume = envelope.body_as_Resume()) ready = resume->ready();
  if (ready != nullptr) {
    weight.add_addresses(ready->addresses());
    weight.add_settings(ready->settings());
  }
  if (const Assignment* assignment = envelope.body_as_Assignment()) {
    for (const Member* member : *assignment->members()) {
      weight.add(member->host());
      weight.add_addresses(member->addresses());
      if (!weight.fits()) return false;
    }
  }
  if (const HostsUpdated* update = envelope.body_as_HostsUpdated()) {
    weight.add_strings(update->added());
    weight.add_strings(update->removed());
  }
  if (const AgentStart* start = envelope.body_as_AgentStart()) {
    for (const auto* texts : {start->environment(), start->base(), start->argv()}) weight.add_strings(texts);
  }
  return weight.fits();
}

bool is_known(Body body) { return body > Body::NONE && body <= Body::MAX; }

EnvelopeT decode_aligned(const uint8_t* data, size_t size) {
  if (!EnvelopeBufferHasIdentifier(data))
    throw invalid(fmt::format("it does not bear the identifier \"{}\"", EnvelopeIdentifier()));
  flatbuffers::Verifier verifier(data, size, kMaxDepth, kMaxTables);
  if (!VerifyEnvelopeBuffer(verifier))
    throw invalid(fmt::format("{} bytes are truncated, malformed, or lack a required field", size));
  const Envelope* envelope = GetEnvelope(data);
  // The verifier lets a body of unknown type pass unread.
  if (!is_known(envelope->body_type()))
    throw invalid(fmt::format("body of unknown type {}, expected 1 to {}",
                              static_cast<int>(envelope->body_type()), static_cast<int>(Body::MAX)));
  if (!weighs_no_more_than(size, *envelope))
    throw invalid(fmt::format("{} that unpacks to more than the {} bytes received",
                              EnumNameBody(envelope->body_type()), size));
  EnvelopeT result;
  envelope->UnPackTo(&result);
  return result;
}

}  // namespace

Bytes encode(const EnvelopeT& envelope) {
  if (!is_known(envelope.body.type) || envelope.body.value == nullptr)
    throw Error(HVD_INVALID, "a message to send has no body");
  flatbuffers::FlatBufferBuilder builder(512);
  FinishEnvelopeBuffer(builder, Envelope::Pack(builder, &envelope));
  const uint8_t* begin = builder.GetBufferPointer();
  return Bytes(begin, begin + builder.GetSize());
}

EnvelopeT decode(std::span<const uint8_t> bytes) {
  constexpr size_t kSmallest = sizeof(flatbuffers::uoffset_t) + flatbuffers::kFileIdentifierLength;
  if (bytes.size() <= kSmallest) throw invalid(fmt::format("{} bytes are too few", bytes.size()));
  if (bytes.size() > kMaxMessage)
    throw invalid(fmt::format("{} bytes are too many, expected at most {}", bytes.size(), kMaxMessage));
  if (reinterpret_cast<uintptr_t>(bytes.data()) % alignof(uint64_t) == 0)
    return decode_aligned(bytes.data(), bytes.size());
  const Bytes copy(bytes.begin(), bytes.end());
  return decode_aligned(copy.data(), copy.size());
}

const char* body_name(const EnvelopeT& envelope) {
  return is_known(envelope.body.type) ? EnumNameBody(envelope.body.type) : "no body";
}

}  // namespace hvd::wire
