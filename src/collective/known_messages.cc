// The shorter encoding: messages that repeat need no table and no verifier. A call that rank 0 knows by its
// id, and an outcome without details, are a head of fixed layout and the data behind it. Both ends run the
// same version, and have the same byte order, as the data demand anyway.
#include <array>
#include <cstring>
#include <limits>

#include "backend/board.h"
#include "collective/messages.h"

namespace hvd::collective {
namespace {

// A FlatBuffer has its own identifier, another one, at the same place.
constexpr std::array<char, 4> kIdentifier = {'H', 'V', 'D', 'K'};
constexpr size_t kIdentifierAt = 4;
constexpr uint32_t kRequest = 1, kOutcome = 2;  // type
constexpr uint32_t kCarries = 1, kMeets = 2;    // flags

// Then the payload.
struct RequestHead {
  uint32_t type;
  std::array<char, 4> identifier;
  uint64_t ticket, digest, checks, epoch, word, object_size;
  uint32_t id, flags;
};

// Then `more` tickets, and the payload at a multiple of 16.
struct OutcomeHead {
  uint32_t type;
  std::array<char, 4> identifier;
  uint64_t ticket, sequence, word, object_size, check, check_word, checks, grant_word;
  uint32_t slot, grant, more, flags, reserved[2];
};
static_assert(sizeof(RequestHead) == 64 && sizeof(OutcomeHead) == 96);

void require(bool condition, const char* what) {
  if (!condition) throw Error(HVD_INVALID, what);
}

template <class Head>
Head head_of(std::span<const uint8_t> data) {
  require(data.size() >= sizeof(Head), "bytes that are no message");
  Head head;
  std::memcpy(&head, data.data(), sizeof(head));
  return head;
}

constexpr size_t payload_at(size_t more) {
  return payload_aligned(sizeof(OutcomeHead) + more * sizeof(uint64_t));
}

RequestMessage decode_request(std::span<const uint8_t> data) {
  const auto head = head_of<RequestHead>(data);
  require(head.id != 0 && (head.flags & ~uint32_t{kCarries | kMeets}) == 0, "request of an unknown form");
  RequestMessage message;
  message.id = head.id;
  message.digest = head.digest;
  Request& request = message.request;
  request.ticket = head.ticket;
  request.checks = head.checks;
  request.epoch = head.epoch;
  request.word = head.word;
  request.object_size = head.object_size;
  request.carries = (head.flags & kCarries) != 0;
  request.meets = (head.flags & kMeets) != 0;
  request.payload.assign(data.begin() + sizeof(head), data.end());
  check_fields(message);
  return message;
}

OutcomeMessage decode_outcome(std::span<const uint8_t> data) {
  const auto head = head_of<OutcomeHead>(data);
  require((head.flags & ~uint32_t{kCarries}) == 0, "outcome of an unknown form");
  require(head.more <= (data.size() - sizeof(head)) / sizeof(uint64_t), "outcome with tickets cut short");
  OutcomeMessage message;
  message.ticket = head.ticket;
  message.more.resize(head.more);
  if (head.more > 0)
    std::memcpy(message.more.data(), data.data() + sizeof(head), head.more * sizeof(uint64_t));
  message.proposal = {head.check, head.check_word};
  auto outcome = std::make_shared<Outcome>();
  outcome->sequence = head.sequence;
  outcome->word = head.word;
  outcome->object_size = head.object_size;
  outcome->carries = (head.flags & kCarries) != 0;
  if (const size_t at = payload_at(head.more); at < data.size()) {
    outcome->payload = Payload::lent(data.subspan(at));
  }
  outcome->checks = head.checks;
  outcome->grant = {head.slot, head.grant, head.grant_word};
  check_fields(*outcome);
  message.outcome = std::move(outcome);
  return message;
}

static_assert(payload_at(0) == Payload::kHead);

}  // namespace

void check_fields(const RequestMessage& message) {
  require(message.id <= kSignatures, "request with an id out of range");
  require(message.request.checks < std::numeric_limits<uint64_t>::max() / 2,
          "request with an impossible check");
  require(message.request.payload.size() <= kMaxPayload, "request with too much data");
}

void check_fields(const Outcome& outcome) {
  require(outcome.payload.size() <= kMaxPayload, "outcome with too much data");
  require(outcome.grant.slot < backend::kBoardSlots && outcome.grant.number <= backend::Board::kMostGrants,
          "outcome with a grant out of range");
}

bool is_known(const Outcome& outcome) {
  return outcome.status.ok() && outcome.status.rank == -1 && outcome.status.message.empty() &&
         outcome.rows.empty() && outcome.participants.empty();
}

bool is_known(std::span<const uint8_t> data) {
  return data.size() >= kIdentifierAt + kIdentifier.size() &&
         std::memcmp(data.data() + kIdentifierAt, kIdentifier.data(), kIdentifier.size()) == 0;
}

Message decode_known(std::span<const uint8_t> data) {
  uint32_t type = 0;
  std::memcpy(&type, data.data(), sizeof(type));
  if (type == kRequest) return decode_request(data);
  if (type == kOutcome) return decode_outcome(data);
  throw Error(HVD_INVALID, "message of an unknown type");
}

uint8_t* Encoder::room_for(size_t bytes) {
  known_.resize((bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t));
  auto* const room = reinterpret_cast<uint8_t*>(known_.data());
  last_ = {room, bytes};
  head_ = room;
  outcome_ = nullptr;
  return room;
}

/// Writes all but the payload; where that goes.
uint8_t* Encoder::begin_known(const Request& request, uint32_t id, size_t payload_size) {
  const uint32_t flags = (request.carries ? kCarries : 0) | (request.meets ? kMeets : 0);
  const RequestHead head{kRequest,
                         kIdentifier,
                         request.ticket,
                         request.call->digest,
                         request.checks,
                         request.epoch,
                         request.word,
                         request.object_size,
                         id,
                         flags};
  uint8_t* const room = room_for(sizeof(head) + payload_size);
  std::memcpy(room, &head, sizeof(head));
  return room + sizeof(head);
}

void Encoder::encode_known(const OutcomeMessage& message) {
  const Outcome& outcome = *message.outcome;
  const size_t more = message.more.size(), size = outcome.payload.size();
  const OutcomeHead head{kOutcome,
                         kIdentifier,
                         message.ticket,
                         outcome.sequence,
                         outcome.word,
                         outcome.object_size,
                         message.proposal.check,
                         message.proposal.word,
                         outcome.checks,
                         outcome.grant.word,
                         outcome.grant.slot,
                         outcome.grant.number,
                         static_cast<uint32_t>(more),
                         outcome.carries ? kCarries : 0,
                         {}};
  if (uint8_t* const room = outcome.payload.head(); room != nullptr && more == 0) {  // its data are in place
    std::memcpy(room, &head, sizeof(head));
    last_ = {room, sizeof(head) + size};
    head_ = room;
    return;
  }
  const size_t tickets_end = sizeof(head) + more * sizeof(uint64_t);
  uint8_t* const room = room_for(size > 0 ? payload_at(more) + size : tickets_end);
  std::memcpy(room, &head, sizeof(head));
  if (more > 0) std::memcpy(room + sizeof(head), message.more.data(), more * sizeof(uint64_t));
  if (size == 0) return;
  std::memset(room + tickets_end, 0, payload_at(more) - tickets_end);
  std::memcpy(room + payload_at(more), outcome.payload.data(), size);
}

void Encoder::readdress_known(const OutcomeMessage& message) {
  std::memcpy(head_ + offsetof(OutcomeHead, ticket), &message.ticket, sizeof(message.ticket));
  if (more_ > 0) std::memcpy(head_ + sizeof(OutcomeHead), message.more.data(), more_ * sizeof(uint64_t));
}

}  // namespace hvd::collective
