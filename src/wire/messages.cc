// Verifies, weighs and unpacks control messages.
#include "wire/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

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
  /// Of a vector of references: four bytes each, and what `weigh` adds for what it refers to.
  template <class Vector, class Weigh>
  void add_each(const Vector* references, Weigh weigh) {
    if (references == nullptr) return;
    for (const auto* referred : *references) {
      weight_ += sizeof(flatbuffers::uoffset_t);
      weigh(referred);
      if (!fits()) return;
    }
  }
  template <class Strings>
  void add_strings(const Strings* strings) {
    add_each(strings, [this](const auto* s) { add(s); });
  }
  template <class Addresses>
  void add_addresses(const Addresses* addresses) {
    add_each(addresses, [this](const Address* a) {
      add(a->backend());
      add(a->blob());
      add(a->lacking());
    });
  }

  void add_ready(const Ready& ready) {
    add_addresses(ready.addresses());
    add_each(ready.settings(), [this](const Setting* s) {
      add(s->name());
      add(s->value());
    });
  }
  void add_assignment(const Assignment& assignment) {
    add_each(assignment.members(), [this](const Member* m) {
      add(m->host());
      add_addresses(m->addresses());
    });
    if (const Roster* roster = assignment.roster()) {
      add_strings(roster->hosts());
      add_each(roster->profiles(), [this](const RosterProfile* p) { add_addresses(p->backends()); });
    }
  }
  void add_commit(const FeedCommit& commit) {
    add_each(commit.items(), [this](const FeedItem* item) {
      add(item->key());
      if (item->digests() != nullptr) weight_ += item->digests()->size() * sizeof(Digest);
    });
  }

 private:
  const size_t limit_;
  size_t weight_ = 0;
};

/// Of every vector of texts or tables in the schema; of what is referred to once, the bytes are its own.
bool weighs_no_more_than(size_t limit, const Envelope& envelope) {
  Weight weight(limit);
  if (const Ready* ready = envelope.body_as_Ready()) weight.add_ready(*ready);
  if (const Resume* resume = envelope.body_as_Resume(); resume != nullptr && resume->ready() != nullptr)
    weight.add_ready(*resume->ready());
  if (const Assignment* assignment = envelope.body_as_Assignment()) weight.add_assignment(*assignment);
  if (const FeedCommit* commit = envelope.body_as_FeedCommit()) weight.add_commit(*commit);
  if (const HostsUpdated* update = envelope.body_as_HostsUpdated()) {
    weight.add_strings(update->added());
    weight.add_strings(update->removed());
  }
  if (const AgentStart* start = envelope.body_as_AgentStart()) {
    for (const auto* texts : {start->environment(), start->base(), start->argv()}) weight.add_strings(texts);
  }
  return weight.fits();
}

/// The verifier looks at the alignment of a vector's length alone; these have elements of eight bytes.
bool has_aligned_vectors(const Envelope& envelope) {
  const auto aligned = [](const auto* vector) {
    return vector == nullptr || reinterpret_cast<uintptr_t>(vector->Data()) % alignof(uint64_t) == 0;
  };
  if (const AgentHello* hello = envelope.body_as_AgentHello()) return aligned(hello->workers());
  if (const AgentHeartbeat* heartbeat = envelope.body_as_AgentHeartbeat())
    return aligned(heartbeat->running()) && aligned(heartbeat->stopped());
  if (const Assignment* assignment = envelope.body_as_Assignment())
    return assignment->roster() == nullptr || aligned(assignment->roster()->workers());
  if (const FeedCommit* commit = envelope.body_as_FeedCommit();
      commit != nullptr && commit->items() != nullptr)
    return std::all_of(commit->items()->begin(), commit->items()->end(),
                       [&](const FeedItem* item) { return aligned(item->digests()); });
  return true;
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
  if (!has_aligned_vectors(*envelope))
    throw invalid(fmt::format("{} with a vector of 64-bit numbers that is not aligned",
                              EnumNameBody(envelope->body_type())));
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
  try {
    if (reinterpret_cast<uintptr_t>(bytes.data()) % alignof(uint64_t) == 0)
      return decode_aligned(bytes.data(), bytes.size());
    const Bytes copy(bytes.begin(), bytes.end());
    return decode_aligned(copy.data(), copy.size());
  } catch (const std::bad_alloc&) {
    // The sender's connection ends for it, and not the process.
    throw Error(HVD_INTERNAL, fmt::format("out of memory: a message of {} bytes is not read", bytes.size()));
  }
}

const char* body_name(const EnvelopeT& envelope) {
  return is_known(envelope.body.type) ? EnumNameBody(envelope.body.type) : "no body";
}

}  // namespace hvd::wire
