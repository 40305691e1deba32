// What ranks tell each other about operations, as plain values, and their encoding (matching.fbs).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "collective/engine.h"

namespace hvd::collective {

inline constexpr size_t kMaxName = 512;             // the core's own names hold a user's key of 255 bytes
inline constexpr size_t kMaxMessage = 1 << 20;      // of hvd_backend_table.send_message
inline constexpr size_t kMaxSpecBytes = 1'000'000;  // descriptions of tensors in one request
inline constexpr size_t kInlineObject = 32 << 10;   // larger objects go through the backend
inline constexpr Duration kMaxTimeout = std::chrono::hours(24 * 365);

const char* kind_name(Kind kind);

/// dtype and shape of a tensor.
struct Spec {
  hvd_dtype dtype = 0;
  std::vector<int64_t> shape;
  bool operator==(const Spec&) const = default;
};

/// Bytes of a tensor of this spec; -1 if that is more than an int64 holds or the spec makes no sense.
int64_t spec_bytes(hvd_dtype dtype, std::span<const int64_t> shape);
/// Bytes that these descriptions take in a request.
size_t encoded_spec_bytes(const std::vector<Spec>& specs);

/// A rank has called an operation.
struct Request {
  uint64_t ticket = 0;
  std::string name;
  Kind kind = Kind::kBarrier;
  hvd_reduction reduction = 0;  // allreduce
  int32_t root = 0;             // broadcasts
  std::vector<Spec> specs;      // one per tensor
  uint64_t word = 0;
  uint64_t object_size = 0;
  std::vector<uint8_t> object;   // from the root, if object_size <= kInlineObject
  std::vector<int32_t> members;  // empty: all ranks
  Duration timeout{0};
};

/// The coordinator's decision about an operation, the same for all ranks that called it.
struct Outcome {
  Status status;
  uint64_t sequence = 0;  // of the first backend operation; 0: none is needed
  uint64_t word = 0;
  std::vector<int64_t> rows;  // allgather: first dimension on each rank
  uint64_t object_size = 0;
  std::vector<uint8_t> object;
};
using OutcomePtr = std::shared_ptr<const Outcome>;

struct OutcomeMessage {
  uint64_t ticket = 0;
  OutcomePtr outcome;
};
struct StallMessage {
  uint64_t ticket = 0;
  std::vector<int32_t> missing;
};
struct FinishMessage {};

using Message = std::variant<Request, FinishMessage, OutcomeMessage, StallMessage>;

std::vector<uint8_t> encode(const Request& request);
std::vector<uint8_t> encode(const OutcomeMessage& message);
std::vector<uint8_t> encode(const StallMessage& message);
std::vector<uint8_t> encode(const FinishMessage& message);

/// Reads and checks a message from rank `source` of `size`; throws Error(HVD_INVALID) that says what is
/// wrong with it. What it gives back can be used without further checks of ranges.
Message decode(std::span<const uint8_t> data, int32_t source, int32_t size);

}  // namespace hvd::collective
