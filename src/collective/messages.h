// Messages between ranks about operations, as plain values. They have two encodings: that of matching.fbs
// (messages.cc), and a shorter one for messages that repeat (known_messages.cc).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "collective/agreement.h"
#include "collective/kinds/kind.h"
#include "collective/payload.h"
#include "collective/signature.h"

namespace hvd::collective {

inline constexpr size_t kMaxName = 512;            // the core's own names hold a user's key of 255 bytes
inline constexpr size_t kMaxMessage = 1 << 20;     // of hvd_backend_table.send_message
inline constexpr size_t kMaxSpecBytes = 900'000;   // of a signature in a request
inline constexpr size_t kMaxPayload = 96 << 10;    // of a message, padding included
inline constexpr size_t kInlineObject = 32 << 10;  // larger objects go through the backend

/// "host memory", "device memory (CUDA)"
const char* memory_name(hvd_memory memory);

/// The right to meet for a call on the board, as long as everybody's word is this one.
struct Grant {
  uint32_t slot = 0;
  uint32_t number = 0;  // 0: none
  uint64_t word = 0;
};

/// A rank has called an operation.
struct Request {
  uint64_t ticket = 0;
  SignaturePtr call;
  uint64_t checks = 0, epoch = 0;  // see agreement.h
  uint64_t word = 0;
  uint64_t object_size = 0;
  bool meets = false;            // it would have met on the board
  bool carries = false;          // its data is in the payload
  std::vector<uint8_t> payload;  // or the root's object, if object_size <= kInlineObject
};

/// As it travels: with the call in full, or only its id.
struct RequestMessage {
  Request request;  // request.call: NULL if only the id came
  uint32_t id = 0;
  uint64_t digest = 0;
};

/// The coordinator's decision about an operation.
struct Outcome {
  Status status;
  uint64_t sequence = 0;      // of the first backend operation; 0: none is needed
  uint64_t word = 0;          // agree; join: the rank that joined last
  std::vector<int64_t> rows;  // allgather: by tensor and participant; alltoall: received, by participant
  std::vector<int32_t> participants;  // empty: all members
  uint64_t object_size = 0;
  bool carries = false;
  Payload payload;      // the result, or the object
  uint64_t checks = 0;  // join
  Grant grant;          // from the next call on
};
using OutcomePtr = std::shared_ptr<const Outcome>;
/// The same with data of its own.
OutcomePtr kept(OutcomePtr outcome);

struct OutcomeMessage {
  uint64_t ticket = 0;
  std::vector<uint64_t> more;  // the others of its batch
  OutcomePtr outcome;
  Proposal proposal;
};
struct StallMessage {
  uint64_t ticket = 0;
  std::vector<int32_t> missing;
};
struct ResendMessage {
  uint64_t ticket = 0;
};
struct FinishMessage {};

using Message = std::variant<RequestMessage, FinishMessage, OutcomeMessage, StallMessage, ResendMessage>;

/// Writes messages; its memory serves all of them, one after the other. One thread at a time.
class Encoder {
 public:
  Encoder();
  ~Encoder();
  // The bytes returned are valid until the next call. An outcome that goes to several ranks, one after the
  // other, is written once.
  /// id with `in_full` false: the other end knows the call by it. `payload` in the request is not read: fill
  /// writes `payload_size` bytes, at an address aligned to 16, if that is not 0.
  template <class Fill>
  std::span<const uint8_t> encode(const Request& request, uint32_t id, bool in_full, size_t payload_size,
                                  Fill fill) {
    uint8_t* room = in_full ? begin(payload_size) : begin_known(request, id, payload_size);
    if (payload_size > 0) fill(room);
    return in_full ? end(request, id) : bytes();
  }
  std::span<const uint8_t> encode(const Request& request, uint32_t id = 0, bool in_full = true);
  std::span<const uint8_t> encode(const OutcomeMessage& message);
  std::span<const uint8_t> encode(const StallMessage& message);
  std::span<const uint8_t> encode(const ResendMessage& message);
  std::span<const uint8_t> encode(const FinishMessage& message);
  /// The last message.
  std::span<const uint8_t> bytes() const { return last_; }

 private:
  /// The last message was this one, but for the tickets.
  bool readdress(const OutcomeMessage& message);
  void encode_table(const OutcomeMessage& message);
  void readdress_table(const OutcomeMessage& message);
  uint8_t* begin(size_t payload_size);
  std::span<const uint8_t> end(const Request& request, uint32_t id);

  // known_messages.cc
  uint8_t* begin_known(const Request& request, uint32_t id, size_t payload_size);
  void encode_known(const OutcomeMessage& message);
  void readdress_known(const OutcomeMessage& message);
  uint8_t* room_for(size_t bytes);

  struct Impl;
  const std::unique_ptr<Impl> impl_;
  std::vector<uint64_t> known_;  // its room, aligned to 16, unless the outcome has some
  std::span<const uint8_t> last_;
  OutcomePtr outcome_;  // of the last message, with that proposal
  Proposal proposal_;
  size_t more_ = 0;
  uint8_t* head_ = nullptr;  // of the last message, in the shorter encoding; NULL: it is a table
};

/// Reads and checks a message from rank `source` of `size`; throws Error(HVD_INVALID) that says what is
/// wrong with it. What it gives back can be used without further checks of ranges, but for a request, which
/// validate has to see once its call is known. An outcome's payload may refer to `data`: see kept.
Message decode(std::span<const uint8_t> data, int32_t source, int32_t size);
void validate(const Request& request, int32_t source, int32_t size);

// known_messages.cc
/// True if the shorter encoding can express the outcome.
bool is_known(const Outcome& outcome);
/// True if the bytes begin as the shorter encoding does.
bool is_known(std::span<const uint8_t> data);
/// As decode, for bytes in the shorter encoding.
Message decode_known(std::span<const uint8_t> data);
/// Checks that both encodings make; they throw as decode does.
void check_fields(const RequestMessage& message);
void check_fields(const Outcome& outcome);

}  // namespace hvd::collective
